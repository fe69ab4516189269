"""Reduced-rank regression: brute force, closed forms, invariances, ridge penalty, certificate."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression, Ridge

from lucidae import DropoutRegressor, certify, load, save


def correlated(seed=0, n=60, features=5, targets=4, noise=0.5):
    """Draw inputs of very different variances, and targets of which two directions matter."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((features, features)) * np.geomspace(1.0, 0.03, features)
    X = rng.standard_normal((n, features)) @ mixing + rng.standard_normal(features)
    signal = rng.standard_normal((features, 2)) @ rng.standard_normal((2, targets))
    Y = X @ signal + noise * rng.standard_normal((n, targets)) - 1.0
    return X, Y


def penalised_error(coef, X, Y, alpha=0.0, weights=None):
    """Return the mean squared error of centred rows plus the ridge penalty, by definition."""
    weights = np.ones(len(X)) if weights is None else weights
    centred = [part - np.average(part, axis=0, weights=weights) for part in (X, Y)]
    residual = np.sum((centred[1] - centred[0] @ coef.T) ** 2, axis=1)
    return (weights @ residual + alpha * np.sum(coef**2)) / weights.sum()


def best_factors(X, Y, rank, alpha, rng, starts=3):
    """Return the smallest penalised error that L-BFGS finds for factors of the coefficients."""
    centred, outputs = X - X.mean(0), Y - Y.mean(0)
    shapes = (Y.shape[1], X.shape[1])

    def loss(flat):
        U = flat[: shapes[0] * rank].reshape(shapes[0], rank)
        V = flat[shapes[0] * rank :].reshape(shapes[1], rank)
        coef = U @ V.T
        residual = outputs - centred @ coef.T
        slope = -2 * residual.T @ centred + 2 * alpha * coef
        gradient = np.concatenate([(slope @ V).ravel(), (slope.T @ U).ravel()])
        return (np.sum(residual**2) + alpha * np.sum(coef**2)) / len(X), gradient / len(X)

    runs = []
    for _ in range(starts):
        start = rng.standard_normal(sum(shapes) * rank)
        options = {"maxiter": 3000, "ftol": 0.0, "gtol": 1e-10}
        runs.append(minimize(loss, start, jac=True, method="L-BFGS-B", options=options).fun)
    return min(runs)


@pytest.mark.covering
@pytest.mark.parametrize("alpha", [0.0, 2.0])
@pytest.mark.parametrize("rank", [1, 3])
def test_no_factors_found_by_descent_are_better(rank, alpha):
    X, Y = correlated(rank)
    model = DropoutRegressor(rank, shrink=False, alpha=alpha).fit(X, Y)
    assert np.linalg.matrix_rank(model.coef_, tol=1e-10) == model.rank_ == rank
    assert model.objective_ == pytest.approx(penalised_error(model.coef_, X, Y, alpha))
    found = best_factors(X, Y, rank, alpha, np.random.default_rng(rank))
    assert model.objective_ <= found * (1 + 1e-12)
    assert model.objective_ == pytest.approx(found, rel=1e-6)
    assert model.certificate_.holds


def test_cutting_the_coefficients_themselves_is_worse_for_correlated_inputs():
    X, Y = correlated(noise=2.0)
    full = LinearRegression().fit(X, Y).coef_
    P, s, Qt = np.linalg.svd(full, full_matrices=False)
    cut = (P[:, :1] * s[:1]) @ Qt[:1]
    model = DropoutRegressor(1, shrink=False).fit(X, Y)
    assert model.objective_ < 0.9 * penalised_error(cut, X, Y)


def test_factors_are_ordered_orthonormal_and_uncorrelated():
    X, Y = correlated()
    model = DropoutRegressor(3, shrink=False).fit(X, Y)
    codes = (X - X.mean(0)) @ model.right_
    assert_allclose(model.left_.T @ model.left_, np.eye(3), atol=1e-12)
    assert_allclose(codes.T @ codes / len(X), np.diag(model.singular_values_**2), atol=1e-10)
    assert np.all(np.diff(model.singular_values_) < 0)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("shape", [(40, 5), (6, 9)])
def test_full_rank_is_ridge_regression(shape, fit_intercept):
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal(shape) + 2.0, rng.standard_normal((shape[0], 3))
    weights = rng.integers(0, 4, shape[0]) + 1.0
    for settings in ({"shrink": False}, {"dropout": 0.0}):
        ours = DropoutRegressor(alpha=1.5, fit_intercept=fit_intercept, **settings)
        theirs = Ridge(1.5, fit_intercept=fit_intercept).fit(X, Y, weights)
        assert_allclose(ours.fit(X, Y, weights).coef_, theirs.coef_, atol=1e-10)
        assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-10)
        assert ours.certificate_.holds


def test_without_dropout_both_settings_agree():
    X, Y = correlated()
    hard = DropoutRegressor(2, shrink=False, alpha=0.7).fit(X, Y)
    zero = DropoutRegressor(2, shrink=False, dropout=0.0, alpha=0.7).fit(X, Y)
    soft = DropoutRegressor(2, dropout=0.0, alpha=0.7).fit(X, Y)
    assert_allclose(hard.coef_, soft.coef_, atol=1e-12)
    assert_allclose(hard.coef_, zero.coef_, rtol=0)
    assert hard.dropout_ == soft.dropout_ == 0.0
    assert hard.threshold_ == 0.0


def test_dropout_with_a_ridge_penalty_is_its_expectation_over_masks():
    X, Y = correlated()
    model = DropoutRegressor(3, dropout=0.4, alpha=5.0).fit(X, Y)
    centred, outputs = X - X.mean(0), Y - Y.mean(0)
    total = 0.0
    for kept in np.ndindex(2, 2, 2):
        chance = np.prod([0.6 if keep else 0.4 for keep in kept])
        coef = model.left_ * (np.array(kept) / 0.6) @ model.right_.T
        error = np.sum((outputs - centred @ coef.T) ** 2) + 5.0 * np.sum(coef**2)
        total += chance * error / len(X)
    assert model.objective_ == pytest.approx(total)
    assert model.certificate_.holds
    scores = np.linalg.norm(model.left_, axis=0) * np.sqrt(
        np.sum((centred @ model.right_) ** 2, axis=0) / len(X)
        + 5.0 / len(X) * np.sum(model.right_**2, axis=0)
    )
    assert np.ptp(scores) < 1e-10 * scores.mean()


def test_training_with_a_ridge_penalty_approaches_the_optimum():
    X, Y = correlated()
    exact = DropoutRegressor(2, dropout=0.2, alpha=20.0).fit(X, Y)
    trained = DropoutRegressor(2, dropout=0.2, alpha=20.0, solver="sgd", random_state=0).fit(X, Y)
    plain = DropoutRegressor(2, dropout=0.2).fit(X, Y)
    close = np.linalg.norm(trained.coef_ - exact.coef_)
    assert close < 0.2 * np.linalg.norm(plain.coef_ - exact.coef_)
    assert trained.certificate_.holds


def test_one_standard_error_chooses_the_simplest_setting_within_it():
    X, Y = correlated(noise=3.0)
    best = DropoutRegressor(dropout="cv").fit(X, Y)
    simple = DropoutRegressor(dropout="cv_1se").fit(X, Y)
    found = simple.cv_
    spread = found.errors.std(axis=0, ddof=1) / np.sqrt(5)
    assert_allclose(found.standard_error, spread)
    index = np.argmin(found.mean)
    allowed = found.mean <= found.mean[index] + spread[index]
    assert simple.dropout_ == found.dropout[allowed].max() > best.dropout_
    assert simple.rank_ <= best.rank_
    ranks = DropoutRegressor("cv_1se", shrink=False).fit(X, Y)
    index = 1 + np.argmin(ranks.cv_.mean[1:])
    limit = ranks.cv_.mean[index] + ranks.cv_.standard_error[index]
    assert ranks.n_components_ == 1 + np.flatnonzero(ranks.cv_.mean[1:] <= limit)[0]


def test_standard_errors_of_folds_of_unequal_weight():
    X, Y = correlated()
    weights = np.random.default_rng(1).integers(1, 9, 60).astype(float)
    found = DropoutRegressor("cv", shrink=False, cv=4).fit(X, Y, weights).cv_
    share = found.weights / found.weights.sum()
    deviations = found.errors - share @ found.errors
    assert_allclose(
        found.standard_error, np.sqrt((share[:, None] ** 2 * deviations**2).sum(0) * 4 / 3)
    )
    one = DropoutRegressor("cv", shrink=False, cv=[(np.arange(40), np.arange(40, 60))]).fit(X, Y)
    assert np.isnan(one.cv_.standard_error).all()
    with pytest.raises(ValueError, match="single fold"):
        one.set_params(n_components="cv_1se").fit(X, Y)


def test_results_have_the_names_of_a_grid_search():
    X, Y = correlated()
    model = DropoutRegressor("cv", shrink=False, cv=3).fit(X, Y)
    results = model.cv_results_
    assert results["params"][1] == {"n_components": 1}
    assert_allclose(results["mean_test_score"], -model.cv_.mean)
    assert_allclose(results["split2_test_score"], -model.cv_.errors[2])
    assert_allclose(results["std_test_score"], model.cv_.errors.std(axis=0))
    assert results["rank_test_score"][np.argmin(model.cv_.mean)] == 1
    rates = DropoutRegressor(dropout="cv", cv=3).fit(X, Y).cv_results_
    assert rates["param_dropout"].shape == rates["mean_test_score"].shape == (162,)
    assert DropoutRegressor(dropout=0.1).fit(X, Y).cv_results_ is None


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"dropout": 0.3}, "dropout=0.3 was given with shrink=False"),
        ({"dropout": "cv"}, "n_components='cv'"),
        ({"dropout": "cv_1se"}, "n_components='cv_1se'"),
        ({"dropout": -1.0}, "dropout"),
        ({"solver": "sgd"}, "solver='sgd' was given with shrink=False"),
        ({"n_components": "best"}, "'cv', 'cv_1se' or None"),
        ({"n_components": "cv", "shrink": True}, "use dropout='cv'"),
        ({"shrink": "no"}, "shrink"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": np.inf}, "alpha"),
        ({"shrink": True, "dropout": "1se"}, "'cv' or 'cv_1se'"),
    ],
)
def test_contradictory_settings_are_refused(settings, match):
    X, Y = correlated()
    model = DropoutRegressor(2).set_params(**{"shrink": False} | settings)
    with pytest.raises(ValueError, match=match):
        model.fit(X, Y)


def test_no_claim_cites_a_theorem_on_dropout():
    X, Y = correlated()
    model = DropoutRegressor(2, shrink=False).fit(X, Y)
    claims = {claim.name: claim for claim in model.certificate_.claims}
    assert {"gap", "product", "rank", "stationarity"} <= claims.keys()
    assert not {"equalized", "path_norm"} & claims.keys()
    text = model.certificate_.summary()
    assert "Mianjy" not in text
    assert "dropout" not in text.replace("DropoutRegressor", "").lower()
    model.coef_ = 2 * model.coef_
    assert model.certificate_["attributes"].holds is False
    assert "Mianjy" not in model.certificate_.summary()
    other = certify(model, X[:20], Y[:20])
    assert other["gap"].holds is False
    assert "Call fit again" in other["gap"].advice
    assert "Mianjy" not in other.summary()


def test_equal_singular_values_leave_the_coefficients_open():
    rng = np.random.default_rng(0)
    X = np.sqrt(40) * np.linalg.qr(rng.standard_normal((40, 3)))[0]
    model = DropoutRegressor(1, shrink=False, fit_intercept=False).fit(X, X[:, :2])
    assert model.certificate_["product"].holds is None
    assert "not unique" in model.certificate_["product"].advice
    assert model.certificate_["gap"].holds


def test_models_are_saved_and_loaded(tmp_path):
    X, Y = correlated()
    for model in (
        DropoutRegressor("cv_1se", shrink=False, alpha=0.5),
        DropoutRegressor(dropout="cv_1se", alpha=0.5),
    ):
        model.fit(X, Y)
        save(model, tmp_path / "model.npz")
        copy = load(tmp_path / "model.npz")
        assert copy.get_params() == model.get_params()
        assert_allclose(copy.coef_, model.coef_, rtol=0)
        assert copy.n_components_ == model.n_components_
        assert_allclose(copy.cv_results_["mean_test_score"], model.cv_results_["mean_test_score"])
        assert copy.certificate_.to_dict() == model.certificate_.to_dict()
