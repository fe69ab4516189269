"""Descent by recorded steps: the same iterates, stopping step and certificate as step by step."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from lucidae import DropoutAutoencoder, LinearAutoencoder
from lucidae.arrays import Steps, graphs, is_numpy
from lucidae.iteration import Below, Status, iterate
from lucidae.linear import solvers
from lucidae.linear.methods import METHODS, MethodSettings, make_method
from lucidae.linear.model import build_model
from lucidae.linear.objectives import LinearVAE
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.prefixes import geometric_prior
from lucidae.linear.solvers import random_start, solve_gradient
from lucidae.rows.covariances import DenseCovariance
from tape import Tape

RECORDABLE = ("rag", "gha", "plain", "uniform_l2", "nonuniform_l2", "linear_vae")


@pytest.fixture
def tape(monkeypatch):
    tape = Tape()
    monkeypatch.setattr(graphs, "recorder", lambda _: tape.record)
    monkeypatch.setattr(solvers, "CHECK_RECORDED", solvers.CHECK_EVERY)
    return tape


def problem(name, dtype=np.float64, k=3, m=9):
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((50, m)) * np.linspace(2.0, 0.4, m)
    settings = MethodSettings(np.array([0.1, 0.2, 0.3]), geometric_prior(k), rng)
    method = make_method(name, settings)
    covariance = DenseCovariance((rows.T @ rows / 50).astype(dtype))
    return method, covariance, random_start(method, k, m, 0.1, rng, np.empty(0, dtype))


def one_by_one(method, covariance, start, training):
    """Descent as the definition reads: one step after the other, a distance at every check."""
    stiff = solvers.stiffness(method, covariance, start, preconditioned=training.preconditions)
    optimizer, rule = training.build(stiff.curvature), method.rule
    state, n_iter = optimizer.start(start), 0
    while True:
        records = solvers.log_grid(training.max_iter, stride=solvers.CHECK_EVERY)
        if n_iter % solvers.CHECK_EVERY == 0 or n_iter in records or n_iter == training.max_iter:
            distance = solvers.relative_direction(rule, state.weights, covariance, stiff.scale)
            if distance <= training.tol or n_iter == training.max_iter:
                return state.weights, n_iter, float(distance)
        toward = rule.preconditioned_direction if training.preconditions else rule.direction
        moved = optimizer.update(state, toward(state.weights, covariance))
        state, n_iter = moved._replace(weights=rule.retract(moved.weights)), n_iter + 1


CASES = [
    (name, optimizer)
    for name in RECORDABLE
    for optimizer in ("nesterov", "heavy_ball", "gradient_descent", "adam")
    if optimizer != "adam" or name not in ("rag", "gha")  # which refuse it
]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
@pytest.mark.parametrize("max_iter", [600, 137])
def test_recorded_steps_stop_where_single_steps_do(tape, name, optimizer, max_iter):
    training = DescentSettings(optimizer=optimizer, max_iter=max_iter, tol=1e-6)
    method, covariance, start = problem(name)
    solution = solve_gradient(method, covariance, start, training)
    assert tape.recordings <= 4, "strides and single steps, with and without the distance"
    assert solution.n_iter < 500 or tape.replays < solution.n_iter
    weights, n_iter, distance = one_by_one(method, covariance, start, training)
    assert (solution.n_iter, solution.distance) == (n_iter, distance)
    for found, expected in zip(solution.value, weights, strict=True):
        assert_array_equal(found, expected)


@pytest.mark.parametrize("name", [*RECORDABLE, "expected_nested_dropout", "brockett"])
def test_an_estimator_fitted_by_recorded_steps_is_the_same(name, monkeypatch):
    X = np.random.default_rng(2).standard_normal((60, 8)) * np.linspace(3, 0.5, 8)
    arguments = {"method": name, "solver": "gradient", "random_state": 0, "tol": 1e-4}
    eager = LinearAutoencoder(3, **arguments).fit(X)
    tape = Tape()
    monkeypatch.setattr(graphs, "recorder", lambda _: tape.record)
    monkeypatch.setattr(solvers, "CHECK_RECORDED", solvers.CHECK_EVERY)
    replayed = LinearAutoencoder(3, **arguments).fit(X)
    assert bool(tape.recordings) == (name != "brockett"), "which calls a QR factorisation"
    assert_array_equal(replayed.encoder_, eager.encoder_)
    assert replayed.n_iter_ == eager.n_iter_
    assert replayed.status_ is eager.status_
    assert_array_equal(replayed.history_["loss"], eager.history_["loss"])
    assert replayed.certificate_.to_dict() == eager.certificate_.to_dict()


def test_a_divergence_returns_the_state_before_it_although_steps_overwrite(tape):
    method, covariance, start = problem("plain")
    training = DescentSettings(learning_rate=30.0, max_iter=500)
    solution = solve_gradient(method, covariance, start, training)
    assert solution.status is Status.DIVERGED
    assert all(np.isfinite(part).all() for part in solution.value)


def test_a_library_that_cannot_be_recorded_is_called_without_graphs(monkeypatch):
    def failing(rehearsal, work):
        raise RuntimeError("operation not permitted when stream is capturing")

    method, covariance, start = problem("rag")
    expected = solve_gradient(method, covariance, start, DescentSettings())
    monkeypatch.setattr(graphs, "recorder", lambda _: failing)
    monkeypatch.setattr(solvers, "CHECK_RECORDED", solvers.CHECK_EVERY)
    found = solve_gradient(method, covariance, start, DescentSettings())
    assert found.n_iter == expected.n_iter
    assert_array_equal(found.value.encoder, expected.value.encoder)


def test_errors_of_a_step_itself_are_raised():
    def broken(state):
        raise RuntimeError("wrong")

    steps = Steps(broken, lambda state: state[0], (np.zeros(()),), stride=5)
    with pytest.raises(RuntimeError, match="wrong"):
        iterate(steps, steps.start((np.ones(()),)), stop=Below(lambda s: s.distance, 0.0), limit=3)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "nested_dropout"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_torch_takes_the_steps_of_numpy(name, dtype):
    """Fused kernels of torch compute the same step, and keep the dtype."""
    method, covariance, start = problem(name, dtype)
    moved = type(start)(*(torch.asarray(part) for part in start))
    matrix = DenseCovariance(torch.asarray(covariance.matrix))
    for optimizer in ("nesterov", "heavy_ball", "gradient_descent"):
        training = DescentSettings(optimizer=optimizer, max_iter=30, tol=0.0)
        ours = solve_gradient(method, covariance, start, training).value
        other = solve_gradient(method, matrix, moved, training).value
        for mine, theirs in zip(ours, other, strict=True):
            assert theirs.dtype == (torch.float32 if dtype == np.float32 else torch.float64)
            assert_allclose(
                theirs, mine, rtol=1e3 * np.finfo(dtype).eps, atol=1e3 * np.finfo(dtype).eps
            )


@pytest.mark.parametrize("name", ["rag", "nonuniform_l2", "linear_vae", "gha"])
@pytest.mark.parametrize("solver", ["auto", "gradient"])
def test_what_is_too_small_for_a_device_is_solved_beside_it(name, solver, monkeypatch):
    """Tensors stand for arrays on a device: the fit is NumPy's, its results are tensors."""
    X = np.random.default_rng(5).standard_normal((60, 8)) * np.linspace(3, 0.5, 8)
    arguments = {"method": name, "solver": solver, "random_state": 0, "tol": 1e-3}
    expected = LinearAutoencoder(3, **arguments).fit(X)
    monkeypatch.setattr(solvers, "on_host", is_numpy)
    solved = []
    monkeypatch.setattr(
        solvers, "build_model", lambda *given: solved.append(build_model(*given)) or solved[-1]
    )
    fitted = LinearAutoencoder(3, **arguments).fit(torch.asarray(X))
    assert is_numpy(solved[0].encoder)
    state = fitted._state
    arrays = (
        state.model.components,
        *state.model.outcome.weights,
        fitted.transform(torch.asarray(X)),
    )
    assert all(isinstance(values, torch.Tensor) for values in arrays)
    assert_allclose(fitted.components_, expected.components_, atol=1e-9)
    assert fitted.n_iter_ == expected.n_iter_
    assert fitted.certificate_.holds == expected.certificate_.holds
    solved.clear()
    with monkeypatch.context() as recording:
        recording.setattr(graphs, "recorder", lambda _: Tape().record)
        LinearAutoencoder(3, **arguments).fit(torch.asarray(X))
    on_device = solver == "gradient"  # recorded steps are fast at every size
    assert isinstance(solved[0].encoder, torch.Tensor) == on_device
    solved.clear()
    monkeypatch.setattr(solvers, "HOST_FEATURES", 7)
    monkeypatch.setattr(solvers, "HOST_PRODUCTS", 8 * 8 * 3 - 1)
    LinearAutoencoder(3, **arguments).fit(torch.asarray(X))
    assert isinstance(solved[0].encoder, torch.Tensor)


def test_a_sparse_matrix_of_cupy_is_refused_in_one_sentence(monkeypatch):
    class Sparse:
        shape, dtype = (5, 3), np.dtype(float)

        def __getitem__(self, index):
            raise AssertionError("not read")

    module = SimpleNamespace(issparse=lambda values: isinstance(values, Sparse))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", module)
    for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2)):
        with pytest.raises(ValueError, match=r"sparse CuPy matrix, .* give X.toarray\(\)"):
            estimator.fit(Sparse())


@pytest.mark.parametrize("noise", [None, 0.3])
@pytest.mark.parametrize("stack", [(), (2,)])
def test_the_newton_step_of_the_elbo_is_the_preconditioned_gradient(noise, stack):
    _, covariance, _ = problem("linear_vae")
    rng, objective = np.random.default_rng(1), LinearVAE(noise)
    start = objective.start(*rng.standard_normal((2, *stack, 3, 9)), False)
    weights = type(start)(*(part + 0.3 * rng.standard_normal(part.shape) for part in start))
    gradient = objective.gradient(weights, covariance)
    expected = objective.preconditioned(gradient, weights, covariance)
    found = objective.preconditioned_direction(weights, covariance)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert_allclose(mine, theirs, atol=1e-11)
