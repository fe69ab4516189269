"""Matrices, weights and widths that are no such things: a sentence that says so."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    certify,
    equalize,
    equalize_pair,
)
from lucidae.dropout import LinearProblem, Weights, solve, solve_tied
from lucidae.dropout.equalize import WIDEST
from lucidae.dropout.reduction import row_objective

A = np.random.default_rng(0).standard_normal((12, 4))

NO_MATRICES = {
    "scalar": 3.5,
    "vector": A[0],
    "set": {1.0},
    "empty": [[]],
    "sparse matrix": scipy.sparse.csr_matrix(A),
    "sparse array": scipy.sparse.coo_array(A),
    "missing": np.array([[None, 1.0]]),
    "dates": np.array([["2020-01-01"]], dtype="M8[D]"),
    "durations": np.array([[1]], dtype="m8[s]"),
    "complex": A + 1j,
    "masked": np.ma.array(A, mask=A > 1),
    "not finite": np.full((2, 2), np.inf),
    "text": "matrix",
}

FUNCTIONS = {
    "solve": lambda given: solve(LinearProblem.from_matrix(given), 1.0, 2),
    "solve_tied": lambda given: solve_tied(given, 1.0, 2),
    "equalize": equalize,
    "equalize_pair, first": lambda given: equalize_pair(given, A),
    "equalize_pair, second": lambda given: equalize_pair(A, given),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("given", NO_MATRICES.values(), ids=NO_MATRICES)
def test_what_is_no_matrix_is_refused(given, function):
    with pytest.raises((ValueError, TypeError)) as refused:
        function(given)
    assert type(refused.value) in (ValueError, TypeError)  # no LinAlgError, which is a ValueError
    words = ("operand", "sequence.", "attribute", "broadcast")
    assert not any(word in str(refused.value) for word in words)


def test_masked_arrays_without_masked_entries_lists_and_single_precision_are_matrices():
    expected = solve(LinearProblem.from_matrix(A), 1.0, 2)
    for given in (np.ma.array(A, mask=False), A.tolist(), np.asfortranarray(A)):
        found = solve(LinearProblem.from_matrix(given), 1.0, 2)
        assert_allclose(found.weights.left, expected.weights.left)
        assert_allclose(equalize(given), equalize(A))
        assert_allclose(equalize_pair(given, given)[0], equalize_pair(A, A)[0])
    single = LinearProblem.from_matrix(A.astype(np.float32))
    assert single.cross.dtype == np.float64
    assert_allclose(solve(single, 1.0, 2).value, expected.value, rtol=1e-6)


JUNK = (-1, 0, 2.0, "2", None, [2], True, np.array([2]), np.timedelta64(3, "s"), 10**6, 10**30)


@pytest.mark.parametrize("width", JUNK, ids=repr)
def test_a_number_of_hidden_units_that_is_none_or_too_large_is_refused(width):
    with pytest.raises(ValueError, match=r"width=.* was given, expected an integer"):
        solve(LinearProblem.from_matrix(A), 1.0, width)
    with pytest.raises(ValueError, match=r"width=.* was given, expected an integer"):
        solve_tied(A.T @ A, 1.0, width)
    if width is None:
        return
    for model in (DropoutFactorization, DropoutAutoencoder, DropoutRegressor):
        with pytest.raises(ValueError, match=r"n_components=.* was given, expected an integer"):
            model(n_components=width).fit(A, A[:, :2])


def test_more_hidden_units_than_the_limit_are_allowed_where_the_data_are_as_large():
    wide = np.zeros((1, WIDEST + 5))
    wide[0, :2] = 1.0
    with pytest.raises(ValueError, match=rf"\[1, {WIDEST + 5}\]"):
        DropoutFactorization(WIDEST + 6).fit(wide)


@pytest.mark.parametrize(
    "strength", [-1.0, np.nan, "auto", None, [1.0], np.ones((1, 1)), range(0), 10**400], ids=str
)
def test_a_strength_that_is_no_number_of_at_least_zero_is_refused(strength):
    for attempt in (
        lambda: solve(LinearProblem.from_matrix(A), strength, 2),
        lambda: solve_tied(A.T @ A, strength, 2),
    ):
        with pytest.raises(ValueError, match="strength="):
            attempt()


@pytest.mark.parametrize("cv", [np.array([[1.0]]), [0.1, 0.2], [(1, 2, 3)], {1}], ids=str)
def test_folds_that_are_no_pairs_of_rows_are_refused(cv):
    with pytest.raises(ValueError, match="fold 0 of cv is"):
        DropoutRegressor(2, dropout="cv", cv=cv).fit(A, A[:, :2])


def test_folds_may_come_from_a_generator():
    folds = [(np.arange(8), np.arange(8, 12)), (np.arange(4, 12), np.arange(4))]
    models = [
        DropoutRegressor(2, dropout="cv", cv=cv).fit(A, A[:, :2])
        for cv in (folds, (fold for fold in folds))
    ]
    assert models[0].dropout_ == models[1].dropout_


def test_a_score_whose_squares_overflow_is_refused():
    model = DropoutAutoencoder(2).fit(A)
    with pytest.raises(ValueError, match="squares of X overflow"):
        model.score(np.full((3, 4), 1e300))


def test_rows_far_from_zero_whose_squares_overflow_are_refused_without_an_intercept():
    model = DropoutRegressor(2, fit_intercept=False).fit(A, A[:, :2])
    far = np.full((12, 4), 1e300)
    for attempt in (model.fit, lambda X, y: certify(model, X, y)):
        with pytest.raises(ValueError, match="squares of X overflow") as refused:
            attempt(far, A[:, :2])
        assert type(refused.value) is ValueError


@pytest.mark.parametrize("cv", [np.timedelta64(3, "s"), 1, 2.5], ids=str)
def test_a_number_of_folds_that_is_none_is_refused(cv):
    with pytest.raises(ValueError, match=r"cv=.* was given, expected an integer of at least 2"):
        DropoutRegressor(2, dropout="cv", cv=cv).fit(A, A[:, :2])


def test_constant_rows_in_single_precision_are_trained_on():
    X = (A + 1e8).astype(np.float32)  # neighbours of 1e8 differ by 8
    model = DropoutAutoencoder(2, solver="sgd", max_iter=100, random_state=0).fit(X)
    assert not np.any(model.left_ @ model.right_.T)
    assert model.objective_ == 0.0


def test_the_error_of_an_objective_may_overflow():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10, 4)) * 10.0 ** (150 - 2.0 * np.arange(4))
    Y = X @ rng.standard_normal((4, 2)) + np.std(X) * rng.standard_normal((10, 2))
    X = X * 10.0 ** (-2.0 * np.arange(4))
    value, error = row_objective(X, Y, None, Weights(1e3 * A[:2], A[:4] * 1e3), 1.0, True)
    assert error == np.inf
    assert value > 0


@pytest.mark.parametrize("scale", [1e-150, 1e150, 1e300])
def test_the_product_of_huge_or_tiny_weights_is_equalized(scale):
    rng = np.random.default_rng(0)
    U, V = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    expected = equalize_pair(U, V)
    for found, unit in zip(equalize_pair(scale * U, scale * V), expected, strict=True):
        assert found / scale == pytest.approx(unit, rel=1e-12, abs=1e-12)


def test_folds_in_an_array_without_dimensions_are_refused():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 5))
    with pytest.raises(ValueError, match="cv="):
        DropoutRegressor(2, dropout="cv", cv=np.array(0.5)).fit(X, X[:, :2])


@pytest.mark.parametrize("cv", [5, None])
def test_more_folds_than_rows_are_refused_by_the_name_of_our_argument(cv):
    X = np.random.default_rng(0).standard_normal((3, 2))
    with pytest.raises(ValueError, match=r"cv=5 folds .* X has n_samples=3.*smaller cv"):
        DropoutRegressor(dropout="cv", cv=cv).fit(X, X)
