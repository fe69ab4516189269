"""`LinearAutoencoder` against scikit-learn's PCA, in scikit-learn's tools, on odd data."""

import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from extras import require
from lucidae import LinearAutoencoder
from lucidae.linear import METHODS
from lucidae.metrics import subspace_distance

RULES = ("rag", "gha", "brockett")


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((60, 8)) @ rng.standard_normal((8, 8)) + 5


def up_to_sign(rows, expected, **tolerance):
    signs = np.sign(np.sum(rows * expected, axis=1))[:, None]
    assert_allclose(rows * signs, expected, **tolerance)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("method", [*RULES, "plain", "expected_nested_dropout"])
def test_the_exact_fit_is_pca(X, method, k):
    ours, pca = LinearAutoencoder(k, method=method).fit(X), PCA(k).fit(X)
    up_to_sign(ours.components_, pca.components_, atol=1e-10)
    for name in ("mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_"):
        assert_allclose(getattr(ours, name), getattr(pca, name), rtol=1e-10)
    assert_allclose(ours.noise_variance_, pca.noise_variance_, rtol=1e-9, atol=1e-12)
    assert_allclose(ours.score_samples(X), pca.score_samples(X), rtol=1e-8)
    assert_allclose(ours.score(X), pca.score(X), rtol=1e-9)
    assert_allclose(ours.get_covariance(), pca.get_covariance(), atol=1e-10)
    assert_allclose(ours.get_precision(), pca.get_precision(), rtol=1e-7, atol=1e-10)
    assert_allclose(
        ours.inverse_transform(ours.transform(X)), pca.inverse_transform(pca.transform(X))
    )
    assert ours.n_components_ == k
    assert ours.n_samples_seen_ == 60
    assert ours.n_iter_ == 1
    assert ours.status_ == "converged"


@pytest.mark.parametrize("method", METHODS)
def test_whitened_codes_have_unit_variance_and_decode_like_plain_ones(X, method):
    plain = LinearAutoencoder(3, method=method).fit(X)
    white = LinearAutoencoder(3, method=method, whiten=True).fit(X)
    codes = white.transform(X)
    assert_allclose(codes.var(axis=0, ddof=1), 1.0, rtol=1e-10)
    assert_allclose(
        white.inverse_transform(codes), plain.inverse_transform(plain.transform(X)), atol=1e-10
    )


def test_whitening_is_pcas_but_leaves_the_likelihood_alone(X):
    """PCA(whiten=True) scales its components twice into the covariance; the model is the same."""
    white, pca = LinearAutoencoder(3, whiten=True).fit(X), PCA(3, whiten=True).fit(X)
    up_to_sign(white.transform(X).T, pca.transform(X).T, atol=1e-9)
    plain = LinearAutoencoder(3).fit(X)
    assert_allclose(white.score(X), plain.score(X))
    assert_allclose(white.get_covariance(), plain.get_covariance())


@pytest.mark.parametrize(
    ("wanted", "expected"), [(0.5, None), (0.9, None), (0.999999, None), (None, 8)]
)
def test_components_by_share_of_variance_or_by_rank(X, wanted, expected):
    found = LinearAutoencoder(wanted).fit(X).n_components_
    assert found == (PCA(wanted).fit(X).n_components_ if expected is None else expected)


def test_more_features_than_rows():
    X = np.random.default_rng(1).standard_normal((7, 30)) + 3
    ours, pca = LinearAutoencoder(4).fit(X), PCA(4, svd_solver="covariance_eigh").fit(X)
    up_to_sign(ours.components_, pca.components_, atol=1e-10)
    assert_allclose(ours.explained_variance_, pca.explained_variance_)
    # All m − k left directions carry noise, as maximum likelihood asks.
    left = np.var(X, axis=0, ddof=1).sum() - ours.explained_variance_.sum()
    assert_allclose(ours.noise_variance_, left / 26)
    assert LinearAutoencoder().fit(X).n_components_ == 6
    beyond = LinearAutoencoder(10).fit(X)
    assert_allclose(beyond.explained_variance_[6:], 0, atol=1e-12)
    assert_allclose(beyond.components_ @ beyond.components_.T, np.eye(10), atol=1e-10)
    assert np.isfinite(beyond.score(X))


@pytest.mark.parametrize("method", METHODS)
def test_rank_deficient_constant_and_repeated_columns(method):
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 6))
    X = np.column_stack([X, np.full(40, 7.0), X[:, 0]])
    fitted = LinearAutoencoder(3, method=method).fit(X)
    assert_allclose(fitted.components_[:, 6], 0, atol=1e-10)
    assert_allclose(fitted.explained_variance_.sum(), np.var(X, axis=0, ddof=1).sum(), rtol=1e-9)
    assert LinearAutoencoder(None, method=method).fit(X).n_components_ == 3
    assert np.isfinite(fitted.score(X))


def test_repeated_eigenvalues_give_their_subspace_and_say_so():
    left = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 5)))[0]
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    X = left @ np.diag([3.0, 2.0, 2.0, 1.0, 0.5])
    fitted = LinearAutoencoder(3).fit(X)
    assert_allclose(np.abs(fitted.components_[0]), np.eye(5)[0], atol=1e-8)
    assert_allclose(np.abs(fitted.components_[1:, [0, 3, 4]]), 0, atol=1e-8)
    assert fitted.certificate_["eigengap"].holds is None
    assert "1–2 are not determined" in fitted.certificate_["eigengap"].advice
    assert fitted.certificate_["alignment"].holds, "component 0 is determined, and it is judged"
    assert "1–2 are not determined" in fitted.certificate_["alignment"].advice


@pytest.mark.parametrize("method", METHODS)
def test_one_column(X, method):
    fitted = LinearAutoencoder(1, method=method).fit(X[:, :1])
    assert_allclose(fitted.components_, [[1.0]])
    assert_allclose(fitted.explained_variance_, [X[:, 0].var(ddof=1)])
    assert np.isfinite(fitted.score(X[:, :1]))


@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
def test_constant_rows_have_no_variance(solver):
    fitted = LinearAutoencoder(2, solver=solver, random_state=0).fit(np.full((5, 3), 2.0))
    assert_allclose(fitted.explained_variance_, 0)
    assert_allclose(fitted.explained_variance_ratio_, 0)
    assert_allclose(fitted.transform(np.full((2, 3), 2.0)), 0)
    assert "not determined" in fitted.certificate_["eigengap"].advice


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["exact", "gradient"])
@pytest.mark.parametrize("method", [m for m in METHODS if m != "nested_dropout"])
def test_weights_are_repetitions(X, method, solver):
    counts = np.random.default_rng(3).integers(0, 4, len(X))
    settings = {"method": method, "solver": solver, "random_state": 0, "max_iter": 50, "tol": 1.0}
    weighted = LinearAutoencoder(3, **settings).fit(X, sample_weight=counts)
    repeated = LinearAutoencoder(3, **settings).fit(np.repeat(X, counts, axis=0))
    assert_allclose(weighted.components_, repeated.components_, atol=1e-10)
    assert_allclose(weighted.explained_variance_, repeated.explained_variance_, rtol=1e-10)
    assert_allclose(weighted.score(X), repeated.score(X), rtol=1e-10)
    assert weighted.n_samples_seen_ == counts.sum()


def test_pipelines_and_grid_searches(X):
    y = X @ np.arange(8.0)
    search = GridSearchCV(
        make_pipeline(LinearAutoencoder(), LinearRegression()),
        {"linearautoencoder__n_components": [1, 8], "linearautoencoder__method": ["rag", "plain"]},
        cv=3,
    ).fit(X, y)
    assert search.best_params_["linearautoencoder__n_components"] == 8
    assert search.best_score_ > 0.99
    latent = np.random.default_rng(0).standard_normal((200, 2)) * [5.0, 3.0]
    noisy = latent @ np.eye(2, 6) + np.random.default_rng(1).standard_normal((200, 6))
    chosen = GridSearchCV(LinearAutoencoder(), {"n_components": [1, 2, 4]}, cv=5).fit(noisy)
    assert chosen.best_params_ == {"n_components": 2}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_in_and_out(X, library):
    frames = require(library)
    names = [f"pixel {i}" for i in range(8)]
    frame = frames.DataFrame(dict(zip(names, X.T, strict=True)))
    fitted = LinearAutoencoder(2).set_output(transform=library).fit(frame)
    codes = fitted.transform(frame)
    assert isinstance(codes, frames.DataFrame)
    assert list(codes.columns) == ["linearautoencoder0", "linearautoencoder1"]
    assert list(fitted.get_feature_names_out()) == list(codes.columns)
    assert_array_equal(fitted.feature_names_in_, names)
    assert_allclose(np.asarray(codes), LinearAutoencoder(2).fit(X).transform(X), atol=1e-10)
    assert_allclose(
        np.asarray(LinearAutoencoder(2).set_output(transform=library).fit_transform(frame)),
        np.asarray(codes),
    )


def test_clones_pickles_and_repeats_are_the_same(X):
    settings = {"method": "nested_dropout", "solver": "stochastic", "max_iter": 30, "tol": 1.0}
    first = LinearAutoencoder(3, random_state=7, **settings).fit(X)
    again = clone(first).fit(X)
    assert_array_equal(first.components_, again.components_)
    other = LinearAutoencoder(3, random_state=8, max_iter=1, solver="gradient", tol=9.0).fit(X)
    assert np.any(first.components_ != other.components_)
    restored = pickle.loads(pickle.dumps(first))
    assert_array_equal(restored.transform(X), first.transform(X))
    assert restored.certificate_.to_dict() == first.certificate_.to_dict()


def test_a_warm_start_goes_on(X):
    settings = {"solver": "gradient", "random_state": 0, "max_iter": 10_000}
    cold = LinearAutoencoder(3, **settings).fit(X)
    warm = LinearAutoencoder(3, warm_start=True, **settings).fit(X)
    assert warm.n_iter_ == cold.n_iter_
    warm.fit(X)
    assert warm.n_iter_ < cold.n_iter_ / 5
    with pytest.warns(UserWarning, match=r"shape \(3, 8\), expected \(2, 8\)"):
        assert warm.set_params(n_components=2).fit(X).n_components_ == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_warm_start_from_the_exact_fit_is_at_the_optimum(X, method):
    settings = {"method": method, "warm_start": True, "random_state": 0}
    warm = LinearAutoencoder(3, **settings).fit(X)
    exact = warm.components_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if method == "nested_dropout" else "error")
        # Sampled masks move the weights away from the optimum before the first test of `tol`.
        warm.set_params(solver="gradient", max_iter=40).fit(X)
    if method != "nested_dropout":
        assert warm.n_iter_ == 1
        assert_allclose(warm.components_, exact, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [("nonuniform_l2", "rag"), ("rag", "plain"), ("linear_vae", "rag"), ("rag", "linear_vae")],
)
def test_a_warm_start_converts_the_weights_of_another_method(X, first, second):
    settings = {"solver": "gradient", "random_state": 0, "max_iter": 30_000}
    cold = LinearAutoencoder(3, method=second, **settings).fit(X)
    warm = LinearAutoencoder(3, method=first, warm_start=True, random_state=0).fit(X)
    warm.set_params(method=second, **settings).fit(X)
    assert warm.status_ == "converged"
    assert warm.n_iter_ < cold.n_iter_
    assert subspace_distance(warm.decoder_, PCA(3).fit(X).components_.T) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_continues_from_an_exact_fit(X, method):
    fitted = LinearAutoencoder(3, method=method, random_state=0).fit(X)
    axes = PCA(3).fit(X).components_.T
    fitted.set_params(solver="stochastic")
    for _ in range(3):
        fitted.partial_fit(X)
        assert subspace_distance(fitted.decoder_, axes) < 1e-3
    assert fitted.n_iter_ == 4
    assert fitted.n_samples_seen_ == 4 * len(X)


def test_a_warm_start_continues_from_a_stream(X):
    settings = {"random_state": 0, "warm_start": True}
    stream = LinearAutoencoder(3, solver="stochastic", **settings)
    for _ in range(400):
        stream.partial_fit(X)
    cold = LinearAutoencoder(3, solver="gradient", **settings).fit(X)
    assert stream.set_params(solver="gradient").fit(X).n_iter_ < cold.n_iter_


def test_a_warm_start_continues_in_another_library(X, xp):
    warm = LinearAutoencoder(3, random_state=0, warm_start=True).fit(X)
    assert warm.set_params(solver="gradient").fit(xp.asarray(X)).n_iter_ == 1


def test_float32_in_float32_out(X):
    single = X.astype(np.float32)
    fitted = LinearAutoencoder(3).fit(single)
    for values in (
        fitted.components_,
        fitted.encoder_,
        fitted.decoder_,
        fitted.mean_,
        fitted.explained_variance_,
        fitted.transform(single),
        fitted.score_samples(single),
        fitted.inverse_transform(fitted.transform(single)),
        fitted.get_covariance(),
    ):
        assert values.dtype == np.float32
    up_to_sign(fitted.components_, LinearAutoencoder(3).fit(X).components_, atol=1e-5)
    assert LinearAutoencoder(3).fit(X.astype(int)).components_.dtype == np.float64


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
@pytest.mark.parametrize("method", METHODS)
def test_tensors_stay_in_their_library(X, xp, method, solver):
    settings = {"method": method, "solver": solver, "random_state": 0, "max_iter": 20, "tol": 9.0}
    given = xp.asarray(X)
    fitted = LinearAutoencoder(3, **settings).fit(given)
    expected = LinearAutoencoder(3, **settings).fit(X)
    codes = fitted.transform(given)
    for values in (codes, fitted.components_, fitted.decoder_, fitted.score_samples(given)):
        assert isinstance(values, type(given))
    assert_allclose(np.asarray(codes), expected.transform(X), atol=1e-8)
    back = fitted.inverse_transform(codes)
    assert_allclose(np.asarray(back), expected.inverse_transform(expected.transform(X)), atol=1e-8)
    assert_allclose(fitted.score(given), expected.score(X), rtol=1e-8)
    assert fitted.certificate_.holds == expected.certificate_.holds


def test_torch_parameters_and_single_precision_tensors(X):
    torch = require("torch")
    given = torch.tensor(X, dtype=torch.float32, requires_grad=True)
    fitted = LinearAutoencoder(2).fit(given)
    assert fitted.components_.dtype == torch.float32
    assert not fitted.components_.requires_grad


def test_nothing_given_is_changed(X):
    before, weights = X.copy(), np.ones(60)
    penalties = np.array([0.3, 0.1])
    fitted = LinearAutoencoder(2, method="nonuniform_l2", l2=penalties).fit(
        X, sample_weight=weights
    )
    fitted.transform(X)
    assert_array_equal(X, before)
    assert_array_equal(penalties, [0.3, 0.1])
    assert fitted.get_params()["l2"] is penalties


def test_penalties_in_any_order_and_dead_latents_are_shown_in_order(X):
    values = LinearAutoencoder(3).fit(X).explained_variance_ * 59 / 60
    l2 = [2 * values[0], 0.1 * values[2], 0.2 * values[2]]
    fitted = LinearAutoencoder(3, method="nonuniform_l2", l2=l2).fit(X)
    assert_allclose(fitted.components_[2], 0)
    assert_allclose(fitted.explained_variance_[2], 0)
    up_to_sign(fitted.components_[:2], PCA(2).fit(X).components_, atol=1e-10)
    assert_allclose(
        np.linalg.norm(fitted.decoder_, axis=0)[:2] ** 2, 1 - np.array(l2[1:]) / values[:2]
    )
    assert "latent 0 is zero at the optimum" in fitted.certificate_["nonzero_latents"].advice


@pytest.mark.parametrize("m", [8, 1030])
def test_the_certificate_of_a_subclass_has_its_name(m):
    class PrincipalSubspace(LinearAutoencoder):
        pass

    X = np.random.default_rng(0).standard_normal((20, m))
    title = PrincipalSubspace(2, method="plain").fit(X).certificate_.title
    assert title == "PrincipalSubspace(method='plain')"
