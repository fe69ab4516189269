"""Selection of significant sources, and the claims about those that `sparse_vae` returns.

The claims are compared with their definitions in 50 digits, and with searches by brute force.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from extras import require

mne, mpmath = require("mne"), require("mpmath")

from evoked_recordings import forward_of, localised, scattered_space, simulated, surface_space
from lucidae.mne import certificate as certificates
from lucidae.mne.certificate import SelectedSources, Span
from lucidae.mne.estimate import GroupEstimate, observable_basis
from lucidae.mne.inverse import neighbourhoods
from lucidae.sparsity.covariances import rotation_to_rows
from lucidae.sparsity.posterior import removal_costs

pytestmark = pytest.mark.filterwarnings("ignore:The model does not fit:UserWarning")

SELECTION = ("selected_stationarity", "selected_mean", "selected_evidence", "left_out_evidence")
KINDS = pytest.mark.parametrize("group_covariance", ["full", "spherical"])
THRESHOLDS = {1: 5.0, 2: 8.0}


def slowly(most, few):
    """Return seeds, of which those after the first `few` are only used in slow runs."""
    slow = (pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, most))
    return [*range(few), *slow]


# The claims, from matrices.


def claims_of(selected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {claim.name: claim for claim in certificates.selection_claims(selected)}


def problem(condition, rank, seed, n_selected=2):
    """Return sources whose covariance Σ has about the given condition number."""
    rng = np.random.default_rng(seed)
    gain, labels = rng.standard_normal((7, 8)), np.repeat(np.arange(4), 2)
    columns, prior = np.arange(2 * n_selected), np.zeros((2 * n_selected, 2 * n_selected))
    data = rng.standard_normal((7, 5))
    for start in range(0, columns.size, 2):
        here = slice(start, start + 2)
        root = np.sqrt(condition / 20.0) * rng.standard_normal((2, rank))
        prior[here, here] = root @ root.T
        data += gain[:, here] @ root @ rng.standard_normal((rank, 5))
    mean = np.zeros((columns.size, 5))
    return SelectedSources(
        gain, data, labels, columns, prior, mean, 1.0, True, dict(THRESHOLDS), 1e-6
    )


class Exact:
    """The matrices of selected sources in 50 digits."""

    def __init__(self, selected):
        self.selected = selected
        self.gain, self.data, self.fields, self.prior = (
            mpmath.matrix(x.tolist())
            for x in (selected.gain, selected.responses, selected.fields, selected.prior)
        )
        noise = mpmath.mpf(selected.noise) * mpmath.eye(self.gain.rows)
        sigma = self.fields * self.prior * self.fields.T + noise
        self.inverse, self.logarithm = sigma**-1, mpmath.log(mpmath.det(sigma))
        self.mean = self.prior * self.fields.T * self.inverse * self.data

    def energy(self):
        trace = sum((self.data.T * self.inverse * self.data)[i, i] for i in range(self.data.cols))
        return self.data.cols * self.logarithm + trace

    def difference(self, columns):
        """Return S = ΦᵀΣ⁻¹Φ and Q = ΦᵀΣ⁻¹MMᵀΣ⁻¹Φ/n of a group."""
        group = part(self.gain, range(self.gain.rows), columns)
        loading = group.T * self.inverse * self.data
        return group.T * self.inverse * group, loading * loading.T / self.data.cols

    def ratios(self, columns):
        """Return the eigenvalues of S^{-½}QS^{-½}."""
        metric, moment = self.difference(columns)
        lower = mpmath.cholesky(metric) ** -1
        return list(mpmath.eigsy(lower * moment * lower.T, eigvals_only=True))

    def distance(self):
        """Return the distance to stationarity."""
        found = [mpmath.mpf(0)]
        for here in self.selected.members.values():
            metric, moment = self.difference(self.selected.columns[here])
            matrix = part(self.prior, here, here) * (moment - metric)
            found += [abs(value) for value in mpmath.eig(matrix, left=False, right=False)]
            found.append(max(self.ratios(self.selected.columns[here])) - 1)
        return max(found)


def part(matrix, rows, columns):
    return mpmath.matrix([[matrix[int(i), int(j)] for j in columns] for i in rows])


@pytest.mark.covering
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8, 1e11, 1e14])
def test_errors_are_bounds_in_comparison_with_fifty_digits(condition, rank):
    for seed in range(2):
        selected = problem(condition, rank, seed, n_selected=1)
        with mpmath.workdps(50):
            exact = Exact(selected)
            mean = np.array(exact.mean.tolist(), dtype=float)
            squares = mpmath.mnorm(exact.data, "f") ** 2
            left = [
                sum(x - 1 - mpmath.log(x) for x in exact.ratios(columns) if x > 1)
                for columns in ([2, 3], [4, 5], [6, 7])
            ]
            truths = {
                "selected_stationarity": exact.distance(),
                "selected_mean": mpmath.mpf(0),
                "selected_evidence": (squares - exact.energy()) / THRESHOLDS[2],
                "left_out_evidence": max(left) * 5 / THRESHOLDS[2],
            }
        found = claims_of(replace(selected, mean=mean))
        for name, truth in truths.items():
            claim = found[name]
            if claim.value is None:  # not finite, which happens only if Γ is singular
                assert (claim.verdict, rank) == ("undecided", 1)
                assert condition > 1e11
            else:
                assert abs(claim.value - truth) <= claim.error + 1e-15 * abs(truth), name


def test_rounding_errors_grow_as_the_root_of_the_condition_number():
    errors = [
        claims_of(problem(condition, 2, 0))["selected_stationarity"].error
        for condition in (1e4, 1e12)
    ]
    assert errors[1] < min(1e-4, 1e5 * errors[0])


def test_a_source_that_the_others_can_replace_has_little_evidence():
    rng = np.random.default_rng(0)
    gain = rng.standard_normal((20, 4))
    gain[:, 1] = gain[:, 0] + 0.01 * rng.standard_normal(20)
    data = np.outer(gain[:, 0], 3.0 * rng.standard_normal(30)) + rng.standard_normal((20, 30))
    selected = SelectedSources(
        gain, data, np.arange(4), np.arange(2), np.diag([1e-4, 9.0]), np.zeros((2, 30)), 1.0,
        False, THRESHOLDS, 1e-6,
    )  # fmt: skip
    span = Span.of(selected)
    frozen = span.energy({0: selected.roots[0]})[0] - span.energy(selected.roots)[0]
    assert frozen > 100.0 * THRESHOLDS[1]
    claim = claims_of(selected)["selected_evidence"]
    assert claim.holds is False
    assert claim.value < 1.0
    assert "after the other sources are fitted again" in claim.statement


@pytest.mark.covering
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_the_refit_finds_the_minimum_that_a_naive_search_finds(full, rank):
    selected = replace(problem(30.0, rank, 3), full=full)
    if not full:
        selected = replace(selected, prior=np.diag([2.0, 2.0, 0.5, 0.5]))
    gain, data = selected.gain, selected.responses

    def naive(flat):
        root = np.diag(np.repeat(flat, 2)) if not full else np.zeros((4, 4))
        if full:
            root[:2, :2], root[2:, 2:] = flat[:4].reshape(2, 2), flat[4:].reshape(2, 2)
        sigma = gain[:, :4] @ root @ root.T @ gain[:, :4].T + np.eye(7)
        misfit = np.trace(data.T @ np.linalg.solve(sigma, data))
        return 5 * np.linalg.slogdet(sigma)[1] + misfit

    rng = np.random.default_rng(0)
    starts = [2.0 * rng.standard_normal(8 if full else 2) for _ in range(10)]
    least = min(scipy.optimize.minimize(naive, start, tol=1e-9).fun for start in starts)
    span = Span.of(selected)
    found, _, _ = span.refitted(selected.roots, full)
    whole, _ = span.energy(selected.roots)
    roots = selected.roots.values()
    flat = np.concatenate([root.ravel() if full else [root[0, 0]] for root in roots])
    assert abs((whole - found) - (naive(flat) - least)) < 1e-4
    assert found <= whole


def test_what_is_not_finite_is_undecided():
    sound = problem(1e3, 2, 0)
    data = sound.responses.copy()
    data[0, 0] = np.nan
    broken = [{"noise": 1e-300}, {"prior": np.full((4, 4), np.nan)}, {"responses": data}]
    for change in broken:
        found = claims_of(replace(sound, **change))
        for name in SELECTION:
            if name != "selected_mean" or "responses" in change:
                assert found[name].verdict == "undecided", name
    found = claims_of(replace(sound, thresholds={1: 0.0, 2: 0.0}))
    for name in ("selected_evidence", "left_out_evidence"):
        assert found[name].verdict == "does not apply"
        assert "threshold is zero" in found[name].advice


@pytest.mark.parametrize("scale", [1.0, 1e-2, 3e-6, 1e-9, 0.0])
@pytest.mark.parametrize("amplitude", [0.3, 0.5, 2.0])
def test_the_evidence_of_one_shared_variance_has_no_lower_point_elsewhere(scale, amplitude):
    # One direction of the group has almost no field: its best variance is far from the others'.
    rng = np.random.default_rng(3)
    gain = rng.standard_normal((12, 6)) * [1.0, 1.0, scale, 1.0, 1.0, 1.0]
    data = amplitude * gain[:, :3] @ rng.standard_normal((3, 30)) + rng.standard_normal((12, 30))
    selected = SelectedSources(
        gain, data, np.repeat([0, 1], 3), np.zeros(0, dtype=int), np.zeros((0, 0)),
        np.zeros((0, 30)), 1.0, False, {3: 10.0}, 1e-6,
    )  # fmt: skip
    found = claims_of(selected)["left_out_evidence"].value
    changes = [0.0]
    variances = np.exp(np.linspace(-25.0, 40.0, 6501))[:, None]
    for group in (gain[:, :3], gain[:, 3:]):
        powers, axes = np.linalg.eigh(group @ group.T)
        powers = variances * np.where(powers > 1e-14, powers, 0.0)
        explained = ((axes.T @ data) ** 2).sum(axis=1)
        energies = 30 * np.log1p(powers) - explained * powers / (1.0 + powers)
        changes.append(energies.sum(axis=1).min())
    assert abs(found + min(changes) / 10.0) < 1e-3


# The claims about what `sparse_vae` returns.


def estimate_of(group_covariance="full", **settings):
    data = simulated("scattered", "mag", sources=(5, 21, 30), n_times=20, noise=0.7)
    return localised(data, group_covariance=group_covariance, **settings).estimate


def failing(estimate):
    """Return the claims about the returned sources that do not hold."""
    return {name for name in SELECTION if not estimate.certificate[name].holds}


@KINDS
def test_the_claims_about_the_returned_sources_hold_and_can_fail(group_covariance):
    estimate = estimate_of(group_covariance)
    assert estimate.groups.size >= 2
    assert not failing(estimate)
    assert "selected_stationarity" in failing(replace(estimate, prior=1.01 * estimate.prior))
    wrong = replace(estimate)
    wrong.__dict__["mean"] = 1.0001 * estimate.mean
    assert failing(wrong) == {"selected_mean"}
    group = estimate.groups[0]
    first = estimate.labels[estimate.columns] == group
    without = estimate._restricted(estimate.columns[~first])
    assert failing(without) == {"left_out_evidence"}
    assert f"Group {group} " in without.certificate["left_out_evidence"].advice
    data = simulated("scattered", "mag", n_times=20)
    every = localised(data, group_covariance=group_covariance, significance=None).estimate
    some = localised(data, group_covariance=group_covariance).estimate
    assert every.groups.size > some.groups.size
    assert every.certificate["selected_evidence"].verdict == "does not apply"
    assert "selected_evidence" in failing(replace(every, level=0.05))


def twice_log_likelihood(estimate, groups):
    """Return twice the log-likelihood of some groups, up to a constant, after a fit of these."""
    owners = estimate.labels[estimate.columns]
    part = estimate._restricted(estimate.columns[np.isin(owners, groups)])
    covariance = part.gain[:, part.columns] @ part.prior @ part.gain[:, part.columns].T
    covariance += part.noise_variance * np.eye(len(part.gain))
    fit = np.sum(part.responses * np.linalg.solve(covariance, part.responses))
    return -part.responses.shape[1] * np.linalg.slogdet(covariance)[1] - fit


def thresholds_of(estimate):
    """Return the evidence that each returned group must exceed."""
    sizes = np.unique(estimate.labels[estimate.columns], return_counts=True)[1]
    return np.array([estimate.thresholds[int(size)] for size in sizes])


def evidence_of(estimate):
    """Return what each returned group adds after a refit of the others, over its threshold."""
    whole = twice_log_likelihood(estimate, estimate.groups)
    others = [np.setdiff1d(estimate.groups, [group]) for group in estimate.groups]
    lost = [whole - twice_log_likelihood(estimate, rest) for rest in others]
    return np.array(lost) / thresholds_of(estimate)


def test_evidence_is_twice_the_log_likelihood_that_a_source_adds_after_a_refit():
    estimate = estimate_of()
    found = estimate.certificate["selected_evidence"].value
    assert_allclose(found, evidence_of(estimate).min(), rtol=1e-6)


def test_returned_sources_are_accurate_if_no_source_is_removed():
    data = simulated("scattered", "mag", sources=(5, 21), n_times=20, noise=1e-3)
    claim = localised(data, tol=1e-8).certificate["selected_stationarity"]
    assert claim.holds
    assert claim.value < 1e-7


# Removal of groups that are not significant.


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


def fitted(gain, data, labels, **settings):
    settings = {"noise_variance": 1.0, "significance": 0.05, **settings}
    estimate = GroupEstimate.fit(gain, data, labels, group_covariance="full", **settings)
    return estimate.significant()


def test_a_significant_source_is_found_whatever_the_threshold_is():
    # A single source with a large level: its threshold is small, and so must be what is missed.
    for seed in range(8):
        rng = np.random.default_rng(seed)
        gain, data = rng.standard_normal((6, 2)), 1.03 * rng.standard_normal((6, 100))
        found = fitted(gain, data, np.zeros(2, dtype=int), significance=0.8)
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


@pytest.mark.parametrize("seed", [41, *slowly(20, 3)])
def test_groups_that_must_move_together_show_that_a_source_can_be_replaced(seed):
    # The best moves of single groups gain little here, and those of one after the other much.
    claim = fitted(*mixed_groups(seed)).certificate["selected_evidence"]
    assert claim.verdict != "fails", claim.value


@pytest.mark.parametrize("noise", [1e-6, 1e-12])
def test_a_tiny_noise_variance_is_no_error(noise):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), rng.integers(1, 4, 8))
    gain = rng.standard_normal((10, labels.size))
    data = gain[:, :4] @ rng.standard_normal((4, 5)) + 1e-2 * rng.standard_normal((10, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fitted(gain, data, labels, noise_variance=noise)
    assert np.isfinite(found.prior).all()
    assert np.isfinite(found.mean).all()


def with_turning_sources(seed, n_times=20):
    """Return a recording of two sources whose components have independent time courses."""
    data = simulated("scattered", "mag", n_times=n_times, seed=seed)
    rng, columns = np.random.default_rng(seed), np.r_[15:18, 63:66]
    signal = data.field[:, columns] @ (10e-9 * rng.standard_normal((6, n_times)))
    noise = np.sqrt(data.cov.data)[:, None] * rng.standard_normal((len(data.field), n_times))
    data.evoked = mne.EvokedArray(signal + noise, data.evoked.info, verbose=False)
    return data


@KINDS
@pytest.mark.parametrize("seed", slowly(20, 3))
def test_no_returned_source_can_be_replaced_by_the_others(group_covariance, seed):
    estimate = localised(with_turning_sources(seed), group_covariance=group_covariance).estimate
    assert estimate.groups.size < 2 or evidence_of(estimate).min() > 0.99


def test_false_sources_beside_true_ones_are_as_rare_as_the_level_says():
    results = [set(localised(with_turning_sources(seed)).sources) for seed in range(40)]
    assert sum({5, 21} <= sources for sources in results) >= 20
    assert sum({5, 21} < sources for sources in results) <= 4


def test_rows_that_are_equally_good_are_chosen_by_their_importance():
    rng = np.random.default_rng(0)
    centred = np.linalg.qr(np.eye(12) - 1 / 12)[0][:, :-1]  # as after an average reference
    importance, values = rng.uniform(size=12), rng.standard_normal(12)
    axes = centred @ rotation_to_rows(centred, importance).T
    assert np.abs(axes).max(axis=1).argmin() == importance.argmin()
    turn, order = np.linalg.qr(rng.standard_normal((11, 11)))[0], rng.permutation(12)
    turned = (centred @ turn)[order]
    others = turned @ rotation_to_rows(turned, 7.0 * importance[order]).T
    assert_allclose(np.sort(values[order] @ others), np.sort(values @ axes), atol=1e-12)


def test_basis_keeps_the_fields_of_all_directions_that_have_one():
    rng = np.random.default_rng(0)
    gain = rng.standard_normal((10, 9))
    gain[:, 5] = gain[:, 3] - 2 * gain[:, 4]
    gain[:, 6:] = 0.0
    labels, basis = observable_basis(gain, np.repeat([4, 7, 9], 3), 1e-6)
    assert_array_equal(labels, [4, 4, 4, 7, 7])
    assert_allclose((basis.T @ basis).toarray(), np.eye(5), atol=1e-12)
    assert_allclose(gain @ basis @ basis.T, gain, atol=1e-12)
    assert_array_equal(basis.toarray()[:3, :3], np.eye(3))


def test_patches_are_neighbourhoods_on_surfaces_and_grids():
    src = surface_space()
    tris = src[0]["use_tris"]
    expected = {tuple(np.unique(tris[(tris == vertex).any(axis=1)])) for vertex in range(42)}
    found = {tuple(patch) for patch in neighbourhoods(src, 1)}
    assert expected <= found
    assert {tuple(np.array(patch) + 42) for patch in expected} == found - expected
    for patch in neighbourhoods(src, [2]):
        assert np.unique(patch // 42).size == 1  # never over both hemispheres
    grid = forward_of("grid")["src"]
    for patch in neighbourhoods(grid, 1):
        places = grid[0]["rr"][grid[0]["vertno"][patch]]
        middle = np.argmin(np.linalg.norm(places - places.mean(axis=0), axis=1))
        assert np.linalg.norm(places - places[middle], axis=1).max() < 0.0251 * 2**0.5
    assert len(neighbourhoods(grid, [1, 0.0251])) == len(neighbourhoods(grid, [1]))
    with pytest.raises(ValueError, match="neither on a surface nor on a grid"):
        neighbourhoods(scattered_space(), 1)
    spaces, whole = surface_space(), forward_of("surface")
    expected = [part.tolist() for part in neighbourhoods(spaces[:1], 1)]
    for count in (0, 1):  # a source space with less than two sources has no patches
        vertices = [np.arange(20), np.arange(count)]
        stc = mne.SourceEstimate(np.ones((20 + count, 1)), vertices, 0.0, 1.0)
        spaces[1] = mne.forward.restrict_forward_to_stc(whole, stc)["src"][1]
        assert [part.tolist() for part in neighbourhoods(spaces, 1)] == expected
