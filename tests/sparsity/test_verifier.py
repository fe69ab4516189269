"""The verifier: independence of the solvers, thresholds from both sides, sufficient evidence.

Each threshold is approached by numbers whose figure lies a factor 3 below and above it, so that a
threshold ten times larger or smaller fails a test.
"""

import ast
import inspect
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import lucidae
from lucidae import SparseVAE, certify
from lucidae.certificates.bounds import Ball
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import theory, verify
from lucidae.sparsity.claims import certificate_of
from lucidae.sparsity.verify import EnergyKind, Sample
from sparsity.brute_force import centred, in_digits, parts, violation
from sparsity.test_groups import FULL, nearly_dependent

BELOW, ABOVE = 1 / 3, 3.0
SIDES = pytest.mark.parametrize("factor", [BELOW, ABOVE])
NOISE = 0.1


def claim(figures, name):
    return certificate_of(figures, "")[name]


def measure(sample, coef, w=None, noise=None, kind=None, **fitted):
    """Return the measured values of a fit of one problem."""
    fit = verify.Fit([coef], w, None if noise is None else [noise], **fitted)
    return verify.measure([sample], fit, kind or EnergyKind())


def one_column(w, target=1.0, shift=0.0, **options):
    """Measure one column φ = 1 with one response: z = 1/(w + γ), Q = x²/(w + γ)²."""
    Phi, X = np.ones((1, 1)), np.full((1, 1), target)
    mean = w * target / (w + NOISE) + shift
    kind = EnergyKind(**options)
    return measure(Sample(Phi, X), np.full((1, 1), mean), np.array([w]), NOISE, kind)


def at_violation(distance):
    """Return w with w(z − Q) = distance: s = w + γ solves (s − γ)(s − 1) = distance · s²."""
    roots = np.roots([1 - distance, -(1 + NOISE), NOISE])
    return float(roots.max()) - NOISE


@SIDES
@pytest.mark.parametrize(
    ("tol", "threshold"), [(0.0, 1e-6), (1e-9, 1e-6), (1e-4, 1e-4), (10, 1e-2)]
)
def test_stationarity_follows_tol_between_its_bounds(tol, threshold, factor):
    found = one_column(at_violation(factor * threshold), tolerance=tol)
    assert found.distances["stationarity"].ball.value == pytest.approx(factor * threshold, rel=1e-4)
    assert claim(found, "stationarity").holds is (factor < 1)


@SIDES
def test_the_posterior_mean_is_met_to_a_millionth_of_the_prior(factor):
    w = 0.9
    found = one_column(w, shift=factor * 1e-6 * np.sqrt(w))
    assert found.distances["posterior_mean"].ball.value == pytest.approx(factor * 1e-6, rel=1e-3)
    assert claim(found, "posterior_mean").holds is (factor < 1)


@SIDES
def test_relevances_in_single_precision_are_allowed_their_rounding(factor):
    threshold = 8 * 2.0**-23 * 2
    w = at_violation(factor * threshold)
    Phi = X = np.ones((1, 1))
    mean = np.full((1, 1), w / (w + NOISE))
    found = measure(Sample(Phi, X), mean, np.array([w]), NOISE, rounding=2.0**-23)
    assert found.distances["stationarity"].limit == pytest.approx(threshold)
    assert found.distances["posterior_mean"].limit == pytest.approx(threshold)
    assert claim(found, "stationarity").holds is (factor < 1)


@SIDES
def test_a_latent_is_active_above_a_millionth_of_its_prior_variance(factor):
    share = factor * 1e-6  # w z = w/(w + γ)
    found = one_column(share * NOISE / (1 - share), target=0.1)
    assert found.n_active == (factor > 1)


@SIDES
def test_rows_count_as_used_above_a_millionth_of_the_largest(factor):
    U = np.diag([1.0, factor * 1e-6, 0.0])
    found = measure(Sample(np.eye(3), U), U)
    assert found.evidence["used"].size == 1 + (factor > 1)


@SIDES
def test_the_rank_of_responses_ignores_a_millionth(factor):
    X = np.diag([1.0, 1.0, 0.0])
    X[1, 1] = factor * 1e-6
    U = X.copy()
    U[1, 0] = 1.0  # both columns are used, whatever the rank
    found = theory.uniqueness_of(np.eye(3), U, np.arange(2), 0.0)
    assert found.rank == 1 + (factor > 1)


@SIDES
def test_a_fit_is_exact_below_a_hundred_millionth(factor):
    X = np.array([[1.0], [factor * 1e-8], [0.0]])
    found = measure(Sample(np.eye(3), X), np.array([[1.0], [0.0], [0.0]]))
    unique = theory.uniqueness_of(np.eye(3), X, np.array([0]), found.evidence["relative_error"])
    assert unique.exact_error == pytest.approx(factor * 1e-8)
    for name in ("unique_in_general_position", "unique_by_coherence"):
        assert claim(found, name).holds is (True if factor < 1 else None)


@SIDES
def test_a_column_is_in_the_span_of_others_below_ten_times_exact(factor):
    sine = factor * 3 * 10 * 1e-8
    Phi = np.array([[1.0, np.cos(sine), 0.3], [0.0, np.sin(sine), 0.1], [0.0, 0.0, 1.0]])
    Phi = np.hstack([Phi, [[0.5], [1.0], [0.2]]])
    U = np.array([[1.0], [0.0], [0.0], [0.0]])
    assert certify(U.T, Phi, Phi @ U)["unique_in_general_position"].holds is (
        True if factor > 1 else None
    )


@SIDES
def test_a_collapsed_latent_is_unjustified_above_a_thousandth(factor):
    X = np.array([[1.0], [np.sqrt(NOISE * (1 + factor * 1e-3))]])  # Q/z = x²/γ at w = 0
    w = np.array([1.0 - NOISE, 0.0])
    found = measure(Sample(np.eye(2), X), np.array([[1.0 - NOISE], [0.0]]), w, NOISE)
    assert found.distances["posterior_collapse"].ball == Ball(float(factor > 1), 0.0)
    assert claim(found, "posterior_collapse").holds is (factor < 1)


@SIDES
def test_the_bar_of_collapse_follows_stationarity(factor):
    X = np.array([[1.0], [np.sqrt(NOISE * (1 + factor * 1e-1))]])
    coef, w = np.array([[1.0 - NOISE], [0.0]]), np.array([1.0 - NOISE, 0.0])
    found = measure(Sample(np.eye(2), X), coef, w, NOISE, EnergyKind(tolerance=1.0))
    assert found.distances["posterior_collapse"].ball.value == (factor > 1)


@SIDES
def test_a_given_noise_variance_is_met_to_a_billionth(factor):
    one = Sample(np.ones((1, 1)), np.ones((1, 1)))
    found = measure(
        one, np.full((1, 1), 0.9), np.array([0.9]), NOISE,
        rule="given", given_noise=[NOISE / (1 + factor * 1e-9)],
    )  # fmt: skip
    assert found.distances["noise_variance"].ball.value == pytest.approx(factor * 1e-9, rel=1e-3)
    assert claim(found, "noise_variance").holds is (factor < 1)


@SIDES
def test_the_reported_energy_is_met_to_a_hundred_millionth(factor):
    true = 1.0 / (0.9 + NOISE) + np.log(0.9 + NOISE)
    one = Sample(np.ones((1, 1)), np.ones((1, 1)))
    reported = true + factor * 1e-8
    found = measure(one, np.full((1, 1), 0.9), np.array([0.9]), NOISE, energy=reported)
    assert found.distances["energy"].ball.value == pytest.approx(factor * 1e-8, rel=1e-3)
    assert claim(found, "energy").holds is (factor < 1)


@SIDES
def test_the_learned_noise_follows_the_tolerance(factor):
    one = Sample(np.ones((1, 1)), np.ones((1, 1)))
    noise = 0.1 + factor * 1e-5  # γ tr M ≈ 0.1 (γ − 0.1)
    found = measure(one, np.full((1, 1), 0.9 / (0.9 + noise)), np.array([0.9]), noise, rule="learn")
    assert found.distances["noise_variance"].ball.value == pytest.approx(factor * 1e-6, rel=1e-2)
    assert claim(found, "noise_variance").holds is (factor < 1)


@SIDES
def test_the_floor_of_the_noise_variance(factor):
    # γ is raised to 1e-14 of the mean square: a smaller one that was asked for is not a mismatch
    level = factor * 1e-14
    model = SparseVAE(noise_variance=level, fit_intercept=False).fit(np.ones((2, 1)), [1.0, 1.0])
    assert model.noise_variance_ == pytest.approx(max(level, 1e-14))
    assert model.certificate_["noise_variance"].holds


@SIDES
def test_learning_that_stopped_at_its_floor(factor):
    level = factor * 1e-10 if factor > 1 else 1e-10
    Phi, X = np.ones((2, 1)), np.ones((2, 1))
    fit = (np.full((1, 1), 1.0), np.array([1.0]), level)
    found = measure(Sample(Phi, X), *fit, rule="learn")
    assert found.noise_rule == ("learn" if factor > 1 else "floor")
    # the residual asks for a larger γ
    high = measure(Sample(Phi, X + np.array([[0.1], [-0.1]])), *fit, rule="learn")
    assert claim(high, "noise_variance").holds is False


def test_a_single_row_takes_a_tenth_of_the_mean_square_for_noise():
    model = SparseVAE(fit_intercept=False).fit(np.ones((1, 2)), [[2.0, 4.0]])
    assert model.noise_variance_ == pytest.approx(1.0)
    assert model.certificate_["noise_variance"].holds
    model.noise_variance_ = 1.0 + 1e-6
    certificate = certify(model, np.ones((1, 2)), [[2.0, 4.0]])
    assert certificate["noise_variance"].holds is False


def test_the_reach_of_solvers_is_pinned():
    found = one_column(1.0)
    condition = (1.0 + NOISE) / NOISE
    fit = 1.0 / (1.0 + NOISE)
    stationarity = found.distances["stationarity"]
    assert stationarity.reach == pytest.approx(
        32 * 2.0**-52 * condition * np.sqrt(1 + fit), rel=1e-9, abs=0
    )
    for reach, holds in ((0.9999e-3, None), (0.9e-3, False)):
        far = stationarity._replace(ball=Ball(1e-3), reach=reach)
        judged = claim(replace(found, distances={"stationarity": far}), "stationarity")
        assert judged.holds is holds
        assert judged.undecided is (holds is None)
    one = Sample(np.ones((1, 1)), np.ones((1, 1)))
    tiny = measure(one, np.ones((1, 1)), np.ones(1), 1e-20)
    assert tiny.distances["stationarity"].reach == 1e-2


@SIDES
def test_constant_columns_vary_by_eight_units_of_rounding(factor):
    step = factor * 8 * 2.0**-52 * 1.6
    column = np.array([1.0 - step, 1.0 + step, 1.0])[:, None]
    rows = verify.prepared(Sample(column, np.ones((3, 1)), None, True))
    assert rows.dictionary.any() == (factor > 1)


@pytest.mark.parametrize(("kappa", "words"), [(50, "All sets of 3 columns"), (51, "not checked")])
def test_twenty_thousand_subsets_are_checked(kappa, words):
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((8, kappa))
    U = np.zeros((kappa, 1))
    U[:3, 0] = 1.0, 2.0, 3.0
    found = certify(U.T, Phi, Phi @ U)["unique_in_general_position"]
    assert words in found.advice
    assert found.holds is (None if kappa > 50 else True)


@SIDES
@pytest.mark.parametrize("size", [1, 2, 3])
def test_other_columns_are_dependent_below_ten_times_exact(size, factor):
    # other columns of unit norm whose sum is that of the active ones, except for a small angle
    rng = np.random.default_rng(size)
    unit = np.linalg.qr(rng.standard_normal((9, 9)))[0]
    active = unit[:, :size]
    responses = active.sum(axis=1, keepdims=True)
    sine = factor * 10 * 1e-8 * (3.0 if size == 1 else 1.3)  # 1.3: rounding of Gram matrices
    others = unit[:, size : 2 * size] - unit[:, size : 2 * size].mean(axis=1, keepdims=True)
    others = others + responses / size + sine * unit[:, [8]]
    Phi = np.hstack([active, others, unit[:, 2 * size : 8], rng.standard_normal((9, 3))])
    found = theory.position_of(Phi, np.arange(size), responses, 1, 1.0)
    assert found.unique is (factor > 1)


def test_pairs_are_compared_up_to_a_limit(monkeypatch):
    Phi = np.random.default_rng(0).standard_normal((4, 6))
    U = np.zeros((6, 1))
    U[0] = 1.0
    used = np.array([0])
    found = theory.uniqueness_of(Phi, Phi @ U, used, 0.0)
    assert found.coherence == theory.coherence(Phi)
    assert theory.PAIR_WORK == 2e9
    monkeypatch.setattr(theory, "PAIR_WORK", 1.0)
    assert theory.uniqueness_of(Phi, Phi @ U, used, 0.0).coherence is None
    assert "not computed" in certify(U.T, Phi, Phi @ U)["unique_by_coherence"].advice


def test_the_coherence_bound_has_a_margin_for_rounding():
    assert theory.spark_bound(0.5, 100) < theory.spark_bound(0.5)
    margin = 2 * 102 * 2.0**-52
    assert theory.spark_bound(0.5, 100) == pytest.approx(1 + 1 / (0.5 + margin), rel=1e-15, abs=0)
    assert theory.spark_bound(0.0, 10) < np.inf
    assert theory.spark_bound(1.0, 10) < 2.0  # equal columns give no bound at all


def test_the_verifier_shares_no_code_with_the_solvers():
    for node in ast.walk(ast.parse(inspect.getsource(verify))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            name = getattr(node, "module", None) or node.names[0].name
            known = ("__future__", "collections", "dataclasses", "typing", "numpy", "scipy")
            assert name.partition(".")[0] in known or name == "lucidae.certificates.bounds"


@pytest.mark.parametrize("intercept", [False, True])
def test_the_evidence_is_enough_to_check_the_claims_with_numpy(intercept):
    p = make_sparse_regression(15, 24, 4, 5, 3, snr_db=15, random_state=0)
    model = SparseVAE(noise_variance=p.noise_variance, fit_intercept=intercept)
    proof = model.fit(p.dictionary, p.responses).certificate_.to_dict()["evidence"]
    X, y = centred(p.dictionary, p.responses, None, intercept)
    active = np.array(proof["active"])
    w, noise = np.array(proof["relevance"]), proof["noise_variance"]
    sigma = X[:, active] * w @ X[:, active].T + noise * np.eye(15)
    loading = X.T @ np.linalg.solve(sigma, y)
    Q = (loading**2).sum(axis=1) / 5
    z = (X * np.linalg.solve(sigma, X)).sum(axis=0)
    assert_allclose(z[active], proof["curvature"], rtol=1e-5)
    assert_allclose(Q[active], proof["alignment"], rtol=1e-5)
    others = np.setdiff1d(np.arange(24), active)
    assert others[np.argmax((Q / z)[others])] == proof["worst_inactive"]
    assert_allclose((Q / z)[others].max(), proof["largest_ratio_outside"], rtol=1e-5)
    values = np.linalg.slogdet(sigma)[1] - intercept * np.log(noise)
    fit = (y * np.linalg.solve(sigma, y)).sum()
    assert_allclose(proof["energy"], fit + 5 * values, rtol=1e-6)
    assert_allclose(proof["data_term"], fit / 5, rtol=1e-6)
    residual = y - X @ model.coef_.T
    assert_allclose(proof["residual"], (residual**2).sum() / 5, rtol=1e-6)
    assert_allclose(proof["relative_error"], np.linalg.norm(residual) / np.linalg.norm(y))


def test_coefficients_that_were_multiplied_in_place_fail():
    p = make_sparse_regression(12, 20, 3, 4, snr_db=20, random_state=0)
    model = SparseVAE(noise_variance=p.noise_variance).fit(p.dictionary, p.responses)
    assert certify(model, p.dictionary, p.responses).holds
    model.coef_ *= 5
    assert certify(model, p.dictionary, p.responses)["posterior_mean"].holds is False
    assert certify(model, p.dictionary, p.responses).holds is False


def test_figures_with_evidence_are_saved_and_loaded(tmp_path):
    p = make_sparse_regression(12, 20, 3, 4, random_state=0)
    model = SparseVAE(noise_variance=1e-8).fit(p.dictionary, p.responses)
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert again.certificate_.to_dict() == model.certificate_.to_dict()
    assert certify(again, p.dictionary, p.responses).to_dict() == model.certificate_.to_dict()


def test_diverged_numbers_fail_and_do_not_raise():
    X, y = np.eye(3), np.ones((3, 1))
    zero = np.zeros((3, 1))
    for w in ([np.inf, 0, 0], [np.nan, 0, 0], [-1.0, 0, 0], [1e300, 1e300, 0]):
        found = measure(Sample(X, y), zero, np.array(w), 0.1, energy=0.0)
        assert claim(found, "stationarity").holds is False
    for noise in (0.0, -1.0, np.nan, np.inf):
        found = measure(Sample(X, y), zero, np.zeros(3), noise)
        assert claim(found, "stationarity").holds is False


@pytest.mark.parametrize(("rule", "threshold"), [("given", 1e-9), ("learn", 1e-8)])
def test_the_thresholds_of_the_covariance_of_the_responses(rule, threshold):
    X, y = np.random.default_rng(0).standard_normal((2, 8, 5))
    kind = np.eye(5) if rule == "given" else "learn"
    model = SparseVAE(noise_variance=0.5, response_covariance=kind).fit(X, y)
    assert model.certificate_["response_covariance"].threshold == threshold


def test_the_threshold_of_the_covariances_of_groups():
    X, y = nearly_dependent(1e-5, seed=3)
    model = SparseVAE(**FULL, fit_intercept=False).fit(X, y)
    assert model.certificate_["group_covariances"].threshold == 1e-6
    for factor, holds in ((0.9, True), (1.1, False)):
        model.relevance_ = model._state.results["relevance_"] * (1.0 + factor * 1e-6)
        assert certify(model, X, y)["group_covariances"].holds is holds


@pytest.mark.parametrize(("overlap", "warns"), [(0.49, True), (0.51, False)])
def test_the_threshold_of_the_warning_of_an_unstable_path(overlap, warns):
    path = {
        "column": 0, "strongest": np.zeros(2, int), "changed": np.zeros(2, bool),
        "noise": np.ones(2), "overlap": overlap,
    }  # fmt: skip
    figures = one_column(0.9)
    figures = replace(figures, noise_rule="cv", fit=figures.fit._replace(path=path))
    assert claim(figures, "path_stability").advice.startswith("Warning") is warns
    path |= {"overlap": 1.0, "strongest": np.array([0, 1])}
    for real in (True, False):  # columns of nearly equal strength may change places
        changed = path | {"changed": np.array([False, real])}
        other = replace(figures, fit=figures.fit._replace(path=changed))
        advice = claim(other, "path_stability").advice
        assert ("the strongest column changes" in advice) is real


@pytest.mark.parametrize(("cosine", "holds"), [(0.91, True), (0.89, False)])
@pytest.mark.parametrize("noise", [NOISE, 5 * NOISE, 11 * NOISE])
def test_another_strongest_column_at_a_neighbouring_noise_variance_fails(cosine, holds, noise):
    Phi = np.array([[1.0, cosine], [0.0, np.sqrt(1 - cosine**2)]])
    path = {
        "column": 0, "strongest": np.array([0, 1]), "changed": np.array([False, True]),
        "noise": np.array([NOISE, noise]), "overlap": 0.5,
    }  # fmt: skip
    found = measure(
        Sample(Phi, Phi[:, :1]), np.array([[0.9], [0.0]]), np.array([0.9, 0.0]), NOISE,
        rule="cv", given_noise=[NOISE], path=path,
    )  # fmt: skip
    far = noise > 10 * NOISE  # no neighbour
    assert claim(found, "strongest_column").holds is (far or holds)


def test_saddles_and_other_minima():
    # two equal columns: all of the relevance on one, or shared, is stationary alike
    x = np.array([[1.0], [0.0]])
    Phi = np.array([[1.0, 1.0], [0.0, 0.0]])
    for share in (0.0, 0.3, 0.5, 1.0):
        w = np.array([share, 1 - share]) * 0.9  # w₁ + w₂ + γ = ‖x‖²
        mean = parts(Phi, x, w, 0.1)[2]
        figures = measure(Sample(Phi, x), mean, w, 0.1)
        assert figures.distances["stationarity"].ball.value == pytest.approx(
            violation(Phi, x, w, 0.1), abs=1e-12
        )
        assert figures.distances["stationarity"].ball.value < 1e-12
        assert figures.distances["posterior_mean"].ball.value < 1e-12
    # w = 0 is stationary along every update, and is not a minimum
    nothing = measure(Sample(Phi, x), np.zeros((2, 1)), np.zeros(2), 0.1)
    assert nothing.distances["stationarity"].ball.value == pytest.approx(9.0)
    assert nothing.distances["posterior_collapse"].ball == Ball(2.0, 0.0)


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-7, 1e-5, 1e-3, 1.0])
def test_what_is_left_without_a_column_is_that_of_another_fit(size):
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((12, 5))
    Phi[:, 2] = Phi[:, :2].sum(axis=1) + size * Phi[:, 2]  # nearly in the span of the others
    X = Phi[:, :4] @ rng.standard_normal((4, 3))
    expected = []
    for column in range(5):
        rest = np.linalg.qr(np.delete(Phi, column, axis=1))[0]
        left = X - rest @ (rest.T @ X)
        expected.append(np.linalg.norm(left - rest @ (rest.T @ left)) / np.linalg.norm(X))
    found = theory.refit(Phi, X)
    assert found.error < 1e-14
    if size:
        assert_allclose(found.needed, expected, rtol=1e-5, atol=1e-14)
    else:
        assert not found.needed.any()


@pytest.mark.covering
@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5, 1e-8, 1e-11, 1e-14])
@pytest.mark.parametrize("shape", [(8, 14, 3), (14, 5, 3), (6, 6, 12)])
def test_figures_are_as_accurate_as_their_error_says(shape, noise):
    d, kappa, n = shape
    for seed in range(1):
        rng = np.random.default_rng(seed)
        Phi, w = rng.standard_normal((d, kappa)), rng.gamma(1.0, 1.0, kappa)
        w[rng.random(kappa) < 0.5] = 0.0
        X = Phi @ (np.sqrt(w)[:, None] * rng.standard_normal((kappa, n)))
        X += np.sqrt(noise) * rng.standard_normal((d, n))
        with in_digits(50):
            exact, mean = violation(Phi, X, w, noise), parts(Phi, X, w, noise)[2]
        figures = measure(Sample(Phi, X), mean, w, noise)
        difference = abs(figures.distances["stationarity"].ball.value - exact)
        assert difference <= figures.distances["stationarity"].ball.error
        assert (
            figures.distances["posterior_mean"].ball.value
            <= figures.distances["posterior_mean"].ball.error + 1e-15
        )
        assert figures.distances["stationarity"].ball.error < 1e-11 / np.sqrt(noise)


@pytest.mark.covering
@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-5])
@pytest.mark.parametrize("factor", [0.99, 2.0])
def test_wrong_covariances_of_nearly_dependent_columns_are_refused(noise, factor):
    X, y = nearly_dependent(noise, seed=3)
    model = SparseVAE(**FULL, fit_intercept=False).fit(X, y)
    assert certify(model, X, y).holds is (None if noise == 1e-9 else True)  # γ hides what Γ says
    # The roots that the verifier reads agree with the wrong covariances.
    posterior = replace(model._state.posterior, roots=model._state.posterior.roots * factor**0.5)
    model._state = replace(model._state, posterior=posterior)
    model.group_covariances_ = model.group_covariances_ * factor
    model.relevance_ = model.relevance_ * factor
    assert certify(model, X, y)["stationarity"].holds is False
