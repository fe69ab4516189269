"""The helpers of `lucidae.arrays` give the same results with every library."""

from copy import deepcopy

import array_api_compat as compat
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae.arrays import (
    add_diagonal,
    add_gram_,
    arange_like,
    as_double,
    as_float,
    as_plain,
    beside,
    device,
    diagonal,
    eigh_descending,
    eye_like,
    helpers,
    is_array,
    is_numpy,
    largest,
    like,
    machine_epsilon,
    namespace,
    normal,
    on_host,
    put,
    rank_one_,
    scalar,
    squared_norm,
    squared_norms,
    svd_thin,
    to_numpy,
    trace,
    where_set,
    zeros_like_shape,
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


def test_namespace_passes_over_scalars_and_none(xp):
    x = make(xp, [1.0])
    assert namespace(x, 2.0, None, np.float64(3.0)) is namespace(x)
    assert namespace(1.0, None) is namespace(np.empty(1))


def test_only_numpy_is_numpy(xp):
    x = make(xp, [1.0])
    assert is_array(x)
    assert is_numpy(x) == ("numpy" in xp.__name__)
    assert not is_array([1.0])


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0],
        np.arange(3, dtype=np.float32),
        np.arange(6.0)[::-2],
        np.asfortranarray(np.ones((2, 3))),
        7,
    ],
    ids=["list", "float32", "reversed", "columns first", "number"],
)
def test_like_moves_values_to_library_and_type_of_the_reference(xp, dtype, values):
    moved = like(values, make(xp, [0.0], dtype))
    assert namespace(moved) is namespace(make(xp, [0.0]))
    assert moved.dtype == getattr(xp, dtype)
    assert_array_equal(to_numpy(moved), np.asarray(values))


def test_like_leaves_what_already_fits(xp):
    x = make(xp, [1.0])
    assert like(x, make(xp, [0.0])) is x


def test_like_takes_a_read_only_array_and_shares_no_memory_across_libraries():
    torch = require("torch")
    values = np.arange(3.0)
    values.flags.writeable = False
    moved = like(values, torch.zeros(1, dtype=torch.float64))
    moved[0] = 9.0
    assert values[0] == 0.0


def test_beside_keeps_a_neighbour_and_its_type(xp):
    x = make(xp, [1.0], "float32")
    assert beside(x, make(xp, [0.0])) is x
    moved = beside(np.float32([1.0]), make(xp, [0.0]))
    assert namespace(moved) is namespace(make(xp, [0.0]))


def test_plain_tensors_are_cut_off_from_gradients_and_dense():
    torch = require("torch")
    x = torch.ones(2, requires_grad=True)
    assert not as_plain(x).requires_grad
    with pytest.raises(ValueError, match="to_dense"):
        as_plain(torch.ones(2, 2).to_sparse())
    assert as_plain(3.0) == 3.0


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


def test_as_float_keeps_floats_and_widens_the_rest(xp, dtype):
    x = make(xp, [1.0], dtype)
    assert as_float(x) is x
    assert as_float(xp.asarray([1, 2])).dtype == xp.float64
    assert as_float(xp.asarray([True])).dtype == xp.float64
    assert as_double(x).dtype == xp.float64


def test_makers_follow_the_type_of_the_reference(xp, dtype):
    ref = make(xp, np.zeros((2, 3)), dtype)
    assert_array_equal(to_numpy(zeros_like_shape((2, 5), ref)), np.zeros((2, 5)))
    assert_array_equal(to_numpy(eye_like(3, ref)), np.eye(3))
    assert_array_equal(to_numpy(arange_like(ref, start=1)), [1, 2, 3])
    made = (zeros_like_shape((2, 5), ref), eye_like(3, ref), arange_like(ref))
    assert all(x.dtype == ref.dtype and device(x) == device(ref) for x in made)


@pytest.mark.parametrize("shape", SHAPES)
def test_add_diagonal_adds_numbers_vectors_and_stacks(xp, dtype, shape):
    A = RNG.standard_normal(shape)
    given = make(xp, A, dtype)
    for values in (0.5, np.float64(0.5), RNG.standard_normal(4), RNG.standard_normal(shape[:-1])):
        added = values if np.ndim(values) == 0 else make(xp, values)
        total = add_diagonal(given, added)
        expected = A + np.eye(4) * np.asarray(values)[..., None]
        assert total.dtype == given.dtype
        assert_allclose(to_numpy(total), expected, rtol=tolerance(dtype))
    assert_array_equal(to_numpy(given), A.astype(dtype))


def test_add_diagonal_keeps_an_infinite_entry_on_the_diagonal(xp):
    total = to_numpy(add_diagonal(make(xp, np.ones((2, 2))), make(xp, [np.inf, 1.0])))
    assert_array_equal(total, [[np.inf, 1.0], [1.0, 2.0]])


def test_add_diagonal_stretches_one_matrix_over_a_stack_of_diagonals(xp):
    stacked = add_diagonal(make(xp, np.ones((2, 2))), make(xp, np.arange(6.0).reshape(3, 2)))
    assert_array_equal(to_numpy(stacked)[2], [[5.0, 1.0], [1.0, 6.0]])


@pytest.mark.parametrize("shape", SHAPES)
def test_traces_and_norms(xp, dtype, shape):
    A = RNG.standard_normal(shape)
    given = make(xp, A, dtype)
    expected_diagonal = np.diagonal(A, axis1=-2, axis2=-1)
    assert_allclose(to_numpy(diagonal(given)), expected_diagonal, rtol=1e-5)
    assert_allclose(to_numpy(trace(given)), expected_diagonal.sum(-1), rtol=1e-4, atol=1e-5)
    assert_allclose(to_numpy(squared_norm(given)), (A**2).sum((-2, -1)), rtol=1e-4)
    for axis in (-1, -2):
        assert_allclose(to_numpy(squared_norms(given, axis)), (A**2).sum(axis), rtol=1e-4)
    assert trace(given).dtype == squared_norm(given).dtype == given.dtype


def test_a_part_is_put_where_it_belongs_and_the_rest_is_left(xp):
    A = make(xp, np.arange(8.0).reshape(4, 2))
    changed = put(A, np.array([1, 3]), make(xp, np.zeros((2, 2))))
    assert_array_equal(to_numpy(changed), [[0, 1], [0, 0], [4, 5], [0, 0]])
    assert_array_equal(to_numpy(A), np.arange(8.0).reshape(4, 2))


def test_these_arrays_live_on_the_host(xp):
    assert on_host(make(xp, np.ones(2)))


@pytest.mark.parametrize("shape", SHAPES)
def test_eigenvalues_descend_and_diagonalise(xp, dtype, shape):
    A = positive_definite(shape)
    values, vectors = eigh_descending(make(xp, A, dtype))
    assert values.dtype == vectors.dtype == getattr(xp, dtype)
    values, vectors = to_numpy(values), to_numpy(vectors)
    assert (np.diff(values, axis=-1) <= 0).all()
    assert_allclose(A @ vectors, vectors * values[..., None, :], atol=10 * tolerance(dtype))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 5, 2)])
def test_thin_singular_values_rebuild_the_matrix(xp, dtype, shape):
    A = RNG.standard_normal(shape)
    U, s, Vt = svd_thin(make(xp, A, dtype))
    assert U.dtype == s.dtype == Vt.dtype == getattr(xp, dtype)
    assert U.shape[-1] == s.shape[-1] == Vt.shape[-2] == min(shape[-2:])
    assert (np.diff(to_numpy(s), axis=-1) <= 0).all()
    rebuilt = (to_numpy(U) * to_numpy(s)[..., None, :]) @ to_numpy(Vt)
    assert_allclose(rebuilt, A, atol=tolerance(dtype))


def test_rank_one_update_happens_in_place(xp, dtype):
    A, x, y = RNG.standard_normal((3, 4)), RNG.standard_normal(3), RNG.standard_normal(4)
    owned = make(xp, A, dtype)
    returned = rank_one_(owned, make(xp, x, dtype), make(xp, y, dtype), -0.5)
    assert returned is owned
    assert owned.dtype == getattr(xp, dtype)
    assert_allclose(to_numpy(owned), A - 0.5 * np.outer(x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed"])
def test_rank_one_update_reaches_the_memory_of_every_layout(dtype, layout):
    whole = RNG.standard_normal((6, 8)).astype(dtype, order="F" if layout == "F" else "C")
    A = {"strided": whole[::2, ::2], "reversed": whole[::-1]}.get(layout, whole)
    x = RNG.standard_normal(2 * A.shape[0]).astype(dtype)[::2]
    y = RNG.standard_normal(A.shape[1]).astype(dtype)
    expected = A + 2.0 * np.outer(x, y)
    assert rank_one_(A, x, y, np.float64(2.0)) is A
    assert_allclose(A, expected, rtol=1e-5, atol=1e-5)
    assert np.shares_memory(A, whole)
    assert A.dtype == dtype


def test_where_set_fills_without_promoting(xp, dtype):
    A = make(xp, [[1.0, -1.0], [2.0, -2.0]], dtype)
    for value in (0.0, np.float64(0.0), xp.asarray(0.0), make(xp, np.zeros((2, 2)))):
        filled = where_set(A, A < 0, value)
        assert filled.dtype == A.dtype
        assert_array_equal(to_numpy(filled), [[1.0, 0.0], [2.0, 0.0]])
    assert to_numpy(A)[0, 1] == -1.0


def test_one_seed_gives_the_same_numbers_everywhere(xp, dtype):
    for rng in (np.random.default_rng(3), np.random.RandomState(3)):
        twin = deepcopy(rng)
        drawn = normal(rng, (2, 3), make(xp, [0.0], dtype))
        assert drawn.dtype == getattr(xp, dtype)
        assert_array_equal(to_numpy(drawn), twin.standard_normal((2, 3)).astype(dtype))


def test_numbers_leave_the_device_as_python_floats(xp, dtype):
    x = make(xp, [[-3.0, 2.0]], dtype)
    assert type(scalar(x[0, 1])) is float
    assert largest(x) == 3.0
    assert type(largest(x)) is float
    assert largest(x[:, :0]) == 0.0
    assert machine_epsilon(x) == np.finfo(dtype).eps
    assert type(machine_epsilon(x)) is float


def test_to_numpy_takes_tensors_that_carry_gradients():
    torch = require("torch")
    assert_array_equal(to_numpy(torch.ones(2, requires_grad=True)), [1.0, 1.0])


def test_gram_matrices_of_blocks_add_up(xp, dtype):
    blocks = np.random.default_rng(0).standard_normal((3, 5, 4))
    total = None
    for block in blocks:
        total = add_gram_(total, make(xp, block, dtype))
    expected = np.einsum("bni,bnj->ij", blocks, blocks)
    found = to_numpy(total).astype(float)
    assert_allclose(np.tril(found), np.tril(expected), atol=1e-4 if dtype == "float32" else 1e-12)


def test_arrays_that_follow_each_other_in_memory_are_not_copied():
    torch = require("torch")
    memory = torch.arange(12.0)
    first, second = memory[2:8].view(2, 3), memory[8:11]
    block = helpers._in_one_block([first, second])
    assert block.data_ptr() == first.data_ptr()
    assert_array_equal(block, memory[2:11])
    others = {
        "gap": [memory[:3], memory[4:6]],
        "order": [second, first],
        "strides": [first.mT, second],
        "memory": [first, second.clone()],
    }
    for arrays in others.values():
        copy = helpers._in_one_block(arrays)
        assert copy.data_ptr() != arrays[0].data_ptr()
        assert_array_equal(copy, np.concatenate([x.numpy().ravel() for x in arrays]))
