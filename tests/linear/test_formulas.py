"""Formulas of the linear family against figures computed by hand."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.linear import theory


def test_condition_bound_of_the_nonuniform_objective_by_hand():
    # 2·3·(8 − 2)·((6 − 2) + (4 − 2))/(8·2) = 216/16.
    assert theory.nonuniform_condition_bound([8.0, 6.0, 4.0, 2.0]) == 13.5
    assert theory.nonuniform_condition_bound([8.0, 2.0]) == 0.0


def test_condition_bound_of_nested_dropout_by_hand():
    # 8·9·2²/(9 − 1) = 36, and no bound without a spread.
    assert theory.nested_condition_bound([9.0, 4.0, 1.0]) == 36.0
    assert theory.nested_condition_bound([2.0, 2.0]) == math.inf
    assert theory.nested_condition_bound([2.0, 1.9999]) == pytest.approx(8 * 2.0 / 1e-4)


def test_zero_latents_are_counted_from_one_in_the_given_order():
    # Sorted, the penalties 1, 2, 3 belong to the eigenvalues 5, 2.5, 2.
    assert theory.zero_latents([5.0, 2.5, 2.0], [3.0, 1.0, 2.0]).tolist() == [1]
    assert theory.zero_latents([5.0, 2.0, 2.0], [3.0, 1.0, 2.0]).tolist() == [1, 3]


def test_gaps_by_hand():
    values = [9.0, 7.0, 6.5, 3.0, 2.9]
    assert theory.smallest_gap(values, 1) == 2.0
    assert theory.smallest_gap(values, 2) == 0.5
    assert theory.smallest_gap(values, 4) == pytest.approx(0.1)
    assert theory.smallest_gap(values, 9) == pytest.approx(0.1)
    assert theory.inner_gap(values, 1) == math.inf
    assert theory.inner_gap(values, 2) == 2.0
    assert theory.inner_gap(values, 3) == 0.5
    assert theory.outer_gap(values, 1) == 2.0
    assert theory.outer_gap(values, 3) == 3.5
    assert theory.outer_gap(values, 5) == math.inf


def test_predicted_epochs_by_hand():
    # exp(−2·rate·α/(1 − μ)·t) = target/start: 2·0.5·0.1/(1 − 0.9) = 1 per epoch.
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.5 / math.e**3) == pytest.approx(3.0)
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.25, 0.25 * math.e) == pytest.approx(1.0)
    assert theory.predicted_epochs(0.25, 0.1, 0.5, 0.5 / math.e) == pytest.approx(10.0)
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.9) == 0.0
    assert theory.predicted_epochs(0.5, 0.1, 0.9, 0.4) == pytest.approx(math.log(1.25))
    for rate in (0.0, -1.0):
        assert theory.predicted_epochs(rate, 0.1, 0.9, 0.1) == math.inf
    assert_allclose(theory.predicted_epochs(1e-9, 1.0, 0.0, 0.25), math.log(2) / 2e-9)
    assert np.isfinite(theory.predicted_epochs(0.9, 1e-3, 0.0, 1e-12))
