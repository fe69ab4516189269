"""Equalizers are rotations that make column norms equal and keep the network's function."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dropout.problems import seeds
from lucidae import equalize, equalize_pair, metrics
from lucidae.dropout import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.solvers import (
    EQUALIZERS,
    WIDEST,
    check_width,
    equalized_factors,
    level_diagonal,
)


def assert_equalizes(U, T, rtol=1e-10):
    assert_allclose(T.T @ T, np.eye(U.shape[1]), atol=1e-12)
    norms = np.linalg.norm(U @ T, axis=0)
    assert np.ptp(norms) <= rtol * norms.mean()


@st.composite
def matrices(draw, most=12):
    rng = np.random.default_rng(draw(seeds()))
    rows, columns, rank = (draw(st.integers(1, most)) for _ in range(3))
    scales = 10.0 ** rng.uniform(-draw(st.integers(0, 8)), 1.0, columns)
    return (rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))) * scales


@given(matrices())
def test_givens_rotations_level_any_matrix(U):
    assert_equalizes(U, equalize(U))


@given(matrices(most=8))
def test_the_papers_algorithm_levels_any_matrix(U):
    assert_equalizes(U, equalize(U, method="eigenvectors"), rtol=1e-7)


@given(seeds(), st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_hadamard_levels_powers_of_two(seed, width):
    U = np.random.default_rng(seed).standard_normal((5, width))
    assert_equalizes(U, equalize(U, method="hadamard"))


@given(seeds())
def test_all_three_agree_on_the_objective_and_attain_the_bound(seed):
    rng = np.random.default_rng(seed)
    U, M = rng.standard_normal((6, 8)), rng.standard_normal((6, 6))
    objective = DropoutObjective(LinearProblem.from_matrix(M), 0.8)
    values = [objective.tied_value(U @ equalize(U, method=name)) for name in EQUALIZERS]
    assert_allclose(values, values[0], rtol=1e-12)
    bound = np.sum((M - U @ U.T) ** 2) + 0.8 / 8 * np.sum(U**2) ** 2  # Theorem 2.3
    assert_allclose(values[0], bound, rtol=1e-12)
    assert objective.tied_value(U) >= values[0]


ADVERSARIAL = {
    "random": lambda r, rng: rng.standard_normal((r, r)),
    "rank one": lambda r, rng: np.outer(rng.standard_normal(20), rng.standard_normal(r)),
    "one column": lambda r, rng: np.eye(5, r),
    "huge ratios": lambda r, rng: np.diag(np.logspace(-150, 150, r)),
    "mixed huge ratios": lambda r, rng: rng.standard_normal((r, r)) * np.logspace(-8, 8, r),
    "already equal": lambda r, rng: np.eye(r),
    "equal and dependent": lambda r, rng: np.ones((3, r)),
    "tiny": lambda r, rng: 1e-200 * rng.standard_normal((7, r)),
    "huge": lambda r, rng: 1e200 * rng.standard_normal((7, r)),
}


@pytest.mark.covering
@pytest.mark.parametrize("kind", ADVERSARIAL)
@pytest.mark.parametrize("width", [1, 2, 200, 1000])
def test_wide_and_adversarial_matrices_are_levelled_to_ten_digits(kind, width):
    U = ADVERSARIAL[kind](width, np.random.default_rng(0))
    T = equalize(U)
    assert_equalizes(U / np.abs(U).max(), T)


def test_zero_weights_are_level_already():
    assert_allclose(equalize(np.zeros((4, 3))), np.eye(3))


@given(seeds(), st.integers(1, 7), st.integers(1, 7), st.integers(1, 9))
def test_equalizing_keeps_the_function_and_levels_the_importance(seed, outputs, inputs, width):
    rng = np.random.default_rng(seed)
    U, V = rng.standard_normal((outputs, width)), rng.standard_normal((inputs, width))
    P, Q = equalize_pair(U, V)
    nuclear = np.linalg.norm(U @ V.T, "nuc")
    assert P.shape == U.shape
    assert Q.shape == V.shape
    assert_allclose(P @ Q.T, U @ V.T, atol=1e-12 * (1 + nuclear))
    assert_allclose(np.sum(P**2, axis=0), nuclear / width, rtol=1e-10)
    assert_allclose(np.sum(Q**2, axis=0), nuclear / width, rtol=1e-10)
    # Theorem 3.4: no factorisation of the same product has a smaller path norm.
    assert metrics.path_norm(P, Q) <= metrics.path_norm(U, V) * (1 + 1e-12)
    assert metrics.path_norm(P, Q) ** 2 == pytest.approx(nuclear**2 / width)


def test_a_pair_of_very_different_huge_or_tiny_scales():
    rng = np.random.default_rng(1)
    U, V = 1e150 * rng.standard_normal((4, 3)), 1e-150 * rng.standard_normal((5, 3))
    P, Q = equalize_pair(U, V)
    assert_allclose(P @ Q.T, U @ V.T, atol=1e-12)
    assert metrics.equalization_variance(P, Q) < 1e-20
    U, V = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    expected = equalize_pair(U, V)
    for scale in (1e-150, 1e150, 1e300):
        for found, unit in zip(equalize_pair(scale * U, scale * V), expected, strict=True):
            assert_allclose(found / scale, unit, rtol=1e-12, atol=1e-12)


def test_equalizers_stay_in_their_library_and_dtype(xp):
    U = xp.asarray(np.random.default_rng(2).standard_normal((4, 3)))
    V = xp.asarray(np.random.default_rng(3).standard_normal((5, 3)))
    T = equalize(U)
    assert type(T) is type(U)
    assert_equalizes(np.asarray(U), np.asarray(T))
    P, Q = equalize_pair(U, V)
    assert_allclose(np.asarray(P @ Q.mT), np.asarray(U @ V.mT), atol=1e-12)
    assert equalize(np.ones((2, 2), dtype=np.float32)).dtype == np.float32
    assert equalize_pair(np.ones((2, 2), dtype=np.float32), np.ones((3, 2)))[1].dtype == np.float32


def test_input_is_not_modified():
    U = np.random.default_rng(4).standard_normal((4, 3))
    before = U.copy()
    equalize(U)
    equalize_pair(U, U)
    assert_allclose(U, before, rtol=0)


def test_result_is_a_network_that_weights_can_use():
    rng = np.random.default_rng(5)
    U, V = rng.standard_normal((3, 4)), rng.standard_normal((2, 4))
    objective = DropoutObjective(LinearProblem.from_matrix(U @ V.T), 1.0)
    assert objective.value(Weights(*equalize_pair(U, V))) <= objective.value(Weights(U, V))


def test_widths_are_limited_by_memory_or_by_the_data():
    assert check_width(1, "r", 5) == 1
    assert check_width(WIDEST, "r", 5) == WIDEST
    assert check_width(WIDEST + 7, "r", WIDEST + 7) == WIDEST + 7
    for wrong, size in ((0, 5), (WIDEST + 1, 5), (WIDEST + 8, WIDEST + 7)):
        with pytest.raises(ValueError, match=r"^r="):
            check_width(wrong, "r", size)


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.0, 1e200, 1e-200])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_equalized_factors_of_a_decomposition(width, scale):
    """With fewer columns than singular values, only the leading ones are used."""
    rng = np.random.default_rng(6)
    P, Q = (np.linalg.qr(rng.standard_normal((m, 3)))[0] for m in (4, 6))
    values = scale * np.array([5.0, 2.0, 0.5])
    left, right = equalized_factors(P, values, Q, width)
    kept = min(width, 3)
    error = 1e-14 * scale
    assert_allclose(left @ right.T, (P[:, :kept] * values[:kept]) @ Q[:, :kept].T, atol=error)
    for part in (left, right):
        assert part.shape[1] == width
        assert_allclose(np.sum(part**2, axis=0), values[:kept].sum() / width, atol=error)


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_levelling_needs_one_rotation_less_than_columns(scale):
    """A diagonal that is constant up to rounding is left alone; others are levelled exactly."""
    eps = np.finfo(float).eps
    level = scale * np.diag([1.0, 1.0 + 2 * eps, 1.0])
    assert_allclose(level_diagonal(level), np.eye(3), atol=0)
    two = level_diagonal(scale * np.diag([3.0, 1.0]))
    assert_allclose(np.abs(two), np.full((2, 2), 0.5**0.5))
    gram = scale * np.diag([1.0, 1.0 + 100 * eps])
    turned = level_diagonal(gram)
    assert not np.allclose(turned, np.eye(2))
