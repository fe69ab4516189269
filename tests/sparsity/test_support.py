"""Tests of significance: what a column, or a group of them, adds to the likelihood."""

import numpy as np
from numpy.testing import assert_allclose

from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import FullCovariance
from lucidae.sparsity.problem import normalise
from lucidae.sparsity.state import evaluate
from lucidae.sparsity.support import evidence_ratios, group_evidence, leave_one_out


def draw(groups=None):
    rng = np.random.default_rng(0)
    Phi, X = rng.standard_normal((7, 12)), rng.standard_normal((7, 5))
    problem, _ = normalise(Phi, X, groups=groups)
    return problem.with_noise(0.3), rng.uniform(0.1, 1, 12)


def test_sparsity_and_quality_are_those_without_the_column():
    problem, relevance = draw()
    sparsity, quality = leave_one_out(evaluate(problem, relevance))
    for index in range(12):
        others = np.where(np.arange(12) == index, 0.0, relevance)
        without = evaluate(problem, others)
        assert_allclose(sparsity[index], without.curvature[index])
        assert_allclose(quality[index], without.alignment[index])


def test_the_evidence_of_a_column_is_the_drop_of_the_energy_at_its_best_relevance():
    problem, relevance = draw()
    state = evaluate(problem, relevance)
    sparsity, quality = leave_one_out(state)
    evidence = evidence_ratios(state, 5)
    for index in range(12):
        best = relevance.copy()
        best[index] = max(0.0, (quality[index] - sparsity[index]) / sparsity[index] ** 2)
        without = np.where(np.arange(12) == index, 0.0, relevance)
        energies = [FullCovariance().value(evaluate(problem, each)) for each in (without, best)]
        assert_allclose(evidence[index], 5 * (energies[0] - energies[1]), atol=1e-9)


def test_the_evidence_of_a_group_is_what_its_removal_costs():
    groups = Groups.of(np.arange(12) // 3, 12)
    problem, relevance = draw(groups)
    relevance = groups.expand(relevance[:4])
    state = evaluate(problem, relevance)
    evidence = group_evidence(state, groups, 5)
    for group in range(4):
        without = np.where(groups.labels == group, 0.0, relevance)
        cost = FullCovariance().value(evaluate(problem, without)) - FullCovariance().value(state)
        assert_allclose(evidence[group], 5 * cost, atol=1e-9)
