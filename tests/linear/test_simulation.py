"""Simulated training: naive steps on rows, races to alignment, the curves of Bao et al. 2020."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from linear.problems import centred_rows, spectrum_from
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.datasets import load_digits, load_mnist
from lucidae.linear import (
    MethodSettings,
    Plan,
    Run,
    Spectrum,
    epochs_to_alignment,
    geometric_prior,
    make_method,
    simulate,
)
from lucidae.metrics import axis_alignment_distance, subspace_distance

N, M, K = 50, 7, 3
VALUES = np.array([2.0, 1.4, 0.9, 0.5, 0.3, 0.2, 0.1])
PENALTIES = np.array([0.3, 0.05, 0.15])
PRIOR = geometric_prior(K, 0.7)
RATE, MOMENTUM, START, SEED = 0.02, 0.9, 0.3, 11
X = centred_rows(VALUES, N)


def plan(n_epochs, **more):
    values, vectors = np.linalg.eigh(X.T @ X / N)
    spectrum = Spectrum(values[::-1], vectors[:, ::-1], values.sum())
    settings = {"penalties": PENALTIES, "prior": PRIOR, "init_scale": START, "momentum": MOMENTUM}
    return Plan(spectrum, K, n_epochs, **(settings | more))


# One naive direction per method, on the rows, in the orientation of the papers: W1 is (k, m).


def reconstruction(X, W1, W2):
    codes = X @ W1.T
    residual = codes @ W2.T - X
    return 2 / len(X) * (residual @ W2).T @ X, 2 / len(X) * residual.T @ codes


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
    sigma, d = X.T @ X / len(X), np.diag([1.0, 2 / 3, 1 / 3])
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
    "plain": penalised(np.zeros(K)),
    "uniform_l2": penalised(np.full(K, 0.1)),
    "nonuniform_l2": penalised(PENALTIES),
    "rag": rotated,
    "gha": hebbian,
    "brockett": brockett,
    "expected_nested_dropout": expected_nested,
    "nested_dropout": nested,
}


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


def naive_run(name, is_tied, optimizer, n_steps):
    """Return encoder and decoder (k, m), (m, k) after so many steps on the rows."""
    start, rng = np.random.default_rng(SEED), np.random.default_rng(SEED)
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


def flat(weights):
    parameters = [weights.encoder, weights.atoms.T]
    if hasattr(weights, "log_noise"):
        parameters += [weights.log_variances[:, 0], weights.log_noise[0, 0]]
    return parameters


CASES = [
    (name, is_tied, optimizer)
    for name in (*NAIVE, "linear_vae")
    for is_tied in (False, True)
    for optimizer in ("gradient_descent", "heavy_ball", "nesterov", "adam")
    if not (optimizer == "adam" and name in ("rag", "gha", "brockett"))
    and not (name in ("gha", "brockett") and not is_tied)
    and not (name == "linear_vae" and is_tied)
]


@pytest.mark.parametrize(("name", "is_tied", "optimizer"), CASES)
def test_simulated_steps_are_naive_steps_on_the_rows(name, is_tied, optimizer):
    own = {"penalties": np.full(K, 0.1)} if name == "uniform_l2" else {}
    own |= {"rows": X} if name == "nested_dropout" else {}
    for n_steps, tolerance in ((1, 1e-12), (100, 1e-8)):
        (found,) = simulate([Run(name, optimizer, RATE, SEED, is_tied)], plan(n_steps, **own))
        naive = naive_run(name, is_tied, optimizer, n_steps)
        for expected, weights in zip(naive, flat(found.weights), strict=True):
            assert_allclose(weights, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", [*NAIVE, "linear_vae"])
def test_many_runs_at_once_are_the_runs_one_by_one(name):
    if name == "nested_dropout":
        return  # whose runs draw their masks from one generator
    rotates = name in ("rag", "gha", "brockett")
    optimizers = ("gradient_descent", "nesterov") if rotates else ("nesterov", "adam")
    runs = [
        Run(name, o, rate, seed) for o in optimizers for rate in (0.01, 0.05) for seed in (0, 1)
    ]
    for run, found in zip(runs, simulate(runs, plan(40)), strict=True):
        (alone,) = simulate([run], plan(40))
        assert found.run is run
        for quantity, series in alone.values.items():
            assert_allclose(found.values[quantity], series, rtol=1e-9, atol=1e-12)
        assert_allclose(found.weights.encoder, alone.weights.encoder, atol=1e-11)


def test_mini_batches_of_the_dynamics_engine_are_passes_over_the_rows():
    given = plan(3, rows=X, batch_size=16)
    (trajectory,) = simulate([Run("rag", "nesterov", RATE, SEED, False)], given)
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


def test_the_predicted_epochs_are_those_of_a_simulation():
    """The distance decays by exp(−2 · rate · learning_rate / (1 − momentum)) per epoch."""
    spectrum = spectrum_from([2.0, 1.7, 0.3, 0.1])
    given = Plan(spectrum, 2, 20_000, init_scale=1e-2, momentum=0.9)
    run = Run("rag", "nesterov", 0.002, seed=1)
    near, far = (float(epochs_to_alignment([run], given, t, 1)[0]) for t in (1e-3, 1e-6))
    method = make_method("rag", MethodSettings(np.zeros(2), geometric_prior(2), None))
    rate = method.rule.alignment_rate(spectrum.values, 2)
    assert_allclose(far - near, np.log(1e3) / (2 * rate * 0.002 / (1 - 0.9)), rtol=0.05)


def test_a_race_counts_the_epochs_of_its_runs_and_marks_those_that_diverge():
    runs = [Run("rag", "nesterov", rate, seed) for rate in (0.01, 0.02, 50.0) for seed in (0, 1)]
    epochs = epochs_to_alignment(runs, plan(2000), target=0.1, check_every=1)
    assert np.isnan(epochs[4:]).all()
    for run, found in zip(runs[:4], epochs[:4], strict=True):
        (full,) = simulate([run], plan(int(found), record_at=range(int(found) + 1)))
        assert full.values["alignment"][-1] <= 0.1 < full.values["alignment"][:-1].min()


def test_a_diverged_run_of_a_crowd_does_not_disturb_the_others():
    good, bad = Run("rag", "nesterov", 0.01), Run("rag", "nesterov", 50.0)
    (alone,) = simulate([good], plan(300))
    beside, lost = simulate([good, bad], plan(300))
    assert_allclose(beside.values["alignment"], alone.values["alignment"], atol=1e-12)
    assert np.isnan(lost.values["alignment"][-1])


@pytest.mark.parametrize("name", ["rag", "gha", "brockett"])
def test_adam_is_refused_for_the_rules_with_the_reason(name):
    with pytest.raises(ValueError, match="Adam rescales every coordinate"):
        simulate([Run(name, "adam", 0.1)], plan(1))


# The learning curves of Bao et al. 2020, Figure 2: full size on MNIST, a quick one on digits.

SPACED = np.linspace(0.1, 0.9, 20) ** 2
RATES = {  # Table 2, Nesterov
    "uniform_l2": 1e-3,
    "nonuniform_l2": 3e-4,
    "rag": 3e-3,
    "expected_nested_dropout": 3e-2,
    "linear_vae": 1e-3,
}


def alignment(moment, name, rate, n_epochs, grid, k, penalties):
    """Train as the paper does (untied, Nesterov 0.9, start 1e-4) and return the curve."""
    settings = {"penalties": penalties, "init_scale": 1e-4, "record_at": grid}
    given = Plan(Spectrum(*moment.spectrum(), moment.trace), k, n_epochs, **settings)
    (trajectory,) = simulate([Run(name, "nesterov", rate, seed=0, tied=False)], given)
    return dict(zip(trajectory.epochs.tolist(), trajectory.values["alignment"], strict=True))


@pytest.fixture(scope="module")
def mnist():
    try:
        return SecondMoment.of(load_mnist().data)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_mnist_curves_are_those_of_the_paper(mnist):
    grid = (5000, 10_000, 20_000, 30_000)
    uniform = np.full(20, 0.25)
    curves = {
        name: alignment(
            mnist, name, rate, 30_000, grid, 20, uniform if name == "uniform_l2" else SPACED
        )
        for name, rate in RATES.items()
    }
    assert curves["rag"][5000] < 0.1
    assert curves["rag"][30_000] < 0.01
    assert all(0.65 < value < 0.8 for value in curves["uniform_l2"].values())
    assert curves["nonuniform_l2"][30_000] > 0.3
    assert curves["expected_nested_dropout"][5000] < 0.2


@pytest.mark.slow
def test_the_certificate_of_mnist_names_latents_19_and_20(mnist):
    values = mnist.spectrum(20)[0]
    assert_allclose(values[18:], [0.626, 0.608], atol=5e-4)
    fitted = LinearAutoencoder(20, method="nonuniform_l2", l2=SPACED).fit(load_mnist().data)
    assert "latents 19–20 are zero at the optimum" in fitted.certificate_["nonzero_latents"].advice
    assert_allclose(fitted.certificate_["subspace"].value, 0.1, atol=1e-6)


def test_digits_show_the_same_order_of_methods():
    """Scaled to the top eigenvalue of MNIST, k = 8: RAG aligns first, uniform ℓ₂ never."""
    rows = load_digits(return_X_y=True)[0]
    top = SecondMoment.of(rows).spectrum(1)[0][0]
    moment = SecondMoment.of(rows * np.sqrt(5.1168 / top))
    smallest = moment.spectrum(8)[0][-1]
    spaced = np.linspace(0.1, 0.9, 8) ** 2 * smallest
    curves = {
        name: alignment(
            moment,
            name,
            RATES[name],
            4000,
            (1000, 4000),
            8,
            np.full(8, smallest / 2) if name == "uniform_l2" else spaced,
        )
        for name in ("rag", "uniform_l2", "nonuniform_l2", "expected_nested_dropout")
    }
    assert curves["rag"][4000] < 0.02
    assert curves["expected_nested_dropout"][4000] < 0.1
    assert curves["uniform_l2"][4000] > 0.3
    assert curves["nonuniform_l2"][4000] > curves["expected_nested_dropout"][4000]
    assert curves["rag"][4000] < curves["rag"][1000]


def test_a_plan_of_rows_is_that_of_their_eigenpairs():
    run = [Run("rag", "nesterov", RATE, SEED)]
    settings = {"init_scale": START, "momentum": MOMENTUM}
    (known,) = simulate(run, plan(50))
    (found,) = simulate(run, Plan.of(X + 3.0, K, 50, **settings))
    for name in ("alignment", "subspace", "loss"):
        assert_allclose(found.values[name], known.values[name], rtol=1e-9, atol=1e-12)
    (masked,) = simulate([Run("nested_dropout", "adam", RATE)], Plan.of(X, K, 20, batch_size=10))
    assert np.isfinite(masked.values["loss"]).all()
    assert np.array_equal(found.plot().lines_[0].get_ydata(), found.values["alignment"])


@pytest.mark.parametrize("solver", ["gradient", "stochastic"])
def test_the_history_of_a_fit_has_the_distances_of_the_paper(solver):
    """The curves of Bao et al. 2020, Figure 2, against principal axes by another route."""
    rows = X + 3.0
    model = LinearAutoencoder(K, solver=solver, tol=0.0, max_iter=200, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(rows)
    axes = np.linalg.svd(X)[2][:K].T
    for name, metric in (("alignment", axis_alignment_distance), ("subspace", subspace_distance)):
        curve = model.history_[name]
        assert_allclose(curve[-1], metric(model.decoder_, axes), atol=1e-9)
        assert curve[-1] < 1e-3 < curve[0]
