"""Snapshots of sensor arrays have the directions, covariances and noise that were asked for."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.datasets import make_array_snapshots
from lucidae.datasets._arrays import steering_vectors


def test_snapshots_without_noise_are_combinations_of_columns():
    data = make_array_snapshots(source_angles=[20.0, -7.0], snr_db=None, random_state=0)
    assert data.dictionary.shape == (12, 181)
    assert data.responses.shape == (12, 50)
    assert data.noise_variance == 0.0
    assert_array_equal(data.angles[data.support], [20.0, -7.0])
    assert_array_equal(np.flatnonzero(data.coef.any(axis=0)), np.sort(data.support))
    assert_allclose(data.responses, data.dictionary @ data.coef.T, atol=1e-12)
    assert_allclose(np.abs(data.dictionary), 1.0)


def test_a_uniform_linear_array_delays_by_half_a_wavelength_times_the_sine():
    data = make_array_snapshots(5, 1, random_state=0)
    ratios = data.dictionary[1:] / data.dictionary[:-1]
    expected = np.exp(1j * np.pi * np.sin(np.deg2rad(data.angles)))
    assert_allclose(ratios, np.broadcast_to(expected, (4, 181)), atol=1e-12)
    assert_allclose(np.diff(data.positions[:, 0]), 0.5)
    assert_allclose(data.positions.mean(axis=0), 0.0, atol=1e-15)


def test_arbitrary_arrays_measure_the_path_along_the_direction():
    rng = np.random.default_rng(0)
    positions = rng.uniform(-2, 2, (7, 2))
    data = make_array_snapshots(positions=positions, angles=[-60.0, 0.0, 35.0], random_state=0)
    for column, angle in enumerate(np.deg2rad(data.angles)):
        path = positions[:, 0] * np.sin(angle) + positions[:, 1] * np.cos(angle)
        assert_allclose(data.dictionary[:, column], np.exp(2j * np.pi * path), atol=1e-12)
    line = make_array_snapshots(positions=positions[:, 0], random_state=0)
    assert_array_equal(line.positions[:, 1], 0.0)


def test_covariances_are_those_of_the_sources_and_the_noise():
    correlation = np.array([[1.0, 0.6 + 0.3j], [0.6 - 0.3j, 1.0]])
    data = make_array_snapshots(
        6, 200_000, source_angles=[-20.0, 30.3], powers=[4.0, 1.0], correlation=correlation,
        snr_db=3.0, random_state=1,
    )  # fmt: skip
    signals = data.coef[:, data.support].T
    roots = np.diag([2.0, 1.0])
    expected = roots @ correlation @ roots
    assert_allclose(signals @ signals.conj().T / 200_000, expected, atol=0.05)
    # Circular: the covariance without conjugation vanishes.
    assert_allclose(signals @ signals.T / 200_000, 0.0, atol=0.05)
    waves = steering_vectors(data.positions, data.source_angles)
    noise = data.responses - waves @ signals
    assert_allclose(noise @ noise.conj().T / 200_000, np.eye(6) * 10**-0.3, atol=0.01)
    assert_allclose(data.noise_variance, 10**-0.3)
    assert_array_equal(data.angles[data.support], [-20.0, 30.0])  # nearest to 30.3


def test_coherent_sources_have_proportional_signals():
    data = make_array_snapshots(correlation=1.0, snr_db=None, random_state=2)
    assert np.linalg.matrix_rank(data.responses, tol=1e-8) == 1
    independent = make_array_snapshots(snr_db=None, random_state=2)
    assert np.linalg.matrix_rank(independent.responses, tol=1e-8) == 2


def test_frequencies_share_directions_and_nothing_else():
    data = make_array_snapshots(
        4, 30_000, frequencies=[0.5, 1.0, 1.5], angles=37, snr_db=None, random_state=3
    )
    assert data.dictionary.shape == (3, 4, 37)
    assert data.responses.shape == (3, 4, 30_000)
    assert data.coef.shape == (3, 30_000, 37)
    for scale, dictionary in zip((0.5, 1.0, 1.5), data.dictionary, strict=True):
        assert_allclose(dictionary, steering_vectors(data.positions, data.angles, scale))
    assert_allclose(data.responses, data.dictionary @ data.coef.mT, atol=1e-10)
    first, second = (data.coef[index][:, data.support[0]] for index in (0, 1))
    assert abs(np.vdot(first, second)) / 30_000 < 0.03


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_sensors": 0}, "n_sensors=0 was given"),
        ({"n_snapshots": 0}, "n_snapshots=0 was given"),
        ({"source_angles": []}, "source_angles must have shape"),
        ({"source_angles": [np.nan]}, "source_angles contains NaN"),
        ({"source_angles": [1j]}, "source_angles must be an array of real numbers"),
        ({"powers": -1.0}, "powers=-1.0 was given"),
        ({"powers": [1.0, -1.0]}, "expected numbers of at least 0"),
        ({"powers": [1.0]}, r"powers must have shape \(2\)"),
        ({"correlation": 1.5}, "correlation=1.5 was given"),
        ({"correlation": np.eye(3)}, r"got shape \(3, 3\)"),
        ({"correlation": [[1.0, 1j], [1j, 1.0]]}, "not Hermitian"),
        ({"correlation": [[1.0, 2.0], [2.0, 1.0]]}, "smallest eigenvalue is -1"),
        ({"snr_db": np.inf}, "snr_db=inf was given"),
        ({"snr_db": "loud"}, "snr_db='loud' was given"),
        ({"angles": 1}, "angles=1 was given"),
        ({"positions": np.ones((3, 4))}, r"positions must have shape \(any, 2\)"),
        ({"frequencies": [0.0]}, "expected numbers above 0"),
        ({"random_state": -1}, "random_state=-1 was given"),
    ],
)
def test_wrong_arguments_are_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words):
        make_array_snapshots(**settings)
