"""Joint moments equal those of the joined rows, and whitening is exact on the range of C."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from numpy.testing import assert_allclose

from dropout.problems import problems, random_weights, seeds
from lucidae import SecondMoment
from lucidae.dropout import DropoutObjective, LinearProblem
from lucidae.dropout.moments import as_columns, joint_moment, principal_problem, take_rows, whiten


@pytest.mark.parametrize("sparse", [False, True])
def test_joint_moment_equals_the_moment_of_joined_rows_in_blocks(monkeypatch, sparse):
    monkeypatch.setattr("lucidae.dropout.moments.BLOCK_ROWS", 8)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), rng.standard_normal(30)
    weights = rng.integers(0, 3, 30).astype(float)
    weights[8:16] = 0.0  # one block has no weight at all
    found = joint_moment(scipy.sparse.csr_array(X) if sparse else X, y, weights)
    expected = SecondMoment.of(np.column_stack([X, y]), weights)
    assert_allclose(found.mean, expected.mean)
    assert_allclose(found.covariance, expected.covariance)
    assert found.weight == expected.weight


def test_rows_and_targets_of_different_number_are_refused():
    with pytest.raises(ValueError, match="one row of y per row"):
        joint_moment(np.ones((3, 2)), np.ones(4))


def test_columns_and_rows_on_every_library(xp):
    flat = xp.asarray([1, 2, 3])
    assert as_columns(flat).shape == (3, 1)
    values = xp.asarray([[1.0], [2.0], [3.0]])
    assert_allclose(np.asarray(take_rows(values, np.array([2, 0]))), [[3.0], [1.0]])


@given(problems(), seeds())
def test_whitening_keeps_the_loss_up_to_its_floor(drawn, seed):
    problem, strength, width = drawn
    weights = random_weights(problem, width, np.random.default_rng(seed))
    white = whiten(problem)
    reduced = DropoutObjective(LinearProblem.from_matrix(white.matrix), strength)
    value = DropoutObjective(problem, strength).value(weights)
    expected = white.floor + reduced.value(white.lower_weights(weights))
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-9 * problem.energy)


@given(problems(), seeds())
def test_weights_for_white_inputs_return_unchanged(drawn, seed):
    problem, _, width = drawn
    white = whiten(problem)
    reduced = LinearProblem.from_matrix(white.matrix)
    weights = random_weights(reduced, width, np.random.default_rng(seed))
    again = white.lower_weights(white.raise_weights(weights))
    if white.lower is None or white.lower.any():
        assert_allclose(again.right, weights.right, atol=1e-9)
    assert_allclose(again.left, weights.left, rtol=0)


def test_the_principal_problem_is_the_whitened_autoencoder():
    X = np.random.default_rng(0).standard_normal((50, 4)) @ np.diag([3.0, 2.0, 1.0, 0.0])
    problem = LinearProblem.autoencoder(SecondMoment.of(X))
    white, (P, values, Qt) = principal_problem(problem.inputs)
    assert_allclose((P * values) @ Qt, white.matrix)
    assert_allclose(white.matrix, whiten(problem).matrix, atol=1e-12)
    assert_allclose(white.matrix @ white.matrix.T, problem.inputs, atol=1e-12)
