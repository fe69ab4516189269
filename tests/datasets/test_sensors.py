"""Snapshots of arrays are as asked for; the lead field agrees with Maxwell's equations and MNE."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require
from lucidae.datasets import make_array_snapshots, make_meg_leadfield


def sines(angles):
    return np.sin(np.deg2rad(angles))


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
        6, 40_000, source_angles=[-20.0, 30.3], powers=[4.0, 1.0], correlation=correlation,
        snr_db=3.0, random_state=1,
    )  # fmt: skip
    signals = data.coef[:, data.support].T
    roots = np.diag([2.0, 1.0])
    expected = roots @ correlation @ roots
    assert_allclose(signals @ signals.conj().T / 40_000, expected, atol=0.1)
    # Circular: the covariance without conjugation vanishes.
    assert_allclose(signals @ signals.T / 40_000, 0.0, atol=0.1)
    waves = np.exp(2j * np.pi * np.outer(data.positions[:, 0], sines(data.source_angles)))
    noise = data.responses - waves @ signals
    assert_allclose(noise @ noise.conj().T / 40_000, np.eye(6) * 10**-0.3, atol=0.02)
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
        paths = np.outer(data.positions[:, 0], sines(data.angles))
        assert_allclose(dictionary, np.exp(2j * np.pi * scale * paths))
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
        ({"correlation": np.eye(3)}, r"a matrix of shape \(3, 3\) was given"),
        ({"correlation": [[1.0, np.nan], [np.nan, 1.0]]}, "the given matrix contains NaN"),
        ({"correlation": 2.0 * np.eye(2)}, "diagonal of the given matrix contains other numbers"),
        ({"correlation": [[1.0, 1j], [1j, 1.0]]}, "not Hermitian"),
        (
            {"correlation": [[1.0, 2.0], [2.0, 1.0]]},
            "smallest eigenvalue of the given matrix is -1",
        ),
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


def test_orientation_is_tangential():
    # Radial currents are silent, so that they cannot add to the strongest field.
    head = make_meg_leadfield(60, 40, normalize=False, return_geometry=True, random_state=0)
    radial = np.sum(head.source_positions * head.source_orientations, axis=1)
    assert_allclose(radial, 0, atol=1e-12)


def test_helmet_surrounds_the_sources_with_outward_unit_normals():
    head = make_meg_leadfield(102, 1, return_geometry=True, random_state=0)
    positions, normals = head.sensor_positions, head.sensor_normals
    assert_allclose(np.linalg.norm(normals, axis=1), 1)
    assert (np.sum(positions * normals, axis=1) > 0.1).all()
    gaps = np.linalg.norm(positions[:, None] - positions[None], axis=-1) + np.eye(102)
    assert gaps.min() > 0.02


def test_default_dictionary_is_correlated_as_real_lead_fields_are():
    Phi = make_meg_leadfield(random_state=0)
    assert Phi.shape == (102, 250)
    assert_allclose(np.linalg.norm(Phi, axis=0), 1)
    correlations = abs(Phi.T @ Phi)[np.triu_indices(250, 1)]
    assert 0.3 < correlations.mean() < 0.5
    assert 0.75 < np.quantile(correlations, 0.95) < 0.95
    assert correlations.max() < 0.999
    assert np.linalg.matrix_rank(Phi) == 102


def test_formula_equals_mne_for_point_magnetometers_of_a_real_helmet():
    mne = require("mne")
    info = mne.channels.read_meg_canonical_info("neuromag")
    info = mne.pick_info(info, mne.pick_types(info, meg="mag"))
    for channel in info["chs"]:
        channel["coil_type"] = mne.io.constants.FIFF.FIFFV_COIL_POINT_MAGNETOMETER
    directions = np.random.default_rng(0).standard_normal((30, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sources = directions * np.linspace(0.02, 0.075, 30)[:, None]
    forward = mne.make_forward_solution(
        info,
        trans=None,
        src=mne.setup_volume_source_space(pos={"rr": sources, "nn": directions}, verbose=False),
        bem=mne.make_sphere_model((0.0, 0.0, 0.0), head_radius=0.09, info=info, verbose=False),
        eeg=False,
        mindist=0.0,
        verbose=False,
    )
    assert_allclose(info["dev_head_t"]["trans"], np.eye(4))  # so both frames are one
    places = np.array([channel["loc"] for channel in info["chs"]])
    positions, normals = places[:, :3], places[:, 9:]
    expected = forward["sol"]["data"].reshape(102, 30, 3)
    head = make_meg_leadfield(
        sensors=(positions, normals), sources=sources, normalize=False, return_geometry=True
    )
    along = np.einsum("csd,sd->cs", expected, head.source_orientations)
    assert_allclose(head.leadfield, along, atol=1e-6 * abs(expected).max())
    strongest = np.linalg.svd(expected.transpose(1, 0, 2))[1][:, 0]
    assert_allclose(np.linalg.norm(head.leadfield, axis=0), strongest, rtol=1e-6)


def test_a_linear_array_takes_directions_in_front_of_it_alone():
    with pytest.raises(ValueError, match="contains 100 degrees, expected directions between -90"):
        make_array_snapshots(source_angles=[0.0, 100.0])
    plane = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]])
    assert make_array_snapshots(source_angles=[100.0], positions=plane).source_angles == [100.0]
