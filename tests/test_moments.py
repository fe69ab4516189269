"""`SecondMoment` against exact arithmetic, NumPy, and itself in any order.

Errors of the scatter S are measured relative to √(Sᵢᵢ Sⱼⱼ), the largest possible Sᵢⱼ, and errors of
the mean relative to the standard deviation √(Sᵢᵢ / weight), which may be one for a mean of 10¹².
"""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae import SecondMoment, moments

EPS = np.finfo(float).eps


def exact_moment(X, weights):
    """Return mean and scatter in rational arithmetic, rounded once at the end."""
    rows = [[Fraction(float(x)) for x in row] for row in X]
    weights = [Fraction(float(w)) for w in weights]
    total = sum(weights)
    columns = [*zip(*rows, strict=True)]
    means = [sum(w * x for w, x in zip(weights, c, strict=True)) / total for c in columns]
    centred = [[x - mean for x in c] for c, mean in zip(columns, means, strict=True)]
    scatter = [
        [sum(w * x * y for w, x, y in zip(weights, a, b, strict=True)) for b in centred]
        for a in centred
    ]
    return means, np.array(scatter, dtype=float)


def assert_exact(moment, X, weights=None, tolerance=1e-12):
    weights = np.ones(len(X)) if weights is None else weights
    means, scatter = exact_moment(X, weights)
    deviation = np.sqrt(np.diag(scatter))
    error = np.abs(np.asarray(moment.scatter) - scatter)
    assert (error <= tolerance * np.outer(deviation, deviation)).all()
    held = zip(np.asarray(moment.center), np.asarray(moment.offset), strict=True)
    errors = [
        float(Fraction(c) + Fraction(o) - mean) for (c, o), mean in zip(held, means, strict=True)
    ]
    assert (np.abs(errors) <= tolerance * deviation / np.sqrt(moment.weight)).all()
    assert_allclose(moment.weight, sum(weights), rtol=1e-15)


def same(one, other, rtol=1e-12):
    deviation = np.sqrt(np.diag(np.asarray(one.scatter)))
    error = np.abs(np.asarray(one.scatter) - np.asarray(other.scatter))
    assert (error <= rtol * np.outer(deviation, deviation)).all()
    assert_allclose(np.asarray(one.mean), np.asarray(other.mean), rtol=rtol, atol=rtol)
    assert_allclose(one.weight, other.weight, rtol=1e-15)


def frozen_bytes(moment):
    arrays = (moment.scatter, moment.center, moment.offset)
    return moment.weight, *(np.asarray(a).tobytes() for a in arrays)


@st.composite
def grouped_rows(draw):
    """Rows with large means and drifting groups, columns of different scales, and weights."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    n, m = sum(sizes), draw(st.integers(1, 3))
    scales = 10.0 ** np.array(draw(st.lists(st.integers(-6, 6), min_size=m, max_size=m)))
    ratio = draw(st.sampled_from([0.0, 1.0, 1e4, 1e8, 1e12]))
    drift = draw(st.sampled_from([0.0, 3.0, 1e6]))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.standard_normal((n, m)) + ratio + drift * rng.standard_normal((len(sizes), m))[groups]
    weights = rng.integers(0, 4, n) * draw(st.sampled_from([1.0, 0.37]))
    weights[np.cumsum(sizes) - 1] += 1.0  # no group weighs nothing
    return X * scales, weights if draw(st.booleans()) else None, np.cumsum(sizes)[:-1]


def merge_in_any_order(data, parts):
    """Merge two of the moments that are left, in either order, until one is left."""
    while len(parts) > 1:
        i, j = data.draw(st.permutations(range(len(parts))))[:2]
        merged = parts[i].merge(parts[j])
        parts = [part for index, part in enumerate(parts) if index not in (i, j)] + [merged]
    return parts[0]


@given(st.data(), grouped_rows())
def test_merging_in_any_order_and_grouping_is_exact(data, drawn):
    X, weights, cuts = drawn
    rows = np.split(X, cuts)
    row_weights = [None] * len(rows) if weights is None else np.split(weights, cuts)
    parts = [SecondMoment.of(*pair) for pair in zip(rows, row_weights, strict=True)]
    assert_exact(merge_in_any_order(data, parts), X, weights)


@given(grouped_rows())
def test_updates_and_one_shot_are_exact(drawn):
    X, weights, cuts = drawn
    rows = np.split(X, cuts)
    row_weights = [None] * len(rows) if weights is None else np.split(weights, cuts)
    moment = SecondMoment.of(rows[0], row_weights[0])
    for batch, batch_weights in zip(rows[1:], row_weights[1:], strict=True):
        moment = moment.update(batch, batch_weights)
    assert_exact(moment, X, weights)
    assert_exact(SecondMoment.of(X, weights), X, weights)


def test_a_probe_that_misleads_is_looked_through():
    """The few rows that are probed have mean zero, all others lie far away from it."""
    rng = np.random.default_rng(2)
    X = 1e9 + rng.standard_normal((2 * moments.PROBED_ROWS, 2))
    X[::2] = 1e-3 * rng.standard_normal((moments.PROBED_ROWS, 2))
    X[::2, 1] += 1e9
    assert_exact(SecondMoment.of(X), X)


def test_light_rows_do_not_choose_the_centre_of_heavy_ones():
    """Without the test of the digits, the variance of the heavy rows would be lost."""
    rng = np.random.default_rng(0)
    X = np.vstack([rng.standard_normal((200, 2)), 1e9 + rng.standard_normal((10, 2))])
    weights = np.r_[np.full(200, 1e-30), np.ones(10)]
    assert_exact(SecondMoment.of(X, weights), X, weights)
    joined = SecondMoment.of(X[:200], weights[:200]).update(X[200:], weights[200:])
    same(joined, SecondMoment.of(X, weights))


def test_blocks_of_rows_do_not_show(monkeypatch):
    rng = np.random.default_rng(5)
    X, weights = rng.standard_normal((100, 5)) + 1e8, rng.random(100)
    whole = SecondMoment.of(X, weights)
    monkeypatch.setattr(moments, "BLOCK_ROWS", 7)
    same(SecondMoment.of(X, weights), whole)
    assert_exact(SecondMoment.of(X, weights), X, weights)


def test_a_block_without_weight_is_passed_over(monkeypatch):
    rng = np.random.default_rng(6)
    monkeypatch.setattr(moments, "BLOCK_ROWS", 2)
    X = rng.standard_normal((6, 2))
    weights = np.array([0.0, 0.0, 1.0, 2.0, 0.0, 0.0])
    assert_exact(SecondMoment.of(X, weights), X, weights)


@pytest.mark.parametrize("shape", [(50, 4), (3, 10), (2, 1)])
def test_covariance_is_that_of_numpy(xp, shape):
    rng = np.random.default_rng(7)
    X = rng.standard_normal(shape) @ np.diag(np.arange(1.0, shape[1] + 1)) + 5.0
    moment = SecondMoment.of(xp.asarray(X))
    expected = np.cov(X.T, bias=True).reshape(shape[1], shape[1])
    # A sum of n squares has at most n rounding errors of its size, and the squares are at most
    # eight times the variances (`LARGEST_SHARE`); NumPy's own error is smaller than that.
    n, deviation = shape[0], np.sqrt(np.diag(expected))
    bound = 16 * (n + 2) * EPS
    error = np.abs(np.asarray(moment.covariance) - expected)
    assert (error <= bound * np.outer(deviation, deviation)).all()
    assert_allclose(np.asarray(moment.mean), X.mean(axis=0), rtol=0, atol=bound * np.abs(X).max())
    assert_allclose(moment.trace, np.trace(expected), rtol=bound)
    assert moment.weight == shape[0]
    assert moment.n_features == shape[1]
    assert type(moment.covariance) is type(xp.asarray(X))


@given(st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(any), st.booleans())
def test_weights_are_repetitions(counts, sparse):
    X = np.random.default_rng(sum(counts)).standard_normal((len(counts), 3)) + 100.0
    kind = scipy.sparse.csr_array if sparse else np.asarray
    repeated = SecondMoment.of(np.repeat(X, counts, axis=0))
    same(SecondMoment.of(kind(X), counts), repeated)


def test_a_row_of_no_weight_changes_nothing():
    rng = np.random.default_rng(9)
    X = rng.standard_normal((5, 2))
    outlier = np.vstack([X, [1e100, -1e100]])
    for kind in (np.asarray, scipy.sparse.csr_array):
        same(SecondMoment.of(kind(outlier), [1, 1, 1, 1, 1, 0]), SecondMoment.of(X))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool"])
def test_narrow_input_is_summed_in_double_precision(xp, dtype):
    rng = np.random.default_rng(10)
    narrow = (rng.standard_normal((500, 3)) * 3 + 1000).astype(dtype)
    moment = SecondMoment.of(xp.asarray(narrow[:300])).update(xp.asarray(narrow[300:]))
    assert moment.scatter.dtype == xp.float64
    reference = SecondMoment.of(narrow.astype(float))
    assert_allclose(np.asarray(moment.scatter), reference.scatter, rtol=1e-11)
    assert_array_equal(np.asarray(moment.mean), reference.mean)


def test_libraries_may_be_mixed_and_the_first_one_stays(xp):
    rng = np.random.default_rng(12)
    X, weights = rng.standard_normal((30, 3)), rng.random(30)
    whole = SecondMoment.of(X, weights)
    first = SecondMoment.of(xp.asarray(X[:10]), xp.asarray(weights[:10]))
    mixed = first.update(X[10:20], weights[10:20]).merge(SecondMoment.of(X[20:], weights[20:]))
    assert type(mixed.scatter) is type(xp.asarray(X))
    same(mixed, whole)
    sparse = first.update(scipy.sparse.csr_array(X[10:]), weights[10:])
    assert type(sparse.scatter) is type(xp.asarray(X))
    same(sparse, whole)
    same(SecondMoment.of(X[10:], weights[10:]).merge(first), whole)


def test_tensors_that_carry_gradients_are_only_read():
    torch = require("torch")
    X = torch.ones(4, 2, requires_grad=True)
    moment = SecondMoment.of(X, torch.ones(4, requires_grad=True))
    assert not moment.scatter.requires_grad


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("density", [0.05, 0.6, 1.0])
def test_sparse_rows_give_the_dense_moment(layout, density):
    rng = np.random.default_rng(13)
    X = scipy.sparse.csr_array((rng.random((80, 6)) < density) * rng.random((80, 6)))
    X = X.asformat(layout)
    weights = rng.integers(0, 3, 80)
    same(SecondMoment.of(X), SecondMoment.of(X.toarray()))
    same(SecondMoment.of(X, weights), SecondMoment.of(X.toarray(), weights))
    same(SecondMoment.of(X.astype(np.float32)), SecondMoment.of(X.astype(np.float32).toarray()))


@pytest.mark.parametrize("ratio", [1e8, 1e12])
def test_a_full_column_of_a_sparse_array_keeps_its_deviation(ratio):
    rng = np.random.default_rng(14)
    X = np.where(rng.random((40, 3)) < 0.5, 0.0, rng.standard_normal((40, 3)))
    X[:, 1] = ratio + rng.standard_normal(40)
    weights = rng.random(40)
    assert_exact(SecondMoment.of(scipy.sparse.csr_array(X)), X)
    assert_exact(SecondMoment.of(scipy.sparse.csr_array(X), weights), X, weights)


@given(value=st.floats(-1e6, 1e6).filter(bool), seed=st.integers(0, 2**16))
def test_a_constant_column_of_a_sparse_array_has_no_variance(value, seed):
    X = scipy.sparse.csr_array(np.full((30, 2), value))
    weights = np.random.default_rng(seed).random(30) + 1
    moment = SecondMoment.of(X, weights)
    assert moment.trace == 0.0
    assert not moment.covariance.any()
    np.testing.assert_array_equal(moment.mean, np.full(2, value))


def test_duplicate_entries_of_a_sparse_array_are_summed():
    X = scipy.sparse.csr_array((np.ones(3), [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    same(SecondMoment.of(X), SecondMoment.of(X.toarray()))
    assert X.nnz == 3


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_a_large_sparse_array_is_never_made_dense(scale):
    rng = np.random.default_rng(15)
    n, m, stored = 1_000_000, 300, 500
    values, columns = scale * rng.standard_normal(stored), rng.integers(0, m, stored)
    X = scipy.sparse.coo_array((values, (np.arange(stored) * 7, columns)), shape=(n, m)).tocsr()
    nonzero = X[np.arange(stored) * 7].toarray()
    rows = np.vstack([nonzero, np.zeros(m)])
    expected = SecondMoment.of(rows, np.append(np.ones(stored), n - stored))
    tracemalloc.start()
    try:
        moment = SecondMoment.of(X).update(X, np.ones(n))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * m * 8 / 20
    assert_allclose(moment.covariance, expected.covariance, rtol=1e-12, atol=1e-18)


def test_input_and_older_moments_stay_as_they_were():
    rng = np.random.default_rng(16)
    X, Y = rng.standard_normal((9, 3)), rng.standard_normal((5, 3))
    sparse = scipy.sparse.csr_array(np.abs(X))
    copies = X.copy(), Y.copy(), sparse.data.copy()
    first, second = SecondMoment.of(X), SecondMoment.of(Y)
    before = frozen_bytes(first), frozen_bytes(second)
    first.update(Y, np.ones(5))
    first.update(sparse)
    first.merge(second)
    second.merge(first).spectrum()
    assert (frozen_bytes(first), frozen_bytes(second)) == before
    for array, copy in zip((X, Y, sparse.data), copies, strict=True):
        assert_array_equal(array, copy)


def test_one_row_and_constant_columns_have_no_scatter(xp):
    row = np.array([[0.1, -3.0, 1e10]])
    one = SecondMoment.of(xp.asarray(row))
    many = SecondMoment.of(xp.asarray(np.repeat(row, 7, axis=0))).update(xp.asarray(row))
    assert_array_equal(np.asarray(one.covariance), np.zeros((3, 3)))
    assert_allclose(np.asarray(many.covariance), 0.0, atol=1e-11)
    assert_array_equal(np.asarray(one.mean), row[0])
    assert_allclose(np.asarray(many.mean), row[0], rtol=1e-15)
    values, vectors = one.spectrum()
    assert_array_equal(np.asarray(values), np.zeros(3))
    assert_allclose(np.asarray(vectors).T @ np.asarray(vectors), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_a_bad_entry_anywhere_is_found_even_without_weight(entry, kind):
    X = np.ones((5, 3))
    X[3, 1] = entry
    weights = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
    for given_weights in (None, weights):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            SecondMoment.of(kind(X), given_weights)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_squares_beyond_double_precision_are_refused_with_the_way_out(kind):
    rng = np.random.default_rng(17)
    X = rng.standard_normal((6, 2))
    for scale in (1e200, 1e300):
        with pytest.raises(ValueError, match=r"overflow.*e\+\d+.*Divide X"):
            SecondMoment.of(kind(X * scale))
    with pytest.raises(ValueError, match=r"underflow.*e-200.*Multiply X"):
        SecondMoment.of(kind(X * 1e-200))
    with pytest.raises(ValueError, match="underflow"):
        SecondMoment.of(kind([[1e-200, 0.0]])).update(kind([[2e-200, 0.0]]))
    with pytest.raises(ValueError, match="overflow"):
        SecondMoment.of(kind([[1e170, 1.0]])).merge(SecondMoment.of(kind([[-1e170, 1.0]])))
    with pytest.raises(ValueError, match=r"overflow.*sum to 6e\+307\. Divide sample_weight"):
        SecondMoment.of(kind(1e3 * X), np.full(6, 1e307))
    with pytest.raises(ValueError, match="Divide sample_weight"):
        SecondMoment.of(kind([[1e140, 0.0], [-1e140, 0.0]]), np.full(2, 1e100))


def test_moments_of_other_lengths_and_kinds_are_refused():
    moment = SecondMoment.of(np.ones((3, 2)))
    with pytest.raises(ValueError, match="batch has 3 features, but this second moment has 2"):
        moment.update(np.ones((3, 3)))
    with pytest.raises(ValueError, match="2 and 3 features"):
        moment.merge(SecondMoment.of(np.ones((3, 3))))
    with pytest.raises(ValueError, match="got ndarray"):
        moment.merge(np.ones((3, 2)))
    assert repr(moment) == "SecondMoment(n_features=2, weight=3)"


def test_saved_moments_come_back_to_the_last_bit(xp, tmp_path):
    rng = np.random.default_rng(18)
    moment = SecondMoment.of(xp.asarray(rng.standard_normal((10, 4)) + 1e9))
    path = tmp_path / "deep" / "moment.npz"
    moment.save(path)
    loaded = SecondMoment.load(path)
    assert frozen_bytes(loaded) == frozen_bytes(moment)
    assert [*path.parent.iterdir()] == [path]
    same(loaded.update(np.ones((1, 4))), moment.update(xp.ones((1, 4))), rtol=1e-15)


FIELDS = {
    "format": 2,
    "weight": 2.0,
    "squares": np.eye(2),
    "center": np.zeros(2),
    "offset": np.zeros(2),
}


@pytest.mark.parametrize(
    "change",
    [
        {"squares": np.eye(3)},
        {"center": np.zeros(3)},
        {"weight": np.ones(2)},
        {"weight": -1.0},
        {"weight": 0.0},
        {"weight": np.inf},
        {"offset": np.array([np.nan, 0.0])},
        {"center": np.array([0.0, np.inf])},
        {"center": np.zeros(2, dtype=np.float32)},
        {"squares": np.ones((2, 1))},
        {"offset": np.zeros((2, 1))},
        {"format": 1},
        {"weight": np.nan},
        {"squares": np.full((2, 2), np.nan)},
        {"squares": np.array([["a", "b"], ["c", "d"]])},
        {"format": 99},
        {"center": np.empty(0), "offset": np.empty(0), "squares": np.empty((0, 0))},
        {"extra": 1.0},
        {"squares": np.array([[None, 1], [2, 3]], dtype=object)},
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, change):
    path = tmp_path / "moment.npz"
    np.savez(path, **FIELDS)
    assert SecondMoment.load(path).weight == 2.0
    np.savez(path, **(FIELDS | change))
    with pytest.raises(ValueError, match=r"moment\.npz' is not a saved SecondMoment"):
        SecondMoment.load(path)


def test_underflow_is_that_of_the_weighted_squares():
    X = np.array([[1e-150], [-1e-150]])
    assert SecondMoment.of(X, [1e30, 1e30]).scatter == pytest.approx(2e-270, rel=1e-9, abs=0)
    for factor in (1.0, 1e5):
        with pytest.raises(ValueError, match="underflow"):
            SecondMoment.of(X, [factor, factor])
    # Entries that differ from their mean by 1.5 parts in 1e15 vary, by half of a part they do not.
    with pytest.raises(ValueError, match="underflow"):
        SecondMoment.of(1e-200 * np.array([[1.0], [1.0 + 3.1e-15]]))
    SecondMoment.of(1e-200 * np.array([[1.0], [1.0 + 1e-15]]))


def single_rows(mean, seed=0):
    """Return float32 rows with more entries than are multiplied in double precision."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((11_000, 200)) @ np.diag(np.geomspace(3, 0.1, 200)) + mean
    return X.astype(np.float32)


@pytest.mark.parametrize("mean", [0.0, 1.0, 300.0])
def test_many_float32_rows_lose_no_more_than_the_rounding_errors_of_single_precision(mean):
    X = single_rows(mean)
    moment, exact = SecondMoment.of(X), SecondMoment.of(X.astype(float))
    scale = np.sqrt(np.outer(np.diag(exact.covariance), np.diag(exact.covariance)))
    error = np.abs(moment.covariance - exact.covariance) / scale
    assert 1e-11 < error.max() < 2e-6  # single precision was used, and was enough
    assert np.abs(moment.mean - exact.mean).max() < 1e-7 * (1 + mean)
    joined = moment.update(X)
    assert joined.covariance == pytest.approx(exact.covariance, abs=2e-6 * scale.max())
    assert joined.weight == 22_000


@pytest.mark.parametrize("factor", [1e-15, 1e15])
def test_float32_rows_whose_squares_leave_single_precision_are_converted(factor):
    X = single_rows(0.0)[:, :190] * np.float32(factor)
    X = np.concatenate([X, X[:, :10]], axis=1)
    exact = SecondMoment.of(X.astype(float)).covariance
    assert SecondMoment.of(X).covariance == pytest.approx(exact, abs=1e-12 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_threads_that_share_rows_give_the_same_moment(monkeypatch, dtype, weighted):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((3001, 20)) + 3.0 * rng.random(20)).astype(dtype)
    weights = rng.random(3001) if weighted else None
    alone = SecondMoment.of(X, weights)
    monkeypatch.setattr(moments, "SHARED_PRODUCTS", 1)
    monkeypatch.setattr(moments, "SHARED_ROWS", 1)
    monkeypatch.setattr(moments, "SINGLE_ENTRIES", 1)
    monkeypatch.setattr(moments, "blas_threads", lambda: 3)
    shared = SecondMoment.of(X, weights)
    close = 1e-6 if dtype == "float32" and not weighted else 1e-13
    assert_allclose(shared.mean, alone.mean, rtol=close)
    assert_allclose(shared.covariance, alone.covariance, atol=close)
    assert shared.weight == alone.weight
    assert (shared.rounding > 0) == (dtype == "float32" and not weighted)
