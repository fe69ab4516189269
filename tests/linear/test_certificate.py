"""Certificates of linear autoencoders: right figures, and the claim that each error fails.

Every threshold is tested from both sides: a factor of three decides.
"""

import json
import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from linear.problems import centred_rows, orthogonal
from lucidae import LinearAutoencoder, SecondMoment, certify
from lucidae.linear import (
    METHODS,
)
from lucidae.metrics import axis_alignment_distance, subspace_distance

VALUES = np.array([4.0, 2.5, 1.5, 0.7, 0.3, 0.1])
K = 3
X = 2 + centred_rows(VALUES)
ALL_AXES = np.linalg.eigh(np.cov(X.T))[1][:, ::-1].T
AXES = ALL_AXES[:K]
TABLES = (load_iris, load_wine, load_breast_cancer, load_digits, load_diabetes)
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
    "leverage",
    "conditioning",
    "epochs",
    "attributes",
    "moment",
)


def judged(encoder, decoder, X=X, **settings):
    return certify((encoder, decoder), X, family="linear", **settings)


def failing(certificate):
    return {claim.name for claim in certificate.claims if claim.holds is False}


def verdicts(certificate):
    """Return the verdicts; `certify` reads the rows, where a stream is judged by its moment."""
    apart = ("moment", "leverage")
    return {claim.name: claim.verdict for claim in certificate if claim.name not in apart}


# Right figures.


@pytest.mark.parametrize("method", METHODS)
def test_every_closed_form_is_certified(method):
    certificate = LinearAutoencoder(K, method=method).fit(X).certificate_
    assert certificate.holds
    assert not failing(certificate)
    assert tuple(claim.name for claim in certificate.claims) == CLAIMS
    assert json.loads(json.dumps(certificate.to_dict()))
    assert method in certificate.summary()


@pytest.mark.parametrize("method", [name for name in METHODS if name != "nested_dropout"])
def test_a_fit_cut_short_is_not(method):
    fitted = LinearAutoencoder(K, method=method, solver="gradient", max_iter=3, random_state=0)
    with pytest.warns(UserWarning, match="limit of 3 iterations"):
        certificate = fitted.fit(X).certificate_
    assert {"subspace", "stationarity", "gap"} <= failing(certificate)


def test_the_figures_are_those_of_a_direct_computation():
    rng = np.random.default_rng(0)
    encoder = AXES + 0.1 * rng.standard_normal(AXES.shape)
    decoder = AXES.T + 0.1 * rng.standard_normal(AXES.T.shape)
    l2 = np.array([0.1, 0.3, 0.6])
    certificate = judged(encoder, decoder, method="nonuniform_l2", l2=l2)
    assert_allclose(certificate["subspace"].value, subspace_distance(decoder, AXES.T))
    assert_allclose(certificate["alignment"].value, axis_alignment_distance(decoder, AXES.T))
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
    assert_allclose(certificate["eigengap"].value, 0.8 / 4.0, rtol=1e-8)


@pytest.mark.parametrize("method", ["rag", "nonuniform_l2", "expected_nested_dropout"])
def test_the_prediction_of_epochs_is_the_order_of_those_needed(method):
    fitted = LinearAutoencoder(K, method=method, solver="gradient", random_state=0).fit(X)
    predicted = fitted.certificate_["epochs"].value
    assert predicted / 10 < fitted.n_iter_ < 50 * predicted


def test_certifying_on_data_on_its_moment_and_from_what_was_kept_agree():
    fitted = LinearAutoencoder(K, method="nonuniform_l2").fit(X)
    kept = fitted.certificate_
    for other in (
        certify(fitted),
        certify(fitted, X),
        certify(fitted, SecondMoment.of(X)),
        certify(fitted, X, sample_weight=np.ones(len(X))),
    ):
        for name in CLAIMS:
            if name not in ("moment", "leverage"):  # a moment alone has no rows
                assert other[name].holds == kept[name].holds
    assert "subspace" in failing(certify(fitted, X[:, ::-1]))


@pytest.mark.parametrize("n", [200, 1500])
def test_many_features_have_the_same_verdicts_from_the_fit_and_from_the_data(n):
    """Above 1024 features nothing is stored, and the eigenvalues are bounded."""
    rng = np.random.default_rng(0)
    wide = 1 + rng.standard_normal((n, 1100)) * np.r_[30.0, 20.0, 10.0, np.ones(1097)]
    fitted = LinearAutoencoder(2).fit(wide)
    kept, again = fitted.certificate_, certify(fitted, wide)
    assert kept.holds
    assert [claim.holds for claim in kept] == [claim.holds for claim in again]
    axes = np.linalg.svd(wide - wide.mean(axis=0), full_matrices=False)[2][:2].T
    noisy = fitted.decoder_ + 1e-3 * rng.standard_normal(fitted.decoder_.shape)
    for decoder in (fitted.decoder_, noisy):
        certificate = judged(decoder.T, decoder, wide)
        for name, distance in (
            ("subspace", subspace_distance(decoder, axes)),
            ("alignment", axis_alignment_distance(decoder, axes)),
        ):
            claim = certificate[name]
            assert abs(claim.value - distance) <= claim.error + 1e-9
    swapped = fitted.components_[[1, 0]]
    assert failing(judged(swapped, swapped.T, wide, method="rag")) >= {"order"}
    other = np.eye(2, 1100)
    assert "subspace" in failing(judged(other[:, ::-1], other.T[::-1], wide))
    assert "subspace" in failing(certify(fitted, wide[:, ::-1]))


def test_a_stream_of_many_features_is_undecided_without_data():
    rows = np.random.default_rng(0).standard_normal((50, 300))
    stream = LinearAutoencoder(2, solver="stochastic", random_state=0).partial_fit(rows)
    assert stream.certificate_["optimum"].undecided
    assert stream.certificate_.holds is None
    assert "certify(estimator, X)" in stream.certificate_["optimum"].advice


# The claim that an error fails, and no other.


def test_turned_weights_span_the_subspace_but_do_not_align():
    turn = orthogonal(np.random.default_rng(1), K)
    certificate = judged(turn @ AXES, AXES.T @ turn.T, method="rag")
    assert all(certificate[name].holds for name in ("subspace", "gap", "balance"))
    assert {"alignment", "stationarity"} <= failing(certificate)
    plain = judged(turn @ AXES, AXES.T @ turn.T, method="plain")
    assert plain.holds
    assert plain["alignment"].holds is None


def test_untied_rag_at_rest_is_told_by_alignment_and_balance():
    turn, root = orthogonal(np.random.default_rng(1), K), np.sqrt(VALUES[:K])
    encoder, decoder = turn @ (AXES / root[:, None]), (AXES.T * root) @ turn.T
    certificate = judged(encoder, decoder, method="rag", tied=False)
    assert certificate["stationarity"].holds
    assert {"alignment", "balance"} <= failing(certificate)


def test_swapped_latents_fail_the_order_alone():
    swapped = AXES[[1, 0, 2]]
    certificate = judged(swapped, swapped.T, method="expected_nested_dropout")
    assert certificate["alignment"].holds
    assert "order" in failing(certificate)
    assert judged(swapped, swapped.T, method="plain")["order"].holds is None


def test_another_subspace_fails_subspace_and_gap():
    wrong = ALL_AXES[K:]
    certificate = judged(wrong, wrong.T, method="plain")
    assert failing(certificate) == {"subspace", "gap"}
    assert_allclose(certificate["subspace"].value, 1.0)


def test_unbalanced_weights_fail_balance_alone_where_it_is_asked():
    assert failing(judged(0.5 * AXES, 2 * AXES.T, method="rag", tied=False)) == {"balance"}
    assert judged(0.5 * AXES, 2 * AXES.T, method="plain").holds


def test_another_noise_variance_of_a_linear_vae_fails_the_gap():
    fitted = LinearAutoencoder(K, method="linear_vae").fit(X)
    noise = VALUES[K:].mean()
    pair = fitted.encoder_, fitted.decoder_
    assert judged(*pair, method="linear_vae", noise_variance=noise).holds
    claim = judged(*pair, method="linear_vae", noise_variance=1.5 * noise)["gap"]
    assert claim.holds is False
    assert claim.value > 0


def test_zero_latents_are_named_and_priced():
    l2 = [0.1, 2.6, 1.6]
    certificate = LinearAutoencoder(K, method="nonuniform_l2", l2=l2).fit(X).certificate_
    assert certificate["nonzero_latents"].holds is False
    assert certificate["nonzero_latents"].value == 1
    assert "latent 1 is zero at the optimum" in certificate["nonzero_latents"].advice
    assert "1/3 = 0.333" in certificate["nonzero_latents"].advice
    assert_allclose(certificate["subspace"].value, 1 / 3, atol=1e-9)
    assert "mean squared sine of 0.333" in certificate["subspace"].advice
    assert certificate["gap"].holds
    assert certificate["stationarity"].holds


def test_a_subspace_that_the_data_do_not_determine_is_no_failure_of_the_fit():
    few = np.random.default_rng(0).standard_normal((5, 20))
    certificate = LinearAutoencoder(8).fit(few).certificate_
    assert certificate["subspace"].holds is None
    assert certificate["eigengap"].holds is None
    assert "Components 4–7 are not determined" in certificate["eigengap"].advice
    assert certificate.holds


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_column_and_ties_are_no_failure_of_the_fit(method):
    """With as many components as features, and with equal eigenvalues."""
    for rows in (np.c_[X, np.ones(len(X))], centred_rows([4.0, 4.0, 1.0, 1.0, 0.1])):
        certificate = LinearAutoencoder(rows.shape[1], method=method).fit(rows).certificate_
        assert failing(certificate) <= {"nonzero_latents"}, certificate
        assert certificate["eigengap"].holds is None


def test_a_prior_that_never_cuts_somewhere_identifies_nothing_there():
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
def test_weights_of_the_wrong_shape_are_refused(encoder, decoder, message):
    with pytest.raises(ValueError, match=message):
        judged(encoder, decoder)


# Thresholds.

SIDES = pytest.mark.parametrize(("factor", "holds"), [(3.0, False), (1 / 3, True)])


@SIDES
def test_distance_of_the_subspace(factor, holds):
    """One of two axes leaves the subspace by an angle with sin² = 2d."""
    angle = math.asin(math.sqrt(2 * factor * 1e-3))
    rows = np.array([AXES[0], math.cos(angle) * AXES[1] + math.sin(angle) * ALL_AXES[4]])
    claim = judged(rows, rows.T, method="plain")["subspace"]
    assert_allclose(claim.value, factor * 1e-3)
    assert claim.holds is holds


@SIDES
def test_distance_of_the_axes(factor, holds):
    angle = math.asin(math.sqrt(factor * 1e-3))
    turn = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    rows = np.array(turn) @ AXES[:2]
    claim = judged(rows, rows.T, method="rag")["alignment"]
    assert_allclose(claim.value, factor * 1e-3)
    assert claim.holds is holds


@pytest.mark.parametrize("wrong", [True, False])
def test_one_wrong_latent_among_many_is_noticed(wrong):
    """600 latents have a threshold of half a latent: one wrong axis is 1/600 of the distance."""
    rows = np.random.default_rng(0).standard_normal((1300, 620)) * np.linspace(3, 1, 620)
    axes = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1].T[:600].copy()
    if wrong:
        axes[10] = axes[11]
    certificate = judged(axes, axes.T, rows, method="rag")
    assert certificate["alignment"].holds is not wrong
    assert certificate["subspace"].holds is not wrong


@SIDES
def test_gap(factor, holds):
    """Weights shortened by δ cost δ²(σ₁² + σ₂²)."""
    shrunk = 1 - math.sqrt(factor * 1e-6 * VALUES.sum() / VALUES[:2].sum())
    claim = judged(shrunk * AXES[:2], AXES[:2].T, method="plain")["gap"]
    assert_allclose(claim.value, factor * 1e-6, rtol=1e-6)
    assert claim.holds is holds


@SIDES
def test_balance(factor, holds):
    size = (1 + factor * 1e-3) ** 0.25
    claim = judged(size * AXES[:2], AXES[:2].T / size, method="rag", tied=False)["balance"]
    assert_allclose(claim.value, factor * 1e-3, rtol=1e-2)
    assert claim.holds is holds


@SIDES
def test_order(factor, holds):
    """Two latents in the wrong order, whose variances differ by 1e-6 of the largest."""
    rows = centred_rows([4.0, 1.0 + factor * 4e-6, 1.0, 0.1])
    axes = np.linalg.svd(rows)[2][[0, 2, 1]]
    claim = judged(axes, axes.T, rows, method="rag")["order"]
    assert_allclose(claim.value, factor * 1e-6, rtol=1e-3)
    assert claim.holds is holds


@SIDES
@pytest.mark.parametrize(("tol", "bound"), [(0.0, 1e-9), (1e-5, 1e-4), (10.0, 1e-3)])
def test_stationarity_follows_the_tolerance_within_limits(factor, holds, tol, bound):
    """Tied weights (1 − δ)U have the gradient 4δSU, where S has the k leading eigenvalues."""
    size = np.linalg.norm(VALUES[:2]) / VALUES[0] / math.sqrt(2)
    rows = (1 - factor * bound / size) * AXES[:2]
    claim = judged(rows, rows.T, method="rag", tol=tol)["stationarity"]
    assert_allclose(claim.value, factor * bound, rtol=1e-2)
    assert claim.holds is holds


@pytest.mark.parametrize(("length", "present"), [(1e-291, False), (1e-289, True), (1e-6, True)])
def test_only_a_column_of_zeros_is_missing(length, present):
    rows = AXES[:2] * [[1.0], [length]]
    certificate = judged(rows, rows.T, method="plain")
    assert_allclose(certificate["subspace"].value, 0.0 if present else 0.5, atol=1e-9)
    assert_allclose(certificate["alignment"].value, 0.0 if present else 0.5, atol=1e-9)


@pytest.mark.parametrize(
    ("angle", "verdict"), [(1e-10, True), (1e-14, None), (1e-16, False), (0.0, False)]
)
def test_columns_that_are_almost_parallel_span_what_float64_tells_apart(angle, verdict):
    rows = np.array([AXES[0], AXES[0] + angle * AXES[1]])
    assert judged(rows, rows.T, method="plain")["subspace"].holds is verdict


# Sampling: what another sample of as many rows would show again.


def spiked(n, m, deviations, seed=0):
    """Return white noise with given additional standard deviations along the first features."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, m))
    extra = rng.standard_normal((n, len(deviations))) * deviations
    rows[:, : len(deviations)] += extra
    return rows


def test_pure_noise_is_optimal_but_does_not_stand_out_of_sampling_noise():
    certificate = LinearAutoencoder(5).fit(spiked(200, 50, [])).certificate_
    assert certificate.holds, "the fit is optimal for these data"
    claim = certificate["sampling"]
    assert (claim.value, claim.verdict) == (0.0, "reported")
    assert (
        "0 of 5 components stand out of sampling noise. The others, components 0–4" in claim.advice
    )
    assert "independent rows" in claim.statement
    assert "identifiable" not in certificate.summary()
    assert "these data" in certificate["eigengap"].statement


def test_the_components_above_noise_are_counted_and_the_others_named():
    rows = spiked(300, 30, [9.0, 5.0, 3.0])
    claim = LinearAutoencoder(5).fit(rows).certificate_["sampling"]
    assert claim.value == 3.0
    assert "3 of 5 components stand out of sampling noise" in claim.advice
    assert "The others, components 3–4" in claim.advice
    both = LinearAutoencoder(2).fit(rows).certificate_["sampling"]
    assert both.advice.startswith("2 of 2 components")
    constant = LinearAutoencoder(3).fit(spiked(100, 4, [5.0, 3.0]) * [1, 1, 0, 0])
    assert constant.certificate_["sampling"].value <= 2.0, "a constant feature is no noise"


def test_equally_strong_factors_stand_out_and_belong_together():
    """Five equal spikes far above the noise: no reason to choose fewer components."""
    rows = centred_rows(np.r_[np.linspace(400.0, 399.0, 5), np.ones(35)], n=400)
    found = LinearAutoencoder(5).fit(rows).certificate_
    assert found["sampling"].value == 5.0
    assert "5 of 5 components stand out of sampling noise" in found["sampling"].advice
    assert "nearly equal variance to others: components 0–4" in found["sampling"].advice
    assert "fewer" not in found["sampling"].advice
    assert list(found.evidence["components_above_noise"]) == [0, 1, 2, 3, 4]
    assert list(found.evidence["components_of_similar_variance"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("rows", "method", "k", "reason"),
    [
        (np.eye(2, 5), "rag", 1, "three rows"),
        (np.ones((9, 3)), "rag", 1, "three rows, not all equal"),
        (spiked(130, 1100, [30.0]), "rag", 1, "more than 1024 features"),
    ],
)
def test_where_sampling_noise_is_not_known_the_reason_is_said(rows, method, k, reason):
    claim = LinearAutoencoder(k, method=method).fit(rows).certificate_["sampling"]
    assert claim.verdict == "does not apply"
    assert reason in claim.advice


# Influence of single rows.


@pytest.mark.parametrize(
    ("load", "scaled"), [(load, scaled) for load in TABLES for scaled in (False, True)]
)
def test_no_row_of_ordinary_tables_is_named(load, scaled):
    rows = scale(load().data) if scaled else load().data
    for k in (1, 3, 5):
        claim = LinearAutoencoder(min(k, rows.shape[1])).fit(rows).certificate_["leverage"]
        assert (claim.verdict, claim.advice) == ("reported", ""), claim


@pytest.mark.parametrize("kind", ["small", "weighted", "large", "sparse", "batches", "blocks"])
def test_one_row_times_500_is_named(kind):
    n, m = (400, 40) if kind in ("small", "weighted") else (3000, 60)
    rows = np.random.default_rng(0).standard_normal((n, m)) * np.linspace(3, 1, m)
    rows[137] *= 500
    model = LinearAutoencoder(3)
    if kind == "batches":
        for batch in np.array_split(rows, 7):
            model.partial_fit(batch)
    elif kind == "blocks":
        model.fit(part for part in np.array_split(rows, 3))
    else:
        weights = np.ones(n) if kind == "weighted" else None
        given = scipy.sparse.csr_array(rows) if kind == "sparse" else rows
        model.fit(given, sample_weight=weights)
    certificate = model.certificate_
    claim = certificate["leverage"]
    assert claim.holds is None
    assert claim.value > 0.9
    assert "row 137 has" in claim.advice
    assert certificate.evidence["leverage_rows"][0] == 137
    assert certificate.evidence["leverage_shares"][0] == claim.value
    assert certificate.holds, "the claim informs only"


# Advice.


def test_advice_on_training_is_for_fits_alone():
    turned = orthogonal(np.random.default_rng(1), 6)[:K]
    for method in METHODS:
        settings = {"noise_variance": 0.1} if method == "linear_vae" else {}
        certificate = judged(turned, turned.T, method=method, **settings)
        assert certificate.holds is False
        assert "Train longer" not in certificate.summary()
        assert "rows, method and penalties are those of their training" in certificate.summary()
    fitted = LinearAutoencoder(K, solver="gradient", max_iter=3, random_state=0)
    with pytest.warns(UserWarning, match="limit of 3 iterations"):
        assert "Train longer" in fitted.fit(X).certificate_.summary()


def test_the_advice_after_convergence_is_not_to_train_longer():
    """Steps that stop at `tol`, which the largest eigenvalue dominates, need a smaller one."""
    rows = load_wine().data
    settings = {"method": "gha", "solver": "gradient", "random_state": 0}
    with pytest.warns(ConvergenceWarning, match=r"Converged after .* have not converged"):
        raw = LinearAutoencoder(3, **settings).fit(rows)
    assert raw.status_ == "converged"
    claim = raw.certificate_["subspace"]
    assert claim.holds is False
    assert claim.advice.startswith("The stopping rule is met (tol=1e-06)")
    assert "standardise the columns of X, lower tol" in claim.advice
    assert LinearAutoencoder(3, **settings).fit(scale(rows)).certificate_.holds
    with pytest.warns(ConvergenceWarning, match="Stopped at the limit"):
        short = LinearAutoencoder(3, max_iter=20, **settings).fit(rows)
    assert short.certificate_["subspace"].advice.startswith("Train longer (increase max_iter)")


@pytest.mark.parametrize(
    ("learning_rate", "spread"), [(1e-300, 1.0), ("auto", np.logspace(-60, 60, 6))]
)
def test_absurd_numbers_of_epochs_are_not_reported(learning_rate, spread):
    fitted = LinearAutoencoder(2, learning_rate=learning_rate).fit(centred_rows(VALUES) * spread)
    assert fitted.certificate_["epochs"].value is None
    assert "more than 1e15 epochs" in fitted.certificate_["epochs"].advice


# Large numbers.


def test_the_certificate_of_few_rows_with_many_features_takes_little_memory():
    rows = np.random.default_rng(0).standard_normal((4, 20_000))
    fitted = LinearAutoencoder(1).fit(rows)
    tracemalloc.start()
    assert fitted.certificate_["sampling"].value is not None
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(300, 8), (40, 1100), (1200, 1100)])
@pytest.mark.parametrize(("mean", "spread"), [(1e156, 1e147), (1e300, 1e286)])
def test_a_huge_mean_does_not_overflow(shape, mean, spread):
    deviations = np.random.default_rng(3).standard_normal(shape)
    rows = spread * deviations + mean
    if spread > 1e150:
        with pytest.raises(ValueError, match="overflow double precision"):
            LinearAutoencoder(2).fit(rows)
        return
    model = LinearAutoencoder(2).fit(rows)
    assert "raised" not in str(model.certificate_)
    expected = LinearAutoencoder(2).fit(deviations).components_
    assert_allclose(np.abs(np.sum(model.components_ * expected, axis=1)), 1.0, atol=1e-6)
    assert model.certificate_.holds is not False


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_of_rows_with_a_dominant_feature_is_certified(seed):
    """The rows resolve the third eigenvalue, but the documented rank, m ε λ₁, leaves it out."""
    X = np.random.default_rng(seed).standard_normal((40, 3)) * np.array([1e8, 1e3, 1.0])
    model = LinearAutoencoder().fit(X)
    assert model.n_components_ == 2
    assert model.certificate_.holds is True


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_a_wild_cell_outside_of_the_components_is_named(kind):
    rng = np.random.default_rng(0)
    factors = np.repeat(rng.standard_normal((1000, 2)), 4, axis=1)
    X = np.column_stack([factors + 0.5 * rng.standard_normal((1000, 8)), rng.standard_normal(1000)])
    X[7, 8] = 1e6
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    claim = LinearAutoencoder(2).fit(kind(X)).certificate_["leverage"]
    assert claim.value == pytest.approx((X[7] ** 2).sum() / (X**2).sum(), rel=1e-9)
    assert "row 7 has 11.2 % of the total variance" in claim.advice


def test_rows_to_which_nobody_may_refer_test_a_second_moment_of_any_size(monkeypatch):
    X = np.random.default_rng(0).standard_normal((2500, 1100)) * np.geomspace(10, 0.1, 1100)
    referred = LinearAutoencoder(100).fit(X).certificate_  # which forms the second moment
    monkeypatch.setattr("lucidae.rows.operator.REFERENCED_BYTES", 0)
    sketched = LinearAutoencoder(100).fit(X).certificate_
    assert referred.holds
    assert sketched.holds
    assert referred["moment"].holds
    assert sketched["moment"].holds
