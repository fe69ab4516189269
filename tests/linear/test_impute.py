"""LowRankImputer: filled tables, their uncertainty, scikit-learn's words, files."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from extras import require
from linear.observed_likelihood import make_incomplete
from lucidae import LinearAutoencoder, certify, impute, load, save
from lucidae.impute import LowRankImputer


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:n_components='cv' chose 0")
@parametrize_with_checks([LowRankImputer(), LowRankImputer(1, add_indicator=True)])
def test_contract(estimator, check):
    check(estimator)


def table(seed=0, noise=0.3):
    """Return rows with gaps, and the complete ones; the columns have different units."""
    X, complete = make_incomplete(200, 8, 2, 0.25, noise, seed)
    units, shift = np.geomspace(1e-3, 1e3, 8), np.arange(8.0)
    return X * units + shift, complete * units + shift


def test_entries_are_expectations_under_the_fitted_covariance():
    X, _ = table()
    filled, deviations = LowRankImputer(2).fit(X).transform(X, return_std=True)
    mean, scale = np.nanmean(X, axis=0), np.nanstd(X, axis=0)
    model = LinearAutoencoder(2, handle_missing="em", tol=1e-4).fit((X - mean) / scale)
    center, covariance = mean + scale * model.mean_, model.get_covariance() * np.outer(scale, scale)
    for row, out, spread in list(zip(X, filled, deviations, strict=True))[:20]:
        o, u = ~np.isnan(row), np.isnan(row)
        gain = np.linalg.solve(covariance[np.ix_(o, o)], covariance[np.ix_(o, u)])
        rest = covariance[np.ix_(u, u)] - covariance[np.ix_(u, o)] @ gain
        assert_allclose(out[u], center[u] + (row[o] - center[o]) @ gain, rtol=1e-7)
        assert_allclose(spread[u] ** 2, np.diag(rest), rtol=1e-6)
        assert_array_equal(out[o], row[o])
        assert_array_equal(spread[o], 0.0)


def test_units_do_not_matter_unless_columns_keep_their_scale():
    X, _ = table()
    units = np.geomspace(1e4, 1e-4, 8)
    filled = LowRankImputer(2).fit_transform(X)
    assert_allclose(LowRankImputer(2).fit_transform(X * units) / units, filled, rtol=1e-6)
    own = LowRankImputer(2, standardize=False)
    assert not np.allclose(own.fit_transform(X * units) / units, filled, rtol=1e-2)


def test_held_out_entries_choose_the_rank_and_predict_the_error():
    X, complete = table(noise=0.2)
    imputer = LowRankImputer().fit(X)
    found = imputer.cv_results_
    assert imputer.n_components_ == found["n_components"][np.argmin(found["mean_squared_error"])]
    assert imputer.n_components_ >= 2
    assert found["n_components"][0] == 0
    assert found["mean_squared_error"][0] == pytest.approx(1.0, abs=0.1)
    hidden = np.isnan(X)
    error = ((imputer.transform(X) - complete) / np.nanstd(X, axis=0))[hidden]
    assert np.mean(error**2) == pytest.approx(np.min(found["mean_squared_error"]), rel=0.5)
    assert imputer.certificate_.holds
    assert imputer.certificate_.title == "LowRankImputer"


def test_the_number_of_many_rows_is_chosen_by_some_of_them():
    X, _ = make_incomplete(6000, 8, 2, 0.25, 0.3, 0)
    rare = np.full(6000, np.nan)
    rare[:2] = 1.0, 2.0  # a column that hardly any choice of rows contains
    gaps = np.column_stack([X, rare])
    model, some = LowRankImputer().fit(gaps), LowRankImputer().fit(X[:1000])
    errors, others = (fit.cv_results_["mean_squared_error"] for fit in (model, some))
    assert_allclose(errors[:5], others[:5], rtol=0.3)
    # The model itself is fitted to all rows.
    assert_array_equal(
        model.transform(gaps), LowRankImputer(model.n_components_).fit_transform(gaps)
    )


def test_the_search_goes_on_after_the_error_has_risen():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)) @ rng.standard_normal((4, 12))
    X = np.column_stack([X + 0.3 * rng.standard_normal(X.shape), rng.standard_normal((300, 3))])
    X[rng.random(X.shape) < 0.1] = np.nan
    imputer = LowRankImputer().fit(X)
    ranks, errors = imputer.cv_results_.values()
    assert_array_equal(ranks, [*range(11), 12, 14])
    assert np.argmin(errors[:7]) < 5
    assert min(errors[5:7]) > min(errors[:5])
    assert imputer.n_components_ >= 7
    assert min(errors) < 0.75 * min(errors[:7])


def test_deviations_are_the_size_of_the_errors():
    X, complete = table()
    filled, deviations = LowRankImputer(2).fit(X).transform(X, return_std=True)
    units = ((filled - complete) / np.where(deviations > 0, deviations, 1.0))[np.isnan(X)]
    assert np.mean(units**2) == pytest.approx(1.0, abs=0.25)


def test_noise_is_filled_by_means():
    X = np.random.default_rng(0).standard_normal((300, 6))
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    with pytest.warns(UserWarning, match="chose 0: missing entries are filled by the mean"):
        imputer = LowRankImputer().fit(X)
    assert imputer.n_components_ == 0
    filled, deviations = imputer.transform(X, return_std=True)
    at = np.isnan(X)
    assert_allclose(filled[at], np.broadcast_to(np.nanmean(X, axis=0), X.shape)[at])
    assert_allclose(deviations[at], np.broadcast_to(np.nanstd(X, axis=0), X.shape)[at])
    assert imputer.certificate_.holds is None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_data_without_noise_are_recovered():
    X, complete = table(noise=0.0)
    imputer = LowRankImputer().fit(X)
    assert imputer.n_components_ == 2
    assert_allclose(imputer.transform(X), complete, rtol=1e-3, atol=1e-5)


def test_constant_empty_and_single_columns():
    X, _ = table()
    X = np.column_stack([X[:, :3], np.full(200, np.nan), np.where(np.isnan(X[:, 0]), np.nan, 7.0)])
    with pytest.warns(UserWarning, match="columns 3 have no observed entry"):
        imputer = LowRankImputer(1).fit(X)
    filled, deviations = imputer.transform(X, return_std=True)
    assert filled.shape == deviations.shape == (200, 4)
    assert_array_equal(filled[:, 3], 7.0)
    assert_array_equal(deviations[:, 3], 0.0)
    kept = LowRankImputer(1, keep_empty_features=True).fit(X).transform(X)
    assert_array_equal(kept[:, 3], 0.0)
    assert_array_equal(np.delete(kept, 3, axis=1), filled)
    alone = X[:, :1]
    assert_allclose(
        LowRankImputer().fit_transform(alone)[np.isnan(alone)], np.nanmean(alone), rtol=1e-12
    )


def test_indicators_names_and_frames():
    pandas = require("pandas")
    X, complete = table()
    X[:, 2] = complete[:, 2]
    frame = pandas.DataFrame(X, columns=list("abcdefgh"), index=np.arange(200) + 5)
    imputer = LowRankImputer(2, add_indicator=True).set_output(transform="pandas")
    filled = imputer.fit_transform(frame)
    gaps = [name for name in "abcdefgh" if name != "c"]
    assert list(filled.columns) == [*"abcdefgh", *(f"missingindicator_{name}" for name in gaps)]
    assert_array_equal(filled.index, frame.index)
    assert_array_equal(filled[[f"missingindicator_{name}" for name in gaps]], frame[gaps].isna())
    assert not filled.isna().to_numpy().any()
    nullable = frame.astype("Float64")
    assert_allclose(LowRankImputer(2).fit_transform(nullable), filled.iloc[:, :8], rtol=1e-10)


def test_numbers_that_mark_missing_entries():
    X, _ = table()
    marked = np.where(np.isnan(X), -99.0, X)
    expected = LowRankImputer(2).fit_transform(X)
    assert_array_equal(LowRankImputer(2, missing_values=-99).fit_transform(marked), expected)
    masked = np.ma.masked_equal(marked, -99.0)
    assert_array_equal(LowRankImputer(2).fit_transform(masked), expected)
    with pytest.raises(ValueError, match="NaN"):
        LowRankImputer(2, missing_values=-99).fit(X)


WRONG = {
    "n_components": ("two", 0, 9, 2.5),
    "missing_values": ("?", None, np.inf),
    "standardize": ("yes", 1),
    "add_indicator": (None,),
    "keep_empty_features": ("no",),
    "verbose": ("loud",),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_by_name(name):
    X, _ = table()
    for wrong in WRONG[name]:
        with pytest.raises(ValueError, match=name):
            LowRankImputer(2).set_params(**{name: wrong}).fit(X)


def test_other_rows_and_other_libraries():
    X, complete = table()
    imputer = LowRankImputer(2).fit(X)
    assert_array_equal(imputer.transform(complete), complete)
    single = LowRankImputer(2).fit(X.astype(np.float32)).transform(X.astype(np.float32))
    assert single.dtype == np.float32
    assert_allclose(single, imputer.transform(X), rtol=1e-3, atol=1e-2)
    with pytest.raises(ValueError, match="expected a NumPy array or a data frame"):
        imputer.transform(require("array_api_strict").asarray(X))
    with pytest.raises(ValueError, match="infinity"):
        imputer.transform(np.where(np.isnan(X), np.inf, X))


def test_pipelines_searches_and_files(tmp_path):
    X, y = load_wine(return_X_y=True)
    gaps = np.where(np.random.default_rng(0).random(X.shape) < 0.2, np.nan, X)
    pipeline = make_pipeline(LowRankImputer(), Ridge())
    search = GridSearchCV(pipeline, {"lowrankimputer__n_components": [1, 3]}, cv=2).fit(gaps, y)
    assert search.score(gaps, y) > 0.7
    imputer = LowRankImputer(add_indicator=True).fit(gaps)
    save(imputer, tmp_path / "imputer.npz")
    again = load(tmp_path / "imputer.npz")
    for one, other in zip(
        again.transform(gaps, return_std=True),
        imputer.transform(gaps, return_std=True),
        strict=True,
    ):
        assert_array_equal(one, other)
    assert again.certificate_.to_dict() == imputer.certificate_.to_dict()
    assert_array_equal(
        again.cv_results_["mean_squared_error"], imputer.cv_results_["mean_squared_error"]
    )
    assert clone(again).n_components == "cv"


def test_certificates_of_other_rows_fail():
    X, _ = table()
    imputer = LowRankImputer(2).fit(X)
    assert certify(imputer, X).holds
    assert certify(imputer, X[:60]).holds is False


@pytest.mark.parametrize("standardize", [True, False])
def test_a_column_in_a_wrong_unit_is_noticed_wherever_it_came_from(monkeypatch, standardize):
    X, _ = table()
    plain = LowRankImputer(2, standardize=standardize).fit(X)
    assert plain.certificate_.holds
    state = type(plain._state)

    def in_wrong_unit(self, X):
        return standardized(self, X) * np.where(self.varying == 1, 3.0, 1.0)

    standardized = state.standardized
    with monkeypatch.context() as patch:
        patch.setattr(state, "standardized", in_wrong_unit)
        wrong = LowRankImputer(2, standardize=standardize).fit(X)
    assert wrong.certificate_.holds is False
    assert certify(wrong, X).holds is False
    summary = impute._summary

    def wrong_means(X, standardize):
        found = summary(X, standardize)
        found.center[1] += 0.5 * np.nanstd(X[:, 1])
        return found

    monkeypatch.setattr(impute, "_summary", wrong_means)
    assert LowRankImputer(2, standardize=standardize).fit(X).certificate_.holds is False


def test_a_fit_without_a_maximum_warns_and_is_undecided():
    X, _ = table(noise=0.0)
    with pytest.warns(ConvergenceWarning, match="no maximum"):
        imputer = LowRankImputer(2).fit(X)
    assert imputer.certificate_["likelihood"].undecided
