"""Tests of the Lanczos method with partial reorthogonalisation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.arrays import lanczos
from lucidae.arrays.lanczos import lanczos_eigenpairs


def turned(values, seed=0):
    """Return a symmetric matrix with these eigenvalues, and its eigenvectors as columns."""
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return (vectors * values) @ vectors.T, vectors


SPECTRA = {
    "decaying": 1.0 / np.arange(1, 301),
    "steep": np.geomspace(1.0, 1e-12, 300),
    "flat": np.r_[np.linspace(10.0, 5.0, 8), np.linspace(1.0, 0.0, 292)],
    "close": np.r_[1.0, 1.0 - 1e-3, 1.0 - 2e-3, 0.5 / np.arange(1, 298)],
}


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_pairs_are_those_of_a_dense_solver(name, k, rough):
    values = SPECTRA[name]
    matrix, vectors = turned(values)
    found, columns = lanczos_eigenpairs(lambda v: matrix @ v, 300, k, 250, rough=rough)
    strict = k - 1 if rough and k > 1 else k
    assert found.shape == (k,)
    assert columns.shape == (300, k)
    assert_allclose(found[:strict], values[:strict], rtol=0, atol=1e-14 * values[0])
    gaps = np.abs(np.diff(values))[:k].min()
    overlap = np.abs(np.sum(columns * vectors[:, :k], axis=0))[:strict]
    assert_allclose(overlap, 1.0, rtol=0, atol=1e-13 * values[0] / gaps)
    assert_allclose(columns.T @ columns, np.eye(k), rtol=0, atol=1e-14)
    assert found[-1] <= values[k - 1] + 1e-14
    assert found[-1] >= 0.9 * values[k - 1]


def test_residuals_have_the_size_of_rounding_errors():
    """Residuals do not show the loss of orthogonality that is allowed for."""
    matrix, _ = turned(SPECTRA["decaying"])
    values, vectors = lanczos_eigenpairs(lambda v: matrix @ v, 300, 10, 250)
    residuals = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    assert residuals.max() <= 3e-14


def test_the_estimated_inner_products_bound_the_true_ones():
    """Where the estimate allows a loss of orthogonality, the true loss is not much larger."""
    matrix, _ = turned(SPECTRA["decaying"])
    space = lanczos._Recurrence(np.random.default_rng(1).standard_normal(300), 60)
    for _ in range(60):
        assert space.extend(lambda v: matrix @ v)
    inner = space.basis @ space.basis.T - np.eye(60)
    assert np.abs(inner).max() <= 100 * lanczos.ORTHOGONAL


def test_without_reorthogonalisation_orthogonality_is_lost(monkeypatch):
    monkeypatch.setattr(lanczos, "ORTHOGONAL", np.inf)
    matrix, _ = turned(SPECTRA["decaying"])
    space = lanczos._Recurrence(np.random.default_rng(1).standard_normal(300), 60)
    for _ in range(60):
        assert space.extend(lambda v: matrix @ v)
    assert np.abs(space.basis @ space.basis.T - np.eye(60)).max() > 1e-3


def test_lost_orthogonality_ends_the_iteration(monkeypatch):
    """If the estimate is wrong, the measured inner products show it."""
    monkeypatch.setattr(lanczos, "ORTHOGONAL", 1e-3)
    matrix, _ = turned(SPECTRA["decaying"])
    assert lanczos_eigenpairs(lambda v: matrix @ v, 300, 10, 250) is None


@pytest.mark.parametrize("steps", [10, 30, 60])
def test_no_more_products_than_allowed(steps):
    matrix, _ = turned(np.linspace(1.0, 0.999, 300))
    calls = []

    def apply(v):
        calls.append(1)
        return matrix @ v

    assert lanczos_eigenpairs(apply, 300, 5, steps) is None
    assert len(calls) <= steps


def test_an_invariant_subspace_ends_the_iteration():
    matrix = np.zeros((100, 100))
    matrix[:3, :3] = np.diag([3.0, 2.0, 1.0])
    assert lanczos_eigenpairs(lambda v: matrix @ v, 100, 5, 50) is None


def test_many_vectors_are_not_stored(monkeypatch):
    monkeypatch.setattr(lanczos, "LARGEST_BASIS", 300 * 9)
    matrix, _ = turned(SPECTRA["decaying"])
    assert lanczos_eigenpairs(lambda v: matrix @ v, 300, 5, 250) is None
    assert lanczos_eigenpairs(lambda v: matrix @ v, 300, 1, 250) is None


def test_the_space_for_vectors_grows(monkeypatch):
    matrix, _ = turned(SPECTRA["decaying"])
    expected, _ = lanczos_eigenpairs(lambda v: matrix @ v, 300, 4, 250)
    monkeypatch.setattr(lanczos, "FIRST_ROWS", 3)
    found, _ = lanczos_eigenpairs(lambda v: matrix @ v, 300, 4, 250)
    assert_allclose(found, expected, rtol=1e-15)
