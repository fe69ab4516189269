"""The bound on the largest eigenvalue outside of a span, against dense eigenvalues."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import orthogonal
from lucidae import SecondMoment, eigenvalue_bounds
from lucidae.data.kinds import aligned_blocks
from lucidae.eigenvalue_bounds import (
    Complement,
    digest_of,
    drawn_after,
    eigenvalue_bound,
    start_share,
)
from lucidae.linear import verified_data
from lucidae.linear.verified_blocks import data_of_any
from lucidae.linear.verified_data import data_of

SPECTRA = {
    "flat": lambda m: np.r_[1.0, np.full(m - 1, 0.9)],
    "linear": lambda m: np.linspace(1.0, 0.0, m),
    "decaying": lambda m: 0.9 ** np.arange(m),
    "one alone": lambda m: np.r_[1.0, np.full(m - 1, 1e-3)],
    "equal": np.ones,
}


def complement(values, starts, hidden=0):
    """Return the complement of the first `hidden` axes for a diagonal second moment."""
    span = np.eye(len(values))[:, :hidden]
    return Complement(lambda rows: rows * values, span, 1e-15, starts)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(2, 30),
    rows=st.integers(1, 8),
    first=st.integers(1, 4),
)
def test_no_eigenvalue_exceeds_the_bound_for_the_true_share(seed, m, rows, first):
    """For any subspace and any matrix, if `share` is the share of the leading eigenvector."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, m))
    A = (A + A.T) / 2
    basis = orthogonal(rng, m)[: min(rows, m)]
    inner = basis @ A @ basis.T
    rest = basis @ A - inner @ basis
    values, vectors = np.linalg.eigh(A)
    first = min(first, len(basis))
    share = float(np.linalg.norm(basis[:first] @ vectors[:, -1]))
    found = eigenvalue_bound(inner, rest @ rest.T, first, share)
    assert found >= values[-1] - 1e-9 * np.abs(values).max()
    assert found >= np.linalg.eigvalsh(inner)[-1]


def test_the_bound_is_the_last_crossing_of_the_norm():
    """Beyond it, ‖E₁ᵀ(λ − T)⁻¹N‖ is below the share; just below it, it is above."""
    rng = np.random.default_rng(1)
    values = np.linspace(1.0, 0.1, 40)
    basis = np.empty((0, 40))
    block = rng.standard_normal((3, 40))
    for _ in range(4):
        block = block - block @ basis.T @ basis
        basis = np.vstack([basis, np.linalg.qr(block.T)[0].T])
        block = basis[-3:] * values
    inner = (basis * values) @ basis.T
    rest = basis * values - inner @ basis
    found = eigenvalue_bound(inner, rest @ rest.T, 3, 0.05)

    def size(at):
        return np.linalg.norm(np.linalg.solve(at * np.eye(len(inner)) - inner, rest)[:3], 2)

    assert_allclose(size(found), 0.05, rtol=1e-6)
    assert all(size(at) < 0.05 for at in found * np.linspace(1.0001, 3.0, 200))


@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("starts", [1, 3, 16])
def test_the_bound_fails_as_rarely_as_stated(monkeypatch, kind, starts):
    """With a failure probability of 0.3, at most that share of starts gives a wrong bound."""
    monkeypatch.setattr(eigenvalue_bounds, "FAILURE", 0.3)
    values, trials, wrong = SPECTRA[kind](60), 150, 0
    rng = np.random.default_rng(0)
    for _ in range(trials):
        space = complement(values, rng.standard_normal((starts, 60)))
        space.bound = np.inf
        space.extend(2)
        wrong += space.bound < 1.0
        assert space.found <= 1.0 + 1e-12
    assert wrong <= 0.3 * trials + 3 * np.sqrt(0.21 * trials)


@pytest.mark.parametrize("kind", SPECTRA)
def test_the_bound_holds_and_gets_tight(kind):
    values = SPECTRA[kind](400)
    for hidden in (0, 5):
        space = complement(values, np.random.default_rng(3).standard_normal((16, 400)), hidden)
        space.bound, top, before = float(np.sum(values)), values[hidden], np.inf
        for steps in (2, 3, 4, 6, 8, 12):
            space.extend(steps)
            assert top * (1 - 1e-12) <= space.bound <= before
            before = space.bound
        assert space.bound <= 1.06 * top


def test_decaying_eigenvalues_need_four_steps():
    """A bound that holds for all spectra (Kuczyński & Woźniakowski 1992) needs eleven."""
    values = 1.0 / np.arange(1.0, 3001.0)
    space = complement(values, np.random.default_rng(0).standard_normal((16, 3000)), 10)
    space.bound = np.inf
    space.extend(4)
    assert values[10] <= space.bound < values[9]
    worst = (np.log(1.648 * np.sqrt(3000) / 1e-9 ** (1 / 16)) / (2 * 10 - 1)) ** 2
    assert values[10] / (1 - worst) > values[9]


def test_the_share_is_a_quantile_of_the_chi_squared_distribution(monkeypatch):
    monkeypatch.setattr(eigenvalue_bounds, "FAILURE", 0.1)
    drawn = np.random.default_rng(0).standard_normal((20_000, 5))
    assert_allclose(np.mean(np.linalg.norm(drawn, axis=1) < start_share(5)), 0.1, atol=0.01)


def test_a_complete_space_has_the_largest_eigenvalue_itself():
    values = np.r_[3.0, 2.0, 1.0, 0.5]
    space = complement(values, np.random.default_rng(0).standard_normal((2, 4)), hidden=2)
    space.bound = 10.0
    space.extend(16)
    assert space.exhausted
    assert_allclose([space.bound, space.found], 1.0, rtol=1e-12)
    empty = complement(values, np.zeros((0, 4)), hidden=4)
    assert empty.exhausted
    assert not empty.extend(3)


def test_lower_bounds_are_ritz_values_of_the_whole_space():
    rng = np.random.default_rng(0)
    values, vectors = 1.0 / np.arange(1.0, 31.0), orthogonal(rng, 30)
    matrix = (vectors * values) @ vectors.T
    rows = np.linalg.qr(vectors[:, :3] + 0.1 * rng.standard_normal((30, 3)))[0].T
    space = Complement(lambda x: x @ matrix, rows.T, 1e-15, rng.standard_normal((4, 30)))
    space.bound = np.inf
    space.extend(2)
    images = rows @ matrix
    fresh = images - (images @ rows.T) @ rows
    found = space.ritz(rows, images, fresh)
    whole = np.linalg.qr(np.concatenate([rows, space.basis, fresh]).T)[0]
    expected = np.linalg.eigvalsh(whole.T @ matrix @ whole)[::-1]
    assert_allclose(found, expected, atol=1e-12)
    assert np.all(found[:3] <= values[:3] + 1e-12)


def last_digit_changed(X, row, column):
    """Return rows of which one entry differs by its last bit."""
    other = X.copy()
    other[row, column] = np.nextafter(X[row, column], np.inf)
    return other


def test_the_random_starts_depend_on_every_bit_of_the_rows(monkeypatch):
    """Neither the mean, the variances nor a projection need to change for other starts."""
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 10)
    monkeypatch.setattr(verified_data, "FEW_ROWS", 0)
    X = np.random.default_rng(0).standard_normal((50, 20)) * np.r_[1.0, np.full(19, 1e-9)]
    seen = {data_of(X).fingerprint}
    for row, column in ((0, 1), (3, 7), (49, 19)):
        other = last_digit_changed(X, row, column)
        seen.add(data_of(other).fingerprint)
        assert data_of(np.asfortranarray(other)).fingerprint in seen
        assert data_of(np.repeat(other, 2, axis=1)[:, ::2]).fingerprint in seen
    seen.add(data_of(X, np.r_[1.5, np.ones(49)]).fingerprint)
    seen.add(data_of(scipy.sparse.csr_array(X)).fingerprint)
    seen.add(data_of(SecondMoment.of(X)).fingerprint)
    seen.add(data_of_any(aligned_blocks(X, None, None, with_targets=False)).fingerprint)
    assert len(seen) == 8
    assert None not in seen


def test_hashed_blocks_count_in_any_order():
    X = np.random.default_rng(0).standard_normal((60, 4))
    blocks = [X[:20], X[20:30], X[30:]]
    one = data_of_any(aligned_blocks(lambda: iter(blocks), None, None, with_targets=False))
    two = data_of_any(aligned_blocks(lambda: iter(blocks[::-1]), None, None, with_targets=False))
    blocks[1] = last_digit_changed(blocks[1], 3, 2)
    three = data_of_any(aligned_blocks(lambda: iter(blocks), None, None, with_targets=False))
    assert one.fingerprint == two.fingerprint != three.fingerprint


def test_starts_follow_from_what_was_seen():
    vector = np.arange(3.0)
    assert_allclose(drawn_after((2, 5), b"a", vector), drawn_after((2, 5), b"a", vector))
    assert not np.allclose(drawn_after((2, 5), b"a", vector), drawn_after((2, 5), b"b", vector))
    assert digest_of(vector) != digest_of(vector.astype(np.float32))
    assert digest_of(vector, vector) != digest_of(np.r_[vector, vector])
