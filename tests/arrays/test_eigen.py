"""Dense, partial and iterative spectra agree, also with repeated and zero eigenvalues."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae import SecondMoment
from lucidae.arrays import eigen, to_numpy
from lucidae.arrays.eigen import krylov_eigenpairs

SIZE = 60
SPECTRA = {
    "distinct": np.arange(SIZE, 0, -1.0),
    "steep": 10.0 ** -np.arange(0, SIZE / 5, 0.2),
    "repeated": np.repeat([3.0, 2.0, 1.0], [2, 2, SIZE - 4]),
    "one value": np.ones(SIZE),
    "deficient": np.r_[5.0, 4.0, np.zeros(SIZE - 2)],
    "zero": np.zeros(SIZE),
}


def symmetric(eigenvalues, seed=0):
    square = np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2)
    basis = np.linalg.qr(square)[0]
    matrix = (basis * eigenvalues) @ basis.T
    return (matrix + matrix.T) / 2


def moment_with(matrix, xp=np):
    zeros = np.zeros(len(matrix))
    return SecondMoment(1.0, *(xp.asarray(a) for a in (matrix, zeros, zeros)))


def assert_leading(values, vectors, matrix, expected):
    k, scale = len(values), max(expected[0], 1e-300)
    assert_allclose(values, expected[:k], atol=1e-12 * scale)
    assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-10)
    assert_allclose(matrix @ vectors, vectors * values, atol=1e-10 * scale)


@pytest.mark.covering
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("k", [1, 3, SIZE - 1, SIZE, None])
def test_dense_spectra_on_every_library(xp, name, k):
    matrix = symmetric(SPECTRA[name])
    values, vectors = map(to_numpy, moment_with(matrix, xp).spectrum(k))
    assert vectors.shape == (SIZE, k or SIZE)
    assert (values >= 0).all()
    assert_leading(values, vectors, matrix, SPECTRA[name])


def test_few_of_many_are_found_iteratively_and_the_rest_densely(monkeypatch):
    calls = []
    found = eigen.krylov_eigenpairs
    monkeypatch.setattr(eigen, "ITERATIVE_FEATURES", SIZE)
    monkeypatch.setattr(
        eigen,
        "krylov_eigenpairs",
        lambda apply, k, *given, **named: calls.append(k) or found(apply, k, *given, **named),
    )
    for k in (1, 3, 4, 30, None):
        moment_with(symmetric(SPECTRA["distinct"])).spectrum(k)
    assert calls == [1, 3]


def test_signs_are_fixed_by_the_largest_entry(xp):
    vectors = np.array([[0.1, -0.9, 0.0], [-0.8, 0.3, 0.0]])
    fixed = to_numpy(eigen.fix_signs(xp.asarray(vectors)))
    assert_array_equal(fixed, [[-0.1, 0.9, 0.0], [0.8, -0.3, 0.0]])


@pytest.mark.parametrize("k", [0, -1, SIZE + 1, 2.0, "all", True])
def test_impossible_numbers_of_eigenpairs_are_refused(k):
    with pytest.raises(ValueError, match=f"k={k!r}"):
        moment_with(symmetric(SPECTRA["distinct"])).spectrum(k)


def graded_rows(seed, m=None):
    """Return rows whose variances span up to 28 decades: one huge row, or graded columns."""
    rng = np.random.default_rng(seed)
    m = m or int(rng.integers(3, 9))
    rows = rng.standard_normal((int(rng.integers(m + 2, m + 40)), m))
    if seed % 2 == 0:
        # One row that is huge in two features: the case in which evr loses the orthogonality.
        return np.vstack([rows, 10.0 ** rng.uniform(11, 14) * np.r_[1.0, 1.0, np.zeros(m - 2)]])
    if seed % 4 == 1:
        return rows * 10.0 ** rng.uniform(-7, 7, m)
    basis = np.linalg.qr(rng.standard_normal((m, m)))[0]
    return (rows * 10.0 ** -np.linspace(0, rng.uniform(4, 14), m)) @ basis


def assert_graded(values, vectors, rows):
    """Compare with the singular values of the centred rows, up to the rounding of a moment."""
    centred = rows - rows.mean(axis=0)
    _, singular, right = np.linalg.svd(centred)
    expected, k = np.append(singular**2 / len(rows), 0.0), len(values)
    error = 8 * len(right) * np.finfo(float).eps * expected[0]
    assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-13 * len(right))
    assert_allclose(values, expected[:k], atol=error)
    for i in range(k):
        gap = min(expected[i] - expected[i + 1], expected[max(i - 1, 0)] - expected[i] or np.inf)
        if gap > 1e3 * error:
            sine = np.linalg.norm(vectors[:, i] - right[i] * (right[i] @ vectors[:, i]))
            assert sine < 4 * error / gap


@pytest.mark.covering
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_graded_spectra_have_orthonormal_eigenvectors(first, xp):
    """LAPACK's evr gave components with a dot product of 0.66 for such moments."""
    for seed in range(first, first + 50):
        rows = graded_rows(seed)
        k = 2 + seed // 2 % (rows.shape[1] - 1)
        values, vectors = map(to_numpy, SecondMoment.of(xp.asarray(rows)).spectrum(k))
        assert_graded(values, vectors, rows)


@pytest.mark.parametrize("seed", range(60))
def test_graded_spectra_by_krylov_iteration(monkeypatch, seed):
    monkeypatch.setattr(eigen, "ITERATIVE_FEATURES", 40)
    rows = graded_rows(seed, m=40)
    values, vectors = SecondMoment.of(rows).spectrum(2)
    assert_graded(values, vectors, rows)


def test_eigenvectors_that_are_not_orthonormal_are_replaced(monkeypatch, xp):
    matrix = symmetric(SPECTRA["distinct"])
    wrong = np.eye(SIZE)[:, :2] + 1e-6

    def skewed(*_, **__):
        return xp.asarray(np.array([60.0, 59.0])), xp.asarray(wrong)

    monkeypatch.setattr(eigen, "SMALL", 0)  # so that SciPy is asked for some eigenpairs
    monkeypatch.setattr(eigen, "subset_eigenpairs", skewed)
    monkeypatch.setattr(eigen, "eigh_descending", skewed)
    values, vectors = map(to_numpy, moment_with(matrix, xp).spectrum(2))
    assert_leading(values, vectors, matrix, SPECTRA["distinct"])


@pytest.fixture
def arpack_first(monkeypatch):
    monkeypatch.setattr(eigen, "ARPACK_FEATURES", SIZE)
    monkeypatch.setattr(eigen, "ARPACK_SHARE", 5.0)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_arpack_gives_the_dense_spectrum(arpack_first, name, k):
    matrix = symmetric(SPECTRA[name])
    values, vectors = moment_with(matrix).spectrum(k)
    assert_leading(values, vectors, matrix, SPECTRA[name])


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1.0, 1e30, 1e150])
def test_arpack_is_as_accurate_in_any_units(monkeypatch, arpack_first, scale):
    matrix = scale * symmetric(SPECTRA["steep"])
    monkeypatch.setattr(eigen, "subset_eigenpairs", None)  # no dense solver
    values, vectors = eigen.leading_eigenpairs(matrix, 3)
    assert_leading(values / scale, vectors, matrix / scale, SPECTRA["steep"])


LARGE = {
    "decaying": 1.0 / np.arange(1, 301),
    "steep": np.geomspace(1.0, 1e-12, 300),
    "flat": np.r_[np.linspace(10.0, 5.0, 8), np.linspace(1.0, 0.0, 292)],
    "close": np.r_[1.0, 1.0 - 1e-3, 1.0 - 2e-3, 0.5 / np.arange(1, 298)],
}


@pytest.mark.covering
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("name", LARGE)
def test_arpack_is_accurate_and_estimates_a_rough_last_pair(name, k, rough):
    matrix, expected = symmetric(LARGE[name]), LARGE[name][:k]
    values, vectors = eigen.arpack_eigenpairs(lambda v: matrix @ v, 300, k, 600, rough=rough)
    strict = k - 1 if rough and k > 1 else k
    assert_leading(values[:strict], vectors[:, :strict], matrix, LARGE[name])
    assert_allclose(vectors.T @ vectors, np.eye(k), rtol=0, atol=1e-14)
    residuals = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)[:strict]
    assert residuals.max() <= 3e-14 * expected[0]
    assert 0.9 * expected[-1] <= values[-1] <= expected[-1] + 1e-14 * expected[0]


@pytest.mark.parametrize("products", [10, 30, 60])
def test_arpack_gives_up_after_its_products(products):
    matrix, calls = symmetric(np.linspace(1.0, 0.999, 300)), []
    found = eigen.arpack_eigenpairs(lambda v: calls.append(1) or matrix @ v, 300, 5, products)
    assert found is None
    assert len(calls) <= products + 2


def test_copies_that_arpack_missed_are_noticed(monkeypatch):
    matrix = symmetric(np.r_[2.0, 2.0, np.linspace(1.0, 0.1, SIZE - 2)])
    _, vectors = np.linalg.eigh(matrix)
    without = vectors[:, [-3, -2]]  # one copy of the eigenvalue 2, and the next one
    assert eigen.arpack_eigenpairs(lambda v: matrix @ v, SIZE, 2, 100) is not None
    monkeypatch.setattr(eigen, "eigsh", lambda *_, **__: (np.array([1.0, 2.0]), without))
    assert eigen.arpack_eigenpairs(lambda v: matrix @ v, SIZE, 2, 100) is None


@pytest.mark.covering
@pytest.mark.parametrize("k", [5, 60, 120])
@pytest.mark.parametrize("size", [450, 700])
def test_every_algorithm_for_a_stored_matrix_finds_the_leading_pairs(size, k):
    rng = np.random.default_rng(size + k)
    basis, _ = np.linalg.qr(rng.standard_normal((size, size)))
    values = np.linspace(3.0, 0.0, size) ** 2
    matrix = (basis * values) @ basis.T
    found, vectors = eigen.leading_eigenpairs((matrix + matrix.T) / 2, k)
    assert_allclose(found, values[:k], rtol=0, atol=1e-12)
    assert_allclose(np.abs(np.sum(vectors * basis[:, :k], axis=0)), 1.0, rtol=0, atol=1e-9)


M = 300

HARD = {
    "fast decay": 1.0 / np.arange(1, M + 1) ** 2,
    "slow decay": 1.0 / np.arange(1, M + 1),
    "linear": np.linspace(1.0, 0.1, M),
    "more copies than a block has vectors": np.r_[np.ones(60), np.full(M - 60, 0.5)],
    "copies, then a slope": np.r_[np.ones(50), np.linspace(0.9, 0.1, M - 50)],
    "rank 5": np.r_[np.arange(5.0, 0, -1), np.zeros(M - 5)],
    "one large": np.r_[1e6, np.linspace(2.0, 1.0, M - 1)],
    "zero": np.zeros(M),
}


@pytest.mark.covering
@pytest.mark.parametrize("k", [1, 3, 11, 45, 120])
@pytest.mark.parametrize("spectrum", HARD)
def test_pairs_are_those_of_a_dense_decomposition(spectrum, k):
    dense = symmetric(HARD[spectrum])
    values, vectors = krylov_eigenpairs(lambda rows: rows @ dense, k, dense[0])
    top = max(HARD[spectrum].max(), 1e-300)
    expected = np.linalg.eigvalsh(dense)[::-1][:k]
    errors = np.abs(values - np.maximum(expected, 0.0))
    assert errors[: max(1, k - 1)].max() <= 1e-12 * top
    assert errors.max() <= 2e-3 * top
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() < 1e-12
    residuals = np.linalg.norm(dense @ vectors - vectors * values, axis=0)
    assert residuals[: max(1, k - 1)].max() <= 1e-12 * top
    assert residuals.max() <= 2e-3 * top


def test_the_iteration_gives_up_where_it_would_take_too_long():
    dense = symmetric(np.linspace(1.0, 0.99, M))
    calls = []

    def apply(rows):
        calls.append(len(rows))
        return rows @ dense

    assert krylov_eigenpairs(apply, 3, dense[0], passes=12) is None
    assert len(calls) <= 12


@pytest.mark.parametrize("copies", [2, 5, 9])
def test_more_copies_than_a_narrow_block_has_vectors_are_found(copies):
    """A Krylov space of two start vectors contains two copies of an eigenvector in theory."""
    spectrum = np.r_[np.full(copies, 3.0), 1.0 / np.arange(1, M - copies + 1)]
    dense = symmetric(spectrum)
    values, _ = krylov_eigenpairs(lambda rows: rows @ dense, 10, dense[0], widest=2)
    assert values[:9] == pytest.approx(spectrum[:9], rel=1e-10)


def test_the_last_pair_is_as_accurate_as_asked_for():
    dense = symmetric(HARD["slow decay"])
    for last in (1e-3, 1e-13):
        values, vectors = krylov_eigenpairs(lambda rows: rows @ dense, 4, dense[0], last=last)
        assert np.linalg.norm(dense @ vectors[:, -1] - vectors[:, -1] * values[-1]) <= 1.1 * last
