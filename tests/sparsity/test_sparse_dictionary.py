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
from lucidae.sparsity import noise_path

KINDS = [sp.csr_array, sp.csc_array, sp.csr_matrix, sp.csc_matrix, sp.coo_array]


@pytest.fixture(autouse=True)
def always_sparse(monkeypatch):
    """No matrix is small enough to be made dense."""
    monkeypatch.setattr("lucidae.sparsity.problem.DENSE_ENTRIES", 0)


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


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weights", [None, np.arange(24) % 3 + 1.0])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_sparse_fit_is_the_dense_fit(options, weights):
    full, y = problem()
    if weights is not None:  # equal rows are counted together, whatever their order
        full[5], full[17], y[17] = full[2], full[8], y[8]
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


def test_a_path_of_a_sparse_dictionary_is_that_of_the_dense_one():
    X = sp.random(60, 50, 0.1, format="csr", random_state=0)
    rng = np.random.default_rng(0)
    y = X[:, :2] @ rng.standard_normal((2, 3)) + 0.1 * rng.standard_normal((60, 3))
    sparse, dense = (noise_path(A, y, [1e-1, 1e-2], cv=2) for A in (X, X.toarray()))
    assert_allclose(sparse.energies, dense.energies, rtol=1e-8)
    assert_allclose(sparse.select(rule="min").coef_, dense.select(rule="min").coef_, atol=1e-7)


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
    monkeypatch.setattr("lucidae.sparsity.theory.SPARSE_ENTRIES", 100)
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


def test_no_dense_array_of_the_size_of_the_dictionary_is_formed():
    rng = np.random.default_rng(6)
    d, kappa, per = 200, 120_000, 3
    starts = rng.integers(0, d, (kappa, 1))
    rows = np.sort((starts + np.array([0, 7, 31])) % d, axis=1)
    entries = (rng.standard_normal(kappa * per), rows.ravel(), np.arange(0, kappa * per + 1, per))
    X = sp.csc_array(entries, shape=(d, kappa))
    y = X[:, [5, 6]].toarray() @ rng.standard_normal((2, 2)) + 0.1 * rng.standard_normal((d, 2))
    tracemalloc.start()
    try:
        model = SparseVAE(noise_variance=0.03, fit_intercept=False).fit(X, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.75 * 8 * d * kappa  # bytes of the dense dictionary, which the fit would copy
    assert model.status_.ok
    used = np.flatnonzero(model.relevance_)
    columns = X[:, used].toarray()
    inverse = np.linalg.inv(columns * model.relevance_[used] @ columns.T + 0.03 * np.eye(d))
    parts = (X[:, first : first + 20_000] for first in range(0, kappa, 20_000))
    z = np.concatenate([(part * (inverse @ part)).sum(axis=0) for part in parts])
    Q = ((X.T @ (inverse @ y)) ** 2).mean(axis=1)
    assert (model.relevance_ * np.abs(Q - z)).max() < 2e-6
    assert ((Q - z) / z).max() < 2e-6


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


def test_too_many_rows_are_refused(monkeypatch):
    full, y = problem(7)
    monkeypatch.setattr("lucidae.sparsity.problem.LARGEST_SIDE", 20)
    with pytest.raises(ValueError, match="at most 20 rows"):
        SparseVAE().fit(sp.csr_array(full), y)


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


@pytest.mark.covering
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("entries", [0, 10**6])
def test_matrices_without_canonical_form_are_not_changed_and_give_the_same_fit(
    kind, entries, monkeypatch
):
    monkeypatch.setattr("lucidae.sparsity.problem.DENSE_ENTRIES", entries)
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
    for settings in (given, {"noise_variance": "cv", "cv": 2}):
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
