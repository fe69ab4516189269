"""Exact moves of one column or one group of columns, in closed form (mathematics.md 3.3 and 4.1).

With all other relevances fixed, a change Δ of the prior covariance of some columns changes the
energy per response by log|I + ΔS| − tr (I + ΔS)⁻¹ΔQ, where S and Q are the metric and the explained
moment of these columns.
"""

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from lucidae.sparsity import prior as moves
from lucidae.sparsity.prior import (
    best_change,
    full_moves,
    gain_of,
    group_distances,
    spherical_moves,
)

KINDS = pytest.mark.parametrize("kind", [float, complex])


def change_of_energy(change, S, Q):
    T = np.eye(len(S)) + change @ S
    return np.linalg.slogdet(T)[1] - np.trace(np.linalg.solve(T, change @ Q)).real


def blocks(rng, size):
    """Return a metric and an explained moment of random scales."""
    A = rng.standard_normal((size, size + 2)) * np.exp(rng.standard_normal((size, 1)))
    B = rng.standard_normal((size, 3)) * np.exp(rng.standard_normal(3))
    return A @ A.T, 3.0 * B @ B.T


def stacks(seed, size, rank, kind=float, count=60):
    """Return covariances, metrics and explained moments of groups; every third is inactive."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    half, other = normal(count, size, 2 * size), normal(count, size, 2 * size)
    other = 2.0 * other * rng.random((count, 1, 1))
    S, Q = half @ half.conj().mT, other @ other.conj().mT
    inverse = np.linalg.inv(np.linalg.cholesky(S))
    part = normal(count, size, rank)
    part = part @ part.conj().mT
    part = part / np.linalg.eigvalsh(part)[:, -1:, None] * rng.random((count, 1, 1))
    covariance = inverse.conj().mT @ part @ inverse
    covariance[::3] = 0.0
    return covariance, S, Q


def test_no_relevance_of_a_fine_grid_beats_the_move_of_a_column():
    rng = np.random.default_rng(0)
    for w, curvature, alignment in rng.gamma(1.0, 2.0, (50, 3)) * [1.0, 0.2, 1.0]:
        curvature = min(curvature, 0.99 / w)  # wS < 1, since S = 1/(w + 1/s) with s > 0
        change = best_change(np.array([w]), np.array([curvature]), np.array([alignment]))[0]
        gain = gain_of(change, curvature, alignment)
        S, Q = np.array([[curvature]]), np.array([[alignment]])
        assert_allclose(change_of_energy(np.array([[change]]), S, Q), -gain, atol=1e-12)
        grid = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 500)]) - w
        grown = 1.0 + grid * curvature
        assert -gain <= (np.log(grown) - alignment * grid / grown).min() + 1e-12


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_relevance_of_a_fine_grid_beats_the_move_of_a_group(size):
    rng = np.random.default_rng(size)
    for _ in range(10):
        S, Q = blocks(rng, size)
        w = rng.choice([0.0, 0.5 / np.linalg.eigvalsh(S)[-1]])
        moved, gain = spherical_moves(w * np.eye(size)[None], S[None], Q[None])
        grid = np.concatenate([[0.0], np.exp(np.linspace(-20, 12, 500))]) - w
        best = min(change_of_energy(change * np.eye(size), S, Q) for change in grid)
        assert -gain[0] <= best + 1e-8 * max(1.0, abs(best))
        change = moved[0] - w * np.eye(size)
        assert_allclose(change_of_energy(change, S, Q), -gain[0], rtol=1e-7, atol=1e-9)


def test_a_group_may_gain_although_its_relevance_first_raises_the_energy():
    S, Q = np.diag([1.0, 200.0]), np.diag([60.0, 20.0])
    assert np.trace(Q) < np.trace(S)
    moved, gain = spherical_moves(np.zeros((1, 2, 2)), S[None], Q[None])
    assert moved[0, 0, 0] > 1.0
    assert gain[0] > 1.0


def never_beaten(count, starts):
    """Check the closed form against L-BFGS from several starts, on random blocks."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        size = int(rng.integers(2, 5))
        S, Q = blocks(rng, size)
        present = rng.standard_normal((size, size)) * rng.choice([0.0, 1.0])
        present = 0.5 * present @ present.T / (1e-9 + np.linalg.norm(present @ present.T @ S, 2))
        moved, gain = full_moves(present[None], S[None], Q[None])

        def energy(flat, S=S, Q=Q, present=present, size=size):
            T = flat.reshape(size, size)
            change = T @ T.T - present
            inverse = np.linalg.inv(np.eye(size) + S @ change)  # (I + SΔ)⁻¹
            slope = inverse @ S - inverse @ Q @ inverse.T
            return change_of_energy(change, S, Q), (2.0 * slope @ T).ravel()

        found = [
            minimize(energy, rng.standard_normal(size**2), jac=True, method="L-BFGS-B").fun
            for _ in range(starts)
        ]
        assert -gain[0] <= min(found) + 1e-7 * max(1.0, abs(min(found)))
        assert_allclose(change_of_energy(moved[0] - present, S, Q), -gain[0], rtol=1e-6, atol=1e-7)


def test_quasi_newton_never_beats_the_covariance_in_closed_form():
    never_beaten(12, 3)


@pytest.mark.slow
def test_quasi_newton_never_beats_the_covariance_in_closed_form_in_any_of_200_blocks():
    never_beaten(200, 20)


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_that_is_zero_gains_exactly_if_its_largest_ratio_exceeds_one(size, kind):
    _, S, Q = stacks(3, size, 1, kind)
    S[:5, :, -1] = S[:5, -1, :] = Q[:5, :, -1] = Q[:5, -1, :] = 0.0  # a column of zeros
    ratios = np.zeros(len(S))
    for place, (s, q) in enumerate(zip(S, Q, strict=True)):
        inside = np.diagonal(s).real > 0
        parts = (part[np.ix_(inside, inside)] for part in (q, s))
        if inside.any():
            ratios[place] = scipy.linalg.eigh(*parts, eigvals_only=True)[-1]
    S, Q, ratios = S[5:], Q[5:], ratios[5:]
    none = np.zeros_like(S)
    moved, gains = full_moves(none, S, Q)
    assert_allclose(group_distances(none, S, Q), ratios - 1.0)
    assert_array_equal(gains > 1e-12, ratios > 1.0)
    assert_array_equal(moves.at_rest(S, Q), ratios < 1.0)
    assert not spherical_moves(none.real, S, Q)[1][ratios < 1.0].any()
    for change, s, q, gain in zip(moved, S, Q, gains, strict=True):
        assert_allclose(change_of_energy(change, s, q), -gain, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3])
def test_singular_metrics_lose_no_digits_and_change_no_other_group(size):
    covariance, S, Q = stacks(1, size, size)
    alone, gained = full_moves(covariance, S, Q)
    S[7] = np.outer(np.arange(1.0, size + 1), np.arange(1.0, size + 1)) + 1e-9 * np.eye(size)
    covariance[7], Q[7] = 0.0, 3.0 * S[7]
    moved, gains = full_moves(covariance, S, Q)
    others = np.arange(len(S)) != 7
    assert_allclose(moved[others], alone[others], rtol=1e-10, atol=1e-12)
    assert_allclose(gains[others], gained[others], rtol=1e-10, atol=1e-12)
    expected, gain = full_moves(covariance[7:8], S[7:8], Q[7:8])
    assert_allclose(moved[7], expected[0])
    assert_allclose(gains[7], gain[0])
    for each in (covariance, S, Q):  # columns of zeros get no variance
        each[:, 1] = each[:, :, 1] = 0.0
    moved, gains = full_moves(covariance, S, Q)
    assert not moved[:, 1].any()
    assert np.isfinite(gains).all()
