"""Bounds on singular values that the verifier of large problems has not computed."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae import DropoutAutoencoder, DropoutFactorization, certify
from lucidae.dropout import projection, spectrum_bounds
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.solvers import solve
from lucidae.dropout.spectrum_bounds import (
    Gram,
    possible_saving,
    smallest_loss,
    threshold,
    with_bounds,
)
from lucidae.dropout.theory import optimal_value

WIDTH = 4


@pytest.fixture(autouse=True)
def small_limit(monkeypatch):
    """Let problems with more than 40 rows and columns count as large."""
    monkeypatch.setattr(projection, "SMALL", 40)
    monkeypatch.setattr(projection, "FEW", 4)


def gram_of(matrix, seed=b"seed"):
    """Return the Gram matrix AᵀA of a matrix A in the form that the bounds use."""
    gram = matrix.T @ matrix
    size = len(gram)
    total = float(np.trace(gram))
    return Gram(size, len(matrix), lambda v: gram @ v, lambda: 1.0 * gram, total, seed)


def matrix_with(values, n=90, m=70, seed=0):
    """Return a matrix of shape (n, m) with the given singular values, and its right vectors."""
    rng = np.random.default_rng(seed)
    P, Q = (np.linalg.qr(rng.standard_normal((size, m)))[0] for size in (n, m))
    return (P * values) @ Q.T, Q


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 6),
    strength=st.sampled_from([0.0, 1e-3, 0.5, 4.0]),
)
def test_larger_singular_values_save_as_much_as_stated(seed, width, strength):
    """The minimum for the upper bounds, by the solver's own formula, is smaller by the saving."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.exponential(size=9))[::-1]
    upper = np.sort(values[:width] + rng.exponential(size=width) * rng.integers(0, 2, width))[::-1]
    total = float(np.sum(values**2) + np.sum(upper**2) + 1.0)
    tail = total - float(np.sum(values[:width] ** 2))
    before, after = (optimal_value(v, strength, width, total) for v in (values[:width], upper))
    found = possible_saving(values[:width], tail, upper, strength, width)
    assert found >= 0.0
    assert_allclose(found, before - after, atol=1e-9 * total)
    assert_allclose(smallest_loss(values[:width], tail, strength, width), before, rtol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
def test_the_threshold_and_the_minimum_are_those_of_the_solver(strength):
    values = np.geomspace(3.0, 0.1, 7)
    solution = solve(LinearProblem.from_matrix(np.diag(values)), strength, WIDTH)
    assert_allclose(threshold(values[:WIDTH], strength, WIDTH), solution.threshold, atol=1e-12)
    tail = float(np.sum(values[WIDTH:] ** 2))
    assert_allclose(smallest_loss(values[:WIDTH], tail, strength, WIDTH), solution.value)


SPECTRA = {
    "decaying": 0.8 ** np.arange(70),
    "signal and noise": np.r_[np.geomspace(9, 3, 4), np.linspace(1.0, 0.5, 66)],
    "flat": np.linspace(1.0, 0.99, 70),
    "equal": np.ones(70),
    "pairs": np.repeat(0.9 ** np.arange(35), 2),
    "low rank": np.r_[3.0, 2.0, 1.0, 0.5, 0.1, np.zeros(65)],
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("cholesky", [True, False])
def test_no_singular_value_exceeds_its_bound(name, strength, cholesky, monkeypatch):
    """With any of the leading eigenvectors missing; with all of them the bounds are tight."""
    if not cholesky:
        monkeypatch.setattr(spectrum_bounds, "LARGEST_CHOLESKY", 0)
    values = SPECTRA[name]
    matrix, vectors = matrix_with(values)
    for missing in (None, 0, 2, WIDTH):
        kept = [i for i in range(WIDTH + 1) if i != missing]
        found = with_bounds(gram_of(matrix), values[kept] ** 2, vectors[:, kept], strength, WIDTH)
        assert np.all(found.upper >= values[:WIDTH] * (1 - 1e-9))
        tail = float(np.sum(values[WIDTH:] ** 2))
        given = values[kept][:WIDTH]
        known = float(np.sum(values[kept][:WIDTH] ** 2))
        true = smallest_loss(
            given, tail + float(np.sum(values[:WIDTH] ** 2)) - known, strength, WIDTH
        )
        true -= smallest_loss(values[:WIDTH], tail, strength, WIDTH)
        saving = possible_saving(
            given, float(np.sum(values**2)) - known, found.upper, strength, WIDTH
        )
        assert saving >= true - 1e-9 * np.sum(values**2)
        if missing is None and cholesky:
            assert saving <= 2e-7 * np.sum(values**2)
        if missing == 0 and name in ("decaying", "signal and noise", "low rank"):
            hidden = found.missed.T @ vectors[:, 0]
            assert np.linalg.norm(hidden) > 0.99


def with_hidden_value(monkeypatch, times=10**9):
    """Let the Lanczos iteration of the verifier miss the largest singular value `times` times."""
    real, left = projection.eigsh, [times]

    def misses(operator, k, **options):
        if left[0] == 0:
            return real(operator, k=k, **options)
        left[0] -= 1
        values, vectors = real(operator, k=k + 1, **options)
        return values[:-1], vectors[:, :-1]

    monkeypatch.setattr(projection, "eigsh", misses)


def rows(kind):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 5)) @ (rng.standard_normal((5, 50)) * 0.7 ** np.arange(5)[:, None])
    X = X + 0.05 * rng.standard_normal((60, 50))
    return scipy.sparse.csr_array(X) if kind == "sparse" else X


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_singular_value_that_lanczos_misses_does_not_make_wrong_weights_pass(
    kind, dropout, monkeypatch
):
    X = rows(kind)
    dense = np.asarray(X.todense()) if kind == "sparse" else X
    centred = dense - dense.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    wrong = DropoutAutoencoder(WIDTH, dropout=dropout).fit(centred - np.outer(centred @ axis, axis))
    with_hidden_value(monkeypatch)
    weights = (wrong.left_, wrong.right_)
    judged = certify(weights, X, family="dropout", dropout=dropout)
    assert judged["gap"].holds is False
    assert judged.holds is False
    if kind == "dense":
        axis = np.linalg.svd(X, full_matrices=False)[2][0]
        factors = DropoutFactorization(WIDTH, dropout=dropout).fit(X - np.outer(X @ axis, axis))
        assert certify(factors, X)["gap"].holds is False


def test_a_missed_singular_value_is_searched_for_again(monkeypatch):
    X = rows("dense")
    model = DropoutAutoencoder(WIDTH, dropout=0.3).fit(X)
    factors = DropoutFactorization(WIDTH, dropout=0.3).fit(X)
    for subject in (model, factors):
        with monkeypatch.context() as patch:
            with_hidden_value(patch, times=1)
            assert certify(subject, X).holds
        with monkeypatch.context() as patch:
            with_hidden_value(patch)
            found = certify(subject, X)
            assert found.holds is None
            assert "leading singular values" in found["gap"].advice


def test_bounds_that_decide_nothing_leave_the_certificate_undecided(monkeypatch):
    """A flat spectrum, of which neither a Krylov space nor a factorisation gives a bound."""
    X = np.random.default_rng(0).standard_normal((400, 300))
    assert certify(DropoutFactorization(5, dropout=0.1).fit(X), X).holds
    monkeypatch.setattr(spectrum_bounds, "LARGEST_CHOLESKY", 0)
    monkeypatch.setattr(spectrum_bounds, "STEPS", (2, 3))
    model = DropoutFactorization(5, dropout=0.1).fit(X)
    assert model.certificate_.holds is None
    assert model.certificate_["gap"].holds is None
    assert model.certificate_["conditioning"].holds is None
    assert "separates them" in model.certificate_["gap"].advice
    model.left_ = 1.5 * model.left_
    assert certify(model, X)["gap"].holds is False


def test_equal_singular_values_are_all_found():
    """Lanczos iteration from one vector finds one of several equal singular values first."""
    values = np.r_[np.full(6, 2.0), np.full(64, 1e-3)]
    matrix, _ = matrix_with(values)
    for dropout in (0.0, 0.3):
        assert certify(DropoutFactorization(WIDTH, dropout=dropout).fit(matrix), matrix).holds
