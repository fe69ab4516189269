"""Extended sources of `lucidae.mne`: patches, and the directions of a source that have a field."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require

require("mne")

from evoked_recordings import forward_of, localised, scattered_space, simulated, surface_space
from lucidae.mne.estimate import observable_basis
from lucidae.mne.patches import neighbourhoods


def test_basis_keeps_the_fields_of_all_directions_that_have_one():
    rng = np.random.default_rng(0)
    gain = rng.standard_normal((10, 9))
    gain[:, 5] = gain[:, 3] - 2 * gain[:, 4]
    gain[:, 6:] = 0.0
    labels, basis = observable_basis(gain, np.repeat([4, 7, 9], 3))
    assert_array_equal(labels, [4, 4, 4, 7, 7])
    assert_allclose((basis.T @ basis).toarray(), np.eye(5), atol=1e-12)
    assert_allclose(gain @ basis @ basis.T, gain, atol=1e-12)
    assert_array_equal(basis.toarray()[:3, :3], np.eye(3))


def test_patches_are_neighbourhoods_on_surfaces_and_grids():
    src = surface_space()
    first = neighbourhoods(src, 1)
    tris = src[0]["use_tris"]
    expected = {tuple(np.unique(tris[(tris == vertex).any(axis=1)])) for vertex in range(42)}
    found = {tuple(patch) for patch in first}
    assert expected <= found
    assert {tuple(np.array(patch) + 42) for patch in expected} == found - expected
    by_two = neighbourhoods(src, [2])
    for patch in by_two:
        assert np.unique(patch // 42).size == 1  # never over both hemispheres
    grid = forward_of("grid")["src"]
    for patch in neighbourhoods(grid, 1):
        places = grid[0]["rr"][grid[0]["vertno"][patch]]
        middle = np.argmin(np.linalg.norm(places - places.mean(axis=0), axis=1))
        assert np.linalg.norm(places - places[middle], axis=1).max() < 0.0251 * 2**0.5
    assert len(neighbourhoods(grid, [1, 0.0251])) == len(neighbourhoods(grid, [1]))
    with pytest.raises(ValueError, match="neither on a surface nor on a grid"):
        neighbourhoods(scattered_space(), 1)


def extended(kind, patch, seed):
    """Return a recording of a patch of the left hemisphere that is active along its normals."""
    data = simulated("surface", kind, sources=(), noise=0.0, fixed=True, seed=seed)
    rng = np.random.default_rng(seed)
    course = rng.standard_normal(12)
    data.amplitudes[patch] = 30e-9 * course
    data.sources = patch
    spread = np.sqrt(np.diag(data.cov.data) if data.cov.data.ndim == 2 else data.cov.data)
    noise = 0.5 * spread[:, None] * rng.standard_normal((len(spread), 12))
    data.evoked.data[:] = data.field @ data.amplitudes + noise
    return data


@pytest.mark.parametrize(("kind", "seed"), [("mag", 0), ("mag", 1), ("both", 2)])
def test_extended_source_is_recovered_better_by_patches_than_by_points(kind, seed):
    src = surface_space()
    patch = neighbourhoods(src, 1)[7 + seed]
    data = extended(kind, patch, seed)
    errors = []
    for sizes in (None, [1, 2]):
        result = localised(data, loose=0.0, patches=sizes)
        found = np.zeros_like(data.amplitudes)
        found[result.sources] = result.amplitudes[:, 0]
        errors.append(np.linalg.norm(found - data.amplitudes) / np.linalg.norm(data.amplitudes))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.2
    assert any(np.array_equal(members, patch) for members in result.patches)
    whole = np.concatenate([np.sort(members) for members in result.patches])
    assert set(result.sources) == set(whole)


def test_patches_of_free_sources_share_one_direction():
    data = simulated("grid", "mag", sources=(), noise=0.0)
    patch = neighbourhoods(data.forward["src"], 1)[30]
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
    loose = simulated("surface", "mag", sources=(), noise=0.0, fixed=True)
    data = extended("mag", neighbourhoods(loose.forward["src"], 1)[4], 0)
    result = localised(data, loose=0.2, patches=[1])
    assert_array_equal(result.patches[0], data.sources)
    assert np.abs(result.amplitudes[:, :2]).max() == 0.0  # along the normals
