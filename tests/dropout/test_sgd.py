"""Algorithm 1 converges to what the closed form says, many runs at once."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from lucidae import DropoutFactorization, certify
from lucidae.datasets import make_linear_network
from lucidae.dropout import (
    GaussianSource,
    LinearProblem,
    SampleSource,
    Weights,
    descend,
    scalar_surface,
    solve,
)

STRENGTHS = (0.1, 0.5, 1.0)


def check_figure_three(features, outputs, width, decay, **settings):
    """50 runs a strength: objective within 2 % of the optimum, faster equalization for larger λ."""
    M = make_linear_network(1, features, outputs, decay=decay, random_state=0).coef
    strengths = np.repeat(STRENGTHS, 50)
    solution = descend(
        GaussianSource(M),
        M,
        strengths / (1 + strengths),
        width,
        rng=np.random.RandomState(0),
        tolerance=1e-6,
        check_every=settings["limit"] // 10,
        **settings,
    )
    variances = []
    for strength in STRENGTHS:
        runs = strengths == strength
        optimum = solve(LinearProblem.from_matrix(M), strength, width).value
        objective = solution.history["objective"][:, runs].mean(axis=1)
        assert optimum <= objective[-1] <= 1.02 * optimum
        assert solution.history["objective"].min(axis=0)[runs].min() >= optimum * (1 - 1e-9)
        variance = solution.history["importance_variance"][:, runs].mean(axis=1)
        variances.append(variance / variance.max())
    # After the peak, early in the run, the variance is the smaller the larger λ.
    after = slice(2, 7)
    assert np.all(variances[0][after] > variances[1][after])
    assert np.all(variances[1][after] > variances[2][after] - 0.03)
    assert variances[0][after].mean() > variances[1][after].mean() > variances[2][after].mean()
    assert max(variance[-1] for variance in variances[1:]) < 0.1


def test_small_networks_behave_as_in_figure_three():
    check_figure_three(16, 24, 6, decay=0.3, batch_size=16, limit=500)


@pytest.mark.slow
def test_networks_of_the_papers_size_behave_as_in_figure_three():
    check_figure_three(80, 120, 20, decay=0.1, batch_size=32, limit=1000)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_scalar_networks_end_equalized_as_in_figure_two(strength):
    M = np.array([[2.0]])
    solution = descend(
        GaussianSource(M),
        M,
        [strength / (1 + strength)] * 8,
        2,
        rng=np.random.RandomState(1),
        limit=2000,
        tolerance=1e-9,
    )
    importance = np.abs(solution.value.left[:, 0, :] * solution.value.right[:, 0, :])
    assert_allclose(importance, 2.0 / (2 + strength), atol=0.12)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_tied_scalar_networks_walk_to_a_corner_of_the_surface(strength):
    start = np.array([[[1.6, 0.2]], [[-0.1, 1.2]]])  # two runs from unequal weights
    M = np.array([[2.0]])
    solution = descend(
        GaussianSource(M),
        M,
        [strength / (1 + strength)] * 2,
        2,
        rng=np.random.RandomState(0),
        tied=True,
        start=Weights(start, start),
        record={"left": lambda runs: runs.left, "right": lambda runs: runs.right},
        limit=3000,
        tolerance=1e-9,
    )
    path = solution.history["left"]
    assert path.shape[1:] == (2, 1, 2)
    assert_allclose(path[0], start)
    assert_allclose(solution.history["right"], path)
    minima = scalar_surface(2.0, strength).minima
    for end in path[-1, :, 0, :]:
        assert np.abs(minima - end).max(axis=1).min() < 0.1


def test_one_seed_gives_one_result_on_every_library(xp):
    M = make_linear_network(1, 5, 4, random_state=0).coef
    settings = {"limit": 60, "batch_size": 4, "tolerance": 0.0, "check_every": 20}

    def run(matrix):
        rng = np.random.RandomState(7)
        return descend(GaussianSource(matrix), matrix, [0.2, 0.5], 3, rng=rng, **settings)

    reference, solution = run(M), run(xp.asarray(M))
    assert type(solution.value.left) is type(xp.asarray(M))
    assert_allclose(np.asarray(solution.value.left), reference.value.left, atol=1e-10)
    assert_allclose(solution.history["objective"], reference.history["objective"], rtol=1e-10)


def test_a_falling_rate_ends_closer_than_a_constant_one():
    M = make_linear_network(1, 10, 8, random_state=0).coef
    optimum = solve(LinearProblem.from_matrix(M), 1.0, 4).value
    excess = {}
    for schedule in ("constant", "inverse", "linear"):
        solution = descend(
            GaussianSource(M),
            M,
            [0.5] * 20,
            4,
            rng=np.random.RandomState(0),
            schedule=schedule,
            batch_size=8,
            limit=1500,
            tolerance=0.0,
        )
        excess[schedule] = solution.history["objective"][-1].mean() / optimum - 1
    assert excess["linear"] < 0.5 * excess["constant"]
    assert excess["inverse"] < excess["constant"]


@pytest.mark.covering
@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.parametrize(
    ("features", "outputs", "width"), [(1, 1, 1), (3, 20, 2), (20, 3, 30), (8, 8, 8)]
)
def test_automatic_rate_is_stable(features, outputs, width, batch_size):
    M = 1e3 * make_linear_network(1, features, outputs, random_state=1).coef
    dropouts = [0.0, 0.3, 0.8, 0.97]
    solution = descend(
        GaussianSource(M),
        M,
        dropouts,
        width,
        rng=np.random.RandomState(0),
        batch_size=batch_size,
        limit=300,
        tolerance=0.0,
        check_every=30,
    )
    assert solution.status.name == "ITERATION_LIMIT"
    objective = solution.history["objective"]
    assert np.all(objective[-1] < objective[0])


def test_too_large_a_rate_is_said_to_diverge():
    M = np.eye(3)
    solution = descend(
        GaussianSource(M), M, [0.5], 3, rng=np.random.RandomState(0), learning_rate=50.0, limit=500
    )
    assert solution.status.name == "DIVERGED"
    assert np.isfinite(solution.value.left).all()


def test_sampled_rows_follow_their_weights_and_sparse_equals_dense():
    rng = np.random.RandomState(0)
    X, Y, weights = (
        rng.standard_normal((6, 3)),
        rng.standard_normal((6, 2)),
        np.array([0, 3, 1, 0, 2, 0.0]),
    )
    lift, center, middle = (
        rng.standard_normal((3, 2)),
        rng.standard_normal(3),
        rng.standard_normal(2),
    )
    dense = SampleSource(X, Y, center, lift, middle, np.cumsum(weights))
    sparse = SampleSource(
        scipy.sparse.csr_array(X),
        scipy.sparse.csr_array(Y),
        center,
        lift,
        middle,
        np.cumsum(weights),
    )
    first = dense.draw(np.random.RandomState(1), 2, 2000, X)
    second = sparse.draw(np.random.RandomState(1), 2, 2000, X)
    for one, other in zip(first, second, strict=True):
        assert_allclose(one, other)
    assert first[0].shape == (2, 2000, 2)
    drawn = np.argmin(np.abs(first[1].reshape(-1, 1, 2) + middle - Y).sum(-1), axis=1)
    shares = np.bincount(drawn, minlength=6) / drawn.size
    assert_allclose(shares, weights / 6, atol=0.03)
    assert shares[0] == shares[3] == shares[5] == 0.0


@pytest.mark.parametrize("weighted", [False, True])
def test_training_on_a_matrix_tends_to_its_closed_form(weighted):
    rng = np.random.default_rng(0)
    M = rng.standard_normal((30, 4)) @ rng.standard_normal((4, 8))
    weights = rng.integers(0, 3, 30) if weighted else None
    exact = DropoutFactorization(5, dropout=0.3).fit(M, sample_weight=weights)
    model = DropoutFactorization(5, dropout=0.3, solver="sgd", tol=1e-9, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(M, sample_weight=weights)
    losses = model.history_["objective"][:, 0] / exact.objective_ - 1
    assert losses[0] > 0.5
    assert losses[-1] < 3e-3
    assert 0 <= model.objective_ / exact.objective_ - 1 < losses[-1]  # the best U for this V
    assert_allclose(model.transform(M), model.left_)
    assert_allclose(model.left_ @ model.right_.T, exact.left_ @ exact.right_.T, atol=0.3)
    early = DropoutFactorization(5, dropout=0.3, solver="sgd", max_iter=20, random_state=0)
    with pytest.warns(ConvergenceWarning):
        assert early.fit(M).certificate_["gap"].holds is False
    stopped = model.set_params(tol="auto").fit(M, sample_weight=weights)
    assert stopped.status_.ok
    for certificate in (stopped.certificate_, certify(stopped, M, sample_weight=weights)):
        assert certificate.holds
    M[0, 0] = np.nan
    with pytest.raises(ValueError, match="entries of X are missing: use solver='exact'"):
        stopped.set_params(handle_missing="complete").fit(M)
