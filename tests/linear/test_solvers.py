"""`learning_rate="auto"` is stable on every spectrum and from every start, and converges."""

import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from linear.problems import covariance_from, spectrum_from
from lucidae import LinearAutoencoder
from lucidae.iteration import Status
from lucidae.linear import solvers
from lucidae.linear.methods import METHODS, MethodSettings, make_method
from lucidae.linear.objectives import LinearVAE
from lucidae.linear.optimizers import DescentSettings
from lucidae.linear.penalties import best_penalties
from lucidae.linear.prefixes import geometric_prior
from lucidae.linear.solvers import ReducedVariance, random_start, solve_gradient, stiffness
from lucidae.metrics import subspace_distance
from lucidae.rows.sources import RowsSource

M, K = 12, 4
RULES = ("rag", "gha", "brockett")
FULL_BATCH = [name for name in METHODS if name != "nested_dropout"]
CONDITIONS = (1.0, 1e2, 1e3, 1e4, 1e6)


def method_for(name, values, k):
    penalties = np.full(k, values[k - 1] / 2)
    if name == "nonuniform_l2":
        penalties = best_penalties(values, k)
    return make_method(name, MethodSettings(penalties, geometric_prior(k), None))


def trained(name, values, k=K, start=1e-2, optimizer="nesterov", limit=20_000, seed=0):
    spectrum = spectrum_from(values, seed)
    method = method_for(name, values, k)
    first = random_start(method, k, len(values), start, np.random.default_rng(seed), values)
    training = DescentSettings(optimizer, max_iter=limit)
    return spectrum, method, solve_gradient(method, covariance_from(spectrum), first, training)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", [name for name in FULL_BATCH if name != "linear_vae"])
def test_descent_converges_at_every_condition_number(name, condition):
    spectrum, method, solution = trained(name, 3.0 * np.geomspace(1, 1 / condition, M))
    assert solution.status is Status.CONVERGED
    gap = method.objective.value(solution.value, covariance_from(spectrum)) - (
        method.objective.minimum(spectrum, K)
    )
    assert gap < 1e-6 * spectrum.trace
    if condition > 1:
        assert subspace_distance(solution.value.atoms.T, spectrum.vectors[:, :K]) < 1e-5


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_elbo_descends_as_far_as_its_own_stiffness_allows(condition):
    """Its curvatures range from σ₁⁴/s² down to 1: beyond 1e3 it descends, but slowly."""
    values = np.geomspace(1, 1 / condition, M)
    spectrum, method, solution = trained("linear_vae", values / values.mean(), limit=3000)
    assert solution.status in (Status.CONVERGED, Status.ITERATION_LIMIT)
    excess = (solution.history["loss"] - method.objective.minimum(spectrum, K)) / M
    assert excess[-1] < (0.01 if condition <= 1e3 else 0.9 * excess[0])


@pytest.mark.parametrize("optimizer", ["gradient_descent", "heavy_ball", "nesterov"])
@pytest.mark.parametrize("name", [name for name in FULL_BATCH if name != "linear_vae"])
def test_no_start_makes_descent_diverge(name, optimizer):
    for k, m in ((1, 20), (4, 12), (6, 6)):
        for start in (1e-2, 0.3, 3.0):
            for condition in (1.0, 1e6):
                values = np.geomspace(1, 1 / condition, m)
                _, _, solution = trained(name, values, k, start, optimizer, limit=80, seed=k)
                assert solution.status is not Status.DIVERGED, (k, m, start, condition)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_automatic_step_follows_the_units_of_the_data(scale):
    values = np.geomspace(1, 0.01, M)
    _, _, expected = trained("rag", values)
    _, _, solution = trained("rag", values * scale)
    assert solution.n_iter == expected.n_iter
    assert_allclose(solution.value.encoder, expected.value.encoder, atol=1e-6)


@pytest.mark.parametrize("name", FULL_BATCH)
def test_the_curvature_bounds_the_hessian_at_the_optimum(name):
    values = np.geomspace(2, 0.1, 6)
    spectrum = spectrum_from(values)
    covariance, method = covariance_from(spectrum), method_for(name, values, 3)
    best = method.objective.minimizer(spectrum, 3)
    weights = best if name == "linear_vae" else method.start(best.encoder, best.atoms)
    size = sum(field.size for field in weights)
    shapes = [field.shape for field in weights]

    def direction(vector):
        parts = np.split(vector, np.cumsum([np.prod(s, dtype=int) for s in shapes])[:-1])
        moved = type(weights)(
            *(w + p.reshape(s) for w, p, s in zip(weights, parts, shapes, strict=True))
        )
        return np.concatenate([np.ravel(d) for d in method.rule.direction(moved, covariance)])

    step = 1e-5
    jacobian = np.stack(
        [(direction(step * e) - direction(-step * e)) / (2 * step) for e in np.eye(size)], axis=1
    )
    steepest = np.max(np.abs(np.linalg.eigvals(jacobian)))
    assert steepest <= 1.001 * method.rule.curvature(spectrum)


def test_stiffness_of_no_variance_is_harmless():
    covariance = covariance_from(spectrum_from(np.zeros(4)))
    method = make_method("rag", MethodSettings(np.zeros(2), geometric_prior(2), None))
    start = random_start(method, 2, 4, 0.1, np.random.default_rng(0), np.zeros(4))
    assert stiffness(method, covariance, start).curvature == 1.0


def test_many_features_do_not_make_the_default_start_too_large():
    """√m · init_scale exceeds 1 here: the step leaves room for it."""
    X = np.random.default_rng(0).standard_normal((40, 30_000))
    fitted = LinearAutoencoder(
        2,
        solver="stochastic",
        method="plain",
        batch_size=40,
        max_iter=300,
        tol=1e-2,
        random_state=0,
    ).fit(X)
    assert fitted.status_ is Status.CONVERGED


def small_rows():
    X = np.random.default_rng(0).standard_normal((24, 5)) * np.arange(5, 0, -1)
    return RowsSource.of(X, None).covariance


@pytest.mark.parametrize("name", METHODS)
def test_the_mean_of_the_corrected_directions_is_the_direction_of_all_rows(name):
    rows = small_rows()
    rng = np.random.default_rng(1)
    method = make_method(name, MethodSettings(np.array([0.1, 0.2]), geometric_prior(2), rng))
    anchor, here = (random_start(method, 2, 5, 0.5, rng, rows.mean) for _ in range(2))
    direction = ReducedVariance(method, rows, whole=False)
    direction.move_anchor(anchor)
    batches = np.split(np.arange(24), 4)
    repeats = 400 if method.rule.needs_rows else 1
    corrected = [
        direction(here, rows.batch(batch)).encoder for batch in batches for _ in range(repeats)
    ]
    expected = method.expected().direction(here, rows).encoder
    # A rule that samples has random masks as well: only the mean over many of them is known.
    tolerance = 0.1 if method.rule.needs_rows else 1e-10
    assert_allclose(np.mean(corrected, axis=0), expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", METHODS)
def test_at_the_anchor_the_corrected_direction_has_no_noise(name):
    rows = small_rows()
    rng = np.random.default_rng(1)
    method = make_method(name, MethodSettings(np.array([0.1, 0.2]), geometric_prior(2), rng))
    anchor = random_start(method, 2, 5, 0.5, rng, rows.mean)
    direction = ReducedVariance(method, rows, whole=False)
    full = direction.move_anchor(anchor)
    for batch in np.split(np.arange(24), 4):
        assert_allclose(direction(anchor, rows.batch(batch)).encoder, full.encoder, atol=1e-12)


def test_each_block_of_the_elbo_is_divided_by_its_own_curvature():
    """From weights that are optimal but for one block, a full step in this block is the optimum."""
    values = np.geomspace(3, 0.2, 6)
    spectrum = spectrum_from(values)
    covariance = covariance_from(spectrum)
    objective = LinearVAE()
    best = objective.minimizer(spectrum, 3)
    rng = np.random.default_rng(0)
    sizes = {"encoder": 0.3, "atoms": 0.3, "log_variances": 1e-4, "log_noise": 1e-4}
    for name, size in sizes.items():
        block = getattr(best, name)
        moved = best._replace(**{name: block + size * rng.standard_normal(block.shape)})
        step = objective.preconditioned(objective.gradient(moved, covariance), moved, covariance)
        assert_allclose(getattr(moved, name) - getattr(step, name), block, atol=1e-7)


def test_the_preconditioned_direction_vanishes_where_the_gradient_does():
    spectrum = spectrum_from(np.geomspace(3, 0.2, 6))
    covariance, objective = covariance_from(spectrum), LinearVAE()
    best = objective.minimizer(spectrum, 3)
    step = objective.preconditioned(objective.gradient(best, covariance), best, covariance)
    assert max(np.abs(part).max() for part in step) < 1e-12


def test_a_divergence_is_followed_by_a_smaller_automatic_step(monkeypatch):
    X = np.random.default_rng(0).standard_normal((300, 6)) * np.arange(6, 0, -1)
    bound = solvers.stiffness

    def too_small(*arguments):
        found = bound(*arguments)
        return found._replace(curvature=found.curvature / 30)

    monkeypatch.setattr(solvers, "stiffness", too_small)
    for solver in ("gradient", "stochastic"):
        fitted = LinearAutoencoder(2, solver=solver, batch_size=100, random_state=0).fit(X)
        assert fitted.status_ is Status.CONVERGED


ORDINARY = {
    "iris": (load_iris, 2, False),
    "wine": (load_wine, 4, True),
}
"""Loader, number of latents, and whether the columns are scaled to unit variance."""


@pytest.mark.parametrize(
    ("data", "solver"),
    [("iris", "stochastic"), ("wine", "stochastic"), ("wine", "gradient")],
)
@pytest.mark.parametrize("name", METHODS)
def test_defaults_converge_on_ordinary_data(data, name, solver):
    load, k, scaled = ORDINARY[data]
    X = scale(load().data) if scaled else load().data
    model = LinearAutoencoder(k, method=name, solver=solver, random_state=0).fit(X)
    assert model.status_ is Status.CONVERGED
    assert model.certificate_.holds


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("load", "solver"), [(load_wine, "stochastic"), (load_breast_cancer, "gradient")]
)
def test_a_warning_says_how_far_the_loss_is_from_its_minimum(load, solver, name):
    # Eigenvalues of these columns, which are not scaled, differ by factors of 1e4 and more.
    model = LinearAutoencoder(4, method=name, solver=solver, max_iter=400, random_state=0)
    with pytest.warns(ConvergenceWarning, match="exceeds its minimum by at least") as caught:
        model.fit(load().data)
    message = str(caught[0].message)
    stated = float(re.search(r"at least (\S+) (?:of the total variance|per feature)", message)[1])
    assert_allclose(stated, model.certificate_["gap"].value, rtol=0.06)
    assert "solver='exact'" in message
    assert model.status_ is Status.ITERATION_LIMIT


def test_convergence_to_weights_with_another_loss_than_the_minimum_is_said():
    model = LinearAutoencoder(4, method="plain", solver="stochastic", random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"Converged .* raise max_iter\. The loss exceeds"):
        model.fit(load_wine().data)
    assert model.status_ is Status.CONVERGED
    assert not model.certificate_.holds
    assert clone(model).set_params(solver="exact").fit(load_wine().data).certificate_.holds


def test_the_known_excess_is_at_most_the_excess():
    rng = np.random.default_rng(4)
    for name in METHODS:
        values = np.sort(rng.gamma(1.0, 1.0, M))[::-1]
        spectrum, method = spectrum_from(values, 0), method_for(name, values, K)
        covariance, objective = covariance_from(spectrum), method.objective
        for size in (1e-3, 0.3, 2.0):
            weights = random_start(method, K, M, size, rng, values)
            found = solvers.known_excess(method, weights, covariance)
            excess = float(objective.value(weights, covariance)) - objective.minimum(spectrum, K)
            assert 0.0 <= found <= excess / objective.size(spectrum) * (1 + 1e-9)
            assert found > 0.9 * excess / objective.size(spectrum)
        optimum = objective.minimizer(spectrum, K)
        assert solvers.known_excess(method, optimum, covariance) < 1e-12
