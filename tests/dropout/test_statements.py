"""Lemmas of Mianjy et al. 2018 that the closed forms rest on, checked directly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dropout.problems import seeds, symmetric
from lucidae.dropout import equalized_critical_points
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.theory import optimal_value, shrink
from lucidae.metrics import importance_scores


@given(st.integers(1, 6), st.integers(1, 9), st.floats(0, 50))
def test_the_inverse_of_the_identity_plus_ones(rank, width, strength):
    """Mianjy et al. 2018, Lemma A.2."""
    ones, identity = np.ones((rank, rank)), np.eye(rank)
    product = (identity + strength / width * ones) @ (
        identity - strength / (width + strength * rank) * ones
    )
    assert_allclose(product, identity, atol=1e-10)


@given(seeds(), st.floats(0.01, 20), st.integers(1, 6))
def test_the_loss_falls_with_the_rank_and_the_optimum_is_the_last_feasible_one(
    seed, strength, width
):
    """Mianjy et al. 2018, Lemma A.3, and the step of Theorem 2.4 that follows from it."""
    a = np.sort(np.random.default_rng(seed).uniform(0, 3, 6))[::-1]
    losses, feasible = [], [0]
    for rank in range(1, width + 1):
        level = strength * a[:rank].sum() / (width + strength * rank)
        shrunk = a[:rank] - level
        by_definition = rank * level**2 + np.sum(a[rank:] ** 2)
        by_definition += strength / width * shrunk.sum() ** 2
        head = a[:rank].sum()
        simplified = strength * head**2 / (width + strength * rank) + np.sum(a[rank:] ** 2)
        assert by_definition == pytest.approx(simplified, rel=1e-12)
        losses.append(simplified)
        if shrunk[-1] > 0:
            feasible.append(rank)
    assert np.all(np.diff(losses) <= 1e-12)
    assert feasible == list(range(len(feasible)))  # a prefix
    assert shrink(a, strength, width).rank == feasible[-1]
    assert optimal_value(a, strength, width) == pytest.approx(losses[feasible[-1] - 1])


@given(seeds(), st.integers(1, 6))
def test_the_mean_of_the_eigenvectors_has_the_mean_eigenvalue(seed, size):
    """Mianjy et al. 2018, Claim 1 in the proof of Theorem 2.2."""
    G = symmetric(np.random.default_rng(seed), size)
    _, vectors = np.linalg.eigh(G)
    w = vectors.sum(axis=1) / np.sqrt(size)
    assert np.linalg.norm(w) == pytest.approx(1.0)
    assert w @ G @ w == pytest.approx(np.trace(G) / size, abs=1e-10)


@given(seeds(), st.sampled_from([0.1, 1.0, 8.0]), st.integers(1, 5))
def test_critical_points_of_a_positive_target_lie_below_it(seed, strength, width):
    """Mianjy et al. 2018, Lemma D.1, which needs M ⪰ 0 for directions outside of the range of U."""
    square = np.random.default_rng(seed).standard_normal((4, 4))
    M = square @ square.T
    for point in equalized_critical_points(M, strength, width):
        assert np.linalg.eigvalsh(M - point.factor @ point.factor.T)[0] > -1e-9
    M = np.diag([2.0, -1.0])
    point = equalized_critical_points(M, strength, width)[0]
    assert np.linalg.eigvalsh(M - point.factor @ point.factor.T)[0] == pytest.approx(-1.0)


def test_equal_importance_alone_does_not_make_the_penalty_that_of_the_nuclear_norm():
    """Proof of Mianjy et al. 2018, Theorem 3.4: it is so at an optimum, not for every such pair."""
    U, V = np.array([[1.0, 1.0]]), np.array([[1.0, -1.0]])
    assert np.ptp(importance_scores(U, V)) == 0
    objective = DropoutObjective(LinearProblem.from_matrix(np.ones((1, 1))), 0.5)
    assert float(objective.regularizer(Weights(U, V))) == pytest.approx(1.0)
    assert np.linalg.norm(U @ V.T, "nuc") == 0
