"""Claims about selected sources: refitted evidence, rounding errors and values that are NaN."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize

from extras import require

mpmath, mne = require("mpmath"), require("mne")

from lucidae.mne.certificate import selection_claims
from lucidae.mne.selected_sources import SelectedSources, Span

THRESHOLDS = {1: 5.0, 2: 8.0}


def claims_of(selected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {claim.name: claim for claim in selection_claims(selected)}


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


def exact(selected):
    """Return the inverse of Σ, its logarithmic determinant and the matrices in 50 digits."""
    gain, data = (mpmath.matrix(x.tolist()) for x in (selected.gain, selected.responses))
    fields, prior = (mpmath.matrix(x.tolist()) for x in (selected.fields, selected.prior))
    sigma = fields * prior * fields.T + mpmath.mpf(selected.noise) * mpmath.eye(gain.rows)
    return gain, data, fields, prior, sigma**-1, mpmath.log(mpmath.det(sigma))


def part(matrix, rows, columns):
    return mpmath.matrix([[matrix[int(i), int(j)] for j in columns] for i in rows])


def exact_ratios(selected, columns):
    """Return the eigenvalues of S^{-½}QS^{-½} of a group in 50 digits."""
    gain, data, _, _, inverse, _ = exact(selected)
    group = part(gain, range(gain.rows), columns)
    loading = group.T * inverse * data
    lower = mpmath.cholesky(group.T * inverse * group) ** -1
    whole = lower * (loading * loading.T / data.cols) * lower.T
    return list(mpmath.eigsy(whole, eigvals_only=True))


def exact_distance(selected):
    """Return the distance to stationarity in 50 digits."""
    gain, data, _, prior, inverse, _ = exact(selected)
    found = [mpmath.mpf(0)]
    for here in selected.members.values():
        group = part(gain, range(gain.rows), selected.columns[here])
        loading = group.T * inverse * data
        difference = loading * loading.T / data.cols - group.T * inverse * group
        values = mpmath.eig(part(prior, here, here) * difference, left=False, right=False)
        found += [abs(value) for value in values]
        found.append(max(exact_ratios(selected, selected.columns[here])) - 1)
    return max(found)


def exact_energy(selected):
    _, data, _, _, inverse, logarithm = exact(selected)
    trace = sum((data.T * inverse * data)[i, i] for i in range(data.cols))
    return data.cols * logarithm + trace


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8, 1e11, 1e14])
def test_errors_are_bounds_in_comparison_with_fifty_digits(condition, rank):
    for seed in range(4):
        selected = problem(condition, rank, seed, n_selected=1)
        _, data, fields, prior, inverse, _ = exact(selected)
        mean = prior * fields.T * inverse * data
        selected = replace(selected, mean=np.array(mean.tolist(), dtype=float))
        found = claims_of(selected)
        squares = sum(data[i, j] ** 2 for i in range(data.rows) for j in range(data.cols))
        lost = (squares - exact_energy(selected)) / THRESHOLDS[2]
        left = []
        for group in (1, 2, 3):
            ratios = exact_ratios(selected, np.flatnonzero(selected.labels == group))
            left.append(sum(x - 1 - mpmath.log(x) for x in ratios if x > 1) * 5 / THRESHOLDS[2])
        truths = {
            "selected_stationarity": exact_distance(selected),
            "selected_mean": mpmath.mpf(0),
            "selected_evidence": lost,
            "left_out_evidence": max(left),
        }
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
    assert errors[1] < 1e-4
    assert errors[1] < 1e5 * errors[0]


def test_a_source_that_the_others_can_replace_has_little_evidence():
    rng = np.random.default_rng(0)
    gain = rng.standard_normal((20, 4))
    gain[:, 1] = gain[:, 0] + 0.01 * rng.standard_normal(20)
    data = np.outer(gain[:, 0], 3.0 * rng.standard_normal(30)) + rng.standard_normal((20, 30))
    columns, labels = np.arange(2), np.arange(4)
    prior = np.diag([1e-4, 9.0])
    selected = SelectedSources(
        gain, data, labels, columns, prior, np.zeros((2, 30)), 1.0, False, THRESHOLDS, 1e-6
    )
    frozen = selected.energy(np.array([True, False])) - selected.energy()
    assert frozen > 100.0 * THRESHOLDS[1]
    claim = claims_of(selected)["selected_evidence"]
    assert claim.holds is False
    assert claim.value < 1.0
    assert "after the other sources are fitted again" in claim.statement


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
    assert abs((whole - found) - (selected.energy() - least)) < 1e-4
    assert found <= whole


@pytest.mark.parametrize("broken", [{"noise": 1e-300}, {"prior": np.full((4, 4), np.nan)}])
def test_what_is_not_finite_is_undecided(broken):
    found = claims_of(replace(problem(1e3, 2, 0), **broken))
    for name in ("selected_stationarity", "selected_evidence", "left_out_evidence"):
        assert found[name].verdict == "undecided", name
    data = problem(1e3, 2, 0).responses.copy()
    data[0, 0] = np.nan
    for claim in claims_of(replace(problem(1e3, 2, 0), responses=data)).values():
        assert claim.verdict == "undecided", claim.name


def test_claims_about_evidence_do_not_apply_if_the_threshold_is_zero():
    found = claims_of(replace(problem(1e3, 2, 0), thresholds={1: 0.0, 2: 0.0}))
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
    nothing = np.zeros(0, dtype=int)
    selected = SelectedSources(
        gain, data, np.repeat([0, 1], 3), nothing, np.zeros((0, 0)), np.zeros((0, 30)), 1.0, False,
        {3: 10.0}, 1e-6,
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
