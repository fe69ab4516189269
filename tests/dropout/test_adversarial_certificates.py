"""Certificates against brute force: no false pass and no false failure.

Every kind of data meets every kind of weights. The truth is the smallest loss that L-BFGS reaches
from several starts, in white coordinates from a singular value decomposition of the rows.
"""

import functools

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import (
    LinearProblem,
    Weights,
    certify_weights,
    equalize_pair,
    equalized_critical_points,
    solve,
    solve_tied,
)
from lucidae.dropout.moments import joint_moment


def correlated(rng, n=30, features=4):
    return rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 1.0


def answered(rng, X, targets=3, noise=0.5):
    return X @ rng.standard_normal((X.shape[1], targets)) + noise * rng.standard_normal(
        (len(X), targets)
    )


def plain(rng):
    X = rng.standard_normal((30, 4))
    return X, answered(rng, X)


def skewed(rng):
    X = correlated(rng)
    return X, answered(rng, X)


def few_rows(rng):
    X = rng.standard_normal((4, 6))
    return X, answered(rng, X)


def as_many_targets(rng):
    X = correlated(rng, 40, 3)
    return X, X


def duplicated(rng):
    X = correlated(rng)
    return np.column_stack([X, X[:, :2]]), answered(rng, X)


def constant(rng):
    X = correlated(rng)
    return np.column_stack([X, np.full(len(X), 7.0)]), answered(rng, X)


def collinear(spread):
    def draw(rng):
        Z = rng.standard_normal((30, 4))
        X = Z[:, :1] + spread * Z
        return X, answered(rng, X, noise=1.0)

    return draw


def tied_values(rng):
    X = np.linalg.qr(rng.standard_normal((20, 4)))[0]
    X = np.linalg.qr(X - X.mean(0))[0]
    return X, X[:, :3]


def single_precision(rng):
    X, Y = skewed(rng)
    return X.astype(np.float32), Y.astype(np.float32)


def large(rng):
    X, Y = skewed(rng)
    return 1e6 * X, 1e5 * Y


def small(rng):
    X, Y = skewed(rng)
    return 1e-6 * X, 1e-7 * Y


def graded(rng):
    X, Y = skewed(rng)
    return X * [1e-5, 1.0, 1e4, 1e-2], Y


def shifted(rng):
    X, Y = skewed(rng)
    return X + 1e5, Y - 1e4


def rank_one(rng):
    X = correlated(rng)
    return X, X @ np.outer(rng.standard_normal(4), rng.standard_normal(3))


def one_target(rng):
    X = correlated(rng)
    return X, answered(rng, X, 1)


def indicators(rng):
    X = np.eye(4)[rng.integers(0, 4, 30)]
    return X, answered(rng, X)


DATA = {
    "plain": plain,
    "correlated": skewed,
    "fewer rows than features": few_rows,
    "autoencoder": as_many_targets,
    "duplicated columns": duplicated,
    "constant column": constant,
    "collinear 1e-3": collinear(1e-3),
    "collinear 1e-5": collinear(1e-5),
    "collinear 3e-7": collinear(3e-7),
    "equal singular values": tied_values,
    "float32": single_precision,
    "large": large,
    "small": small,
    "graded": graded,
    "far from zero": shifted,
    "rank one": rank_one,
    "one target": one_target,
    "indicators": indicators,
}


def turn(rng, width):
    return np.linalg.qr(rng.standard_normal((width, width)))[0]


def optimal(best, *_):
    return best


def permuted(best, *_):
    return Weights(best.left[:, ::-1], best.right[:, ::-1])


def flipped(best, *_):
    signs = np.array([(-1.0) ** i for i in range(best.left.shape[1])])
    return Weights(best.left * signs, best.right * signs)


def unbalanced(best, *_):
    return Weights(best.left * 100.0, best.right / 100.0)


def rotated(best, rng, *_):
    Q = turn(rng, best.left.shape[1])
    return Weights(best.left @ Q, best.right @ Q)


def scaled(best, *_):
    return Weights(1.02 * best.left, best.right)


def slightly_perturbed(best, rng, *_):
    return Weights(best.left * (1 + 1e-6 * rng.standard_normal(best.left.shape)), best.right)


def perturbed(best, rng, *_):
    return Weights(best.left * (1 + 0.02 * rng.standard_normal(best.left.shape)), best.right)


def zero(best, *_):
    return Weights(0 * best.left, 0 * best.right)


def missing(index):
    def weights(best, rng, X, Y, strength):
        """Return the optimum of the problem without one singular value: a saddle."""
        M, lift, _, _ = white(X, Y)
        P, s, Qt = np.linalg.svd(M, full_matrices=False)
        s[min(index, len(s) - 1)] = 0.0
        width = best.left.shape[1]
        U, V = solve(LinearProblem.from_matrix((P * s) @ Qt), strength, width).weights
        return Weights(U, lift @ V)

    return weights


def other_rows(best, rng, X, Y, strength):
    X, Y = np.float64(X), np.float64(Y)
    problem = LinearProblem.from_moment(joint_moment(X, rng.permutation(Y)), X.shape[1])
    return solve(problem, strength, best.left.shape[1]).weights


def other_rate(best, rng, X, Y, strength):
    problem = LinearProblem.from_moment(joint_moment(np.float64(X), np.float64(Y)), X.shape[1])
    return solve(problem, strength + 1.0, best.left.shape[1]).weights


WEIGHTS = {
    "optimal": optimal,
    "permuted": permuted,
    "flipped": flipped,
    "unbalanced": unbalanced,
    "rotated": rotated,
    "scaled": scaled,
    "slightly perturbed": slightly_perturbed,
    "perturbed": perturbed,
    "zero": zero,
    "without the first": missing(0),
    "without the second": missing(1),
    "other rows": other_rows,
    "other rate": other_rate,
}


def white(X, Y):
    """Return M, B, L and the loss of least squares from the rows."""
    X, Y = np.float64(X), np.float64(Y)
    X, Y = X - X.mean(0), Y - Y.mean(0)
    size = np.linalg.norm(X, axis=0)
    size[size < 1e-12 * size.max()] = np.inf
    P, s, Wt = np.linalg.svd(X / size, full_matrices=False)
    keep = s > 1e-12 * s[0]
    P, s, Wt = P[:, keep], s[keep], Wt[keep]
    M = (P.T @ Y / np.sqrt(len(X))).T
    size[np.isinf(size)] = 1.0
    lift = Wt.T / s / size[:, None] * np.sqrt(len(X))
    lower = Wt.T * s * size[:, None] / np.sqrt(len(X))
    return M, lift, lower, (Y**2).sum() / len(X)


def loss_and_slope(flat, M, strength, width):
    cut = M.shape[0] * width
    U, V = flat[:cut].reshape(-1, width), flat[cut:].reshape(-1, width)
    E, u, v = U @ V.T - M, (U * U).sum(0), (V * V).sum(0)
    slopes = 2 * (E @ V + strength * U * v), 2 * (E.T @ U + strength * V * u)
    return (E * E).sum() + strength * u @ v, np.concatenate([part.ravel() for part in slopes])


@functools.cache
def brute_force(data, width, strength):
    """Return M, L, E‖y‖² and the smallest loss that L-BFGS finds, less that of least squares."""
    M, _, lower, energy = white(*DATA[data](np.random.default_rng(5)))
    size, rng = np.linalg.norm(M), np.random.default_rng(6)
    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 0.0, "gtol": 1e-11, "maxcor": 20}
    losses = [
        minimize(
            loss_and_slope,
            0.5 * rng.standard_normal(sum(M.shape) * width),
            (M / size, strength, width),
            "L-BFGS-B",
            jac=True,
            options=options,
        ).fun
        for _ in range(4)
    ]
    return M, lower, energy, size**2 * min(losses)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("data", DATA)
def test_verdicts_agree_with_brute_force(data, kind, dropout):
    rng = np.random.default_rng(5)
    X, Y = DATA[data](rng)
    strength, width = dropout / (1 - dropout), 2
    best = DropoutRegressor(width, dropout=dropout).fit(np.float64(X), np.float64(Y))
    weights = WEIGHTS[kind](Weights(best.left_, best.right_), rng, X, Y, strength)
    certificate = certify_weights(*weights, X, Y, dropout=dropout)
    M, lower, _, smallest = brute_force(data, width, strength)
    flat = np.concatenate([weights.left.ravel(), (lower.T @ weights.right).ravel()])
    gap = (loss_and_slope(flat, M, strength, width)[0] - smallest) / (M**2).sum()
    assert gap > -1e-9
    assert certificate["gap"].holds is bool(gap < 1e-6), (gap, certificate.summary())
    assert certificate["gap"].value == pytest.approx(gap, rel=1e-4, abs=1e-8)
    if gap < 1e-10:
        assert certificate.holds is True, certificate.summary()
        assert all(claim.holds is not False for claim in certificate)
    if gap > 1e-6:
        assert certificate.holds is False


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("data", DATA)
def test_a_fit_gets_the_same_verdicts_from_its_state_and_from_its_data(data, sparse):
    X, Y = DATA[data](np.random.default_rng(5))
    given = scipy.sparse.csr_array(X) if sparse else X
    for model in (DropoutRegressor(2, dropout=0.3), DropoutAutoencoder(2, dropout=0.3)):
        model.fit(given, Y)
        own, again = model.certificate_, certify(model, given, Y)
        assert own.holds is True, own.summary()
        assert [(claim.name, claim.holds) for claim in own] == [
            (claim.name, claim.holds) for claim in again
        ]
    factors = DropoutFactorization(2, dropout=0.3).fit(X)
    verdicts = [claim.holds for claim in factors.certificate_]
    assert factors.certificate_.holds
    assert verdicts == [claim.holds for claim in certify(factors, X)]


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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("spread", [1e-3, 1e-4, 1e-5, 1e-6, 3e-7, 1e-7, 3e-8])
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


@pytest.mark.parametrize("seed", range(8))
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
    for name in ("equalized", "path_norm", "rank", "product", "subgradient"):
        assert certificate[name].verdict == "does not apply"
    assert "Theorems 3.3 and 3.4" in certificate["equalized"].advice
    # The advice of white inputs would be wrong here.
    left, _ = equalize_pair(U, U)
    assert tied(left.ravel())[0] >= best.fun - 1e-12
    assert certify_weights(1.1 * U, None, X, dropout=1 / 3, tied=True).holds is False


@pytest.mark.parametrize(
    ("features", "width", "scale"),
    [
        *((6, width, scale) for width in (2, 8) for scale in (1e-80, 1.0, 1e6)),
        (40, 60, 1e-80),
        (40, 60, 1e6),
        (150, 140, 1.0),
    ],
)
def test_saddles_of_tied_weights_with_correlated_inputs_fail(features, width, scale):
    rng = np.random.default_rng(0)
    X = scale * rng.standard_normal((2 * features, features)) * np.linspace(5, 1, features)
    settings = {"family": "dropout", "dropout": 0.5, "tied": True}
    zero = np.zeros((features, width))
    certificate = certify((zero, None), X, **settings)
    assert certificate["gap"].holds is False
    assert "L-BFGS" in certificate["gap"].advice
    assert certificate["stationarity"].holds
    # One eigenvector alone, at the length for which the gradient vanishes: u = √(1/(1 + λ)) w.
    axes = np.linalg.eigh(np.cov(X.T, bias=True))[1]
    last = zero.copy()
    last[:, 0] = np.sqrt(0.5) * axes[:, 0]
    certificate = certify((last, None), X, **settings)
    assert certificate["stationarity"].value < 1e-6
    assert certificate["gap"].holds is False
    assert certificate.holds is False


def test_tied_weights_without_dropout_are_proved_optimal_by_the_bound_of_separate_layers():
    X = correlated(np.random.default_rng(0), 40, 5)
    axes = np.linalg.eigh(np.cov(X.T, bias=True))[1]
    settings = {"family": "dropout", "dropout": 0.0, "tied": True}
    best = certify((axes[:, -2:], None), X, **settings)
    assert best.holds is True, best.summary()
    assert certify((axes[:, 1:3], None), X, **settings)["gap"].holds is False


def test_the_curvature_of_a_large_network_is_undecided_where_the_gap_is(monkeypatch):
    from lucidae.dropout import differences

    X = correlated(np.random.default_rng(0), 40, 3)
    monkeypatch.setattr(differences, "MOST_WEIGHTS", 5)
    monkeypatch.setattr("lucidae.dropout.verifier.decrease", lambda slope: 0.0)
    certificate = certify((np.zeros((3, 2)), None), X, family="dropout", dropout=0.5, tied=True)
    assert certificate["curvature"].undecided
    assert certificate["gap"].undecided
    assert certificate.holds is None


@pytest.mark.parametrize("strength", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("seed", range(4))
def test_critical_points_of_tied_weights(seed, strength):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((4, 4))
    M = (M + M.T) / 2 + np.eye(4)
    best = solve_tied(M, strength, 3)
    for point in equalized_critical_points(M, strength, 3):
        certificate = certify_weights(
            point.factor, None, matrix=M, dropout=strength / (1 + strength)
        )
        assert certificate.holds is (point.index == 0), certificate.summary()
        assert certificate["gap"].value == pytest.approx(
            (point.value - best.value) / (M**2).sum(), abs=1e-10
        )
        assert certificate["subgradient"].holds is (point.index == 0)
        assert certificate["curvature"].holds is (point.index == 0)


def test_a_large_tol_of_sgd_does_not_certify_a_large_gap():
    rng = np.random.default_rng(0)
    X, Y = plain(rng)
    model = DropoutRegressor(2, dropout=0.3, solver="sgd", tol=10.0, random_state=0).fit(X, Y)
    assert model.certificate_["gap"].threshold == 0.02
    assert model.certificate_["gap"].value > 0.1
    assert model.certificate_.holds is False
    assert certify(model, X, Y).holds is False


@pytest.mark.parametrize("tolerance", [1e-18, 1e-16])
def test_a_tolerance_below_rounding_is_not_decidable(tolerance):
    X, Y = plain(np.random.default_rng(0))
    best = DropoutRegressor(2, dropout=0.3).fit(X, Y)
    certificate = certify_weights(best.left_, best.right_, X, Y, dropout=0.3, tolerance=tolerance)
    assert certificate["gap"].holds is None
    assert "float64" in certificate["gap"].advice


def test_the_evidence_is_enough_to_check_the_claims():
    X, Y = skewed(np.random.default_rng(0))
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
    for name in ("gap", "subgradient", "product", "curvature"):
        assert saddle[name].holds is False, saddle.summary()
    assert model.certificate_.holds is True, model.certificate_.summary()
    assert certify((model.left_, model.right_), X, Y, **settings).holds is True


@pytest.mark.parametrize("eigenvalues", [(-1.0, -1.0), (-1.0, -2.0), (-1.0, 1e-20)])
@pytest.mark.parametrize("shape", ["equal", "one", "parallel"])
@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-6, 1e-4, 1e-2, 0.1])
def test_weights_near_an_optimum_of_zero_are_compared_with_the_problem(eigenvalues, shape, size):
    U = {"equal": np.eye(2), "one": np.diag([1.0, 0.0]), "parallel": np.ones((2, 2))}[shape]
    settings = {"family": "dropout", "dropout": 0.5, "tied": True}
    certificate = certify((size * U, None), matrix=np.diag(eigenvalues), **settings)
    assert certificate.holds is bool(size < 1e-3), certificate.summary()
    assert certificate["gap"].holds is bool(size < 1e-3)
    zero = certify((size * U, None), matrix=np.eye(2), **settings)  # a saddle: the optimum is not 0
    assert zero.holds is False
