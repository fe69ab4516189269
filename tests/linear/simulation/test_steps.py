"""A step through the second moment is a step on the data: naive NumPy against the library."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.problems import centred_rows
from lucidae.linear.methods import METHODS, MethodSettings, make_method
from lucidae.linear.optimizers import OPTIMIZERS
from lucidae.linear.prefixes import geometric_prior
from lucidae.linear.rules import brockett_ranks
from lucidae.linear.simulation import Plan, Run, simulate
from lucidae.rows.covariances import DenseCovariance, rows_covariance
from lucidae.rows.spectrum import Spectrum

N, M, K = 50, 7, 3
VALUES = np.array([2.0, 1.4, 0.9, 0.5, 0.3, 0.2, 0.1])
PENALTIES = np.array([0.3, 0.05, 0.15])
PRIOR = geometric_prior(K, 0.7)
RATE, MOMENTUM, START, SEED = 0.02, 0.9, 0.3, 11


@pytest.fixture(scope="module")
def X():
    return centred_rows(VALUES, N)


# One naive direction per method, on the rows, in the orientation of the papers: W1 is (k, m).


def reconstruction(X, W1, W2):
    codes = X @ W1.T
    residual = codes @ W2.T - X
    return 2 / len(X) * (residual @ W2).T @ X, 2 / len(X) * residual.T @ codes


def plain(X, W1, W2, _):
    return reconstruction(X, W1, W2)


def penalised(penalties):
    def direction(X, W1, W2, _):
        first, second = reconstruction(X, W1, W2)
        return first + 2 * np.diag(penalties) @ W1, second + 2 * W2 @ np.diag(penalties)

    return direction


def rotated(X, W1, W2, _):
    first, second = reconstruction(X, W1, W2)
    codes = X @ W1.T
    moment = codes.T @ codes / len(X)
    turn = (np.triu(moment, 1) - np.tril(moment, -1)) / 2
    return first - turn @ W1, second + W2 @ turn


def hebbian(X, W1, W2, _):
    change = np.zeros_like(W1)
    for x in X:
        y = W1 @ x
        change += np.outer(y, x) - np.tril(np.outer(y, y)) @ W1
    return -change / len(X), -change.T / len(X)


def brockett(X, W1, W2, _):
    sigma, d = X.T @ X / len(X), np.diag(brockett_ranks(K))
    inside = W2.T @ sigma @ W2 @ d
    ascent = 2 * (np.eye(M) - W2 @ W2.T) @ sigma @ W2 @ d + W2 @ (inside - inside.T)
    return -ascent.T, -ascent


def expected_nested(X, W1, W2, _):
    first, second = np.zeros_like(W1), np.zeros_like(W2)
    for b, probability in enumerate(PRIOR, start=1):
        one, two = reconstruction(X, W1[:b], W2[:, :b])
        first[:b] += probability * one
        second[:, :b] += probability * two
    return first, second


def nested(X, W1, W2, rng):
    lengths = 1 + np.searchsorted(np.cumsum(PRIOR)[:-1], rng.random(len(X)), side="right")
    first, second = np.zeros_like(W1), np.zeros_like(W2)
    for x, b in zip(X, lengths, strict=True):
        code = W1[:b] @ x
        residual = W2[:, :b] @ code - x
        first[:b] += 2 * np.outer(W2[:, :b].T @ residual, x) / len(X)
        second[:, :b] += 2 * np.outer(residual, code) / len(X)
    return first, second


def variational(X, V, W, log_variances, log_noise):
    """Differentiate the negative ELBO of every row, averaged; all four parameters."""
    noise, variances = np.exp(log_noise), np.exp(log_variances)
    codes = X @ V.T
    residual = codes @ W.T - X
    into_codes = residual @ W / noise + codes
    grad_w = (residual.T @ codes / len(X) + W * variances) / noise
    grad_d = (variances * (np.sum(W * W, axis=0) / noise + 1) - 1) / 2
    misfit = np.mean(np.sum(residual**2, axis=1)) + np.sum(variances * np.sum(W * W, axis=0))
    return into_codes.T @ X / len(X), grad_w, grad_d, (M - misfit / noise) / 2


NAIVE = {
    "plain": plain,
    "uniform_l2": penalised(np.full(K, 0.1)),
    "nonuniform_l2": penalised(PENALTIES),
    "rag": rotated,
    "gha": hebbian,
    "brockett": brockett,
    "expected_nested_dropout": expected_nested,
    "nested_dropout": nested,
}


# PyTorch's optimizers, written out for a list of parameters.


class NaiveOptimizer:
    def __init__(self, name, parameters):
        self.name, self.count = name, 0
        self.first = [np.zeros_like(p) for p in parameters]
        self.second = [np.zeros_like(p) for p in parameters]

    def step(self, parameters, gradients):
        self.count += 1
        pairs = enumerate(zip(parameters, gradients, strict=True))
        return [getattr(self, self.name)(i, p, np.asarray(g)) for i, (p, g) in pairs]

    def gradient_descent(self, i, p, g):
        return p - RATE * g

    def heavy_ball(self, i, p, g):
        self.first[i] = MOMENTUM * self.first[i] + g
        return p - RATE * self.first[i]

    def nesterov(self, i, p, g):
        self.first[i] = MOMENTUM * self.first[i] + g
        return p - RATE * (g + MOMENTUM * self.first[i])

    def adam(self, i, p, g):
        self.first[i] = 0.9 * self.first[i] + 0.1 * g
        self.second[i] = 0.999 * self.second[i] + 0.001 * g * g
        hat = self.first[i] / (1 - 0.9**self.count)
        spread = self.second[i] / (1 - 0.999**self.count)
        return p - RATE * hat / (np.sqrt(spread) + 1e-8)


def positive_qr(W2):
    basis, triangle = np.linalg.qr(W2)
    return basis * np.sign(np.diag(triangle))


def naive_run(X, name, is_tied, optimizer, n_steps, rng):
    """Return encoder and decoder (k, m), (m, k) after so many steps on the rows."""
    start = np.random.default_rng(SEED)
    W1, W2 = (START * start.standard_normal((K, M)) for _ in range(2))
    W2 = W2.T
    if name == "linear_vae":
        parameters = [W1, W2, np.zeros(K), np.array(0.0)]
        moves = NaiveOptimizer(optimizer, parameters)
        for _ in range(n_steps):
            parameters = moves.step(parameters, variational(X, *parameters))
        return parameters
    if is_tied:
        W2 = positive_qr(W1.T) if name == "brockett" else W1.T
        moves = NaiveOptimizer(optimizer, [W2])
        for _ in range(n_steps):
            first, second = NAIVE[name](X, W2.T, W2, rng)
            (W2,) = moves.step([W2], [(first.T + second) / 2])
            W2 = positive_qr(W2) if name == "brockett" else W2
        return [W2.T, W2]
    parameters = [W1, W2]
    moves = NaiveOptimizer(optimizer, parameters)
    for _ in range(n_steps):
        parameters = moves.step(parameters, NAIVE[name](X, *parameters, rng))
    return parameters


def library_run(X, name, is_tied, optimizer, n_steps, rng, covariance):
    penalties = np.full(K, 0.1) if name == "uniform_l2" else PENALTIES
    method = make_method(name, MethodSettings(penalties, PRIOR, rng, is_tied))
    start = np.random.default_rng(SEED)
    weights = method.start(*(START * start.standard_normal((K, M)) for _ in range(2)))
    rule = OPTIMIZERS[optimizer](RATE, MOMENTUM)
    state = rule.start(weights)
    for _ in range(n_steps):
        state = rule.update(state, method.rule.direction(state.weights, covariance))
        state = state._replace(weights=method.rule.retract(state.weights))
    return flat(state.weights)


def flat(weights):
    parameters = [weights.encoder, weights.atoms.T]
    if hasattr(weights, "log_noise"):
        parameters += [weights.log_variances[:, 0], weights.log_noise[0, 0]]
    return parameters


RULES = ("rag", "gha", "brockett")
CASES = [
    (name, is_tied, optimizer)
    for name in METHODS
    for is_tied in (False, True)
    for optimizer in OPTIMIZERS
    if not (optimizer == "adam" and name in RULES)
    and not (name in ("gha", "brockett") and not is_tied)
    and not (name == "linear_vae" and is_tied)
]


@pytest.mark.parametrize(("n_steps", "tolerance"), [(1, 1e-12), (100, 1e-9)])
@pytest.mark.parametrize(("name", "is_tied", "optimizer"), CASES)
def test_steps_on_rows_and_through_the_second_moment_agree(
    X, name, is_tied, optimizer, n_steps, tolerance
):
    naive = naive_run(X, name, is_tied, optimizer, n_steps, np.random.default_rng(SEED))
    if name == "nested_dropout":
        covariance = rows_covariance(X, np.zeros(M), np.ones(N))
    else:
        covariance = DenseCovariance(X.T @ X / N)
    ours = library_run(
        X, name, is_tied, optimizer, n_steps, np.random.default_rng(SEED), covariance
    )
    for expected, found in zip(naive, ours, strict=True):
        assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("name", "is_tied", "optimizer"), CASES)
def test_the_dynamics_engine_follows_the_naive_trajectory(X, name, is_tied, optimizer):
    n_steps = 100
    values, vectors = np.linalg.eigh(X.T @ X / N)
    plan = Plan(
        Spectrum(values[::-1], vectors[:, ::-1], values.sum()),
        K,
        n_steps,
        penalties=np.full(K, 0.1) if name == "uniform_l2" else PENALTIES,
        prior=PRIOR,
        init_scale=START,
        momentum=MOMENTUM,
        rows=X if name == "nested_dropout" else None,
    )
    (trajectory,) = simulate([Run(name, optimizer, RATE, SEED, is_tied)], plan)
    naive = naive_run(X, name, is_tied, optimizer, n_steps, np.random.default_rng(SEED))
    for expected, found in zip(naive, flat(trajectory.weights), strict=True):
        assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "nested_dropout"])
def test_many_runs_at_once_are_the_runs_one_by_one(X, name):
    values, vectors = np.linalg.eigh(X.T @ X / N)
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    plan = Plan(spectrum, K, 40, penalties=PENALTIES, prior=PRIOR, init_scale=START)
    optimizers = ("gradient_descent", "nesterov") if name in RULES else ("nesterov", "adam")
    runs = [
        Run(name, o, rate, seed) for o in optimizers for rate in (0.01, 0.05) for seed in (0, 1)
    ]
    together = simulate(runs, plan)
    for run, found in zip(runs, together, strict=True):
        (alone,) = simulate([run], plan)
        assert found.run is run
        for quantity, series in alone.values.items():
            assert_allclose(found.values[quantity], series, rtol=1e-9, atol=1e-12)
        assert_allclose(found.weights.encoder, alone.weights.encoder, atol=1e-11)


def test_mini_batches_of_the_dynamics_engine_are_passes_over_the_rows(X):
    values, vectors = np.linalg.eigh(X.T @ X / N)
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    plan = Plan(spectrum, K, 3, init_scale=START, rows=X, batch_size=16)
    (trajectory,) = simulate([Run("rag", "nesterov", RATE, SEED, False)], plan)
    start, rng = np.random.default_rng(SEED), np.random.default_rng(SEED)
    W1, W2 = (START * start.standard_normal((K, M)) for _ in range(2))
    parameters = [W1, W2.T]
    moves = NaiveOptimizer("nesterov", parameters)
    for _ in range(3):
        order = rng.permutation(N)
        for begin in range(0, N, 16):
            batch = X[order[begin : begin + 16]]
            parameters = moves.step(parameters, rotated(batch, *parameters, None))
    for expected, found in zip(parameters, flat(trajectory.weights), strict=True):
        assert_allclose(found, expected, rtol=0, atol=1e-12)
