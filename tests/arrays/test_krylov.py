"""Block Krylov iteration against dense eigendecompositions, over spectra that are hard for it."""

import numpy as np
import pytest

from lucidae.arrays.krylov import krylov_eigenpairs

M = 300


def matrix(values, seed=0):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((len(values), len(values))))[0]
    product = (turn * values) @ turn.T
    return (product + product.T) / 2


SPECTRA = {
    "fast decay": 1.0 / np.arange(1, M + 1) ** 2,
    "slow decay": 1.0 / np.arange(1, M + 1),
    "linear": np.linspace(1.0, 0.1, M),
    "more copies than a block has vectors": np.r_[np.ones(60), np.full(M - 60, 0.5)],
    "copies, then a slope": np.r_[np.ones(50), np.linspace(0.9, 0.1, M - 50)],
    "rank 5": np.r_[np.arange(5.0, 0, -1), np.zeros(M - 5)],
    "one large": np.r_[1e6, np.linspace(2.0, 1.0, M - 1)],
    "zero": np.zeros(M),
}


@pytest.mark.parametrize("k", [1, 3, 11, 45, 120])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_pairs_are_those_of_a_dense_decomposition(spectrum, k):
    dense = matrix(SPECTRA[spectrum])
    values, vectors = krylov_eigenpairs(lambda rows: rows @ dense, k, dense[0])
    top = max(SPECTRA[spectrum].max(), 1e-300)
    expected = np.linalg.eigvalsh(dense)[::-1][:k]
    errors = np.abs(values - np.maximum(expected, 0.0))
    assert errors[: max(1, k - 1)].max() <= 1e-12 * top
    assert errors.max() <= 2e-3 * top
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() < 1e-12
    residuals = np.linalg.norm(dense @ vectors - vectors * values, axis=0)
    assert residuals[: max(1, k - 1)].max() <= 1e-12 * top
    assert residuals.max() <= 2e-3 * top


def test_a_restart_changes_nothing(monkeypatch):
    dense = matrix(SPECTRA["slow decay"])
    monkeypatch.setitem(krylov_eigenpairs.__globals__, "KEPT", 3)
    values, vectors = krylov_eigenpairs(lambda rows: rows @ dense, 10, dense[0])
    assert values[:9] == pytest.approx(1.0 / np.arange(1, 10), rel=1e-10)
    assert np.linalg.norm(dense @ vectors - vectors * values, axis=0)[:9].max() < 1e-10


def test_the_iteration_gives_up_where_it_would_take_too_long():
    dense = matrix(np.linspace(1.0, 0.99, M))
    calls = []

    def apply(rows):
        calls.append(len(rows))
        return rows @ dense

    assert krylov_eigenpairs(apply, 3, dense[0], passes=12) is None
    assert len(calls) <= 12


def test_the_result_is_reproducible():
    dense = matrix(SPECTRA["linear"])
    first, second = (krylov_eigenpairs(lambda rows: rows @ dense, 5, dense[0]) for _ in range(2))
    assert np.array_equal(first[1], second[1])


@pytest.mark.parametrize("copies", [2, 5, 9])
def test_more_copies_than_a_narrow_block_has_vectors_are_found(copies):
    """A Krylov space of two start vectors contains two copies of an eigenvector in theory."""
    spectrum = np.r_[np.full(copies, 3.0), 1.0 / np.arange(1, M - copies + 1)]
    dense = matrix(spectrum)
    values, _ = krylov_eigenpairs(lambda rows: rows @ dense, 10, dense[0], widest=2)
    assert values[:9] == pytest.approx(spectrum[:9], rel=1e-10)


def test_the_last_pair_is_as_accurate_as_asked_for():
    dense = matrix(SPECTRA["slow decay"])
    for last in (1e-3, 1e-13):
        values, vectors = krylov_eigenpairs(lambda rows: rows @ dense, 4, dense[0], last=last)
        assert np.linalg.norm(dense @ vectors[:, -1] - vectors[:, -1] * values[-1]) <= 1.1 * last
