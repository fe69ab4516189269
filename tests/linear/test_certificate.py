"""Certificates of linear autoencoders: right figures, and the claim that wrong weights fail."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from linear.problems import centred_rows, orthogonal
from lucidae import LinearAutoencoder, SecondMoment
from lucidae import certify as certify_estimator
from lucidae.iteration import Status
from lucidae.linear import estimator as linear_estimator
from lucidae.linear.certificate import LinearFigures, certify_weights, claims, measure
from lucidae.linear.methods import METHODS, Options
from lucidae.linear.objectives import LinearVAE, NonUniformL2
from lucidae.linear.penalties import best_penalties
from lucidae.linear.prefixes import geometric_prior
from lucidae.linear.probe import Estimate
from lucidae.linear.theory import AlignedPoint, condition_number
from lucidae.linear.verified_data import data_of
from lucidae.metrics import axis_alignment_distance, subspace_distance
from lucidae.rows.sources import MomentSource
from lucidae.rows.spectrum import Spectrum

VALUES = np.array([4.0, 2.5, 1.5, 0.7, 0.3, 0.1])
K = 3
CLAIMS = (
    "subspace",
    "alignment",
    "order",
    "stationarity",
    "gap",
    "balance",
    "nonzero_latents",
    "eigengap",
    "sampling",
    "conditioning",
    "epochs",
    "attributes",
    "moment",
)


@pytest.fixture(scope="module")
def X():
    return 2 + centred_rows(VALUES)


@pytest.fixture(scope="module")
def axes(X):
    """Principal axes as rows."""
    return np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :K].T


def failing(certificate):
    return {claim.name for claim in certificate.claims if claim.holds is False}


@pytest.mark.parametrize("method", METHODS)
def test_every_closed_form_is_certified(X, method):
    certificate = LinearAutoencoder(K, method=method).fit(X).certificate_
    assert certificate.holds
    assert not failing(certificate)
    assert tuple(claim.name for claim in certificate.claims) == CLAIMS
    assert json.loads(json.dumps(certificate.to_dict()))
    assert method in certificate.summary()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "nested_dropout"])
def test_a_fit_cut_short_is_not(X, method):
    fitted = LinearAutoencoder(K, method=method, solver="gradient", max_iter=3, random_state=0)
    with pytest.warns(UserWarning, match="limit of 3 iterations"):
        certificate = fitted.fit(X).certificate_
    assert certificate.holds is False
    assert {"subspace", "stationarity", "gap"} <= failing(certificate)


def test_the_figures_are_those_of_a_direct_computation(X, axes):
    rng = np.random.default_rng(0)
    encoder = axes + 0.1 * rng.standard_normal(axes.shape)
    decoder = axes.T + 0.1 * rng.standard_normal(axes.T.shape)
    l2 = np.array([0.1, 0.3, 0.6])
    certificate = certify_weights(encoder, decoder, X, method="nonuniform_l2", l2=l2)
    assert_allclose(certificate["subspace"].value, subspace_distance(decoder, axes.T))
    assert_allclose(certificate["alignment"].value, axis_alignment_distance(decoder, axes.T))
    centred = X - X.mean(axis=0)
    residual = centred - centred @ encoder.T @ decoder.T
    loss = np.sum(residual**2) / len(X) + l2 @ (
        np.sum(encoder**2, axis=1) + np.sum(decoder**2, axis=0)
    )
    minimum = np.sum(2 * l2 - l2**2 / VALUES[:K]) + VALUES[K:].sum()
    assert_allclose(certificate["gap"].value, (loss - minimum) / VALUES.sum(), rtol=1e-8)
    gram, code = decoder.T @ decoder, encoder @ encoder.T
    assert_allclose(
        certificate["balance"].value, np.linalg.norm(code - gram) / np.linalg.norm(gram)
    )
    exact = condition_number(AlignedPoint.nonuniform(VALUES, l2))
    assert_allclose(certificate["conditioning"].value, exact, rtol=1e-6)
    assert_allclose(certificate["eigengap"].value, 0.8 / 4.0, rtol=1e-8)


def test_the_gap_of_a_linear_vae_is_its_excess_over_the_likelihood(X):
    fitted = LinearAutoencoder(K, method="linear_vae").fit(X)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    noise = 1.5 * fitted.noise_variance_
    certificate = certify_weights(
        fitted.encoder_, fitted.decoder_, X, method="linear_vae", noise_variance=noise
    )
    best = LinearVAE().minimum(spectrum, K)
    assert certificate["gap"].holds is False
    assert certificate["gap"].value > 0
    assert np.isfinite(best)


def test_turned_weights_span_the_subspace_but_do_not_align(X, axes):
    turn = orthogonal(np.random.default_rng(1), K)
    certificate = certify_weights(turn @ axes, axes.T @ turn.T, X, method="rag")
    assert certificate["subspace"].holds
    assert certificate["gap"].holds
    assert certificate["balance"].holds
    assert {"alignment", "stationarity"} <= failing(certificate)
    plain = certify_weights(turn @ axes, axes.T @ turn.T, X, method="plain")
    assert plain.holds
    assert plain["alignment"].holds is None


def test_untied_rag_at_rest_is_told_by_alignment_and_balance(X, axes):
    turn, root = orthogonal(np.random.default_rng(1), K), np.sqrt(VALUES[:K])
    encoder = turn @ (axes / root[:, None])
    decoder = (axes.T * root) @ turn.T
    certificate = certify_weights(encoder, decoder, X, method="rag", tied=False)
    assert certificate["stationarity"].holds
    assert {"alignment", "balance"} <= failing(certificate)


def test_swapped_latents_fail_the_order_alone(X, axes):
    swapped = axes[[1, 0, 2]]
    certificate = certify_weights(swapped, swapped.T, X, method="expected_nested_dropout")
    assert certificate["alignment"].holds
    assert "order" in failing(certificate)
    assert certify_weights(swapped, swapped.T, X, method="plain")["order"].holds is None


def test_another_subspace_fails_subspace_and_gap(X):
    wrong = np.linalg.eigh(np.cov(X.T))[1][:, :K].T
    certificate = certify_weights(wrong, wrong.T, X, method="plain")
    assert failing(certificate) == {"subspace", "gap"}
    assert_allclose(certificate["subspace"].value, 1.0)


def test_unbalanced_weights_fail_balance_alone_where_it_is_asked(X, axes):
    certificate = certify_weights(0.5 * axes, 2 * axes.T, X, method="rag", tied=False)
    assert failing(certificate) == {"balance"}
    assert certify_weights(0.5 * axes, 2 * axes.T, X, method="plain").holds


def test_zero_latents_are_named_and_priced(X):
    l2 = [0.1, 2.6, 1.6]
    certificate = LinearAutoencoder(K, method="nonuniform_l2", l2=l2).fit(X).certificate_
    assert certificate["nonzero_latents"].holds is False
    assert certificate["nonzero_latents"].value == 1
    assert "latent 2 is zero at the optimum" in certificate["nonzero_latents"].advice
    assert "1/3 = 0.333" in certificate["nonzero_latents"].advice
    assert_allclose(certificate["subspace"].value, 1 / 3, atol=1e-9)
    assert "mean squared sine of 0.333" in certificate["subspace"].advice
    assert certificate["gap"].holds
    assert certificate["stationarity"].holds


def test_the_papers_penalties_kill_latents_19_and_20():
    values = np.concatenate([np.linspace(5.117, 0.673, 18), [0.626, 0.608], np.full(5, 0.1)])
    X = centred_rows(values, n=100)
    l2 = np.linspace(0.1, 0.9, 20) ** 2
    certificate = LinearAutoencoder(20, method="nonuniform_l2", l2=l2).fit(X).certificate_
    assert "latents 19–20 are zero at the optimum" in certificate["nonzero_latents"].advice
    assert "2/20 = 0.1" in certificate["nonzero_latents"].advice
    assert_allclose(certificate["subspace"].value, 0.1, atol=1e-9)


def test_a_subspace_that_the_data_do_not_determine_is_no_failure_of_the_fit():
    few = np.random.default_rng(0).standard_normal((5, 20))
    certificate = LinearAutoencoder(8).fit(few).certificate_
    assert certificate["subspace"].holds is None
    assert certificate["eigengap"].holds is False
    assert "4–8" in certificate["eigengap"].advice or "5–8" in certificate["eigengap"].advice


def test_the_prediction_of_epochs_is_the_order_of_those_needed(X):
    for method in ("rag", "nonuniform_l2", "expected_nested_dropout"):
        fitted = LinearAutoencoder(K, method=method, solver="gradient", random_state=0).fit(X)
        predicted = fitted.certificate_["epochs"].value
        assert predicted / 10 < fitted.n_iter_ < 50 * predicted


def test_the_best_penalties_have_the_condition_number_that_is_reported(X):
    certificate = LinearAutoencoder(K, method="nonuniform_l2").fit(X).certificate_
    best = AlignedPoint.nonuniform(VALUES, best_penalties(VALUES, K))
    assert_allclose(certificate["conditioning"].value, condition_number(best), rtol=1e-3)
    nested = LinearAutoencoder(K, method="expected_nested_dropout").fit(X).certificate_
    point = AlignedPoint.nested(VALUES, geometric_prior(K))
    assert_allclose(
        nested["conditioning"].value, condition_number(point, effective=True), rtol=1e-6
    )


def test_certifying_on_data_on_its_moment_and_from_what_was_kept_agree(X):
    fitted = LinearAutoencoder(K, method="nonuniform_l2").fit(X)
    kept = fitted.certificate_
    for other in (
        certify_estimator(fitted),
        certify_estimator(fitted, X),
        certify_estimator(fitted, SecondMoment.of(X)),
        certify_estimator(fitted, X, sample_weight=np.ones(len(X))),
    ):
        for name in CLAIMS:
            if name != "moment":  # a moment alone has no rows to be compared with
                assert other[name].holds == kept[name].holds
    shifted = certify_estimator(fitted, X[:, ::-1])
    assert "subspace" in failing(shifted)


def test_other_wide_data_are_certified_on_their_own_spectrum():
    rng = np.random.default_rng(0)
    X, other = rng.standard_normal((2, 8, 1200)) * np.r_[9.0, 5.0, np.ones(1198)]
    fitted = LinearAutoencoder(2).fit(X)
    assert fitted.certificate_.holds
    assert "subspace" in failing(certify_estimator(fitted, other))


@pytest.mark.parametrize("n", [300, 1500])
def test_many_features_have_the_same_verdicts_from_the_fit_and_from_the_data(n):
    """Above 1024 features nothing is stored, and the eigenvalues are bounded."""
    rng = np.random.default_rng(0)
    wide = 1 + rng.standard_normal((n, 1100)) * np.r_[30.0, 20.0, 10.0, np.ones(1097)]
    fitted = LinearAutoencoder(2).fit(wide)
    kept, again = fitted.certificate_, certify_estimator(fitted, wide)
    assert kept.holds
    assert [claim.holds for claim in kept] == [claim.holds for claim in again]
    swapped = fitted.components_[[1, 0]]
    certificate = certify_weights(swapped, swapped.T, wide, method="rag")
    assert failing(certificate) >= {"order"}
    other = np.eye(2, 1100)
    assert "subspace" in failing(certify_weights(other[:, ::-1], other.T[::-1], wide))


def test_figures_are_numbers_and_give_the_claims(X, axes):
    options = Options.of(K, method="nonuniform_l2", l2=[0.1, 0.2, 0.3])
    moment = SecondMoment.of(X)
    spectrum = MomentSource(moment).spectrum(None)
    method = options.make(K, spectrum, options.rng())
    weights = method.objective.minimizer(spectrum, K)
    figures = measure(method, weights, data_of(moment), options.training)
    assert isinstance(figures, LinearFigures)
    expected = subspace_distance(weights.atoms.T, axes.T)
    assert_allclose(figures.leading.subspace.value, expected, atol=1e-12)
    assert abs(figures.gap.value) < 1e-12
    assert figures.attributes is None, "no model was given"
    found = claims(figures)
    assert tuple(claim.name for claim in found) == CLAIMS
    assert all(name.isidentifier() for name in CLAIMS)
    assert claims(replace(figures, gap=Estimate(1.0)))[4].holds is False


def test_without_a_spectrum_the_distances_are_bounded_by_residuals(monkeypatch):
    """Where m is large the distances are bounds from residuals, and they bound."""
    # The collection of doctests may import a module twice: patch what the estimator itself uses.
    used = vars(linear_estimator)
    monkeypatch.setitem(used["source_of"].__globals__, "EXACT_FEATURES", 10)
    monkeypatch.setitem(used["LinearState"].solve.__globals__, "STORED_FEATURES", 10)
    verified = used["data_of_any"].__globals__["data_of"].__globals__
    monkeypatch.setitem(verified, "DENSE_FEATURES", 10)
    monkeypatch.setitem(verified, "FEW_ROWS", 0)
    values = np.r_[5.0, 3.0, np.full(28, 0.1)]
    X = 1 + centred_rows(values, n=200)
    fitted = LinearAutoencoder(2, random_state=0, batch_size=200).fit(X)
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :2]
    for certificate in (fitted.certificate_, certify_estimator(fitted, X)):
        subspace, alignment = certificate["subspace"], certificate["alignment"]
        assert "bounds from residuals" in subspace.statement
        assert "Balakrishnan" in subspace.reference
        truth = subspace_distance(fitted.decoder_, axes)
        assert abs(subspace.value - truth) <= subspace.error + 1e-12
        truth = axis_alignment_distance(fitted.decoder_, axes)
        assert abs(alignment.value - truth) <= alignment.error + 1e-12
        for name in ("subspace", "alignment", "gap", "stationarity", "eigengap", "attributes"):
            assert certificate[name].holds, certificate[name]


def verdicts(certificate):
    return {claim.name: claim.verdict for claim in certificate}


def test_a_stream_has_the_same_verdicts_from_what_it_kept_and_from_the_data():
    X = 1 + centred_rows(np.r_[5.0, 3.0, np.full(4, 0.01)], n=400)
    stream = LinearAutoencoder(2, solver="stochastic", random_state=0)
    for _ in range(200):
        stream.partial_fit(X)
    assert stream.certificate_["subspace"].holds
    assert verdicts(stream.certificate_) == verdicts(certify_estimator(stream, X))
    resumed = LinearAutoencoder(2).fit(X).set_params(solver="stochastic").partial_fit(X[:9])
    whole = np.vstack([X, X[:9]])
    assert verdicts(resumed.certificate_) == verdicts(certify_estimator(resumed, whole))


def test_a_stream_of_many_features_is_undecided_without_data(monkeypatch):
    monkeypatch.setattr("lucidae.linear.state.CERTIFIED_STREAM_FEATURES", 5)
    X = centred_rows(VALUES)
    stream = LinearAutoencoder(2, solver="stochastic", random_state=0).partial_fit(X)
    assert stream.certificate_["optimum"].undecided
    assert stream.certificate_.holds is None
    assert "certify(estimator, X)" in stream.certificate_["optimum"].advice


def test_a_prior_that_never_cuts_somewhere_identifies_nothing_there(X):
    """With p_B = (0.5, 0, 0.5) latents 2 and 3 are free to rotate."""
    fitted = LinearAutoencoder(K, method="expected_nested_dropout", prior=[0.5, 0.0, 0.5]).fit(X)
    assert fitted.certificate_["alignment"].holds is None


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        (np.ones((2, 6)), np.ones((5, 2)), "shapes \\(k, m\\) and \\(m, k\\)"),
        (np.ones((2, 5)), np.ones((5, 2)), "X has 6 features"),
        (np.full((2, 6), np.nan), np.ones((6, 2)), "encoder contains NaN|Input encoder"),
    ],
)
def test_weights_of_the_wrong_shape_are_refused(X, encoder, decoder, message):
    with pytest.raises(ValueError, match=message):
        certify_weights(encoder, decoder, X)


def test_penalties_of_dead_latents_have_no_curvature_trouble():
    power = NonUniformL2(np.array([0.5, 5.0])).squared_lengths(np.array([2.0, 1.0]))
    assert_allclose(power, [0.75, 0.0])


# Sampling: what another sample of as many rows would show again.


def spiked(n, m, deviations, seed=0):
    """Return white noise with given additional standard deviations along the first features."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, m))
    extra = rng.standard_normal((n, len(deviations))) * deviations
    rows[:, : len(deviations)] += extra
    return rows


def test_pure_noise_is_optimal_but_not_separated_from_sampling_noise():
    certificate = LinearAutoencoder(5).fit(spiked(200, 50, [])).certificate_
    assert certificate.holds, "the fit is optimal for these data"
    claim = certificate["sampling"]
    assert (claim.value, claim.verdict) == (0.0, "reported")
    assert "0 of 5 components are separated from sampling noise; components 1–5" in claim.advice
    assert "independent Gaussian rows" in claim.statement
    assert "identifiable" not in certificate.summary()
    assert "these data" in certificate["eigengap"].statement


def test_the_components_above_noise_are_counted_and_the_others_named():
    X = spiked(300, 30, [9.0, 5.0, 3.0])
    claim = LinearAutoencoder(5).fit(X).certificate_["sampling"]
    assert claim.value == 3.0
    assert "3 of 5 components are separated" in claim.advice
    assert "components 4–5 are not" in claim.advice
    assert LinearAutoencoder(2).fit(X).certificate_["sampling"].advice.startswith("Both components")


def test_where_only_the_subspace_is_promised_ties_inside_of_it_do_not_count():
    """Two equal spikes: no axis is separated, their plane is."""
    X = centred_rows(np.r_[9.0, 9.0 - 1e-6, np.ones(8)], n=200)
    axes = LinearAutoencoder(2).fit(X).certificate_["sampling"]
    plane = LinearAutoencoder(2, method="plain").fit(X).certificate_["sampling"]
    assert (axes.value, plane.value) == (0.0, 2.0)
    assert "subspace of the 2 components is separated" in plane.advice
    close = LinearAutoencoder(1, method="plain").fit(X).certificate_["sampling"]
    assert "eigenvalues 1 and 2 are too close" in close.advice
    noise = LinearAutoencoder(3, method="plain").fit(X).certificate_["sampling"]
    assert "2 of the 3 leading eigenvalues exceed the noise" in noise.advice


@pytest.mark.parametrize(
    ("rows", "method", "k", "reason"),
    [
        (np.eye(2, 5), "rag", 1, "three rows"),
        (np.ones((9, 3)), "rag", 1, "three rows, not all equal"),
        (spiked(20, 4, []), "plain", 4, "as many components as features"),
        (spiked(20, 1100, [30.0]), "rag", 1, "more than 1024 features"),
    ],
)
def test_where_sampling_noise_is_not_known_the_reason_is_said(rows, method, k, reason):
    claim = LinearAutoencoder(k, method=method).fit(rows).certificate_["sampling"]
    assert claim.verdict == "does not apply"
    assert reason in claim.advice


def test_a_constant_feature_is_no_sampling_noise():
    X = spiked(100, 4, [5.0, 3.0]) * [1, 1, 0, 0]
    claim = LinearAutoencoder(3).fit(X).certificate_["sampling"]
    assert claim.value <= 2.0


def test_advice_on_training_is_for_fits_alone(X, axes):
    turned = orthogonal(np.random.default_rng(1), 6)[:K]
    for method in METHODS:
        settings = {"noise_variance": 0.1} if method == "linear_vae" else {}
        certificate = certify_weights(turned, turned.T, X, method=method, **settings)
        assert certificate.holds is False
        assert "Train longer" not in certificate.summary()
        assert "rows, method and penalties are those of their training" in certificate.summary()
    fitted = LinearAutoencoder(K, solver="gradient", max_iter=3, random_state=0)
    with pytest.warns(UserWarning, match="limit of 3 iterations"):
        assert "Train longer" in fitted.fit(X).certificate_.summary()


def test_the_advice_after_convergence_is_not_to_train_longer():
    """Steps that stop at `tol`, which the largest eigenvalue dominates, need a smaller one."""
    X = load_wine().data
    settings = {"method": "gha", "solver": "gradient", "random_state": 0}
    with pytest.warns(ConvergenceWarning, match=r"Converged after .* have not converged"):
        raw = LinearAutoencoder(3, **settings).fit(X)
    assert raw.status_ is Status.CONVERGED
    claim = raw.certificate_["subspace"]
    assert claim.holds is False
    assert claim.advice.startswith("The stopping rule is met (tol=1e-06)")
    assert "standardise the columns of X, lower tol" in claim.advice
    assert LinearAutoencoder(3, **settings).fit(scale(X)).certificate_.holds
    with pytest.warns(ConvergenceWarning, match="Stopped at the limit"):
        short = LinearAutoencoder(3, max_iter=20, **settings).fit(X)
    assert short.certificate_["subspace"].advice.startswith("Train longer (increase max_iter)")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e80, 1e120, 1e150])
def test_figures_on_huge_data_are_infinite_rather_than_nan(method, size):
    X = centred_rows(VALUES)
    certificate = certify_estimator(LinearAutoencoder(1, method=method).fit(X), size * X)
    assert not any(math.isnan(claim.value) for claim in certificate if claim.value is not None)
    if method == "linear_vae":
        assert certificate["gap"].holds is False


@pytest.mark.parametrize(
    ("learning_rate", "spread"), [(1e-300, 1.0), ("auto", np.logspace(-60, 60, 6))]
)
def test_absurd_numbers_of_epochs_are_not_reported(learning_rate, spread):
    X = centred_rows(VALUES) * spread
    fitted = LinearAutoencoder(2, method="rag", learning_rate=learning_rate).fit(X)
    assert fitted.certificate_["epochs"].value is None
    assert "more than 1e15 epochs" in fitted.certificate_["epochs"].advice


@pytest.mark.parametrize("shape", [(50, 6), (6, 6), (4, 6)])
@pytest.mark.parametrize("dense", [True, False])
def test_decoders_of_all_features_are_certified(shape, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("lucidae.linear.verified_data.DENSE_FEATURES", 2)
    X = np.random.default_rng(3).standard_normal(shape) * np.linspace(3, 1, 6)
    for name in METHODS:
        settings = {"noise_variance": 0.1} if name == "linear_vae" else {}
        for decoder in (np.eye(6), np.ones((6, 6)), np.zeros((6, 6))):
            given = {"family": "linear", "method": name, **settings}
            assert len(certify_estimator((decoder, decoder.T), X, **given)) > 0


@pytest.mark.parametrize("shape", [(300, 8), (40, 1100), (1200, 1100)])
@pytest.mark.parametrize(("mean", "spread"), [(1e156, 1e147), (1e300, 1e286)])
def test_a_huge_mean_does_not_overflow(shape, mean, spread):
    deviations = np.random.default_rng(3).standard_normal(shape)
    X = spread * deviations + mean
    if spread > 1e150:
        with pytest.raises(ValueError, match="overflow double precision"):
            LinearAutoencoder(2).fit(X)
        return
    model = LinearAutoencoder(2).fit(X)
    assert "raised" not in str(model.certificate_)
    expected = LinearAutoencoder(2).fit(deviations).components_
    assert_allclose(np.abs(np.sum(model.components_ * expected, axis=1)), 1.0, atol=1e-6)
    assert model.certificate_.holds is not False
