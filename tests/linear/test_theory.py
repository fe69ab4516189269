"""Theory of a spectrum: residual bounds, condition bounds, zero latents, identifiability."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import covariance_from, orthogonal, spectra, spectrum_from
from lucidae.linear.data import DenseCovariance
from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
)
from lucidae.linear.objectives import NonUniformL2
from lucidae.linear.theory import (
    nested_condition_bound,
    nonuniform_condition_bound,
    residual_bounds,
    smallest_gap,
    unidentifiable,
    zero_latents,
)
from lucidae.metrics import axis_alignment_distance, subspace_distance

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=300)
@given(
    seed=seeds,
    k=st.integers(1, 4),
    outside=st.integers(0, 6),
    size=st.sampled_from([0.0, 1e-6, 1e-3, 1e-2, 0.1, 1.0]),
    kind=st.sampled_from(["near", "dead", "twice", "turned", "lower"]),
)
def test_the_bounds_lie_above_the_true_distances(seed, k, outside, size, kind):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.gamma(1.0, 1.0, k + outside) ** rng.choice([0.5, 3.0]))[::-1]
    spectrum = spectrum_from(values, seed)
    axes = spectrum.vectors[:, :k]
    atoms = np.array(axes.T) * rng.uniform(0.2, 2.0, (k, 1))
    if kind == "dead":
        atoms[rng.integers(k)] = 0.0
    if kind == "twice":
        atoms[-1] = atoms[0]
    if kind == "turned":
        atoms = orthogonal(rng, k) @ atoms
    if kind == "lower":
        atoms[-1] = spectrum.vectors[:, -1]
    atoms = atoms + size * rng.standard_normal(atoms.shape)
    if not np.any(atoms):
        return
    bounds = residual_bounds(covariance_from(spectrum), atoms)
    assert bounds.subspace >= subspace_distance(atoms.T, axes) - 1e-9
    assert bounds.alignment >= axis_alignment_distance(atoms.T, axes) - 1e-9


def test_the_bounds_vanish_quadratically_at_the_optimum():
    spectrum = spectrum_from([4.0, 2.0, 1.0, 0.3, 0.1])
    covariance, axes = covariance_from(spectrum), spectrum.vectors[:, :3]
    noise = np.random.default_rng(0).standard_normal((3, 5))
    previous = None
    for size in (1e-2, 1e-3, 1e-4):
        bounds = residual_bounds(covariance, axes.T + size * noise)
        both = np.array([bounds.subspace, bounds.alignment])
        assert np.all(both < 100 * size**2)
        if previous is not None:
            assert_allclose(previous / both, 100, rtol=0.2)
        previous = both
    assert_allclose(bounds.values, spectrum.values[:3], rtol=1e-6)
    assert_allclose(bounds.outside, 1.1 * 0.3, rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1e120, 1e140])
def test_the_bounds_do_not_depend_on_the_scale_of_the_data(scale):
    spectrum = spectrum_from([4.0, 2.0, 1.0, 0.3])
    covariance = covariance_from(spectrum)
    atoms = spectrum.vectors[:, :2].T + 0.01 * np.random.default_rng(0).standard_normal((2, 4))
    expected = residual_bounds(covariance, atoms)
    found = residual_bounds(DenseCovariance(covariance.matrix * scale), atoms)
    assert_allclose(found.subspace, expected.subspace, rtol=1e-6)
    assert_allclose(found.alignment, expected.alignment, rtol=1e-6)


def test_no_variance_and_no_weights_bound_nothing():
    nothing = residual_bounds(DenseCovariance(np.zeros((3, 3))), np.eye(3)[:2])
    assert (nothing.subspace, nothing.alignment) == (1.0, 1.0)
    silent = residual_bounds(DenseCovariance(np.eye(3)), np.zeros((2, 3)))
    assert (silent.subspace, silent.alignment) == (1.0, 1.0)


@settings(max_examples=200)
@given(seed=seeds, k=st.integers(2, 8), outside=st.integers(0, 4))
def test_the_papers_bounds_lie_below_the_true_condition_numbers(seed, k, outside):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
    penalties = np.sort(rng.uniform(0.001, 0.999, k)) * values[k - 1]
    nonuniform = condition_number(AlignedPoint.nonuniform(values, penalties))
    assert nonuniform_condition_bound(values[:k]) <= nonuniform * (1 + 1e-9)
    prior = rng.dirichlet(np.ones(k))
    nested = condition_number(AlignedPoint.nested(values, prior), effective=True)
    assert nested_condition_bound(values[:k]) <= nested * (1 + 1e-9)


def test_two_latents_die_in_the_papers_mnist_setting():
    """√λ equally spaced 0.1 … 0.9, σ₁₉² = 0.626, σ₂₀² = 0.608 (pixels in [0, 1])."""
    penalties = np.linspace(0.1, 0.9, 20) ** 2
    values = np.concatenate([np.linspace(5.117, 0.673, 18), [0.626, 0.608]])
    assert_allclose(zero_latents(values, penalties), [19, 20])
    assert_allclose(zero_latents(values, penalties[::-1]), [1, 2])
    weights = NonUniformL2(penalties).squared_lengths(values)
    assert_allclose(np.flatnonzero(weights == 0), [18, 19])


def test_a_penalty_equal_to_its_eigenvalue_kills():
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0]), [2])
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0 - 1e-12]), [])


def test_components_that_share_an_eigenvalue_are_named():
    assert_allclose(unidentifiable([3.0, 2.0, 2.0, 1.0], 3), [2, 3])
    assert_allclose(unidentifiable([3.0, 2.0, 1.0, 1.0], 3), [3])
    assert_allclose(unidentifiable([3.0, 2.0, 1.0, 1.0], 2), [])
    assert_allclose(unidentifiable([0.0, 0.0], 2), [1, 2])
    assert smallest_gap([3.0, 2.5, 1.0], 1) == 0.5
    assert smallest_gap([3.0], 1) == 3.0
