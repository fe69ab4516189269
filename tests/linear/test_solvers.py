"""Training: it ends at the closed form, from every start, or says how far it is from it."""

import inspect
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from linear.brute_force import ALIGNED
from linear.problems import centred_rows, covariance_from, spectrum_from
from lucidae import LinearAutoencoder
from lucidae.linear import METHODS, MethodSettings, best_penalties, geometric_prior, make_method
from lucidae.linear.methods import Options
from lucidae.linear.solvers import ReducedVariance, known_excess, random_start
from lucidae.linear.weights import OPTIMIZERS
from lucidae.metrics import axis_alignment_distance, subspace_distance
from lucidae.rows.operator import RowOperator

RULES = ("rag", "gha", "brockett")
FULL_BATCH = [name for name in METHODS if name != "nested_dropout"]
X = np.random.default_rng(0).standard_normal((60, 8)) @ (
    np.random.default_rng(1).standard_normal((8, 8))
)
X = X + 5


def trained(k, method, solver="gradient", rows=X, **settings):
    return LinearAutoencoder(k, method=method, solver=solver, random_state=0, **settings).fit(rows)


# The end.


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        (method, optimizer)
        for method in FULL_BATCH
        for optimizer in ("nesterov", "heavy_ball", "gradient_descent", "adam")
        if not (optimizer == "adam" and method in RULES)
        and not (optimizer == "gradient_descent" and method == "linear_vae")  # 1e5 steps
        and method in ALIGNED
    ],
)
def test_descent_ends_at_the_closed_form(method, optimizer):
    exact = LinearAutoencoder(3, method=method).fit(X)
    found = trained(3, method, optimizer=optimizer, max_iter=30_000)
    assert found.status_ == "converged"
    assert_allclose(found.components_, exact.components_, atol=2e-3)
    assert found.n_iter_ > 1
    assert found.history_["loss"][-1] < found.history_["loss"][0]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "linear_vae"])
def test_mini_batches_end_at_the_closed_form(method):
    exact = LinearAutoencoder(2, method=method).fit(X)
    found = trained(2, method, "stochastic", batch_size=16)
    assert found.status_ == "converged"
    assert found.certificate_.holds is not False
    assert subspace_distance(found.decoder_, PCA(2).fit(X).components_.T) < 1e-4
    if exact.certificate_["alignment"].holds:
        assert axis_alignment_distance(found.decoder_, exact.components_.T) < 1e-3


@pytest.mark.covering
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("method", [name for name in FULL_BATCH if name != "linear_vae"])
def test_descent_converges_at_every_condition_number(method, condition):
    rows = centred_rows(3.0 * np.geomspace(1, 1 / condition, 12))
    found = trained(4, method, rows=rows, max_iter=20_000)
    assert found.status_ == "converged"
    assert found.certificate_["gap"].value < 1e-6
    if condition > 1:
        assert found.certificate_["subspace"].value < 1e-5


@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_the_elbo_descends_as_far_as_its_own_stiffness_allows(condition):
    """Its curvatures range from σ₁⁴/s² down to 1: beyond 1e3 it descends, but slowly."""
    values = np.geomspace(1, 1 / condition, 12)
    rows = centred_rows(values / values.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = trained(4, "linear_vae", rows=rows, max_iter=3000)
    excess = (found.history_["loss"] - found.certificate_.evidence["minimum"]) / 12
    assert excess[-1] < (0.01 if condition <= 1e3 else 0.9 * excess[0])


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("optimizer", ["gradient_descent", "heavy_ball", "nesterov"])
@pytest.mark.parametrize("method", [name for name in FULL_BATCH if name != "linear_vae"])
def test_no_start_makes_descent_diverge(method, optimizer):
    for k, m in ((1, 20), (4, 12), (6, 6)):
        for condition in (1.0, 1e6):
            rows = centred_rows(np.geomspace(1, 1 / condition, m))
            for start in (1e-2, 0.3, 3.0):
                given = {"optimizer": optimizer, "init_scale": start, "max_iter": 80}
                assert trained(k, method, rows=rows, **given).status_ != "diverged"


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("batch_size", [1, 4, 32])
@pytest.mark.parametrize("method", METHODS)
def test_small_batches_of_many_features_do_not_diverge(method, batch_size):
    rows = np.random.default_rng(0).standard_normal((300, 100)) * np.linspace(2, 0.5, 100)
    found = trained(3, method, "stochastic", rows, batch_size=batch_size, max_iter=400)
    assert found.status_ != "diverged"


def test_many_features_do_not_make_the_default_start_too_large():
    """√m · init_scale exceeds 1 here: the step leaves room for it."""
    rows = np.random.default_rng(0).standard_normal((40, 30_000))
    settings = {"batch_size": 40, "max_iter": 300, "tol": 1e-2}
    with pytest.warns(ConvergenceWarning, match="lower tol"):
        fitted = trained(2, "plain", "stochastic", rows, **settings)
    assert fitted.status_ == "converged"


def test_a_divergence_is_followed_by_a_smaller_automatic_step(monkeypatch):
    rows = np.random.default_rng(0).standard_normal((300, 6)) * np.arange(6, 0, -1)
    bound = inspect.getmodule(random_start).stiffness

    def too_small(*arguments):
        found = bound(*arguments)
        return found._replace(curvature=found.curvature / 30)

    monkeypatch.setattr("lucidae.linear.solvers.stiffness", too_small)
    for solver in ("gradient", "stochastic"):
        assert trained(2, "rag", solver, rows, batch_size=100).status_ == "converged"


MORE = [
    *(("iris", "stochastic", method) for method in METHODS if method != "linear_vae"),
    *(("digits", "stochastic", method) for method in ("rag", "nested_dropout")),
    *(("raw digits", "gradient", method) for method in ("nested_dropout", "linear_vae")),
]
ORDINARY = [
    *(("wine", solver, method) for solver in ("gradient", "stochastic") for method in METHODS),
    ("iris", "stochastic", "linear_vae"),
    ("digits", "stochastic", "uniform_l2"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE),
]


@pytest.mark.parametrize(("data", "solver", "method"), ORDINARY)
def test_the_defaults_converge_on_ordinary_data(data, solver, method):
    rows, k = {
        "wine": (scale(load_wine().data), 4),
        "iris": (load_iris().data, 2),
        "digits": (scale(load_digits().data), 3),
        "raw digits": (load_digits().data, 5),
    }[data]
    found = trained(k, method, solver, rows)
    assert found.status_ == "converged"
    assert found.certificate_.holds is not False


# Words.


@pytest.mark.parametrize(
    ("load", "solver", "method"),
    [
        *((load_wine, "stochastic", method) for method in METHODS),
        *((load_breast_cancer, "gradient", m) for m in ("rag", "nonuniform_l2", "linear_vae")),
    ],
)
def test_a_warning_says_how_far_the_loss_is_from_its_minimum(load, solver, method):
    # Eigenvalues of these columns, which are not scaled, differ by factors of 1e4 and more.
    model = LinearAutoencoder(4, method=method, solver=solver, max_iter=400, random_state=0)
    with pytest.warns(ConvergenceWarning, match="exceeds its minimum by at least") as caught:
        model.fit(load().data)
    message = str(caught[0].message)
    stated = float(re.search(r"at least (\S+) (?:of the total variance|per feature)", message)[1])
    assert_allclose(stated, model.certificate_["gap"].value, rtol=0.06)
    assert "solver='exact'" in message
    assert "learning_rate" not in message  # it is automatic already
    reached = model.history_["distance"][-1]
    assert f"distance to optimality {reached:.3g}, above the tolerance 1e-06" in message
    assert model.status_ == "iteration limit"


def test_convergence_to_weights_with_another_loss_than_the_minimum_is_said():
    model = LinearAutoencoder(4, method="plain", solver="stochastic", random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"Converged .* raise max_iter\. The loss exceeds"):
        model.fit(load_wine().data)
    assert model.status_ == "converged"
    assert not model.certificate_.holds
    assert clone(model).set_params(solver="exact").fit(load_wine().data).certificate_.holds


def test_a_given_learning_rate_is_what_the_advice_speaks_of():
    with pytest.warns(ConvergenceWarning, match="Use learning_rate='auto', or a smaller number"):
        trained(2, "rag", learning_rate=1e-9, max_iter=5)


def test_divergence_is_told_and_the_last_finite_state_kept():
    with pytest.warns(ConvergenceWarning, match="Diverged"):
        found = trained(2, "rag", learning_rate=100.0)
    assert found.status_ == "diverged"
    assert np.all(np.isfinite(found.components_))
    assert found.certificate_.holds is False


# Formulas of steps.


def method_for(name, values, k):
    penalties = np.full(k, values[k - 1] / 2)
    if name == "nonuniform_l2":
        penalties = best_penalties(values, k)
    return make_method(name, MethodSettings(penalties, geometric_prior(k), None))


@pytest.mark.parametrize("name", FULL_BATCH)
def test_the_curvature_bounds_the_hessian_at_the_optimum(name):
    values = np.geomspace(2, 0.1, 6)
    spectrum = spectrum_from(values)
    covariance, method = covariance_from(spectrum), method_for(name, values, 3)
    best = method.objective.minimizer(spectrum, 3)
    weights = best if name == "linear_vae" else method.start(best.encoder, best.atoms)
    shapes = [field.shape for field in weights]

    def direction(vector):
        parts = np.split(vector, np.cumsum([np.prod(s, dtype=int) for s in shapes])[:-1])
        moved = type(weights)(
            *(w + p.reshape(s) for w, p, s in zip(weights, parts, shapes, strict=True))
        )
        return np.concatenate([np.ravel(d) for d in method.rule.direction(moved, covariance)])

    step, size = 1e-5, sum(field.size for field in weights)
    jacobian = np.stack(
        [(direction(step * e) - direction(-step * e)) / (2 * step) for e in np.eye(size)], axis=1
    )
    steepest = np.max(np.abs(np.linalg.eigvals(jacobian)))
    assert steepest <= 1.001 * method.rule.curvature(spectrum)


@pytest.mark.parametrize("name", METHODS)
def test_corrected_directions_have_the_mean_of_all_rows_and_no_noise_at_the_anchor(name):
    given = np.random.default_rng(0).standard_normal((24, 5)) * np.arange(5, 0, -1)
    rows, rng = RowOperator.of(given), np.random.default_rng(1)
    method = make_method(name, MethodSettings(np.array([0.1, 0.2]), geometric_prior(2), rng))
    anchor, here = (random_start(method, 2, 5, 0.5, rng, rows.mean) for _ in range(2))
    direction = ReducedVariance(method)
    full = direction.move_anchor(anchor, rows)
    batches = np.split(np.arange(24), 4)
    for batch in batches:
        assert_allclose(direction(anchor, rows.batch(batch)).encoder, full.encoder, atol=1e-12)
    # A rule that samples has random masks as well: only the mean over many of them is known.
    repeats, tolerance = (400, 0.1) if method.rule.needs_rows else (1, 1e-10)
    corrected = [
        direction(here, rows.batch(batch)).encoder for batch in batches for _ in range(repeats)
    ]
    expected = method.expected().direction(here, rows).encoder
    assert_allclose(np.mean(corrected, axis=0), expected, atol=tolerance * np.abs(expected).max())


def test_the_known_excess_is_at_most_the_excess():
    rng, k, m = np.random.default_rng(4), 4, 12
    for name in METHODS:
        values = np.sort(rng.gamma(1.0, 1.0, m))[::-1]
        spectrum, method = spectrum_from(values, 0), method_for(name, values, k)
        covariance, objective = covariance_from(spectrum), method.objective
        for size in (1e-3, 0.3, 2.0):
            weights = random_start(method, k, m, size, rng, values)
            found = known_excess(method, weights, covariance)
            excess = float(objective.value(weights, covariance)) - objective.minimum(spectrum, k)
            assert 0.0 <= found <= excess / objective.size(spectrum) * (1 + 1e-9)
            assert found > 0.9 * excess / objective.size(spectrum)
        assert known_excess(method, objective.minimizer(spectrum, k), covariance) < 1e-12


class _Line(tuple):
    """A weight on the line f(w) = w²/2, whose gradient is itself."""

    def __new__(cls, *fields):
        return super().__new__(cls, fields)


@pytest.mark.covering
@pytest.mark.parametrize("optimizer", ["gradient_descent", "nesterov"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_the_automatic_step_is_half_of_the_largest_stable_one(optimizer, momentum):
    limit = 2 * Options(optimizer=optimizer, momentum=momentum).rate(1.0)
    for factor, stable in ((0.99, True), (1.01, False)):
        rule = OPTIMIZERS[optimizer](factor * limit, momentum)
        state = rule.start(_Line(np.array([1.0])))
        for _ in range(4000):
            state = rule.update(state, state.weights)
            if abs(state.weights[0][0]) > 1e6:
                break
        assert (abs(state.weights[0][0]) < 1e3) == stable


def test_a_given_step_is_taken_as_it_is():
    assert Options(learning_rate=0.3).rate(1e9) == 0.3
    assert Options(method="plain", optimizer="adam").rate(1e9) == Options(
        method="plain", optimizer="adam"
    ).rate(1.0)


def test_arguments_are_checked_with_the_defaults_of_the_estimator():
    checked, given = (inspect.signature(f) for f in (Options, LinearAutoencoder))
    assert {n: p.default for n, p in checked.parameters.items()} == {
        n: p.default for n, p in given.parameters.items()
    }
