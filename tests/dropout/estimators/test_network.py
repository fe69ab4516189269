"""The two solvers agree; streams, weights, sparse rows and warm starts."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dropout.problems import regression_data, seeds
from extras import require
from lucidae import DropoutAutoencoder, DropoutRegressor
from lucidae.certificate import Certificate
from lucidae.dropout.estimators.network import upgraded_state
from lucidae.iteration import Status


@pytest.mark.parametrize("estimator", [DropoutRegressor(3, dropout=0.3), DropoutAutoencoder(3)])
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("sparse", [False, True])
def test_partial_fit_equals_fit(estimator, size, sparse):
    X, Y = regression_data(n=60)
    X[np.abs(X) < 1.5] = 0.0
    weights = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    data = scipy.sparse.csr_array(X) if sparse else X
    stream = clone(estimator)
    for start in range(0, 60, size):
        rows = slice(start, start + size)
        stream.partial_fit(data[rows], Y[rows], sample_weight=weights[rows])
    whole = clone(estimator).fit(data, Y, sample_weight=weights)
    for name in ("left_", "right_", "singular_values_", "objective_"):
        value = getattr(whole, name)
        assert_allclose(getattr(stream, name), value, atol=1e-10 * np.abs(value).max())


def test_partial_fit_continues_after_fit_and_solves_when_first_read():
    X, Y = regression_data()
    model = DropoutRegressor(2).fit(X[:50], Y[:50]).partial_fit(X[50:], Y[50:])
    assert model._state._attributes is None
    assert_allclose(model.coef_, DropoutRegressor(2).fit(X, Y).coef_, atol=1e-10)
    with pytest.raises(ValueError, match="targets"):
        model.partial_fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :3], Y)


@pytest.mark.parametrize(
    "estimator",
    [
        DropoutRegressor(solver="sgd"),
        DropoutRegressor(dropout="cv"),
        DropoutAutoencoder(solver="sgd"),
    ],
)
def test_partial_fit_is_absent_where_it_means_nothing(estimator):
    assert not hasattr(estimator, "partial_fit")


@settings(max_examples=30)
@given(seeds())
def test_weights_are_frequencies(seed):
    rng = np.random.default_rng(seed)
    X, Y = regression_data(seed, n=25)
    counts = rng.integers(0, 4, 25)
    counts[0] = 1
    for model in (DropoutRegressor(2, dropout=0.4), DropoutAutoencoder(2, dropout=0.4)):
        weighted = clone(model).fit(X, Y, sample_weight=counts)
        repeated = clone(model).fit(np.repeat(X, counts, 0), np.repeat(Y, counts, 0))
        assert_allclose(
            weighted.left_ @ weighted.right_.T, repeated.left_ @ repeated.right_.T, atol=1e-9
        )
        assert weighted.objective_ == pytest.approx(repeated.objective_)


@pytest.mark.parametrize("model", [DropoutRegressor(2, dropout=0.2), DropoutAutoencoder(2)])
def test_sparse_equals_dense_and_is_never_made_dense(model, monkeypatch):
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_array((rng.random((200, 12)) < 0.1) * rng.random((200, 12)))
    Y = rng.standard_normal((200, 3))
    dense = clone(model).fit(X.toarray(), Y)

    def refuse(self, *args, **kwargs):
        assert self.shape[0] < 200, "rows were made dense"
        return original(self, *args, **kwargs)

    original = type(X).toarray
    monkeypatch.setattr(type(X), "toarray", refuse)
    sparse = clone(model).fit(X, Y)
    assert_allclose(sparse.left_ @ sparse.right_.T, dense.left_ @ dense.right_.T, atol=1e-10)
    out = sparse.predict(X) if hasattr(sparse, "predict") else sparse.transform(X)
    monkeypatch.undo()
    X = X.toarray()
    again = dense.predict(X) if hasattr(dense, "predict") else dense.transform(X)
    assert_allclose(out, again, atol=1e-10)


@pytest.mark.parametrize("sparse", [False, True])
def test_sgd_regressor_agrees_with_the_exact_one(sparse):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 6)) + 3.0
    X[np.abs(X) < 1] = 0.0
    Y = X @ rng.standard_normal((6, 4)) + 0.1 * rng.standard_normal((400, 4)) - 5.0
    weights = rng.integers(0, 4, 400)
    data = scipy.sparse.csr_array(X) if sparse else X
    exact = DropoutRegressor(3, dropout=0.3).fit(data, Y, weights)
    sgd = DropoutRegressor(3, dropout=0.3, solver="sgd", tol=2e-2, random_state=0)
    sgd.fit(data, Y, weights)
    assert sgd.status_ is Status.CONVERGED
    assert exact.objective_ * (1 - 1e-9) <= sgd.objective_ <= 1.01 * exact.objective_
    assert sgd.rank_ == exact.rank_
    difference = np.linalg.norm(sgd.predict(data) - exact.predict(data))
    assert difference < 0.05 * np.linalg.norm(exact.predict(data) - Y.mean(0))
    assert sgd.history_["objective"][-1, 0] == pytest.approx(sgd.objective_, rel=1e-6)
    assert sgd.n_iter_ >= 1


def test_sgd_autoencoder_agrees_with_the_exact_one():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 5)) * [4.0, 2.0, 1.0, 0.5, 0.1] + 1.0
    exact = DropoutAutoencoder(3, dropout=0.2).fit(X)
    sgd = DropoutAutoencoder(3, dropout=0.2, solver="sgd", tol=2e-2, random_state=0).fit(X)
    assert exact.objective_ <= sgd.objective_ <= 1.01 * exact.objective_
    product, best = sgd.left_ @ sgd.right_.T, exact.left_ @ exact.right_.T
    assert np.linalg.norm((product - best) * X.std(0)) < 0.1 * np.linalg.norm(best * X.std(0))


def test_same_seed_same_fit_and_a_limit_that_is_hit_warns():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)

    def fit():
        model = DropoutRegressor(2, solver="sgd", max_iter=20, tol=1e-9, random_state=5)
        with pytest.warns(ConvergenceWarning, match="limit"):
            return model.fit(X, y)

    assert_allclose(fit().coef_, fit().coef_, rtol=0)


def test_targets_that_nothing_explains_do_not_upset_sgd():
    rng = np.random.default_rng(3)
    X, y = rng.standard_t(3, (50, 8)), 100 * rng.standard_normal(50)
    model = DropoutRegressor(4, solver="sgd", max_iter=500, tol=0.5, random_state=0)
    model.fit(X, y)
    assert model.status_ is not Status.DIVERGED
    constant = DropoutRegressor(solver="sgd", random_state=0).fit(X, np.ones(50))
    assert_allclose(constant.predict(X), 1.0)


NETWORKS = [
    DropoutRegressor(3, dropout=0.3, random_state=0),
    DropoutAutoencoder(3, dropout=0.3, random_state=0),
]
SHORT = {"solver": "sgd", "warm_start": True, "tol": 1e-6, "max_iter": 200}


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: type(model).__name__)
def test_a_warm_start_at_the_optimum_stops_at_once(model):
    X, Y = regression_data()
    exact = clone(model).fit(X, Y)
    warm = clone(model).fit(X, Y).set_params(**SHORT).fit(X, Y)
    assert warm.status_ is Status.CONVERGED
    assert warm.n_iter_ == 1
    assert len(warm.history_["objective"]) == 1
    assert_allclose(warm.left_, exact.left_, atol=1e-10)
    assert_allclose(warm.right_, exact.right_, atol=1e-10)


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: type(model).__name__)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_warm_start_stays_near_the_optimum_and_beats_a_cold_one(model):
    X, Y = regression_data()
    exact = clone(model).fit(X, Y)
    settings = SHORT | {"tol": 0.0}
    warm = clone(model).fit(X, Y).set_params(**settings).fit(X, Y)
    cold = clone(model).set_params(**settings).fit(X, Y)  # the first fit has no last weights
    assert warm.n_iter_ == 200
    assert exact.objective_ <= warm.objective_ < cold.objective_
    assert warm.certificate_["gap"].value < 0.02


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_second_warm_fit_continues_the_first_and_a_cold_one_repeats_it():
    X, Y = regression_data()
    model = DropoutRegressor(2, **SHORT | {"schedule": "inverse", "random_state": 1})
    first = model.fit(X, Y).objective_
    start = model._state.network.weights
    second = model.fit(X, Y)
    assert second.history_["objective"][0, 0] == pytest.approx(first, rel=1e-9)
    assert second.objective_ < first
    assert second._state.network.weights is not start
    assert model.set_params(warm_start=False).fit(X, Y).objective_ == pytest.approx(first)


def test_a_warm_start_works_on_new_data_of_the_same_shape_and_in_torch():
    torch = require("torch")
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=0.3, random_state=0).fit(X, Y)
    model.set_params(solver="sgd", warm_start=True, tol=1e-6)
    model.fit(torch.as_tensor(X), torch.as_tensor(Y))
    assert isinstance(model.left_, torch.Tensor)
    assert model.n_iter_ == 1
    shifted = X + 0.01 * np.random.default_rng(0).standard_normal(X.shape)
    model.set_params(tol=0.05).fit(shifted, Y)
    assert model.n_iter_ == 1


@pytest.mark.parametrize(
    "change", [{"n_components": 2}, {"columns": 4}, {"targets": 2}], ids=lambda c: next(iter(c))
)
def test_a_start_of_another_shape_warns_and_is_replaced(change):
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=0.3, random_state=0).fit(X, Y)
    model.set_params(solver="sgd", warm_start=True, tol=0.1)
    width, columns = change.get("n_components", 3), change.get("columns", 5)
    X, Y = X[:, :columns], Y[:, : change.get("targets", 3)]
    with pytest.warns(UserWarning, match=r"shapes \(3, 3\) and \(5, 3\).*random weights"):
        model.set_params(n_components=width).fit(X, Y)
    cold = DropoutRegressor(width, dropout=0.3, random_state=0, solver="sgd", tol=0.1).fit(X, Y)
    assert_allclose(model.coef_, cold.coef_, rtol=0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: type(model).__name__)
def test_verbose_shows_progress_and_changes_nothing(model, monkeypatch, capsys):
    X, Y = regression_data()
    settings = {"solver": "sgd", "max_iter": 300, "tol": 0.0}
    quiet = clone(model).set_params(**settings).fit(X, Y)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    loud = clone(model).set_params(verbose=True, **settings).fit(X, Y)
    assert " 100/300 " in capsys.readouterr().err
    assert_allclose(loud.left_, quiet.left_, rtol=0)


def test_the_exact_solver_ignores_a_warm_start():
    X, Y = regression_data()
    model = DropoutRegressor(3, warm_start=True).fit(X, Y).set_params(n_components=2).fit(X, Y)
    assert_allclose(model.coef_, DropoutRegressor(2).fit(X, Y).coef_, rtol=0)
    stream = DropoutRegressor(2, warm_start=True).partial_fit(X, Y)
    stream.fit(X, Y)
    assert_allclose(stream.coef_, model.coef_, rtol=0)


def test_a_cached_certificate_of_the_first_version_gets_the_names_of_today():
    X, Y = regression_data()
    model = DropoutRegressor(2).fit(X, Y)
    old = {"path_norm": "path norm", "stationarity": "stationary"}
    claims = [replace(claim, name=old.get(claim.name, claim.name)) for claim in model.certificate_]
    fields = {
        "recipe": DropoutRegressor(2).fit(X, Y)._state,
        "_results": None,
        "certificate": Certificate("DropoutRegressor", tuple(claims)),
    }
    assert upgraded_state(fields).certificate("DropoutRegressor") == model.certificate_
