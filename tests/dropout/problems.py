"""Random problems and independent references for the tests of the dropout family."""

from typing import NamedTuple

import numpy as np
import scipy.sparse
from hypothesis import strategies as st
from scipy.optimize import minimize

from lucidae import SecondMoment
from lucidae.dropout import LinearProblem, Weights


def seeds():
    return st.integers(0, 2**32 - 1)


def regression_data(seed=0, n=80, features=5, targets=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 2.0
    return X, X @ rng.standard_normal((features, targets)) + rng.standard_normal((n, targets)) - 4.0


class Optimum(NamedTuple):
    """The optimal network of rows in memory: coefficients U Vᵀ and what the estimators report."""

    coef: np.ndarray
    rank: int
    threshold: float
    singular_values: np.ndarray
    objective: float
    explained: float  # ‖M‖², the part of E‖y‖² that least squares explains


def dense(X):
    return np.asarray(X.toarray() if scipy.sparse.issparse(X) else X, dtype=np.float64)


def scaled_rows(X, Y, weights=None, centered=True):
    """Return rows of positive weight, centred twice and multiplied by the roots of their shares."""
    X, Y = dense(X), dense(Y).reshape(X.shape[0], -1)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, dtype=float)
    X, Y, share = X[weights > 0], Y[weights > 0], weights[weights > 0] / weights.sum()
    if centered:
        X, Y = X - X[0], Y - Y[0]
        for _ in range(2):
            X, Y = X - share @ X, Y - share @ Y
    root = np.sqrt(share)[:, None]
    return X * root, Y * root


def numpy_optimum(
    X, Y, dropout, width, *, weights=None, centered=True, alpha=0.0, resolution=1e-13
):
    """Return the optimum from singular value decompositions of the rows, by NumPy alone.

    With rows A = P diag(a) Wᵀ, outputs B and a ridge penalty ρ, the least-squares map for white
    inputs is M = BᵀP diag(a/√(a² + ρ)). Its singular values are reduced as Mianjy et al. 2018,
    Algorithm 3 says.
    """
    A, B = scaled_rows(X, Y, weights, centered)
    total = len(A) if weights is None else np.sum(weights)
    strength, ridge = dropout / (1 - dropout), alpha / total
    sizes = np.sqrt((A**2).sum(axis=0))
    units = np.where(sizes > 0, sizes if alpha == 0.0 else 1.0, 1.0)
    P, a, Wt = np.linalg.svd(A / units, full_matrices=False)
    kept = a > resolution * a.max(initial=0.0)
    P, a, Wt = P[:, kept], a[kept], Wt[kept]
    codes, loaded = P.T @ B, a**2 + ridge
    M = codes.T * (a / np.sqrt(loaded))
    floor = ((B - P @ codes) ** 2).sum() + (codes.T**2 * (ridge / loaded)).sum()
    U, s, Qt = np.linalg.svd(M, full_matrices=False)
    sums = np.cumsum(s[:width])
    levels = strength * sums / (width + strength * np.arange(1, len(sums) + 1))
    rank = int(np.sum((s[:width] > levels) & (s[:width] > 1e-12 * s.max(initial=0.0))))
    level = float(levels[rank - 1]) if rank else 0.0
    coef = (U[:, :rank] * (s[:rank] - level)) @ (Qt[:rank] / np.sqrt(loaded)) @ (Wt / units)
    least = (s[rank:] ** 2).sum() + rank * level**2
    penalty = strength / width * (s[:rank] - level).sum() ** 2
    return Optimum(coef, rank, level, s[:width], floor + least + penalty, float((M**2).sum()))


def dropout_loss(U, V, X, Y, dropout, weights=None, centered=True):
    """Return the expected dropout loss of weights on rows, by its definition."""
    A, B = scaled_rows(X, Y, weights, centered)
    U, hidden = dense(U), A @ dense(V)
    penalty = (U**2).sum(axis=0) @ (hidden**2).sum(axis=0)
    return ((B - hidden @ U.T) ** 2).sum() + dropout / (1 - dropout) * penalty


@st.composite
def problems(draw, largest=6):
    """Draw (problem, λ, r): white or correlated inputs, any rank and shape, r below or above."""
    rng = np.random.default_rng(draw(seeds()))
    outputs, features, width, rank = (draw(st.integers(1, largest)) for _ in range(4))
    strength = draw(st.sampled_from([0.0, 0.03, 0.1, 0.5, 1.0, 3.0, 30.0]))
    matrix = rng.standard_normal((outputs, rank)) @ rng.standard_normal((rank, features))
    matrix /= np.linalg.norm(matrix)
    if draw(st.booleans()):
        return LinearProblem.from_matrix(matrix), strength, width
    mixing = rng.standard_normal((draw(st.integers(1, features)), features))  # C may be singular
    X = rng.standard_normal((30, mixing.shape[0])) @ mixing + rng.standard_normal(features)
    Y = X @ matrix.T + 0.1 * rng.standard_normal((30, outputs))
    return LinearProblem.from_moment(SecondMoment.of(np.hstack([X, Y])), features), strength, width


def random_weights(problem, width, rng, scale=1.0):
    outputs, features = problem.cross.shape
    return Weights(
        scale * rng.standard_normal((outputs, width)),
        scale * rng.standard_normal((features, width)),
    )


def pack(weights):
    return np.concatenate([np.ravel(part) for part in weights])


def unpack(flat, problem, width):
    outputs, features = problem.cross.shape
    cut = outputs * width
    return Weights(flat[:cut].reshape(outputs, width), flat[cut:].reshape(features, width))


def plain_value_and_gradient(problem, strength, width):
    """Return a function of flat weights that knows nothing of the library's own formulas."""
    cross, (outputs, features) = problem.cross, problem.cross.shape
    inputs = np.eye(features) if problem.inputs is None else problem.inputs
    cut = outputs * width

    def value_and_gradient(flat):
        U, V = flat[:cut].reshape(outputs, width), flat[cut:].reshape(features, width)
        CV, AV = inputs @ V, cross @ V
        outgoing, incoming = (U * U).sum(0), (V * CV).sum(0)
        fitted = U.T @ U
        value = problem.energy - 2 * (U * AV).sum() + (fitted * (V.T @ CV)).sum()
        on_left = 2 * (U @ (V.T @ CV) - AV + strength * U * incoming)
        on_right = 2 * (CV @ fitted - cross.T @ U + strength * CV * outgoing)
        value += strength * outgoing @ incoming
        return value, np.concatenate([on_left.ravel(), on_right.ravel()])

    return value_and_gradient


def sampled_loss(weights, X, Y, masks, keep):
    """Return the mean over rows of ‖y − U diag(b) Vᵀx / θ‖² (Mianjy et al. 2018, eq. 1)."""
    residual = (X @ weights.right) * masks / keep @ weights.left.mT - Y
    return (residual**2).sum(axis=(-2, -1)) / X.shape[-2]


def best_descent(problem, strength, width, rng, starts, goal):
    """Return the best value of L-BFGS from random starts, its best run continued to the end."""
    both = plain_value_and_gradient(problem, strength, width)
    size = sum(problem.cross.shape) * width
    runs = [_descend(both, 0.5 * rng.standard_normal(size), 100) for _ in range(starts)]
    best = min(runs, key=lambda run: run.fun)
    for _ in range(20):
        if best.fun <= goal:
            break
        best = _descend(both, best.x, 2000)
    return best.fun


def _descend(both, start, limit):
    options = {"maxiter": limit, "maxfun": 2 * limit, "ftol": 0.0, "gtol": 1e-11, "maxcor": 30}
    return minimize(both, start, jac=True, method="L-BFGS-B", options=options)


def dense_hessian(product, size):
    """Return the matrix of a linear map given as a function of flat vectors."""
    return np.column_stack([product(unit) for unit in np.eye(size)])


def symmetric(rng, size, shift=1.0):
    square = rng.standard_normal((size, size))
    return (square + square.T) / 2 + shift * np.eye(size)
