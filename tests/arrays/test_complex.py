"""Helpers for complex arrays give the same results with every library; real ones are not copied."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.arrays import (
    adjoint,
    as_complex,
    as_double,
    as_float,
    cholesky,
    conjugate,
    inverse_lower,
    is_complex,
    machine_epsilon,
    rank_one_,
    real_part,
    solve_lower,
    solve_positive,
    squared_moduli,
    squared_norm,
    squared_norms,
    to_numpy,
)

SHAPES = [(4, 4), (3, 4, 4)]


def draw(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", SHAPES)
def test_triangular_systems(xp, dtype, shape):
    A, B = draw(0, *shape), draw(1, *shape[:-1], 2)
    A = A @ np.swapaxes(A.conj(), -1, -2) + np.eye(4)
    tolerance = {"atol": 1e-3 if dtype == "complex64" else 1e-10}
    make = lambda values: xp.asarray(values, dtype=getattr(xp, dtype))  # noqa: E731
    L, ok = cholesky(make(A))
    assert bool(xp.all(ok))
    assert_allclose(to_numpy(L @ adjoint(L)), A, **tolerance)
    assert_allclose(to_numpy(L @ solve_lower(L, make(B))), B, **tolerance)
    assert_allclose(to_numpy(adjoint(L) @ solve_lower(L, make(B), transpose=True)), B, **tolerance)
    identity = np.broadcast_to(np.eye(4), shape)
    assert_allclose(to_numpy(L @ inverse_lower(L)), identity, **tolerance)
    assert_allclose(to_numpy(make(A) @ solve_positive(make(A), make(B))), B, **tolerance)
    assert L.dtype == solve_lower(L, make(B)).dtype == inverse_lower(L).dtype == make(A).dtype


def test_a_real_factor_solves_for_complex_numbers():
    L = np.tril(np.random.default_rng(2).standard_normal((5, 5))) + 5 * np.eye(5)
    B = draw(3, 5, 2)
    assert_allclose(L @ solve_lower(L, B), B, atol=1e-12)
    assert_allclose(L.T @ solve_lower(L, B, transpose=True), B, atol=1e-12)


def test_elementary_functions(xp):
    values = draw(4, 2, 3, 4)
    A = xp.asarray(values)
    assert is_complex(A)
    assert_array_equal(to_numpy(adjoint(A)), np.swapaxes(values.conj(), -1, -2))
    assert_array_equal(to_numpy(conjugate(A)), values.conj())
    assert_array_equal(to_numpy(real_part(A)), values.real)
    assert_allclose(to_numpy(squared_moduli(A)), np.abs(values) ** 2)
    assert_allclose(to_numpy(squared_norm(A)), (np.abs(values) ** 2).sum(axis=(-2, -1)))
    for axis in (-1, -2):
        assert_allclose(to_numpy(squared_norms(A, axis)), (np.abs(values) ** 2).sum(axis=axis))
    narrow = xp.astype(A, xp.complex64)
    assert as_float(narrow) is narrow
    assert as_double(narrow).dtype == as_complex(xp.real(A)).dtype == xp.complex128
    assert as_complex(xp.real(narrow)).dtype == xp.complex64
    assert machine_epsilon(narrow) == np.finfo(np.float32).eps


def test_real_arrays_are_not_copied(xp):
    A = xp.asarray(np.arange(6.0).reshape(2, 3))
    for function in (conjugate, real_part):
        assert function(A) is A
    assert not is_complex(A)
    assert adjoint(A).shape == (3, 2)


def test_the_adjoint_of_a_real_numpy_array_is_a_view():
    A = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(adjoint(A), A)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_outer_products_are_added_without_conjugation(order, dtype):
    A, x, y = draw(5, 3, 4).astype(dtype), draw(6, 3).astype(dtype), draw(7, 4).astype(dtype)
    expected = A - 0.5 * np.outer(x, y)
    stored = np.array(A, order=order)
    assert rank_one_(stored, x, y, -0.5) is stored
    assert_allclose(stored, expected, rtol=1e-5)
