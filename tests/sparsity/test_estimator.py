"""SparseVAE where people use MultiTaskLasso or ARDRegression."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.feature_selection import SelectFromModel
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from extras import require
from lucidae import SparseVAE, certify
from lucidae.datasets import make_sparse_regression

VARIANTS = [SparseVAE(), SparseVAE(solver="em", noise_variance=0.1, warm_start=True)]
OTHERS = [
    *(SparseVAE(solver=name) for name in ("mm", "em", "mackay", "coordinate")),
    SparseVAE(posterior="diagonal"),
    SparseVAE(posterior="point", cv=2),
]


COMPLEX = {
    "check_complex_data": "complex data are accepted: snapshots of arrays and spectra are complex"
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:warm_start=True was given")
@parametrize_with_checks(VARIANTS, expected_failed_checks=lambda _: COMPLEX)
def test_scikit_learn_check(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(OTHERS, expected_failed_checks=lambda _: COMPLEX)
def test_scikit_learn_check_of_the_other_solvers_and_posteriors(estimator, check):
    check(estimator)


def data(seed=0, d=30, kappa=40, r=3, n=5, snr=20):
    p = make_sparse_regression(d, kappa, r, n, tau=n, snr_db=snr, random_state=seed)
    return p.dictionary + 0.3, p.responses + np.arange(n), p


@pytest.fixture(scope="module")
def fitted():
    X, y, p = data()
    return SparseVAE(noise_variance=p.noise_variance).fit(X, y), X, y, p


def test_coefficients_are_the_posterior_mean_of_the_dense_formula(fitted):
    model, X, y, p = fitted
    Phi, Y = X - X.mean(axis=0), y - y.mean(axis=0)
    W = np.diag(model.relevance_)
    sigma = Phi @ W @ Phi.T + p.noise_variance * np.eye(30)
    assert_allclose(model.coef_, (W @ Phi.T @ np.linalg.solve(sigma, Y)).T, atol=1e-9)
    assert_allclose(model.predict(X), y.mean(axis=0) + Phi @ model.coef_.T, atol=1e-10)
    assert_allclose(model.intercept_, y.mean(axis=0) - model.coef_ @ X.mean(axis=0))


def test_the_posterior_is_the_dense_one_and_its_spread_is_what_predict_reports(fitted):
    model, X, _, p = fitted
    Phi = X - X.mean(axis=0)
    W = np.diag(model.relevance_)
    sigma = Phi @ W @ Phi.T + p.noise_variance * np.eye(30)
    dense = W - W @ Phi.T @ np.linalg.solve(sigma, Phi @ W)
    assert_allclose(model.posterior_covariance(np.arange(40)), dense, atol=1e-9)
    chosen = [*p.support, 0, 39]
    assert_allclose(model.posterior_covariance(chosen), dense[np.ix_(chosen, chosen)], atol=1e-9)
    new = np.random.default_rng(1).standard_normal((7, 40))
    mean, spread = model.predict(new, return_std=True)
    moved = new - X.mean(axis=0)
    expected = np.sqrt(p.noise_variance + np.einsum("ij,jk,ik->i", moved, dense, moved))
    assert_allclose(spread, expected, rtol=1e-7)
    assert_array_equal(mean, model.predict(new))


def test_the_posterior_is_right_when_more_columns_than_rows_are_active():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 15)), rng.standard_normal((6, 2))
    model = SparseVAE(posterior="point", penalty="arctan", noise_variance=0.1, fit_intercept=False)
    model.fit(X, y)
    assert (model.relevance_ > 0).all()
    W = np.diag(model.relevance_)
    sigma = X @ W @ X.T + 0.1 * np.eye(6)
    dense = W - W @ X.T @ np.linalg.solve(sigma, X @ W)
    assert_allclose(model.posterior_covariance(np.arange(15)), dense, atol=1e-10)
    _, spread = model.predict(X, return_std=True)
    assert_allclose(spread, np.sqrt(0.1 + np.diag(X @ dense @ X.T)), rtol=1e-8)


def test_the_energy_is_that_of_centred_data_in_one_dimension_less(fitted):
    model, X, y, p = fitted
    basis = np.linalg.svd(np.ones((1, 30)))[2][1:]  # contrasts, orthogonal to the intercept
    Phi, Y = basis @ X, basis @ y
    sigma = Phi * model.relevance_ @ Phi.T + p.noise_variance * np.eye(29)
    _, log_determinant = np.linalg.slogdet(sigma)
    dense = np.trace(Y.T @ np.linalg.solve(sigma, Y)) + 5 * log_determinant
    assert_allclose(model.energy_, dense, rtol=1e-9)
    assert_allclose(
        5 * model.history_["energy"][-1], dense - 5 * 29 * np.log(np.mean(Y**2) * 29 / 30)
    )


def test_one_output_gives_flat_coefficients_that_agree_with_a_column(fitted):
    X, y, _ = data()
    flat = SparseVAE(noise_variance=0.01).fit(X, y[:, 0])
    column = SparseVAE(noise_variance=0.01).fit(X, y[:, :1])
    assert flat.coef_.shape == (40,)
    assert isinstance(flat.intercept_, float)
    assert column.coef_.shape == (1, 40)
    assert_allclose(flat.coef_, column.coef_[0])
    assert flat.predict(X).shape == (30,)


@pytest.mark.covering
@pytest.mark.parametrize("noise_variance", [0.01, "cv"])
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
def test_weights_are_frequencies_exactly(posterior, noise_variance):
    X, y, _ = data(1)
    weights = np.random.default_rng(0).integers(0, 4, 30)
    options = {"posterior": posterior, "noise_variance": noise_variance}
    weighted = SparseVAE(**options).fit(X, y, sample_weight=weights)
    repeated = SparseVAE(**options).fit(
        np.repeat(X, weights, axis=0), np.repeat(y, weights, axis=0)
    )
    assert_array_equal(weighted.coef_, repeated.coef_)
    assert weighted.noise_variance_ == repeated.noise_variance_
    assert weighted.energy_ == repeated.energy_


def test_fractional_weights_scale_the_noise_and_nothing_else():
    X, y, _ = data(2)
    weights = np.random.default_rng(0).uniform(0.5, 2, 30)
    once = SparseVAE(noise_variance=0.02).fit(X, y, sample_weight=weights)
    scaled = SparseVAE(noise_variance=0.06).fit(X, y, sample_weight=3 * weights)
    assert_allclose(scaled.coef_, once.coef_, atol=1e-7)


def test_the_order_of_rows_does_not_matter():
    X, y, _ = data(3)
    order = np.random.default_rng(0).permutation(30)
    assert_array_equal(SparseVAE().fit(X, y).coef_, SparseVAE().fit(X[order], y[order]).coef_)


def test_single_precision_in_and_out_double_inside():
    X, y, p = data(4)
    wide = SparseVAE(noise_variance=p.noise_variance).fit(X, y)
    narrow = SparseVAE(noise_variance=p.noise_variance).fit(X.astype("float32"), y)
    assert narrow.coef_.dtype == narrow.predict(X.astype("float32")).dtype == np.float32
    assert narrow.relevance_.dtype == np.float32
    assert_allclose(narrow.coef_, wide.coef_, atol=1e-4)


def test_data_frames_keep_their_names():
    pandas, polars = require("pandas"), require("polars")
    X, y, p = data(5)
    names = [f"source {j}" for j in range(40)]
    for frame in (pandas.DataFrame(X, columns=names), polars.DataFrame(X, schema=names)):
        model = SparseVAE(noise_variance=p.noise_variance).fit(frame, y)
        assert list(model.feature_names_in_) == names
        plain = SparseVAE(noise_variance=p.noise_variance).fit(X, y)
        assert_allclose(model.predict(frame), plain.predict(X))


def test_torch_tensors_stay_tensors():
    torch = require("torch")
    X, y, p = data(6)
    model = SparseVAE(noise_variance=p.noise_variance)
    reference = clone(model).fit(X, y)
    model.fit(torch.asarray(X), torch.asarray(y))
    assert torch.is_tensor(model.coef_)
    assert_allclose(model.coef_.numpy(), reference.coef_, atol=1e-8)
    mean, spread = model.predict(torch.asarray(X), return_std=True)
    assert_allclose(mean.numpy(), reference.predict(X), atol=1e-8)
    assert_allclose(spread.numpy(), reference.predict(X, return_std=True)[1], atol=1e-8)
    assert_array_equal(model.support_.numpy(), reference.support_)
    with pytest.raises(ValueError, match="expecting 40 features"):
        model.predict(torch.zeros((2, 3)))


def test_it_works_in_pipelines_searches_and_selection():
    X, y, p = data(7)
    pipe = make_pipeline(StandardScaler(), SparseVAE(noise_variance=0.01))
    search = GridSearchCV(pipe, {"sparsevae__noise_variance": [1e-3, 10.0]}, cv=3).fit(X, y)
    assert search.best_params_ == {"sparsevae__noise_variance": 1e-3}
    assert cross_val_score(SparseVAE(noise_variance=0.01), X, y, cv=3).min() > 0.3
    selector = SelectFromModel(SparseVAE(noise_variance=p.noise_variance)).fit(X, y)
    assert_array_equal(selector.get_support(indices=True), p.support)
    chain = make_pipeline(SelectFromModel(SparseVAE(noise_variance=0.01)), LinearRegression())
    assert chain.fit(X, y).score(X, y) > 0.9


def test_clones_pickles_and_refits_agree(fitted):
    model, X, y, _ = fitted
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    assert again.certificate_.to_dict() == model.certificate_.to_dict()
    assert_array_equal(clone(model).fit(X, y).coef_, model.coef_)


def test_predict_and_certificate_leave_no_trace(fitted):
    model, X, _, _ = fitted
    before = set(vars(model))
    model.predict(X, return_std=True)
    assert model.certificate_ is model.certificate_
    assert set(vars(model)) == before
    assert "lucidae-certificate" in model._repr_html_()


def test_groups_share_one_relevance_and_are_selected_together():
    rng = np.random.default_rng(8)
    X = rng.standard_normal((40, 30))
    y = X[:, [3, 4, 5]] @ rng.standard_normal((3, 6)) + 0.1 * rng.standard_normal((40, 6))
    for posterior in ("full", "diagonal", "point"):
        model = SparseVAE(groups=np.arange(30) // 3, posterior=posterior, noise_variance=0.01)
        model.fit(X, y)
        assert_array_equal(model.support_, [3, 4, 5])
        assert np.ptp(model.relevance_.reshape(10, 3), axis=1).max() < 1e-12


def test_groups_do_not_depend_on_the_scale_of_the_whole():
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((20, 12)), rng.standard_normal((20, 3))
    groups = np.arange(12) // 4
    one = SparseVAE(groups=groups, noise_variance=0.5).fit(X, y)
    other = SparseVAE(groups=groups, noise_variance=0.5).fit(1e3 * X, y)
    assert_allclose(other.relevance_ * 1e6, one.relevance_, rtol=1e-5, atol=1e-9)


def test_one_row_uses_the_documented_fallback():
    model = SparseVAE(fit_intercept=False).fit([[1.0, 2.0, 0.0]], [[3.0, 1.0]])
    assert_allclose(model.noise_variance_, 0.1 * 5.0)
    assert np.isfinite(model.coef_).all()
    with pytest.raises(ValueError, match="1 sample"):
        SparseVAE().fit([[1.0, 2.0]], [3.0])


def test_constant_and_shifted_columns_are_harmless():
    X, y, p = data(12)
    crowded = np.hstack([X + 1e6, np.full((30, 2), 1e9)])
    model = SparseVAE(noise_variance=p.noise_variance).fit(crowded, y)
    assert not model.relevance_[-2:].any()
    plain = SparseVAE(noise_variance=p.noise_variance).fit(X, y)
    assert_allclose(model.coef_[:, :40], plain.coef_, atol=1e-5)


def moved(X, y, seed=0, by=0.01):
    return X, y + by * np.random.default_rng(seed).standard_normal(y.shape)


@pytest.mark.covering
@pytest.mark.parametrize("noise_variance", [0.01, "cv"])
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
def test_a_warm_start_needs_fewer_steps_and_ends_at_the_same_optimum(posterior, noise_variance):
    X, y, _ = data(14)
    options = {"posterior": posterior, "noise_variance": noise_variance, "penalty": "arctan"}
    warm = SparseVAE(warm_start=True, **options).fit(X, y)
    X, y = moved(X, y)
    cold = SparseVAE(**options).fit(X, y)
    assert warm.fit(X, y).n_iter_ <= cold.n_iter_
    assert_allclose(warm.energy_, cold.energy_, rtol=1e-6)
    assert warm.noise_variance_ == cold.noise_variance_


def test_a_warm_start_at_the_optimum_has_nothing_left_to_do():
    X, y, p = data(16)
    model = SparseVAE(noise_variance=p.noise_variance, warm_start=True).fit(X, y)
    energy = model.energy_
    assert model.fit(X, y).n_iter_ == 1
    assert_allclose(model.energy_, energy, rtol=1e-9)


def test_a_warm_start_that_does_not_apply_warns_and_starts_anew():
    X, y, p = data(17)
    model = SparseVAE(noise_variance=p.noise_variance, warm_start=True).fit(X, y)
    with pytest.warns(UserWarning, match="the last fit had 40 columns, this one has 30"):
        model.fit(X[:, :30], y)
    expected = SparseVAE(noise_variance=p.noise_variance).fit(X[:, :30], y)
    assert_array_equal(model.coef_, expected.coef_)
    model.set_params(groups=np.arange(30) // 3)
    with pytest.warns(UserWarning, match="differ within the groups"):
        model.fit(X[:, :30], y)
    assert np.ptp(model.relevance_.reshape(10, 3), axis=1).max() < 1e-12


def test_verbose_shows_updates_sweeps_and_the_path(monkeypatch, capsys):
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    X, y, _ = data(18)
    SparseVAE(verbose=True, posterior="diagonal").fit(X, y)
    shown = capsys.readouterr().err
    assert "SparseVAE, path of noise variances" in shown
    assert "SparseVAE, minimising the energy" in shown
    SparseVAE().fit(X, y)
    assert not capsys.readouterr().err


@pytest.mark.covering
@pytest.mark.parametrize("options", [{}, {"groups": 2, "group_covariance": "full"}])
@pytest.mark.parametrize("intercept", [False, True])
def test_tensors_are_solved_by_numpy(options, intercept):
    torch = require("torch")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 40))
    y = X[:, :2] @ rng.standard_normal((2, 3)) + 0.1 * rng.standard_normal((30, 3))
    settings = {"noise_variance": 0.01, "fit_intercept": intercept, **options}
    host = SparseVAE(**settings).fit(X, y)
    with config_context(array_api_dispatch=True):
        tensors = torch.tensor(X), torch.tensor(y)
        model = SparseVAE(**settings).fit(*tensors)
        for name in ("coef_", "relevance_", "support_", "intercept_"):
            found, expected = getattr(model, name), getattr(host, name)
            assert isinstance(found, torch.Tensor)
            assert_array_equal(found.numpy(), expected)
        mean, std = model.predict(tensors[0], return_std=True)
        assert isinstance(mean, torch.Tensor)
        assert_allclose(mean.numpy(), host.predict(X))
        assert_allclose(std.numpy(), host.predict(X, return_std=True)[1])
        assert model.certificate_.holds == host.certificate_.holds
        assert certify(model, *tensors).holds == certify(host, X, y).holds
