"""What single estimators do: streams, weights, solvers, warm starts, codes, progress."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from dropout.problems import dropout_loss, regression_data, seeds
from extras import require
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, SecondMoment

NETWORKS = [
    DropoutRegressor(3, dropout=0.3, random_state=0),
    DropoutAutoencoder(3, dropout=0.3, random_state=0),
]
SHORT = {"solver": "sgd", "warm_start": True, "tol": 1e-6, "max_iter": 200}


def of_each_network(test):
    return pytest.mark.parametrize("model", NETWORKS, ids=lambda model: type(model).__name__)(test)


@pytest.mark.covering
@pytest.mark.parametrize(
    "model", [*NETWORKS, DropoutRegressor(2, shrink=False, alpha=2.0)], ids=str
)
@pytest.mark.parametrize(("size", "sparse"), [(1, True), (7, False)])
def test_partial_fit_equals_fit(model, size, sparse):
    X, Y = regression_data(n=60)
    X[np.abs(X) < 1.5] = 0.0
    weights = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    data = scipy.sparse.csr_array(X) if sparse else X
    stream = clone(model)
    for start in range(0, 60, size):
        rows = slice(start, start + size)
        stream.partial_fit(data[rows], Y[rows], sample_weight=weights[rows])
    whole = clone(model).fit(data, Y, sample_weight=weights)
    for name in ("left_", "right_", "singular_values_", "objective_"):
        value = getattr(whole, name)
        assert_allclose(getattr(stream, name), value, atol=1e-10 * np.abs(value).max())


def test_partial_fit_continues_after_fit():
    X, Y = regression_data()
    model = DropoutRegressor(2).fit(X[:50], Y[:50]).partial_fit(X[50:], Y[50:])
    assert_allclose(model.coef_, DropoutRegressor(2).fit(X, Y).coef_, atol=1e-10)
    with pytest.raises(ValueError, match="targets"):
        model.partial_fit(X, Y[:, :2])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :3], Y)
    for other in (DropoutRegressor(solver="sgd"), DropoutAutoencoder(solver="sgd")):
        assert not hasattr(other, "partial_fit")
    for chosen in ({"dropout": "cv"}, {"n_components": "cv", "shrink": False}):
        assert not hasattr(DropoutRegressor(**chosen), "partial_fit")
        batches, moment = iter([(X, Y)]), SecondMoment.of(np.hstack([X, Y]))
        with pytest.raises(ValueError, match="='cv' divides the rows into folds"):
            DropoutRegressor(**chosen).fit_batches(batches, start=moment)


@settings(max_examples=20)
@given(seeds())
def test_weights_are_frequencies(seed):
    X, Y = regression_data(seed, n=25)
    counts = np.random.default_rng(seed).integers(0, 4, 25)
    counts[0] = 1
    for model in NETWORKS:
        weighted = clone(model).fit(X, Y, sample_weight=counts)
        repeated = clone(model).fit(np.repeat(X, counts, 0), np.repeat(Y, counts, 0))
        product = repeated.left_ @ repeated.right_.T
        assert_allclose(weighted.left_ @ weighted.right_.T, product, atol=1e-9)
        assert weighted.objective_ == pytest.approx(repeated.objective_)


@of_each_network
def test_sparse_equals_dense_and_is_never_made_dense(model, monkeypatch):
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_array((rng.random((200, 12)) < 0.1) * rng.random((200, 12)))
    Y = rng.standard_normal((200, 3))
    dense = clone(model).fit(X.toarray(), Y)
    original = type(X).toarray

    def refuse(self, *args, **kwargs):
        assert self.shape[0] < 200, "rows were made dense"
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(X), "toarray", refuse)
    sparse = clone(model).fit(X, Y)
    assert_allclose(sparse.left_ @ sparse.right_.T, dense.left_ @ dense.right_.T, atol=1e-10)
    method = "predict" if hasattr(sparse, "predict") else "transform"
    out = getattr(sparse, method)(X)
    monkeypatch.undo()
    assert_allclose(out, getattr(dense, method)(X.toarray()), atol=1e-10)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_no_dropout_is_ordinary_least_squares(fit_intercept):
    X, Y = regression_data()
    ours = DropoutRegressor(dropout=0.0, fit_intercept=fit_intercept).fit(X, Y)
    theirs = LinearRegression(fit_intercept=fit_intercept).fit(X, Y)
    assert_allclose(ours.coef_, theirs.coef_, atol=1e-9)
    assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-9)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y))


def test_attributes_of_a_regression_belong_together():
    X, Y = regression_data()
    model = DropoutRegressor(4, dropout=0.3).fit(X, Y)
    assert_allclose(model.coef_, model.left_ @ model.right_.T)
    assert (model.left_.shape, model.right_.shape) == ((3, 4), (5, 4))
    assert model.rank_ == np.linalg.matrix_rank(model.coef_)
    assert model.objective_ == pytest.approx(dropout_loss(model.left_, model.right_, X, Y, 0.3))
    hidden = np.mean(((X - X.mean(0)) @ model.right_) ** 2, axis=0)
    scores = np.sqrt(np.sum(model.left_**2, axis=0) * hidden)
    assert np.ptp(scores) < 1e-10 * scores.mean()
    # The bias of the hidden layer centres the inputs; without it their mean is shrunk, too.
    uncentred = DropoutRegressor(4, dropout=0.3, fit_intercept=False).fit(X, Y - Y.mean(0))
    assert model.objective_ < uncentred.objective_


@pytest.mark.parametrize(("width", "factor"), [(None, 0.5), (1, 0.5), (4, 0.8)])
def test_one_target_may_be_flat_and_is_shrunk_as_documented(width, factor):
    X, Y = regression_data()
    least_squares = DropoutRegressor(dropout=0.0).fit(X, Y[:, 0])
    flat = DropoutRegressor(width, dropout=0.5).fit(X, Y[:, 0])
    column = DropoutRegressor(width, dropout=0.5).fit(X, Y[:, :1])
    assert flat.coef_.shape == (5,)
    assert_allclose(flat.coef_, factor * least_squares.coef_)
    assert isinstance(flat.intercept_, float)
    assert_allclose(flat.predict(X), column.predict(X)[:, 0])
    assert flat.score(X, Y[:, 0]) == pytest.approx(column.score(X, Y[:, :1]))


@pytest.mark.parametrize("dropout", [1 - 1e-12, 1 - 2**-53])
def test_dropout_towards_one_still_fits(dropout):
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=dropout).fit(X, Y)
    assert model.rank_ == 1
    assert model.certificate_["stationarity"].holds
    assert model.objective_ == pytest.approx(np.sum(Y.var(axis=0)))


def test_an_autoencoder_shrinks_the_principal_components():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6)) * [6.0, 4.0, 2.0, 1.0, 0.5, 0.1] + 3.0
    model = DropoutAutoencoder(3, dropout=0.2).fit(X)
    variances, axes = np.linalg.eigh(np.cov(X.T, bias=True))
    deviations, axes = np.sqrt(variances[::-1]), axes[:, ::-1]
    assert_allclose(model.singular_values_, deviations[:3])
    gains = 1 - model.threshold_ / deviations[: model.rank_]
    expected = (axes[:, : model.rank_] * gains) @ axes[:, : model.rank_].T
    assert_allclose(model.left_ @ model.right_.T, expected, atol=1e-9)
    rebuilt = model.inverse_transform(model.transform(X))
    assert_allclose(rebuilt, (X - X.mean(0)) @ expected.T + X.mean(0), atol=1e-9)
    assert model.objective_ == pytest.approx(dropout_loss(model.left_, model.right_, X, X, 0.2))
    wide = rng.standard_normal((40, 1100))
    for fitted, coder in ((X, model), (wide, DropoutAutoencoder(3).fit(wide))):
        for rows in (fitted, fitted + 1.0):
            centred = rows - coder.mean_
            error = rows - coder.inverse_transform(coder.transform(rows))
            assert coder.score(rows) == pytest.approx(1 - np.sum(error**2) / np.sum(centred**2))


@settings(max_examples=40)
@given(seeds(), st.integers(1, 8), st.sampled_from([0.0, 1e-9, 0.01, 0.5, 0.99]))
def test_codes_of_training_rows_equal_fit_transform(seed, width, dropout):
    rng = np.random.default_rng(seed)
    rank = rng.integers(1, 5)
    M = rng.standard_normal((9, rank)) @ rng.standard_normal((rank, 5))
    model = DropoutFactorization(width, dropout=dropout)
    codes = model.fit_transform(M)
    scale = np.abs(codes).max()
    assert_allclose(model.transform(M), codes, atol=1e-9 * scale)
    assert_allclose(model.inverse_transform(codes), codes @ model.right_.T)
    if dropout > 0.001:
        gram = model.right_.T @ model.right_
        loaded = gram + dropout / (1 - dropout) * np.diag(np.diag(gram))
        assert_allclose(codes, np.linalg.solve(loaded, model.right_.T @ M.T).T, atol=1e-8 * scale)


def test_factorization_without_dropout_is_the_truncated_decomposition():
    M = np.random.default_rng(0).standard_normal((7, 5))
    P, s, Qt = np.linalg.svd(M, full_matrices=False)
    model = DropoutFactorization(3, dropout=0.0).fit(M)
    assert_allclose(model.left_ @ model.right_.T, (P[:, :3] * s[:3]) @ Qt[:3], atol=1e-12)
    assert model.objective_ == pytest.approx(np.sum(s[3:] ** 2))


@of_each_network
@pytest.mark.parametrize("sparse", [False, True])
def test_sgd_agrees_with_the_exact_solver(model, sparse):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 6)) + 3.0
    X[np.abs(X) < 1] = 0.0
    Y = X @ rng.standard_normal((6, 4)) + 0.1 * rng.standard_normal((400, 4)) - 5.0
    weights = rng.integers(0, 4, 400)
    data = scipy.sparse.csr_array(X) if sparse else X
    exact = clone(model).fit(data, Y, sample_weight=weights)
    sgd = clone(model).set_params(solver="sgd", tol=2e-2).fit(data, Y, sample_weight=weights)
    assert sgd.status_.name == "CONVERGED"
    assert exact.objective_ * (1 - 1e-9) <= sgd.objective_ <= 1.01 * exact.objective_
    assert sgd.rank_ == exact.rank_
    product, best = (one.left_ @ one.right_.T * X.std(0) for one in (sgd, exact))
    assert np.linalg.norm(product - best) < 0.2 * np.linalg.norm(best)
    assert sgd.history_["objective"][-1, 0] == pytest.approx(sgd.objective_, rel=1e-6)
    assert sgd.n_iter_ >= 1


def test_same_seed_same_fit_and_a_limit_that_is_hit_warns():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)

    def fit():
        model = DropoutRegressor(2, solver="sgd", max_iter=20, tol=1e-9, random_state=5)
        with pytest.warns(ConvergenceWarning, match="limit"):
            return model.fit(X, y)

    assert_allclose(fit().coef_, fit().coef_, rtol=0)


def test_targets_that_nothing_explains_do_not_upset_sgd_and_divergence_stays_finite():
    rng = np.random.default_rng(3)
    X, y = rng.standard_t(3, (50, 8)), 100 * rng.standard_normal(50)
    model = DropoutRegressor(4, solver="sgd", max_iter=500, tol=0.5, random_state=0)
    assert model.fit(X, y).status_.name != "DIVERGED"
    constant = DropoutRegressor(solver="sgd", random_state=0).fit(X, np.ones(50))
    assert_allclose(constant.predict(X), 1.0)
    coder = DropoutAutoencoder(2, solver="sgd", max_iter=100, random_state=0)
    coder.fit((0.1 * X + 1e8).astype(np.float32))  # all equal: neighbours of 1e8 differ by 8
    assert not np.any(coder.left_ @ coder.right_.T)
    assert coder.objective_ <= 1e-300
    model.set_params(learning_rate=1e3)
    with pytest.warns(ConvergenceWarning, match="learning_rate='auto'"):
        model.fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.certificate_.holds is False


@of_each_network
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_warm_start_at_the_optimum_stops_at_once_or_stays_near(model):
    X, Y = regression_data()
    exact = clone(model).fit(X, Y)
    warm = clone(model).fit(X, Y).set_params(**SHORT).fit(X, Y)
    assert warm.status_.name == "CONVERGED"
    assert warm.n_iter_ == len(warm.history_["objective"]) == 1
    assert_allclose(warm.left_, exact.left_, atol=1e-10)
    assert_allclose(warm.right_, exact.right_, atol=1e-10)
    going_on = SHORT | {"tol": 0.0}
    warm = clone(model).fit(X, Y).set_params(**going_on).fit(X, Y)
    cold = clone(model).set_params(**going_on).fit(X, Y)  # the first fit has no last weights
    assert warm.n_iter_ == 200
    assert exact.objective_ <= warm.objective_ < cold.objective_
    assert warm.certificate_["gap"].value < 0.02


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_second_warm_fit_continues_the_first_and_a_cold_one_repeats_it():
    X, Y = regression_data()
    model = DropoutRegressor(2, **SHORT | {"schedule": "inverse", "random_state": 1})
    first = model.fit(X, Y).objective_
    second = model.fit(X, Y)
    assert second.history_["objective"][0, 0] == pytest.approx(first, rel=1e-9)
    assert second.objective_ < first
    assert model.set_params(warm_start=False).fit(X, Y).objective_ == pytest.approx(first)
    ignored = DropoutRegressor(3, warm_start=True).fit(X, Y).set_params(n_components=2).fit(X, Y)
    assert_allclose(ignored.coef_, DropoutRegressor(2).fit(X, Y).coef_, rtol=0)


def test_a_warm_start_in_torch_and_on_new_data_of_the_same_shape():
    torch = require("torch")
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=0.3, random_state=0).fit(X, Y)
    model.set_params(solver="sgd", warm_start=True, tol=1e-6)
    model.fit(torch.as_tensor(X), torch.as_tensor(Y))
    assert isinstance(model.left_, torch.Tensor)
    assert model.n_iter_ == 1
    shifted = X + 0.01 * np.random.default_rng(0).standard_normal(X.shape)
    assert model.set_params(tol=0.05).fit(shifted, Y).n_iter_ == 1


@pytest.mark.parametrize(("width", "columns", "targets"), [(2, 5, 3), (3, 4, 3), (3, 5, 2)])
def test_a_start_of_another_shape_warns_and_is_replaced(width, columns, targets):
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=0.3, random_state=0).fit(X, Y)
    model.set_params(solver="sgd", warm_start=True, tol=0.1)
    X, Y = X[:, :columns], Y[:, :targets]
    with pytest.warns(UserWarning, match=r"shapes \(3, 3\) and \(5, 3\).*random weights"):
        model.set_params(n_components=width).fit(X, Y)
    cold = DropoutRegressor(width, dropout=0.3, random_state=0, solver="sgd", tol=0.1).fit(X, Y)
    assert_allclose(model.coef_, cold.coef_, rtol=0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_verbose_shows_progress_and_changes_nothing(monkeypatch, capsys):
    X, Y = regression_data()
    sgd = {"solver": "sgd", "max_iter": 300, "tol": 0.0}
    chosen = DropoutRegressor(2, dropout="cv", cv=3)
    fits = {
        " 100/300 ": clone(NETWORKS[1]).set_params(**sgd),
        " 2/3 ": chosen,
    }
    quiet = [clone(model).fit(X, Y).left_ for model in fits.values()]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    for expected, (words, model) in zip(quiet, fits.items(), strict=True):
        assert_allclose(model.set_params(verbose=True).fit(X, Y).left_, expected, rtol=0)
        assert words in capsys.readouterr().err
