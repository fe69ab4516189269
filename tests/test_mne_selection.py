"""Claims about the sources that `sparse_vae` returns, and the sources along its noise path."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from extras import require

mne = require("mne")

from evoked_recordings import localised, simulated
from lucidae.mne import sparse_vae

SELECTION = ("selected_stationarity", "selected_mean", "selected_evidence", "left_out_evidence")


def estimate_of(group_covariance="full", **settings):
    data = simulated("scattered", "mag", sources=(5, 21, 30), n_times=20, noise=0.7, **settings)
    return localised(data, group_covariance=group_covariance).estimate


def failing(estimate):
    """Return the claims about the returned sources that do not hold."""
    return {name for name in SELECTION if not estimate.certificate[name].holds}


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
def test_the_claims_about_the_returned_sources_hold_and_can_fail(group_covariance):
    estimate = estimate_of(group_covariance)
    assert estimate.groups.size >= 2
    assert not failing(estimate)
    assert "selected_stationarity" in failing(replace(estimate, prior=1.01 * estimate.prior))
    wrong = replace(estimate)
    wrong.__dict__["mean"] = 1.0001 * estimate.mean
    assert failing(wrong) == {"selected_mean"}
    first = estimate.labels[estimate.columns] == estimate.groups[0]
    without = estimate._restricted(estimate.columns[~first])
    assert failing(without) == {"left_out_evidence"}
    group = estimate.groups[0]
    assert f"Group {group} " in without.certificate["left_out_evidence"].advice


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
def test_a_source_that_is_not_significant_fails_the_claim_on_evidence(group_covariance):
    data = simulated("scattered", "mag", n_times=20)
    every = localised(data, group_covariance=group_covariance, significance=None).estimate
    some = localised(data, group_covariance=group_covariance).estimate
    assert every.groups.size > some.groups.size
    assert every.certificate["selected_evidence"].verdict == "does not apply"
    judged = replace(every, level=0.05)
    assert "selected_evidence" in failing(judged)


def test_evidence_is_twice_the_log_likelihood_that_a_source_adds():
    estimate = estimate_of()
    gain, data, noise = estimate.gain, estimate.responses, estimate.noise_variance

    def twice(columns, prior):
        sigma = gain[:, columns] @ prior @ gain[:, columns].T + noise * np.eye(len(gain))
        misfit = np.trace(data.T @ np.linalg.inv(sigma) @ data)
        return -misfit - data.shape[1] * np.linalg.slogdet(sigma)[1]

    whole, found = twice(estimate.columns, estimate.prior), []
    owners = estimate.labels[estimate.columns]
    for threshold, group in zip(estimate._thresholds(0.05), estimate.groups, strict=True):
        kept = owners != group
        rest = twice(estimate.columns[kept], estimate.prior[np.ix_(kept, kept)])
        found.append((whole - rest) / threshold)
    assert_allclose(estimate.certificate["selected_evidence"].value, min(found), rtol=1e-8)


def test_the_certificate_has_the_claims_of_the_fit_too():
    result = localised(simulated("surface", "mag", noise=0.5))
    names = [claim.name for claim in result.certificate]
    assert names[:4] == list(SELECTION)
    assert names[4:] == [claim.name for claim in result.model.certificate_]


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
@pytest.mark.parametrize("seed", range(3))
def test_the_path_has_the_sources_of_a_fit_at_the_same_noise_variance(group_covariance, seed):
    data = simulated("scattered", "mag", sources=(5, 21, 30, 31), n_times=20, seed=seed)
    result = localised(data, group_covariance=group_covariance)
    path = result.noise_path([4.0, 1.0])
    louder = localised(data, group_covariance=group_covariance, noise_variance=4.0)
    for found, fit in zip(result.path_sources(path), (louder, result), strict=True):
        assert_array_equal(found, fit.sources)


@pytest.mark.parametrize("space", ["scattered", "surface", "mixed"])
def test_noise_alone_gives_a_vector_estimate_without_vertices(space):
    data = simulated(space, "eeg", sources=(), n_times=4)
    with pytest.warns(UserWarning, match="No source was found"):
        stc = sparse_vae(data.evoked, data.forward, data.cov, pick_ori="vector", verbose=False)
    assert "Vector" in type(stc).__name__
    assert stc.data.shape == (0, 3, 4)
    assert not any(part.size for part in stc.vertices)
    assert_allclose(stc.times, data.evoked.times)
