"""Bounds from residuals really bound the distances, whatever the weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import covariance_from, orthogonal, spectrum_from
from lucidae.linear.data import DenseCovariance
from lucidae.linear.theory import residual_bounds
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
    random = np.random.default_rng(seed)
    values = np.sort(random.gamma(1.0, 1.0, k + outside) ** random.choice([0.5, 3.0]))[::-1]
    spectrum = spectrum_from(values, seed)
    axes = spectrum.vectors[:, :k]
    atoms = np.array(axes.T) * random.uniform(0.2, 2.0, (k, 1))
    if kind == "dead":
        atoms[random.integers(k)] = 0.0
    if kind == "twice":
        atoms[-1] = atoms[0]
    if kind == "turned":
        atoms = orthogonal(random, k) @ atoms
    if kind == "lower":
        atoms[-1] = spectrum.vectors[:, -1]
    atoms = atoms + size * random.standard_normal(atoms.shape)
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
