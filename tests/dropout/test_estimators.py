"""The estimators keep their promises: exact, streaming, weighted, sparse, in every library."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dropout.problems import seeds
from extras import require
from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor
from lucidae.dropout import DropoutObjective, LinearProblem, Weights


def regression_data(seed=0, n=80, features=5, targets=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 2.0
    return X, X @ rng.standard_normal((features, targets)) + rng.standard_normal((n, targets)) - 4.0


ALL = [DropoutRegressor(2), DropoutAutoencoder(2), DropoutFactorization(2)]


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


def test_partial_fit_goes_on_after_fit_and_waits_until_somebody_looks():
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
    X = scipy.sparse.random_array((200, 12), density=0.1, rng=rng, format="csr")
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


def test_autoencoder_spans_the_principal_components_and_shrinks_them():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6)) * [6.0, 4.0, 2.0, 1.0, 0.5, 0.1] + 3.0
    model = DropoutAutoencoder(3, dropout=0.2).fit(X)
    covariance = np.cov(X.T, bias=True)
    variances, axes = np.linalg.eigh(covariance)
    deviations, axes = np.sqrt(variances[::-1]), axes[:, ::-1]
    assert_allclose(model.singular_values_, deviations[:3])
    gains = 1 - model.threshold_ / deviations[: model.rank_]
    expected = (axes[:, : model.rank_] * gains) @ axes[:, : model.rank_].T
    assert_allclose(model.left_ @ model.right_.T, expected, atol=1e-9)
    codes = model.transform(X)
    rebuilt = model.inverse_transform(codes)
    assert_allclose(rebuilt, (X - X.mean(0)) @ expected.T + X.mean(0), atol=1e-9)
    residual = np.sum((X - rebuilt) ** 2) / np.sum((X - X.mean(0)) ** 2)
    assert model.score(X) == pytest.approx(1 - residual)
    problem = LinearProblem(covariance, covariance, np.trace(covariance))
    weights = Weights(model.left_, model.right_)
    assert model.objective_ == pytest.approx(DropoutObjective(problem, 0.25).value(weights))


@settings(max_examples=60)
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


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_single_precision_in_single_precision_out(model):
    X, Y = regression_data()
    fitted = clone(model).fit(X.astype(np.float32), Y.astype(np.float32))
    rounded = (part.astype(np.float32).astype(float) for part in (X, Y))
    double = clone(model).fit(*rounded)
    for name in ("left_", "right_", "singular_values_"):
        assert getattr(fitted, name).dtype == np.float32
        assert_allclose(getattr(fitted, name), getattr(double, name), rtol=1e-4, atol=1e-5)
    method = fitted.predict if hasattr(fitted, "predict") else fitted.transform
    assert method(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_torch_in_torch_out(model):
    torch = require("torch")
    X, Y = regression_data()
    reference = clone(model).fit(X, Y)
    fitted = clone(model).fit(torch.as_tensor(X), torch.as_tensor(Y))
    assert isinstance(fitted.left_, torch.Tensor)
    product = (fitted.left_ @ fitted.right_.mT).numpy()
    assert_allclose(product, reference.left_ @ reference.right_.T, atol=1e-9)
    tensors = clone(model).fit(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(Y))
    assert tensors.left_.dtype == torch.float32
    if isinstance(model, DropoutRegressor):
        assert isinstance(fitted.predict(torch.as_tensor(X)), torch.Tensor)
        assert fitted.score(torch.as_tensor(X), torch.as_tensor(Y)) == pytest.approx(
            reference.score(X, Y)
        )
        assert_allclose(fitted.predict(X), reference.predict(X), atol=1e-9)
        flat = clone(model).fit(torch.as_tensor(X), torch.as_tensor(Y[:, 0]))
        assert flat.predict(torch.as_tensor(X)).shape == (80,)
    else:
        codes = fitted.transform(torch.as_tensor(X))
        assert isinstance(codes, torch.Tensor)
        assert isinstance(fitted.inverse_transform(codes), torch.Tensor)
    assert fitted.certificate_.holds
    assert pickle.loads(pickle.dumps(fitted)).rank_ == fitted.rank_


def test_torch_sgd_and_cv_stay_in_torch():
    torch = require("torch")
    X, Y = map(torch.as_tensor, regression_data())
    sgd = DropoutRegressor(2, solver="sgd", max_iter=50, tol=10.0, random_state=0).fit(X, Y)
    assert isinstance(sgd.coef_, torch.Tensor)
    chosen = DropoutRegressor(2, dropout="cv", cv=3).fit(X, Y)
    reference = DropoutRegressor(2, dropout="cv", cv=3).fit(X.numpy(), Y.numpy())
    assert chosen.dropout_ == pytest.approx(reference.dropout_)


def test_data_frames_pipelines_and_searches():
    X, Y = regression_data()
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = DropoutRegressor(2).fit(frame, pd.DataFrame(Y))
    assert list(model.feature_names_in_) == list("abcde")
    assert_allclose(model.predict(frame), DropoutRegressor(2).fit(X, Y).predict(X))
    assert_allclose(DropoutRegressor(2).fit(pl.DataFrame(X), Y).coef_, model.coef_)
    coder = DropoutAutoencoder(2).set_output(transform="pandas").fit(frame)
    codes = coder.transform(frame)
    assert list(codes.columns) == ["dropoutautoencoder0", "dropoutautoencoder1"]
    assert isinstance(
        DropoutFactorization(2).set_output(transform="polars").fit_transform(frame), pl.DataFrame
    )
    pipeline = make_pipeline(StandardScaler(), DropoutAutoencoder(3), DropoutRegressor(2))
    search = GridSearchCV(pipeline, {"dropoutregressor__dropout": [0.0, 0.3]}, cv=3)
    assert 0.0 < search.fit(X, Y).best_score_ <= 1.0
    coder = GridSearchCV(DropoutAutoencoder(), {"n_components": [1, 3]}, cv=3).fit(X)
    assert coder.best_params_["n_components"] == 3


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_models_survive_cloning_and_pickling(model):
    X, Y = regression_data()
    fitted = clone(model).fit(X, Y)
    copied = pickle.loads(pickle.dumps(fitted))
    assert_allclose(copied.left_, fitted.left_, rtol=0)
    assert copied.certificate_.to_dict() == fitted.certificate_.to_dict()
    with pytest.raises(NotFittedError):
        clone(fitted).certificate_  # noqa: B018
    assert not hasattr(clone(fitted), "left_")


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_html_shows_the_certificate(model):
    X, Y = regression_data()
    assert "lucidae-certificate" in clone(model).fit(X, Y)._repr_html_()
    assert "lucidae-certificate" not in clone(model)._repr_html_()


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_extreme_scales(model, scale):
    X, Y = regression_data()
    small = clone(model).fit(scale * X, scale * Y)
    reference = clone(model).fit(X, Y)
    factor = 1.0 if not isinstance(model, DropoutFactorization) else scale
    product = small.left_ @ small.right_.T / factor
    assert_allclose(product, reference.left_ @ reference.right_.T, atol=1e-9)
    assert small.certificate_.holds


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_one_sample_constant_columns_and_many_features(model):
    X, Y = regression_data()
    one = clone(model).fit(X[:1], Y[:1])
    assert np.isfinite(one.left_).all()
    assert one.certificate_.holds is not False
    constant = clone(model).fit(np.ones((10, 3)), Y[:10])
    assert np.isfinite(constant.right_).all()
    wide = clone(model).fit(X[:4], Y[:4])
    assert np.isfinite(wide.left_).all()
    if isinstance(model, DropoutRegressor):
        assert_allclose(one.predict(X[:1]), Y[:1])
        assert_allclose(constant.predict(np.ones((2, 3))), np.tile(Y[:10].mean(0), (2, 1)))


@pytest.mark.parametrize("dropout", [1 - 1e-12, 1 - 2**-53])
def test_dropout_towards_one_still_fits(dropout):
    X, Y = regression_data()
    model = DropoutRegressor(3, dropout=dropout).fit(X, Y)
    assert model.rank_ == 1
    assert model.certificate_["stationarity"].holds
    assert model.objective_ == pytest.approx(np.sum(Y.var(axis=0)))


BAD_SETTINGS = [
    ({"n_components": 0}, "n_components"),
    ({"n_components": 2.5}, "n_components"),
    ({"n_components": True}, "n_components"),
    ({"dropout": 1.0}, "dropout"),
    ({"dropout": -0.1}, "dropout"),
    ({"dropout": np.nan}, "dropout"),
    ({"dropout": "half"}, "dropout"),
]


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(("settings", "match"), BAD_SETTINGS)
def test_bad_settings_are_refused(model, settings, match):
    X, Y = regression_data()
    with pytest.raises(ValueError, match=match):
        clone(model).set_params(**settings).fit(X, Y)


@pytest.mark.parametrize("model", ALL[:2], ids=lambda model: type(model).__name__)
@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"solver": "magic"}, "solver"),
        ({"solver": "sgd", "batch_size": 0}, "batch_size"),
        ({"solver": "sgd", "max_iter": 0}, "max_iter"),
        ({"solver": "sgd", "tol": -1.0}, "tol"),
        ({"solver": "sgd", "learning_rate": 0.0}, "learning_rate"),
        ({"solver": "sgd", "learning_rate": "fast"}, "learning_rate"),
        ({"solver": "sgd", "schedule": "cosine"}, "schedule"),
    ],
)
def test_bad_settings_of_the_solver_are_refused(model, settings, match):
    X, Y = regression_data()
    with pytest.raises(ValueError, match=match):
        clone(model).set_params(**settings).fit(X, Y)


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda X: X * np.nan, "NaN|infinity"),
        (lambda X: X + np.inf, "infinity|NaN"),
        (lambda X: X[:0], "0 sample|empty"),
        (lambda X: X[:, :0], "0 feature|empty"),
        (lambda X: X[:, 0], "1D|two dimensions"),
        (lambda X: X + 1j, "omplex"),
    ],
)
def test_bad_data_are_refused(model, library, spoil, match):
    X, Y = regression_data()
    bad = spoil(X)
    if library == "torch":
        bad = require("torch").as_tensor(bad)
    with pytest.raises(ValueError, match=match):
        clone(model).fit(bad, Y[: len(bad)])


def test_bad_targets_weights_and_codes_are_refused():
    X, Y = regression_data()
    model = DropoutRegressor(2)
    for y in (Y[:10], np.full_like(Y, np.nan), None):
        with pytest.raises(ValueError, match=r"y|inconsistent"):
            model.fit(X, y)
    torch = require("torch")
    for y in (Y[:10], np.full_like(Y, np.nan), None, Y[:, :, None], Y[:, :0]):
        with pytest.raises(ValueError, match="y"):
            model.fit(torch.as_tensor(X), y)
    for weights in (np.ones(3), -np.ones(80), np.zeros(80), np.full(80, np.nan)):
        for estimator in (DropoutRegressor(2), DropoutAutoencoder(2)):
            with pytest.raises(ValueError, match="weight"):
                estimator.fit(X, Y, sample_weight=weights)
    for estimator in (DropoutAutoencoder(2), DropoutFactorization(2)):
        with pytest.raises(ValueError, match="codes per row"):
            estimator.fit(X).inverse_transform(np.ones((4, 3)))
    with pytest.raises(ValueError, match="features"):
        DropoutAutoencoder(2).fit(X).transform(X[:, :2])


def test_fit_changes_neither_data_nor_settings():
    X, Y = regression_data()
    before = X.copy(), Y.copy()
    for model in ALL:
        settings = model.get_params()
        fitted = clone(model).fit(X, Y)
        assert fitted.get_params() == settings
    assert_allclose(X, before[0], rtol=0)
    assert_allclose(Y, before[1], rtol=0)
