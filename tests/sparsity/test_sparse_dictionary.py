"""Sparse dictionaries: results of the dense ones, and never a dense array of their size."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils.estimator_checks import (
    check_estimator_sparse_array,
    check_estimator_sparse_matrix,
    check_sample_weight_equivalence_on_sparse_data,
)

import lucidae
from lucidae import SparseVAE, certify
from lucidae.sparsity import columns, dictionary, noise_path, solve_batch
from lucidae.sparsity.dictionary import SparseDictionary
from lucidae.sparsity.evaluation import Sample, evaluate_relevances, weighted_rows
from lucidae.sparsity.problem import canonical
from lucidae.sparsity.sparse_rows import distinct_rows, rows_of

KINDS = [sp.csr_array, sp.csc_array, sp.csr_matrix, sp.csc_matrix, sp.coo_array]


@pytest.fixture(autouse=True)
def always_sparse(monkeypatch):
    """No matrix is small enough to be made dense, and blocks hold a few columns."""
    monkeypatch.setattr(dictionary, "DENSE_ENTRIES", 0)
    monkeypatch.setattr(dictionary, "BLOCK_ENTRIES", 1500)
    monkeypatch.setattr("lucidae.sparsity.sparse_rows.BLOCK_ENTRIES", 1500)
    monkeypatch.setattr(columns, "BLOCK_ENTRIES", 1500)


def random_matrix(seed, d, kappa, density=0.3):
    rng = np.random.default_rng(seed)
    full = rng.standard_normal((d, kappa)) * (rng.random((d, kappa)) < density)
    full[:, 3] = 1e6 + rng.standard_normal(d)  # a column without zeros, far from zero
    full[:, 5] = 7.0  # a constant column
    return full


def problem(seed=0, d=24, kappa=90, n=3):
    rng = np.random.default_rng(seed + 100)
    full = random_matrix(seed, d, kappa)
    used = full[:, [3, 10, 20]] - [1e6, 0.0, 0.0]
    return full, used @ rng.standard_normal((3, n)) + 0.1 * rng.standard_normal((d, n)) + 2.0


@pytest.mark.parametrize("seed", range(3))
def test_operations_on_columns_are_those_of_the_dense_matrix(seed):
    rng = np.random.default_rng(seed)
    S = rng.standard_normal((20, 70)) * (rng.random((20, 70)) < rng.choice([0.05, 0.1, 0.9], 70))
    roots, center = rng.random(20), rng.standard_normal(70)
    scale = 1.0 + rng.random(70)
    sparse = SparseDictionary(sp.csc_array(S), roots, center, scale)
    full = (S - np.outer(roots, center)) / scale
    left, w = rng.standard_normal((20, 20)), rng.random(70) * (rng.random(70) < 0.5)
    index = np.array([60, 2, 5])
    for operation, *arguments in (
        (dictionary.dense_columns, index),
        (dictionary.column_squares,),
        (dictionary.nonzero_columns,),
        (dictionary.adjoint_times, left),
        (dictionary.norms_after, left),
        (dictionary.quadratic_forms, left),
        (dictionary.weighted_gram, w),
    ):
        found, expected = (operation(each, *arguments) for each in (sparse, full))
        assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=operation.__name__)
    norms = 1.0 + rng.random(70)
    chosen = dictionary.selected_columns(dictionary.divided(sparse, norms), np.arange(68))
    assert dictionary.is_sparse(chosen) is (dictionary.BLOCK_ENTRIES < 20 * 68)
    assert_allclose(
        dictionary.dense_columns(chosen, np.arange(68)), (full / norms)[:, :68], atol=1e-14
    )


def test_a_tall_dictionary_is_reduced_to_its_span_as_a_dense_one():
    rng = np.random.default_rng(0)
    S, y = rng.standard_normal((300, 12)) * (rng.random((300, 12)) < 0.2), rng.random((300, 4))
    roots, center = rng.random(300), rng.standard_normal(12)
    scale = 1.0 + rng.random(12)
    sparse = SparseDictionary(sp.csc_array(S), roots, center, scale)
    full = (S - np.outer(roots, center)) / scale
    (R, inside, outside), (R2, inside2, outside2) = (
        dictionary.reduced_to_span(each, y) for each in (sparse, full)
    )
    assert_allclose(R.T @ R, R2.T @ R2, atol=1e-12)
    assert_allclose(R.T @ inside, R2.T @ inside2, atol=1e-12)
    assert_allclose(outside, outside2, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_distinct_rows_come_in_the_order_of_dense_rows(weighted):
    rng = np.random.default_rng(1)
    full = rng.integers(-1, 2, size=(60, 4)).astype(float) * (rng.random((60, 4)) < 0.5)
    y = rng.integers(-1, 2, size=(60, 1)).astype(float)
    weights = rng.integers(0, 3, 60).astype(float) if weighted else None
    matrix = sp.csr_array(full)
    matrix.data[:5] = 0.0  # explicit zeros are zeros
    full = matrix.toarray()
    found = distinct_rows(rows_of(matrix, y, weights, True))
    expected = canonical(full, y, weights, True)
    assert_array_equal(found.dictionary.toarray(), expected.dictionary)
    assert_array_equal(found.responses, expected.responses)
    assert_array_equal(found.weights, expected.weights)
    assert np.count_nonzero(matrix.data) < matrix.nnz  # the given matrix is not changed


OPTIONS = [
    {},
    {"noise_variance": 0.02, "solver": "coordinate"},
    {"noise_variance": 0.02, "solver": "mm"},
    {"noise_variance": 0.02, "solver": "em"},
    {"noise_variance": 0.02, "solver": "mackay", "fit_intercept": False},
    {"noise_variance": 0.02, "posterior": "diagonal"},
    {"noise_variance": 0.02, "posterior": "point"},
    {"noise_variance": 0.02, "groups": np.arange(90) // 3},
    {"noise_variance": "cv", "cv": [(np.arange(16), np.arange(16, 24))]},
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weights", [None, np.arange(24) % 3 + 1.0])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_sparse_fit_is_the_dense_fit(options, weights):
    full, y = problem()
    full = full * (np.arange(90) != 3) if "fit_intercept" in options else full
    kind = KINDS[len(str(options)) % len(KINDS)]
    sparse = SparseVAE(**options).fit(kind(full), y, weights)
    dense = SparseVAE(**options).fit(full, y, weights)
    for name in ("coef_", "relevance_", "energy_", "noise_variance_", "intercept_"):
        size = np.abs(getattr(dense, name)).max()
        assert_allclose(getattr(sparse, name), getattr(dense, name), atol=1e-10 * size)
    assert_array_equal(sparse.support_, dense.support_)
    for found, expected in zip(
        sparse.predict(kind(full), return_std=True), dense.predict(full, True), strict=True
    ):
        assert_allclose(found, expected, atol=1e-9)
    verdicts = [claim.verdict for claim in dense.certificate_]
    assert [claim.verdict for claim in sparse.certificate_] == verdicts
    again = certify(sparse, kind(full), y, sample_weight=weights)
    assert [claim.verdict for claim in again] == verdicts


def test_a_tall_sparse_fit_is_the_dense_fit():
    rng = np.random.default_rng(2)
    full = random_matrix(2, 120, 8)
    y = full[:, 1] - full[:, 4] + 0.1 * rng.standard_normal(120)
    sparse, dense = (SparseVAE().fit(X, y) for X in (sp.csr_array(full), full))
    assert_allclose(sparse.relevance_, dense.relevance_, rtol=1e-9, atol=1e-12)
    assert_allclose(sparse.noise_variance_, dense.noise_variance_, rtol=1e-10)
    assert sparse.certificate_.holds


@pytest.mark.parametrize("labels", [None, np.arange(90) // 3])
def test_the_verifier_measures_sparse_columns_as_dense_ones(labels):
    full, y = problem(5)
    weights = np.arange(24) % 4 + 0.0
    w = np.where(np.arange(90) % 7 == 0, 0.3, 0.0)
    found, expected = (
        evaluate_relevances(weighted_rows(Sample(X, y, weights, True), labels), w, 0.1)
        for X in (sp.csr_array(full), full)
    )
    for name in ("curvature", "alignment", "mean", "fit", "log_determinant", "residual"):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-10)
    index = np.array([8, 1])
    assert_allclose(found.whitened[:, index], expected.whitened[:, index], atol=1e-10)
    assert_allclose(found.loading[index], expected.loading[index], atol=1e-10)


def test_coefficients_are_certified_on_a_sparse_dictionary(monkeypatch):
    rng = np.random.default_rng(3)
    full = rng.standard_normal((12, 40)) * (rng.random((12, 40)) < 0.6)
    U = np.zeros((40, 4))
    U[[1, 8]] = rng.standard_normal((2, 4))
    found, expected = (
        certify(U.T, X, full @ U, noise_variance=0.1) for X in (sp.csc_array(full), full)
    )
    assert found["unique_in_general_position"].holds
    assert [claim.verdict for claim in found] == [claim.verdict for claim in expected]
    monkeypatch.setattr("lucidae.sparsity.uniqueness.SPARSE_ENTRIES", 100)
    large = certify(U.T, sp.csc_array(full), full @ U)
    assert large["unique_in_general_position"].holds is None
    assert "not examined" in large["unique_in_general_position"].advice


def test_a_sparse_fit_is_saved_loaded_and_predicts_sparse_and_dense_rows(tmp_path):
    full, y = problem(4)
    model = SparseVAE(noise_variance=0.02).fit(sp.csr_matrix(full.astype(np.float32)), y[:, 0])
    assert model.coef_.dtype == np.float32
    lucidae.save(model, tmp_path / "model.npz")
    loaded = lucidae.load(tmp_path / "model.npz")
    rows = full[:7].astype(np.float32)
    assert_allclose(loaded.predict(sp.csc_array(rows)), model.predict(rows), rtol=1e-5)
    assert loaded.score(sp.csr_array(full.astype(np.float32)), y[:, 0]) > 0.8


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_no_dense_array_of_the_size_of_the_dictionary_is_formed():
    rng = np.random.default_rng(6)
    d, kappa, per = 300, 50_000, 3
    starts = rng.integers(0, d, (kappa, 1))
    rows = np.sort((starts + np.array([0, 7, 31])) % d, axis=1)
    entries = (rng.standard_normal(kappa * per), rows.ravel(), np.arange(0, kappa * per + 1, per))
    X = sp.csc_array(entries, shape=(d, kappa))
    y = X[:, [5, 6]].toarray() @ rng.standard_normal((2, 2)) + 0.1 * rng.standard_normal((d, 2))
    dictionary.BLOCK_ENTRIES = columns.BLOCK_ENTRIES = 200_000
    tracemalloc.start()
    try:
        model = SparseVAE(noise_variance=0.01, max_iter=3, tol=1e-2).fit(X, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.score(X, y) > 0.5
    assert peak < 0.75 * 8 * d * kappa  # bytes of the dense dictionary, which the fit would copy


@pytest.mark.parametrize(
    "check",
    [
        check_estimator_sparse_array,
        check_estimator_sparse_matrix,
        check_sample_weight_equivalence_on_sparse_data,
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_checks_of_sparse_input(check):
    check("SparseVAE", SparseVAE(noise_variance=0.1))


def test_bad_sparse_input_is_refused(monkeypatch):
    full, y = problem(7)
    full[2, 10] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        SparseVAE().fit(sp.csr_array(full), y)
    monkeypatch.setattr("lucidae.sparsity.sparse_rows.LARGEST_SIDE", 20)
    with pytest.raises(ValueError, match="at most 20 rows"):
        SparseVAE().fit(sp.csr_array(np.nan_to_num(full)), y)
    with pytest.raises(ValueError, match="largest absolute value is 1e\\+80"):
        SparseVAE().fit(sp.csr_array(np.where(full == 7.0, 1e80, np.nan_to_num(full))), y)


def test_a_batch_of_problems_is_dense():
    with pytest.raises(ValueError, match="expected a dense stack"):
        solve_batch(sp.csr_array(np.eye(3)), np.ones((1, 3, 2)), noise_variance=0.1)


def without_order(full, kind, seed=0):
    """Return a sparse matrix with duplicate entries, unsorted indices and explicit zeros.

    Sums of the duplicates are exact, so that it is the same matrix as `full`.
    """
    rng = np.random.default_rng(seed)
    row, column = np.nonzero(full)
    value = full[row, column]
    rows, columns = rng.integers(0, full.shape[0], 60), rng.integers(0, full.shape[1], 60)
    row = np.concatenate([row, row, rows, rows, rows])
    column = np.concatenate([column, column, columns, columns, columns])
    value = np.concatenate([0.25 * value, 0.75 * value, np.ones(60), -np.ones(60), np.zeros(60)])
    order = rng.permutation(row.size)
    row, column, value = row[order], column[order], value[order]
    major, minor = (row, column) if kind.__name__.startswith("csr") else (column, row)
    by = np.argsort(major, kind="stable")
    length = full.shape[0] if kind.__name__.startswith("csr") else full.shape[1]
    pointers = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=length))])
    matrix = kind((value[by], minor[by], pointers), shape=full.shape)
    assert not matrix.has_canonical_format
    assert_array_equal(matrix.toarray(), full)
    return matrix


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.csr_matrix, sp.csc_matrix])
@pytest.mark.parametrize("entries", [0, 10**6])
def test_matrices_without_canonical_form_are_not_changed_and_give_the_same_fit(
    kind, entries, monkeypatch
):
    monkeypatch.setattr(dictionary, "DENSE_ENTRIES", entries)
    rng = np.random.default_rng(1)
    full = np.round(4 * random_matrix(6, 24, 60)) / 4
    full[:, 3] -= 1e6
    y = full[:, [3, 10]] @ rng.standard_normal((2, 3)) + 0.1 * rng.standard_normal((24, 3))
    X, weights = without_order(full, kind), rng.random(24) + 0.5
    before = [part.copy() for part in (X.data, X.indices, X.indptr)]
    canonical_X = sp.csr_array(full)

    def is_unchanged():
        return all(map(np.array_equal, before, (X.data, X.indices, X.indptr)))

    given = {"noise_variance": 0.01}
    for settings in (given, {"noise_variance": "cv"}, given | {"groups": 3}):
        model = SparseVAE(**settings).fit(X, y, sample_weight=weights)
        assert is_unchanged(), settings
        plain = SparseVAE(**settings).fit(canonical_X, y, sample_weight=weights)
        assert_array_equal(model.support_, plain.support_)
        assert_allclose(model.coef_, plain.coef_, atol=1e-12)
        assert model.energy_ == pytest.approx(plain.energy_, rel=1e-12)
        found = certify(model, X, y, sample_weight=weights)
        assert is_unchanged(), settings
        assert [claim.verdict for claim in found] == [claim.verdict for claim in plain.certificate_]
        assert_allclose(model.predict(X), plain.predict(canonical_X), atol=1e-9)
        model.predict(X, return_std=True)
        model.score(X, y)
        certify(model.coef_, X, y, noise_variance=0.01)
        assert is_unchanged(), settings
    noise_path(X, y, [0.1, 0.01], cv=False).select(explained=0.1)
    assert is_unchanged()
