"""Batches that are collected before they are multiplied give the moment of all rows."""

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import LinearAutoencoder, SecondMoment
from lucidae.linear import running_moment
from lucidae.linear.running_moment import RunningMoment

M = 6


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch):
    """Give buffers 12 rows."""
    monkeypatch.setattr(running_moment, "BUFFERED_ROWS", 2)


def rows_about(center, n=400):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, M)) @ rng.standard_normal((M, M)) + center


def streamed(X, size):
    estimator = LinearAutoencoder(2)
    for start in range(0, len(X), size):
        estimator.partial_fit(X[start : start + size])
    return estimator


def assert_moment_of(moment, X):
    exact = np.cov(X.T, bias=True)
    assert moment.weight == len(X)
    assert_allclose(moment.mean, X.mean(axis=0), rtol=1e-13)
    assert_allclose(moment.covariance, exact, rtol=1e-10, atol=1e-10 * np.trace(exact))


@pytest.mark.parametrize("center", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("size", [1, 3, 5, 12, 13])
def test_collected_batches_give_the_moment_of_all_rows(size, center):
    X = rows_about(center)
    assert_moment_of(streamed(X, size)._state.moment, X)


@pytest.mark.parametrize("jump", [1e3, 1e8])
def test_a_mean_that_jumps_costs_no_digits(jump):
    """The squares about the old centre would lose the variance of rows far from it."""
    X = np.concatenate([rows_about(0.0, 10), rows_about(jump, 391)])
    X[:, 0] = np.arange(401)
    found = streamed(X, 5)._state.moment
    assert_allclose(found.covariance[0, 0], np.var(X[:, 0]), rtol=1e-12)
    deviations = X - X.mean(axis=0)
    assert_allclose(found.covariance, deviations.T @ deviations / 401, rtol=1e-9)


def test_float32_batches_are_collected_in_double_precision():
    X = rows_about(1e3).astype(np.float32)
    assert_moment_of(streamed(X, 5)._state.moment, X.astype(np.float64))


def test_products_wait_until_the_buffer_is_full(monkeypatch):
    products = []
    whole = SecondMoment._add_blocks

    def counted(self, blocks):
        products.append([len(block) for block in blocks])
        return whole(self, blocks)

    monkeypatch.setattr(SecondMoment, "_add_blocks", counted)
    estimator = streamed(rows_about(0.0, 5 * 6), 5)  # the first batch is multiplied at once
    assert products == [[10, 5]]
    assert estimator.n_samples_seen_ == 30
    assert products == [[10, 5]]
    _ = estimator.components_
    assert products == [[10, 5], [10]]


def test_a_batch_may_be_overwritten_after_it_was_given():
    X, estimator = rows_about(0.0, 45), LinearAutoencoder(2)
    batch = np.empty((5, M))
    for start in range(0, 45, 5):
        batch[...] = X[start : start + 5]
        estimator.partial_fit(batch)
    assert_moment_of(estimator._state.moment, X)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_copies_of_an_estimator_continue_separately(copied):
    X = rows_about(1.0, 60)
    first = streamed(X[:10], 5)
    second = copied(first)
    for start in range(10, 30, 5):
        first.partial_fit(X[start : start + 5])
        second.partial_fit(X[start + 30 : start + 35])
    assert_moment_of(first._state.moment, X[:30])
    assert_moment_of(second._state.moment, np.concatenate([X[:10], X[40:]]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("before", [5, 10, 15])
def test_a_refused_batch_leaves_the_collected_rows(bad, before):
    """With 5 or 10 rows before it, the batch is copied; with 15, the buffer has no space."""
    X = rows_about(1.0, 40)
    estimator = streamed(X[:before], 5)
    batch = X[:5].copy()
    batch[3, 2] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity|overflow"):
        estimator.partial_fit(batch)
    assert_moment_of(copy.deepcopy(estimator)._state.moment, X[:before])
    for start in range(before, 40, 5):
        estimator.partial_fit(X[start : start + 5])
    assert_moment_of(estimator._state.moment, X)


def test_variances_outside_float32_are_refused_in_the_batch_that_has_them():
    X = rows_about(0.0, 40).astype(np.float32)
    estimator = streamed(X[:10], 5)
    with pytest.raises(ValueError, match="above the range of its dtype float32"):
        estimator.partial_fit(X[10:15] * np.float32(1e25))
    assert_moment_of(estimator._state.moment, X[:10].astype(np.float64))


def test_bounds_contain_the_variance():
    X = rows_about(2.0, 12)
    running = RunningMoment.begin(SecondMoment.of(X[:5])).after(X[5:])
    low, high = running.variance_bounds
    assert low < running.total().trace < high
    assert running.weight == 12
    assert_moment_of(running.total(), X)


@pytest.mark.parametrize("first", [np.zeros((3, M)), np.full((3, M), 1e-150)])
def test_rows_without_variance_are_not_collected(first):
    """Whether the squares of later rows underflow shows only in the moment of all rows."""
    assert RunningMoment.begin(SecondMoment.of(first)).after(first) is None


def test_batches_larger_than_the_buffer_are_not_collected():
    X = rows_about(0.0)
    running = RunningMoment.begin(SecondMoment.of(X))
    most = running.buffer.n_rows
    assert running.after(X[:most]).count == most == 2 * M
    assert running.after(X[: most + 1]) is None


def test_the_buffer_of_many_features_is_small():
    assert running_moment._Buffer(8192).n_rows * 8192 == running_moment.BUFFERED_ENTRIES
