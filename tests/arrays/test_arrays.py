"""The functions of `lucidae.arrays` give the same results with every library and dtype."""

from copy import deepcopy

import array_api_compat as compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import arrays
from lucidae.arrays import (
    add_diagonal,
    adjoint,
    as_plain,
    cholesky,
    device,
    inverse_lower,
    like,
    multiply_lower,
    namespace,
    rank_one_,
    solve_lower,
    solve_positive,
    to_numpy,
    where_set,
)

SHAPES = [(4, 4), (3, 4, 4), (2, 3, 4, 4)]
DTYPES = ["float32", "float64", "complex64", "complex128"]


def draw(seed, shape, dtype="float64"):
    """Return a NumPy array of normal numbers, complex if the dtype is."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape)) if "complex" in dtype else values


def make(xp, values, dtype="float64"):
    return xp.asarray(np.array(values), dtype=getattr(xp, dtype))


def tolerance(dtype):
    return 1e-3 if dtype in ("float32", "complex64") else 1e-10


def transposed(A):
    return np.swapaxes(A.conj(), -1, -2)


FUNCTIONS = {
    "diagonal": (arrays.diagonal, lambda A: np.diagonal(A, axis1=-2, axis2=-1)),
    "squared_norm": (arrays.squared_norm, lambda A: (np.abs(A) ** 2).sum((-2, -1))),
    "squared_moduli": (arrays.squared_moduli, lambda A: np.abs(A) ** 2),
    "norms of rows": (lambda A: arrays.squared_norms(A, -1), lambda A: (np.abs(A) ** 2).sum(-1)),
    "norms of columns": (lambda A: arrays.squared_norms(A, -2), lambda A: (np.abs(A) ** 2).sum(-2)),
    "adjoint": (adjoint, transposed),
    "conjugate": (arrays.conjugate, np.conj),
    "real_part": (arrays.real_part, np.real),
}


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_matrices_are_those_of_numpy(xp, dtype, shape):
    A = draw(0, shape, dtype)
    given = make(xp, A, dtype)
    for name, (function, expected) in FUNCTIONS.items():
        found = function(given)
        assert np.finfo(to_numpy(found).dtype) == np.finfo(dtype), name  # as precise
        assert_allclose(to_numpy(found), expected(A), atol=tolerance(dtype), err_msg=name)


def test_namespaces_devices_and_kinds(xp):
    x = make(xp, [1.0])
    assert namespace(x, 2.0, None, np.float64(3.0)) is namespace(x)
    assert namespace(1.0, None) is namespace(np.empty(1))
    assert arrays.is_array(x)
    assert not arrays.is_array([1.0])
    assert arrays.on_host(x)


VALUES = [
    [1.0, 2.0],
    np.arange(3, dtype=np.float32),
    np.arange(6.0)[::-2],
    np.asfortranarray(np.ones((2, 3))),
    7,
]


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_like_and_beside_move_to_the_library_of_the_reference(xp, dtype):
    ref = make(xp, [0.0], dtype)
    for values in VALUES:
        moved = like(values, ref)
        assert namespace(moved) is namespace(ref)
        assert moved.dtype == ref.dtype
        assert_array_equal(to_numpy(moved), np.asarray(values))
    assert like(ref, make(xp, [1.0], dtype)) is ref
    other = make(xp, [1.0], "float32")
    assert arrays.beside(other, ref) is other
    assert namespace(arrays.beside(np.float32([1.0]), ref)) is namespace(ref)


def test_like_takes_a_read_only_array_and_shares_no_memory_across_libraries():
    torch = require("torch")
    values = np.arange(3.0)
    values.flags.writeable = False
    moved = like(values, torch.zeros(1, dtype=torch.float64))
    moved[0] = 9.0
    assert values[0] == 0.0


def test_tensors_with_gradients_are_detached_and_sparse_ones_refused():
    torch = require("torch")
    x = torch.ones(2, requires_grad=True)
    assert not as_plain(x).requires_grad
    assert_array_equal(to_numpy(x), [1.0, 1.0])
    with pytest.raises(ValueError, match="to_dense"):
        as_plain(torch.ones(2, 2).to_sparse())


def test_old_cupy_is_refused_and_new_cupy_accepted_whatever_the_number_of_axes(monkeypatch):
    class Old:
        pass

    class WithOneAxis:
        @property
        def mT(self):
            raise ValueError("matrix transpose with ndim < 2 is undefined")

    monkeypatch.setattr(compat, "is_cupy_array", lambda x: isinstance(x, Old | WithOneAxis))
    with pytest.raises(ValueError, match="CuPy 14 or later"):
        as_plain(Old())
    x = WithOneAxis()
    assert as_plain(x) is x


@pytest.mark.parametrize("dtype", DTYPES)
def test_precision_and_kind_change_only_where_asked(xp, dtype):
    x = make(xp, [1.0, 2.0], dtype)
    double = "complex128" if "complex" in dtype else "float64"
    single = dtype in ("float32", "complex64")
    assert arrays.as_float(x) is x
    assert arrays.as_float(xp.asarray([1, 2])).dtype == xp.float64
    assert arrays.as_double(x).dtype == getattr(xp, double)
    assert arrays.as_complex(x).dtype == getattr(xp, "complex64" if single else "complex128")
    assert arrays.is_complex(x) == ("complex" in dtype)
    assert arrays.machine_epsilon(x) == np.finfo(np.float32 if single else np.float64).eps
    if "float" in dtype:
        assert arrays.conjugate(x) is arrays.real_part(x) is x


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_makers_follow_the_type_of_the_reference(xp, dtype):
    ref = make(xp, np.zeros((2, 3)), dtype)
    made = {
        "zeros": (arrays.zeros_like_shape((2, 5), ref), np.zeros((2, 5))),
        "eye": (arrays.eye_like(3, ref), np.eye(3)),
        "arange": (arrays.arange_like(ref, start=1), [1, 2, 3]),
    }
    for found, expected in made.values():
        assert_array_equal(to_numpy(found), expected)
        assert found.dtype == ref.dtype
        assert device(found) == device(ref)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_add_diagonal_adds_numbers_vectors_and_stacks(xp, dtype, shape):
    A, rng = draw(1, shape), np.random.default_rng(2)
    given = make(xp, A, dtype)
    for values in (0.5, np.float64(0.5), rng.standard_normal(4), rng.standard_normal(shape[:-1])):
        total = add_diagonal(given, values if np.ndim(values) == 0 else make(xp, values))
        assert total.dtype == given.dtype
        expected = A + np.eye(4) * np.asarray(values)[..., None]
        assert_allclose(to_numpy(total), expected, atol=tolerance(dtype))
    assert_array_equal(to_numpy(given), A.astype(dtype))


def test_add_diagonal_keeps_infinity_on_the_diagonal_and_stretches_one_matrix(xp):
    ones = make(xp, np.ones((2, 2)))
    total = to_numpy(add_diagonal(ones, make(xp, [np.inf, 1.0])))
    assert_array_equal(total, [[np.inf, 1.0], [1.0, 2.0]])
    stacked = add_diagonal(ones, make(xp, np.arange(6.0).reshape(3, 2)))
    assert_array_equal(to_numpy(stacked)[2], [[5.0, 1.0], [1.0, 6.0]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_decompositions_descend_and_rebuild_the_matrix(xp, dtype, shape):
    A = draw(3, shape)
    symmetric = A + transposed(A)
    values, vectors = map(to_numpy, arrays.eigh_descending(make(xp, symmetric, dtype)))
    assert (np.diff(values, axis=-1) <= 0).all()
    assert_allclose(symmetric @ vectors, vectors * values[..., None, :], atol=tolerance(dtype))
    for wide in (A[..., :2, :], A[..., :2]):
        U, s, Vt = map(to_numpy, arrays.svd_thin(make(xp, wide, dtype)))
        assert U.dtype == s.dtype == Vt.dtype == dtype
        assert (np.diff(s, axis=-1) <= 0).all()
        assert_allclose((U * s[..., None, :]) @ Vt, wide, atol=tolerance(dtype))


@pytest.mark.covering
@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_one_update_happens_in_place_without_conjugation(xp, dtype, layout):
    whole = np.array(draw(4, (6, 8), dtype).astype(dtype), order="F" if layout == "F" else "C")
    A = {"strided": whole[::2, ::2], "reversed": whole[::-1]}.get(layout, whole)
    owned = A if "numpy" in xp.__name__ else make(xp, A, dtype)
    x = draw(5, 2 * A.shape[0], dtype).astype(dtype)[::2]
    y = draw(6, A.shape[1], dtype).astype(dtype)
    expected = A - 0.5 * np.outer(x, y)
    assert rank_one_(owned, make(xp, x, dtype), make(xp, y, dtype), np.float64(-0.5)) is owned
    assert_allclose(to_numpy(owned), expected, atol=tolerance(dtype))
    assert owned.dtype == getattr(xp, dtype)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_entries_are_replaced_in_a_copy_of_the_same_type(xp, dtype):
    A = make(xp, [[1.0, -1.0], [2.0, -2.0]], dtype)
    for value in (0.0, np.float64(0.0), xp.asarray(0.0), make(xp, np.zeros((2, 2)))):
        filled = where_set(A, A < 0, value)
        assert filled.dtype == A.dtype
        assert_array_equal(to_numpy(filled), [[1.0, 0.0], [2.0, 0.0]])
    assert_array_equal(to_numpy(arrays.clamped(A, -1.0, 1.0)), [[1.0, -1.0], [1.0, -1.0]])
    assert_array_equal(to_numpy(A), [[1.0, -1.0], [2.0, -2.0]])


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_one_seed_gives_the_same_numbers_everywhere(xp, dtype):
    for rng in (np.random.default_rng(3), np.random.RandomState(3)):
        twin = deepcopy(rng)
        drawn = arrays.normal(rng, (2, 3), make(xp, [0.0], dtype))
        assert drawn.dtype == getattr(xp, dtype)
        assert_array_equal(to_numpy(drawn), twin.standard_normal((2, 3)).astype(dtype))


def test_numbers_leave_the_device_as_python_floats(xp):
    x = make(xp, [[-3.0, 2.0]])
    assert type(arrays.largest(x)) is float
    assert arrays.largest(x) == 3.0
    assert arrays.largest(x[:, :0]) == 0.0


@pytest.mark.parametrize("size", [1, 63, 64, 65, 130])
def test_gram_matrices_of_blocks_add_up_and_are_mirrored(xp, size):
    blocks = np.random.default_rng(0).standard_normal((3, 5, size))
    total = None
    for block in blocks:
        total = arrays.add_gram_(total, make(xp, block))
    expected = np.einsum("bni,bnj->ij", blocks, blocks)
    assert_allclose(to_numpy(arrays.mirrored(total)), expected, atol=1e-12)
    assert_array_equal(to_numpy(arrays.mirrored(total)), to_numpy(arrays.mirrored(total)).T)


def positive_definite(seed, shape, dtype="float64"):
    A = draw(seed, shape, dtype)
    return A @ transposed(A) + np.eye(shape[-1])


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cholesky_factors_and_triangular_systems(xp, dtype, shape):
    A, B = positive_definite(7, shape, dtype), draw(8, (*shape[:-1], 2), dtype)
    given, right = make(xp, A, dtype), make(xp, B, dtype)
    L, ok = cholesky(given)
    assert to_numpy(ok).shape == shape[:-2]
    assert to_numpy(ok).all()
    factor, close = to_numpy(L), {"atol": tolerance(dtype)}
    assert_array_equal(factor, np.tril(factor))
    assert_allclose(factor @ transposed(factor), A, **close)
    assert_allclose(factor @ to_numpy(solve_lower(L, right)), B, **close)
    assert_allclose(
        transposed(factor) @ to_numpy(solve_lower(L, right, transpose=True)), B, **close
    )
    assert_allclose(to_numpy(inverse_lower(L)) @ factor, np.eye(4) + 0 * A, **close)
    assert_allclose(to_numpy(multiply_lower(L, right)), factor @ B, **close)
    assert_allclose(A @ to_numpy(solve_positive(given, right)), B, **close)
    for found in (L, solve_lower(L, right), inverse_lower(L), multiply_lower(L, right)):
        assert found.dtype == given.dtype


@pytest.mark.parametrize(
    "bad",
    [np.diag([1.0, -1.0]), np.ones((2, 2)), [[1.0, 0.0], [np.nan, 1.0]], [[np.inf, 0.0], [0.0, 1]]],
    ids=["indefinite", "singular", "nan", "infinite"],
)
def test_only_the_failing_matrix_of_a_stack_is_marked(xp, bad):
    stack = make(xp, np.stack([2.0 * np.eye(2), bad, np.eye(2)]))
    L, ok = cholesky(stack)
    assert_array_equal(to_numpy(ok), [True, False, True])
    assert np.isnan(to_numpy(L)[1]).all()
    assert_allclose(to_numpy(L)[[0, 2]], [np.sqrt(2.0) * np.eye(2), np.eye(2)])
    assert np.isnan(to_numpy(inverse_lower(L))[1][np.tril_indices(2)]).all()
    if np.isfinite(bad).all():
        solved = to_numpy(solve_positive(stack, make(xp, np.ones((3, 2, 1)))))
        assert_array_equal(np.isnan(solved).all(axis=(1, 2)), [False, True, False])
    single, fine = cholesky(make(xp, bad))
    assert not bool(fine)
    assert np.isnan(to_numpy(single)).all()


def test_one_factor_serves_many_right_sides_vectors_and_complex_numbers(xp):
    L, B = np.tril(draw(9, (3, 3))) + 3 * np.eye(3), draw(10, (5, 3, 2))
    X = to_numpy(solve_lower(make(xp, L), make(xp, B)))
    assert_allclose(L @ X, B, atol=1e-12)
    one_side = to_numpy(solve_lower(make(xp, np.stack([L, 2 * L])), make(xp, B[0])))
    assert_allclose(one_side[1], X[0] / 2, atol=1e-12)
    x = to_numpy(solve_lower(make(xp, L), make(xp, B[0, :, 0]), transpose=True))
    assert_allclose(L.T @ x, B[0, :, 0], atol=1e-12)
    if "numpy" in xp.__name__:
        B = draw(11, (3, 2), "complex128")
        assert_allclose(L.T @ solve_lower(L, B, transpose=True), B, atol=1e-12)


def test_a_singular_triangle_is_refused_by_numpy():
    for solve in (lambda L: solve_lower(L, np.ones((2, 1))), inverse_lower):
        with pytest.raises(np.linalg.LinAlgError, match="zero on its diagonal, in row 1"):
            solve(np.diag([1.0, 0.0]))


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0)])
def test_systems_without_equations_have_empty_solutions(shape, capfd):
    L, B = np.zeros(shape), np.zeros((*shape[:-1], 3))
    assert solve_lower(L, B).shape == B.shape
    assert inverse_lower(L).shape == shape
    assert capfd.readouterr() == ("", "")  # LAPACK would complain
