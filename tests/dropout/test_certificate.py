"""Certificates: collinear rows, tied weights, saddles, thresholds, noise, evidence and advice."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from scipy.optimize import brentq, minimize

from dropout.problems import dropout_loss, numpy_optimum, regression_data, symmetric
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    SecondMoment,
    certify,
    equalize_pair,
)
from lucidae.dropout import (
    LinearProblem,
    Weights,
    certify_weights,
    equalized_critical_points,
    solve,
    solve_tied,
)


def mostly_slow(cases, every=10):
    """Return the cases of which only every tenth is tested in CI."""
    slow = pytest.mark.slow
    return [
        pytest.param(*case, marks=() if number % every == 0 else slow)
        for number, case in enumerate(cases)
    ]


def correlated(rng, n=30, features=4):
    return rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 1.0


def precise_minimum(X, Y, width, strength):
    """Return the minimum in 50 digits, from the rows."""
    import mpmath

    with mpmath.workdps(50):
        A, B = (mpmath.matrix(part.tolist()) for part in (X, Y))
        for matrix in (A, B):
            for j in range(matrix.cols):
                mean = mpmath.fsum(matrix[:, j]) / matrix.rows
                for i in range(matrix.rows):
                    matrix[i, j] -= mean
        Q, _ = mpmath.qr(A, mode="skinny")
        M = Q.T * B / mpmath.sqrt(len(X))
        energy = mpmath.fsum(b * b for b in B) / len(X)
        s = sorted(mpmath.svd_r(M, compute_uv=False), reverse=True)
        low, high, strength = mpmath.mpf(0), s[0], mpmath.mpf(strength)
        for _ in range(160):
            middle = (low + high) / 2
            pull = strength / width * mpmath.fsum(max(x - middle, 0) for x in s[:width])
            low, high = (middle, high) if pull > middle else (low, middle)
        minimum = energy - mpmath.fsum(m * m for m in M) + mpmath.fsum(x * x for x in s[width:])
        minimum += mpmath.fsum(min(x, low) ** 2 for x in s[:width]) + width * low**2 / strength
        return float(minimum), float(energy)


@pytest.mark.parametrize(
    ("spread", "weighted"),
    mostly_slow(itertools.product([1e-3, 1e-4, 1e-5, 1e-6, 3e-7, 1e-7, 3e-8], [False, True]), 5),
)
def test_collinear_rows_are_solved_as_well_as_their_digits_allow(spread, weighted):
    pytest.importorskip("mpmath")
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(50, 4))
    X = Z[:, :1] + spread * Z
    Y = X @ rng.normal(size=(4, 3)) + rng.normal(size=(50, 3))
    repeats = rng.integers(1, 3, 50) if weighted else np.ones(50, dtype=int)
    weights = repeats.astype(float) if weighted else None
    model = DropoutRegressor(3, dropout=0.2).fit(X, Y, sample_weight=weights)
    rows = (np.repeat(part, repeats, axis=0) for part in (X, Y))
    minimum, energy = precise_minimum(*rows, 3, 0.25)
    assert abs(model.objective_ - minimum) < 1e-15 / spread * energy + 1e-13 * energy
    assert model.certificate_["gap"].holds is True, model.certificate_.summary()
    assert certify(model, X, Y, sample_weight=weights).holds is True
    sparse = DropoutRegressor(3, dropout=0.2).fit(scipy.sparse.csr_array(X), Y, weights)
    assert sparse.objective_ == pytest.approx(minimum, rel=1e-8)
    stream = DropoutRegressor(3, dropout=0.2)
    for start in range(0, 50, 10):
        part = slice(start, start + 10)
        batch = None if weights is None else weights[part]
        stream.partial_fit(X[part], Y[part], batch)
    gap = (stream.objective_ - minimum) / energy
    verdict = stream.certificate_["gap"]
    assert verdict.holds is not False
    if abs(gap) > 1e-6:
        assert verdict.holds is None
        assert stream.certificate_.holds is None
        assert "condition number" in stream.certificate_["conditioning"].advice
        # On the rows the weights, or the objective that the moment gave them, are judged as wrong.
        assert certify(stream, X, Y, sample_weight=weights).holds is False


def test_a_stream_that_loses_directions_says_so_and_rows_decide():
    X, Y = regression_data()
    twice = np.column_stack([X, X[:, 0]])
    stream = DropoutRegressor(2, dropout=0.3).partial_fit(twice, Y)
    assert stream.certificate_.holds is None
    advice = stream.certificate_["conditioning"].advice
    assert "constant up to rounding errors: 1." in advice
    assert "all rows at once" in advice
    assert certify(stream, twice, Y).holds is True
    assert DropoutRegressor(2, dropout=0.3).fit(twice, Y).certificate_.holds is True
    # Without noise nothing can be gained from what was lost.
    clean = X @ np.ones((5, 2))
    assert DropoutRegressor(2, dropout=0.3).partial_fit(twice, clean).certificate_.holds is True
    assert DropoutAutoencoder(2, dropout=0.3).partial_fit(twice).certificate_.holds is True


@pytest.mark.parametrize("seed", mostly_slow(((seed,) for seed in range(8)), 8))
def test_tied_weights_with_correlated_inputs_are_not_judged_by_theorems_for_white_ones(seed):
    rng = np.random.default_rng(seed)
    X = correlated(rng, 40, 3)
    X = X - X.mean(0)
    C, strength, width = X.T @ X / 40, 0.5, 2

    def tied(flat):
        U = flat.reshape(3, width)
        CU, lengths = C @ U, (U * U).sum(0)
        spread = (U * CU).sum(0)
        value = np.trace(C) - 2 * (U * CU).sum() + (U.T @ U * (U.T @ CU)).sum()
        slope = -4 * CU + 2 * (U @ (U.T @ CU) + CU @ (U.T @ U))
        slope += 2 * strength * (U * spread + CU * lengths)
        return value + strength * lengths @ spread, slope.ravel()

    options = {"gtol": 1e-12, "ftol": 0.0, "maxiter": 5000}
    runs = [
        minimize(tied, rng.standard_normal(3 * width), jac=True, method="L-BFGS-B", options=options)
        for _ in range(6)
    ]
    best = min(runs, key=lambda run: run.fun)
    U = best.x.reshape(3, width)
    certificate = certify_weights(U, None, X, dropout=1 / 3, tied=True)
    assert certificate.holds is None, certificate.summary()
    assert certificate["stationarity"].holds
    assert certificate["curvature"].holds
    assert certificate["gap"].undecided
    # The distance to the minimum of separate layers bounds the gap.
    separate = solve(LinearProblem(C, C, np.trace(C)), strength, width).value
    assert certificate["gap"].value == pytest.approx((best.fun - separate) / np.trace(C), rel=1e-6)
    for name in ("equalized", "path_norm", "rank", "product"):
        assert certificate[name].verdict == "does not apply"
    assert "Theorems 3.3 and 3.4" in certificate["equalized"].advice
    # The advice of white inputs would be wrong here.
    left, _ = equalize_pair(U, U)
    assert tied(left.ravel())[0] >= best.fun - 1e-12
    assert certify_weights(1.1 * U, None, X, dropout=1 / 3, tied=True).holds is False


@pytest.mark.parametrize(
    ("features", "width", "scale"),
    [
        (6, 2, 1.0),
        (6, 8, 1e-80),
        (6, 8, 1e6),
    ],
)
def test_saddles_of_tied_weights_with_correlated_inputs_fail(features, width, scale):
    rng = np.random.default_rng(0)
    X = scale * rng.standard_normal((2 * features, features)) * np.linspace(5, 1, features)
    settings = {"family": "dropout", "dropout": 0.5, "tied": True}
    zero = np.zeros((features, width))
    certificate = certify((zero, None), X, **settings)
    assert certificate["stationarity"].holds
    assert certificate["curvature"].holds is False
    # One eigenvector alone, at the length for which the gradient vanishes: u = √(1/(1 + λ)) w.
    axes = np.linalg.eigh(np.cov(X.T, bias=True))[1]
    last = zero.copy()
    last[:, 0] = np.sqrt(0.5) * axes[:, 0]
    certificate = certify((last, None), X, **settings)
    assert certificate["stationarity"].value < 1e-6
    assert certificate["gap"].holds is None
    assert certificate.holds is False


def test_tied_weights_without_dropout_are_proved_optimal_by_the_bound_of_separate_layers():
    X = correlated(np.random.default_rng(0), 40, 5)
    axes = np.linalg.eigh(np.cov(X.T, bias=True))[1]
    settings = {"family": "dropout", "dropout": 0.0, "tied": True}
    best = certify((axes[:, -2:], None), X, **settings)
    assert best.holds is True, best.summary()
    assert certify((axes[:, 1:3], None), X, **settings)["curvature"].holds is False


@pytest.mark.parametrize(
    ("seed", "strength"), mostly_slow(itertools.product(range(4), [0.05, 0.5, 5.0]), 5)
)
def test_critical_points_of_tied_weights(seed, strength):
    M = symmetric(np.random.default_rng(seed), 4)
    best = solve_tied(M, strength, 3)
    for point in equalized_critical_points(M, strength, 3):
        certificate = certify_weights(
            point.factor, None, matrix=M, dropout=strength / (1 + strength)
        )
        assert certificate.holds is (point.index == 0), certificate.summary()
        gap = (point.value - best.value) / (M**2).sum()
        assert certificate["gap"].value == pytest.approx(gap, abs=1e-10)
        assert certificate["stationarity"].holds
        for name in ("gap", "curvature"):
            assert certificate[name].holds is (point.index == 0)
        if point.index:
            advice = certificate["curvature"].advice
            assert "strict saddle" in advice
            assert "classify" in advice
            assert certificate["gap"].advice == advice


@pytest.mark.parametrize(("tol", "gap"), [(1e-9, 1e-6), (7e-3, 7e-3), (0.06, 0.02), (10.0, 0.02)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sgd_is_allowed_a_gap_of_tol_within_bounds(tol, gap):
    X, Y = regression_data()
    settings = {"dropout": 0.3, "tol": tol, "max_iter": 200, "random_state": 0}
    model = DropoutRegressor(2, solver="sgd", **settings).fit(X, Y)
    claim = model.certificate_["gap"]
    assert claim.threshold == gap
    assert claim.holds is bool(claim.value < gap)
    assert certify(model, X, Y).holds is model.certificate_.holds
    assert certify_weights(model.left_, model.right_, X, Y, dropout=0.3)["gap"].holds is False
    assert DropoutRegressor(2, **settings).fit(X, Y).certificate_["gap"].threshold == 1e-6


@pytest.mark.parametrize("tolerance", [1e-18, 1e-16])
def test_a_tolerance_below_rounding_is_not_decidable(tolerance):
    X, Y = regression_data()
    best = DropoutRegressor(2, dropout=0.3).fit(X, Y)
    certificate = certify_weights(best.left_, best.right_, X, Y, dropout=0.3, tolerance=tolerance)
    assert certificate["gap"].holds is None
    assert "float64" in certificate["gap"].advice


def test_the_evidence_is_enough_to_check_the_claims():
    X, Y = regression_data()
    certificate = DropoutRegressor(3, dropout=0.4).fit(X, Y).certificate_
    found = certificate.to_dict()["evidence"]
    s, r, strength = np.array(found["singular_values"]), found["width"], found["strength"]
    alpha, rho = found["threshold"], found["rank"]
    assert_allclose(alpha, strength / r * np.clip(s[:r] - alpha, 0, None).sum(), rtol=1e-12)
    assert s[rho - 1] > alpha
    assert rho == r or s[rho] <= alpha
    bound = found["floor"] + (np.minimum(s[:r], alpha) ** 2).sum() + found["tail"]
    bound += r * alpha**2 / strength
    assert bound == pytest.approx(found["bound"], rel=1e-12)
    gap = (found["value"] - found["bound"]) / found["target_squared_norm"]
    assert gap == pytest.approx(certificate["gap"].value, abs=1e-14)
    scores, product = np.array(found["importance"]), np.array(found["product_singular_values"])
    assert scores.var() / scores.mean() ** 2 == pytest.approx(certificate["equalized"].value)
    excess = r * (scores**2).sum() / product.sum() ** 2 - 1
    assert excess == pytest.approx(certificate["path_norm"].value, abs=1e-14)
    assert found["target_squared_norm"] + found["floor"] == pytest.approx(found["energy"])
    assert_allclose(product[:rho], s[:rho] - alpha, rtol=1e-10)


@pytest.mark.parametrize("constant", [0.0, 1e3, 1e5, 1e9])
def test_a_saddle_is_not_hidden_by_outputs_that_no_weights_explain(constant):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 30))
    X -= X.mean(0)
    Y = 0.1 * X @ rng.standard_normal((30, 40)) + constant
    model = DropoutRegressor(6, dropout=0.5, fit_intercept=False).fit(X, Y)
    lower = np.linalg.cholesky(X.T @ X / len(X))
    P, s, Qt = np.linalg.svd(np.linalg.solve(lower, X.T @ Y / len(X)).T)
    # The optimal weights for the singular triples 7 to 12 alone, in place of the first six.
    matrix = (P[:, 6:12] * s[6:12]) @ Qt[6:12]
    U, V = solve(LinearProblem.from_matrix(matrix), 1.0, 6).weights
    settings = {"family": "dropout", "dropout": 0.5, "fit_intercept": False}
    saddle = certify((U, np.linalg.solve(lower.T, V)), X, Y, **settings)
    assert saddle["gap"].holds is False, saddle.summary()
    if constant == 1e9:  # the moment has few digits left for the explained part
        assert model.certificate_.holds is None
        assert "fit_intercept=True" in model.certificate_["conditioning"].advice
        return
    for name in ("gap", "product", "curvature"):
        assert saddle[name].holds is False, saddle.summary()
    assert model.certificate_.holds is True, model.certificate_.summary()
    assert certify((model.left_, model.right_), X, Y, **settings).holds is True


@pytest.mark.covering
@pytest.mark.parametrize("eigenvalues", [(-1.0, -2.0), (-1.0, 1e-20)])
@pytest.mark.parametrize("U", [np.eye(2), np.diag([1.0, 0.0]), np.ones((2, 2))], ids=str)
def test_weights_near_an_optimum_of_zero_are_compared_with_the_problem(eigenvalues, U):
    settings = {"family": "dropout", "dropout": 0.5, "tied": True}
    for size in (0.0, 1e-9, 1e-4, 1e-2, 0.1):
        certificate = certify((size * U, None), matrix=np.diag(eigenvalues), **settings)
        assert certificate.holds is bool(size < 1e-3), certificate.summary()
        assert certificate["gap"].holds is bool(size < 1e-3)
        saddle = certify((size * U, None), matrix=np.eye(2), **settings)  # the optimum is not 0
        assert saddle.holds is False


def test_autoencoder_and_factorization_are_certified_on_their_data_and_fail_on_others():
    X, _ = regression_data(n=100)
    coder = DropoutAutoencoder(3, dropout=0.2).fit(X)
    assert coder.certificate_.holds
    assert certify(coder, X).holds
    assert certify(coder, X[:, ::-1]).holds is False
    weighted = DropoutAutoencoder(3, dropout=0.2).fit(X, sample_weight=np.arange(100))
    assert certify(weighted, X, sample_weight=np.arange(100)).holds
    factors = DropoutFactorization(3, dropout=0.2).fit(X)
    assert factors.certificate_.holds
    assert certify(factors, X).holds
    assert certify(factors, X[::-1]).holds is False
    assert certify(factors, X, sample_weight=np.ones(100)).holds
    assert certify(factors, X, sample_weight=np.arange(100)).holds is False


def test_gap_is_the_true_distance_to_the_minimum():
    X, Y = regression_data()
    rng = np.random.default_rng(1)
    U, V = rng.standard_normal((3, 4)), rng.standard_normal((5, 4))
    certificate, best = certify_weights(U, V, X, Y, dropout=0.5), numpy_optimum(X, Y, 0.5, 4)
    gap = (dropout_loss(U, V, X, Y, 0.5) - best.objective) / best.explained
    assert certificate["gap"].value == pytest.approx(gap)
    assert certificate["gap"].holds is certificate["stationarity"].holds is False
    assert certificate["curvature"].holds is None


def test_the_right_function_in_unequal_units_is_recognised():
    X, Y = regression_data()
    best = DropoutRegressor(3, dropout=0.4).fit(X, Y)
    U, s, Vt = np.linalg.svd(best.coef_, full_matrices=False)
    certificate = certify_weights(U * s, Vt.T, X, Y, dropout=0.4)
    assert certificate["product"].holds
    assert certificate["equalized"].holds is False
    assert certificate["path_norm"].holds is False
    assert "equalize_pair" in certificate["equalized"].advice
    lower = np.linalg.cholesky(np.cov(X.T, bias=True))
    left, right = equalize_pair(U * s, lower.T @ Vt.T)
    repaired = certify_weights(left, np.linalg.solve(lower.T, right), X, Y, dropout=0.4)
    assert repaired.holds, repaired.summary()


def test_saddles_of_untied_weights_show_negative_curvature():
    M = np.diag([3.0, 2.0, 1.0])
    one = solve(LinearProblem.from_matrix(np.diag([0.0, 2.0, 0.0])), 0.5, 2).weights
    certificate = certify_weights(*one, matrix=M, dropout=1 / 3)
    assert certificate["stationarity"].holds
    assert certificate["gap"].holds is False
    assert certificate["curvature"].holds is False
    assert "saddle" in certificate["curvature"].advice


def test_tied_weights_on_white_data_meet_the_theory_and_others_only_measure():
    rng = np.random.default_rng(3)
    X = np.linalg.qr(rng.standard_normal((200, 4)))[0] * np.sqrt(200)
    M = symmetric(rng, 4, shift=2.0)
    U = solve_tied(M, 0.5, 3).weights.left
    settings = {"dropout": 1 / 3, "tied": True, "fit_intercept": False}
    white = certify_weights(U, U, X, X @ M.T, **settings)
    assert white.holds, white.summary()
    coloured = certify_weights(U, U, X * [1, 2, 3, 4], X @ M.T, **settings)
    assert coloured["gap"].holds is None
    assert "separate layers" in coloured["gap"].advice
    assert coloured["stationarity"].holds is False


def test_every_claim_is_described_on_the_page_of_certificates():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((20, 4)), rng.standard_normal((20, 3))
    fits = [
        DropoutRegressor(2, dropout=0.3).fit(X, Y).certificate_,
        DropoutRegressor(2, shrink=False, alpha=0.1).fit(X, Y).certificate_,
        certify_weights(np.eye(3), None, matrix=np.eye(3), dropout=0.3),
    ]
    page = Path(__file__).parents[2] / "docs" / "certificates" / "dropout.md"
    described = {line[3:] for line in page.read_text().splitlines() if line.startswith("## ")}
    assert {claim.name for certificate in fits for claim in certificate} <= described


M = np.diag([3.0, 2.0, 1.0])
BEST = solve(LinearProblem.from_matrix(M), 0.25, 2)


def stretched(amount):
    return Weights((1 + amount) * BEST.weights.left, BEST.weights.right)


def turned(angle):
    """Rotate both layers, which keeps the product and makes the units unequal."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return Weights(BEST.weights.left @ turn, BEST.weights.right @ turn)


def claim_at(family, name, target, **settings):
    """Return the claim at the member of a family of weights whose figure is `target`."""

    def judged(logarithm):
        weights = family(math.exp(logarithm))
        return certify_weights(*weights, matrix=M, dropout=0.2, **settings)[name]

    root = brentq(lambda x: math.log(judged(x).value / target), math.log(1e-7), math.log(0.5))
    found = judged(root)
    assert found.value == pytest.approx(target, rel=1e-3)
    return found


@pytest.mark.covering
@pytest.mark.parametrize("tolerance", [1e-6, 1e-4])
@pytest.mark.parametrize(
    ("family", "name", "power"),
    [
        (stretched, "gap", 1.0),
        (stretched, "product", 0.5),
        (stretched, "stationarity", 0.5),
        (turned, "equalized", 1.0),
        (turned, "path_norm", 1.0),
    ],
)
def test_figures_three_times_above_fail_and_below_hold(family, name, power, tolerance):
    level = claim_at(family, name, tolerance**power / 9, tolerance=tolerance).threshold
    assert tolerance**power <= level <= 10 * tolerance**power  # implied by the allowed gap
    assert claim_at(family, name, 3 * level, tolerance=tolerance).holds is False
    assert claim_at(family, name, level / 3, tolerance=tolerance).holds is True


@pytest.mark.parametrize(("depth", "holds"), [(3e-3, False), (3e-4, True)])
def test_curvature(depth, holds):
    # One unit at (s₁, 1) with r = 2 and λ = 0: the direction of s₂ has the curvature −2 s₂.
    second = depth / 2
    matrix = np.diag([1.0, second])
    unit = np.array([[1.0, 0.0], [0.0, 0.0]])
    claim = certify_weights(unit, unit, matrix=matrix, dropout=0.0)["curvature"]
    assert claim.value == pytest.approx(-depth, rel=1e-3)
    assert claim.holds is holds


@pytest.mark.parametrize(("second", "holds"), [(4e-3, False), (2e-3, None), (2.5e-4, True)])
def test_rank(second, holds):
    unit = np.array([[1.0, 0.0], [0.0, 0.0]])
    claim = certify_weights(unit, unit, matrix=np.diag([1.0, second]), dropout=0.0)["rank"]
    assert claim.holds is holds


def noise(rng, n, features, targets, scales=1.0):
    X = rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 3.0
    return X, rng.standard_normal((n, targets)) * scales


@pytest.mark.covering
@pytest.mark.parametrize(
    ("n", "features", "targets", "scales"),
    [
        (200, 20, 10, 1.0),
        (60, 50, 3, 1.0),
        (40, 5, 1, 1.0),
        (12, 8, 2, 1.0),
        (100, 10, 30, 1.0),
        (200, 20, 4, np.array([1e6, 1.0, 1e-3, 1.0])),
    ],
)
@pytest.mark.parametrize("samples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_targets_of_pure_noise_have_no_component(n, features, targets, scales, samples):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(samples):
        X, Y = noise(rng, n, features, targets, scales)
        claim = DropoutRegressor(dropout=0.2).fit(X, Y).certificate_["sampling"]
        assert claim.verdict == "reported"
        found.append(claim.value)
    assert sum(value > 0 for value in found) <= 1


@pytest.mark.parametrize("samples", [10, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("n", "features"), [(200, 50), (60, 40), (50, 5)])
def test_rows_of_pure_noise_have_no_component(n, features, samples):
    rng = np.random.default_rng(0)
    found = [
        DropoutAutoencoder(3).fit(rng.standard_normal((n, features))).certificate_["sampling"].value
        for _ in range(samples)
    ]
    assert sum(value > 0 for value in found) <= 1


@pytest.mark.parametrize("rank", [1, 3])
def test_components_far_above_the_noise_are_counted(rank):
    rng = np.random.default_rng(0)
    n, features, targets, width = 500, 8, 5, 4
    X, Y = noise(rng, n, features, targets)
    parts = [rng.standard_normal((size, rank)) for size in (features, targets)]
    P, Q = (np.linalg.qr(part)[0] for part in parts)
    Y = Y + 3.0 * np.linalg.qr(X - X.mean(0))[0] @ P @ Q.T * np.sqrt(n)
    model = DropoutRegressor(width, dropout=0.2).fit(X, Y)
    stream = DropoutRegressor(width, dropout=0.2).partial_fit(X[:200], Y[:200])
    stream.partial_fit(X[200:], Y[200:])
    for certificate in (model.certificate_, certify(model, X, Y), stream.certificate_):
        assert certificate["sampling"].value == rank
        assert f"{rank} of the {width} leading components" in certificate["sampling"].advice
        assert certificate.holds is True
    rows = rng.standard_normal((n, features))
    rows[:, :rank] *= [9.0, 6.0, 4.0][:rank]
    coder = DropoutAutoencoder(width).fit(rows)
    assert coder.certificate_["sampling"].value == rank
    assert certify(coder, rows)["sampling"].value == rank


def test_what_is_no_sample_has_no_sampling_noise():
    M = np.diag([3.0, 2.0, 1.0])
    claim = DropoutFactorization(2).fit(M).certificate_["sampling"]
    assert claim.verdict == "does not apply"
    assert "not rows" in claim.advice
    few = DropoutRegressor(2).fit(*noise(np.random.default_rng(0), 6, 5, 2))
    assert few.certificate_["sampling"].verdict == "does not apply"
    assert "too few to estimate" in few.certificate_["sampling"].advice
    assert few.certificate_.holds is True


def test_directions_below_the_resolution_of_float32_leave_the_fit_undecided():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    X = rng.standard_normal((500, 20)) * np.geomspace(1, 1e-3, 20) @ turn + 1e4
    X = X.astype(np.float32)
    Y = rng.standard_normal((500, 3)) + (X[:, :1] - 1e4)
    assert DropoutRegressor(3).fit(X, Y).certificate_.holds is None


def test_a_stream_whose_moment_lost_every_variance_is_not_certified(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    Y = X[:, :2] + 0.1 * rng.standard_normal((90, 2))
    right = SecondMoment.scatter.fget
    monkeypatch.setattr(SecondMoment, "scatter", property(lambda moment: -right(moment)))
    model = DropoutRegressor(2)
    for start in range(0, 90, 30):
        model.partial_fit(X[start : start + 30], Y[start : start + 30])
    assert model.certificate_.holds is not True
