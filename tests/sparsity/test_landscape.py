"""One-dimensional slices of the energies: which minima marginalisation removes."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae.sparsity.landscape import (
    autoencoder_slice,
    diagonal_slice,
    diagonal_slice_minima,
    full_slice,
    full_slice_minima,
    scan_minima,
    slice_parameters,
)
from lucidae.sparsity.objectives import Autoencoder, DiagonalCovariance, FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate


def linear_vae_decoder(responses, noise):
    """Optimal decoder of a VAE with a free linear decoder (Wipf 2023, Lemma 3.2)."""
    directions, values, _ = np.linalg.svd(
        responses / np.sqrt(responses.shape[1]), full_matrices=False
    )
    return directions * np.sqrt(np.maximum(values**2 - noise, 0.0))


GRID = np.concatenate([[0.0], np.geomspace(1e-9, 300, 9000)])
POSITIVE = st.floats(0.02, 20)


@settings(max_examples=25)
@given(power=POSITIVE, inner=POSITIVE)
def test_the_full_slice_has_one_minimum(power, inner):
    assume(abs(power / inner - 1) > 1e-2)  # else rounding hides the slope at zero
    found = scan_minima(GRID, full_slice(GRID, power, inner))
    assert len(found) == 1
    assert_allclose(found, full_slice_minima(power, inner), rtol=5e-3, atol=1e-3)


@settings(max_examples=25)
@given(power=POSITIVE, inner=POSITIVE, share=st.floats(1e-3, 1))
def test_the_diagonal_slice_has_the_minima_of_equation_56(power, inner, share):
    outer = share * inner
    discriminant = power**2 + 4 * power * (outer - inner)
    # a grid cannot tell where a minimum is about to appear or to vanish
    assume(abs(discriminant) > 1e-2 * power**2)
    assume(abs(power * outer / inner**2 - 1) > 1e-2)
    expected = diagonal_slice_minima(power, inner, outer)
    found = scan_minima(GRID, diagonal_slice(GRID, power, inner, outer))
    assert len(found) == len(expected)
    assert_allclose(found, expected, rtol=5e-3, atol=1e-3)


def test_the_two_minima_of_corollary_4_5():
    assert_allclose(diagonal_slice_minima(10.0, 1.0, 0.01), [0.0, (8 + np.sqrt(60.4)) / 2])
    values = diagonal_slice(np.array(diagonal_slice_minima(10.0, 1.0, 0.01)), 10.0, 1.0, 0.01)
    assert values[1] < values[0]  # the minimum at zero is a bad one
    assert full_slice_minima(10.0, 1.0) == [9.0]


def test_with_the_other_means_fixed_the_diagonal_vae_has_one_minimum_again():
    # γ'' = γ' turns eq. 55 into eq. 59
    for power in (0.5, 2.0, 30.0):
        assert len(diagonal_slice_minima(power, 1.0, 1.0)) == 1
        assert_allclose(diagonal_slice_minima(power, 1.0, 1.0), [max(0.0, power - 1.0)], atol=1e-12)


def test_the_autoencoder_keeps_bad_minima_in_one_coefficient():
    grid = np.linspace(-1.0, 6.0, 70_001)
    minima = scan_minima(grid[1:-1], autoencoder_slice(grid[1:-1], target=3.0, noise=1.0))
    assert len(minima) == 2
    assert abs(minima[0]) < 1e-3
    assert_allclose(minima[1], (3 + np.sqrt(5)) / 2, atol=1e-3)  # u − a + γ/u = 0


@settings(max_examples=25)
@given(seed=st.integers(0, 10**5))
def test_slices_of_a_real_problem_are_those_of_the_theorem(seed):
    rng = np.random.default_rng(seed)
    problem, _ = normalise(rng.standard_normal((5, 8)), rng.standard_normal((5, 3)))
    problem = problem.with_noise(0.2)
    relevance = rng.uniform(0.1, 1, 8)
    power, inner, outer = slice_parameters(evaluate(problem, relevance), 2)
    assert outer <= inner * (1 + 1e-9)
    weights = np.array([0.0, 0.3, 2.0])

    def energies(objective):
        values = []
        for weight in weights:
            moved = relevance.copy()
            moved[2] = weight
            values.append(float(objective.value(evaluate(problem, moved))))
        return np.array(values)

    for objective, slices in [
        (FullCovariance(), full_slice(weights, power, inner)),
        (DiagonalCovariance(), diagonal_slice(weights, power, inner, outer)),
    ]:
        assert_allclose(np.diff(energies(objective)), np.diff(slices), atol=1e-9)


def test_diagonal_and_autoencoder_energies_become_one_as_the_noise_vanishes():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((6, 6))
    problem, _ = normalise(Phi, rng.standard_normal((6, 4)))
    gaps = []
    for noise in (1e-4, 1e-6, 1e-8):
        problem = problem.with_noise(noise)
        differences = []
        for seed in range(3):
            # At the autoencoder's own relevances, w = a of an exact fit (Lemma 4.3).
            U = np.linalg.solve(problem.dictionary, problem.responses)
            relevance = (U**2).sum(axis=1) * np.exp(
                1e-2 * np.random.default_rng(seed).normal(size=6)
            )
            state = evaluate(problem, relevance)
            diagonal = float(DiagonalCovariance().value(state))
            point = float(Autoencoder().value(state))
            differences.append(diagonal - point)
        gaps.append(np.ptp(differences))
    assert gaps[0] > 0
    assert max(gaps) < 1e-2


@pytest.mark.parametrize("noise", [0.05, 0.5, 1e-9])
def test_a_free_linear_decoder_uses_as_many_dimensions_as_exceed_the_noise(noise):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((8, 3)) @ rng.standard_normal((3, 40))
    decoder = linear_vae_decoder(X, noise)
    values = np.linalg.svd(X / np.sqrt(40), compute_uv=False)
    active = np.linalg.norm(decoder, axis=0) > 1e-6
    assert active.sum() == (values > np.sqrt(noise)).sum()

    def energy(W):
        sigma = W @ W.T + noise * np.eye(8)
        return np.trace(X.T @ np.linalg.solve(sigma, X)) / 40 + np.linalg.slogdet(sigma)[1]

    for _ in range(50):
        assert energy(decoder) <= energy(decoder + 0.01 * rng.standard_normal(decoder.shape)) + 1e-9
