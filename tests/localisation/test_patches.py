"""Extended sources of `lucidae.mne`: patches, and the directions of a source that have a field."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require

mne = require("mne")

from evoked_recordings import localised, patch_around, simulated

pytestmark = pytest.mark.filterwarnings("ignore:The model does not fit:UserWarning")


def restricted(forward, counts):
    """Return the forward of the first sources of each source space."""
    vertices = [
        space["vertno"][:count] for space, count in zip(forward["src"], counts, strict=True)
    ]
    stc = mne.SourceEstimate(np.ones((sum(counts), 1)), vertices, 0.0, 1.0)
    return mne.forward.restrict_forward_to_stc(forward, stc)


def test_neighbour_orders_of_a_restricted_forward_are_refused():
    data = simulated("surface", noise=0.3)
    result = localised(data, patches=1, weights=np.repeat([1.0, 0.0], 42))
    assert 0 <= result.sources.max() < 42
    whole = data.forward
    for counts in ((20, 20), (20, 0), (20, 1)):
        data.forward = restricted(whole, counts)
        with pytest.raises(ValueError, match=r"no triangles between its sources.*radii in metres"):
            localised(data, patches=1)
    assert localised(data, patches=0.03).sources.size


def extended(kind, patch, seed):
    """Return a recording of a patch of the left hemisphere that is active along its normals."""
    data = simulated("surface", kind, sources=(), noise=0.0, fixed=True, seed=seed)
    rng = np.random.default_rng(seed)
    data.amplitudes[patch] = 30e-9 * rng.standard_normal(12)
    data.sources = patch
    spread = np.sqrt(np.diag(data.cov.data) if data.cov.data.ndim == 2 else data.cov.data)
    noise = 0.5 * spread[:, None] * rng.standard_normal((len(spread), 12))
    data.evoked.data[:] = data.field @ data.amplitudes + noise
    return data


@pytest.mark.parametrize(("kind", "seed"), [("mag", 0), ("both", 2)])
def test_extended_source_is_recovered_better_by_patches_than_by_points(kind, seed):
    patch = patch_around(7 + seed, 1)
    data = extended(kind, patch, seed)
    errors = []
    for sizes in (None, [1, 2]):
        result = localised(data, loose=0.0, patches=sizes)
        found = np.zeros_like(data.amplitudes)
        found[result.sources] = result.amplitudes[:, 0]
        errors.append(np.linalg.norm(found - data.amplitudes) / np.linalg.norm(data.amplitudes))
    assert errors[1] < min(0.5 * errors[0], 0.2)
    assert any(np.array_equal(members, patch) for members in result.patches)
    assert set(result.sources) == set(np.concatenate(result.patches))


@pytest.fixture(scope="module")
def patch_and_point():
    """Return the result for a patch of the left hemisphere and a point of the right one."""
    data = extended("mag", patch_around(7, 2), 0)
    course = 60e-9 * np.random.default_rng(3).standard_normal(12)
    data.evoked.data += np.outer(data.field[:, 60], course)
    return localised(data, loose=0.0, patches=[1, 2])


def test_a_patch_is_listed_once_with_its_central_source(patch_and_point):
    result = patch_and_point
    assert "(1 source and 1 patch of 16 sources, 12 samples" in repr(result)
    assert result.sources.size == len(result.dipoles) == 17
    patch, point = result.found_sources
    assert (point.name, patch.name) == ("rh 18", "patch of 16 at lh 7")
    assert [one.size for one in result.found_sources] == [16, 1]
    page = result._repr_html_()
    assert page.count("<td>patch of 16 at lh 7</td>") == page.count("<td>rh 18</td>") == 1
    assert page.count("<td>lh ") == 0
    summary = json.loads(json.dumps(result.to_dict()))
    assert [row["patches"] for row in summary["sources"]] == [[0]] * 16 + [[]]
    (listed,) = summary["patches"]
    places = result.positions[:16]
    nearest = places[np.argmin(np.linalg.norm(places - places.mean(axis=0), axis=1))]
    assert (listed["size"], listed["center_source"]) == (16, 7)
    assert_allclose(listed["center"], nearest)
    assert listed["sources"] == result.patches[0].tolist()


def test_amplitude_and_share_of_a_patch_are_those_of_its_column(patch_and_point):
    from mne.inverse_sparse.mxne_inverse import _split_gof

    result = patch_and_point
    patch, point = result.found_sources
    for amplitude, deviation in zip(result.amplitudes[:16], result.posterior_std[:16], strict=True):
        assert_allclose(patch.amplitudes, amplitude)
        assert_allclose(patch.posterior_std, deviation)
    # The share is that of a single source with the field of the patch.
    problem = result.problem
    fields = problem.lead_field(np.arange(84))
    fields = np.column_stack([fields[:, 60], fields[:, patch.sources].sum(axis=1)])
    courses = np.stack([point.amplitudes[0], patch.amplitudes[0]])
    shares = _split_gof(problem.responses / np.sqrt(problem.averages[0]), courses, fields)
    assert_allclose([point.goodness_of_fit, patch.goodness_of_fit], shares)
    assert patch.goodness_of_fit.max() > 90


def test_amplitudes_of_overlapping_patches_add_up():
    first, second = (patch_around(place, 1) for place in (7, 25))
    assert np.intersect1d(first, second).size
    data = extended("mag", first, 0)
    course = 30e-9 * np.random.default_rng(5).standard_normal(12)
    data.evoked.data += np.outer(data.field[:, second].sum(axis=1), course)
    result = localised(data, loose=0.0, patches=[1])
    total = np.zeros_like(result.amplitudes)
    for found in result.found_sources:
        total[[list(result.sources).index(source) for source in found.sources]] += found.amplitudes
    assert_allclose(total, result.amplitudes, atol=1e-9 * np.abs(total).max())
    patches = [part for part in result.patches if part.size > 1]
    assert len(patches) == 2
    for row in result.to_dict()["sources"]:
        assert row["patches"] == [place for place in (0, 1) if row["source"] in patches[place]]


def test_a_patch_is_one_number_and_one_line_of_the_path(patch_and_point):
    require("matplotlib")
    display = patch_and_point.plot(path=True)
    assert display.path.names[:2] == ["1: patch of 16 at lh 7", "2: rh 18"]
    assert not any("lh" in name and "patch" not in name for name in display.path.names)
    assert sorted(text.get_text() for text in display.ax_[0].texts) == ["1", "2"]
    assert len(display.ax_[0].collections[0].get_offsets()) == 17


def test_a_doubtful_patch_counts_once():
    data = extended("mag", patch_around(7, 2), 0)
    data.evoked.data *= 0.02
    weak = localised(data, loose=0.0, patches=[2])
    assert weak.doubtful_sources.size == 16
    assert "1 of 1 patch would not be significant" in weak.advice


def test_patches_of_free_sources_share_one_direction():
    data = simulated("grid", "mag", sources=(), noise=0.0)
    places = data.forward["source_rr"]
    patch = np.flatnonzero(np.linalg.norm(places - places[30], axis=1) < 0.0251)
    rng = np.random.default_rng(0)
    part = np.outer(rng.standard_normal(3), rng.standard_normal(12))
    amplitudes = data.amplitudes.reshape(-1, 3, 12)
    amplitudes[patch] = 30e-9 * part
    field = data.field @ amplitudes.reshape(-1, 12)
    spread = np.sqrt(data.cov.data)
    data.evoked.data[:] = field + 0.1 * spread[:, None] * rng.standard_normal(field.shape)
    result = localised(data, patches=[1])
    assert_array_equal(result.patches[0], patch)
    for source in range(1, patch.size):
        assert_allclose(result.amplitudes[source], result.amplitudes[0])
    data = extended("mag", patch_around(4, 1), 0)
    result = localised(data, loose=0.2, patches=[1])
    assert_array_equal(result.patches[0], data.sources)
    assert np.abs(result.amplitudes[:, :2]).max() == 0.0  # along the normals
