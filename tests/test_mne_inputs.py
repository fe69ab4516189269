"""Inputs of `lucidae.mne`: evokeds that change or differ, few samples, units, arguments."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require

mne = require("mne")

from evoked_recordings import localised, simulated
from lucidae.mne import solver, sparse_vae
from lucidae.mne.inverse import SETTINGS
from lucidae.mne.patches import neighbourhoods


def test_a_result_does_not_change_with_the_evoked_of_the_user():
    data = simulated(noise=0.3)
    expected = localised(data)
    stc, residual = expected.stc.data.copy(), expected.residual.data.copy()
    result = localised(data)
    data.evoked.data[:] = 0.0
    data.evoked.crop(0.0, None)
    assert_array_equal(result.stc.data, stc)
    assert_array_equal(result.residual.data, residual)


def test_a_result_of_a_list_does_not_change_with_another_evoked():
    data = simulated(noise=0.3)
    pair = [data.evoked, data.evoked.copy().crop(-0.005, None)]
    settings = {"return_result": True, "verbose": False}
    expected = sparse_vae(pair, data.forward, data.cov, **settings)[1].amplitudes
    result = sparse_vae(pair, data.forward, data.cov, **settings)[1]
    pair[0].crop(0.0, None)
    assert_array_equal(result.amplitudes, expected)


def projection(evoked, seed, active=False):
    """Return a projection along one random direction of all channels."""
    row = np.random.default_rng(seed).standard_normal((1, len(evoked.ch_names)))
    data = {
        "nrow": 1, "ncol": row.size, "row_names": None, "col_names": evoked.ch_names,
        "data": row / np.linalg.norm(row),
    }  # fmt: skip
    return mne.Projection(kind=1, active=active, desc=f"direction {seed}", data=data)


def test_evokeds_with_different_projections_are_refused():
    data = simulated(noise=0.3)
    one = data.evoked.copy().add_proj(projection(data.evoked, 1), verbose=False)
    two = data.evoked.copy().add_proj(projection(data.evoked, 2), verbose=False)
    for pair in ([data.evoked, one], [one, data.evoked], [one, two]):
        with pytest.raises(ValueError, match=r"different projections.*add_proj"):
            sparse_vae(pair, data.forward, data.cov, verbose=False)


def test_projections_that_are_applied_equal_those_that_are_not():
    data = simulated(noise=0.3)
    evoked = data.evoked.add_proj(projection(data.evoked, 1), verbose=False)
    pair = [evoked, evoked.copy().apply_proj(verbose=False)]
    settings = {"return_result": True, "verbose": False}
    first, second = sparse_vae(pair, data.forward, data.cov, **settings)
    assert np.abs(first.amplitudes - second.amplitudes).max() < 1e-6 * first.amplitudes.max()


def moved(evoked, metres):
    other = evoked.copy()
    with other.info._unlock():
        other.info["dev_head_t"] = mne.transforms.Transform(
            "meg", "head", other.info["dev_head_t"]["trans"] + metres * np.eye(4, k=3)
        )
    return other


def test_evokeds_with_different_positions_of_the_head_are_refused():
    data = simulated(noise=0.3)
    pair = [data.evoked, moved(data.evoked, 0.005)]
    with pytest.raises(ValueError, match=r"different positions of the head.*maxwell_filter"):
        sparse_vae(pair, data.forward, data.cov, verbose=False)
    sparse_vae([data.evoked, moved(data.evoked, 1e-7)], data.forward, data.cov, verbose=False)
    eeg = simulated("surface", "eeg", noise=0.3)  # electrodes move with the head
    sparse_vae([eeg.evoked, moved(eeg.evoked, 0.005)], eeg.forward, eeg.cov, verbose=False)


def samples(data, count):
    data.evoked.crop(data.evoked.times[0], data.evoked.times[count - 1])
    return data


def test_a_noise_variance_that_is_learned_from_few_samples_is_warned_of():
    few, enough = (samples(simulated("surface", "eeg"), count) for count in (4, 5))
    with pytest.warns(UserWarning, match=r"learned from 4 samples.*noise alone.*'cv'"):
        localised(few, noise_variance="learn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        localised(enough, noise_variance="learn")
        for rule in (1.0, "cv", "auto"):  # more columns than rows: "auto" is "cv"
            localised(few, noise_variance=rule)
        halves = [samples(simulated("surface", "eeg"), 3).evoked for _ in range(2)]
        sparse_vae(halves, few.forward, few.cov, noise_variance="learn", verbose=False)


@pytest.mark.parametrize("rule", ["learn", "auto"])
def test_solver_warns_of_few_samples_too(rule):
    rng = np.random.default_rng(0)
    G, noise = rng.standard_normal((40, 3)), rng.standard_normal((40, 5))
    M = 5.0 * G[:, :1] + noise
    with pytest.warns(UserWarning, match="learned from 4 samples, expected"):
        solver(M[:, :4], G, noise_variance=rule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver(M, G, noise_variance=rule)


def in_other_units(data, factor):
    cov = data.cov.copy()
    cov.update(data=factor**2 * cov["data"])
    evoked = data.evoked.copy()
    evoked.data *= factor
    # The lead field keeps its unit, so that the amplitudes have the factor of the data.
    return evoked, cov


def reversed_order(data):
    return data.evoked.copy().reorder_channels(data.evoked.ch_names[::-1]), data.cov


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_cross_validated_noise_depends_neither_on_units_nor_on_the_order_of_channels(seed):
    data = simulated("scattered", "eeg", sources=(5, 11, 21, 30), strength=0.2, seed=seed)
    settings = {"noise_variance": "cv", "return_result": True, "verbose": False}
    expected = sparse_vae(data.evoked, data.forward, data.cov, **settings)
    for evoked, cov in (in_other_units(data, 1e3), reversed_order(data)):
        found = sparse_vae(evoked, data.forward, cov, **settings)
        # Fits along the path of noise variances are of low accuracy.
        assert_allclose(found.noise_variance, expected.noise_variance, rtol=5e-3)
        assert_array_equal(found.sources, expected.sources)


def test_rows_that_are_equally_good_are_chosen_by_their_importance():
    from lucidae.sparsity.whitening import rotation_to_rows

    rng = np.random.default_rng(0)
    centred = np.linalg.qr(np.eye(12) - 1 / 12)[0][:, :-1]  # as after an average reference
    importance, values = rng.uniform(size=12), rng.standard_normal(12)
    axes = centred @ rotation_to_rows(centred, importance).T
    assert np.abs(axes).max(axis=1).argmin() == importance.argmin()
    turn, order = np.linalg.qr(rng.standard_normal((11, 11)))[0], rng.permutation(12)
    turned = (centred @ turn)[order]
    others = turned @ rotation_to_rows(turned, 7.0 * importance[order]).T
    assert_allclose(np.sort(values[order] @ others), np.sort(values @ axes), atol=1e-12)


def restricted(forward, counts):
    """Return the forward of the first sources of each source space."""
    vertices = [
        space["vertno"][:count] for space, count in zip(forward["src"], counts, strict=True)
    ]
    stc = mne.SourceEstimate(np.ones((sum(counts), 1)), vertices, 0.0, 1.0)
    return mne.forward.restrict_forward_to_stc(forward, stc)


@pytest.mark.parametrize("counts", [(20, 20), (20, 0), (20, 1)])
def test_neighbour_orders_of_a_restricted_forward_are_refused(counts):
    data = simulated("surface", noise=0.3)
    data.forward = restricted(data.forward, counts)
    with pytest.raises(ValueError, match=r"no triangles between its sources.*radii in metres"):
        localised(data, patches=1)
    assert localised(data, patches=0.03).sources.size


def test_neighbour_orders_may_leave_out_sources_by_weights():
    data = simulated("surface", noise=0.3)
    weights = np.repeat([1.0, 0.0], 42)
    result = localised(data, patches=1, weights=weights)
    assert result.sources.size
    assert result.sources.max() < 42


def test_a_source_space_with_less_than_two_sources_has_no_patches():
    data = simulated("surface", noise=0.3)
    spaces = data.forward["src"].copy()
    expected = [part.tolist() for part in neighbourhoods(spaces[:1], 1)]
    for count in (0, 1):
        spaces[1] = restricted(data.forward, (20, count))["src"][1]
        assert [part.tolist() for part in neighbourhoods(spaces, 1)] == expected


@pytest.mark.parametrize(
    "setting", [{"posterior": "point"}, {"response_covariance": "learn"}, {"fit_intercept": True}]
)
def test_solver_refuses_arguments_that_it_does_not_use(setting):
    rng = np.random.default_rng(0)
    M, G = rng.standard_normal((10, 4)), rng.standard_normal((10, 6))
    (name,) = setting
    with pytest.raises(ValueError, match=rf"called with {name}, expected .* cv, random_state"):
        solver(M, G, 1, **setting)


def test_solver_takes_the_arguments_that_its_refusal_names():
    rng = np.random.default_rng(0)
    G = rng.standard_normal((30, 12))
    M = 5.0 * G[:, :1] @ rng.standard_normal((1, 8)) + rng.standard_normal((30, 8))
    settings = {
        "cv": 3, "random_state": 0, "max_iter": 500, "tol": 1e-7, "solver": "auto", "n_jobs": 1,
        "verbose": False,
    }  # fmt: skip
    assert tuple(settings) == SETTINGS
    assert_array_equal(np.flatnonzero(solver(M, G, 1, **settings)[1]), [0])


def test_solver_checks_debias_before_the_fit():
    with pytest.raises(ValueError, match="debias='yes' was given"):
        solver(None, None, debias="yes")


@pytest.mark.parametrize("count", [np.inf, np.nan, 0, -3])
def test_an_evoked_without_a_number_of_averages_is_refused(count):
    data = simulated(noise=0.3)
    data.evoked.nave = count
    with pytest.raises(ValueError, match=rf"evoked\.nave is {count}, expected a finite number"):
        localised(data)
    data.evoked.nave = 1
    expected = localised(data).amplitudes
    data.evoked.nave = count
    assert_array_equal(localised(data, nave=1).amplitudes, expected)


def test_the_difference_of_two_epochs_has_twice_their_noise():
    data = simulated(noise=0.3)
    other = simulated(noise=0.3, seed=1).evoked
    data.evoked = mne.combine_evoked([data.evoked, other], weights=[1, -1])
    assert data.evoked.nave == 0.5
    found, expected = localised(data), localised(data, nave=0.5)
    assert_array_equal(found.amplitudes, expected.amplitudes)


def test_a_noise_covariance_that_is_not_symmetric_is_refused():
    data = simulated("surface", "both", noise=0.3)
    data.cov = mne.Covariance(
        np.diag(data.cov["data"]), data.cov["names"], [], data.cov["projs"], 0
    )
    localised(data)
    data.cov["data"][0, 1] = 0.5 * data.cov["data"][0, 0]
    with pytest.raises(ValueError, match="noise_cov is not symmetric"):
        localised(data)
