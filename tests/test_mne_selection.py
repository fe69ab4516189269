"""Claims about the sources that `sparse_vae` returns, and the sources along its noise path."""

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_info, threadpool_limits

from extras import require

mne = require("mne")

from evoked_recordings import localised, simulated
from lucidae import SparseVAE
from lucidae.mne import estimate as estimate_module
from lucidae.mne import sparse_vae
from lucidae.mne.estimate import GroupEstimate
from lucidae.mne.prior_covariances import without_weakest
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.support import covariance_threshold, removal_costs

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


def test_evidence_is_twice_the_log_likelihood_that_a_source_adds_after_a_refit():
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
        rest = estimate._restricted(estimate.columns[kept])
        found.append((whole - twice(rest.columns, rest.prior)) / threshold)
    assert_allclose(estimate.certificate["selected_evidence"].value, min(found), rtol=1e-6)


def test_the_certificate_has_the_claims_of_the_fit_too():
    result = localised(simulated("surface", "mag", noise=0.5))
    names = [claim.name for claim in result.certificate]
    assert names[:4] == list(SELECTION)
    assert names[4:-1] == [claim.name for claim in result.model.certificate_]
    assert names[-1] == "noise_covariance"


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


@pytest.mark.parametrize("settings", [{}, {"group_covariance": "spherical"}, {"loose": 0.0}])
def test_the_fit_to_all_sources_is_completed_when_it_is_read(settings, monkeypatch):
    fits = []
    original = SparseVAE._fit_on
    monkeypatch.setattr(
        SparseVAE, "_fit_on", lambda *args, **more: fits.append(1) or original(*args, **more)
    )
    space = "surface" if settings.get("loose") == 0.0 else "scattered"
    data = simulated(space, "mag", n_times=20, fixed=space == "surface")
    result = localised(data, **settings)
    assert result.sources.size
    assert result.doubtful_sources.size <= result.sources.size
    assert not fits
    estimate = result.estimate
    assert result.model is estimate.model
    assert fits == [1]
    # It is the fit of the estimator to the same data, up to the tolerance.
    labels = None if estimate.template.groups is None else estimate.labels
    alone = SparseVAE(
        noise_variance=1.0, groups=labels, fit_intercept=False,
        group_covariance=estimate.template.group_covariance,
    ).fit(estimate.gain, estimate.responses)  # fmt: skip
    assert_allclose(result.model.energy_, alone.energy_, rtol=1e-9)
    assert_allclose(result.model.relevance_, alone.relevance_, rtol=1e-3, atol=1e-4)
    assert result.model.certificate_["stationarity"].holds


def test_returned_sources_are_accurate_if_no_source_is_removed():
    data = simulated("scattered", "mag", sources=(5, 21), n_times=20, noise=1e-3)
    estimate = localised(data, tol=1e-8).estimate
    assert estimate.certificate["selected_stationarity"].holds
    assert estimate.certificate["selected_stationarity"].value < 1e-7


def test_results_can_be_pickled_before_and_after_the_certificate_is_read():
    result = localised(simulated("scattered", "mag"))
    copied = pickle.loads(pickle.dumps(result))
    assert_array_equal(copied.sources, result.sources)
    assert copied.certificate.holds == result.certificate.holds


def test_removing_groups_one_by_one_costs_what_brute_force_says():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3):
        root = rng.standard_normal((6, size, size + 1))
        norms = np.linalg.norm(root, axis=(1, 2), keepdims=True)
        left = np.eye(size) - 0.9 * root @ root.mT / norms**2
        means = rng.standard_normal((6, size, 4))
        cost = removal_costs(left, means @ means.mT)
        for one, mean, found in zip(left, means, cost, strict=True):
            expected = np.linalg.slogdet(one)[1] + np.trace(mean.T @ np.linalg.solve(one, mean))
            assert_allclose(found, expected)
        left[2] = -left[2]
        assert removal_costs(left, means @ means.mT)[2] == np.inf


def threads_of_blas():
    """Return the largest number of threads of a BLAS library that is loaded."""
    return max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


def test_what_is_computed_later_uses_one_thread_of_blas(monkeypatch):
    threads = []

    def seen(original):
        def function(*parts, **settings):
            threads.append(threads_of_blas())
            return original(*parts, **settings)

        return function

    result = localised(simulated("scattered", "mag", n_times=20))
    for name in ("with_selection", "fit_prior", "noise_path", "_fitted"):
        monkeypatch.setattr(estimate_module, name, seen(getattr(estimate_module, name)))
    with threadpool_limits(2):
        assert result.certificate.holds
        assert result.doubtful_sources.size <= result.sources.size
        result.path_sources(result.noise_path([4.0, 1.0]))
        before = threads_of_blas()
    assert len(threads) >= 4
    assert set(threads) == {1}
    assert before == 2


def without_a_step(estimate, numbers):
    """Return what is left of the latents if groups have no prior variance, from the definition."""
    owners = np.unique(estimate.labels[estimate.columns], return_inverse=True)[1]
    kept = ~np.isin(owners, numbers)
    fields = estimate.gain[:, estimate.columns] @ estimate._roots[0]
    fields = fields[:, kept]
    noise, data = estimate.noise_variance, estimate.responses
    left = np.linalg.inv(np.eye(kept.sum()) + fields.T @ fields / noise)
    mean = left @ fields.T @ data / noise
    return left, mean @ mean.T / data.shape[1]


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
def test_groups_that_are_removed_at_once_leave_what_the_definition_says(group_covariance):
    data = simulated("scattered", "mag", sources=(5, 21, 30), n_times=20, seed=3)
    every = localised(data, group_covariance=group_covariance, significance=None).estimate
    left, moment = every._latent_moments()
    groups = Groups.of(every.labels[every.columns], every.columns.size)
    evidence = np.zeros(groups.count)
    for numbers, members in groups.by_size():
        place = (members[:, :, None], members[:, None, :])
        evidence[numbers] = removal_costs(left[place], moment[place])
    allowed = np.full(groups.count, 0.5)
    found, moments, sizes = without_weakest(left, moment, groups.by_size(), evidence, allowed)
    remaining = np.concatenate([numbers for numbers, _ in sizes])
    gone = np.setdiff1d(np.arange(groups.count), remaining)
    assert gone.size >= 2
    assert evidence[gone].max() <= evidence[remaining].min()
    order = np.sort(np.concatenate([members.ravel() for _, members in sizes]))
    assert_array_equal(order, np.arange(len(found)))
    # The order of the columns is another one, given by `sizes`.
    columns = np.concatenate(
        [np.ravel(m[n == number]) for number in np.sort(remaining) for n, m in sizes]
    )
    expected = without_a_step(every, gone)
    assert_allclose(found[np.ix_(columns, columns)], expected[0], atol=1e-10)
    assert_allclose(moments[np.ix_(columns, columns)], expected[1], atol=1e-8)


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
def test_the_same_sources_remain_if_groups_are_removed_one_at_a_time(group_covariance, monkeypatch):
    several = []
    original = estimate_module.without_weakest
    monkeypatch.setattr(
        estimate_module,
        "without_weakest",
        lambda *parts: several.append(len(parts[0])) or original(*parts),
    )
    for seed in range(6):
        data = simulated("scattered", "mag", sources=(5, 21, 30), n_times=20, seed=seed)
        every = localised(data, group_covariance=group_covariance, significance=None).estimate
        at_once = every._significant(0.05)
        with monkeypatch.context() as patch:
            patch.setattr(estimate_module, "SEVERAL", 10**9)
            assert_array_equal(at_once, every._significant(0.05))
    assert several


@pytest.mark.parametrize(
    ("n_times", "significance", "distance"),
    [(10, 0.05, 0.15), (50, 0.05, None), (300, 0.05, None), (20, 0.9, None), (20, 1.0, None)],
)
def test_the_fit_that_sources_are_selected_from_misses_little_evidence(
    n_times, significance, distance, monkeypatch
):
    accuracies = []
    original = estimate_module.fit_prior
    monkeypatch.setattr(
        estimate_module, "fit_prior", lambda *a: accuracies.append(a[5]) or original(*a)
    )
    estimate = localised(
        simulated("scattered", "mag", n_times=n_times), significance=significance
    ).estimate
    (size,) = set(np.unique(estimate.labels, return_counts=True)[1])
    threshold = covariance_threshold(significance, np.unique(estimate.labels).size, int(size))
    expected = min(0.15, (2.0 * estimate_module.MISSED * threshold / n_times) ** 0.5)
    assert_allclose(accuracies[0], max(1e-6, expected))
    assert distance is None or accuracies[0] == distance
    assert accuracies[-1] == 1e-6
    accuracies.clear()
    localised(simulated("scattered", "mag", n_times=n_times), significance=None)
    assert accuracies == [1e-6]


def test_a_significant_source_is_found_whatever_the_threshold_is():
    # A single source with a large level: its threshold is small, and so must be what is missed.
    labels, settings = np.zeros(2, dtype=int), {"noise_variance": 1.0, "group_covariance": "full"}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gain, data = rng.standard_normal((6, 2)), 1.03 * rng.standard_normal((6, 100))
        found = GroupEstimate.fit(gain, data, labels, significance=0.8, **settings)
        claim = found.certificate["left_out_evidence"]
        assert claim.holds, (seed, claim.value)


def mixed_groups(seed):
    """Return gain, data and labels of a small problem whose groups have 1 to 4 columns."""
    rng = np.random.default_rng(seed)
    rows, sizes = int(rng.integers(2, 15)), rng.integers(1, 5, size=int(rng.integers(1, 15)))
    n = int(rng.choice([1, 4, 70]))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    gain = rng.standard_normal((rows, labels.size))
    used = rng.random((labels.size, 1)) < 0.3
    data = 3.0 * gain @ (rng.standard_normal((labels.size, n)) * used)
    return gain, data + rng.standard_normal((rows, n)), labels


def test_groups_that_must_move_together_show_that_a_source_can_be_replaced():
    # The best moves of single groups gain little here, and those of one after the other much.
    for seed in (41, *range(20)):
        found = GroupEstimate.fit(
            *mixed_groups(seed), noise_variance=1.0, group_covariance="full", significance=0.05
        )
        claim = found.certificate["selected_evidence"]
        assert claim.verdict != "fails", (seed, claim.value)


def test_evidence_near_its_threshold_is_judged_by_an_accurate_refit(monkeypatch):
    data = simulated("scattered", "mag", sources=(5, 21, 30), n_times=20, seed=3)
    every = localised(data, significance=None).estimate
    # An inaccurate refit leaves all groups slightly above their thresholds.
    monkeypatch.setattr(estimate_module, "loss_without", lambda *parts: 1.1 * parts[4])
    kept = every._without_replaceable(0.05)
    (gone,) = np.setdiff1d(every.groups, every.labels[kept])
    others = np.setdiff1d(every.groups, [gone])
    lost = twice_log_likelihood_of(every, every.groups) - twice_log_likelihood_of(every, others)
    assert lost < every._thresholds(0.05)[every.groups == gone]
    monkeypatch.setattr(estimate_module, "NEARLY", 1.0)
    assert_array_equal(every._without_replaceable(0.05), every.columns)


@pytest.mark.parametrize("noise", [1e-6, 1e-9, 1e-12])
def test_a_tiny_noise_variance_is_no_error(noise):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        labels = np.repeat(np.arange(8), rng.integers(1, 4, 8))
        gain = rng.standard_normal((10, labels.size))
        data = gain[:, :4] @ rng.standard_normal((4, 5)) + 1e-2 * rng.standard_normal((10, 5))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = GroupEstimate.fit(
                gain, data, labels, noise_variance=noise, group_covariance="full",
                significance=0.05,
            )  # fmt: skip
        assert np.isfinite(found.prior).all()
        assert np.isfinite(found.mean).all()


def with_estimated_covariance(n_samples, seed=0):
    """Return a recording of one source whose covariance is estimated from samples of noise."""
    data = simulated("scattered", "mag", sources=(5,), n_times=30, noise=1.0, seed=seed)
    spread = np.sqrt(data.cov.data)
    noise = spread[:, None] * np.random.default_rng(seed).standard_normal((spread.size, n_samples))
    estimate = noise @ noise.T / n_samples
    data.cov = mne.Covariance(estimate, data.cov.ch_names, [], [], n_samples, verbose=False)
    return data


@pytest.mark.parametrize("samples_per_sensor", [1.5, 2])
def test_a_covariance_of_few_samples_is_named_and_the_advised_variance_helps(samples_per_sensor):
    spurious, advised = 0, 0
    for seed in range(4):
        data = with_estimated_covariance(int(102 * samples_per_sensor), seed)
        with pytest.warns(UserWarning, match="noise_cov was estimated from") as caught:
            found = localised(data)
        largest = found.problem.largest_noise
        advice = f"noise_variance={largest:.2g}, or " if largest < 20 else "Give a covariance"
        assert advice in str(caught[0].message)
        safe = localised(data, noise_variance=largest)  # without a warning
        assert found.certificate["noise_covariance"].holds is False
        assert safe.certificate["noise_covariance"].holds is True
        assert 5 in found.sources
        assert 5 in safe.sources
        spurious += found.sources.size - 1
        advised += safe.sources.size - 1
    assert spurious > advised
    assert advised <= 1


def test_the_largest_variance_of_whitened_noise_is_that_of_a_sample_covariance():
    # Whiten N(0, I) by the covariance of N samples: the largest variance is 1/λ for its smallest
    # eigenvalue λ.
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((1200, 300))
    smallest = np.linalg.eigvalsh(samples.T @ samples / 1200)[0]
    problem = replace(localised(simulated()).problem, whitener=np.eye(300), noise_samples=1200)
    assert_allclose(problem.largest_noise, 1.0 / smallest, rtol=0.1)
    assert replace(problem, noise_samples=300).largest_noise == np.inf
    assert replace(problem, noise_samples=None).largest_noise == 1.0


def test_no_warning_for_covariances_that_are_regularised_diagonal_or_of_many_samples():
    data = with_estimated_covariance(300)
    few = data.cov
    shrunk, many, diagonal = few.copy(), few.copy(), few.copy().as_diag()
    shrunk["method"], many["nfree"] = "shrunk", 10**5
    for data.cov, holds in ((shrunk, None), (many, True), (diagonal, None)):
        assert localised(data).certificate["noise_covariance"].holds is holds
    data.cov = few
    with pytest.warns(UserWarning, match="instead of 1 in some directions"):
        localised(data)
    with pytest.raises(ValueError, match="noise_variance"):
        localised(data, noise_variance=None)


def twice_log_likelihood_of(estimate, groups):
    """Return twice the log-likelihood of some groups, up to a constant, after a fit of these."""
    part = estimate._restricted(
        estimate.columns[np.isin(estimate.labels[estimate.columns], groups)]
    )
    covariance = part.gain[:, part.columns] @ part.prior @ part.gain[:, part.columns].T
    covariance += part.noise_variance * np.eye(len(part.gain))
    fit = np.sum(part.responses * np.linalg.solve(covariance, part.responses))
    return -part.responses.shape[1] * np.linalg.slogdet(covariance)[1] - fit


def with_turning_sources(seed, amplitude, n_times=20, sources=(5, 21)):
    """Return a recording of sources whose three components have independent time courses."""
    data = simulated("scattered", "mag", sources=sources, n_times=n_times, seed=seed)
    rng, field = np.random.default_rng(seed), data.field
    columns = np.concatenate([3 * source + np.arange(3) for source in sources])
    signal = field[:, columns] @ (amplitude * rng.standard_normal((columns.size, n_times)))
    noise = np.sqrt(data.cov.data)[:, None] * rng.standard_normal((len(field), n_times))
    data.evoked = mne.EvokedArray(signal + noise, data.evoked.info, verbose=False)
    return data


@pytest.mark.parametrize("group_covariance", ["full", "spherical"])
def test_no_returned_source_can_be_replaced_by_the_others(group_covariance):
    for seed in range(20):
        data = with_turning_sources(seed, 10e-9)
        estimate = localised(data, group_covariance=group_covariance).estimate
        if estimate.groups.size < 2:
            continue
        thresholds = estimate._thresholds(0.05)
        whole = twice_log_likelihood_of(estimate, estimate.groups)
        for number, group in enumerate(estimate.groups):
            others = np.setdiff1d(estimate.groups, [group])
            lost = whole - twice_log_likelihood_of(estimate, others)
            assert lost > 0.99 * thresholds[number]


def test_false_sources_beside_true_ones_are_as_rare_as_the_level_says():
    results = [set(localised(with_turning_sources(seed, 10e-9)).sources) for seed in range(40)]
    assert sum({5, 21} <= sources for sources in results) >= 20
    assert sum({5, 21} < sources for sources in results) <= 4
