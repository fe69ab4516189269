"""Every route to the leading eigenpairs against a singular value decomposition of the rows."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae import LinearAutoencoder
from lucidae.arrays import eigen
from lucidae.rows import routes
from lucidae.rows import sources as data
from lucidae.rows.routes import costs, gram_eigenpairs, gram_matrix, vector_eigenpairs
from lucidae.rows.sources import SOLVERS, MomentSource, RowsSource, source_of

SHAPES = [(60, 200), (200, 60), (120, 120)]


def rows_of(shape, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    decay = 1.0 / np.arange(1, shape[1] + 1)
    return rng.standard_normal(shape) * decay @ rng.standard_normal((shape[1],) * 2) + offset


def reference(X, weights, k):
    mean = np.average(X, axis=0, weights=weights)
    scaled = (X - mean) * np.sqrt(weights / weights.sum())[:, None]
    _, singular, right = np.linalg.svd(scaled, full_matrices=False)
    return singular[:k] ** 2, right[:k]


def forced(monkeypatch, route):
    """Make one route the cheapest by far."""
    one = {"moment": 1.0, "gram": 1.0, "krylov": 1e-6}
    found = routes.Costs(**{name: one[name] if name == route else 1e9 for name in one})
    monkeypatch.setattr(data, "costs", lambda *_, **__: found)
    monkeypatch.setattr(data, "STORED_FEATURES", 1)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32"])
@pytest.mark.parametrize("offset", [0.0, 1e3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("route", ["moment", "gram", "krylov"])
def test_all_routes_give_the_same_pairs(monkeypatch, route, shape, offset, kind):
    forced(monkeypatch, route)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, shape[0])
    X = rows_of(shape, offset=offset)
    X = X.astype(np.float32) if kind == "float32" else X
    values, vectors = reference(X.astype(float), weights, 5)
    given = scipy.sparse.csr_array(X) if kind == "sparse" else X
    found = RowsSource.of(given, weights).spectrum(6)
    # Centring after the product costs digits of the squared mean.
    tolerance = 1e-10 if offset == 0.0 or kind != "sparse" else 1e-6
    assert found.values[:5] == pytest.approx(values, rel=tolerance)
    assert np.abs(np.sum(found.vectors[:, :5].T * vectors, axis=1)) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gram_matrix_is_that_of_centred_weighted_rows(shape):
    X, weights = rows_of(shape, offset=5.0), np.random.default_rng(2).uniform(0, 2, shape[0])
    mean, total = np.average(X, axis=0, weights=weights), weights.sum()
    centred = (X - mean) * np.sqrt(weights / total)[:, None]
    for given in (X, scipy.sparse.csr_array(X)):
        gram = gram_matrix(given, mean, weights, total)
        assert gram == pytest.approx(centred @ centred.T, abs=1e-10 * np.trace(gram))


def test_pairs_without_digits_in_the_gram_matrix_are_refused():
    X = np.random.default_rng(0).standard_normal((30, 80)) * np.logspace(0, -12, 80)
    mean = X.mean(axis=0)
    gram = gram_matrix(X, mean, None, 30.0)
    assert gram_eigenpairs(gram, X, mean, None, 30.0, 3) is not None
    assert gram_eigenpairs(gram, X, mean, None, 30.0, 28) is None


@pytest.mark.parametrize(
    ("shape", "route"),
    [
        ((100_000, 200), "moment"),
        ((100, 50_000), "gram"),
        ((5000, 5000), "krylov"),
        ((50_000, 20_000), "krylov"),
    ],
)
def test_the_shape_decides(shape, route):
    found = costs(*shape, 10)
    if found.iterates:
        assert route == "krylov"
    else:
        assert route == ("moment" if found.moment < found.gram else "gram")


def test_no_large_matrix_is_formed_for_wide_rows():
    X = scipy.sparse.random_array((50, 30_000), density=0.01, rng=np.random.default_rng(0))
    source = source_of(X.tocsr(), None, SOLVERS["auto"], 3)
    assert isinstance(source, RowsSource)
    assert source.spectrum(4).vectors.shape == (30_000, 4)


def test_all_components_of_large_rows_and_features_are_refused(monkeypatch):
    monkeypatch.setattr(data, "EXACT_FEATURES", 10)
    monkeypatch.setattr(data, "STORED_FEATURES", 5)
    X = rows_of((40, 30))
    with pytest.raises(ValueError, match="needs all eigenvalues"):
        LinearAutoencoder(0.9).fit(X)
    model = LinearAutoencoder(3).fit(X)
    _, vectors = reference(X, np.ones(40), 3)
    assert model.components_ == pytest.approx(
        vectors * np.sign(np.sum(vectors * model.components_, axis=1))[:, None], abs=1e-10
    )


def test_gradient_descent_works_beyond_the_largest_matrix(monkeypatch):
    monkeypatch.setattr(data, "EXACT_FEATURES", 10)
    monkeypatch.setattr(data, "STORED_FEATURES", 5)
    X = rows_of((40, 30))
    assert isinstance(source_of(X, None, SOLVERS["gradient"], 2), RowsSource)
    monkeypatch.undo()
    assert isinstance(source_of(X, None, SOLVERS["gradient"], 2), MomentSource)


@pytest.mark.parametrize("shape", [(300, 120), (120, 300)])
@pytest.mark.parametrize("weighted", [False, True])
def test_vector_iteration_finds_the_leading_eigenpairs_of_sparse_rows(shape, weighted):
    rng = np.random.default_rng(4)
    X = scipy.sparse.random(*shape, 0.1, format="csr", random_state=4) * 3.0
    X = X @ scipy.sparse.diags(1.0 + np.arange(shape[1]) / 20)
    weights = rng.uniform(0.5, 2.0, shape[0]) if weighted else np.ones(shape[0])
    dense, total = X.toarray(), weights.sum()
    mean = weights @ dense / total
    centred = (dense - mean) * np.sqrt(weights / total)[:, None]
    values, vectors = np.linalg.eigh(centred.T @ centred)
    found = vector_eigenpairs(X.tocsr(), mean, weights, total, float(np.sum(centred**2)), 6)
    assert_allclose(found.values, values[::-1][:6], rtol=1e-12)
    assert_allclose(np.abs(np.sum(found.vectors * vectors[:, ::-1][:, :6], axis=0)), 1, rtol=1e-12)
    assert_allclose(found.vectors.T @ found.vectors, np.eye(6), atol=1e-13)


def test_eigenvalues_that_an_iteration_missed_are_noticed(monkeypatch):
    X = scipy.sparse.random(200, 150, 0.1, format="csr", random_state=0)
    true = eigen.eigsh

    def misses_the_second(operator, k, **options):
        values, vectors = true(operator, k + 1, **options)
        kept = [*range(k - 1), k]  # the values ascend
        return values[kept], vectors[:, kept]

    mean = np.asarray(X.mean(axis=0)).ravel()
    args = X, mean, np.ones(200), 200.0, 1.0, 4
    assert vector_eigenpairs(*args) is not None
    monkeypatch.setattr(eigen, "eigsh", misses_the_second)
    assert vector_eigenpairs(*args) is None


def test_repeated_eigenvalues_of_sparse_rows_are_all_found():
    # Twelve equal eigenvalues: rows ±e_j for twelve features, and small ones for the others.
    axes = scipy.sparse.vstack([scipy.sparse.eye(2000, format="csr") * s for s in (1.0, -1.0)])
    scale = scipy.sparse.diags(np.where(np.arange(2000) < 12, 3.0, 0.5))
    model = LinearAutoencoder(12).fit((axes @ scale).tocsr())
    assert_allclose(np.sum(model.components_[:, :12] ** 2), 12, rtol=1e-10)
    assert model.certificate_["subspace"].holds


@pytest.mark.parametrize("k", [0.9, 2, None])
def test_equal_sparse_rows_have_components_of_variance_zero(k):
    X = scipy.sparse.csr_matrix(np.tile([2.0, 0, 0, 0, 1.0], (3, 1)))
    model = LinearAutoencoder(k).fit(X)
    assert_allclose(model.explained_variance_, 0.0)
    assert_allclose(model.inverse_transform(model.transform(X)), X.toarray(), atol=1e-12)


def single(shape, mean=0.0, decay=0.7, seed=0):
    """Return float32 rows with a decaying spectrum, and their components in float64."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape) * np.arange(1, shape[1] + 1) ** -decay
    X = (X + mean * rng.random(shape[1])).astype(np.float32)
    centred = X.astype(float) - X.mean(axis=0, dtype=float)
    _, _, vectors = np.linalg.svd(centred, full_matrices=False)
    return X, vectors


@pytest.mark.parametrize("mean", [0.01, 5.0])
@pytest.mark.parametrize("shape", [(600, 1200), (1500, 1100), (60, 9000)])
def test_float32_rows_are_not_converted_and_have_the_components_of_float64(
    monkeypatch, shape, mean
):
    X, vectors = single(shape, mean)
    monkeypatch.setattr(data, "_centred_statistics", lambda *_: pytest.fail("rows were converted"))
    model = LinearAutoencoder(4).fit(X)
    found = model._state.model.components
    assert found.dtype == np.float64
    assert_allclose(np.abs(np.sum(found * vectors[:4], axis=1)), 1.0, atol=1e-11)
    monkeypatch.undo()
    assert model.certificate_["subspace"].holds
    assert model.certificate_["attributes"].holds


def test_float32_rows_that_need_double_precision_get_it():
    rng = np.random.default_rng(3)
    scales = np.r_[1.0, 1e-3, 1e-4, np.full(1197, 1e-6)]
    X = (rng.standard_normal((700, 1200)) * scales).astype(np.float32)
    centred = X.astype(float) - X.mean(axis=0, dtype=float)
    _, _, vectors = np.linalg.svd(centred, full_matrices=False)
    found = LinearAutoencoder(3).fit(X)._state.model.components
    assert_allclose(np.abs(np.sum(found * vectors[:3], axis=1)), 1.0, atol=1e-10)


@pytest.mark.parametrize("factor", [1e-15, 1e15])
def test_float32_rows_beyond_the_range_of_single_products_are_converted(factor):
    X, vectors = single((700, 1200))
    found = LinearAutoencoder(3).fit(X * np.float32(factor))
    assert_allclose(np.abs(np.sum(found.components_ * vectors[:3], axis=1)), 1.0, atol=1e-5)


def test_refinement_refuses_vectors_that_are_no_eigenvectors():
    matrix = np.diag([4.0, 3.0, 2.0, 1.0])
    turned = np.linalg.qr(np.eye(4)[:, :3] + 0.1)[0]
    assert routes.refined(turned, lambda rows: rows @ matrix, 10.0) is None
    exact = routes.refined(np.eye(4)[:, :3], lambda rows: rows @ matrix, 10.0)
    assert_allclose(exact.values, [4.0, 3.0, 2.0])


def test_a_rough_last_pair_leaves_the_others_exact():
    X = np.random.default_rng(4).standard_normal((300, 200)) * np.arange(1, 201) ** -0.5
    mean, trace = X.mean(axis=0), float(np.sum(X.var(axis=0)))
    values, _ = reference(X, np.ones(300), 5)
    found = vector_eigenpairs(X, mean, np.ones(300), 300.0, trace, 5, rough=True)
    assert_allclose(found.values[:4], values[:4], rtol=1e-12)
    assert found.values[4] <= values[4] * (1 + 1e-12)
    assert found.values[4] > 0.8 * values[4]
    assert_allclose(found.vectors.T @ found.vectors, np.eye(5), atol=1e-12)
