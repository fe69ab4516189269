"""Sources that `lucidae.mne` finds in evokeds, compared with MNE and with the definitions."""

import json
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from extras import require

mne = require("mne")

from evoked_recordings import PLAIN, localised, sensors, simulated, spoiled, whitened
from lucidae import SparseVAE
from lucidae.mne import SourceResult, solver, sparse_vae

pytestmark = pytest.mark.filterwarnings("ignore:The model does not fit:UserWarning")


def field_of(result):
    """Return the field of the sources that were found."""
    columns = (result.n_orient * result.sources[:, None] + np.arange(result.n_orient)).ravel()
    return result.forward["sol"]["data"][:, columns] @ result.amplitudes.reshape(columns.size, -1)


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
    assert_array_equal(np.sort(result.sources), data.sources)
    assert type(result.stc).__name__ == name
    assert result.n_orient == (1 if fixed else 3)
    true = data.used["sol"]["data"] @ data.amplitudes
    assert np.linalg.norm(field_of(result) - true) < 0.02 * np.linalg.norm(true)
    assert 99.5 < result.goodness_of_fit <= 100
    assert result.certificate["stationarity"].holds


@pytest.mark.parametrize(
    ("space", "kind", "sources", "name", "counts"),
    [
        ("scattered", "eeg", (5, 21), "VolVectorSourceEstimate", [2]),
        ("surface", "eeg", (5, 60), "VectorSourceEstimate", [1, 1]),
        ("mixed", "both", (5, 100), "MixedVectorSourceEstimate", [1, 0, 1]),
    ],
)
def test_three_components_come_back_in_head_coordinates(space, kind, sources, name, counts):
    data = simulated(space, kind, sources=sources, noise=0.01)
    stc = localised(data, pick_ori="vector", noise_variance=1e-4, return_result=False)
    assert type(stc).__name__ == name
    assert [len(part) for part in stc.vertices] == counts
    true = data.amplitudes.reshape(-1, 3, 12)[data.sources]
    assert np.abs(stc.data - true).max() < 0.02 * np.abs(true).max()


def test_radial_directions_and_the_centre_of_a_sphere_get_no_amplitude(tmp_path):
    data = simulated("grid", "mag", noise=0.5)
    result = localised(data)
    radial = np.einsum("not,noi,ni->nt", result.amplitudes, result.orientations, result.positions)
    assert np.abs(radial).max() < 1e-4 * np.abs(result.amplitudes).max() * 0.07
    # The source in the centre has no field, and all others have one in two directions.
    assert result.model.n_features_in_ == 2 * (data.forward["nsource"] - 1)
    mne.write_forward_solution(tmp_path / "small-fwd.fif", data.forward, verbose=False)
    data.forward = mne.read_forward_solution(tmp_path / "small-fwd.fif", verbose=False)  # float32
    stored = localised(data)
    assert stored.model.n_features_in_ == result.model.n_features_in_
    assert_array_equal(stored.sources, result.sources)
    largest = np.abs(result.amplitudes).max()
    assert_allclose(stored.amplitudes, result.amplitudes, atol=1e-3 * largest)


@pytest.mark.parametrize(("depth", "kind"), [(0.8, "spherical"), (None, "full")])
def test_fixed_sources_without_a_field_are_left_out(depth, kind):
    rng = np.random.default_rng(0)
    radial, rr = np.arange(0, 30, 3), rng.standard_normal((30, 3))
    rr *= 0.06 / np.linalg.norm(rr, axis=1, keepdims=True)
    nn = np.cross(rr, rng.standard_normal(rr.shape))
    nn[radial] = rr[radial]
    nn /= np.linalg.norm(nn, axis=1, keepdims=True)
    src = mne.setup_volume_source_space(pos={"rr": rr, "nn": nn}, verbose=False)
    evoked, forward, cov, fixed = recorded(src, sensors("mag"))
    evoked.data += fixed["sol"]["data"][:, [4, 21]] @ (40e-9 * rng.standard_normal((2, 12)))
    settings = {"loose": 0.0, "depth": depth, "group_covariance": kind, "verbose": False}
    result = sparse_vae(evoked, forward, cov, significance=None, return_result=True, **settings)
    assert 4 in result.sources  # 21 is radial, so that its field is zero
    assert not np.isin(radial, result.sources).any()
    assert result.model.n_features_in_ == 20
    assert np.isfinite(result.amplitudes).all()
    forward["sol"]["data"][:] = 0.0
    with pytest.raises(ValueError, match="No source of forward has a field"):
        sparse_vae(evoked, forward, cov, **settings | {"loose": 1.0})


def recorded(src, info):
    """Return noise in 12 samples, the free forward, its covariance and the fixed forward."""
    sphere = mne.make_sphere_model((0.0, 0.0, 0.0), 0.09, info=info, verbose=False)
    forward = mne.make_forward_solution(info, None, src, sphere, eeg=False, verbose=False)
    fixed = mne.convert_forward_solution(forward, force_fixed=True, verbose=False)
    cov = mne.make_ad_hoc_cov(info, verbose=False)
    noise = np.random.default_rng(9).standard_normal((len(cov.data), 12))
    evoked = mne.EvokedArray(np.sqrt(cov.data)[:, None] * noise, info, verbose=False)
    return evoked, forward, cov, fixed


@pytest.mark.parametrize(("debias", "fixed"), [(False, False), (True, True)])
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


SPOILED = [("surface", "both", "auto"), ("scattered", "eeg", 1.0), ("mixed", "both", 0.0)]


@pytest.mark.parametrize(
    ("space", "kind", "loose"),
    [*SPOILED, ("grid", "mag", 1.0), ("mixed", "mag", {"surface": 0.3, "discrete": 1.0})],
)
def test_bad_channels_and_projections_are_treated_as_by_mne(space, kind, loose):
    # Without weights for depth, the functions that MNE's `_prepare_gain` calls are called once.
    given = simulated(space, kind, noise=0.3, fixed=loose == 0.0)
    evoked = spoiled(given.evoked)
    raw = localised(given, loose=loose)
    assert_array_equal(np.sort(raw.sources), given.sources)
    others = [localised(given, loose=loose, depth={"exp": 0.8})]
    if (space, kind, loose) in SPOILED:
        given.evoked = evoked.copy().apply_proj(verbose=False)
        others.append(localised(given, loose=loose))
        given.evoked = evoked.copy().drop_channels(evoked.info["bads"]).apply_proj(verbose=False)
        others.append(localised(given, loose=loose))
    for other in others:
        assert_array_equal(other.sources, raw.sources)
        scale = np.abs(raw.amplitudes).max()
        assert_allclose(other.amplitudes, raw.amplitudes, rtol=1e-5, atol=1e-6 * scale)
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


@pytest.mark.parametrize(("space", "kind", "loose"), [*SPOILED, ("surface", "mag", 0.2)])
def test_returned_objects_have_the_attributes_of_those_of_gamma_map(space, kind, loose):
    data = simulated(space, kind, noise=0.3, fixed=loose == 0.0)
    given = (data.evoked, data.forward, data.cov)
    options = [{"return_as_dipoles": True}, {"pick_ori": "vector"} if loose else {}]
    for option in options:
        settings = {"loose": loose, "verbose": False, "return_residual": True, **option}
        theirs = mne.inverse_sparse.gamma_map(*given, alpha=1.0, xyz_same_gamma=True, **settings)
        assert attributes(sparse_vae(*given, **settings, **PLAIN)) == attributes(theirs)


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


def test_units_depth_weights_and_the_loose_prior_do_not_matter():
    data = simulated(noise=0.5)
    first = localised(data)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, data.forward["nsource"])
    for other in (localised(data, depth={"exp": 0.8}), localised(data, weights=weights)):
        assert_array_equal(other.sources, first.sources)
        assert_allclose(other.amplitudes, first.amplitudes, rtol=1e-5, atol=1e-13)
    data.evoked.data *= 1e-3
    data.cov.update(data=data.cov["data"] * 1e-6)
    scaled = localised(data)
    assert_allclose(scaled.amplitudes, 1e-3 * first.amplitudes, rtol=1e-5, atol=1e-16)
    data = simulated("surface", "mag", noise=0.5)
    loose, free = localised(data, loose=0.2), localised(data, loose=1.0)
    assert_array_equal(loose.sources, free.sources)
    fields = field_of(loose), field_of(free)
    assert_allclose(*fields, atol=1e-5 * np.abs(fields[0]).max())


def test_sources_with_small_weights_are_left_out():
    data = simulated(noise=0.5)
    weights = np.ones(data.forward["nsource"])
    weights[5] = 0.1
    result = localised(data, weights=weights, weights_min=0.5)
    assert 21 in result.sources
    assert 5 not in result.sources
    stc = localised(data).stc
    values, vertices = np.zeros((len(weights), 12)), data.forward["src"][0]["vertno"]
    values[np.searchsorted(vertices, stc.vertices[0])] = stc.data
    again = localised(data, weights=mne.VolSourceEstimate(values, [vertices], stc.tmin, stc.tstep))
    assert_array_equal(np.sort(again.sources), data.sources)
    assert again.model.n_features_in_ == 4


def test_axes_of_free_sources_do_not_matter():
    M, G, _, _ = whitened(simulated("scattered", "eeg", noise=0.5))
    turns = np.linalg.qr(np.random.default_rng(1).standard_normal((40, 3, 3)))[0]
    turned = np.einsum("dni,nij->dnj", G.reshape(len(G), 40, 3), turns).reshape(G.shape)
    X, active = solver(M, G, 3)
    Y, same = solver(M, turned, 3)
    assert_array_equal(active, same)
    sources = np.flatnonzero(active)[::3] // 3
    back = np.einsum("nij,njt->nit", turns[sources], Y.reshape(-1, 3, 12))
    assert_allclose(back.reshape(X.shape), X, atol=1e-5 * np.abs(X).max())


def test_several_evokeds_have_one_support_and_a_list_gives_a_list():
    first, second = simulated(seed=1), simulated(seed=2, n_times=9)
    given = ([first.evoked, second.evoked], first.forward, first.cov)
    results = sparse_vae(*given, return_result=True, verbose=False)
    both = np.hstack([first.evoked.data, second.evoked.data])
    joined = mne.EvokedArray(both, first.evoked.info, verbose=False)
    one = sparse_vae(joined, *given[1:], return_result=True, verbose=False)
    amplitudes = [result.amplitudes for result in results]
    assert_allclose(np.concatenate(amplitudes, axis=2), one.amplitudes)
    stcs, residuals = sparse_vae(*given, return_residual=True, verbose=False)
    assert [stc.shape[1] for stc in stcs] == [len(each.times) for each in residuals] == [12, 9]
    assert_array_equal(stcs[0].vertices[0], stcs[1].vertices[0])
    alone = sparse_vae([first.evoked], *given[1:], verbose=False)
    assert isinstance(alone, list)
    assert len(alone) == 1


def test_averages_of_several_evokeds_may_differ():
    first, second = simulated(seed=1, noise=0.2), simulated(seed=2, noise=0.2)
    second.evoked.nave = 9
    results = sparse_vae(
        [first.evoked, second.evoked], first.forward, first.cov, return_result=True, verbose=False,
        **PLAIN,
    )  # fmt: skip
    for data, result in zip((first, second), results, strict=True):
        assert_array_equal(np.sort(result.sources), data.sources)
        true = data.field @ data.amplitudes
        assert np.linalg.norm(field_of(result) - true) < 0.1 * np.linalg.norm(true)
    assert_allclose(results[0].posterior_std, 3 * results[1].posterior_std)


def lead_field(data, result):
    """Return the whitened lead field of the sources that were found."""
    _, gain, _, weighting = whitened(data)
    columns = (3 * result.sources[:, None] + np.arange(3)).ravel()
    return (gain / weighting)[:, columns]


@pytest.mark.parametrize("covariance", ["full", "spherical"])
def test_posterior_is_that_of_bayes_rule(covariance):
    data = simulated("surface", "mag", noise=0.7)
    data.evoked.nave = 3
    result = localised(data, group_covariance=covariance)
    turn = result._transfer
    prior = turn @ result.estimate.prior @ turn.T / 3
    columns = (3 * result.sources[:, None] + np.arange(3)).ravel()
    field = result.forward["sol"]["data"][:, columns]
    total = field @ prior @ field.T + np.diag(data.cov.data) / 3
    gain = prior @ field.T @ np.linalg.inv(total)
    mean = (gain @ data.evoked.data).reshape(result.posterior_mean.shape)
    assert_allclose(result.posterior_mean, mean, atol=1e-8 * np.abs(mean).max())
    spread = prior - gain @ field @ prior
    assert_allclose(result.posterior_covariance, spread, atol=1e-8 * np.abs(spread).max())
    assert_allclose(result.posterior_std, np.sqrt(np.diag(spread)).reshape(-1, 3), rtol=1e-6)


def test_debiased_amplitudes_are_least_squares_on_the_support():
    data = simulated("scattered", "eeg", noise=1.0)
    result = localised(data, group_covariance="spherical", debias=True)
    M = whitened(data)[0]
    expected = np.linalg.lstsq(lead_field(data, result), M, rcond=None)[0]
    expected = expected.reshape(result.amplitudes.shape)
    assert_allclose(result.amplitudes, expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())
    shrunk = localised(data, group_covariance="spherical")
    assert np.linalg.norm(shrunk.amplitudes) < np.linalg.norm(expected)
    assert_allclose(shrunk.debiased_amplitudes, result.amplitudes)
    assert shrunk.goodness_of_fit < result.goodness_of_fit
    # Orientations that were found to be constant stay so.
    result = localised(data)
    for parts in zip(result.posterior_mean, result.debiased_amplitudes, strict=True):
        ranks = [np.linalg.matrix_rank(x, tol=1e-6 * np.linalg.norm(x)) for x in parts]
        assert ranks[1] <= ranks[0]


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
    ours = localised(data, loose=loose, return_result=False)
    for one, other in zip(stc.vertices, ours.vertices, strict=True):
        assert_array_equal(one, other)
    assert_allclose(stc.data, ours.data, rtol=1e-5, atol=1e-5 * np.abs(ours.data).max())


@pytest.mark.parametrize(("rule", "highest"), [("cv", 8.0), ("cv_1se", 200.0), ("learn", 8.0)])
def test_noise_variance_is_found_where_the_covariance_is_wrong(rule, highest):
    data = simulated("scattered", "mag", n_times=8, noise=2.0, strength=4.0)
    result = localised(data, noise_variance=rule, cv=3)
    assert 2.0 < result.noise_variance < highest
    assert_array_equal(np.sort(result.sources), data.sources)


def test_solver_leaves_rows_without_noise_out_when_it_learns_the_noise():
    data = simulated("surface", "eeg", n_times=40, noise=1.0, strength=3.0)
    M, G, _, _ = whitened(data, pca=False)
    assert np.linalg.matrix_rank(M) == len(M) - 1  # the average reference
    alone = localised(data, noise_variance="learn")
    X, active = solver(M, G, 3, noise_variance="learn", debias=True)
    assert_array_equal(np.unique(np.flatnonzero(active) // 3), np.sort(alone.sources))
    assert np.linalg.norm(M - G[:, active] @ X) < np.linalg.norm(M)


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


@pytest.mark.parametrize("fixed", [False, True])
def test_dipoles_are_those_that_mne_makes(fixed):
    from mne.inverse_sparse.mxne_inverse import _make_dipoles_sparse

    data, loose = simulated("surface", "mag", noise=0.5, fixed=fixed), 0.0 if fixed else 0.2
    result = localised(data, loose=loose)
    M, gain, _, weighting = whitened(data, loose=loose)
    axes = np.arange(result.n_orient)
    columns = (result.n_orient * result.sources[:, None] + axes).ravel()
    expected = _make_dipoles_sparse(
        result.amplitudes.reshape(-1, 12), columns, result.forward, data.evoked.times[0], 1e-3, M,
        (gain / weighting)[:, columns], active_is_idx=True, verbose=False,
    )  # fmt: skip
    given = localised(data, loose=loose, return_as_dipoles=True, return_result=False)
    assert len(given) == len(expected) == result.sources.size > 0
    for one, other in zip(given, expected, strict=True):
        for name in ("times", "pos", "amplitude", "ori", "gof"):
            assert_allclose(getattr(one, name), getattr(other, name), atol=1e-7)


def test_goodness_of_fit_is_the_share_of_whitened_power():
    data = simulated(noise=1.0)
    data.evoked.nave = 2
    result = localised(data)
    M = whitened(data)[0]
    fitted = lead_field(data, result) @ result.amplitudes.reshape(-1, 12)
    share = 100 * (1 - np.sum((M - fitted) ** 2) / np.sum(M**2))
    assert_allclose(result.goodness_of_fit, share)
    by_time = 100 * (1 - np.sum((M - fitted) ** 2, axis=0) / np.sum(M**2, axis=0))
    assert_allclose(result.goodness_of_fit_per_time, by_time)
    assert_allclose(result.source_goodness_of_fit.sum(axis=0), by_time, atol=1e-6)


def test_the_certificate_is_computed_when_it_is_first_read_and_is_that_of_the_fit():
    result = localised(simulated("surface", "mag", noise=0.5))
    copied = pickle.loads(pickle.dumps(result))
    model, estimate = result.model, result.estimate
    assert model._state._certificate is None
    eager = clone(model).fit(estimate.gain, estimate.responses).certificate_
    model.tol = 1e3  # a parameter that is changed after the fit is not that of the fit
    for other in (result, copied):
        assert_array_equal(other.sources, result.sources)
        assert other.certificate.holds == result.certificate.holds
        names = [claim.name for claim in other.certificate]
        assert names[:4] == [
            "forward_model", "error_covariance", "selected_stationarity", "selected_mean",
        ]  # fmt: skip
        assert (names[6:-1], names[-1]) == ([claim.name for claim in eager], "noise_covariance")
        for claim, expected in zip(other.certificate.claims[6:-1], eager.claims, strict=True):
            assert (claim.name, claim.holds) == (expected.name, expected.holds)
            assert claim.threshold == expected.threshold
    assert model._state._certificate is not None


NAMED = [
    ("surface", "mag", (5, 60), ["lh 5", "rh 18"]),
    ("grid", "mag", (5, 21), ["vertex 74", "vertex 124"]),
    ("mixed", "both", (5, 100), ["lh 5", "space 2 vertex 16"]),
]


@pytest.mark.parametrize(("space", "kind", "sources", "names"), NAMED)
def test_result_describes_itself(space, kind, sources, names):
    data = simulated(space, kind, sources=sources, noise=0.5)
    result = localised(data)
    assert isinstance(result, SourceResult)
    assert "2 sources, 12 samples" in repr(result)
    assert result.names == [found.name for found in result.found_sources]
    assert sorted(result.names) == sorted(names)
    for part, other in zip(result.vertices, result.stc.vertices, strict=True):
        assert_array_equal(part, other)
    vertices = np.concatenate(result.stc.vertices)
    assert [int(name.split()[-1]) for name in names] == vertices.tolist()
    summary = json.loads(json.dumps(result.to_dict()))
    assert (summary["comment"], summary["patches"]) == ("simulated", [])
    rows = [(row["source"], row["vertex"], row["name"]) for row in summary["sources"]]
    assert sorted(rows) == sorted(zip(sources, vertices, names, strict=True))
    page = result._repr_html_()
    assert all(f"<td>{name}</td>" in page for name in names)
    assert "stationarity" in page
    powers = [found.power for found in result.found_sources]
    assert powers == sorted(powers, reverse=True)
    assert_allclose(result.positions, data.forward["source_rr"][result.sources])
    assert_allclose(np.linalg.norm(result.orientations, axis=2), 1.0)
    require("matplotlib")
    display = result.plot()
    assert_allclose(display.positions, result.positions)
    assert display.path is None


def test_segments_of_a_volume_give_their_names():
    places = np.random.default_rng(0).uniform(-0.05, 0.05, (2, 15, 3))
    parts = [
        mne.setup_volume_source_space(pos={"rr": rr, "nn": rr}, verbose=False) for rr in places
    ]
    parts[0][0]["seg_name"] = "Left-Amygdala"
    evoked, forward, cov, _ = recorded(parts[0] + parts[1], sensors("mag"))
    field = forward["sol"]["data"].reshape(51, -1, 3)[:, [4, 22]].reshape(51, -1)
    evoked.data += field @ (2e-7 * np.random.default_rng(1).standard_normal((6, 12)))
    result = sparse_vae(evoked, forward, cov, return_result=True, verbose=False)
    assert {"Left-Amygdala 4", "space 1 vertex 7"} <= set(result.names)


def test_found_points_have_the_numbers_of_the_sources():
    data = simulated("scattered", "eeg", noise=0.5)
    data.evoked.nave = 3
    result = localised(data, debias=True)
    found = result.found_sources
    assert [one.sources.tolist() for one in found] == [[source] for source in result.sources]
    for name in ("positions", "orientations", "amplitudes", "posterior_std"):
        values = [np.reshape(getattr(one, name), getattr(result, name).shape[1:]) for one in found]
        assert_allclose(values, getattr(result, name), atol=1e-20)
    assert_allclose([one.goodness_of_fit for one in found], result.source_goodness_of_fit)


def test_path_goes_from_no_source_to_the_sources_of_the_fit():
    result = localised(simulated("scattered", "mag", noise=0.5, n_times=6, strength=0.5))
    path = result.noise_path()
    found = result.path_sources(path)
    assert found[0].size == 0
    at = int(np.argmin(np.abs(path.noise_variances - 1.0)))
    assert_allclose(path.noise_variances[at], 1.0)
    assert_array_equal(found[at], np.sort(result.sources))
    assert (np.diff(path.explained) > -1e-9).all()
    folds = result.noise_path([10.0, 1.0], cv=2)
    assert np.isfinite(folds.held_out_error).all()
    assert_array_equal(result.path_sources(folds)[1], np.sort(result.sources))
    # The path counts fewer columns, because it removes those that are not significant at once.
    result = localised(
        simulated("grid", "mag", sources=(3, 4, 9, 30), seed=11, n_times=6, strength=0.4)
    )
    path = result.noise_path()
    at = int(np.argmin(np.abs(path.noise_variances - 1.0)))
    assert path.n_columns[at] < result.sources.size
    assert_array_equal(result.path_sources(path)[at], np.sort(result.sources))


@pytest.mark.parametrize(("kind", "seed"), [("full", 0), ("spherical", 1), ("full", 2)])
def test_the_path_has_the_sources_of_a_fit_at_the_same_noise_variance(kind, seed):
    data = simulated("scattered", "mag", sources=(5, 21, 30, 31), n_times=20, seed=seed)
    result = localised(data, group_covariance=kind)
    path = result.noise_path([4.0, 1.0])
    louder = localised(data, group_covariance=kind, noise_variance=4.0)
    for found, fit in zip(result.path_sources(path), (louder, result), strict=True):
        assert_array_equal(found, np.sort(fit.sources))


def test_without_significance_all_sources_with_a_prior_variance_are_returned():
    data = simulated("surface", "mag", n_times=4)
    some, every = localised(data), localised(data, significance=None)
    assert_array_equal(np.sort(some.sources), [5, 21])  # the simulated ones
    assert every.sources.size > 2
    estimate = every.estimate
    used = np.unique(estimate.labels[every.model.relevance_ > 0])
    assert_array_equal(np.sort(every.sources), used)
    expected = every.model.coef_.T[estimate.columns]
    assert_allclose(estimate.mean, expected, atol=1e-8 * np.abs(expected).max())


def test_noise_alone_gives_a_warning_and_an_empty_estimate():
    data = simulated("surface", "mag", sources=(), n_times=4)
    with pytest.warns(UserWarning, match="No source was found"):
        found = localised(data)
    assert found.stc.shape == (0, 4)
    assert found.dipoles == []
    assert found.model.relevance_.any()  # but not significantly
    assert found.goodness_of_fit == pytest.approx(0.0)
    assert found.posterior_std.shape == found.debiased_amplitudes.shape[:2] == (0, 3)
    assert found.source_goodness_of_fit.shape == (0, 4)
    assert_allclose(found.residual.data, data.evoked.data)
    assert "0 sources" in repr(found)
    assert "0 sources" in found._repr_html_()
    with pytest.warns(UserWarning, match="No source was found"):
        X, active = solver(np.zeros((10, 3)), np.eye(10), 1)
    assert X.shape == (0, 3)
    assert not active.any()
    for space in ("scattered", "surface", "mixed"):
        data = simulated(space, "eeg", sources=(), n_times=4)
        with pytest.warns(UserWarning, match="No source was found"):
            stc = localised(data, pick_ori="vector").stc
        assert "Vector" in type(stc).__name__
        assert stc.data.shape == (0, 3, 4)
        assert not any(part.size for part in stc.vertices)
        assert_allclose(stc.times, data.evoked.times)


def test_errors_of_the_forward_solution_make_sources_doubtful():
    data = simulated(n_times=40, strength=3.0)
    right = localised(data)
    assert (right.doubtful_sources.size, right.advice) == (0, "")
    wrong = data.forward.copy()
    field = wrong["sol"]["data"]
    smooth = np.random.default_rng(0).standard_normal((field.shape[1], field.shape[1]))
    smooth *= np.linalg.norm(field) / np.linalg.norm(field @ smooth)
    wrong["sol"]["data"] = field + 0.03 * field @ smooth
    data.forward = wrong
    result = localised(data)
    assert result.sources.size > 2
    assert result.doubtful_sources.size
    assert set(result.doubtful_sources) < set(result.sources)
    assert {5, 21} <= set(result.sources) - set(result.doubtful_sources)
    assert "3 times the noise" in result.advice
    assert result.advice in result._repr_html_()
    assert result.to_dict()["doubtful_sources"] == result.doubtful_sources.tolist()
    assert localised(data, noise_variance=3.0).sources.size < result.sources.size
