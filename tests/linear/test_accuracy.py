"""Components of data of every kind and shape are as accurate as singular vectors of the rows."""

from functools import partial
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from extras import require
from known_spectra import batches_of, memory_map, read_in_blocks, rows_with, sines
from lucidae import DropoutAutoencoder, LinearAutoencoder, SecondMoment, certify
from lucidae.rows.operator import RowOperator
from lucidae.spectrum import leading, refined

EPS = float(np.finfo(float).eps)
LOST = 1e-11
"""What may be lost beside the rounding of the entries themselves, which is ε√(λ₁/λ)."""


def angle(components, axes):
    """Return the sine of the largest angle between orthonormal rows and orthonormal columns."""
    components = np.asarray(components, dtype=float)
    return float(np.linalg.norm(axes - components.T @ (components @ axes), 2))


def dominated(ratio, rank):
    """Return eigenvalues: one of size `ratio`, four between 3 and 2, and others below 1."""
    return np.concatenate([[ratio], np.linspace(3.0, 2.0, 4), np.linspace(1.0, 0.1, rank - 5)])


def reference(X, k, weights=None):
    """Return the leading eigenvalues and axes of the rows from a singular value decomposition."""
    weights = np.ones(X.shape[0]) if weights is None else weights
    rows = (X.toarray() if scipy.sparse.issparse(X) else X).astype(float)
    rows = (rows - weights @ rows / weights.sum()) * np.sqrt(weights / weights.sum())[:, None]
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    return singular[:k] ** 2, right[:k].T


def assert_accurate(model, X, weights=None, tolerance=1e-10):
    """Compare components and variances with those of a singular value decomposition."""
    k, total = model.n_components_, X.shape[0] if weights is None else weights.sum()
    values, axes = reference(X, k, weights)
    assert_allclose(model.explained_variance_ * (total - 1) / total, values, rtol=tolerance)
    signs = np.sign(np.sum(model.components_ * axes.T, axis=1))[:, None]
    assert max(sines(model.components_ * signs, axes)) < tolerance**0.75


# Ordinary rows of all shapes: whichever of the second moment, the Gram matrix and block Krylov
# iteration is cheapest.


def dense(rng, shape, offset):
    return rng.standard_normal(shape) * np.arange(1, shape[1] + 1) ** -0.7 + offset


def sparse(rng, shape, offset):
    X = scipy.sparse.random_array(shape, density=0.02, rng=rng).tolil()
    X[:, 7] = offset + rng.integers(-3, 4, shape[0])  # a column without zeros
    return X.tocsr() @ scipy.sparse.diags_array(1.0 + np.arange(shape[1]) / 20)


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (120, 120), (1300, 1100), (60, 9000)])
@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_every_shape(make, shape, weighted):
    rng = np.random.default_rng(0)
    X = make(rng, shape, 3.0)
    weights = rng.uniform(0.5, 2.0, shape[0]) if weighted else None
    model = LinearAutoencoder(4).fit(X, sample_weight=weights)
    assert_accurate(model, X, weights)
    assert model.certificate_.holds is not False
    assert model.certificate_["attributes"].holds


@pytest.mark.covering
@pytest.mark.parametrize("make", [dense, sparse])
@pytest.mark.parametrize("shape", [(200, 1500), (1000, 1500), (90, 60)])
def test_a_huge_mean_keeps_the_variance(make, shape):
    models = []
    for mean in (0.0, 1e12):
        X = make(np.random.default_rng(0), shape, 0.0)
        rows = X if make is dense else X.tolil()
        rows[:, 7] = mean + np.random.default_rng(1).integers(-3, 4, shape[0])  # exact in float64
        models.append(LinearAutoencoder(3).fit(rows if make is dense else rows.tocsr()))
    expected, model = models
    assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    assert_allclose(model.components_, expected.components_, atol=1e-10)
    assert model.certificate_["attributes"].holds


@pytest.mark.covering
@pytest.mark.parametrize("mean", [0.01, 5.0])
@pytest.mark.parametrize("shape", [(600, 1200), (1500, 1100), (60, 9000), (60_000, 40)])
def test_float32_rows_have_the_components_of_float64(shape, mean):
    rng = np.random.default_rng(0)
    X = dense(rng, shape, mean * rng.random(shape[1])).astype(np.float32)
    model = LinearAutoencoder(4).fit(X)
    assert model.components_.dtype == np.float32
    assert_accurate(model, X, tolerance=1e-5)
    assert model.certificate_["subspace"].holds
    assert model.certificate_["attributes"].holds


@pytest.mark.parametrize(
    "scales",
    [
        np.r_[1.0, 1e-3, 1e-4, np.full(1197, 1e-6)],
        1e15 * np.arange(1.0, 1201.0) ** -0.7,
        1e-15 * np.arange(1.0, 1201.0) ** -0.7,
    ],
    ids=["decades", "large", "small"],
)
def test_float32_rows_that_single_products_cannot_resolve(scales):
    X = (np.random.default_rng(3).standard_normal((700, 1200)) * scales).astype(np.float32)
    assert_accurate(LinearAutoencoder(3).fit(X), X, tolerance=1e-5)


def test_repeated_eigenvalues_of_sparse_rows_are_all_found():
    # Twelve equal eigenvalues: rows ±e_j for twelve features, and small ones for the others.
    axes = scipy.sparse.vstack([scipy.sparse.eye(2000, format="csr") * s for s in (1.0, -1.0)])
    scale = scipy.sparse.diags(np.where(np.arange(2000) < 12, 3.0, 0.5))
    model = LinearAutoencoder(12).fit((axes @ scale).tocsr())
    assert_allclose(np.sum(model.components_[:, :12] ** 2), 12, rtol=1e-10)
    assert model.certificate_["subspace"].holds


def test_eigenvalues_that_an_iteration_missed_are_noticed(monkeypatch):
    X = scipy.sparse.random_array((900, 1200), density=0.05, rng=np.random.default_rng(0))
    X = (X @ scipy.sparse.diags_array(np.r_[9.0, 7.0, 5.0, 3.0, 2.0, np.ones(1195)])).tocsr()
    assert_accurate(LinearAutoencoder(4).fit(X), X)
    true, calls = scipy.sparse.linalg.eigsh, []

    def misses_the_second(operator, k, **options):
        calls.append(k)
        values, vectors = true(operator, k + 1, **options)
        kept = [*range(k - 1), k]  # the values ascend
        return values[kept], vectors[:, kept]

    monkeypatch.setattr("lucidae.arrays.eigen.eigsh", misses_the_second)
    assert_accurate(LinearAutoencoder(4).fit(X), X)
    assert calls


def test_no_large_matrix_is_formed():
    """A matrix of 60,000 rows and columns would have 29 GB."""
    rng = np.random.default_rng(0)
    X = scipy.sparse.random_array((300, 60_000), density=0.001, rng=rng)
    X = scipy.sparse.hstack([rng.standard_normal((300, 2)) * [9.0, 6.0], X]).tocsr()
    assert_allclose(np.abs(LinearAutoencoder(2).fit(X).components_[:, :2]), np.eye(2), atol=0.2)
    with pytest.warns(ConvergenceWarning, match="limit of 2 iterations"):
        LinearAutoencoder(2, solver="gradient", max_iter=2, random_state=0).fit(X)
    square = scipy.sparse.random_array((8200, 8300), density=1e-5, rng=rng).tocsr()
    with pytest.raises(ValueError, match="needs all eigenvalues"):
        LinearAutoencoder(0.9).fit(square)


@pytest.mark.parametrize("k", [0.9, 2, None])
def test_equal_sparse_rows_have_components_of_variance_zero(k):
    X = scipy.sparse.csr_matrix(np.tile([2.0, 0, 0, 0, 1.0], (3, 1)))
    model = LinearAutoencoder(k).fit(X)
    assert_allclose(model.explained_variance_, 0.0)
    assert_allclose(model.inverse_transform(model.transform(X)), X.toarray(), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
@pytest.mark.parametrize("block_bytes", [2**25, 1000])
def test_likelihoods_of_sparse_rows_are_those_of_dense_rows(dtype, make, block_bytes, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 12)) * np.arange(12, 0, -1) + 1
    X = (X * (rng.random(X.shape) < 0.3)).astype(dtype)
    model = LinearAutoencoder(3).fit(X)
    expected, score = model.score_samples(X), model.score(X)
    read_in_blocks(monkeypatch, block_bytes)
    found = model.score_samples(make(X))
    assert found.dtype == expected.dtype
    assert_allclose(found, expected, rtol=1e-6 if dtype is np.float32 else 1e-12)
    assert_allclose(model.score(make(X)), score, rtol=1e-5 if dtype is np.float32 else 1e-12)


# A dominant eigenvalue: the second moment has no digits of the others.

SHAPES = {
    "tall": (600, 40),
    "wide": (40, 600),
    "many features": (1100, 1050),
    "few rows": (60, 1500),
}


@pytest.mark.covering
@pytest.mark.parametrize("ratio", [1e4, 1e6, 1e8, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("shape", SHAPES)
def test_small_components_are_as_exact_as_those_of_a_singular_value_decomposition(shape, ratio):
    n, m = SHAPES[shape]
    if n > 1000 and ratio not in (1e8, 1e12):
        return  # two ratios suffice for the largest rows
    values = dominated(ratio, min(n, m) - 2)
    X, axes = rows_with(values, n, m)
    model = LinearAutoencoder(5).fit(X)
    # LAPACK has errors of the same size on these rows, whose own rounding moves their axes.
    tolerance = 2 * EPS * np.sqrt(ratio) + LOST
    assert angle(model.components_[1:], axes[:, 1:5]) <= tolerance
    assert_allclose(model.explained_variance_ * (n - 1) / n, values[:5], rtol=tolerance)
    noise = values[5:].sum() / (m - 5) * n / (n - 1)
    assert_allclose(model.noise_variance_, noise, rtol=tolerance)


def test_it_is_no_less_exact_than_the_full_decomposition_of_scikit_learn():
    X, axes = rows_with(dominated(1e12, 38), 600, 40, seed=3)
    ours, peer = LinearAutoencoder(5).fit(X), PCA(5, svd_solver="full").fit(X)
    error = angle(peer.components_[1:], axes[:, 1:5])
    assert angle(ours.components_[1:], axes[:, 1:5]) <= 2 * error
    far = X + 1e6 * np.linspace(-1.0, 1.0, 40)
    peer = PCA(5, svd_solver="full").fit(far - far.mean(axis=0))
    assert angle(LinearAutoencoder(5).fit(far).components_[1:], peer.components_[1:].T) <= 1e-10


def test_components_agree_with_those_in_fifty_digits():
    X, _ = rows_with([1e12, 1e6, 2.0, 1.0, 0.1], 12, 6, seed=5)
    with mpmath.workdps(50):
        exact = mpmath.matrix(X.tolist())
        for j in range(6):
            mean = mpmath.fsum(exact[:, j]) / 12
            for i in range(12):
                exact[i, j] -= mean
        _, sizes, right = mpmath.svd_r(exact)
        axes = np.array([[float(right[i, j]) for j in range(6)] for i in range(4)])
        expected = np.array([float(size**2 / 11) for size in sizes[:4]])
    model = LinearAutoencoder(4).fit(X)
    axes *= np.sign(np.sum(axes * model.components_, axis=1))[:, None]
    # The rows are given exactly, so that only the errors of the algorithm remain.
    assert_allclose(model.components_, axes, atol=1e-10)
    assert_allclose(model.explained_variance_, expected, rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-14.0, 0.0), min_size=3, max_size=12),
    st.integers(0, 100),
    st.sampled_from([(50, 14), (14, 50), (30, 30)]),
)
def test_every_separated_subspace_is_exact(exponents, seed, shape):
    values = np.sort(10.0 ** np.array(exponents))[::-1]
    X, axes = rows_with(values, *shape, seed=seed)
    model = LinearAutoencoder(len(values)).fit(X)
    for k in range(1, len(values)):
        upper, lower = np.sqrt(values[k - 1 : k + 1])
        if upper - lower > 0.1 * upper:
            inherent = EPS * np.sqrt(values[0]) / (upper - lower)
            assert angle(model.components_[:k], axes[:, :k]) <= 20 * (inherent + 10 * LOST)
    gram = model.components_ @ model.components_.T
    assert_allclose(gram, np.eye(len(values)), atol=1e-13)


@pytest.mark.parametrize("method", ["rag", "nonuniform_l2", "nested_dropout", "linear_vae"])
def test_all_methods_use_the_exact_eigenpairs(method):
    values = dominated(1e12, 30)
    X, axes = rows_with(values, 300, 40)
    model = LinearAutoencoder(5, method=method).fit(X)
    assert angle(model.components_[1:], axes[:, 1:5]) <= EPS * 1e6 + LOST
    assert_allclose(model.noise_variance_, values[5:].sum() / 35 * 300 / 299, rtol=1e-9)


def test_degenerate_spectra_beside_a_dominant_eigenvalue():
    values = np.concatenate([[1e12, 1e12], np.full(3, 2.0), np.linspace(1.0, 0.1, 20)])
    X, axes = rows_with(values, 300, 40)
    model = LinearAutoencoder(5).fit(X)
    assert angle(model.components_[:2], axes[:, :2]) <= 1e-14
    assert angle(model.components_[2:], axes[:, 2:5]) <= 1e-10
    X, axes = rows_with([1e12, 1.0], 50, 6)  # directions without variance complete the basis
    model = LinearAutoencoder(5).fit(X)
    assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-13)
    assert angle(model.components_[:2], axes) <= 1e-10
    assert_allclose(model.explained_variance_[2:], 0.0, atol=1e-18)


@pytest.mark.parametrize("copies", [1, 120], ids=["double products", "single products"])
def test_float32_rows_beside_a_dominant_eigenvalue(copies):
    X, _ = rows_with(dominated(1e10, 38), 500, 40)
    X = np.tile(X.astype(np.float32), (copies, 1))
    exact = PCA(5, svd_solver="full").fit(X.astype(float))
    model = LinearAutoencoder(5).fit(X)
    assert angle(model.components_[1:], exact.components_[1:].T) <= 1e-6


# The same rows in every form, in memory and in blocks.

VALUES = dominated(1e12, 20)
TURNED = np.eye(5)[[0, 2, 1, 3, 4]]
TURNED[1:3, 1:3] = [[0.8, 0.6], [-0.6, 0.8]]


def path(X, folder):
    memory_map(X, folder)
    return folder / "rows.npy"


def hdf5_path(X, folder):
    with require("h5py").File(folder / "rows.hdf5", "w") as file:
        file.create_dataset("rows", data=X, chunks=(50, min(3000, X.shape[1])))
    return folder / "rows.hdf5"


def text_path(X, folder, name, delimiter):
    require("pandas")
    header = delimiter.join(f"feature {j}" for j in range(X.shape[1]))
    np.savetxt(folder / name, X, "%.17g", delimiter, header=header, comments="")
    return folder / name


def zarr_array(X, folder):
    chunks = (20, min(5000, X.shape[1]))
    return require("zarr").create_array(folder / "x.zarr", data=X, chunks=chunks)


def dask_array(X, _, columns=None):
    return require("dask.array").from_array(X, chunks=(70, columns or X.shape[1]))


def dask_unknown(X, _):
    chunks = dask_array(X, None)
    return chunks[require("dask.array").ones(len(X), chunks=70) > 0]


def dask_sparse(X, _, columns=None):
    da, delayed = require("dask.array"), require("dask").delayed
    step, meta = columns or X.shape[1], scipy.sparse.csr_array((0, 0))
    return da.concatenate(
        [
            da.concatenate(
                [
                    da.from_delayed(
                        delayed(part[:, a : a + step]), (part.shape[0], step), X.dtype, meta
                    )
                    for a in range(0, X.shape[1], step)
                ],
                axis=1,
            )
            for part in map(scipy.sparse.csr_array, batches_of(X, 70))
        ]
    )


KINDS = {
    "sparse": lambda X, _: scipy.sparse.csr_array(X),
    "torch": lambda X, _: require("torch").asarray(X),
    "strict": lambda X, _: require("array_api_strict").asarray(X),
    "memory map": memory_map,
    "path": path,
    "HDF5": hdf5_path,
    "tsv": partial(text_path, name="rows.tsv", delimiter="\t"),
    "txt": partial(text_path, name="rows.txt", delimiter=";"),
    "Zarr": zarr_array,
    "function": lambda X, _: lambda: batches_of(X),
    "sparse function": lambda X, _: lambda: map(scipy.sparse.csr_array, batches_of(X)),
    "Dask": dask_array,
    "Dask columns": partial(dask_array, columns=5),
    "Dask, unknown rows": dask_unknown,
    "sparse Dask": dask_sparse,
    "sparse Dask columns": partial(dask_sparse, columns=10),
}


@pytest.fixture(scope="module")
def problem():
    X, axes = rows_with(VALUES, 900, 20)
    return X + 3.0, axes[:, :5]


@pytest.fixture
def blocks(monkeypatch):
    """Let the data have several blocks, and Dask compute in this process."""
    read_in_blocks(monkeypatch)
    with require("dask").config.set(scheduler="synchronous"):
        yield


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", KINDS)
def test_data_of_every_kind_give_the_components_of_the_array(kind, problem, tmp_path):
    X, axes = problem
    model = LinearAutoencoder(5).fit(KINDS[kind](X, tmp_path))
    assert max(sines(model.components_, axes)) < 1e-9  # 1e-4 by the second moment alone
    variances = np.asarray(model.explained_variance_)
    assert_allclose(variances, len(X) / (len(X) - 1) * VALUES[:5], rtol=1e-9)
    assert_allclose(model.noise_variance_, LinearAutoencoder(5).fit(X).noise_variance_, rtol=1e-9)
    assert model.certificate_.holds
    if kind != "Zarr":  # whose array is there already
        assert certify(model, KINDS[kind](X, tmp_path)).holds


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("kind", ["sparse", "function", "sparse function", "Dask"])
def test_weights_count_rows(kind, problem):
    X, _ = problem
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    weights[:100] = 0.0
    model = LinearAutoencoder(5).fit(KINDS[kind](X, None), sample_weight=weights)
    repeated = LinearAutoencoder(5).fit(np.repeat(X, weights.astype(int), axis=0))
    assert_allclose(model.components_, repeated.components_, atol=1e-9)
    assert_allclose(model.explained_variance_, repeated.explained_variance_, rtol=1e-9)
    assert model.certificate_.holds


@pytest.mark.usefixtures("blocks")
def test_wrong_components_of_small_variance_are_refused(problem):
    X, axes = problem
    wrong = SimpleNamespace(components_=TURNED @ axes.T, mean_=X.mean(axis=0))
    assert certify(wrong, lambda: batches_of(X))["alignment"].holds is False
    right = SimpleNamespace(components_=axes.T, mean_=X.mean(axis=0))
    assert certify(right, lambda: batches_of(X))["alignment"].holds


@pytest.mark.usefixtures("blocks")
def test_digits_that_a_stream_has_lost_are_not_blamed_on_the_data(problem):
    X, _ = problem
    moment = SecondMoment.of(X)
    streamed, stepwise = LinearAutoencoder(5).fit(batches_of(X)), LinearAutoencoder(5)
    for batch in batches_of(X):
        stepwise.partial_fit(batch)
    for certificate in (streamed.certificate_, stepwise.certificate_, certify(streamed, moment)):
        assert certificate.holds is None
        for name in ("alignment", "eigengap"):
            assert certificate[name].undecided
            assert "lost in the second moment" in certificate[name].advice
            assert "a function that returns the batches again" in certificate[name].advice
        assert "not determined by these data" not in str(certificate)


@pytest.mark.usefixtures("blocks")
def test_other_data_are_read_once_and_changed_data_are_refused(problem):
    ordinary = np.random.default_rng(0).standard_normal((900, 20)) * np.linspace(4.0, 1.0, 20)
    X, calls = problem[0], []

    def batches(rows, change=0.0):
        calls.append(1)
        noise = np.random.default_rng(len(calls)).standard_normal(X.shape)
        return batches_of(rows + change * noise)

    assert LinearAutoencoder(5).fit(lambda: batches(ordinary)).certificate_.holds
    assert len(calls) == 1
    with pytest.raises(ValueError, match="differed between two passes over it: give a") as caught:
        LinearAutoencoder(5).fit(lambda: batches(X, 0.1))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("blocks")
def test_an_interrupted_further_pass_returns_no_moment(problem):
    """Its rows are those without their parts along the leading components."""
    X, calls = problem[0], []

    def interrupted():
        calls.append(1)
        yield X[:500]
        if len(calls) > 1:
            raise KeyboardInterrupt
        yield X[500:]

    with pytest.raises(KeyboardInterrupt) as caught:
        LinearAutoencoder(5).fit(interrupted)
    assert caught.value.moment is None


def test_components_without_a_mean_are_not_compared_with_centred_rows():
    rng = np.random.default_rng(0)
    X = 1e9 * np.eye(8)[0] + rng.standard_normal((600, 8)) * np.linspace(8.0, 1.0, 8)
    axes = np.linalg.svd(X, full_matrices=False)[2][:2]
    assert certify(SimpleNamespace(components_=axes), X)["subspace"].holds is not False


def test_a_moment_alone_is_fitted():
    X = dense(np.random.default_rng(0), (90, 20), 2.0)
    moment = SecondMoment.of(X)
    model = LinearAutoencoder(3).fit_batches(None, start=moment)
    assert_allclose(model.components_, LinearAutoencoder(3).fit(X).components_, atol=1e-12)
    assert (model.n_features_in_, model.n_samples_seen_) == (20, 90)
    assert model.certificate_.holds
    found = DropoutAutoencoder(3, dropout=0.2).fit_batches(None, start=moment)
    expected = DropoutAutoencoder(3, dropout=0.2).fit(X)
    assert found.objective_ == pytest.approx(expected.objective_, rel=1e-9)
    for estimator in (LinearAutoencoder(3), DropoutAutoencoder(3)):
        with pytest.raises(ValueError, match="the moment of all rows as start"):
            estimator.fit_batches(None)


# More than 8192 features: a small problem whose columns stand among many zeros.

MANY = 9000
PLACES = 449 * np.arange(20)


@pytest.fixture(scope="module")
def wide():
    """Return dense rows with 9000 columns, of which 20 vary, and these columns."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 20)) * 2.0 ** -np.arange(20) * (rng.random((300, 20)) < 0.5)
    rows[:, 2] += 5.0
    X = np.zeros((300, MANY))
    X[:, PLACES] = rows
    return X, rows


@pytest.fixture
def wide_blocks(monkeypatch):
    """Let such rows be read in blocks of 20 rows."""
    read_in_blocks(monkeypatch, 20 * MANY * 8)
    with require("dask").config.set(scheduler="threads"):
        yield


WIDE = [name for name in KINDS if name not in ("torch", "strict", "tsv", "txt")]


def wide_data(kind, X, folder):
    if "columns" in kind:
        return (dask_sparse if "sparse" in kind else dask_array)(X, None, 3000)
    return KINDS[kind](X, folder)


@pytest.mark.usefixtures("wide_blocks")
@pytest.mark.parametrize("kind", WIDE)
def test_many_features_of_every_kind(kind, wide, tmp_path):
    X, rows = wide
    expected, data = LinearAutoencoder(3).fit(rows), wide_data(kind, X, tmp_path)
    model = LinearAutoencoder(3).fit(data)
    assert_allclose(model.components_[:, PLACES], expected.components_, atol=1e-10)
    assert_allclose(np.sum(model.components_[:, PLACES] ** 2, axis=1), 1.0, rtol=1e-10)
    assert_allclose(model.explained_variance_, expected.explained_variance_, rtol=1e-10)
    assert_allclose(model.mean_[PLACES], expected.mean_, atol=1e-12)
    assert (model.n_features_in_, model.n_samples_seen_) == (MANY, 300)
    assert model.certificate_.holds
    assert_allclose(model.transform(data), expected.transform(rows), atol=1e-10)


@pytest.mark.usefixtures("wide_blocks")
@pytest.mark.parametrize("kind", ["memory map", "function", "sparse function", "Dask columns"])
def test_small_components_of_many_features_are_not_certified(kind, tmp_path):
    rows, axes = rows_with(VALUES, 300, 20)
    X, wide_axes = np.zeros((300, MANY)), np.zeros((MANY, 5))
    X[:, PLACES], wide_axes[PLACES] = rows + 3.0, axes[:, :5]
    model = LinearAutoencoder(5).fit(wide_data(kind, X, tmp_path))
    # Products with the second moment have not the digits of the others, nor have the bounds.
    assert max(sines(model.components_[:1], wide_axes[:, :1])) < 1e-9
    assert max(sines(model.components_, wide_axes)) < 0.1
    assert model.certificate_.holds is None
    wrong = SimpleNamespace(components_=TURNED @ wide_axes.T, mean_=X.mean(axis=0))
    assert not certify(wrong, lambda: batches_of(X, 20)).holds


@pytest.mark.usefixtures("wide_blocks")
def test_weights_of_rows_with_many_features(wide):
    X, rows = wide
    weights = np.random.default_rng(3).integers(0, 3, len(rows)).astype(float)
    weights[:20] = 0.0
    expected = LinearAutoencoder(3).fit(rows, sample_weight=weights)
    model = LinearAutoencoder(3).fit(lambda: batches_of(X, 20), sample_weight=weights)
    assert_allclose(model.components_[:, PLACES], expected.components_, atol=1e-9)
    assert model.certificate_.holds


@pytest.mark.usefixtures("wide_blocks")
def test_a_tampered_decoder_of_many_features_fails(wide):
    X, _ = wide
    model = LinearAutoencoder(3).fit(lambda: batches_of(X))
    encoder = np.array(model.encoder_)
    assert certify(model, lambda: batches_of(X)).holds
    encoder[1] = 0.9 * encoder[1] + 0.1 * encoder[2]
    pair = certify((encoder, encoder.T), lambda: batches_of(X), family="linear")
    assert pair.holds is False
    model.components_ = encoder
    assert model.certificate_["attributes"].holds is False


@pytest.mark.usefixtures("wide_blocks")
def test_blocks_with_many_features_that_cannot_be_fitted_are_refused(wide):
    X, _ = wide
    calls = []

    def shrinking():
        calls.append(1)
        return batches_of(X[: 300 if len(calls) < 4 else 140], 70)

    def augmented():
        calls.append(1)
        noise = np.random.default_rng(len(calls)).standard_normal(X.shape)
        return batches_of(X + 1e-3 * noise)

    spoiled = X.copy()
    spoiled[150, 8765] = np.nan
    for data, k, message in (
        (batches_of(X), 2, "read only once: give a file"),
        (lambda: batches_of(X), 0.5, "n_components as an integer"),
        (shrinking, 2, "300 rows when it was read first, but 140 "),
        (augmented, 2, "differed between two passes"),
        (lambda: batches_of(spoiled, 70), 2, "NaN in block 2, row 150, column 8765"),
        (dask_array(spoiled, None, 2500), 2, "NaN in block 2, row 150, column 8765"),
    ):
        with pytest.raises(ValueError, match=message):
            LinearAutoencoder(k).fit(data)
    with pytest.raises(ValueError, match="without start"):
        LinearAutoencoder(2).fit_batches(list(batches_of(X)), start=SecondMoment.of(np.eye(3)))


@pytest.mark.usefixtures("wide_blocks")
def test_another_order_of_the_same_rows_is_accepted(wide):
    X, rows = wide
    calls = []

    def shuffled():
        calls.append(1)
        return batches_of(X[np.random.default_rng(len(calls)).permutation(len(X))])

    model = LinearAutoencoder(2).fit(shuffled)
    assert len(calls) > 3
    expected = LinearAutoencoder(2).fit(rows)
    assert_allclose(model.components_[:, PLACES], expected.components_, atol=1e-7)


@pytest.mark.usefixtures("wide_blocks")
def test_decoded_chunks_are_not_larger_than_a_few_blocks(wide):
    X, _ = wide
    model = LinearAutoencoder(3).fit(lambda: batches_of(X))
    codes = model.transform(lambda: batches_of(X))
    decoded = model.inverse_transform(dask_array(codes, None))
    assert decoded.shape == X.shape
    assert max(decoded.chunks[0]) <= 4 * 20
    first = decoded[:3].compute()
    assert_allclose(first, model.inverse_transform(codes[:3]), atol=1e-12)


def test_few_rows_of_an_iterator_are_loaded(wide):
    X, rows = wide
    model = LinearAutoencoder(3).fit(batches_of(X))
    expected = LinearAutoencoder(3).fit(rows)
    assert_allclose(model.components_[:, PLACES], expected.components_, atol=1e-10)


@pytest.mark.parametrize(("ratio", "factored"), [(1e2, False), (1e12, True)])
def test_a_spectrum_says_by_its_error_whether_rows_were_factorised(ratio, factored):
    X, _ = rows_with(dominated(ratio, 12), 300, 12)
    rows = RowOperator.of(X)
    rows.scatter()
    found = refined(rows, leading(rows, 5), 5)
    assert found.factored is factored
    values = reference(X, 5)[0]
    assert np.all(np.abs(found.values[:5] - values) <= found.error[:5])
    formed, factorised = 12 * EPS * ratio, 24 * EPS * np.sqrt(ratio * values)
    assert_allclose(found.error[:5], factorised if factored else formed, rtol=1e-3)
