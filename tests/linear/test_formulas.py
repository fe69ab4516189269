"""Formulas of the linear family against figures computed by hand."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.linear import theory
from lucidae.linear.objectives import NonUniformL2, Objective, Reconstruction
from lucidae.linear.prefixes import geometric_prior, uniform_prior
from lucidae.linear.spectrum import TINY, Spectrum


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


def curved(curvatures, aligns=True):
    """Return an objective whose Hessian has given eigenvalues."""

    class Curved(Reconstruction):
        def hessian_eigenvalues(self, values):
            return None if curvatures is None else np.array(curvatures)

    Curved.aligns = aligns
    return Curved()


@pytest.mark.parametrize(
    ("curvatures", "aligns", "rate"),
    [
        ([0.0, 1.9e-12, 2.1e-12, 0.5, 2.0], True, 2.1e-12),
        ([0.25, 1.0], True, 0.25),
        ([0.0, 0.0], True, 0.0),
        ([0.25, 1.0], False, None),
        (None, True, None),
    ],
)
def test_the_alignment_rate_is_the_smallest_curvature_above_rounding(curvatures, aligns, rate):
    assert Objective.alignment_rate(curved(curvatures, aligns), np.ones(2), 1) == rate


def spectrum(*values):
    return Spectrum(np.array(values), np.eye(len(values)), float(sum(values)))


def test_defaults_of_an_objective_promise_nothing():
    objective = Reconstruction()
    assert Objective.zero_latents(objective, np.ones(3)).shape == (0,)
    assert Objective.unit(objective, None) == 1.0
    assert Objective.size(objective, spectrum(3.0, 1.0)) == 4.0
    assert Objective.size(objective, spectrum(0.0, 0.0)) == TINY


def test_penalised_minimum_by_hand():
    # Penalties 1 and 3 on 4 and 2: 2·1 − 1/4 for the first; the second is zero and costs 2, the
    # eigenvalue 1 behind it costs 1.
    objective = NonUniformL2(np.array([3.0, 1.0]))
    assert objective.minimum(spectrum(4.0, 2.0, 1.0), 2) == pytest.approx(2 - 1 / 4 + 2 + 1)
    assert_allclose(objective.squared_lengths(np.array([4.0, 2.0])), [0.75, 0.0])
    assert_allclose(objective.squared_lengths(np.array([4.0, 3.0])), [0.75, 0.0])
    assert objective.curvature(spectrum(4.0, 2.0)) == 4 * 4.0 + 4 * 3.0
    assert objective.latent_order(2).tolist() == [1, 0]
    assert objective.zero_latents(np.array([4.0, 2.0, 1.0])).tolist() == [1]
    assert objective.aligns
    assert not NonUniformL2(np.array([1.0, 2.0, 1.0])).aligns


def test_priors_by_hand():
    assert_allclose(geometric_prior(4, 0.5), [0.5, 0.25, 0.125, 0.125])
    assert_allclose(geometric_prior(2), [0.1, 0.9])
    assert_allclose(geometric_prior(1), [1.0])
    assert_allclose(uniform_prior(4), 0.25)
