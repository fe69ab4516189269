"""Metrics of linear networks against their definitions, written as loops, and their theorems."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae import metrics

SEEDS = st.integers(0, 2**32 - 1)
RNG = np.random.default_rng


def orthonormal(m, k, rng):
    return np.linalg.qr(rng.standard_normal((m, k)))[0]


def alignment_by_loops(decoder, U):
    total = 0.0
    for u in U.T:
        cosines = [(u @ w) ** 2 / ((u @ u) * (w @ w)) if np.any(w) else 0.0 for w in decoder.T]
        total += max(cosines)
    return 1 - total / U.shape[1]


def subspace_by_projectors(decoder, U):
    projector = decoder @ np.linalg.pinv(decoder, rcond=1e-6)
    return 1 - np.trace(U @ U.T @ projector) / U.shape[1]


PAIRED = {
    "axis_alignment_distance": alignment_by_loops,
    "subspace_distance": subspace_by_projectors,
    "imbalance": lambda decoder, U: np.sum((decoder - U) ** 2) / U.shape[1],
    "equalization_variance": lambda U, V: np.var(
        [np.linalg.norm(u) * np.linalg.norm(v) for u, v in zip(U.T, V.T, strict=True)]
    ),
    "path_norm": lambda U, V: math.sqrt(
        sum(
            U[j, i] ** 2 * V[k, i] ** 2
            for i, j, k in itertools.product(range(U.shape[1]), range(len(U)), range(len(V)))
        )
    ),
}


def call(name, first, second):
    if name == "imbalance":  # the encoder comes first, transposed
        return metrics.imbalance(first.mT if hasattr(first, "mT") else first.T, second)
    return getattr(metrics, name)(first, second)


@pytest.mark.parametrize("name", PAIRED)
def test_metric_equals_its_definition_on_every_library(name, xp):
    rng = RNG(0)
    first, second = rng.standard_normal((7, 3)), orthonormal(7, 3, rng)
    value = call(name, xp.asarray(first), xp.asarray(second))
    assert type(value) is float
    assert_allclose(value, PAIRED[name](first, second), rtol=1e-12)


@pytest.mark.parametrize("name", PAIRED)
def test_stack_of_problems_equals_one_by_one_with_its_dtype(name, xp):
    rng = RNG(1)
    first = rng.standard_normal((4, 2, 6, 3)).astype(np.float32)
    second = np.stack([orthonormal(6, 3, rng) for _ in range(8)]).reshape(4, 2, 6, 3)
    second = second.astype(np.float32)
    values = call(name, xp.asarray(first), xp.asarray(second))
    assert values.dtype == xp.float32
    assert tuple(values.shape) == (4, 2)
    expected = [
        [call(name, a, b) for a, b in zip(*row, strict=True)]
        for row in zip(first, second, strict=True)
    ]
    assert_allclose(np.asarray(values), expected, rtol=1e-4)


@given(SEEDS, st.integers(1, 5), st.integers(0, 4))
def test_alignment_ignores_order_sign_and_scale_and_subspace_any_mixing(seed, k, more):
    rng = RNG(seed)
    U = orthonormal(k + more, k, rng)
    scales = rng.choice([-1, 1], k) * np.exp(rng.uniform(-5, 5, k))
    aligned = (U * scales)[:, rng.permutation(k)]
    assert metrics.axis_alignment_distance(aligned, U) < 1e-12
    mixed = U @ (rng.standard_normal((k, k)) + 3 * k * np.eye(k))
    assert metrics.subspace_distance(mixed, U) < 1e-12


@given(SEEDS, st.integers(1, 5), st.integers(0, 4))
def test_alignment_is_never_smaller_than_subspace_distance(seed, k, more):
    rng = RNG(seed)
    U, decoder = orthonormal(k + more, k, rng), rng.standard_normal((k + more, k))
    alignment = metrics.axis_alignment_distance(decoder, U)
    assert alignment >= metrics.subspace_distance(decoder, U) - 1e-12
    assert 0 <= alignment <= 1


@pytest.mark.parametrize("left_over", [0.0, 1e-300, 1e-9])
def test_dead_latents_cost_their_share(left_over, xp):
    U = orthonormal(8, 4, RNG(3))
    decoder = xp.asarray(U * [1.0, left_over, 2.0, left_over])
    assert_allclose(metrics.axis_alignment_distance(decoder, xp.asarray(U)), 0.5, atol=1e-12)
    assert_allclose(metrics.subspace_distance(decoder, xp.asarray(U)), 0.5, atol=1e-12)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_distances_and_norms_bear_extreme_scales(scale):
    rng = RNG(4)
    U, decoder = orthonormal(5, 2, rng), rng.standard_normal((5, 2))
    for metric in (metrics.axis_alignment_distance, metrics.subspace_distance):
        assert_allclose(metric(decoder * scale, U), metric(decoder, U), rtol=1e-12)
    assert_allclose(metrics.path_norm(decoder * scale, U), scale * metrics.path_norm(decoder, U))


def test_alignment_of_a_rotated_pair_is_known():
    angle = 0.3
    turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    assert_allclose(metrics.axis_alignment_distance(turn, np.eye(2)), math.sin(angle) ** 2)
    assert metrics.subspace_distance(turn, np.eye(2)) < 1e-15


def test_non_diagonality_adds_off_diagonal_entries_alone(xp):
    M = RNG(5).standard_normal((3, 4, 4))
    expected = [sum(abs(m[i, j]) for i in range(4) for j in range(4) if i != j) for m in M]
    assert_allclose(np.asarray(metrics.non_diagonality(xp.asarray(M))), expected)
    assert metrics.non_diagonality(xp.asarray(np.diag([1e300, -2.0]))) == 0.0


@given(SEEDS, st.integers(1, 6))
def test_path_norm_is_least_when_equalized_among_equal_total_importance(seed, r):
    rng = RNG(seed)
    U, V = rng.standard_normal((5, r)), rng.standard_normal((4, r))
    scores = metrics.importance_scores(U, V)
    assert scores.shape == (r,)
    # Σs² = r·var(s) + (Σs)²/r, Mianjy et al. 2018, proof of Theorem 3.4
    split = r * metrics.equalization_variance(U, V) + scores.sum() ** 2 / r
    assert_allclose(metrics.path_norm(U, V) ** 2, split, rtol=1e-10)


def test_importance_scores_are_products_of_column_norms(xp):
    U, V = [[3.0, 0.0], [4.0, 2.0]], [[1.0, 5.0], [0.0, 12.0]]
    scores = metrics.importance_scores(xp.asarray(U), xp.asarray(V))
    assert_allclose(np.asarray(scores), [5.0, 26.0])


def test_non_diagonality_of_batches_with_two_axes_and_of_other_shapes():
    M = RNG(6).standard_normal((2, 3, 4, 4))
    diagonal = np.abs(M[..., np.arange(4), np.arange(4)]).sum(axis=-1)
    assert_allclose(metrics.non_diagonality(M), np.abs(M).sum(axis=(-2, -1)) - diagonal)
    with pytest.raises(ValueError, match="square matrix"):
        metrics.non_diagonality(np.ones((2, 3, 4)))


def test_directions_are_orthonormal_up_to_their_tolerance():
    unit = np.eye(3)[:, :1]
    assert metrics.subspace_distance(unit, (1 + 4e-5) * unit) == pytest.approx(0.0, abs=1e-4)
    for wrong in (1 + 6e-5, 1.5, 3.0):
        with pytest.raises(ValueError, match="orthonormal"):
            metrics.subspace_distance(unit, wrong * unit)
