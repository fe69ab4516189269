"""The path of noise variances: its solutions are those of single fits, which `select` returns."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.model_selection import KFold

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import noise_path
from lucidae.sparsity.noise import PATH, PathTrace


@pytest.fixture(scope="module")
def drawn():
    p = make_sparse_regression(40, 70, 3, 8, 4, snr_db=15, random_state=0)
    return p, noise_path(p.dictionary, p.responses, fit_intercept=False)


def test_every_solution_is_that_of_a_single_fit(drawn):
    p, path = drawn
    for index in range(0, len(path), 3):
        model = SparseVAE(noise_variance=path.noise_variances[index], fit_intercept=False)
        model.fit(p.dictionary, p.responses)
        assert path.energies[index] <= model.energy_ + 1e-6 * abs(model.energy_)
        if abs(path.energies[index] - model.energy_) < 1e-8 * abs(model.energy_):
            assert_allclose(path.relevances[index], model.relevance_, atol=1e-5)
            assert_allclose(path.supports[index], model.support_)
        fitted = model.predict(p.dictionary)
        explained = 1 - np.sum((p.responses - fitted) ** 2) / np.sum(p.responses**2)
        assert_allclose(path.explained[index], explained, atol=1e-5)


def test_the_path_begins_where_the_first_column_enters(drawn):
    p, path = drawn
    n = p.responses.shape[1]
    powers = np.sum((p.dictionary.T @ p.responses) ** 2, axis=1) / n
    entry = np.max(powers / np.sum(p.dictionary**2, axis=0))
    assert_allclose(path.noise_variances[0], entry)
    assert path.explained[0] < 1e-6
    assert path.strongest[1] >= 0
    assert (np.diff(path.noise_variances) < 0).all()
    assert (np.diff(path.explained) > -1e-3).all()


def test_select_returns_fitted_estimators_with_certificates(drawn):
    p, path = drawn
    by_share = path.select(explained=0.8)
    index = int(np.flatnonzero(path.explained >= 0.8)[0])
    assert_allclose(by_share.noise_variance_, path.noise_variances[index])
    assert path.explained[index - 1] < 0.8
    assert_allclose(path.select(n_columns=3).support_, p.support)
    smallest = path.select(rule="min").noise_variance_
    assert_allclose(smallest, path.noise_variances[np.argmin(path.held_out_error)])
    wider = path.select(rule="one_se")
    assert wider.noise_variance_ >= smallest
    level = path.held_out_error.min()
    level += path.held_out_standard_error[np.argmin(path.held_out_error)]
    chosen = np.flatnonzero(np.isclose(path.noise_variances, wider.noise_variance_))
    assert path.held_out_error[chosen] <= level
    for model in (by_share, wider):
        assert model.certificate_["stationarity"].holds
        assert 0 <= model.certificate_["path_stability"].value <= 1
        assert model.predict(p.dictionary).shape == p.responses.shape


def test_select_finds_numbers_of_columns_between_the_points():
    rng = np.random.default_rng(1)
    X = np.linalg.qr(rng.standard_normal((60, 5)))[0]
    y = X * [81.0, 27.0, 9.0, 3.0, 1.0] @ rng.standard_normal((5, 40))
    y += 1e-3 * rng.standard_normal(y.shape)
    path = noise_path(X, y, [1e5, 1e-2], cv=False)
    assert_allclose(path.n_columns, [0, 5])
    for count in range(6):  # orthogonal columns enter one after the other
        assert path.select(n_columns=count).support_.tolist() == list(range(count))


def test_the_stable_part_has_one_strongest_column_and_explains_most(drawn):
    _, path = drawn
    strongest, part = path.strongest, path.stable_part
    assert len(set(strongest[part])) == 1
    explained = np.concatenate([[0.0], path.explained])
    for begin in range(len(path)):
        for end in range(begin + 1, len(path) + 1):
            if len(set(strongest[begin:end])) == 1 and strongest[begin] >= 0:
                growth = explained[end] - explained[begin]
                assert growth <= explained[part.stop] - explained[part.start] + 1e-3


@pytest.mark.parametrize("kind", ["spherical", "full"])
def test_groups_covariances_and_weights_go_along_the_path(kind):
    p = make_sparse_regression(30, 24, 2, 6, 3, snr_db=15, random_state=2)
    rng = np.random.default_rng(2)
    groups, variances = np.repeat(np.arange(8), 3), rng.uniform(0.5, 2.0, 30)
    weights = rng.integers(1, 3, 30)
    path = noise_path(
        p.dictionary, p.responses, [1.0, 0.1], cv=3, groups=groups, group_covariance=kind,
        noise_cov=variances, sample_weight=weights,
    )  # fmt: skip
    model = SparseVAE(noise_variance=0.1, groups=groups, group_covariance=kind)
    model.fit(p.dictionary, p.responses, sample_weight=weights, noise_cov=variances)
    assert_allclose(path.energies[1], model.energy_, rtol=1e-6)
    assert path.n_columns[1] == np.unique(groups[model.support_]).size
    assert np.isfinite(path.held_out_error).all()
    assert_allclose(path.relevances[1], model.relevance_, rtol=1e-3, atol=1e-6)
    again = path.select(explained=float(path.explained[1]))
    assert_allclose(again.energy_, model.energy_, rtol=1e-6)
    for fitted in (model, again):
        assert all(claim.holds is not False for claim in fitted.certificate_)
    chosen = SparseVAE(noise_variance="cv_1se", groups=groups, group_covariance=kind)
    chosen.fit(p.dictionary, p.responses)
    assert chosen.certificate_["stationarity"].holds


def test_one_standard_error_chooses_fewer_columns():
    for seed in range(3):
        p = make_sparse_regression(50, 200, 4, 10, 4, snr_db=10, random_state=seed)
        best, wider = (
            SparseVAE(noise_variance=rule, fit_intercept=False).fit(p.dictionary, p.responses)
            for rule in ("cv", "cv_1se")
        )
        assert wider.noise_variance_ >= best.noise_variance_
        assert wider.support_.size <= best.support_.size
        assert wider.certificate_["noise_variance"].holds is None


def test_the_certificate_warns_where_the_strongest_column_changes():
    powers = np.array([[0, 1.0], [0, 4.0], [3, 2.0], [3.0, 2.0]])
    trace = PathTrace(np.array([30.0, 10.0, 1.0, 0.1]), powers, np.array([0.1, 0.6, 0.8, 0.9]))
    found = trace.stability(0.3, np.array([3.0, 2.0]), 0.85)
    assert found["column"] == 0
    assert_allclose(found["strongest"], [1, 0, 0])  # 30 explains too little to be compared
    assert found["changed"].tolist() == [False, False, False]
    assert_allclose(found["overlap"], 1.0)
    for there, here, real in (
        ([0.6, 1.0], [1.0, 0.9], False),  # nearly equally strong
        ([0.6, 1.0], [1.0, 0.4], True),  # 1 is less than half as strong here
        ([0.6, 1.0], [1.0, 0.0], True),  # 1 is not in use at the chosen noise variance
    ):
        trace = PathTrace(np.ones(1), np.array([there]), np.ones(1))
        assert trace.stability(1.0, np.array(here), 1.0)["changed"].tolist() == [real]
    rng = np.random.default_rng(4)
    X = rng.standard_normal((60, 20))
    X[:, 0] = X[:, 1] + X[:, 2] + 0.05 * rng.standard_normal(60)
    single, pair = (np.ones((1, 12)), rng.standard_normal((2, 12)) + 1.0)
    noise = 0.05 * rng.standard_normal((60, 12))
    for y, changes in ((3.0 * X[:, 5:6] @ single + noise, False), (X[:, 1:3] @ pair + noise, True)):
        model = SparseVAE(noise_variance="cv").fit(X, y)  # column 0 stands for 1 and 2 at large γ
        assert ("Warning" in model.certificate_["path_stability"].advice) == changes
        strongest = noise_path(X, y).strongest
        assert (np.unique(strongest[strongest >= 0]).size > 1) == changes
    given = SparseVAE(noise_variance=0.1).fit(X, y).certificate_["path_stability"]
    assert given.value is None
    assert "noise_path" in given.advice


@pytest.mark.parametrize("settings", [{}, {"groups": 2, "group_covariance": "full"}])
def test_a_path_of_one_noise_variance_has_no_stability(settings):
    p = make_sparse_regression(30, 20, 2, 6, 3, snr_db=15, random_state=2)
    for noise_variances, measured in (([0.01], False), ([0.01] * 2, False), ([0.01, 0.02], True)):
        path = noise_path(p.dictionary, p.responses, noise_variances, cv=False, **settings)
        claim = path.select(explained=0.1).certificate_["path_stability"]
        assert (claim.verdict == "reported") == measured
        assert measured or claim.verdict == "does not apply"
        assert measured or "not repeated at neighbouring noise variances" in claim.advice


def test_the_stability_does_not_count_the_chosen_noise_variance():
    here, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    trace = PathTrace(np.array([2.0, 1.0]), np.array([other, here]), np.ones(2))
    assert trace.stability(1.0, here, 1.0)["overlap"] == 0.0
    assert trace.stability(1.0 + 1e-15, here, 1.0)["overlap"] == 0.0
    alone = PathTrace(np.ones(1), np.array([here]), np.ones(1))
    assert alone.stability(1.0, here, 1.0)["overlap"] is None


@pytest.mark.parametrize(
    "settings", [{"groups": 2, "group_covariance": "full"}, {"posterior": "diagonal"}]
)
def test_the_stability_is_measured_for_covariances_of_groups_and_other_posteriors(settings):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((60, 20))
    X[:, :2] = X[:, 2:4] + X[:, 4:6] + 0.05 * rng.standard_normal((60, 2))
    noise = 0.05 * rng.standard_normal((60, 12))
    one = X[:, 10:12] @ rng.standard_normal((2, 12)) + noise
    shared = rng.standard_normal((2, 12)) + 1.0
    both = X[:, 2:4] @ shared + X[:, 4:6] @ (shared + 0.8 * rng.standard_normal((2, 12))) + noise
    for y, changes in ((one, False), (both, True)):  # columns 0 and 1 are those of large γ
        claim = SparseVAE(noise_variance="cv", **settings).fit(X, y).certificate_["path_stability"]
        assert 0.0 <= claim.value <= 1.0
        assert ("Warning" in claim.advice) == changes


def test_the_stability_is_not_measured_with_a_covariance_of_responses():
    p = make_sparse_regression(30, 20, 2, 6, 3, snr_db=15, random_state=2)
    model = SparseVAE(noise_variance="cv", response_covariance=np.eye(6))
    claim = model.fit(p.dictionary, p.responses).certificate_["path_stability"]
    assert claim.value is None
    assert "without response_covariance" in claim.advice


def test_covariances_of_groups_enter_at_the_largest_eigenvalue():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((30, 12))
    y = X[:, :4] @ rng.standard_normal((4, 5))
    groups = np.repeat(np.arange(4), 3)
    model = {"groups": groups, "group_covariance": "full", "fit_intercept": False}
    entry = noise_path(X, y, cv=False, **model).noise_variances[0]
    spans = [np.linalg.qr(X[:, groups == g])[0] for g in range(4)]
    largest = max(np.linalg.norm(span.T @ y, 2) ** 2 / 5 for span in spans)
    assert_allclose(entry, largest)
    for factor, active in ((1.01, False), (0.99, True)):
        fitted = SparseVAE(noise_variance=factor * entry, **model).fit(X, y)
        assert fitted.relevance_.any() == active


def test_a_share_that_is_not_reached_is_quoted_with_all_digits():
    rng = np.random.default_rng(5)
    path = noise_path(rng.standard_normal((20, 5)), rng.standard_normal((20, 2)), [0.5], cv=False)
    with pytest.raises(ValueError, match=r"explained=0\.9999999 was given"):
        path.select(explained=0.9999999)


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ({}, "no condition"),
        ({"explained": 0.5, "rule": "min"}, "exactly one"),
        ({"explained": 1.5}, "explained"),
        ({"explained": 0.9999999}, "at most"),
        ({"rule": "best"}, "rule"),
        ({"n_columns": 65}, "no noise variance was found"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(drawn, condition, sentence):
    with pytest.raises(ValueError, match=sentence):
        drawn[1].select(**condition)


def test_rules_of_held_out_rows_need_folds(drawn):
    p, _ = drawn
    path = noise_path(p.dictionary, p.responses, cv=False, fit_intercept=False)
    assert np.isnan(path.held_out_error).all()
    assert path.explained[-1] > 0.9
    with pytest.raises(ValueError, match="without folds"):
        path.select(rule="min")


def test_held_out_errors_are_those_of_accurate_fits():
    data = make_sparse_regression(40, 60, 2, 8, 2, snr_db=15, random_state=1)
    X, y = data.dictionary, data.responses
    noise = np.mean(y**2) * 10.0 ** np.array([0.0, -0.5, -1.0, -1.5])
    for options in ({}, {"groups": 3}, {"groups": 3, "group_covariance": "full"}):
        path = noise_path(X, y, noise, cv=KFold(3), fit_intercept=False, **options)
        for error, level in zip(path.held_out_error, noise, strict=True):
            model = SparseVAE(noise_variance=level, fit_intercept=False, **options)
            accurate = [
                np.mean((y[test] - model.fit(X[train], y[train]).predict(X[test])) ** 2)
                for train, test in KFold(3).split(X)
            ]
            assert_allclose(error, np.mean(accurate), rtol=0.05)


def test_held_out_rows_are_tried_at_two_noise_variances_per_decade():
    assert PATH[0] == 1.0
    assert_allclose(PATH[1:] / PATH[:-1], 10.0**-0.5)
    assert_allclose(PATH[-1], 1e-10)
