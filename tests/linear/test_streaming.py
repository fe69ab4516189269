"""`partial_fit`: any batches give the fit on all rows; the stochastic rule goes on from each."""

import copy

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose
from sklearn.base import clone

from extras import require
from linear.brute_force import ALIGNED
from linear.problems import centred_rows
from lucidae import LinearAutoencoder, certify
from lucidae.linear import METHODS
from lucidae.metrics import subspace_distance

SHOWN = (
    "mean_",
    "components_",
    "encoder_",
    "decoder_",
    "explained_variance_",
    "explained_variance_ratio_",
    "singular_values_",
    "noise_variance_",
)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.standard_normal((1500, 9)) @ rng.standard_normal((9, 9)) + 20


def streamed(estimator, X, size, weights=None):
    for start in range(0, X.shape[0], size):
        part = slice(start, start + size)
        estimator.partial_fit(X[part], sample_weight=None if weights is None else weights[part])
    return estimator


def assert_same(found, expected, X):
    for name in SHOWN:
        assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10, err_msg=name
        )
    assert_allclose(found.transform(X), expected.transform(X), atol=1e-10)
    assert found.n_samples_seen_ == expected.n_samples_seen_
    assert_allclose(found.score(X), expected.score(X), rtol=1e-10)


@pytest.mark.covering
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("wanted", [5, None, 0.9])
def test_batches_of_any_size_equal_the_fit(X, wanted, size):
    """The first batch of 1 row is smaller than k = 5."""
    estimator = LinearAutoencoder(wanted)
    assert_same(streamed(clone(estimator), X, size), estimator.fit(X), X)


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["exact", "gradient"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_streams(X, method, solver):
    if method == "nested_dropout" and solver == "gradient":
        solver = "exact"  # sampled masks need the rows: this pair streams through the rule
    settings = {"method": method, "solver": solver, "random_state": 0, "max_iter": 30, "tol": 9.0}
    estimator = LinearAutoencoder(4, **settings)
    assert_same(streamed(clone(estimator), X, 400), estimator.fit(X), X)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_sparse_stream_equals_the_dense_fit(size):
    X = scipy.sparse.random(1100, 12, density=0.3, random_state=0, format="csr")
    estimator = LinearAutoencoder(4)
    assert_same(streamed(clone(estimator), X, size), estimator.fit(X.toarray()), X.toarray())


def test_weights_stream(X):
    weights = np.random.default_rng(1).uniform(0, 3, len(X))
    estimator = LinearAutoencoder(3)
    found = streamed(clone(estimator), X, 100, weights)
    expected = estimator.fit(X, sample_weight=weights)
    assert_allclose(found.components_, expected.components_, atol=1e-10)
    assert_allclose(found.n_samples_seen_, weights.sum())


def test_fit_and_partial_fit_go_together(X):
    estimator = LinearAutoencoder(3).fit(X[:500]).partial_fit(X[500:])
    assert_same(estimator, LinearAutoencoder(3).fit(X), X)
    estimator.fit(X[:700])
    assert_same(estimator, LinearAutoencoder(3).fit(X[:700]), X)


def test_new_settings_hold_from_the_next_batch(X):
    estimator = LinearAutoencoder(3).partial_fit(X[:500]).set_params(n_components=5)
    assert estimator.partial_fit(X[500:]).n_components_ == 5


def test_nothing_is_solved_before_it_is_read(X, monkeypatch):
    calls, solve = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda *args: calls.append(1) or solve(*args))
    estimator = streamed(LinearAutoencoder(3), X, 100)
    assert estimator.n_samples_seen_ == 1500
    assert not calls
    before = set(vars(estimator))
    assert estimator.components_.shape == estimator.components_.shape == (3, 9)
    assert set(vars(estimator)) == before


# Small batches.


def rows_about(center, n=400, dtype=float):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, 6)) @ rng.standard_normal((6, 6)) + center
    return rows.astype(dtype)


def assert_moment_of(estimator, X):
    """Compare mean and covariance with those of all rows."""
    exact = np.cov(X.T)
    assert estimator.n_samples_seen_ == len(X)
    assert_allclose(estimator.mean_, X.mean(axis=0), rtol=1e-13)
    assert_allclose(estimator.get_covariance(), exact, rtol=1e-9, atol=1e-9 * np.trace(exact))


@pytest.mark.covering
@pytest.mark.parametrize("center", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("size", [1, 3, 5, 12, 13])
def test_small_batches_give_the_moment_of_all_rows(size, center):
    X = rows_about(center)
    assert_moment_of(streamed(LinearAutoencoder(6), X, size), X)


@pytest.mark.parametrize("jump", [1e3, 1e8])
def test_a_mean_that_jumps_costs_no_digits(jump):
    """The squares about the old centre would lose the variance of rows far from it."""
    X = np.concatenate([rows_about(0.0, 10), rows_about(jump, 391)])
    X[:, 0] = np.arange(401)
    found = streamed(LinearAutoencoder(6), X, 5).get_covariance()
    assert_allclose(found, np.cov(X.T), rtol=1e-7)


def test_a_batch_may_be_overwritten_after_it_was_given():
    X, estimator = rows_about(0.0, 45), LinearAutoencoder(6)
    batch = np.empty((5, 6))
    for start in range(0, 45, 5):
        batch[...] = X[start : start + 5]
        estimator.partial_fit(batch)
    assert_moment_of(estimator, X)


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [(float, np.nan), (float, np.inf), (float, 1e200), (np.float32, 1e25)],
)
@pytest.mark.parametrize("before", [5, 10, 15])
def test_a_refused_batch_leaves_the_rows_before_it(bad, before, dtype):
    X = rows_about(1.0, 40, dtype)
    estimator = streamed(LinearAutoencoder(6), X[:before], 5)
    batch = X[:5].copy()
    batch[3, 2] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity|overflow|range of its dtype"):
        estimator.partial_fit(batch)
    assert copy.deepcopy(estimator).n_samples_seen_ == before
    for start in range(before, 40, 5):
        estimator.partial_fit(X[start : start + 5])
    if dtype is float:
        assert_moment_of(estimator, X)


# The stochastic rule.


@pytest.mark.parametrize("method", METHODS)
def test_the_stochastic_stream_learns_in_little_memory(method):
    values = np.r_[np.array([4.0, 2.0]), np.full(10, 0.05)]
    X = 3 + centred_rows(values, n=2000)
    rng = np.random.default_rng(0)
    estimator = LinearAutoencoder(2, method=method, solver="stochastic", random_state=0)
    passes = 20 if method == "linear_vae" else 10  # whose loss is stiff
    for _ in range(passes):
        streamed(estimator, X[rng.permutation(2000)], 100)
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :2]
    assert estimator.status_ == "stopped"
    assert estimator.n_iter_ == 20 * passes
    assert estimator.n_samples_seen_ == 2000 * passes
    assert subspace_distance(estimator.decoder_, axes) < (0.3 if method == "linear_vae" else 0.02)
    assert_allclose(estimator.mean_, X.mean(axis=0), atol=1e-9)
    total = estimator.explained_variance_ / estimator.explained_variance_ratio_
    assert_allclose(total[0], X.var(axis=0).sum(), rtol=1e-3)
    if method in ALIGNED and method != "linear_vae":
        assert_allclose(estimator.explained_variance_, [4.0, 2.0], rtol=0.15)
    stored, again = (
        {c.name: c.verdict for c in found if c.name not in ("moment", "leverage")}
        for found in (estimator.certificate_, certify(estimator, X))
    )
    assert stored == again


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_stochastic_stream_of_single_rows_does_not_depend_on_units(scale):
    X = 3 + centred_rows(np.array([4.0, 2.0, 0.1, 0.05]), n=120)
    estimator = LinearAutoencoder(2, solver="stochastic", random_state=0)
    streamed(estimator, scale * X, 1)
    reference = streamed(LinearAutoencoder(2, solver="stochastic", random_state=0), X, 1)
    assert_allclose(estimator.components_, reference.components_, atol=1e-6)


def test_a_stochastic_stream_goes_on_from_a_fit():
    X = 3 + centred_rows(np.array([4.0, 2.0, 0.1, 0.05]), n=400)
    estimator = LinearAutoencoder(2, solver="stochastic", random_state=0, tol=1e-2).fit(X)
    estimator.partial_fit(X[:200])
    assert estimator.n_samples_seen_ == 600
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :2]
    assert subspace_distance(estimator.decoder_, axes) < 1e-2
    assert_allclose(estimator.explained_variance_[0], 4.0, rtol=0.1)
    assert_allclose(estimator.mean_, (400 * X.mean(0) + 200 * X[:200].mean(0)) / 600, rtol=1e-9)


def test_a_wide_fit_keeps_no_moment_and_says_so():
    X = np.random.default_rng(0).standard_normal((6, 1100))
    with pytest.raises(ValueError, match="give all batches to partial_fit"):
        LinearAutoencoder(2).fit(X).partial_fit(X)


def test_a_stream_after_a_fit_counts_all_rows(X):
    estimator = LinearAutoencoder(3, random_state=0).fit(X[:1000])
    estimator.set_params(solver="stochastic").partial_fit(X[1000:])
    assert estimator.n_samples_seen_ == 1500
    with pytest.raises(ValueError, match="second moment of the earlier rows is not stored"):
        estimator.set_params(solver="exact").partial_fit(X)


@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
@pytest.mark.parametrize(
    "settings",
    [
        {"method": "nonuniform_l2", "l2": [0.1, 0.2, 0.3]},
        {"method": "nonuniform_l2", "l2": 0.1},
        {"method": "nested_dropout", "prior": [0.5, 0.5, 0.5]},
        {"method": "rag", "prior": [1.0]},
    ],
)
def test_a_wrong_number_of_penalties_is_refused_by_the_batch_itself(X, solver, settings):
    estimator = LinearAutoencoder(2, solver=solver, random_state=0, **settings)
    with pytest.raises(ValueError, match="expected 2"):
        estimator.partial_fit(X)
    assert not hasattr(estimator, "components_")


@pytest.mark.parametrize("settings", [{"l2": [0.1, 0.2]}, {"prior": [0.5, 0.5]}])
def test_one_penalty_per_latent_needs_the_number_of_latents(X, settings):
    estimator = LinearAutoencoder(method="nonuniform_l2", **settings)
    with pytest.raises(ValueError, match="give n_components=2"):
        estimator.partial_fit(X)


@pytest.mark.parametrize("changed", [{"n_components": 3}, {"method": "gha"}])
def test_a_stream_refuses_other_latents_and_another_method(X, changed):
    estimator = LinearAutoencoder(2, solver="stochastic", random_state=0).partial_fit(X)
    with pytest.raises(ValueError, match="2 latents by method='rag'"):
        estimator.set_params(**changed).partial_fit(X)


def test_batches_too_far_apart_are_refused_and_one_huge_batch_is_not():
    model = LinearAutoencoder(1, solver="stochastic", random_state=0)
    model.partial_fit(np.full((2, 2), 1e300))
    assert_allclose(model.mean_, 1e300)
    with pytest.raises(ValueError, match="overflows double precision"):
        model.partial_fit(np.full((2, 2), -1e300))
    assert_allclose(model.mean_, 1e300)  # as before


def test_a_later_batch_without_names_is_noticed():
    pd = require("pandas")
    rows = np.random.default_rng(0).random((9, 3))
    estimator = LinearAutoencoder(1).partial_fit(pd.DataFrame(rows, columns=list("abc")))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        estimator.partial_fit(rows)
