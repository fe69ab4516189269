"""Cholesky factors and triangular systems on every library, one problem or a stack."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.arrays import (
    cholesky,
    inverse_lower,
    multiply_lower,
    solve_lower,
    solve_positive,
    to_numpy,
)

RNG = np.random.default_rng(0)
SHAPES = [(4, 4), (3, 4, 4), (2, 3, 4, 4)]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


def make(xp, values, dtype="float64"):
    return xp.asarray(np.array(values), dtype=getattr(xp, dtype))


def positive_definite(shape):
    A = RNG.standard_normal(shape)
    return A @ np.swapaxes(A, -1, -2) + np.eye(shape[-1])


def tolerance(dtype):
    return 1e-4 if dtype == "float32" else 1e-10


@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_factors_and_triangular_solves(xp, dtype, shape):
    A, B = positive_definite(shape), RNG.standard_normal((*shape[:-1], 2))
    L, ok = cholesky(make(xp, A, dtype))
    assert to_numpy(ok).all()
    assert to_numpy(ok).shape == shape[:-2]
    factor = to_numpy(L).astype(float)
    assert_array_equal(factor, np.tril(factor))
    assert_allclose(factor @ np.swapaxes(factor, -1, -2), A, atol=tolerance(dtype))
    for transpose in (False, True):
        X = solve_lower(L, make(xp, B, dtype), transpose=transpose)
        matrix = np.swapaxes(factor, -1, -2) if transpose else factor
        assert X.dtype == L.dtype
        assert_allclose(matrix @ to_numpy(X), B, atol=tolerance(dtype))
    inverse = inverse_lower(L)
    assert inverse.dtype == L.dtype
    assert_allclose(to_numpy(inverse) @ factor, np.eye(shape[-1]) + 0 * A, atol=tolerance(dtype))
    product = multiply_lower(L, make(xp, B, dtype))
    assert product.dtype == L.dtype
    assert_allclose(to_numpy(product), factor @ B, atol=tolerance(dtype))


@pytest.mark.parametrize(
    "bad",
    [np.diag([1.0, -1.0]), np.ones((2, 2)), [[1.0, 0.0], [np.nan, 1.0]], [[np.inf, 0.0], [0.0, 1]]],
    ids=["indefinite", "singular", "nan", "infinite"],
)
def test_only_the_failing_matrix_of_a_stack_is_marked(xp, dtype, bad):
    stack = np.stack([2.0 * np.eye(2), bad, np.eye(2)])
    L, ok = cholesky(make(xp, stack, dtype))
    assert_array_equal(to_numpy(ok), [True, False, True])
    assert L.dtype == getattr(xp, dtype)
    assert np.isnan(to_numpy(L)[1]).all()
    assert_allclose(to_numpy(L)[[0, 2]], [np.sqrt(2.0) * np.eye(2), np.eye(2)], rtol=1e-6)
    single, fine = cholesky(make(xp, bad, dtype))
    assert not bool(fine)
    assert np.isnan(to_numpy(single)).all()


def test_positive_systems_are_solved_and_the_others_are_unknown(xp, dtype):
    A, B = positive_definite((3, 4, 4)), RNG.standard_normal((3, 4, 2))
    A[1] -= 100 * np.eye(4)
    X = solve_positive(make(xp, A, dtype), make(xp, B, dtype))
    assert X.dtype == getattr(xp, dtype)
    found = to_numpy(X)
    assert np.isnan(found[1]).all()
    assert_allclose((A @ found)[[0, 2]], B[[0, 2]], atol=tolerance(dtype))


def test_triangular_solve_spreads_one_factor_over_many_right_sides_and_takes_vectors(xp):
    L = np.tril(RNG.standard_normal((3, 3))) + 3 * np.eye(3)
    B = RNG.standard_normal((5, 3, 2))
    X = to_numpy(solve_lower(make(xp, L), make(xp, B)))
    assert_allclose(L @ X, B, atol=1e-12)
    one_side = to_numpy(solve_lower(make(xp, np.stack([L, 2 * L])), make(xp, B[0])))
    assert_allclose(one_side[1], X[0] / 2, atol=1e-12)
    x = to_numpy(solve_lower(make(xp, L), make(xp, B[0, :, 0]), transpose=True))
    assert_allclose(L.T @ x, B[0, :, 0], atol=1e-12)


def test_what_cannot_be_factorised_cannot_be_inverted_but_stays_unknown(xp):
    L, _ = cholesky(make(xp, np.diag([1.0, -1.0])))
    assert np.isnan(to_numpy(inverse_lower(L))[np.tril_indices(2)]).all()


def test_a_singular_triangle_is_refused_by_numpy():
    with pytest.raises(np.linalg.LinAlgError, match="zero on its diagonal, in row 1"):
        solve_lower(np.diag([1.0, 0.0]), np.ones((2, 1)))
    with pytest.raises(np.linalg.LinAlgError, match="zero on its diagonal, in row 1"):
        inverse_lower(np.diag([1.0, 0.0]))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0)])
def test_systems_without_equations_have_empty_solutions(shape, dtype, capfd):
    L, B = np.zeros(shape, dtype), np.zeros((*shape[:-1], 3), dtype)
    assert solve_lower(L, B).shape == B.shape
    assert solve_lower(L, B).dtype == dtype
    assert inverse_lower(L).shape == shape
    assert capfd.readouterr() == ("", "")  # LAPACK would complain
