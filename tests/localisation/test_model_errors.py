"""Errors of the forward solution, and samples that depend on each other (mathematics: 4.7)."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.signal import lfilter

from evoked_recordings import PLAIN
from extras import require

mne = require("mne")
from lucidae.mne import sparse_vae
from lucidae.mne.model_errors import derivatives, effective_samples
from lucidae.mne.problem import EvokedProblem

pytestmark = pytest.mark.filterwarnings("ignore:The model does not fit:UserWarning")

CENTRE = np.array([0.0, 0.0, 0.04])


def helmet(shift=0.0, *, step=1):
    """Return magnetometers around a head that is `shift` metres away along (1, 1, 1)."""
    info = mne.channels.read_meg_canonical_info("neuromag", verbose=False)
    info = mne.pick_info(info, mne.pick_types(info, meg="mag")[::step])
    place = np.eye(4)
    place[:3, 3] = CENTRE + shift / np.sqrt(3.0)
    info["dev_head_t"] = mne.Transform("meg", "head", place)
    return info


def lattice(spacing=0.015):
    ticks = np.arange(-0.075, 0.075, spacing)
    points = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 3)
    radius = np.linalg.norm(points, axis=1)
    return points[(radius < 0.072) & (radius > 0.03) & (points[:, 2] > -0.03)] + CENTRE


def solution(info, points):
    normals = np.tile([0.0, 0.0, 1.0], (len(points), 1))
    src = mne.setup_volume_source_space(pos={"rr": points, "nn": normals}, verbose=False)
    sphere = mne.make_sphere_model(r0=CENTRE, head_radius=None, verbose=False)
    return mne.make_forward_solution(info, None, src, sphere, mindist=0.0, verbose=False)


def recording(sources, *, shift=0.0, moment=30e-9, samples=50, seed=0, memory=0.0):
    """Return an evoked whose sensors are shifted against the forward solution, and the model."""
    rng = np.random.default_rng(seed)
    info, points = helmet(), lattice()
    forward, truth = solution(info, points), solution(helmet(shift), points)
    gain = truth["sol"]["data"].reshape(len(info["ch_names"]), -1, 3)
    data = np.zeros((len(gain), samples))
    for source in sources:
        radial = points[source] - CENTRE
        direction = np.cross(radial, rng.standard_normal(3))
        direction /= np.linalg.norm(direction)
        data += np.outer(gain[:, source] @ direction, moment * rng.standard_normal(samples))
    white = rng.standard_normal((len(gain), samples + 100))
    noise = np.sqrt(1 - memory**2) * lfilter([1.0], [1.0, -memory], white, axis=1)[:, 100:]
    cov = mne.make_ad_hoc_cov(info, verbose=False)
    data += 20e-15 * noise
    return mne.EvokedArray(data, info, verbose=False), forward, cov


def far_apart(count, seed=0):
    points, chosen = lattice(), []
    for place in np.random.default_rng(seed).permutation(len(points)):
        if all(np.linalg.norm(points[place] - points[other]) > 0.05 for other in chosen):
            chosen.append(int(place))
        if len(chosen) == count:
            break
    return chosen


def hits(result, sources):
    """Return the number of true sources within 15 mm, and that of found sources elsewhere."""
    points = lattice()
    gaps = np.linalg.norm(points[result.sources][:, None] - points[sources], axis=2)
    return int((gaps.min(axis=0) < 0.0151).sum()), int((gaps.min(axis=1) >= 0.0151).sum())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shifted_sensors_no_longer_give_spurious_sources_and_the_misfit_is_said(seed):
    sources = far_apart(3, seed)
    given = recording(sources, shift=0.005, seed=seed)
    with pytest.warns(UserWarning, match="The model does not fit"):
        result = sparse_vae(*given, return_result=True, verbose=False)
    found, spurious = hits(result, sources)
    assert (found, spurious <= 1) == (3, True)
    assert (result.errors.position_error, result.errors.model_error) == (0.0075, 0.1)
    assert result.certificate["forward_model"].holds is False
    assert result.certificate.holds is False
    assert "Significant sources at multiples of the noise" in result.certificate.summary()
    plain = sparse_vae(*given, return_result=True, verbose=False, **PLAIN)
    assert hits(plain, sources)[1] >= 3  # spurious sources explain the misfit, so none is seen


def test_an_exact_forward_solution_loses_nothing():
    sources = far_apart(3)
    for moment in (10e-9, 100e-9):
        given = recording(sources, moment=moment)
        result = sparse_vae(*given, return_result=True, verbose=False)
        assert sorted(result.sources) == sorted(sources)
        assert result.certificate["forward_model"].holds
        assert result.certificate["error_covariance"].holds
        assert (result.errors.position_error, result.errors.model_error) == (0.0, 0.0)
        plain = sparse_vae(*given, return_result=True, verbose=False, **PLAIN)
        assert_allclose(result.amplitudes, plain.amplitudes)


def test_errors_that_are_given_are_in_the_noise_of_an_exact_forward_solution_too():
    given = recording(far_apart(3))
    result = sparse_vae(*given, position_error=0.005, return_result=True, verbose=False)
    assert (result.errors.position_error, result.errors.model_error) == (0.005, 0.1)


def test_without_errors_the_result_is_that_of_the_plain_model():
    given = recording(far_apart(2), samples=20)
    plain = sparse_vae(*given, return_result=True, verbose=False, **PLAIN)
    assert_allclose(plain.errors.covariance, np.eye(len(plain.problem.whitener)))
    assert plain.errors.samples == 20
    assert_allclose(plain.estimate.responses, plain.problem.responses)


def test_derivatives_are_those_of_fields_at_shifted_places():
    points, info = lattice(0.01), helmet()
    forward = solution(info, points)
    evoked = mne.EvokedArray(np.ones((len(info["ch_names"]), 2)), info, verbose=False)
    problem = EvokedProblem.of(
        evoked, forward, mne.make_ad_hoc_cov(info, verbose=False), loose=1.0, depth=None,
        rank=None, pick_ori=None, weights=None, weights_min=0.0, nave=None,
    )  # fmt: skip
    from scipy.spatial import cKDTree

    source = int(np.argmin(np.linalg.norm(points - CENTRE - [0.04, 0.0, 0.03], axis=1)))
    (found,) = derivatives(problem, np.array([source]), cKDTree(points))
    for axis, step in enumerate(1e-4 * np.eye(3)):
        high, low = (
            solution(info, points[[source]] + sign * step)["sol"]["data"] for sign in (1, -1)
        )
        expected = problem.whitener @ (high - low) / 2e-4
        error = np.linalg.norm(found[axis] - expected) / np.linalg.norm(expected)
        assert error < 0.3  # the slope over a grid of 10 mm


@pytest.mark.parametrize("memory", [0.0, 0.63, 0.8])
def test_effective_samples_are_those_of_the_variance_of_a_mean_square(memory):
    # The mean square over n samples varies as that over n_eff independent ones.
    rng, n = np.random.default_rng(0), 200
    white = rng.standard_normal((4000, n + 200))
    rows = np.sqrt(1 - memory**2) * lfilter([1.0], [1.0, -memory], white, axis=1)[:, 200:]
    expected = 2.0 / np.var(np.mean(rows**2, axis=1))
    assert effective_samples([rows[:300]]) == pytest.approx(expected, rel=0.12)
    assert effective_samples([rows[:300], rows[300:600]]) == pytest.approx(2 * expected, rel=0.12)


def test_filtered_noise_counts_fewer_samples_and_gives_no_sources():
    given = recording([], memory=0.9, samples=60)
    with pytest.warns(UserWarning, match="No source was found"):
        result = sparse_vae(*given, return_result=True, verbose=False)
    assert result.errors.samples < 15
    assert "count as" in repr(result)
    independent = sparse_vae(*given, return_result=True, verbose=False, samples="independent")
    assert independent.sources.size > 0


def test_sources_are_listed_by_the_power_of_their_fields_not_by_their_moments():
    points = lattice()
    depth = np.linalg.norm(points - CENTRE, axis=1)
    deep = int(np.flatnonzero(depth < 0.035)[0])
    away = np.linalg.norm(points - points[deep], axis=1) > 0.06
    shallow = int(np.flatnonzero((depth > 0.065) & away)[0])
    info, forward = helmet(), solution(helmet(), points)
    gain = forward["sol"]["data"].reshape(len(info["ch_names"]), -1, 3)
    rng = np.random.default_rng(1)
    data = 20e-15 * rng.standard_normal((len(gain), 30))
    for source, moment in ((deep, 90e-9), (shallow, 40e-9)):
        direction = np.linalg.svd(gain[:, source])[2][0]
        data += np.outer(gain[:, source] @ direction, moment * rng.standard_normal(30))
    evoked = mne.EvokedArray(data, info, verbose=False)
    given = (evoked, forward, mne.make_ad_hoc_cov(info, verbose=False))
    result = sparse_vae(*given, return_result=True, verbose=False)
    assert result.sources.tolist() == [shallow, deep]
    first, second = result.found_sources
    assert first.power > second.power
    assert first.amplitude < second.amplitude
    assert result.stc.vertices[0].tolist() == sorted([shallow, deep])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"position_error": 6.0}, "position_error=6.0 was given"),
        ({"position_error": -0.001}, "position_error"),
        ({"model_error": 2.0}, "model_error"),
        ({"samples": "all"}, "samples"),
        ({"noise_variance": "learn", "model_error": 0.1}, "contains the errors of the model"),
    ],
)
def test_wrong_errors_are_refused(option, message):
    given = recording([3], samples=3)
    with pytest.raises(ValueError, match=message):
        sparse_vae(*given, verbose=False, **option)


def test_units_that_cannot_be_right_are_said():
    evoked, forward, noise_cov = recording([3], samples=10)
    with pytest.raises(ValueError, match="times as large as the noise"):
        sparse_vae(scaled(evoked, 1e15), forward, noise_cov, verbose=False)
    with (
        pytest.warns(UserWarning, match="The power of evoked is"),
        pytest.warns(UserWarning, match="No source was found"),
    ):
        sparse_vae(scaled(evoked, 1e-6), forward, noise_cov, verbose=False)
    forward["sol"]["data"] *= 1e-9
    with pytest.warns(UserWarning, match="The largest amplitude is"):
        sparse_vae(evoked, forward, noise_cov, position_error=0, verbose=False)


def scaled(evoked, factor):
    found = evoked.copy()
    found.data *= factor
    return found


def test_returned_sources_are_significant_if_errors_do_not_settle():
    given = recording(far_apart(3, 1), shift=0.012, moment=10e-9, samples=12, seed=1)
    result = sparse_vae(*given, return_result=True, verbose=False)
    assert result.certificate["selected_evidence"].holds
