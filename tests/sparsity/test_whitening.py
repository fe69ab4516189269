"""Noise with a covariance: whitened by hand and given as noise_cov, the fits are the same."""

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose
from sklearn.model_selection import GridSearchCV, KFold

import lucidae
from lucidae import SparseVAE, certify
from lucidae.sparsity import noise_path

D, KAPPA, N = 30, 45, 6


def drawn(seed, rank=D):
    """Return a dictionary far from zero, responses and the covariance of their noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((D, KAPPA)) + 2.0
    root = np.linalg.qr(rng.standard_normal((D, D)))[0][:, :rank] * rng.uniform(0.5, 3.0, rank)
    noise = 0.4 * root @ rng.standard_normal((rank, N))
    return X, 3.0 * X[:, [5, 20]] @ rng.standard_normal((2, N)) + 7.0 + noise, root @ root.T


def whitened_by_hand(cov, *parts, intercept):
    """Return the parts times Λ^(−½)Vᵀ of the positive eigenvalues, orthogonal to the intercept."""
    values, vectors = np.linalg.eigh(cov)
    kept = values > 1e-10 * values[-1]
    whitener = (vectors[:, kept] / np.sqrt(values[kept])).T
    ones = whitener.sum(axis=1)
    if intercept and np.linalg.norm(ones) > 1e-6:
        complement = np.linalg.svd(ones[None, :])[2][1:]
        whitener = complement @ whitener
    return [whitener @ part for part in parts]


@pytest.mark.covering
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("rank", [D, D - 4])
@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_a_covariance_equals_whitening_by_hand(intercept, rank, posterior):
    X, y, cov = drawn(0, rank)
    model = SparseVAE(noise_variance=0.2, fit_intercept=intercept, posterior=posterior, tol=1e-10)
    model.fit(X, y, noise_cov=cov)
    white = whitened_by_hand(cov, X, y, intercept=intercept)
    hand = SparseVAE(noise_variance=0.2, fit_intercept=False, posterior=posterior, tol=1e-10)
    hand.fit(*white)
    for name in ("coef_", "relevance_", "support_", "noise_variance_"):
        assert_allclose(getattr(model, name), getattr(hand, name), atol=1e-10)
    for claim in hand.certificate_:
        assert model.certificate_[claim.name].holds == claim.holds
    assert model.certificate_["stationarity"].holds
    assert model.certificate_["noise_covariance"].value == rank
    said = f"rank {rank}" in model.certificate_["noise_covariance"].advice
    assert said == (rank < D)


def test_average_reference_leaves_the_intercept_to_the_plain_mean():
    X, y, cov = drawn(1)
    reference = np.eye(D) - 1.0 / D
    cov = reference @ cov @ reference
    model = SparseVAE(noise_variance=0.2).fit(X, y, noise_cov=cov)
    other = SparseVAE(noise_variance=0.2, fit_intercept=False).fit(
        reference @ X, reference @ y, noise_cov=cov
    )
    assert_allclose(model.coef_, other.coef_, atol=1e-10)
    assert_allclose(model.predict(X).mean(axis=0), y.mean(axis=0))
    assert model.certificate_["noise_covariance"].value == D - 1
    assert certify(model, X, y, noise_cov=cov).holds == model.certificate_.holds


def test_the_intercept_is_that_of_generalised_least_squares():
    X, y, cov = drawn(2)
    model = SparseVAE(noise_variance=0.2).fit(X, y, noise_cov=cov)
    inverse, ones = np.linalg.inv(cov), np.ones(D)
    expected = ones @ inverse @ (y - X @ model.coef_.T) / (ones @ inverse @ ones)
    assert_allclose(model.intercept_, expected, atol=1e-9)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_multiple_of_the_identity_is_a_change_of_the_noise_variance(intercept):
    X, y, _ = drawn(4)
    plain = SparseVAE(noise_variance=1.0, fit_intercept=intercept).fit(X, y)
    scaled = SparseVAE(noise_variance=0.25, fit_intercept=intercept).fit(
        X, y, noise_cov=np.full(D, 4.0)
    )
    assert_allclose(scaled.coef_, plain.coef_, atol=1e-10)
    assert_allclose(scaled.intercept_, plain.intercept_, atol=1e-10)
    assert_allclose(scaled.energy_, plain.energy_)
    for one, other in zip(
        scaled.predict(X, return_std=True), plain.predict(X, return_std=True), strict=True
    ):
        assert_allclose(one, other, atol=1e-10)


def test_weights_are_frequencies_of_rows_with_their_own_variance():
    X, y, _ = drawn(5)
    rng = np.random.default_rng(5)
    variances, weights = rng.uniform(0.5, 2.0, D), rng.integers(0, 4, D)
    repeated = np.repeat(np.arange(D), weights)
    model = SparseVAE(noise_variance=0.2)
    one = model.fit(X, y, sample_weight=weights, noise_cov=variances)
    coef, energy = one.coef_, one.energy_
    two = model.fit(X[repeated], y[repeated], noise_cov=variances[repeated])
    assert_allclose(two.coef_, coef, atol=1e-10)
    assert_allclose(two.energy_, energy)
    spread = model.fit(X, y, sample_weight=weights, noise_cov=variances).predict(X, return_std=True)
    other = model.fit(X[repeated], y[repeated], noise_cov=variances[repeated])
    assert_allclose(spread[1], other.predict(X, return_std=True)[1])


def test_variances_and_their_diagonal_matrix_agree_also_where_one_is_zero():
    X, y, _ = drawn(6)
    variances = np.random.default_rng(6).uniform(0.5, 2.0, D)
    variances[4] = 0.0
    by_matrix, by_vector = (
        SparseVAE(noise_variance=0.2).fit(X, y, noise_cov=given)
        for given in (np.diag(variances), variances)
    )
    assert_allclose(by_matrix.coef_, by_vector.coef_, atol=1e-10)
    assert_allclose(by_matrix.energy_, by_vector.energy_)
    assert by_vector.certificate_["noise_covariance"].value == D - 1


def test_folds_are_folds_of_whitened_rows():
    X, y, cov = drawn(8)
    scale = np.sqrt(np.diagonal(cov))
    values, vectors = np.linalg.eigh(cov / scale / scale[:, None])
    whitener = vectors / np.sqrt(values) @ vectors.T / scale  # each row keeps its meaning
    given, hand = (SparseVAE(noise_variance="cv", cv=KFold(4), fit_intercept=False) for _ in "ab")
    given.fit(X, y, noise_cov=cov)
    hand.fit(whitener @ X, whitener @ y)
    assert_allclose(given.noise_variance_, hand.noise_variance_, rtol=1e-8)
    assert_allclose(given.coef_, hand.coef_, atol=1e-8)


def test_metadata_routing_and_grid_search():
    X, y, cov = drawn(9)
    with sklearn.config_context(enable_metadata_routing=True):
        model = SparseVAE(noise_variance=0.2).set_fit_request(noise_cov=True)
        search = GridSearchCV(model, {"noise_variance": [0.1, 0.2]}, cv=3, error_score="raise")
        search.fit(X, y, noise_cov=np.diagonal(cov))  # variances are split with the rows
        assert search.best_score_ > 0.9
        with pytest.raises(ValueError, match="cannot be split"):
            search.fit(X, y, noise_cov=cov)


def test_certify_asks_for_the_covariance_and_a_wrong_one_fails():
    X, y, cov = drawn(11)
    model = SparseVAE(noise_variance=0.2).fit(X, y, noise_cov=cov)
    with pytest.raises(ValueError, match="fitted with noise_cov"):
        certify(model, X, y)
    assert certify(model, X, y, noise_cov=cov)["stationarity"].holds
    assert not certify(model, X, y, noise_cov=np.eye(D))["stationarity"].holds


def test_saved_estimators_keep_the_noise_of_their_rows(tmp_path):
    X, y, cov = drawn(12)
    model = SparseVAE(noise_variance=0.2).fit(X, y, noise_cov=cov)
    lucidae.save(model, tmp_path / "model.lucidae")
    loaded = lucidae.load(tmp_path / "model.lucidae")
    assert_allclose(loaded.noise_variances_, model.noise_variances_)
    assert_allclose(loaded.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    assert loaded.certificate_["noise_covariance"].value == D


@pytest.mark.covering
@pytest.mark.parametrize("rank", [D, D - 3])
@pytest.mark.parametrize("intercept", [False, True])
def test_hermitian_covariances_of_complex_data(rank, intercept):
    rng = np.random.default_rng(13)

    def normal(*shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / 2**0.5

    X = normal(D, KAPPA) + 1.0
    root = np.linalg.qr(normal(D, D))[0][:, :rank] * rng.uniform(0.5, 3.0, rank)
    cov = root @ root.conj().T
    y = 3.0 * X[:, [5, 20]] @ normal(2, N) + 2.0 - 1.0j + 0.4 * root @ normal(rank, N)
    model = SparseVAE(noise_variance=0.2, fit_intercept=intercept).fit(X, y, noise_cov=cov)
    values, vectors = np.linalg.eigh(cov)
    kept = values > 1e-10
    whitener = (vectors[:, kept] / np.sqrt(values[kept])).conj().T
    if intercept:
        ones = whitener.sum(axis=1)
        whitener = np.linalg.svd(ones.conj()[None, :])[2][1:] @ whitener
    hand = SparseVAE(noise_variance=0.2, fit_intercept=False).fit(whitener @ X, whitener @ y)
    assert_allclose(model.coef_, hand.coef_, atol=1e-10)
    assert_allclose(model.relevance_, hand.relevance_, atol=1e-10)
    for claim in hand.certificate_:
        assert model.certificate_[claim.name].holds == claim.holds
    assert certify(model, X, y, noise_cov=cov).holds == model.certificate_.holds
    path = noise_path(X, y, [1.0, 0.2], noise_cov=cov, fit_intercept=intercept, cv=3)
    assert_allclose(path.energies[1], model.energy_, rtol=1e-8)


@pytest.mark.parametrize(("decades", "rank"), [(3, 8), (6, 8), (9, 8), (12, 8), (3, 6), (6, 6)])
def test_the_units_of_rows_change_no_verdict(decades, rank):
    rng = np.random.default_rng(decades)
    X, root = rng.standard_normal((8, 6)), rng.standard_normal((8, rank))
    y = X[:, :2] @ rng.standard_normal((2, 5)) + 0.1 * root @ rng.standard_normal((rank, 5))
    cov = root @ root.T / 100
    units = 2.0 ** np.round(np.linspace(0, decades, 8) / np.log10(2))  # no digit changes
    plain = SparseVAE(noise_variance=1.0, fit_intercept=False).fit(X, y, noise_cov=cov)
    scaled = SparseVAE(noise_variance=1.0, fit_intercept=False).fit(
        units[:, None] * X, units[:, None] * y, noise_cov=units[:, None] * cov * units
    )
    assert plain.certificate_.holds
    if rank == 8:  # the range of a singular covariance depends on the units
        assert_allclose(scaled.coef_, plain.coef_, rtol=1e-9, atol=1e-12)
        assert scaled.certificate_.holds
    assert scaled.certificate_.holds is not False


def test_real_data_have_a_real_noise_covariance():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 20)), rng.standard_normal((12, 2))
    factor = rng.standard_normal((12, 12)) + 1j * rng.standard_normal((12, 12))
    cov = factor @ factor.conj().T / 24 + np.eye(12)
    cast = SparseVAE(noise_variance=0.5).fit(X, y, noise_cov=cov.real.astype(complex))
    real = SparseVAE(noise_variance=0.5).fit(X, y, noise_cov=cov.real)
    assert cast.coef_.dtype == np.float64
    assert_allclose(cast.coef_, real.coef_)


def referenced(seed, d=25):
    """Return data after an average reference, and the noise covariance of rank d − 1."""
    rng = np.random.default_rng(seed)
    reference = np.eye(d) - 1.0 / d
    X = reference @ rng.standard_normal((d, 50))
    R = reference @ np.diag(rng.uniform(0.5, 2.0, d)) @ reference
    y = X[:, [2, 8]] @ rng.standard_normal((2, 6))
    return X, y + 0.1 * reference @ rng.standard_normal((d, 6)), R


@pytest.mark.covering
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("intercept", [False, True])
def test_a_covariance_rounded_to_float32_keeps_its_rank(seed, intercept):
    X, y, R = referenced(seed)
    exact = SparseVAE(noise_variance=0.01, fit_intercept=intercept).fit(X, y, noise_cov=R)
    assert exact.certificate_["noise_covariance"].value == 24
    single = R.astype(np.float32)
    for rounded in (single, single.astype(float), single + 0j):
        model = SparseVAE(noise_variance=0.01, fit_intercept=intercept)
        model.fit(X, y, noise_cov=rounded)
        assert model.certificate_["noise_covariance"].value == 24
        assert model.certificate_.holds, str(model.certificate_)
        assert np.array_equal(model.support_, exact.support_)


def test_simple_numbers_are_exact_although_they_are_float32_numbers():
    small = np.eye(6) + (1.0 - 2.0**-10) * (1.0 - np.eye(6))  # a correlation of 0.999
    X, y, _ = drawn(14)
    for cov in (small, small.astype(np.float32)):
        model = SparseVAE(noise_variance=0.2).fit(X[:6], y[:6], noise_cov=cov)
        assert model.certificate_["noise_covariance"].value == 6
