"""Recovery of sparse codes and active dimensions, against their definitions by sets and loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from lucidae import metrics

SEEDS = st.integers(0, 2**32 - 1)
RNG = np.random.default_rng


def recovery_by_sets(coef, truth):
    """Return the share of the true columns among the r largest, for norms without ties."""
    lengths, true = np.linalg.norm(coef, axis=0), np.flatnonzero(np.any(truth, axis=0))
    largest = set(np.argsort(-lengths)[: len(true)])
    return len(largest & set(true)) / len(true)


@given(SEEDS, st.integers(1, 9), st.integers(1, 4))
def test_support_recovery_counts_true_columns_among_the_largest(seed, r, n):
    rng = RNG(seed)
    truth = np.zeros((n, 9))
    truth[:, rng.permutation(9)[:r]] = rng.standard_normal((n, r))
    coef = truth + rng.standard_normal((n, 9))
    assert_allclose(metrics.support_recovery(coef, truth), recovery_by_sets(coef, truth))
    assert metrics.support_recovery(truth, truth) == 1.0


def test_support_recovery_of_a_stack_with_different_supports(xp):
    truth = np.array([[[1.0, 0, 0, 0]], [[1, 1, 0, 0]], [[1, 1, 1, 1]], [[0, 0, 0, 0]]])
    coef = np.array([[[3.0, 2, 1, 0]], [[3, 0, 1, 0]], [[1, 2, 3, 0]], [[0, 0, 0, 0]]])
    values = metrics.support_recovery(xp.asarray(coef), xp.asarray(truth))
    assert_allclose(np.asarray(values), [1.0, 0.5, 0.75, 1.0])


@pytest.mark.parametrize(
    ("coef", "expected"),
    [
        ([1.0, 1.0, 1.0], 0.0),
        ([0.0, 0.0, 0.0], 0.0),
        ([2.0, 1.0, 1.0], 0.5),
        ([2.0, 2.0, 1.0], 1.0),
    ],
)
def test_ties_at_the_cut_and_zeros_are_not_found(coef, expected):
    assert metrics.support_recovery(coef, [1.0, 1.0, 0.0]) == expected


def test_nothing_to_find_is_found_by_nothing():
    assert metrics.support_recovery([0.0, 0.0], [0.0, 0.0]) == 1.0
    assert metrics.support_recovery([0.0, 0.1], [0.0, 0.0]) == 0.0
    for criterion in ("frobenius", "rows"):
        assert metrics.exact_recovery([0.0, 0.0], [0.0, 0.0], criterion=criterion) is True
        assert metrics.exact_recovery([0.0, 1e-9], [0.0, 0.0], criterion=criterion) is False


@given(SEEDS, st.sampled_from([1e-5, 0.9e-3, 1.1e-3, 1.0]))
def test_exact_recovery_by_both_criteria(seed, error):
    rng = RNG(seed)
    truth = rng.standard_normal((3, 6)) * np.array([1, 0, 100, 0, 0.01, 1])
    noise = rng.standard_normal(truth.shape)
    whole = truth + noise * error * np.linalg.norm(truth) / np.linalg.norm(noise)
    assert metrics.exact_recovery(whole, truth) is (error < 1e-3)
    own = truth + noise * error * np.linalg.norm(truth, axis=0) / np.linalg.norm(noise, axis=0)
    assert metrics.exact_recovery(own, truth, criterion="rows") is (error < 1e-3)


def test_row_criterion_sees_the_small_row_and_the_spurious_one(xp):
    truth = np.array([[1.0, 0.01, 0.0]])
    wrong = np.array([[[1.0, 0.0101, 0.0]], [[1.0, 0.01, 2e-5]], [[1.0, 0.01, 0.9e-5]]])
    truths = xp.asarray(np.stack([truth] * 3))
    by_rows = metrics.exact_recovery(xp.asarray(wrong), truths, criterion="rows")
    assert np.asarray(by_rows).tolist() == [False, False, True]
    assert np.asarray(metrics.exact_recovery(xp.asarray(wrong), truths)).tolist() == [True] * 3


def test_active_dimensions_need_a_small_variance_and_a_moving_mean(xp):
    mean = RNG(6).standard_normal((500, 4)) * [1.0, 1.0, 0.01, 0.01]
    variance = np.full((500, 4), [0.1, 1.0, 0.1, 1.0])
    count, mask = metrics.active_dimensions(
        xp.asarray(mean), xp.asarray(variance), return_mask=True
    )
    assert type(count) is int
    assert count == 1
    assert np.asarray(mask).tolist() == [True, False, False, False]
    assert metrics.active_dimensions(xp.asarray(mean), xp.asarray(variance[0])) == 1
    looser = metrics.active_dimensions(mean, variance, max_variance=1.1, min_spread=0.0)
    assert looser == 4
    stack = metrics.active_dimensions(
        xp.asarray(np.stack([mean, 0 * mean])), xp.asarray(np.stack([variance] * 2))
    )
    assert np.asarray(stack).tolist() == [1, 0]


def test_a_variance_per_dimension_is_shared_by_a_stack():
    mean = np.stack([np.eye(3), 2.0 * np.eye(3)])[:, :, :2]
    assert metrics.active_dimensions(mean, np.array([0.5, 1.0])).tolist() == [1, 1]
    with pytest.raises(ValueError, match="variance"):
        metrics.active_dimensions(mean, np.array([0.5, 1.0, 0.5]))
