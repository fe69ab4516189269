"""Formulas of the sparsity family against figures computed by hand, and loops."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lucidae.sparsity import theory
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.penalties import (
    SMALLEST,
    ArctanPenalty,
    LogPenalty,
    PowerPenalty,
    as_penalty,
    penalty_value,
    ridge_relevance,
)
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate
from lucidae.sparsity.updates import SMALLEST_LEARNED, UPDATES, learned_noise

EPS = float(np.finfo(float).eps)


def state(seed=0, groups=None, noise=0.3):
    """Return an evaluated state of a small problem, with one relevance zero."""
    rng = np.random.default_rng(seed)
    problem, _ = normalise(rng.standard_normal((6, 5)), rng.standard_normal((6, 3)), groups=groups)
    w = np.array([0.5, 0.5, 1.5, 1.5, 0.0])
    return evaluate(problem.with_noise(noise), w)


def test_update_rules_by_their_formulas():
    now = state()
    w, Q, z = now.relevance, now.alignment, now.curvature
    assert_allclose(UPDATES["em"](now), np.maximum(w + w**2 * (Q - z), 0.0), rtol=1e-12)
    assert_allclose(UPDATES["mm"](now), w * np.sqrt(Q / z), rtol=1e-12)
    assert_allclose(UPDATES["mackay"](now), w * Q / z, rtol=1e-12)


def test_update_rules_of_groups_by_their_formulas():
    groups = Groups.of([0, 0, 1, 1, 2], 5)
    now = state(groups=groups)
    w = now.relevance
    Q, z, size = (
        np.array([values[groups.labels == label].sum() for label in groups.labels])
        for values in (now.alignment, now.curvature, np.ones(5))
    )
    assert_allclose(UPDATES["em"](now, groups), np.maximum(w + w**2 * (Q - z) / size, 0.0))
    assert_allclose(UPDATES["mm"](now, groups), w * np.sqrt(Q / z))
    assert_allclose(UPDATES["mackay"](now, groups), w * Q / z)


def test_learned_noise_by_its_formula_and_its_floor():
    now = state()
    expected = (now.residual + now.noise * 1.7) / now.dimension
    assert_allclose(learned_noise(now, 1.7), expected, rtol=1e-12)
    assert learned_noise(now, -1e9) == SMALLEST_LEARNED


def test_penalties_by_hand():
    a = np.array([4.0, 0.25])
    assert_allclose(PowerPenalty(0.5).value(a), [4.0, 1.0])
    assert_allclose(PowerPenalty(0.5).supergradient(a), [0.5, 2.0])
    assert_allclose(ArctanPenalty(0.25).value(a[1:]), [np.pi / 4])
    assert_allclose(ArctanPenalty(0.25).supergradient(a[1:]), [2.0])
    assert_allclose(LogPenalty().value(a), np.log(a))
    for wrong in (1.0 + 1e-9, 0.0, -0.5):
        with pytest.raises(ValueError, match="exponent"):
            PowerPenalty(wrong)
    assert PowerPenalty(1.0).exponent == 1.0
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="width"):
            ArctanPenalty(wrong)
    assert ArctanPenalty(0.5).width == 0.5


def test_a_row_that_has_vanished_counts_with_the_smallest_mean_square():
    assert penalty_value(LogPenalty(), np.array([0.0, 1.0])).tolist() == [np.log(SMALLEST), 0.0]
    found = ridge_relevance(LogPenalty(), np.array([0.0, SMALLEST, 4 * SMALLEST, 2.0]))
    assert_allclose(found, [0.0, 0.0, 4 * SMALLEST, 2.0])
    assert_allclose(ridge_relevance(PowerPenalty(0.5), np.array([4.0])), [2.0])


def test_names_and_objects_of_penalties():
    assert as_penalty("arctan") == ArctanPenalty()
    own = PowerPenalty(0.1)
    assert as_penalty(own) is own
    for wrong in ("l1", LogPenalty, 3):
        with pytest.raises(ValueError, match="penalty"):
            as_penalty(wrong)


def test_groups_of_different_sizes_by_hand():
    groups = Groups.of([4, 2, 4, 4], 4)
    assert groups.count == 2
    assert_array_equal(groups.labels, [1, 0, 1, 1])
    values = np.array([1.0, 10.0, 100.0, 1000.0])
    assert_array_equal(groups.gather(values), [[10.0, 0.0, 0.0], [1.0, 100.0, 1000.0]])
    assert_array_equal(groups.total(values), [10.0, 1101.0])
    assert_array_equal(groups.expand(np.array([7.0, 8.0])), [8.0, 7.0, 8.0, 8.0])
    assert_array_equal(groups.share(values), [1101.0, 10.0, 1101.0, 1101.0])


def test_the_spark_bound_leaves_room_for_rounding():
    assert theory.spark_bound(0.25) == 5.0
    assert theory.spark_bound(0.0, 3) == pytest.approx(1 + 1 / (10 * EPS))
    assert theory.spark_bound(0.5, 10) == pytest.approx(1 + 1 / (0.5 + 24 * EPS), rel=1e-15)
    assert theory.uniqueness_bound(5.0, 2) == 3.0


def test_coherence_finds_a_pair_in_every_block():
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((30, 2100))
    for first, second in ((0, 1), (0, 1023), (0, 1024), (1023, 1024), (1024, 2099), (2048, 2099)):
        changed = Phi.copy()
        changed[:, second] = changed[:, first]
        assert theory.coherence(changed) == pytest.approx(1.0)
    assert theory.coherence(Phi) < 0.95
    assert theory.coherence(np.zeros((3, 2))) == 0.0


def test_row_scale_ratios_are_those_of_neighbours_in_descending_order():
    assert_allclose(theory.row_scale_ratios(np.array([1.0, 0.0, 8.0, 2.0])), [0.25, 0.5])


def test_implied_relevance_is_the_relevance_of_a_posterior_mean():
    rng = np.random.default_rng(3)
    Phi, X, noise = rng.standard_normal((6, 4)), rng.standard_normal((6, 2)), 0.2
    w = np.array([0.7, 0.0, 1.3, 0.1])
    mean = w[:, None] * (Phi.T @ np.linalg.solve((Phi * w) @ Phi.T + noise * np.eye(6), X))
    assert_allclose(theory.implied_relevance(Phi, X, mean, noise), w, rtol=1e-10)
    exact = np.eye(3)
    assert theory.implied_relevance(exact, exact[:, :1], exact[:, :1], 1.0)[0] == np.inf


def position(columns, used, rank, weakest=1.0):
    return theory.position_of(np.asarray(columns, float), np.asarray(used), rank, weakest)


def test_independent_columns_are_in_general_position():
    found = position(np.eye(4)[:, :3], [0, 2], 1)
    assert found.verdict is True
    assert found.spark == np.inf
    assert "independent" in found.reason


def test_dependent_active_columns_refute_it():
    Phi = np.column_stack([np.eye(3), np.eye(3)[:, :1]])
    assert position(Phi, [0, 3], 1).verdict is False
    assert "active" in position(Phi, [0, 3], 1).reason


def test_a_column_in_the_span_of_the_active_ones_can_replace_one():
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 0.0]])
    found = position(Phi, [0, 1], 1)
    assert found.verdict is False
    assert found.spark == 4.0
    assert "Column 3" in found.reason
    # Another zero column before it shifts the index that is named.
    shifted = position(np.column_stack([np.zeros(3), Phi]), [1, 2], 1)
    assert "Column 4" in shifted.reason


def test_responses_of_full_rank_are_represented_by_their_span_alone():
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 1.0]])
    assert position(Phi, [0, 1], 2).verdict is True
    assert "span" in position(Phi, [0, 1], 2).reason


def test_all_subsets_of_the_deciding_size_are_checked():
    rng = np.random.default_rng(5)
    Phi = rng.standard_normal((4, 6))
    # Two used columns and rank one: every 2·2 − 1 + 1 = 4 columns must be independent.
    found = position(Phi, [0, 1], 1)
    assert found.verdict is True
    assert "4 columns" in found.reason
    Phi[:, 5] = Phi[:, 2] + Phi[:, 3] + Phi[:, 4]
    found = position(Phi, [0, 1], 1)
    assert found.verdict is False
    assert "Some 4 columns" in found.reason


def test_large_dictionaries_are_sampled_and_assumed():
    rng = np.random.default_rng(6)
    Phi = rng.standard_normal((12, 40))
    found = position(Phi, [0, 1, 2, 3], 2)
    assert found.verdict is None
    assert found.spark == 13.0
    assert "100 random minors of size 12" in found.reason
    Phi[:, 20] = Phi[:, 0] + Phi[:, 21]
    assert "Two other columns" in position(Phi, [0, 1, 2, 3], 2).reason


def test_a_representation_too_weak_to_be_told_apart_is_not_unique():
    Phi = np.column_stack([np.eye(3)[:, :2], [0.0, 1e-3, 1.0]])
    assert position(Phi, [0, 1], 2, weakest=1e-2).verdict is True
    assert position(Phi, [0, 1], 2, weakest=1e-7).verdict is False
    assert position(Phi, [0, 1], 2, weakest=0.0).verdict is False


def normalised(*columns):
    columns = np.column_stack(columns).astype(float)
    return columns / np.linalg.norm(columns, axis=0)


@pytest.mark.parametrize("second", [[0.0, 1.0, 0.0], [1.0, 0.5, 0.0]])
def test_how_near_to_the_span_a_column_may_lie(second):
    # φ = a + δe₃ with a in the span: it can replace an active column if δ·s/3 ≤ 10·EXACT/weakest.
    active = normalised([1.0, 0.0, 0.0], second)
    spread = np.linalg.svd(active, compute_uv=False)[-1]
    limit = 3.0 * 10.0 * theory.EXACT / spread
    for factor, verdict in ((0.99, False), (1.01, True)):
        near = [1.0, 0.0, factor * limit]
        assert position(normalised(*active.T, near, [1, 1, 1]), [0, 1], 2).verdict is verdict


@pytest.mark.parametrize("transposed", [False, True])
def test_the_numerical_rank_counts_singular_values_above_rounding(transposed):
    # Two columns at the angle δ have the squared singular values 2 and δ²/2.
    rounding = 10.0 * 3 * EPS * 2.0
    for factor, rank in ((0.8, 1), (1.3, 2)):
        angle = np.sqrt(2.0 * factor * rounding)
        unit = normalised([1.0, 0.0, 0.0], [1.0, angle, 0.0])
        assert theory._rank(unit.T if transposed else unit)[0] == rank
    assert theory._rank(np.ones((1, 4)))[0] == 1
    assert theory._rank(np.zeros((3, 0))) == (0, 0.0)


def test_what_lies_outside_of_a_span():
    unit = normalised([1.0, 0, 0], [1.0, 1.0, 0], [0.6, 0, 0.8])
    outside, smallest = theory._outside_span(unit, np.array([0, 1]))
    assert_allclose(outside, [0.0, 0.0, 0.8], atol=1e-15)
    assert smallest == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))
    flat = normalised([1.0, 0], [0, 1.0], [1.0, 1.0])
    assert theory._outside_span(flat, np.array([0, 1, 2]))[1] == 0.0
    assert theory._outside_span(flat, np.array([0, 1]))[1] == pytest.approx(1.0)


def test_two_columns_depend_on_the_active_ones_if_their_rests_are_collinear():
    # Rests of lengths 0.8 and 0.6 at the angle θ: dependent if s·0.6²·sin θ/9 is at most `least`.
    sine = 0.3
    first, second = np.array([0.6, 0.8, 0, 0]), np.array([0.8, 0.6 * np.sqrt(1 - sine**2), 0, 0])
    second[2] = 0.6 * sine
    active = normalised([1.0, 0, 0, 0], [1.0, 0, 0, 1.0])
    unit = normalised(*active.T, first, second)
    strength = np.linalg.svd(active, compute_uv=False)[-1]
    limit = strength * 0.36 * sine / 9.0
    used = np.array([0, 1])
    assert theory._dependent_pair(unit, used, limit * (1 + 1e-6)) is True
    assert theory._dependent_pair(unit, used, limit * (1 - 1e-6)) is False


def test_an_angle_below_the_rounding_of_a_cosine_is_not_resolved():
    # sin²θ has to exceed 16·d·ε with d = 3 rows.
    for factor, dependent in ((0.7, True), (1.5, False)):
        sine = np.sqrt(factor * 16.0 * 3 * EPS)
        unit = normalised([1.0, 0, 0], [0, 1.0, 0], [0, np.sqrt(1 - sine**2), sine])
        assert theory._dependent_pair(unit, np.array([0]), 0.0) is dependent


def test_one_other_column_has_no_pair():
    unit = normalised([1.0, 0], [0, 1.0])
    assert theory._dependent_pair(unit, np.array([0]), 1.0) is False
    assert theory._dependent_pair(unit[:, [0, 0]], np.array([0]), 0.0) is True
    assert theory._dependent_pair(unit, np.array([0, 1]), 1.0) is False


def test_the_number_of_columns_that_have_to_be_independent():
    # Three used columns and responses of rank one: 2·3 − 1 + 1 = 6 = the rank of the dictionary.
    Phi = np.random.default_rng(8).standard_normal((6, 8))
    found = position(Phi, [0, 1, 2], 1)
    assert found.verdict is True
    assert "all subsets of 6 columns" in found.reason
    assert position(Phi[:5], [0, 1, 2], 1).verdict is None


def test_fewer_minors_are_sampled_where_they_are_large():
    Phi = np.random.default_rng(9).standard_normal((300, 320))
    found = position(Phi, [0, 1, 2], 1)
    assert found.verdict is None
    assert "7 random minors of size 300" in found.reason
