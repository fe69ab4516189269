"""Formulas of the sparsity family against figures computed by hand, and loops."""

from itertools import combinations
from types import SimpleNamespace

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


def test_expectation_maximization_does_not_leave_the_positive_numbers():
    # A posterior second moment below zero is a rounding error, here a large one.
    now = state()
    wrong = now._replace(curvature=1e3 * now.curvature)
    assert UPDATES["em"](wrong).tolist() == [0.0] * 5


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
    powers = np.array([0.0, SMALLEST, 2 * SMALLEST, 2.5 * SMALLEST, 2.0])
    assert_allclose(
        ridge_relevance(LogPenalty(), powers), [0.0, 0.0, 0.0, 2.5 * SMALLEST, 2.0], rtol=1e-12
    )
    steep = SimpleNamespace(supergradient=lambda power: np.full_like(power, np.inf))
    assert ridge_relevance(steep, np.array([1.0])).tolist() == [0.0]
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


def position(columns, used, coefficients=None, weakest=1.0):
    """Try to prove that the active columns with these coefficients (ones) are the only ones."""
    columns, used = np.asarray(columns, float), np.asarray(used)
    coefficients = np.ones((used.size, 1)) if coefficients is None else coefficients
    responses = columns[:, used] @ coefficients
    rank = int(np.linalg.matrix_rank(responses))
    return theory.position_of(columns, used, responses, rank, weakest)


def normalised(*columns):
    columns = np.column_stack(columns).astype(float)
    return columns / np.linalg.norm(columns, axis=0)


def represented_by_others(columns, used, responses):
    """Return the other sets of as few columns whose span contains the responses, by trying all."""
    found = []
    for size in range(1, used.size + 1):
        for chosen in combinations(range(columns.shape[1]), size):
            fitted = np.linalg.lstsq(columns[:, chosen], responses, rcond=None)[0]
            exact = np.linalg.norm(responses - columns[:, chosen] @ fitted) < 1e-9
            if exact and not set(chosen) >= set(used.tolist()):
                found.append(chosen)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_is_proved_agrees_with_all_sets_of_as_few_columns(seed):
    # Small integers make coincidences likely: columns in the span of others, or equal up to a sign.
    rng = np.random.default_rng(seed)
    d, kappa, size, n = 5, 8, int(rng.integers(1, 4)), int(rng.integers(1, 3))
    Phi = rng.integers(-1, 2, size=(d, kappa)).astype(float)
    Phi[0, ~Phi.any(axis=0)] = 1.0
    used = np.sort(rng.permutation(kappa)[:size])
    U = rng.standard_normal((size, n))
    others = represented_by_others(Phi, used, Phi[:, used] @ U)
    if position(Phi, used, U).unique:
        assert not others


def test_generic_dictionaries_are_proved_and_the_certain_coincidence_is_found():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        Phi, U = rng.standard_normal((6, 8)), rng.standard_normal((3, 1))
        used = np.array([0, 1, 2])
        assert position(Phi, used, U).unique
        assert not represented_by_others(Phi, used, Phi[:, used] @ U)
        # Columns 3 and 4 and a new one represent the same response.
        Phi[:, 5] = Phi[:, used] @ U[:, 0] - Phi[:, 3] - Phi[:, 4]
        assert not position(Phi, used, U).unique
        assert represented_by_others(Phi, used, Phi[:, used] @ U) == [(3, 4, 5)]


def test_independent_columns_represent_anything_in_one_way():
    found = position(np.eye(4)[:, :3], [0, 2])
    assert found.unique is True
    assert found.spark == np.inf
    assert "all columns are linearly independent" in found.reason


def test_dependent_active_columns_prove_nothing():
    Phi = np.column_stack([np.eye(3), np.eye(3)[:, :1]])
    found = position(Phi, [0, 3])
    assert found.unique is False
    assert found.reason == "The active columns are linearly dependent."


def test_a_column_in_the_span_of_the_active_ones_can_replace_one():
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 0.0]])
    found = position(Phi, [0, 1])
    assert found.unique is False
    assert found.spark == 4.0
    assert "Column 3" in found.reason
    # A zero column before it shifts the index that is named.
    assert "Column 4" in position(np.column_stack([np.zeros(3), Phi]), [1, 2]).reason


def test_responses_of_full_rank_are_represented_by_their_span_alone():
    # q = 2 − 2 + 1 = 1: only a column in the span of the responses could take part.
    Phi = np.column_stack([np.eye(3), [1.0, 1.0, 1.0]])
    found = position(Phi, [0, 1], np.eye(2))
    assert found.unique is True
    assert found.reason == theory.NO_OTHER


def test_the_sets_that_are_checked_have_as_many_columns_as_the_rank_leaves_free():
    # Three active columns: q = 3 − rank + 1 columns that are not all active, so the same dictionary
    # is proved for responses of rank two, whatever dependence of three columns it has.
    Phi = np.random.default_rng(5).standard_normal((8, 9))
    U = np.random.default_rng(6).standard_normal((3, 2))
    Phi[:, 5] = Phi[:, :3] @ U[:, 0] - Phi[:, 3] - Phi[:, 4]
    one, two = position(Phi, [0, 1, 2], U[:, :1]), position(Phi, [0, 1, 2], U)
    assert one.unique is False
    assert one.reason.startswith("All sets of 3 columns were checked: with some")
    assert two.unique is True
    assert "All sets of 2 columns were checked: no other" in two.reason


def test_a_pair_of_columns_that_represents_the_response_is_found_in_every_block(monkeypatch):
    monkeypatch.setattr(theory, "BLOCK_COLUMNS", 4)
    Phi = np.random.default_rng(7).standard_normal((7, 11))
    assert position(Phi, [0, 1]).unique is True
    for first, second in ((2, 3), (3, 4), (1, 10), (8, 10)):
        changed = Phi.copy()
        changed[:, second] = Phi[:, 0] + Phi[:, 1] - Phi[:, first]
        assert position(changed, [0, 1]).unique is False


def test_general_position_is_not_assumed_where_there_are_too_many_sets(monkeypatch):
    Phi = np.random.default_rng(8).standard_normal((9, 12))
    assert position(Phi, [0, 1, 2]).unique is True  # 220 sets of three columns
    monkeypatch.setattr(theory, "SUBSETS", 219)
    found = position(Phi, [0, 1, 2])
    assert found.unique is False
    assert found.spark == 10.0
    assert found.reason.startswith(theory.UNCHECKED)
    assert "sets of 3 columns" in found.reason
    monkeypatch.setattr(theory, "SUBSETS", 220)
    assert position(Phi, [0, 1, 2]).unique is True
    monkeypatch.setattr(theory, "SUBSETS", 3)
    assert position(Phi, [0, 1]).unique is True  # pairs have a limit of their own
    monkeypatch.setattr(theory, "PAIR_WORK", 12.0**2 * 9)
    assert position(Phi, [0, 1]).unique is True
    monkeypatch.setattr(theory, "PAIR_WORK", 12.0**2 * 9 - 1)
    assert position(Phi, [0, 1]).unique is False


def test_a_representation_too_weak_to_be_told_apart_is_not_unique():
    Phi = np.column_stack([np.eye(3)[:, :2], [0.0, 1e-3, 1.0]])
    assert position(Phi, [0, 1], np.eye(2), weakest=1e-2).unique is True
    assert position(Phi, [0, 1], np.eye(2), weakest=1e-7).unique is False
    assert position(Phi, [0, 1], np.eye(2), weakest=0.0).unique is False


@pytest.mark.parametrize("second", [[0.0, 1.0, 0.0], [1.0, 0.5, 0.0]])
def test_how_near_to_the_span_a_column_may_lie(second):
    # φ = a + δe₃ with a in the span: it can replace an active column if δ·s/3 ≤ 10·EXACT/weakest.
    active = normalised([1.0, 0.0, 0.0], second)
    spread = np.linalg.svd(active, compute_uv=False)[-1]
    weakest = 0.01
    limit = 3.0 * 10.0 * theory.EXACT / weakest / spread
    for factor, unique in ((0.99, False), (1.01, True)):
        Phi = normalised(*active.T, [1.0, 0.0, factor * limit], [1, 1, 1])
        assert position(Phi, [0, 1], np.eye(2), weakest).unique is unique


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


def test_smallest_eigenvalues_of_sets_by_a_loop():
    rest = np.random.default_rng(9).standard_normal((4, 6))
    used = np.array([1, 2, 4])
    for size in (1, 2, 3, 4):
        expected = min(
            float(np.linalg.eigvalsh(rest[:, chosen].T @ rest[:, chosen])[0])
            for chosen in map(list, combinations(range(6), size))
            if not set(chosen) <= set(used)
        )
        assert theory._smallest_eigenvalue(rest, used, size) == pytest.approx(expected, abs=1e-12)


def test_sets_of_active_columns_alone_do_not_count():
    rest = np.ones((3, 3))  # every set of two columns is dependent
    for size in (1, 2, 3):
        assert theory._smallest_eigenvalue(rest, np.arange(3), size) == np.inf
        assert theory._smallest_eigenvalue(0.0 * rest, np.arange(2), size) == 0.0


def test_a_larger_support_needs_a_larger_distance_of_the_other_columns():
    # Sixteen orthonormal columns: a column e₁ + δe₁₇ may replace one if δ ≤ √16 · 10·EXACT/weakest.
    weakest = 0.01
    least = 10.0 * theory.EXACT / weakest
    for factor, unique in ((3.5, False), (3.95, False), (4.05, True)):
        beside = np.r_[1.0, np.zeros(15), factor * least]
        Phi = normalised(*np.eye(17)[:, :16].T, beside, np.ones(17))
        found = position(Phi, np.arange(16), np.eye(16), weakest)
        assert found.unique is unique
    assert found.reason == theory.NO_OTHER


@pytest.mark.parametrize(("factor", "unique"), [(0.95, False), (1.05, True)])
@pytest.mark.parametrize("least", [0.0, 1e-3])
def test_how_far_from_the_responses_other_columns_must_be(least, factor, unique):
    # Squared distances are compared with least² plus the rounding error 8(d + 1)ε of a product.
    limit = least**2 + 8.0 * (3 + 1) * EPS
    beside = [1.0, 0.0, np.sqrt(factor * limit)]
    unit = normalised([1, 0, 0], [0, 1, 0], beside, [0, 0, 1], [1, 1, 1])
    used = np.array([0, 1])
    found = theory._by_projection(unit, used, np.eye(3)[:, :2], 2, np.inf, least)
    assert found.unique is unique


def test_responses_that_repeat_others_span_no_further_direction():
    unit = normalised([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1])
    repeated = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert theory._by_projection(unit, np.array([0]), repeated, 1, 4.0, 1e-6).unique is True


def test_the_smallest_singular_value_is_reduced_by_rounding():
    # Two columns of 300 rows at the angle δ have the squared singular values 2 and δ²/2.
    rounding = 10.0 * 300 * EPS * 2.0
    for factor, rank in ((0.97, 1), (1.04, 2), (3.0, 2)):
        unit = np.zeros((300, 2))
        angle = np.sqrt(2.0 * factor * rounding)
        unit[:2] = normalised([1.0, 0.0], [1.0, angle])
        found, smallest = theory._rank(unit)
        assert found == rank
        assert smallest == pytest.approx(np.sqrt(max(factor - 1, 0) * rounding), rel=0.02)
    assert theory._rank(np.eye(2)[:, [0, 1, 0]])[1] == pytest.approx(1.0)
