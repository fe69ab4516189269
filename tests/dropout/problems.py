"""Random problems and independent references for the tests of the dropout family."""

import numpy as np
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
