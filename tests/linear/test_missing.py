"""Rows with missing entries: maximum likelihood, predictions, streams and certificates."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from extras import require
from linear.observed_likelihood import (
    loss_and_gradient,
    make_incomplete,
    parameters,
    smallest_loss,
)
from lucidae import LinearAutoencoder, SecondMoment, certify, load, save
from lucidae.linear import METHODS
from lucidae.metrics import subspace_distance


def em(k=2, **settings):
    return LinearAutoencoder(k, handle_missing="em", **settings)


def theta(model):
    """Return mean, loadings and noise variance of a fit, from its mean and covariance.

    The covariance of maximum likelihood is divided by the number of rows, not by one less.
    """
    total = model.n_samples_seen_
    values, vectors = np.linalg.eigh(model.get_covariance() * (total - 1) / total)
    k, noise = model.n_components_, values[0]
    return parameters(model.mean_, vectors[:, -k:] * np.sqrt(values[-k:] - noise), noise)


def conditional(row, mean, covariance):
    """Return E[x | observed] and Cov(x | observed) of a Gaussian row by their definition."""
    o, u = np.flatnonzero(~np.isnan(row)), np.flatnonzero(np.isnan(row))
    gain = covariance[np.ix_(u, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
    filled, spread = row.copy(), np.zeros_like(covariance)
    filled[u] = mean[u] + gain @ (row[o] - mean[o])
    spread[np.ix_(u, u)] = covariance[np.ix_(u, u)] - gain @ covariance[np.ix_(o, u)]
    return filled, spread


# The maximum of the likelihood.


def problem(seed):
    rng = np.random.default_rng(1000 + seed)
    n, m, k = int(rng.integers(25, 70)), int(rng.integers(4, 8)), int(rng.integers(1, 4))
    share, noise = rng.uniform(0.05, 0.5), rng.uniform(0.3, 1.2)
    return make_incomplete(n, m, k, share, noise, seed)[0], k


def check_maximum(seed, starts):
    X, k = problem(seed)
    loss, gradient = loss_and_gradient(theta(em(k, tol=1e-9).fit(X)), X, k)
    assert np.max(np.abs(gradient)) < 1e-5 * len(X)
    assert loss <= smallest_loss(X, k, seed, starts) + 1e-7 * len(X)


@pytest.mark.parametrize("seed", range(6))
def test_em_finds_the_maximum_of_the_likelihood(seed):
    check_maximum(seed, starts=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_em_equals_brute_force_from_many_starts(seed):
    check_maximum(seed, starts=12)


def test_one_missing_entry_changes_little():
    """The covariance is that of probabilistic PCA of the complete rows, in closed form."""
    _, X = make_incomplete(2000, 7, 3, seed=4)
    X[0, 0] = np.nan
    values, vectors = np.linalg.eigh(np.cov(X[1:].T, bias=True))
    noise = np.mean(values[:4])
    expected = (vectors[:, 4:] * (values[4:] - noise)) @ vectors[:, 4:].T + noise * np.eye(7)
    assert_allclose(em(3, tol=1e-9).fit(X).get_covariance(), expected, atol=0.02)


def test_likelihood_never_falls():
    X, _ = make_incomplete(60, 8, 3, 0.6, 0.1, seed=2)
    losses = em(3, tol=1e-10).fit(X).history_["loss"]
    assert len(losses) > 10
    assert np.all(np.diff(losses) <= 1e-12 * np.abs(losses[0]))


def test_history_is_the_negative_likelihood_per_row():
    X, _ = make_incomplete(seed=3)
    model = em().fit(X)
    loss, _ = loss_and_gradient(theta(model), X, 2)
    assert_allclose(model.history_["loss"][-1], loss / len(X), rtol=1e-10)


@pytest.mark.parametrize(
    ("constant", "value"),
    [("missing.BLOCK_ENTRIES", 60), ("missing.PAIRWISE_FEATURES", 3)],
    ids=["blocks of patterns", "start for many features"],
)
def test_large_problems_reach_the_same_maximum(constant, value, monkeypatch):
    X, _ = make_incomplete(150, 9, 2, 0.3, seed=7)
    X[:9] = X[0]  # several rows of one pattern
    expected = em(tol=1e-9).fit(X).score(X)
    monkeypatch.setattr(f"lucidae.linear.{constant}", value)
    assert_allclose(em(tol=1e-9).fit(X).score(X), expected, rtol=1e-10)


def test_many_rows_of_few_patterns():
    X, _ = make_incomplete(200, 5, 2, 0.0, seed=5)
    X[:120, :2], X[120:150, 4] = np.nan, np.nan
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    model = em(tol=1e-9).fit(X, sample_weight=weights)
    _, gradient = loss_and_gradient(theta(model), X, 2, weights)
    assert np.max(np.abs(gradient)) < 1e-5 * len(X)


def test_limit_of_steps_warns():
    X, _ = make_incomplete(seed=8)
    with pytest.warns(ConvergenceWarning, match="limit of 1 iterations"):
        model = em(max_iter=1).fit(X)
    assert model.status_ == "iteration limit"
    assert model.certificate_["likelihood"].holds is False


# Complete rows.


@pytest.mark.parametrize("method", METHODS)
def test_complete_rows_give_exactly_what_they_always_gave(method):
    _, X = make_incomplete(seed=9)
    plain, model = LinearAutoencoder(2, method=method).fit(X), em(method=method).fit(X)
    for name in ("mean_", "encoder_", "decoder_", "components_", "explained_variance_"):
        assert_array_equal(getattr(plain, name), getattr(model, name))
    assert_array_equal(plain.transform(X), model.transform(X))
    assert_array_equal(plain.score_samples(X), model.score_samples(X))
    assert plain.certificate_.to_dict() == model.certificate_.to_dict()


def test_rows_without_an_observed_entry_do_not_count():
    X, complete = make_incomplete(seed=10)
    empty = np.full((3, 6), np.nan)
    assert_array_equal(
        em().fit(np.vstack([complete, empty])).components_,
        LinearAutoencoder(2).fit(complete).components_,
    )
    with_empty = em().fit(np.vstack([X, empty]))
    assert_allclose(with_empty.get_covariance(), em().fit(X).get_covariance(), rtol=1e-10)
    assert with_empty.n_samples_seen_ == len(X)


def test_all_components_of_complete_batches_stay_exact():
    _, X = make_incomplete(seed=11)
    model = em()
    for start in range(0, 60, 20):
        model.partial_fit(X[start : start + 20])
    assert_allclose(model.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-12)
    assert model.certificate_.holds


# Invariances.


def test_order_of_rows_and_features_does_not_matter():
    X, _ = make_incomplete(seed=12)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(60), rng.permutation(6)
    expected = em(tol=1e-9).fit(X).get_covariance()
    found = em(tol=1e-9).fit(X[rows][:, columns]).get_covariance()
    assert_allclose(found, expected[np.ix_(columns, columns)], atol=1e-6)


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1e80, 0.0), (1.0, 1e5), (-3.0, 1.0)])
def test_units_of_the_data_do_not_matter(scale, shift):
    X, _ = make_incomplete(seed=13)
    expected, found = em(tol=1e-9).fit(X), em(tol=1e-9).fit(scale * X + shift)
    assert_allclose(found.get_covariance() / scale**2, expected.get_covariance(), atol=1e-6)
    assert_allclose(found.mean_, scale * expected.mean_ + shift, rtol=1e-7)
    assert found.certificate_["likelihood"].holds


def test_weights_are_frequencies():
    X, _ = make_incomplete(seed=14)
    counts = np.random.default_rng(1).integers(0, 4, len(X))
    weighted = em(tol=1e-9).fit(X, sample_weight=counts)
    repeated = em(tol=1e-9).fit(np.repeat(X, counts, axis=0))
    assert_allclose(weighted.get_covariance(), repeated.get_covariance(), atol=1e-7)
    assert weighted.n_samples_seen_ == counts.sum()
    assert weighted.certificate_["likelihood"].holds


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(20, 60),
    m=st.integers(2, 6),
    share=st.floats(0.05, 0.6),
)
def test_fits_are_certified_and_agree_with_the_definition(seed, n, m, share):
    X, _ = make_incomplete(n, m, 1, share, 1.0, seed)
    model = em(1).fit(X)
    assert np.all(np.isfinite(model.transform(X)))
    if np.isnan(X).any() and not model.certificate_["likelihood"].undecided:
        assert model.certificate_["likelihood"].holds
        point = theta(model)
        _, gradient = loss_and_gradient(point, X, 1)
        assert np.max(np.abs(gradient[:-1])) * np.exp(point[-1] / 2) < 1e-5 * n


# Predictions from the observed entries.


@pytest.mark.parametrize("method", ["rag", "uniform_l2", "linear_vae"])
@pytest.mark.parametrize("whiten", [False, True])
def test_codes_are_expectations_given_the_observed_entries(method, whiten):
    X, complete = make_incomplete(seed=15)
    X[0] = np.nan
    model = em(method=method, whiten=whiten).fit(X)
    covariance = model.get_covariance()
    codes, spread = model.transform(X), model.posterior_covariance(X)
    scores = model.score_samples(X)
    encoder = model.encoder_
    if whiten:
        encoder = encoder / np.sqrt(np.diag(encoder @ covariance @ encoder.T))[:, None]
    for i in range(1, 20):
        filled, rest = conditional(X[i], model.mean_, covariance)
        assert_allclose(codes[i], encoder @ (filled - model.mean_), atol=1e-9)
        assert_allclose(spread[i], encoder @ rest @ encoder.T, atol=1e-9)
        o = np.flatnonzero(~np.isnan(X[i]))
        density = multivariate_normal(model.mean_[o], covariance[np.ix_(o, o)])
        assert_allclose(scores[i], density.logpdf(X[i, o]), atol=1e-9)
    assert_allclose(codes[0], 0.0, atol=1e-12)
    assert scores[0] == 0.0
    assert_allclose(spread[0], encoder @ covariance @ encoder.T, atol=1e-9)
    assert_allclose(model.transform(complete), (complete - model.mean_) @ encoder.T, atol=1e-9)
    assert_allclose(model.posterior_covariance(complete), 0.0, atol=1e-12)


def test_blocks_of_rows_give_the_same_predictions(monkeypatch):
    X, _ = make_incomplete(seed=16)
    model = em().fit(X)
    expected = model.transform(X), model.score_samples(X), model.posterior_covariance(X)
    monkeypatch.setattr("lucidae.linear.missing.BLOCK_ENTRIES", 50)
    found = model.transform(X), model.score_samples(X), model.posterior_covariance(X)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, atol=1e-12)


def test_a_fit_to_complete_rows_encodes_rows_with_missing_entries():
    X, complete = make_incomplete(seed=17)
    model = em().fit(complete)
    filled = [conditional(row, model.mean_, model.get_covariance())[0] for row in X]
    assert_allclose(model.transform(X), model.transform(np.array(filled)), atol=1e-9)


def test_entries_are_predicted_better_than_by_the_mean():
    X, complete = make_incomplete(400, 10, 2, 0.4, 0.2, seed=18)
    model, hidden = em().fit(X), np.isnan(X)
    decoded = model.inverse_transform(model.transform(X))
    error = np.mean((decoded - complete)[hidden] ** 2)
    assert error < 0.1 * np.mean((np.nanmean(X, axis=0) - complete)[hidden] ** 2)


def test_as_many_components_as_features_give_the_gaussian_of_all_covariances():
    X, _ = make_incomplete(200, 4, 2, 0.2, seed=19)
    full, fewer = em(4, tol=1e-9).fit(X), em(3, tol=1e-9).fit(X)
    assert full.components_.shape == (4, 4)
    assert_allclose(full.get_covariance(), fewer.get_covariance(), atol=1e-8)
    codes = full.transform(X)
    assert_allclose(full.inverse_transform(codes)[~np.isnan(X)], X[~np.isnan(X)], atol=1e-9)


def test_data_without_noise_are_completed_and_a_warning_says_so():
    X, complete = make_incomplete(150, 8, 2, 0.3, 0.0, seed=20)
    with pytest.warns(ConvergenceWarning, match="no maximum"):
        model = em().fit(X)
    decoded = model.inverse_transform(model.transform(X))
    assert_allclose(decoded, complete, atol=1e-4)
    claim = model.certificate_["likelihood"]
    assert claim.undecided
    assert "smaller n_components" in claim.advice


def test_constant_features():
    X, _ = make_incomplete(seed=21)
    X[~np.isnan(X[:, 2]), 2] = 5.0
    model = em(tol=1e-8).fit(X)
    assert_allclose(model.mean_[2], 5.0)
    assert abs(model.components_[0, 2]) < 1e-4
    constant = np.where(np.isnan(X), np.nan, [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    with_all = em().fit(constant)
    assert_array_equal(with_all.mean_, [1, 2, 3, 4, 5, 6])
    assert_array_equal(with_all.explained_variance_, 0.0)
    assert_allclose(with_all.inverse_transform(with_all.transform(constant))[0], with_all.mean_)


# Warm starts and batches.


def test_warm_starts_continue_also_with_another_number_of_components():
    X, _ = make_incomplete(300, 12, 4, 0.4, 0.3, seed=22)
    model = em(3, warm_start=True).fit(X)
    first = model.n_iter_
    assert model.fit(X).n_iter_ == 1 < first
    for k in (5, 2, 4):
        warm, cold = model.set_params(n_components=k).fit(X), em(k).fit(X)
        assert_allclose(warm.score(X), cold.score(X), atol=1e-6)
        assert warm.components_.shape == (k, 12)
    with pytest.warns(UserWarning, match="last fit has 12 features and X has 6"):
        model.fit(X[:, :6])
    assert_allclose(model.score(X[:, :6]), em(4).fit(X[:, :6]).score(X[:, :6]), atol=1e-6)


def test_batches_with_missing_entries_are_refused():
    X, complete = make_incomplete(seed=26)
    for model, batch in ((em(), X), (em().partial_fit(complete), X), (em().fit(X), complete)):
        with pytest.raises(ValueError, match="give all of them to fit"):
            model.partial_fit(batch)


# Input of every kind.


def test_the_default_refuses_missing_entries_and_names_the_argument():
    X, complete = make_incomplete(seed=27)
    fitted = LinearAutoencoder(2).fit(complete)
    for call in (
        LinearAutoencoder(2).fit,
        LinearAutoencoder(2).partial_fit,
        fitted.transform,
        fitted.score,
        fitted.score_samples,
    ):
        with pytest.raises(ValueError, match=r"NaN.*handle_missing='em'"):
            call(X)
    with pytest.raises(ValueError, match=r"NaN.*handle_missing='em'"):
        LinearAutoencoder(2).fit(require("array_api_strict").asarray(X))


REFUSED = {
    "wrong word": ({"handle_missing": "drop"}, "one of 'error', 'em'"),
    "descent": ({"solver": "gradient"}, "expected solver='exact' or 'auto'"),
    "mini-batches": ({"solver": "stochastic"}, "expected solver='exact' or 'auto'"),
    "too many": ({"n_components": 7}, "X has 6 features"),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED)
def test_settings_that_do_not_work_are_refused(settings, message):
    X, _ = make_incomplete(seed=28)
    with pytest.raises(ValueError, match=message):
        em().set_params(**settings).fit(X)


def test_number_of_components_by_share_and_by_default():
    X, complete = make_incomplete(300, 6, 2, 0.2, 0.3, seed=37)
    every = em(None).fit(X)
    assert every.n_components_ == 6
    for share in (0.5, 0.9, 0.97, 0.9999):
        model = em(share).fit(X)
        assert abs(model.n_components_ - LinearAutoencoder(share).fit(complete).n_components_) <= 1
        assert np.sum(model.explained_variance_ratio_) >= share
        assert model.certificate_.holds
    assert_allclose(em(0.9).fit(X).components_, em(2).fit(X).components_, atol=1e-4)
    assert em(0.9).fit(X[:6]).n_components_ <= 2  # as many rows as features


def table_with_a_constant(n, m, share=0.06):
    """Return a table of which entries are missing, and the complete one; the last is constant."""
    rng = np.random.default_rng(0)
    loadings = rng.standard_normal((12, m - 1)) * np.geomspace(3.0, 0.5, 12)[:, None]
    X = rng.standard_normal((n, 12)) @ loadings + rng.standard_normal((n, m - 1))
    X = np.column_stack([X, np.full(n, 0.1)])
    return np.where(rng.random(X.shape) < share, np.nan, X), X


def test_a_constant_column_does_not_change_the_number_of_components():
    X, complete = table_with_a_constant(500, 31)
    model = em(0.9).fit(X)
    assert abs(model.n_components_ - LinearAutoencoder(0.9).fit(complete).n_components_) <= 1
    assert model.certificate_.holds
    assert model.mean_[-1] == pytest.approx(0.1)
    assert_allclose(model.components_[:, -1], 0.0, atol=1e-10)
    every = em(None).fit(X[:, -5:])
    assert every.n_components_ == 3  # the fourth has the variance of the noise
    assert every.certificate_.holds


def test_steps_that_are_too_few_for_the_number_of_components_are_not_certified():
    X, _ = table_with_a_constant(200, 20)
    with pytest.warns(ConvergenceWarning, match="limit of 2 iterations"):
        model = em(0.9, max_iter=2).fit(X)
    assert model.status_ == "iteration limit"
    assert not any(claim.holds for claim in model.certificate_)


def test_progress_names_the_number_of_components(capsys, monkeypatch):
    monkeypatch.setattr("lucidae.iteration.progress.DELAY", 0.0)
    em(0.9, verbose=True).fit(table_with_a_constant(200, 20)[0])
    assert "components" in capsys.readouterr().err


@pytest.mark.parametrize("criterion", ["mle", "parallel_analysis", "hard_threshold"])
def test_criteria_find_strong_components_and_no_others(criterion):
    for seed in range(3):
        X, complete = make_incomplete(400, 12, 3, 0.3, 0.5, seed=seed)
        model = em(criterion).fit(X)
        assert model.n_components_ == LinearAutoencoder(criterion).fit(complete).n_components_ == 3
        assert model.component_count_.n_components == 3
        assert model.certificate_.holds


def test_parallel_analysis_finds_nothing_in_noise():
    """The number of rows is that of common entries: with all rows, 16 of 20 were not empty."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((150, 12))
        noise[rng.random(noise.shape) < 0.3] = np.nan
        with pytest.warns(UserWarning, match="finds 0 components"):
            assert em("parallel_analysis").fit(noise).component_count_.n_components == 0


def test_criteria_of_nearly_complete_rows_are_those_of_complete_rows():
    X, complete = make_incomplete(200, 10, 3, 0.0, 1.0, seed=3)
    X[0, 0] = np.nan
    for criterion in ("mle", "parallel_analysis", "hard_threshold"):
        found = em(criterion).fit(X).component_count_
        expected = LinearAutoencoder(criterion).fit(complete).component_count_
        assert found.n_components == expected.n_components
        assert_allclose(found.scores, expected.scores, rtol=0.05, atol=0.02)


def test_data_that_do_not_work_are_refused():
    X, _ = make_incomplete(seed=29)
    with pytest.raises(ValueError, match="infinity"):
        em().fit(np.where(np.isnan(X), np.inf, X))
    with pytest.raises(ValueError, match="infinity"):
        em().fit(X).transform(np.where(np.isnan(X), -np.inf, X))
    with pytest.raises(ValueError, match=r"contains NaN.* sparse matrix"):
        em().fit(scipy.sparse.csr_array(X))
    fitted, complete = em().fit(X), np.nan_to_num(X)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        certify(fitted, scipy.sparse.csr_array(X))
    assert certify(fitted, scipy.sparse.csr_array(complete)).holds is False
    with pytest.raises(ValueError, match=r"1 rows with an observed entry"):
        em().fit(np.vstack([X[:1], np.full((3, 6), np.nan)]))
    with pytest.raises(ValueError, match="overflow"):
        em().fit(1e200 * X)
    with pytest.raises(ValueError, match="underflow"):
        em().fit(1e-200 * X)
    never = X.copy()
    never[:, [1, 4]] = np.nan
    with pytest.raises(ValueError, match="features 1, 4 of X have no observed entry"):
        em().fit(never)
    pandas = require("pandas")
    with pytest.warns(UserWarning, match=r"left out: 'weight' \(it has no entries\)"):
        em(1).fit(pandas.DataFrame({"size": [1.0, 2.0, 4.0], "weight": [np.nan] * 3}))


def test_frames_masked_arrays_and_single_precision():
    pandas = require("pandas")
    X, _ = make_incomplete(seed=30)
    expected = em().fit(X)
    frame = pandas.DataFrame(X, columns=list("abcdef")).astype("Float64")
    assert frame.isna().to_numpy().any()
    assert_allclose(em().fit(frame).components_, expected.components_, atol=1e-12)
    masked = np.ma.masked_invalid(X)
    assert_allclose(em().fit(masked).transform(masked), expected.transform(X), atol=1e-12)
    single = em().fit(X.astype(np.float32))
    assert single.components_.dtype == single.transform(X.astype(np.float32)).dtype == np.float32
    assert single.posterior_covariance(X.astype(np.float32)).dtype == np.float32
    assert_allclose(single.components_, expected.components_, atol=1e-4)


def test_integers_with_missing_entries_in_a_frame():
    pandas = require("pandas")
    counts = pandas.array([1, 2, None, 4, 5, 7], dtype="Int64")
    frame = pandas.DataFrame({"a": counts, "b": [2.0, 4.1, 6.0, 7.9, 10.0, 14.2]})
    model = em(1).fit(frame)
    assert_allclose(model.inverse_transform(model.transform(frame))[2], [3.0, 6.0], atol=0.2)


def test_arrays_of_other_libraries(xp):
    X, _ = make_incomplete(80, 6, 2, seed=31)
    X[:30] = np.where(np.isnan(X[0]), np.nan, np.nan_to_num(X[:30]))  # one large pattern
    expected, rows = em(tol=1e-9).fit(X), xp.asarray(X)
    model = em(tol=1e-9).fit(rows)
    assert type(model.components_) is type(rows)
    assert_allclose(np.asarray(model.components_), expected.components_, atol=1e-7)
    assert_allclose(np.asarray(model.transform(rows)), expected.transform(X), atol=1e-6)
    assert_allclose(np.asarray(model.score_samples(rows)), expected.score_samples(X), atol=1e-6)
    spread = model.posterior_covariance(rows)
    assert_allclose(np.asarray(spread), expected.posterior_covariance(X), atol=1e-6)
    counted = em("parallel_analysis").fit(rows)
    assert counted.n_components_ == em("parallel_analysis").fit(X).n_components_


def test_blocks_that_are_loaded_are_fitted():
    X, _ = make_incomplete(seed=32)
    expected = em().fit(X)
    model = em().fit_batches([X[:25], X[25:]])
    assert_allclose(model.components_, expected.components_, atol=1e-12)
    codes = model.transform(iter([X[:25], X[25:]]))
    assert_allclose(codes, expected.transform(X), atol=1e-12)


def test_blocks_that_are_not_loaded_are_refused(monkeypatch):
    X, _ = make_incomplete(seed=33)
    monkeypatch.setattr("lucidae.linear.estimator.loaded_rows", lambda data, missing, verbose: None)
    with pytest.raises(ValueError, match=r"load all rows"):
        em().fit_batches([X[:25], X[25:]])


def test_a_moment_of_complete_rows_is_accepted():
    _, X = make_incomplete(seed=34)
    model = em().fit_batches(None, start=SecondMoment.of(X))
    assert_allclose(model.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-12)


def test_tag_follows_the_setting():
    assert em().__sklearn_tags__().input_tags.allow_nan
    assert not LinearAutoencoder().__sklearn_tags__().input_tags.allow_nan


def test_number_of_components_is_chosen_by_held_out_likelihood():
    X, _ = make_incomplete(300, 8, 2, 0.2, 0.3, seed=35)
    search = GridSearchCV(em(), {"n_components": [1, 2, 4]}, cv=3).fit(X)
    assert search.best_params_ == {"n_components": 2}


def test_fits_are_saved_and_loaded(tmp_path):
    X, _ = make_incomplete(seed=36)
    model = em(method="linear_vae").fit(X)
    save(model, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    assert_array_equal(loaded.transform(X), model.transform(X))
    assert loaded.certificate_.to_dict() == model.certificate_.to_dict()
    assert clone(model).handle_missing == "em"
    counted = em("mle").fit(X)
    save(counted, tmp_path / "counted.npz")
    found = load(tmp_path / "counted.npz").component_count_
    assert found.summary() == counted.component_count_.summary()


# Certificates.


def relative_size(fitted, X, weights=None):
    """Return the value of the claim `likelihood` from the derivatives of the naive likelihood."""
    m, k = fitted.loadings.shape
    total = len(X) if weights is None else np.sum(weights)
    point = parameters(fitted.mean, fitted.loadings, fitted.noise)
    _, slope = loss_and_gradient(point, X, k, weights)
    return np.sqrt(fitted.noise * np.sum(slope[:-1] ** 2) + 2 / m * slope[-1] ** 2) / total


def test_the_gradient_is_that_of_the_likelihood(monkeypatch):
    monkeypatch.setattr("lucidae.linear.verify.POSTERIOR_ENTRIES", 100)
    X, _ = make_incomplete(80, 6, 2, 0.3, seed=1)
    weights = np.random.default_rng(0).uniform(0.0, 3.0, 80)
    model = em().fit(X)
    state = model._state
    state.observed = replace(state.observed, mean=state.observed.mean + 0.1, noise=1.3)
    claim = certify(model, X, sample_weight=weights)["likelihood"]
    assert_allclose(claim.value, relative_size(state.observed, X, weights), rtol=1e-9)
    assert claim.error < 1e-10


def test_fits_are_certified_and_the_figure_is_small():
    X, _ = make_incomplete(100, 7, 2, 0.3, seed=2)
    model = em(tol=1e-8).fit(X)
    assert model.certificate_.holds
    assert model.certificate_["likelihood"].value < 1e-7
    assert certify(model, X).to_dict() == model.certificate_.to_dict()
    assert not certify(model, X)["sampling"].undecided


CHANGES = {
    "loadings": lambda fitted: {"loadings": 1.001 * fitted.loadings},
    "mean": lambda fitted: {"mean": fitted.mean + 1e-3},
    "noise": lambda fitted: {"noise": 1.001 * fitted.noise},
    "no component": lambda fitted: {"loadings": fitted.loadings * [1.0, 0.0]},
    "rotation of the features": lambda fitted: {"loadings": np.roll(fitted.loadings, 1, axis=0)},
    "not a number": lambda fitted: {"mean": np.nan * fitted.mean},
}


@pytest.mark.covering
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_parameters_fail(change):
    X, _ = make_incomplete(100, 6, 2, 0.3, seed=3)
    model = em().fit(X)
    fitted = replace(model._state.observed, **change(model._state.observed))
    model._state.observed = fitted
    assert certify(model, X)["likelihood"].holds is False
    assert certify(model, X).holds is False


def test_changed_attributes_and_other_rows_fail():
    X, complete = make_incomplete(100, 6, 2, 0.3, seed=4)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 100)
    model = em().fit(X)
    assert certify(model, X[:50])["likelihood"].holds is False
    assert certify(model, complete)["likelihood"].holds is False
    assert certify(em().fit(complete), X)["likelihood"].holds is False
    assert certify(model, X, sample_weight=weights)["likelihood"].holds is False
    weighted = em().fit(X, sample_weight=weights)
    assert certify(weighted, X, sample_weight=weights)["likelihood"].holds
    model.components_ = np.array([[0.8, 0.6], [-0.6, 0.8]]) @ model.components_
    assert model.certificate_["attributes"].holds is False
    wrong = em().fit(X)
    wrong._state.solution = replace(wrong._state.model, mean=wrong._state.model.mean + 0.1)
    assert certify(wrong, X)["attributes"].holds is False


def halves(links, k=1, n=200, side=4, seed=8):
    """Return rows of two groups of `side` features that share further `links` features.

    Each half of the rows lacks the features of one group.
    """
    X, _ = make_incomplete(n, 2 * side + links, k, 0.0, 0.4, seed)
    X[: n // 2, side + links :] = np.nan
    X[n // 2 :, :side] = np.nan
    return X


def test_groups_of_features_without_a_link_fail():
    model = em(1).fit(halves(0))
    claim = model.certificate_["identifiability"]
    assert claim.holds is False
    assert "Columns 0 and 4, 0 and 5" in claim.advice


def test_covariances_that_follow_from_the_model_alone_are_undecided():
    claim = em(1).fit(halves(2)).certificate_["identifiability"]
    assert claim.undecided
    assert claim.value == 16
    assert "Columns 0 and 6, 0 and 7, 0 and 8 and 13 other pairs" in claim.advice


@pytest.mark.parametrize(("k", "links"), [(2, 1), (3, 2)])
def test_fewer_links_than_latents_have_mirror_images(k, links):
    X = halves(links, k=k, side=7, n=400)
    model = em(k).fit(X)
    assert model.certificate_["identifiability"].undecided
    # Reflect the loadings of one group along a direction orthogonal to those of the links.
    fitted = model._state.observed
    W = fitted.loadings
    v = np.linalg.svd(W[7 : 7 + links])[2][-1]
    image = np.concatenate([W[: 7 + links], W[7 + links :] @ (np.eye(k) - 2 * np.outer(v, v))])
    before, after = (
        loss_and_gradient(parameters(fitted.mean, loadings, fitted.noise), X, k)[0]
        for loadings in (W, image)
    )
    assert_allclose(after, before, rtol=1e-10)
    assert np.max(np.abs(image @ image.T - W @ W.T)) > 0.1


@pytest.mark.parametrize("complete", [0, 1, 20])
def test_mirror_images_never_hold(complete):
    """Some complete rows make one of the images slightly more likely, which proves nothing."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((3000, 2)) @ rng.standard_normal((2, 7))
        X += 0.5 * rng.standard_normal(X.shape)
        X[complete:1500, :3] = X[1500:, 4:] = np.nan
        certificate = em().fit(X).certificate_
        assert not certificate["identifiability"].holds
        assert not certificate.holds


@pytest.mark.parametrize(("links", "seed"), [(3, 30), (4, 22), (4, 34), (4, 39)])
def test_a_local_maximum_near_a_mirror_image_does_not_hold(links, seed):
    """Links of rank k determine the loadings, but EM ended at a mirror image of the optimum."""
    rng = np.random.default_rng(seed)
    W = rng.standard_normal((6 + links, 2)) * [2, 1]
    X = rng.standard_normal((300, 2)) @ W.T + 0.5 * rng.standard_normal((300, 6 + links))
    X[:150, :3] = X[150:, 3 + links :] = np.nan
    model = em(tol=1e-5).fit(X)
    assert subspace_distance(model.decoder_, np.linalg.svd(W, full_matrices=False)[0]) > 0.4
    assert model.certificate_["identifiability"].undecided


def test_features_that_form_no_large_group_are_undecided():
    X, _ = make_incomplete(300, 6, 2, 0.0, seed=2)
    for i in range(300):  # two features of each row, which lie next to each other
        X[i, np.setdiff1d(np.arange(6), [i % 6, (i + 1) % 6])] = np.nan
    claim = em(2, max_iter=2000, tol=1e-4).fit(X).certificate_["identifiability"]
    assert claim.undecided


def test_large_problems_are_not_judged_for_identifiability(monkeypatch):
    X = halves(2)
    model = em(1).fit(X)
    monkeypatch.setattr("lucidae.linear.verify.PAIRED_FEATURES", 3)
    assert certify(model, X)["identifiability"].verdict == "does not apply"
    monkeypatch.setattr("lucidae.linear.verify.DENSE_FEATURES", 3)
    assert certify(model, X)["subspace"].holds


@pytest.mark.parametrize("method", ["rag", "linear_vae"])
def test_lost_information_is_the_variance_of_the_codes_given_what_is_observed(method):
    X, complete = make_incomplete(300, 6, 2, 0.4, seed=9)
    model = em(method=method).fit(X)
    claim = model.certificate_["missing_information"]
    lost = model.certificate_.evidence["lost_code_variance"]
    spread = np.mean(model.posterior_covariance(X), axis=0)
    variances = np.diag(model.encoder_ @ model.get_covariance() @ model.encoder_.T)
    assert_allclose(lost, np.diag(spread) / variances, rtol=1e-9)
    assert claim.value == np.max(lost)
    assert claim.holds is None
    assert_allclose(model.certificate_.evidence["missing_share"], np.mean(np.isnan(X)))
    assert_allclose(certify(model, complete).evidence["lost_code_variance"], 0.0, atol=1e-12)


def test_a_row_that_is_most_of_a_component_is_named():
    X, _ = make_incomplete(500, 6, 2, 0.1, seed=11)
    usual = em().fit(X).certificate_["leverage"]
    assert 0.0 < usual.value < 0.1
    assert not usual.advice
    X[3] = np.nan  # rows without an entry do not change the numbers of the others
    X[7] = [1e3, np.nan, 1e3, 1e3, 1e3, 1e3]
    model = em(tol=1e-3).fit(X)
    for certificate in (model.certificate_, certify(model, X)):
        assert certificate["leverage"].value > 0.9
        assert "row 7 has" in certificate["leverage"].advice
        assert_array_equal(certificate.evidence["leverage_rows"], [7])


def test_more_features_than_are_decomposed():
    X, _ = make_incomplete(60, 1100, 2, 0.3, seed=10)
    model = em().fit(X)
    assert model.certificate_["likelihood"].holds
    assert model.certificate_["subspace"].holds
    assert model.certificate_.holds is not False


def test_rows_without_any_observed_entry_judge_nothing():
    rows = np.random.default_rng(0).standard_normal((30, 4))
    model = LinearAutoencoder(2, handle_missing="em").fit(rows)
    with pytest.raises(ValueError, match="no observed entry"):
        certify(model, np.full((30, 4), np.nan))
