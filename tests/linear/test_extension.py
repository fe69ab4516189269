"""Methods registered from outside fit, certify, save and load like those of the package."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose, assert_array_equal

from linear import toy_methods
from linear.problems import centred_rows, covariance_from, free, size, spectrum_from, tied
from linear.toy_methods import NOISE, Denoising, SubspaceRule
from lucidae import LinearAutoencoder, SecondMoment, certify, load, save
from lucidae.linear import METHODS, Plan, Run, UntiedWeights, register_method, simulate
from lucidae.metrics import subspace_distance
from lucidae_papers.commands import catalogue

VALUES = np.array([4.0, 2.5, 1.5, 0.4, 0.2, 0.1])
K, M = 3, len(VALUES)
SHRINKAGE = VALUES[:K] / (VALUES[:K] + NOISE)


@pytest.fixture(autouse=True)
def _registered():
    before = set(METHODS)
    toy_methods.register()
    yield
    toy_methods.unregister()
    assert set(METHODS) == before


@pytest.fixture(scope="module")
def X():
    return 2 + centred_rows(VALUES, n=200)


# The objective: what CONTRIBUTING asks to be tested.


@pytest.mark.parametrize("draw", [free, tied])
def test_the_gradient_is_that_of_the_value(draw):
    rng = np.random.default_rng(0)
    covariance = covariance_from(spectrum_from(VALUES))
    weights, step = draw(rng, (K, M)), draw(rng, (K, M))
    objective = Denoising(NOISE)

    def value(t):
        return objective.value(
            type(weights)(*(w + t * s for w, s in zip(weights, step, strict=True))), covariance
        )

    slope = (value(1e-5) - value(-1e-5)) / 2e-5
    gradient = objective.gradient(weights, covariance)
    factor = 2 if draw is tied else 1  # a tied gradient is the mean over both layers
    found = factor * sum(np.sum(g * s) for g, s in zip(gradient, step, strict=True))
    assert_allclose(found, slope, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_minimum_is_that_of_a_search_and_of_the_minimizer(seed):
    spectrum = spectrum_from(VALUES, seed)
    covariance, objective = covariance_from(spectrum), Denoising(NOISE)
    minimum = objective.minimum(spectrum, K)
    assert_allclose(objective.value(objective.minimizer(spectrum, K), covariance), minimum)

    def of(vector):
        weights = UntiedWeights(*vector.reshape(2, K, M))
        return objective.value(weights, covariance), np.ravel(
            objective.gradient(weights, covariance)
        )

    start = np.random.default_rng(seed).standard_normal(2 * K * M)
    search = scipy.optimize.minimize(of, start, jac=True, method="L-BFGS-B")
    assert_allclose(search.fun, minimum, rtol=1e-6)


def test_the_rule_rests_at_every_basis_of_the_principal_subspace():
    spectrum = spectrum_from(VALUES)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((K, K)))[0]
    weights = toy_methods.TiedWeights(turn @ spectrum.vectors[:, :K].T)
    assert size(SubspaceRule().direction(weights, covariance_from(spectrum))) < 1e-12


# The solvers.


@pytest.mark.parametrize(
    ("method", "solver"),
    [
        (method, solver)
        for method in toy_methods.NAMES
        for solver in ("auto", "exact", "gradient", "stochastic")
        if (method, solver) != ("unsolved", "exact")
    ],
)
def test_every_solver_finds_the_optimum_and_certifies_it(X, method, solver):
    fitted = LinearAutoencoder(
        K, method=method, solver=solver, random_state=0, batch_size=len(X), tol=1e-6
    ).fit(X)
    product = fitted.decoder_ @ fitted.encoder_
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :K]
    shrinkage = SHRINKAGE if method == "denoising" else np.ones(K)
    assert_allclose(product, (axes * shrinkage) @ axes.T, atol=1e-3)
    for certificate in (
        fitted.certificate_,
        certify(fitted, X),
        certify((fitted.encoder_, fitted.decoder_), X, family="linear", method=method),
    ):
        assert certificate.holds is (None if method == "unsolved" else True), certificate.summary()
        assert certificate["subspace"].holds
        assert certificate["alignment"].holds is None
        assert certificate["gap"].undecided is (method == "unsolved")
        assert certificate["stationarity"].holds
        assert method in certificate.title
        for claim in ("gap", "stationarity", "order", "balance", "eigengap", "conditioning"):
            itself = "itself, not verified independently" in certificate[claim].reference
            assert itself is (claim != "gap" or method != "subspace"), certificate[claim]


@pytest.mark.parametrize("method", toy_methods.NAMES)
def test_batches_equal_the_fit(X, method):
    estimator = LinearAutoencoder(K, method=method, random_state=0)
    streamed = LinearAutoencoder(K, method=method, random_state=0)
    for start in range(0, len(X), 30):
        streamed.partial_fit(X[start : start + 30])
    assert_allclose(streamed.decoder_, estimator.fit(X).decoder_, atol=1e-8)


@pytest.mark.parametrize("method", toy_methods.NAMES)
def test_a_stream_learns(X, method):
    stream = LinearAutoencoder(K, method=method, solver="stochastic", random_state=0)
    for _ in range(200):
        stream.partial_fit(X)
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :K]
    assert subspace_distance(stream.decoder_, axes) < 1e-2


@pytest.mark.parametrize("method", ["denoising", "subspace"])
def test_an_exact_fit_is_the_start_of_descent(X, method):
    warm = LinearAutoencoder(K, method=method, warm_start=True, random_state=0).fit(X)
    assert warm.set_params(solver="gradient").fit(X).n_iter_ == 1


def test_a_simulation_runs_them():
    plan = Plan(spectrum_from(VALUES), K, 2000, init_scale=1e-2)
    for trajectory in simulate([Run(name, "nesterov", 0.01) for name in toy_methods.NAMES], plan):
        assert trajectory.values["subspace"][-1] < 1e-3


# Files, lists and refusals.


FRESH = """
import sys
import numpy as np, lucidae
def load(path):
    model = lucidae.load(path)
    assert model.certificate_.holds
    model.partial_fit(np.eye(6))
    return model.decoder_.shape
for path in sys.argv[1:]:
    try:
        load(path)
    except ValueError as error:
        print(error)
from linear import toy_methods
toy_methods.register()
print(*map(load, sys.argv[1:]))
"""


def test_a_fresh_process_loads_the_files_when_it_has_imported_the_methods(X, tmp_path):
    paths = [tmp_path / f"{method}.npz" for method in ("denoising", "subspace")]
    for path in paths:
        fitted = LinearAutoencoder(K, method=path.stem).fit(X)
        save(fitted, path)
        assert_array_equal(load(path).decoder_, fitted.decoder_)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    }
    command = [sys.executable, "-c", FRESH, *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    *refused, loaded = done.stdout.splitlines()
    assert len(refused) == 2
    assert all("was given, expected one of" in line for line in refused)
    assert loaded == "(6, 3) (6, 3)"


def test_they_are_listed_with_the_first_line_of_their_documentation():
    listed = {entry.name: entry.summary for entry in catalogue() if entry.kind == "method"}
    assert "noise ε of variance ν" in listed["denoising"]
    assert "Oja 1989" in listed["subspace"]


def test_what_does_not_fit_is_refused_with_a_sentence(X):
    with pytest.raises(ValueError, match="no closed form of the minimum is known"):
        LinearAutoencoder(K, method="unsolved", solver="exact").fit(X)
    with pytest.raises(ValueError, match="one set of weights"):
        LinearAutoencoder(K, method="subspace", tied=False).fit(X)
    with pytest.raises(ValueError, match=r"lucidae\.linear\.register_method"):
        LinearAutoencoder(K, method="denosing").fit(X)
    with pytest.raises(ValueError, match=r"lucidae\.linear\.register_method"):
        certify((np.eye(1, M), np.eye(M, 1)), SecondMoment.of(X), family="linear", method="none")
    with pytest.raises(ValueError, match="registered already"):
        register_method("rag", rule=lambda _: SubspaceRule())
    with pytest.raises(ValueError, match="neither was given"):
        register_method("empty")
    with pytest.raises(ValueError, match="not empty"):
        register_method("", rule=lambda _: SubspaceRule())
