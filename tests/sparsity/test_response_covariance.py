"""Responses whose coefficients are correlated over time: one model, one likelihood, one minimum."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

import lucidae
from lucidae import SparseVAE, certify
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.response_covariance import (
    ResponseSpectrum,
    correlation_step,
    evaluate_correlated,
    mackay_step,
    newton_step,
    solve_correlated,
)
from lucidae.sparsity.solvers import solve
from lucidae.sparsity.state import evaluate


def autoregressive(rho, n):
    return rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))


def series(seed, d=12, kappa=48, r=8, n=20, rho=0.99, snr=20):
    """Return a dictionary, responses from r columns with AR(1) coefficients, columns and noise."""
    rng = np.random.default_rng(seed)
    X, used = rng.standard_normal((d, kappa)), np.sort(rng.choice(kappa, r, replace=False))
    U = np.zeros((kappa, n))
    U[used] = rng.standard_normal((r, n)) @ np.linalg.cholesky(autoregressive(rho, n)).T
    y = X @ U
    noise = (y**2).mean() * 10 ** (-snr / 10)
    return X, y + noise**0.5 * rng.standard_normal(y.shape), used, noise


def small_problem(seed, rho=0.7):
    X, y, _, _ = series(seed, d=5, kappa=9, r=3, n=4, rho=0.9)
    problem, _ = normalise(X, y, compress=False)
    w = np.random.default_rng(seed).random(9) * (np.arange(9) != 2)
    return problem.with_noise(0.3), w, ResponseSpectrum.autoregressive(rho, 4)


def dense_energy(problem, w, covariance, noise):
    """Minus twice the log-likelihood of all responses together, by the definition."""
    Phi, Y = problem.dictionary, problem.responses
    n = Y.shape[1]
    sigma = np.kron(covariance, Phi * w @ Phi.T) + noise * np.eye(n * len(Phi))
    vector = Y.T.ravel() * n**0.5
    return (np.linalg.slogdet(sigma)[1] + vector @ np.linalg.solve(sigma, vector)) / n


@pytest.mark.parametrize("seed", range(3))
def test_energy_and_gradient_are_those_of_the_joint_covariance_of_all_responses(seed):
    problem, w, spectrum = small_problem(seed)
    assert_allclose(spectrum.covariance, autoregressive(0.7, 4), atol=1e-14)
    state = evaluate_correlated(problem, w, spectrum)
    covariance = autoregressive(0.7, 4)
    assert_allclose(state.energy, dense_energy(problem, w, covariance, 0.3), rtol=1e-12)
    for j in range(9):
        step = 1e-5 * (np.arange(9) == j)
        ends = [dense_energy(problem, w + sign * step, covariance, 0.3) for sign in (-1, 1)]
        slope = state.curvature[j] - state.alignment[j]
        assert_allclose(slope, (ends[1] - ends[0]) / 2e-5, rtol=1e-6, atol=1e-7)


def test_independent_responses_are_the_model_without_a_covariance():
    problem, w, _ = small_problem(4)
    found = evaluate_correlated(problem, w, ResponseSpectrum.of(5.0 * np.eye(4)))
    expected = evaluate(problem, w)
    assert_allclose(found.curvature, expected.curvature, rtol=1e-11)
    assert_allclose(found.alignment, expected.alignment, rtol=1e-11)
    assert_allclose(found.energy, FullCovariance().value(expected), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_step_raises_the_energy_and_the_correlation_is_the_best(seed):
    problem, w, spectrum = small_problem(seed)
    state = evaluate_correlated(problem, w, spectrum)
    for step in (mackay_step, newton_step):
        assert step(state, None).energy <= state.energy
    best = correlation_step(state)
    assert best.energy <= state.energy
    for rho in np.linspace(-0.99, 0.99, 41):
        other = evaluate_correlated(problem, w, ResponseSpectrum.autoregressive(rho, 4))
        assert best.energy <= other.energy + 1e-9


def test_one_step_of_the_noise_variance_lowers_the_energy():
    problem, w, spectrum = small_problem(1)
    state = evaluate_correlated(problem, w, spectrum)
    after = evaluate_correlated(problem.with_noise(state.learned_noise), w, spectrum)
    assert after.energy < state.energy


@pytest.mark.parametrize("learn_noise", [False, True])
def test_the_solution_is_stationary_and_the_energy_never_rises(learn_noise):
    X, y, _, noise = series(0, r=3)
    problem, units = normalise(X, y, compress=False)
    solution = solve_correlated(
        problem.with_noise(float(units.normalised_noise(noise))),
        FullCovariance(),
        spectrum=ResponseSpectrum.autoregressive(0.0, 20),
        learn_noise=learn_noise,
    )
    assert solution.status.ok
    assert np.diff(solution.history["energy"]).max() <= 1e-10
    assert solution.value.distance(None) < 1e-6
    assert 0.9 < solution.value.spectrum.correlation < 0.999


@pytest.mark.parametrize(("count", "more"), [(15, 4), pytest.param(30, 7, marks=pytest.mark.slow)])
def test_correlated_responses_recover_columns_that_independent_ones_miss(count, more):
    # 12 sensors, 8 sources and 20 samples with the correlation 0.99: success is that the columns
    # with the largest relevances are the true ones (seen: 4 and 9 of 15, 7 and 18 of 30)
    successes = np.zeros(2, dtype=int)
    for seed in range(count):
        X, y, used, noise = series(seed)
        problem, units = normalise(X, y, compress=False)
        problem = problem.with_noise(float(units.normalised_noise(noise)))
        spectrum = ResponseSpectrum.autoregressive(0.0, 20)
        correlated = solve_correlated(
            problem, FullCovariance(), spectrum=spectrum, tolerance=1e-3, limit=300
        )
        for k, found in enumerate((solve(problem, FullCovariance()), correlated)):
            largest = np.sort(np.argsort(-found.value.relevance)[:8])
            successes[k] += np.array_equal(largest, used)
    assert successes[1] >= successes[0] + more


OPTIONS = [
    {"noise_variance": "given"},
    {"noise_variance": "learn"},
    {"noise_variance": "cv", "cv": 2},
    {"noise_variance": "given", "groups": np.arange(48) // 2},
    {"noise_variance": "given", "response_covariance": 3.0 * autoregressive(0.9, 6)},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options)))
def test_the_estimator_is_certified(options):
    X, y, used, noise = series(3, r=3, n=6)
    options = {"response_covariance": "learn"} | options
    given = noise if options["noise_variance"] == "given" else options["noise_variance"]
    model = SparseVAE(**options | {"noise_variance": given}, max_iter=3000).fit(X + 5.0, y)
    if options["noise_variance"] != "cv":  # half of 12 rows overestimate the noise variance
        assert set(used) <= set(model.support_)
    assert model.certificate_.holds
    assert model.certificate_["response_covariance"].holds
    again = certify(model, X + 5.0, y)
    assert [claim.verdict for claim in again] == [c.verdict for c in model.certificate_]
    if "groups" not in options:
        model.response_covariance_ = autoregressive(0.3, 6)
        assert not certify(model, X + 5.0, y).holds


def test_mean_and_posterior_are_those_of_the_joint_gaussian_of_all_coefficients(tmp_path):
    X, y, _, noise = series(5, d=6, kappa=8, r=2, n=3)
    model = SparseVAE(noise_variance=noise, response_covariance="learn", fit_intercept=False).fit(
        X, y
    )
    B, W = model.response_covariance_, np.diag(model.relevance_)
    prior, design = np.kron(B, W), np.kron(np.eye(3), X)
    gain = prior @ design.T @ np.linalg.inv(design @ prior @ design.T + noise * np.eye(18))
    assert_allclose(model.coef_.ravel(), gain @ y.T.ravel(), atol=1e-10)
    posterior = (prior - gain @ design @ prior).reshape(3, 8, 3, 8)
    for response in range(3):
        block = posterior[response, :, response]
        assert_allclose(model.posterior_covariance(np.arange(8))[response], block, atol=1e-10)
    rows = np.random.default_rng(0).standard_normal((4, 8))
    _, deviations = model.predict(rows, return_std=True)
    expected = [np.diag(rows @ posterior[t, :, t] @ rows.T) + noise for t in range(3)]
    assert_allclose(deviations, np.sqrt(expected).T, atol=1e-10)
    lucidae.save(model, tmp_path / "model.npz")
    loaded = lucidae.load(tmp_path / "model.npz")
    assert_allclose(loaded.predict(rows, return_std=True)[1], deviations, rtol=1e-12)
    assert_allclose(loaded.response_covariance_, B)


def test_sparse_dictionaries_have_correlated_responses_too(monkeypatch):
    monkeypatch.setattr("lucidae.sparsity.dictionary.DENSE_ENTRIES", 0)
    X, y, _, noise = series(6, r=3, n=6)
    X = X * (np.abs(X) > 0.5)
    for covariance, accuracy in ((autoregressive(0.9, 6), 1e-9), ("learn", 1e-4)):
        model = SparseVAE(noise_variance=noise, response_covariance=covariance)
        sparse, dense = (model.fit(each, y).relevance_ for each in (sp.csr_array(X), X))
        assert_allclose(sparse, dense, rtol=accuracy, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "outputs", "words"),
    [
        ({"response_covariance": "full"}, 4, "response_covariance='full' was given"),
        ({"response_covariance": "learn"}, 1, "two outputs or more"),
        ({"response_covariance": "learn", "posterior": "diagonal"}, 4, "posterior='full'"),
        ({"response_covariance": "learn", "solver": "em"}, 4, "solver='auto'"),
        ({"response_covariance": np.eye(3)}, 4, r"has shape \(3, 3\)"),
        ({"response_covariance": -np.eye(4)}, 4, "positive semi-definite"),
        ({"response_covariance": np.triu(np.ones((4, 4)))}, 4, "not symmetric"),
        ({"response_covariance": {"a": 1}}, 4, "expected None, 'learn'"),
    ],
)
def test_unsuitable_covariances_are_refused(options, outputs, words):
    X, y, _, _ = series(7, n=4)
    with pytest.raises(ValueError, match=words):
        SparseVAE(noise_variance=0.1, **options).fit(X, y[:, :outputs])


def test_complex_responses_are_refused():
    X, y, _, _ = series(8, n=4)
    with pytest.raises(ValueError, match="complex data"):
        SparseVAE(noise_variance=0.1, response_covariance="learn").fit(X, 1j * y)


@pytest.mark.parametrize("covariance", [None, "learn", autoregressive(0.8, 5)])
def test_a_learned_noise_variance_that_falls_to_its_limit_is_said(covariance):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 6))
    y = X[:, :2] @ rng.standard_normal((2, 5))  # no noise at all
    model = SparseVAE(noise_variance="learn", response_covariance=covariance, fit_intercept=False)
    with pytest.warns(ConvergenceWarning, match="smallest value that is allowed"):
        model.fit(X, y)
    claim = model.certificate_["noise_variance"]
    assert claim.holds is None
    assert "no minimum" in claim.advice
