"""The lead field against physics (Maxwell's equations outside the head) and against MNE."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from lucidae.datasets import make_meg_leadfield
from lucidae.datasets._leadfield import MAGNETIC_CONSTANT, helmet, sarvas_gain


@pytest.fixture(scope="module")
def geometry():
    rng = np.random.default_rng(0)
    sensors = rng.standard_normal((9, 3))
    sensors *= rng.uniform(0.10, 0.15, (9, 1)) / np.linalg.norm(sensors, axis=1, keepdims=True)
    sources = rng.uniform(-0.045, 0.045, (7, 3))
    dipoles = rng.standard_normal((7, 3))
    return sensors, sources, dipoles


def field(points, sources, dipoles):
    """Return the whole field vector at `points`, summed over the dipoles, (points, 3)."""
    gains = [
        sarvas_gain(points, np.broadcast_to(axis, points.shape), sources) for axis in np.eye(3)
    ]
    return np.einsum("apsd,sd->pa", np.stack(gains), dipoles)


def test_radial_field_is_that_of_the_primary_current_alone(geometry):
    # Volume currents in a sphere make no radial field: Biot and Savart give it whole.
    sensors, sources, dipoles = geometry
    radial = sensors / np.linalg.norm(sensors, axis=1, keepdims=True)
    offset = sensors[:, None] - sources[None]
    primary = np.cross(dipoles[None], offset) / np.linalg.norm(offset, axis=-1, keepdims=True) ** 3
    expected = MAGNETIC_CONSTANT * np.einsum("psd,pd->p", primary, radial)
    measured = np.einsum("psd,sd->p", sarvas_gain(sensors, radial, sources), dipoles)
    assert_allclose(measured, expected, rtol=1e-10)


def test_field_outside_the_head_has_neither_curl_nor_divergence(geometry):
    sensors, sources, dipoles = geometry
    step = 1e-5
    jacobian = np.stack(
        [
            (field(sensors + shift, sources, dipoles) - field(sensors - shift, sources, dipoles))
            / (2 * step)
            for shift in step * np.eye(3)
        ],
        axis=-1,
    )
    size = abs(jacobian).max()
    assert_allclose(jacobian, jacobian.mT, atol=1e-6 * size)
    assert_allclose(np.trace(jacobian, axis1=1, axis2=2), 0, atol=1e-6 * size)


def test_radial_currents_are_silent(geometry):
    sensors, sources, _ = geometry
    assert_allclose(field(sensors, sources, sources), 0, atol=1e-20)


def test_rotating_head_and_helmet_together_changes_nothing(geometry):
    sensors, sources, _ = geometry
    normals = sensors / np.linalg.norm(sensors, axis=1, keepdims=True)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    still = make_meg_leadfield(sensors=(sensors, normals), sources=sources, normalize=False)
    turned = make_meg_leadfield(
        sensors=(sensors @ turn.T, normals @ turn.T), sources=sources @ turn.T, normalize=False
    )
    assert_allclose(turned, still, rtol=1e-8, atol=1e-12 * abs(still).max())


def test_orientation_is_tangential_and_the_strongest():
    head = make_meg_leadfield(60, 40, normalize=False, return_geometry=True, random_state=0)
    radial = np.sum(head.source_positions * head.source_orientations, axis=1)
    assert_allclose(radial, 0, atol=1e-12)
    gain = sarvas_gain(head.sensor_positions, head.sensor_normals, head.source_positions)
    assert_allclose(np.einsum("csd,sd->cs", gain, head.source_orientations), head.leadfield)
    turns = np.random.default_rng(0).standard_normal((500, 40, 3))
    turns /= np.linalg.norm(turns, axis=-1, keepdims=True)
    others = np.linalg.norm(np.einsum("csd,tsd->tcs", gain, turns), axis=1)
    assert (others <= np.linalg.norm(head.leadfield, axis=0) * (1 + 1e-12)).all()


def test_helmet_surrounds_the_sources_with_outward_unit_normals():
    positions, normals = helmet(102)
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
    gain = sarvas_gain(positions, normals, forward["source_rr"])
    expected = forward["sol"]["data"]
    assert expected.shape == (102, 90)
    assert abs(gain.reshape(102, 90) - expected).max() <= 1e-6 * abs(expected).max()
    columns = make_meg_leadfield(sensors=(positions, normals), sources=sources, normalize=False)
    strongest = np.linalg.svd(expected.reshape(102, 30, 3).transpose(1, 0, 2))[1][:, 0]
    assert_allclose(np.linalg.norm(columns, axis=0), strongest, rtol=1e-6)
