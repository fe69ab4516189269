"""The path equals one solve per rate; cross-validation equals refitting on every fold."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.model_selection import KFold, LeaveOneOut, ShuffleSplit

from lucidae import DropoutRegressor, SecondMoment
from lucidae.dropout import (
    CrossValidation,
    DropoutObjective,
    LinearProblem,
    rank_path,
    regularization_path,
    solve,
)


def test_path_equals_one_solve_per_rate_and_breaks_where_the_rank_falls():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 5))
    Y = X @ rng.standard_normal((5, 4)) + rng.standard_normal((60, 4))
    problem = LinearProblem.from_moment(SecondMoment.of(np.hstack([X, Y])), 5)
    rates = np.linspace(0.0, 0.99, 23)
    path = regularization_path(problem, 3, rates)
    for index, rate in enumerate(rates):
        solution = solve(problem, rate / (1 - rate), 3)
        objective = DropoutObjective(problem, 0.0)
        assert path.rank[index] == solution.rank
        assert path.threshold[index] == pytest.approx(solution.threshold)
        assert path.objective[index] == pytest.approx(solution.value, rel=1e-9)
        assert path.error[index] == pytest.approx(float(objective.loss(solution.weights)), rel=1e-9)
    assert np.all(np.diff(path.rank) <= 0)
    assert np.all(np.diff(path.error) >= -1e-9)
    for position, limit in enumerate(path.breaks):
        if limit < 1:
            around = regularization_path(problem, 3, [limit - 1e-6, limit + 1e-6])
            assert list(around.rank) == [position + 1, position]
    default = regularization_path(problem, 3)
    assert default.dropout[0] == 0.0
    assert np.all(np.diff(default.dropout) > 0)


def noisy_data(seed=0, n=60):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)) + 1.0
    signal = rng.standard_normal((6, 1)) @ rng.standard_normal((1, 4))
    return X, X @ signal + 2.0 * rng.standard_normal((n, 4)) + 3.0


def naive_errors(X, Y, splits, width, dropouts, fit_intercept):
    errors = []
    for train, test in splits:
        row = []
        for dropout in dropouts:
            model = DropoutRegressor(width, dropout=dropout, fit_intercept=fit_intercept)
            residual = model.fit(X[train], Y[train]).predict(X[test]) - Y[test]
            row.append(np.mean(np.sum(residual**2, axis=1)))
        errors.append(row)
    return np.array(errors)


@pytest.mark.covering
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    "cv",
    [
        5,
        KFold(4, shuffle=True, random_state=0),
        ShuffleSplit(3, random_state=0),
        LeaveOneOut(),
    ],
    ids=lambda cv: type(cv).__name__,
)
def test_errors_along_the_path_equal_refitting(cv, fit_intercept):
    X, Y = noisy_data(n=20 if isinstance(cv, LeaveOneOut) else 60)
    model = DropoutRegressor(3, dropout="cv", cv=cv, fit_intercept=fit_intercept).fit(X, Y)
    index = [0, 60, 100, 140]
    splitter = KFold(5) if cv == 5 else cv
    expected = naive_errors(X, Y, splitter.split(X), 3, model.cv_.dropout[index], fit_intercept)
    assert model.cv_.errors.shape == (len(expected), 162)
    assert_allclose(model.cv_.errors[:, index], expected, rtol=1e-8)


def test_the_best_rate_is_used():
    X, Y = noisy_data()
    model = DropoutRegressor(4, dropout="cv", cv=5).fit(X, Y)
    assert model.cv_.mean.min() == model.cv_.mean[model.cv_.dropout == model.dropout_]
    assert 0.0 < model.dropout_ < 1.0
    assert_allclose(model.coef_, DropoutRegressor(4, dropout=model.dropout_).fit(X, Y).coef_)
    assert model.dropout == "cv"
    assert DropoutRegressor(2, dropout=0.25).fit(X, Y).cv_ is None


def test_clean_data_need_no_dropout_and_pure_noise_wants_much():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 5))
    clean = DropoutRegressor(dropout="cv").fit(X, X @ rng.standard_normal((5, 5)))
    noise = DropoutRegressor(dropout="cv").fit(X, rng.standard_normal((200, 5)))
    assert clean.dropout_ < 0.01
    assert noise.dropout_ > 0.5


def test_weights_enter_the_held_out_error_and_sparse_equals_dense():
    X, Y = noisy_data()
    X[np.abs(X) < 1] = 0.0
    weights = np.random.default_rng(2).integers(1, 3, 60)
    dense = DropoutRegressor(3, dropout="cv").fit(X, Y, weights)
    sparse = DropoutRegressor(3, dropout="cv").fit(scipy.sparse.csr_array(X), Y, weights)
    assert_allclose(sparse.cv_.errors, dense.cv_.errors, rtol=1e-8)
    train, test = next(KFold(5).split(X))
    model = DropoutRegressor(3, dropout=dense.cv_.dropout[80]).fit(
        X[train], Y[train], weights[train]
    )
    residual = np.sum((model.predict(X[test]) - Y[test]) ** 2, axis=1)
    expected = np.average(residual, weights=weights[test])
    assert dense.cv_.errors[0, 80] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("alpha", "fit_intercept"), [(0.0, True), (2.0, True), (0.5, False)])
def test_the_path_of_ranks_equals_one_fit_per_rank(alpha, fit_intercept):
    X, Y = noisy_data()
    weights = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    options = {"alpha": alpha, "fit_intercept": fit_intercept}
    path = rank_path(X, Y, cv=4, sample_weight=weights, **options)
    assert list(path.rank) == [0, 1, 2, 3, 4]
    for rank in (1, 2, 4):
        model = DropoutRegressor(rank, shrink=False, **options).fit(X, Y, weights)
        assert_allclose(path.coef(rank), model.coef_, atol=1e-10)
        assert_allclose(path.intercept(rank), model.intercept_, atol=1e-10)
        residual = np.sum((Y - model.predict(X)) ** 2, axis=1)
        assert path.error[rank] == pytest.approx(np.average(residual, weights=weights))
    mean = np.average(Y, axis=0, weights=weights) if fit_intercept else 0.0
    assert_allclose(path.intercept(0), mean)
    assert not path.coef(0).any()
    spread = np.sum((Y - mean) ** 2, axis=1)
    assert path.error[0] == pytest.approx(np.average(spread, weights=weights))
    assert_allclose(path.singular_values, model.singular_values_)
    chosen = DropoutRegressor("cv", shrink=False, cv=4, **options).fit(X, Y, weights)
    assert_allclose(path.held_out_error, chosen.cv_.mean)
    assert_allclose(path.standard_error, chosen.cv_.standard_error)
    assert path.best == chosen.n_components_
    chosen.set_params(n_components="cv_1se").fit(X, Y, weights)
    assert path.one_se == chosen.n_components_


def test_the_path_of_ranks_takes_lists_sparse_rows_and_one_target():
    X, Y = noisy_data()
    X[np.abs(X) < 1] = 0.0
    dense = rank_path(X, Y, max_rank=2)
    sparse = rank_path(scipy.sparse.csr_array(X), Y.tolist(), max_rank=2)
    assert_allclose(sparse.coef(2), dense.coef(2), atol=1e-9)
    assert_allclose(sparse.held_out_error, dense.held_out_error)
    flat = rank_path(X.tolist(), Y[:, 0].tolist(), cv=None)
    assert flat.coef(1).shape == (1, 6)
    assert np.isnan(flat.held_out_error).all()
    assert np.isnan(flat.standard_error).all()
    with pytest.raises(ValueError, match="cv=None"):
        flat.best  # noqa: B018


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_rank": 0}, "max_rank"),
        ({"max_rank": 5}, "max_rank"),
        ({"alpha": -1.0}, "alpha"),
        ({"cv": 1}, "cv"),
        ({"fit_intercept": 1}, "fit_intercept"),
        ({"sample_weight": np.ones(3)}, "weight"),
    ],
)
def test_wrong_arguments_of_the_path_of_ranks_are_refused(settings, match):
    X, Y = noisy_data()
    with pytest.raises(ValueError, match=match):
        rank_path(X, Y, **settings)
    with pytest.raises(ValueError, match="y has 59"):
        rank_path(X, Y[1:])
    with pytest.raises(ValueError, match="rank"):
        rank_path(X, Y, cv=None).coef(5)


def test_standard_errors_of_huge_errors_do_not_overflow():
    errors = 1e300 * np.array([[4.0, 2.0], [5.0, 2.5], [3.0, 2.1]])
    large = CrossValidation(np.array([0.1, 0.5]), errors, np.array([10.0, 10.0, 20.0]))
    small = CrossValidation(large.dropout, errors / 1e300, large.weights)
    assert_allclose(large.mean / 1e300, small.mean)
    assert_allclose(large.standard_error / 1e300, small.standard_error)
    assert_allclose(large.results()["std_test_score"] / 1e300, small.results()["std_test_score"])
    assert large.one_se == small.one_se
