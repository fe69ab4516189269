"""Source localisation of evokeds: `lucidae.mne`, on small source spaces."""

import importlib
import inspect
import json
import pickle
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from extras import require

mne = require("mne")

from evoked_recordings import localised, sensors, simulated, whitened
from lucidae import SparseVAE
from lucidae.mne import SourceResult, solver, sparse_vae

CASES = [
    ("surface", "mag", False, "SourceEstimate"),
    ("surface", "eeg", False, "SourceEstimate"),
    ("surface", "both", True, "SourceEstimate"),
    ("grid", "mag", False, "VolSourceEstimate"),
    ("scattered", "eeg", False, "VolSourceEstimate"),
    ("mixed", "both", False, "MixedSourceEstimate"),
]


@pytest.mark.parametrize(("space", "kind", "fixed", "name"), CASES)
def test_sources_with_little_noise_are_found_with_their_field(space, kind, fixed, name):
    data = simulated(space, kind, noise=0.05, fixed=fixed)
    result = localised(data, loose=0.0 if fixed else "auto", noise_variance=0.05**2)
    assert_array_equal(result.sources, data.sources)
    assert type(result.stc).__name__ == name
    axes = result.n_orient
    assert axes == (1 if fixed else 3)
    true = data.used["sol"]["data"] @ data.amplitudes
    found = result.forward["sol"]["data"][:, result._rows]
    found = found @ result.amplitudes.reshape(-1, result.times.size)
    assert np.linalg.norm(found - true) < 0.02 * np.linalg.norm(true)
    assert 99.5 < result.goodness_of_fit <= 100
    assert result.certificate["stationarity"].holds


VECTORS = [
    ("scattered", "eeg", (5, 21), "VolVectorSourceEstimate", [2]),
    ("surface", "eeg", (5, 60), "VectorSourceEstimate", [1, 1]),
    ("mixed", "both", (5, 100), "MixedVectorSourceEstimate", [1, 0, 1]),
]


@pytest.mark.parametrize(("space", "kind", "sources", "name", "counts"), VECTORS)
def test_three_components_come_back_in_head_coordinates(space, kind, sources, name, counts):
    data = simulated(space, kind, sources=sources, noise=0.01)
    stc = sparse_vae(
        data.evoked, data.forward, data.cov, pick_ori="vector", noise_variance=1e-4, verbose=False
    )
    assert type(stc).__name__ == name
    assert [len(part) for part in stc.vertices] == counts
    true = data.amplitudes.reshape(-1, 3, 12)[data.sources]
    assert np.abs(stc.data - true).max() < 0.02 * np.abs(true).max()


def test_radial_directions_and_the_centre_of_a_sphere_get_no_amplitude():
    data = simulated("grid", "mag")
    result = localised(data)
    centre = np.flatnonzero(np.linalg.norm(data.forward["source_rr"], axis=1) < 1e-6)
    assert centre.size == 1
    assert centre[0] not in result.problem.labels
    radial = np.einsum("not,noi,ni->nt", result.amplitudes, result.orientations, result.positions)
    assert np.abs(radial).max() < 1e-4 * np.abs(result.amplitudes).max() * 0.07
    assert result.model.n_features_in_ == 2 * (data.forward["nsource"] - 1)


def with_radial_normals(radial):
    """Return a simulated recording of fixed sources in a sphere, some of them radial."""
    rng = np.random.default_rng(0)
    rr = rng.standard_normal((30, 3))
    rr *= 0.06 / np.linalg.norm(rr, axis=1, keepdims=True)
    nn = np.cross(rr, rng.standard_normal(rr.shape))
    nn[radial] = rr[radial]
    nn /= np.linalg.norm(nn, axis=1, keepdims=True)
    src = mne.setup_volume_source_space(pos={"rr": rr, "nn": nn}, verbose=False)
    info = sensors("mag")
    sphere = mne.make_sphere_model((0.0, 0.0, 0.0), 0.09, info=info, verbose=False)
    forward = mne.make_forward_solution(info, None, src, sphere, eeg=False, verbose=False)
    fixed = mne.convert_forward_solution(forward, force_fixed=True, verbose=False)
    data = fixed["sol"]["data"][:, [4, 21]] @ (40e-9 * rng.standard_normal((2, 12)))
    cov = mne.make_ad_hoc_cov(info, verbose=False)
    data += np.sqrt(cov.data)[:, None] * rng.standard_normal(data.shape)
    return mne.EvokedArray(data, info, verbose=False), forward, cov


def test_fixed_sources_without_a_field_are_left_out():
    radial = np.arange(0, 30, 3)
    evoked, forward, cov = with_radial_normals(radial)
    for depth in (0.8, None):
        for kind in ("full", "spherical"):
            result = sparse_vae(
                evoked, forward, cov, loose=0.0, depth=depth, group_covariance=kind,
                significance=None, return_result=True, verbose=False,
            )  # fmt: skip
            assert not np.isin(radial, result.problem.labels).any()
            assert set(result.sources) >= {4}  # 21 is radial, so that its field is zero
            assert not np.isin(radial, result.sources).any()
            assert np.isfinite(result.amplitudes).all()


def test_no_source_with_a_field_is_an_error():
    evoked, forward, cov = with_radial_normals(np.arange(0, 30, 3))
    forward["sol"]["data"][:] = 0.0
    with pytest.raises(ValueError, match="No source of forward has a field"):
        sparse_vae(evoked, forward, cov, loose=1.0, verbose=False)


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
def test_residual_is_the_evoked_minus_the_field_of_the_source_estimate(debias, fixed):
    data = simulated("surface", "mag", fixed=fixed)
    stc, residual = sparse_vae(
        data.evoked, data.forward, data.cov, loose=0.0 if fixed else 1.0, debias=debias,
        pick_ori=None if fixed else "vector", return_residual=True, verbose=False,
    )  # fmt: skip
    used = np.concatenate([stc.vertices[0], 42 + stc.vertices[1]])
    field = data.used["sol"]["data"]
    field = field[:, used] if fixed else field.reshape(len(field), -1, 3)[:, used].reshape(51, -1)
    assert_allclose(
        residual.data, data.evoked.data - field @ stc.data.reshape(field.shape[1], -1), atol=1e-18
    )


def spoiled(evoked):
    """Add artefacts: a pattern that a projection removes, another EEG reference, bad channels."""
    rng = np.random.default_rng(5)
    kinds = evoked.get_channel_types()
    bads = []
    for kind in sorted(set(kinds)):
        names = [name for name, other in zip(evoked.ch_names, kinds, strict=True) if other == kind]
        rows = [evoked.ch_names.index(name) for name in names]
        if kind == "mag":
            pattern = rng.standard_normal((1, len(names)))
            pattern /= np.linalg.norm(pattern)
            vector = {
                "col_names": names, "row_names": None, "data": pattern, "nrow": 1,
                "ncol": len(names),
            }  # fmt: skip
            evoked.add_proj(mne.Projection(active=False, data=vector, desc="ECG"), verbose=False)
            evoked.data[rows] += 5e-12 * pattern.T @ rng.standard_normal((1, len(evoked.times)))
        else:
            evoked.data[rows] += 1e-5 * rng.standard_normal(len(evoked.times))
        bads += [names[3], names[-2]]
    evoked.data[[evoked.ch_names.index(name) for name in bads]] = 1.0
    evoked.info["bads"] = bads
    return evoked


SPOILED = [("surface", "both", "auto"), ("scattered", "eeg", 1.0), ("mixed", "both", 0.0)]


@pytest.mark.parametrize(("space", "kind", "loose"), SPOILED)
def test_evoked_with_bad_channels_and_projections_equals_the_cleaned_one(space, kind, loose):
    given = simulated(space, kind, noise=0.3, fixed=loose == 0.0)
    evoked = spoiled(given.evoked)
    raw = localised(given, loose=loose)
    assert_array_equal(raw.sources, given.sources)
    given.evoked = evoked.copy().apply_proj(verbose=False)
    applied = localised(given, loose=loose)
    given.evoked = evoked.copy().drop_channels(evoked.info["bads"]).apply_proj(verbose=False)
    clean = localised(given, loose=loose)
    for other in (applied, clean):
        assert_array_equal(other.sources, raw.sources)
        assert_allclose(other.amplitudes, raw.amplitudes, rtol=1e-6, atol=1e-14)
        assert_allclose(other.goodness_of_fit, raw.goodness_of_fit, rtol=1e-6)


def attributes(given):
    """Return the type of what a solver of MNE returns, and the attributes that tell its form."""
    if isinstance(given, tuple | list):
        return type(given), [attributes(one) for one in given[:2]]
    names = {
        mne.EvokedArray: ("ch_names", "nave", "comment", "kind", "baseline", "proj"),
        mne.Dipole: ("name", "khi2", "conf"),
    }.get(type(given), ("subject", "tmin", "tstep"))
    found = {name: getattr(given, name) for name in names}
    if isinstance(given, mne.Evoked):
        found["projs"] = [(proj["desc"], proj["active"]) for proj in given.info["projs"]]
        found["bads"] = given.info["bads"]
    elif isinstance(given, mne.Dipole):
        arrays = (given.pos, given.ori, given.amplitude, given.gof)
        found["shapes"] = [(array.shape, array.dtype) for array in arrays]
        found["signed"] = bool(np.any(given.amplitude < 0))
    else:
        found["vertices"] = [np.asarray(part).dtype for part in given.vertices]
        found["data"] = (given.data.shape[1:], given.data.dtype, bool(np.any(given.data < 0)))
    return type(given), sorted(vars(given)), np.round(given.times, 9).tolist(), found


OPTIONS = [
    {"pick_ori": "vector", "return_residual": True},
    {"return_as_dipoles": True, "return_residual": True},
    {"return_residual": True},
]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("space", "kind", "loose"), [*SPOILED, ("surface", "mag", 0.2)])
def test_returned_objects_have_the_attributes_of_those_of_gamma_map(space, kind, loose, option):
    if loose == 0.0 and "pick_ori" in option:
        option = {}
    data = simulated(space, kind, noise=0.3, fixed=loose == 0.0)
    given = (data.evoked, data.forward, data.cov)
    theirs = mne.inverse_sparse.gamma_map(
        *given, alpha=1.0, xyz_same_gamma=True, loose=loose, verbose=False, **option
    )
    assert attributes(sparse_vae(*given, loose=loose, verbose=False, **option)) == attributes(
        theirs
    )


def test_average_of_n_epochs_has_the_covariance_of_one_epoch_divided_by_n():
    data = simulated(noise=0.5)
    data.evoked.nave = 4
    averaged = localised(data)
    scaled = data.cov.copy()
    scaled.update(data=data.cov["data"] / 4)
    data.evoked.nave = 7
    others = [localised(data, nave=4), localised(data, nave=1, noise_variance=0.25)]
    data.cov = scaled
    others.append(localised(data, nave=1))
    for other in others:
        assert_allclose(other.amplitudes, averaged.amplitudes, rtol=1e-5, atol=1e-14)
        assert_allclose(other.posterior_std, averaged.posterior_std, rtol=1e-5)


def test_more_averages_reveal_a_weaker_source():
    data = simulated(noise=0.0, strength=0.02)
    data.evoked.nave = 1
    with pytest.warns(UserWarning, match="No source was found"):
        assert localised(data).sources.size == 0
    data.evoked.nave = 10_000
    assert_array_equal(localised(data).sources, data.sources)


def test_units_depth_and_weights_do_not_matter():
    data = simulated(noise=0.5)
    first = localised(data)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, data.forward["nsource"])
    for other in (
        localised(data, depth={"exp": 0.8}),  # a number is not used, a dict is
        localised(data, weights=weights),
    ):
        assert_array_equal(other.sources, first.sources)
        assert_allclose(other.amplitudes, first.amplitudes, rtol=1e-5, atol=1e-13)
    data.evoked.data *= 1e-3
    data.cov.update(data=data.cov["data"] * 1e-6)
    scaled = localised(data)
    assert_allclose(scaled.amplitudes, 1e-3 * first.amplitudes, rtol=1e-5, atol=1e-16)


def test_a_loose_prior_does_not_matter_beside_full_covariances():
    data = simulated("surface", "mag", noise=0.5)
    loose, free = localised(data, loose=0.2), localised(data, loose=1.0)
    assert_array_equal(loose.sources, free.sources)
    fields = [
        result.forward["sol"]["data"][:, result._rows] @ result.amplitudes.reshape(-1, 12)
        for result in (loose, free)
    ]
    assert_allclose(*fields, atol=1e-5 * np.abs(fields[0]).max())


def test_sources_with_small_weights_are_left_out():
    data = simulated(noise=0.5)
    weights = np.ones(data.forward["nsource"])
    weights[5] = 0.1
    result = localised(data, weights=weights, weights_min=0.5)
    assert 21 in result.sources
    assert 5 not in result.sources
    stc = sparse_vae(data.evoked, data.forward, data.cov, verbose=False)
    again = localised(data, weights=stc_on_all(data, stc))
    assert_array_equal(again.sources, data.sources)
    assert again.problem.gain.shape[1] == 6


def test_weights_that_are_not_numbers_are_refused_in_one_sentence():
    data = simulated(noise=0.5)
    weights = np.ones(data.forward["nsource"])
    weights[5] = np.nan
    with pytest.raises(ValueError, match="weights is negative, NaN or infinite for 1 of"):
        localised(data, weights=weights)


def stc_on_all(data, stc):
    """Return a source estimate on all sources, zero where `stc` has none."""
    values = np.zeros((data.forward["nsource"], stc.data.shape[1]))
    values[np.searchsorted(data.forward["src"][0]["vertno"], stc.vertices[0])] = stc.data
    vertices = [data.forward["src"][0]["vertno"]]
    return mne.VolSourceEstimate(values, vertices, stc.tmin, stc.tstep)


def test_axes_of_free_sources_do_not_matter():
    data = simulated("scattered", "eeg", noise=0.5)
    M, G, _, _ = whitened(data)
    turns = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 3, 3)))[0]
    turned = np.einsum("dni,nij->dnj", G.reshape(len(G), 40, 3), turns).reshape(G.shape)
    X, active = solver(M, G, 3)
    Y, same = solver(M, turned, 3)
    assert_array_equal(active, same)
    sources = np.flatnonzero(active)[::3] // 3
    back = np.einsum("nij,njt->nit", turns[sources], Y.reshape(-1, 3, 12))
    assert_allclose(back.reshape(X.shape), X, atol=1e-5 * np.abs(X).max())


def test_fixed_orientation_is_the_free_one_restricted_to_the_normals():
    data = simulated("surface", "mag", fixed=True)
    result = localised(data, loose=0.0)
    M, G, forward, weighting = whitened(data, loose=1.0)
    assert not mne.forward.is_fixed_orient(forward)
    normals = forward["source_nn"][:, None, :]
    surface = np.concatenate([space["nn"] for space in data.forward["src"]])
    along = np.einsum("dni,ni->dn", (G / weighting).reshape(len(G), -1, 3), surface)
    assert normals.shape == (252, 1, 3)
    X, active = solver(M, along, 1)
    assert_array_equal(np.flatnonzero(active), result.sources)
    assert_allclose(X, result.amplitudes[:, 0], rtol=1e-4, atol=1e-4 * np.abs(X).max())


def test_several_evokeds_have_one_support_and_a_list_gives_a_list():
    first, second = simulated(seed=1), simulated(seed=2, n_times=9)
    results = sparse_vae(
        [first.evoked, second.evoked], first.forward, first.cov, return_result=True, verbose=False
    )
    joined = first.evoked.copy()
    joined = mne.EvokedArray(
        np.hstack([first.evoked.data, second.evoked.data]), joined.info, verbose=False
    )
    one = sparse_vae(joined, first.forward, first.cov, return_result=True, verbose=False)
    both = np.concatenate([result.amplitudes for result in results], axis=2)
    assert_allclose(both, one.amplitudes)
    stcs, residuals = sparse_vae(
        [first.evoked, second.evoked], first.forward, first.cov, return_residual=True, verbose=False
    )
    assert [stc.shape[1] for stc in stcs] == [len(each.times) for each in residuals] == [12, 9]
    assert_array_equal(stcs[0].vertices[0], stcs[1].vertices[0])
    alone = sparse_vae([first.evoked], first.forward, first.cov, verbose=False)
    assert isinstance(alone, list)
    assert len(alone) == 1


def test_averages_of_several_evokeds_may_differ():
    first, second = simulated(seed=1, noise=0.2), simulated(seed=2, noise=0.2)
    second.evoked.nave = 9
    results = sparse_vae(
        [first.evoked, second.evoked], first.forward, first.cov, return_result=True, verbose=False
    )
    for data, result in zip((first, second), results, strict=True):
        assert_array_equal(result.sources, data.sources)
        field = result.forward["sol"]["data"][:, result._rows]
        found = field @ result.amplitudes.reshape(-1, 12)
        true = data.field @ data.amplitudes
        assert np.linalg.norm(found - true) < 0.1 * np.linalg.norm(true)
    assert_allclose(results[0].posterior_std, 3 * results[1].posterior_std)


@pytest.mark.parametrize("covariance", ["full", "spherical"])
def test_posterior_is_that_of_bayes_rule(covariance):
    data = simulated("surface", "mag", noise=0.7)
    data.evoked.nave = 3
    result = localised(data, group_covariance=covariance)
    turn = result._transfer
    prior = turn @ result.estimate.prior @ turn.T / 3
    field = result.forward["sol"]["data"][:, result._rows]
    noise = np.diag(data.cov.data) if data.cov.data.ndim == 1 else data.cov.data
    total = field @ prior @ field.T + noise / 3
    gain = prior @ field.T @ np.linalg.inv(total)
    mean = (gain @ data.evoked.data).reshape(result.posterior_mean.shape)
    assert_allclose(result.posterior_mean, mean, atol=1e-8 * np.abs(mean).max())
    spread = prior - gain @ field @ prior
    assert_allclose(result.posterior_covariance, spread, atol=1e-8 * np.abs(spread).max())
    expected = np.sqrt(np.diag(spread)).reshape(-1, 3)
    assert_allclose(result.posterior_std, expected, rtol=1e-6)


def test_debiased_amplitudes_are_least_squares_on_the_support():
    data = simulated("scattered", "eeg", noise=1.0)
    result = localised(data, group_covariance="spherical", debias=True)
    M, _, _, _ = whitened(data)
    columns = result.problem.lead_field(result._rows)
    expected = np.linalg.lstsq(columns, M, rcond=None)[0].reshape(result.amplitudes.shape)
    assert_allclose(result.amplitudes, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())
    shrunk = localised(data, group_covariance="spherical")
    assert np.linalg.norm(shrunk.amplitudes) < np.linalg.norm(expected)
    assert_allclose(shrunk.debiased_amplitudes, result.amplitudes)
    assert shrunk.goodness_of_fit < result.goodness_of_fit


def test_debiased_sources_keep_the_orientations_that_were_found():
    data = simulated("scattered", "eeg", noise=1.0)
    result = localised(data)
    for prior, found in zip(result.posterior_mean, result.debiased_amplitudes, strict=True):
        ranks = [
            np.linalg.matrix_rank(part, tol=1e-6 * np.linalg.norm(part)) for part in (prior, found)
        ]
        assert ranks[1] <= ranks[0]


def energy(M, G, covariance, noise):
    """Return tr(MMᵀΣ⁻¹)/n + log|Σ| for Σ = G Γ Gᵀ + γI, where `covariance` is G Γ Gᵀ."""
    total = covariance + noise * np.eye(len(M))
    return np.sum(M * np.linalg.solve(total, M)) / M.shape[1] + np.linalg.slogdet(total)[1]


@pytest.mark.parametrize(("space", "seed"), [("scattered", 0), ("scattered", 1), ("surface", 2)])
def test_energy_is_never_above_that_of_gamma_map(space, seed):
    from mne.inverse_sparse._gamma_map import _gamma_map_opt

    data = simulated(space, "eeg", sources=(3, 9, 30), seed=seed)
    M, G, _, _ = whitened(data)
    rows, active = _gamma_map_opt(M, G, 1.0, maxit=2000, tol=1e-8, group_size=3, verbose=False)
    full = np.zeros((G.shape[1], M.shape[1]))
    full[active] = rows
    # The coefficients of a group are wGᵀΣ⁻¹M, and the residual is Σ⁻¹M for unit noise.
    aligned = G.T @ (M - G @ full)
    lengths = np.linalg.norm(full.reshape(-1, 3 * 12), axis=1)
    sizes = np.linalg.norm(aligned.reshape(-1, 3 * 12), axis=1)
    variances = np.repeat(lengths / np.where(lengths > 0, sizes, 1.0), 3)
    peer = energy(M, G, (G * variances) @ G.T, 1.0)
    results = [localised(data, group_covariance=kind) for kind in ("spherical", "full")]
    ours = [result.model.energy_ / M.shape[1] for result in results]
    assert ours[0] <= peer + 1e-6
    assert ours[1] <= ours[0] + 1e-6


def apply_solver(solver, evoked, forward, noise_cov, loose=0.2, depth=0.8):
    """Apply a solver as MNE's example of a custom inverse solver does."""
    from mne.inverse_sparse.mxne_inverse import (
        _make_sparse_stc,
        _prepare_gain,
        _reapply_source_weighting,
    )

    forward, gain, info, whitener, weighting, _ = _prepare_gain(
        forward, evoked.info, noise_cov, pca=False, depth=depth, loose=loose, rank=None
    )
    rows = [evoked.ch_names.index(name) for name in info["ch_names"]]
    n_orient = 1 if mne.forward.is_fixed_orient(forward) else 3
    X, active_set = solver(whitener @ evoked.data[rows], gain, n_orient)
    X = _reapply_source_weighting(X, weighting, active_set)
    tstep = 1.0 / evoked.info["sfreq"]
    return _make_sparse_stc(X, active_set, forward, evoked.times[0], tstep)


@pytest.mark.parametrize(("loose", "kind"), [(0.0, "mag"), (0.2, "eeg"), (1.0, "mag")])
def test_solver_drops_into_the_example_of_mne(loose, kind):
    data = simulated("surface", kind, fixed=True, noise=0.5)
    with mne.use_log_level("error"):
        stc = apply_solver(solver, data.evoked, data.forward, data.cov, loose)
    ours = sparse_vae(data.evoked, data.forward, data.cov, loose=loose, verbose=False)
    for one, other in zip(stc.vertices, ours.vertices, strict=True):
        assert_array_equal(one, other)
    assert_allclose(stc.data, ours.data, rtol=1e-5, atol=1e-5 * np.abs(ours.data).max())


@pytest.mark.parametrize(("rule", "highest"), [("cv", 8.0), ("cv_1se", 200.0), ("learn", 8.0)])
def test_noise_variance_is_found_where_the_covariance_is_wrong(rule, highest):
    data = simulated("scattered", "mag", n_times=8, noise=2.0, strength=4.0)
    result = localised(data, noise_variance=rule, cv=3)
    assert 2.0 < result.noise_variance < highest
    assert_array_equal(result.sources, data.sources)


def test_solver_leaves_rows_without_noise_out_when_it_learns_the_noise():
    data = simulated("surface", "eeg", n_times=40, noise=1.0, strength=3.0)
    M, G, _, _ = whitened(data, pca=False)
    assert np.linalg.matrix_rank(M) == len(M) - 1  # the average reference
    alone = localised(data, noise_variance="learn")
    X, active = solver(M, G, 3, noise_variance="learn", debias=True)
    assert_array_equal(np.unique(np.flatnonzero(active) // 3), alone.sources)
    fitted = np.linalg.norm(M - G[:, active] @ X) ** 2
    assert fitted < np.linalg.norm(M) ** 2


def test_one_of_two_sources_that_can_replace_each_other_is_kept():
    rng = np.random.default_rng(4)
    G = rng.standard_normal((30, 20))
    field, other = G[:, 0].copy(), G[:, 1].copy()
    G[:, 0], G[:, 1] = field + 0.05 * other, field - 0.05 * other
    M = 1.5 * np.outer(field, rng.standard_normal(8)) + rng.standard_normal((30, 8))
    alone = SparseVAE(noise_variance=1.0, fit_intercept=False).fit(G, M)
    assert (alone.relevance_[:2] > 0).all()
    assert alone.support_.size == 0  # neither is significant beside the other one
    X, active = solver(M, G, 1)
    assert_array_equal(np.flatnonzero(active), [1])
    assert np.linalg.norm(M - G[:, active] @ X) ** 2 < 1.3 * M.size


def test_forward_read_from_a_file_has_no_radial_amplitudes_either(tmp_path):
    data = simulated(noise=0.5)
    memory = localised(data)
    path = tmp_path / "small-fwd.fif"
    mne.write_forward_solution(path, data.forward, verbose=False)
    data.forward = mne.read_forward_solution(path, verbose=False)  # in float32
    stored = localised(data)
    assert stored.model.n_features_in_ == memory.model.n_features_in_
    assert_array_equal(stored.sources, memory.sources)
    largest = np.abs(memory.amplitudes).max()
    assert_allclose(stored.amplitudes, memory.amplitudes, atol=1e-3 * largest)


def test_dipoles_are_those_that_mne_makes():
    from mne.inverse_sparse.mxne_inverse import _make_dipoles_sparse

    for fixed in (False, True):
        data = simulated("surface", "mag", noise=0.5, fixed=fixed)
        result = localised(data, loose=0.0 if fixed else 0.2)
        M, _, _, _ = whitened(data)
        flat = result.amplitudes.reshape(-1, 12)
        expected = _make_dipoles_sparse(
            flat, result._rows, result.forward, data.evoked.times[0], 1e-3, M,
            result.problem.lead_field(result._rows), active_is_idx=True, verbose=False,
        )  # fmt: skip
        given = sparse_vae(
            data.evoked, data.forward, data.cov, loose=0.0 if fixed else 0.2,
            return_as_dipoles=True, verbose=False,
        )  # fmt: skip
        assert len(given) == len(expected) == result.sources.size > 0
        for one, other in zip(given, expected, strict=True):
            for name in ("times", "pos", "amplitude", "ori", "gof"):
                assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)


def test_goodness_of_fit_is_the_share_of_whitened_power():
    data = simulated(noise=1.0)
    data.evoked.nave = 2
    result = localised(data)
    M, _, _, _ = whitened(data)
    fitted = result.problem.lead_field(result._rows) @ result.amplitudes.reshape(-1, 12)
    share = 100 * (1 - np.sum((M - fitted) ** 2) / np.sum(M**2))
    assert_allclose(result.goodness_of_fit, share)
    by_time = 100 * (1 - np.sum((M - fitted) ** 2, axis=0) / np.sum(M**2, axis=0))
    assert_allclose(result.goodness_of_fit_per_time, by_time)
    assert_allclose(result.source_goodness_of_fit.sum(axis=0), by_time, atol=1e-6)


def test_source_estimate_works_with_the_methods_of_mne(tmp_path):
    data = simulated("surface", "mag", noise=0.5)
    stc = sparse_vae(data.evoked, data.forward, data.cov, verbose=False)
    assert_allclose(stc.times, data.evoked.times)
    stc.save(tmp_path / "found", verbose=False)
    again = mne.read_source_estimate(str(tmp_path / "found"))
    assert_allclose(again.data, stc.data, rtol=1e-6)
    assert stc.copy().crop(-0.005, 0.0).shape[1] == 6
    volume = simulated(noise=0.5)
    stc = sparse_vae(volume.evoked, volume.forward, volume.cov, verbose=False)
    stc.save(tmp_path / "volume-vl.stc", verbose=False)
    assert stc.get_peak()[0] in stc.vertices[0]


def test_the_certificate_is_computed_when_it_is_first_read_and_is_that_of_the_fit():
    result = localised(simulated("surface", "mag", noise=0.5))
    model, estimate = result.model, result.estimate
    assert callable(model._state.figures)
    eager = clone(model).fit(estimate.gain, estimate.responses)
    assert not callable(eager._state.figures)
    copied = pickle.loads(pickle.dumps(model))
    model.tol = 1e3  # a parameter that is changed after the fit is not that of the fit
    for claims in (copied.certificate_.claims, result.certificate.claims[4:-1]):
        for claim, expected in zip(claims, eager.certificate_.claims, strict=True):
            assert (claim.name, claim.holds) == (expected.name, expected.holds)
            assert claim.threshold == expected.threshold
    assert not callable(model._state.figures)


def test_result_describes_itself():
    data = simulated("surface", "mag", noise=0.5)
    result = localised(data)
    assert isinstance(result, SourceResult)
    assert "2 sources, 12 samples" in repr(result)
    page = result._repr_html_()
    assert page.count("<tr>") >= 3
    assert "stationarity" in page
    plt = require("matplotlib.pyplot")
    display = result.plot()
    assert_allclose(display.positions, result.positions)
    assert display.path is None
    plt.close(display.figure_)
    summary = json.loads(json.dumps(result.to_dict()))
    assert [row["source"] for row in summary["sources"]] == [5, 21]
    assert [row["space"] for row in summary["sources"]] == [0, 0]
    assert [row["vertex"] for row in summary["sources"]] == [5, 21]
    assert summary["comment"] == "simulated"
    for part, other in zip(result.vertices, result.stc.vertices, strict=True):
        assert_array_equal(part, other)
    assert_allclose(result.positions, data.forward["source_rr"][[5, 21]])
    lengths = np.linalg.norm(result.orientations, axis=2)
    assert_allclose(lengths, 1.0)


NAMED = [
    ("surface", "mag", (5, 60), ["lh 5", "rh 18"]),
    ("grid", "mag", (5, 21), ["vertex 74", "vertex 124"]),
    ("mixed", "both", (5, 100), ["lh 5", "space 2 vertex 16"]),
]


@pytest.mark.parametrize(("space", "kind", "sources", "names"), NAMED)
def test_sources_are_named_by_the_vertices_of_the_source_estimate(space, kind, sources, names):
    result = localised(simulated(space, kind, sources=sources, noise=0.5))
    assert result.names == names
    vertices = np.concatenate(result.stc.vertices)
    assert [int(name.split()[-1]) for name in names] == vertices.tolist()
    summary = result.to_dict()
    assert [row["name"] for row in summary["sources"]] == names
    assert [row["source"] for row in summary["sources"]] == list(sources)
    assert [row["patches"] for row in summary["sources"]] == [[], []]
    assert summary["patches"] == []
    page = result._repr_html_()
    assert all(f"<td>{name}</td>" in page for name in names)
    assert [found.name for found in result.found_sources] == names
    numbered = result.strongest_first()
    strengths = np.linalg.norm(result.amplitudes, axis=1).max(axis=1)
    assert [found.name for found in numbered] == [names[i] for i in np.argsort(-strengths)]


def test_segments_of_a_volume_give_their_names():
    places = np.random.default_rng(0).uniform(-0.05, 0.05, (2, 15, 3))
    parts = [
        mne.setup_volume_source_space(pos={"rr": rr, "nn": rr}, verbose=False) for rr in places
    ]
    parts[0][0]["seg_name"] = "Left-Amygdala"
    src, info = parts[0] + parts[1], sensors("mag")
    sphere = mne.make_sphere_model((0.0, 0.0, 0.0), 0.09, info=info, verbose=False)
    forward = mne.make_forward_solution(info, None, src, sphere, eeg=False, verbose=False)
    field = forward["sol"]["data"].reshape(51, -1, 3)[:, [4, 22]].reshape(51, -1)
    rng = np.random.default_rng(1)
    data = field @ (2e-7 * rng.standard_normal((6, 8))) + 1e-14 * rng.standard_normal((51, 8))
    evoked = mne.EvokedArray(data, info, verbose=False)
    cov = mne.make_ad_hoc_cov(info, verbose=False)
    result = sparse_vae(evoked, forward, cov, return_result=True, verbose=False)
    assert {"Left-Amygdala 4", "space 1 vertex 7"} <= set(result.names)


@pytest.mark.parametrize("debias", [False, True])
def test_found_points_have_the_numbers_of_the_sources(debias):
    data = simulated("scattered", "eeg", noise=0.5)
    data.evoked.nave = 3
    result = localised(data, debias=debias)
    found = result.found_sources
    assert [one.sources.tolist() for one in found] == [[source] for source in result.sources]
    for name in ("positions", "orientations", "amplitudes", "posterior_std"):
        values = [np.reshape(getattr(one, name), getattr(result, name).shape[1:]) for one in found]
        assert_allclose(values, getattr(result, name), atol=1e-20)
    assert_allclose([one.goodness_of_fit for one in found], result.source_goodness_of_fit)


def test_path_goes_from_no_source_to_the_sources_of_the_fit():
    data = simulated("scattered", "mag", noise=0.5, n_times=6, strength=0.5)
    result = localised(data, noise_variance=1.0)
    path = result.noise_path()
    found = result.path_sources(path)
    assert found[0].size == 0
    at = int(np.argmin(np.abs(path.noise_variances - 1.0)))
    assert_allclose(path.noise_variances[at], 1.0)
    assert_array_equal(found[at], result.sources)
    assert (np.diff(path.explained) > -1e-9).all()
    folds = result.noise_path([10.0, 1.0], cv=2)
    assert np.isfinite(folds.held_out_error).all()
    assert_array_equal(result.path_sources(folds)[1], result.sources)


def test_sources_along_a_path_are_those_of_the_fit_where_the_path_counts_fewer_columns():
    data = simulated("grid", "mag", sources=(3, 4, 9, 30), seed=4, n_times=6, strength=0.4)
    result = localised(data)
    path = result.noise_path()
    at = int(np.argmin(np.abs(path.noise_variances - 1.0)))
    assert path.n_columns[at] < result.sources.size
    assert_array_equal(result.path_sources(path)[at], result.sources)


def test_without_significance_all_sources_with_a_prior_variance_are_returned():
    data = simulated("surface", "mag", n_times=4)
    some, every = localised(data), localised(data, significance=None)
    assert set(some.sources) <= set(every.sources)
    used = every.estimate.labels[every.model.relevance_ > 0]
    assert_array_equal(every.sources, np.unique(used))
    assert_allclose(
        every.estimate.mean, every.model.coef_.T[every.estimate.columns],
        atol=1e-8 * np.abs(every.estimate.mean).max(),
    )  # fmt: skip


@pytest.mark.parametrize("option", [{}, {"return_as_dipoles": True}, {"return_result": True}])
def test_noise_alone_gives_a_warning_and_an_empty_estimate(option):
    data = simulated("surface", "mag", sources=(), n_times=4)
    with pytest.warns(UserWarning, match="No source was found"):
        found = sparse_vae(data.evoked, data.forward, data.cov, verbose=False, **option)
    if "return_as_dipoles" in option:
        assert found == []
    elif "return_result" in option:
        assert found.model.relevance_.any()  # but not significantly
        assert found.goodness_of_fit == pytest.approx(0.0)
        assert found.posterior_std.shape == found.debiased_amplitudes.shape[:2] == (0, 3)
        assert found.source_goodness_of_fit.shape == (0, 4)
        assert_allclose(found.residual.data, data.evoked.data)
        assert "0 sources" in repr(found)
        assert "0 sources" in found._repr_html_()
    else:
        assert found.shape == (0, 4)


def test_zero_data_have_no_source():
    data = simulated("scattered", "mag", noise=0.0, sources=(), n_times=3)
    with pytest.warns(UserWarning, match="No source was found"):
        result = localised(data)
    assert result.goodness_of_fit == 0.0
    assert_array_equal(result.goodness_of_fit_per_time, [0.0, 0.0, 0.0])
    with pytest.warns(UserWarning, match="No source was found"):
        X, active = solver(np.zeros((10, 3)), np.eye(10), 1)
    assert X.shape == (0, 3)
    assert not active.any()


def test_log_says_what_is_explained_and_is_silent_otherwise(capsys):
    data = simulated()
    with mne.utils.catch_logging(verbose=False) as log:
        sparse_vae(data.evoked, data.forward, data.cov, verbose=True)
    assert "Explained" in log.getvalue()
    with mne.utils.catch_logging(verbose=False) as log:
        sparse_vae(data.evoked, data.forward, data.cov, verbose=False)
    assert log.getvalue() == ""
    capsys.readouterr()


def test_inputs_are_not_changed():
    data = simulated("surface", "both")
    before = data.evoked.copy(), data.forward.copy(), data.cov.copy()
    sparse_vae(data.evoked, data.forward, data.cov, loose=0.0, debias=True, verbose=False)
    assert_array_equal(data.evoked.data, before[0].data)
    assert_array_equal(data.forward["sol"]["data"], before[1]["sol"]["data"])
    assert_array_equal(data.cov["data"], before[2]["data"])
    assert data.evoked.info["bads"] == before[0].info["bads"]


def test_the_given_rank_is_not_changed():
    data = simulated("surface", "both")
    rank = {"mag": 51}
    expected = localised(data, rank=None)
    for depth in (None, 0.8):
        for kind in ("full", "spherical"):
            localised(data, rank=rank, depth=depth, group_covariance=kind)
            assert rank == {"mag": 51}
    assert_array_equal(localised(data, rank=rank).sources, expected.sources)


PREPARED = [
    ("surface", "both", "auto"),
    ("mixed", "both", 0.0),
    ("grid", "mag", 1.0),
    ("surface", "eeg", 0.0),
    ("mixed", "mag", {"surface": 0.3, "discrete": 1.0}),
]


@pytest.mark.parametrize(("space", "kind", "loose"), PREPARED)
def test_the_preparation_is_that_of_mne_up_to_one_factor(space, kind, loose):
    """Without weights for depth, functions of MNE are called one by one, each of them once."""
    from mne.inverse_sparse.mxne_inverse import _prepare_gain

    from lucidae.mne.evoked_problem import _prepared

    data = simulated(space, kind)
    data.evoked = spoiled(data.evoked)
    args = data.forward, data.evoked.info, data.cov
    with mne.use_log_level("error"):
        forward, gain, info, whitener, weighting = _prepared(*args, loose, None)
        expected = _prepare_gain(*args, True, None, loose, None)
    assert_array_equal(forward["sol"]["data"], expected[0]["sol"]["data"])
    assert info["ch_names"] == expected[2]["ch_names"]
    assert_allclose(whitener, expected[3], rtol=1e-9, atol=1e-9 * np.abs(whitener).max())
    factor = expected[4][-1] / weighting[-1]
    assert_allclose(expected[4], factor * weighting, rtol=1e-9)
    assert_allclose(expected[1], factor * gain, atol=1e-9 * np.abs(expected[1]).max())


REFUSED = [
    ({"noise_variance": "learn_diagonal"}, "learn_diagonal"),
    ({"noise_variance": -1.0}, "or one of 'auto', 'learn', 'cv', 'cv_1se'"),
    ({"noise_variance": "most"}, "expected one of 'auto', 'learn', 'cv', 'cv_1se' or a finite"),
    ({"depth": "a"}, "depth='a' was given, expected a finite number of at least 0, a dict or None"),
    ({"depth": -1.0}, "depth=-1.0 was given"),
    ({"group_covariance": "round"}, "group_covariance='round' was given"),
    ({"significance": 2.0}, "significance=2.0 was given"),
    ({"nave": 0}, "nave=0 was given"),
    ({"weights": [1.0, 2.0]}, "for each of the 81 sources"),
    ({"weights": -np.ones(81)}, "weights"),
    ({"weights_min": -1.0}, "weights_min=-1.0 was given"),
    ({"debias": 1}, "debias=1 was given"),
    ({"return_residual": True, "return_result": True}, "leave these arguments out"),
    ({"patches": []}, "patches is an empty list"),
    ({"patches": [-0.01]}, "patches=-0.01 was given"),
    ({"patches": [0]}, "patches=0 was given"),
    ({"patches": [1e-4]}, "no patch of this size"),
    ({"pick_ori": "normal"}, "pick_ori"),
]


@pytest.mark.parametrize(("option", "words"), REFUSED)
def test_wrong_arguments_are_refused_with_what_was_expected(option, words):
    data = simulated()
    with pytest.raises(ValueError, match=words):
        sparse_vae(data.evoked, data.forward, data.cov, verbose=False, **option)


def test_wrong_objects_are_refused_by_name():
    data = simulated()
    with pytest.raises(ValueError, match=r"evoked is of type ndarray, expected mne\.Evoked"):
        sparse_vae(data.evoked.data, data.forward, data.cov)
    with pytest.raises(ValueError, match="forward is of type Evoked"):
        sparse_vae(data.evoked, data.evoked, data.cov)
    with pytest.raises(ValueError, match="noise_cov is of type NoneType"):
        sparse_vae(data.evoked, data.forward, None)
    with pytest.raises(ValueError, match="empty list"):
        sparse_vae([], data.forward, data.cov)
    other = data.evoked.copy().drop_channels(data.evoked.ch_names[:1])
    with pytest.raises(ValueError, match="equalize_channels"):
        sparse_vae([data.evoked, other], data.forward, data.cov)
    with pytest.raises(ValueError, match="real and its imaginary part"):
        sparse_vae(mne.EvokedArray(1j * data.evoked.data, data.evoked.info), data.forward, data.cov)
    data.evoked.data[0, 0] = np.nan
    with pytest.raises(ValueError, match="evoked contains NaN or infinity in 1 of the 51"):
        sparse_vae(data.evoked, data.forward, data.cov)
    eeg = simulated("surface", "eeg")
    with pytest.raises(ValueError, match="average reference"):
        sparse_vae(eeg.evoked.copy().del_proj(), eeg.forward, eeg.cov, verbose=False)
    with pytest.raises(ValueError, match="n_orient=2 was given"):
        solver(np.ones((4, 2)), np.ones((4, 3)), 2)


def test_a_bad_channel_may_contain_nan():
    data = simulated(noise=0.3)
    data.evoked.info["bads"] = data.evoked.ch_names[:1]
    expected = localised(data)
    data.evoked.data[0] = np.nan
    found = localised(data)
    assert_array_equal(found.sources, expected.sources)
    assert_array_equal(found.amplitudes, expected.amplitudes)
    assert np.isfinite(found.residual.data).all()


def other_names(data):
    """Return the evoked and the covariance with other names of the channels."""
    evoked = data.evoked.copy()
    evoked.rename_channels({name: f"X{name}" for name in evoked.ch_names}, verbose=False)
    return evoked, mne.make_ad_hoc_cov(evoked.info, verbose=False)


def test_an_object_without_the_channels_is_named():
    data = simulated()
    first, count = data.evoked.ch_names[0], len(data.evoked.ch_names)
    evoked, cov = other_names(data)
    words = f"forward has none of the {count} good channels of evoked: .*'{first}'.*'X{first}'"
    for noise_cov in (data.cov, cov):
        with pytest.raises(ValueError, match=words):
            sparse_vae(evoked, data.forward, noise_cov)
    words = f"noise_cov has none of the {count} good channels of evoked: .*'X{first}'.*'{first}'"
    with pytest.raises(ValueError, match=words):
        sparse_vae(data.evoked, data.forward, cov)
    bad = data.evoked.copy()
    bad.info["bads"] = list(bad.ch_names)
    with pytest.raises(ValueError, match=f"All {count} channels of evoked are marked as bad"):
        sparse_vae(bad, data.forward, data.cov)
    marked = data.cov.copy()
    marked["bads"] = list(data.evoked.ch_names)
    with pytest.raises(ValueError, match=rf"noise_cov\['bads'\] marks all {count} that both have"):
        sparse_vae(data.evoked, data.forward, marked)
    half = mne.pick_channels_forward(data.forward, data.evoked.ch_names[:20], verbose=False)
    rest = mne.pick_channels_cov(data.cov, data.evoked.ch_names[20:])
    with pytest.raises(ValueError, match=r"forward has 20 and .* but no channel is in both"):
        sparse_vae(data.evoked, half, rest)


def test_values_that_are_not_finite_are_refused_in_the_channels_in_use_only():
    data = simulated(noise=0.3)
    forward, cov = data.forward.copy(), data.cov.copy()
    forward["sol"]["data"] = forward["sol"]["data"].copy()
    forward["sol"]["data"][0, 0] = np.nan
    with pytest.raises(ValueError, match="forward contains NaN or infinity"):
        sparse_vae(data.evoked, forward, data.cov)
    for full in (False, True):
        if full:
            cov = data.cov.copy().as_diag()
            cov.update(data=np.diag(cov["data"]), diag=False)
        values = cov["data"].copy()
        cov["data"][0] = np.nan
        with pytest.raises(ValueError, match="noise_cov contains NaN or infinity"):
            sparse_vae(data.evoked, data.forward, cov)
        data.evoked.info["bads"] = data.evoked.ch_names[:1]
        assert_array_equal(
            sparse_vae(data.evoked, forward, cov, verbose=False).vertices[0],
            localised(data).vertices[0],
        )
        data.evoked.info["bads"] = []
        cov["data"] = 0 * values
        with pytest.raises(ValueError, match="noise_cov has no positive variance in the 51"):
            sparse_vae(data.evoked, data.forward, cov)


def test_many_missing_channels_give_a_warning_and_a_missing_type_does_not():
    data = simulated(noise=0.3)
    names = data.evoked.ch_names
    data.forward = mne.pick_channels_forward(data.forward, names[:40], verbose=False)
    with pytest.warns(UserWarning, match="forward lacks 11 of 51 good .* 40 channels are used"):
        localised(data)
    data = simulated(noise=0.3)
    data.cov = mne.pick_channels_cov(data.cov, names[11:])
    with pytest.warns(UserWarning, match="noise_cov lacks 11 of 51 good .* 40 channels are used"):
        localised(data)
    data.cov = mne.pick_channels_cov(simulated().cov, names[3:])
    assert localised(data).problem.info["nchan"] == 48  # few are missing: no warning
    both = simulated("scattered", "both")
    both.forward = simulated("scattered").forward
    assert localised(both).problem.info["nchan"] == 51  # no electrode in the forward: no warning


def test_attributes_of_a_result_are_computed_at_its_log_level():
    data = simulated(noise=0.3)
    for verbose in (False, True):
        with mne.utils.catch_logging(verbose=False):
            result = localised(data, verbose=verbose)
        with mne.utils.catch_logging(verbose=True) as log:
            assert result.stc is not None
            assert result.residual is not None
            assert result.dipoles
        text = log.getvalue()
        assert "combining the current components" in text if verbose else text == ""


PRIVATE = {
    "mxne_inverse._check_ori": ["pick_ori", "forward"],
    "mxne_inverse._compute_residual": ["forward", "evoked", "X", "active_set", "info"],
    "mxne_inverse._make_sparse_stc": ["X", "active_set", "forward", "tmin", "tstep"],
    "mxne_inverse._prepare_gain": [
        "forward", "info", "noise_cov", "pca", "depth", "loose", "rank", "weights", "weights_min",
    ],
    "mxne_inverse._split_gof": ["M", "X", "gain"],
}  # fmt: skip


@pytest.mark.parametrize("name", PRIVATE)
def test_private_functions_of_mne_have_the_arguments_that_are_used(name):
    module, function = name.split(".")
    found = getattr(require(f"mne.inverse_sparse.{module}"), function)
    assert list(inspect.signature(found).parameters)[: len(PRIVATE[name])] == PRIVATE[name]


def test_importing_without_mne_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("lucidae.mne")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mne", None)
    words = r"^lucidae\.mne needs MNE-Python, which is not installed: pip install .lucidae\[mne\]"
    with pytest.raises(ImportError, match=words):
        importlib.import_module("lucidae.mne")


def test_channels_of_the_forward_may_be_more_than_those_of_the_evoked():
    data = simulated(noise=0.3)
    data.evoked = data.evoked.copy().drop_channels(data.evoked.ch_names[::5])
    assert len(sensors("mag")["ch_names"]) > len(data.evoked.ch_names)
    assert_array_equal(localised(data).sources, data.sources)


def test_more_folds_than_sensors_are_refused():
    data = simulated()
    with pytest.raises(ValueError, match="cv=1000 was given, expected at most 51 folds"):
        localised(data, noise_variance="cv", cv=1000)


def test_a_fixed_orientation_in_a_volume_is_warned_of():
    data = simulated("grid")
    with pytest.warns(UserWarning, match="have no normals"):
        localised(data, loose=0.0, significance=None)


def test_errors_of_the_forward_solution_make_sources_doubtful():
    data = simulated(n_times=40, strength=3.0)
    assert localised(data).doubtful_sources.size == 0
    assert localised(data).advice == ""
    wrong = data.forward.copy()
    field = wrong["sol"]["data"]
    rng = np.random.default_rng(0)
    smooth = rng.standard_normal((field.shape[1], field.shape[1]))
    smooth *= np.linalg.norm(field) / np.linalg.norm(field @ smooth)
    wrong["sol"]["data"] = field + 0.03 * field @ smooth
    data.forward = wrong
    result = localised(data)
    assert result.sources.size > 2
    assert result.doubtful_sources.size
    assert set(result.doubtful_sources) < set(result.sources)
    assert {5, 21} <= set(result.sources) - set(result.doubtful_sources)
    assert "noise_variance=3:" in result.advice
    assert result.advice in result._repr_html_()
    assert result.to_dict()["doubtful_sources"] == result.doubtful_sources.tolist()
    louder = localised(data, noise_variance=3.0)
    assert louder.sources.size < result.sources.size
