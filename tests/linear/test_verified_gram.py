"""Certificates of few rows with many features, by a tested Gram matrix."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import LinearAutoencoder, certify
from lucidae.linear.verified_data import data_of
from lucidae.linear.verified_gram import FEW_ROWS, FewRows, gram_of
from lucidae.linear.verified_spectrum import leading_eigenpairs
from lucidae.rows import sources as solver_data

M = 1200  # more features than are decomposed as a matrix


def rows(seed, n=40, mean=1.0):
    rng = np.random.default_rng(seed)
    scales = np.exp(-np.arange(n) / rng.uniform(1, 10))
    return (rng.standard_normal((n, n)) * scales) @ rng.standard_normal((n, M)) + mean


def moment(X, weights=None):
    shares = np.ones(len(X)) / len(X) if weights is None else weights / weights.sum()
    centred = (X - shares @ X) * np.sqrt(shares)[:, None]
    values, vectors = np.linalg.eigh(centred @ centred.T)
    axes = centred.T @ vectors / np.sqrt(np.maximum(values, 1e-300))
    return values[::-1], axes[:, ::-1], shares


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["optimal", "swapped", "perturbed", "random", "deficient"])
def test_bounds_contain_the_true_eigenvalues_and_angles(seed, kind):
    rng = np.random.default_rng(seed)
    X, k = rows(seed, mean=float(rng.choice([0.0, 1.0, 100.0]))), 4
    weights = rng.integers(1, 4, len(X)).astype(float) if seed % 2 else None
    values, axes, _ = moment(X, weights)
    atoms = axes[:, :k].T.copy()
    if kind == "swapped":
        atoms[k - 1] = axes[:, k + 1]
    if kind == "perturbed":
        atoms += 1e-3 * rng.standard_normal(atoms.shape) / np.sqrt(M)
    if kind == "random":
        atoms = rng.standard_normal(atoms.shape)
    if kind == "deficient":
        atoms[-1] = atoms[0]
    data = data_of(X, weights)
    assert data.few_rows is not None
    found = leading_eigenpairs(data, atoms)
    assert np.all(found.ritz <= values[:k])
    assert np.all(values[:k] <= found.upper)
    assert_allclose(found.values, values[: k + 1], atol=1e-9 * values[0])
    span = np.linalg.qr(atoms[:3].T if kind == "deficient" else atoms.T)[0]
    rest = axes[:, :k] - span @ (span.T @ axes[:, :k])
    distance = np.sum(rest**2) / k
    assert abs(found.subspace.value - distance) <= found.subspace.error + 1e-12
    centred = X - X.mean(axis=0) if weights is None else X - weights @ X / weights.sum()
    shares = np.ones(len(X)) / len(X) if weights is None else weights / weights.sum()
    outside = centred - (centred @ span) @ span.T
    largest = np.linalg.norm(np.sqrt(shares)[:, None] * outside, 2) ** 2
    assert found.outside >= largest * (1 - 1e-12)
    if kind == "optimal":
        assert found.outside <= values[k] * (1 + 1e-8) + 1e-9 * values[0]
        assert found.subspace.error < 1e-12


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-4, 1.0])
def test_the_error_of_a_wrong_gram_matrix_is_bounded(size):
    rng = np.random.default_rng(1)
    X = rows(3)
    shares, mean = np.full(len(X), 1 / len(X)), X.mean(axis=0)
    trace = float(np.sum((X - mean) ** 2)) / len(X)
    gram = gram_of(X, shares, mean)
    span = np.linalg.qr(rng.standard_normal((M, 3)))[0].T
    for _ in range(20):
        wrong = np.outer(*rng.standard_normal((2, len(X))))
        wrong *= size * trace / np.linalg.norm(wrong)
        few = FewRows(X, shares, mean, trace, gram + (wrong + wrong.T) / 2, plain=False)
        checks = rng.standard_normal((4, len(X)))
        _, error = few._tested(few.gram, checks, gram @ checks.T)
        assert error >= np.linalg.norm((wrong + wrong.T) / 2, 2)
        # A matrix that is far from that of the rows is not used at all.
        found = few.measured(span)
        assert found.error <= 1.1e-9 * trace
        assert_allclose(found.values, np.linalg.eigvalsh(gram)[::-1], atol=1.1e-9 * trace)


@pytest.mark.parametrize("plain", [True, False])
def test_products_are_those_of_the_centred_rows(plain):
    X = rows(5, mean=0.3)
    shares = np.full(len(X), 1 / len(X))
    centred = X - X.mean(axis=0)
    trace = float(np.sum(centred**2)) / len(X)
    span = np.linalg.qr(np.random.default_rng(0).standard_normal((M, 3)))[0].T
    few = FewRows(X, shares, X.mean(axis=0), trace, centred @ centred.T / len(X), plain)
    found = few.in_units(2.0).measured(span)
    assert_allclose(found.images, span @ (centred.T @ centred) / len(X) / 4, atol=1e-12 * trace)
    assert_allclose(found.codes, centred @ span.T / np.sqrt(len(X)) / 2, atol=1e-10)
    assert found.error < 1e-11 * trace


def test_a_solver_with_a_wrong_gram_matrix_is_caught(monkeypatch):
    X = rows(2)
    assert LinearAutoencoder(3).fit(X).certificate_.holds
    true = solver_data.gram_matrix

    def broken(*args):
        gram = true(*args)
        return gram + np.outer(gram[0], gram[0]) / gram[0, 0]

    monkeypatch.setattr(solver_data, "gram_matrix", broken)
    model = LinearAutoencoder(3).fit(X)
    assert not model.certificate_.holds
    assert model.certificate_["subspace"].holds is False
    assert not certify(model, X).holds


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_certificates_of_few_rows_hold_at_the_optimum(dtype, mean):
    X = rows(7, n=60, mean=mean).astype(dtype)
    model = LinearAutoencoder(5).fit(X)
    assert model.certificate_.holds
    assert certify(model, X)["subspace"].holds
    values = moment(X.astype(float))[0][:5] * 60 / 59
    assert_allclose(model.explained_variance_, values, rtol=1e-10 if dtype is np.float64 else 1e-5)


def test_more_rows_are_not_decomposed():
    X = np.random.default_rng(0).standard_normal((FEW_ROWS + 1, FEW_ROWS + 200))
    assert data_of(X).few_rows is None


def test_the_reference_says_how_the_eigenvalues_were_found():
    found = LinearAutoencoder(3).fit(rows(4)).certificate_["subspace"]
    assert "Gram matrix of the rows tested" in found.reference
    assert "Balakrishnan" not in found.reference
