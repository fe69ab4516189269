"""`DropoutRegressor`: least squares without dropout, the optimum with it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LinearRegression

from dropout.problems import regression_data
from extras import require
from lucidae import DropoutRegressor


def test_no_dropout_is_ordinary_least_squares():
    X, Y = regression_data()
    ours = DropoutRegressor(dropout=0.0).fit(X, Y)
    theirs = LinearRegression().fit(X, Y)
    assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-9)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y))
    plain = DropoutRegressor(dropout=0.0, fit_intercept=False).fit(X, Y)
    without = LinearRegression(fit_intercept=False).fit(X, Y)
    assert_allclose(plain.coef_, without.coef_, atol=1e-9)
    assert_allclose(plain.intercept_, 0.0)


def test_attributes_belong_together():
    X, Y = regression_data()
    model = DropoutRegressor(4, dropout=0.3).fit(X, Y)
    assert_allclose(model.coef_, model.left_ @ model.right_.T)
    assert model.left_.shape == (3, 4)
    assert model.right_.shape == (5, 4)
    assert model.rank_ == np.linalg.matrix_rank(model.coef_)
    # The expected dropout loss, computed on the data: error plus λ Σ ‖uᵢ‖² var(vᵢᵀx).
    centred = X - X.mean(0)
    error = np.mean(np.sum((Y - model.predict(X)) ** 2, axis=1))
    hidden = np.mean((centred @ model.right_) ** 2, axis=0)
    penalty = 0.3 / 0.7 * np.sum(np.sum(model.left_**2, axis=0) * hidden)
    assert model.objective_ == pytest.approx(error + penalty)
    scores = np.sqrt(np.sum(model.left_**2, axis=0) * hidden)
    assert np.ptp(scores) < 1e-10 * scores.mean()


def test_two_biases_beat_an_output_bias_alone():
    # mathematics: the intercept is exact on centred data; the uncentred fit pays for the mean.
    X, Y = regression_data()
    centred = DropoutRegressor(3, dropout=0.5).fit(X, Y)
    X0, Y0 = X, Y - Y.mean(0)
    uncentred = DropoutRegressor(3, dropout=0.5, fit_intercept=False).fit(X0, Y0)
    assert centred.objective_ < uncentred.objective_


def test_one_target_may_be_flat():
    X, Y = regression_data()
    flat = DropoutRegressor(2, dropout=0.2).fit(X, Y[:, 0])
    column = DropoutRegressor(2, dropout=0.2).fit(X, Y[:, :1])
    assert flat.coef_.shape == (5,)
    assert isinstance(flat.intercept_, float)
    assert flat.predict(X).shape == (80,)
    assert_allclose(flat.predict(X), column.predict(X)[:, 0])
    assert flat.score(X, Y[:, 0]) == pytest.approx(column.score(X, Y[:, :1]))


def test_torch_sgd_and_cv_stay_in_torch():
    torch = require("torch")
    X, Y = map(torch.as_tensor, regression_data())
    sgd = DropoutRegressor(2, solver="sgd", max_iter=50, tol=10.0, random_state=0).fit(X, Y)
    assert isinstance(sgd.coef_, torch.Tensor)
    chosen = DropoutRegressor(2, dropout="cv", cv=3).fit(X, Y)
    reference = DropoutRegressor(2, dropout="cv", cv=3).fit(X.numpy(), Y.numpy())
    assert chosen.dropout_ == pytest.approx(reference.dropout_)


def test_cross_validation_shows_its_progress_and_belongs_to_the_fit(monkeypatch, capsys):
    X, Y = regression_data()
    quiet = DropoutRegressor(2, dropout="cv", cv=3).fit(X, Y)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    loud = DropoutRegressor(2, dropout="cv", cv=3, verbose=True).fit(X, Y)
    shown = capsys.readouterr().err
    assert "cross-validation: " in shown
    assert " 2/3 " in shown
    assert loud.dropout_ == quiet.dropout_ == quiet.cv_.best
    with pytest.raises(ValueError, match="NaN"):
        quiet.set_params(dropout=0.3).fit(X, np.nan * Y)
    assert quiet.dropout_ == loud.dropout_
    assert quiet.fit(X, Y).cv_ is None
    assert quiet.dropout_ == 0.3


@pytest.mark.parametrize(("width", "factor"), [(None, 0.5), (1, 0.5), (4, 0.8)])
def test_one_target_is_shrunk_as_the_documentation_says(width, factor):
    X, Y = regression_data()
    least_squares = DropoutRegressor(dropout=0.0).fit(X, Y[:, 0])
    model = DropoutRegressor(width, dropout=0.5).fit(X, Y[:, 0])
    assert_allclose(model.coef_, factor * least_squares.coef_)


@pytest.mark.parametrize("dropout", [1 - 1e-12, 1 - 2**-53])
def test_dropout_towards_one_still_fits(dropout):
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=dropout).fit(X, Y)
    assert model.rank_ == 1
    assert model.certificate_["stationarity"].holds
    assert model.objective_ == pytest.approx(np.sum(Y.var(axis=0)))
