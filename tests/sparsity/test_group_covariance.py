"""Groups of columns with a covariance matrix of their own, through the estimator."""

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import KFold

import lucidae
from extras import require
from lucidae import SparseVAE, certify
from lucidae.sparsity.support import covariance_threshold

UNEQUAL = np.array([4, 4, 4, 4, 9, 9, 2, 7, 7, 7, 1, 1, 1, 3, 3, 3, 5, 5])


def draw(seed=0, d=25, labels=UNEQUAL, n=6, kind=float):
    """Return rows in which the columns of the groups 4 and 7 are relevant."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return (real + 1j * rng.standard_normal(shape)) / 2**0.5 if kind is complex else real

    X, U = normal(d, labels.size), normal(labels.size, n)
    mixed = np.isin(labels, (4, 7))[:, None] * U
    return X, X @ mixed + 0.3 * normal(d, n)


def full(groups=UNEQUAL, noise=0.1, **options):
    options = {"fit_intercept": False} | options
    return SparseVAE(groups=groups, group_covariance="full", noise_variance=noise, **options)


def prior(model, labels=UNEQUAL):
    """Return the prior covariance of all coefficients as one dense matrix."""
    given = model.group_covariances_
    dense = np.zeros((labels.size, labels.size), dtype=given.dtype)
    for number, label in enumerate(np.unique(labels)):
        index = np.flatnonzero(labels == label)
        dense[np.ix_(index, index)] = given[number, : index.size, : index.size]
    return dense


def sound(model):
    names = [
        "stationarity", "group_covariances", "posterior_mean", "energy", "predictive_variance",
        "support", "posterior_collapse",
    ]  # fmt: skip
    return all(model.certificate_[name].holds for name in names)


@pytest.mark.parametrize("kind", [float, complex])
def test_everything_follows_from_the_covariances_by_dense_formulas(kind):
    X, y = draw(kind=kind)
    model = full().fit(X, y)
    Gamma, n, d = prior(model), y.shape[1], len(X)
    sigma = X @ Gamma @ X.conj().T + 0.1 * np.eye(d)
    inverse = np.linalg.inv(sigma)
    mean = Gamma @ X.conj().T @ inverse @ y
    spread = Gamma - Gamma @ X.conj().T @ inverse @ X @ Gamma
    assert_allclose(model.coef_.T, mean, atol=1e-8)
    assert_allclose(model.relevance_, np.diagonal(Gamma).real)
    fit = np.trace(y.conj().T @ inverse @ y).real
    assert_allclose(model.energy_, fit + n * np.linalg.slogdet(sigma)[1], rtol=1e-9)
    assert_allclose(model.posterior_covariance([1, 8, 7, 4]), spread[np.ix_(*[[1, 8, 7, 4]] * 2)],
                    atol=1e-9)  # fmt: skip
    rows, _ = draw(3, kind=kind)
    std = np.sqrt(0.1 + np.einsum("ij,jk,ik->i", rows, spread, rows.conj()).real)
    assert_allclose(model.predict(rows, return_std=True)[1], std, rtol=1e-8)
    assert_array_equal(model.support_, np.flatnonzero(np.isin(UNEQUAL, (4, 7))))
    assert sound(model)


@pytest.mark.parametrize("kind", [float, complex])
def test_covariances_satisfy_the_matrix_conditions(kind):
    X, y = draw(1, kind=kind)
    model = full(tol=1e-9).fit(X, y)
    Gamma = prior(model)
    inverse = np.linalg.inv(X @ Gamma @ X.conj().T + 0.1 * np.eye(len(X)))
    for label in np.unique(UNEQUAL):
        index = label == UNEQUAL
        Phi, own = X[:, index], Gamma[np.ix_(index, index)]
        S = Phi.conj().T @ inverse @ Phi
        B = Phi.conj().T @ inverse @ y
        gap = S - B @ B.conj().T / y.shape[1]
        assert np.abs(own @ gap).max() < 1e-4
        assert scipy.linalg.eigh(gap, S, eigvals_only=True)[0] > -2e-6


def test_results_do_not_depend_on_the_axes_inside_groups():
    X, y = draw(2)
    rng = np.random.default_rng(0)
    turn = np.zeros((18, 18))
    for label in np.unique(UNEQUAL):
        index = np.flatnonzero(label == UNEQUAL)
        turn[np.ix_(index, index)] = np.linalg.qr(rng.standard_normal((index.size,) * 2))[0]
    for noise in (0.1, "cv"):  # folds given by a splitter do not depend on the values of X
        options = {"noise": noise, "tol": 1e-9, "cv": KFold(4)}
        first = full(**options).fit(X, y)
        second = full(**options).fit(X @ turn, y)
        assert_allclose(second.energy_, first.energy_, rtol=1e-7)
        assert_allclose(second.predict(X @ turn), first.predict(X), atol=1e-4)
        assert_allclose(turn @ prior(second) @ turn.T, prior(first), atol=1e-3)
        assert_array_equal(second.support_, first.support_)


def weak():
    """Return rows in which the first of four pairs of columns is relevant, and their energy."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 8))
    y = X[:, :2] @ rng.standard_normal((2, 5)) + 0.2 * rng.standard_normal((12, 5))
    return X, y, full(2, 0.04).fit(X, y)


@pytest.mark.parametrize("factor", [1e-3, 1e-6, 1e-8, 1e-9, 1e-12, 1e9])
def test_the_unit_of_a_column_inside_a_group_changes_nothing(factor):
    X, y, first = weak()
    scaled = X * np.where(np.arange(8) == 1, factor, 1.0)
    second = full(2, 0.04).fit(scaled, y)
    assert_allclose(second.energy_, first.energy_, rtol=1e-6)
    assert_array_equal(second.support_, first.support_)
    assert_allclose(second.predict(scaled), first.predict(X), atol=1e-6)
    assert sound(second)
    assert certify(second, scaled, y).holds


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("condition", [1e3, 1e6])
def test_invertible_changes_of_columns_inside_groups_change_nothing(kind, condition):
    X, y = draw(2, kind=kind)
    rng = np.random.default_rng(0)
    change = np.zeros((18, 18))
    for label in np.unique(UNEQUAL):
        index = np.flatnonzero(label == UNEQUAL)
        left, right = np.linalg.qr(rng.standard_normal((2, index.size, index.size)))[0]
        change[np.ix_(index, index)] = left * np.geomspace(1.0, 1.0 / condition, index.size) @ right
    first, second = full().fit(X, y), full().fit(X @ change, y)
    assert_allclose(second.energy_, first.energy_, rtol=1e-6)
    assert_array_equal(second.support_, first.support_)
    # A stored covariance loses twice the digits of the condition number; then nothing is claimed.
    assert sound(second) or (condition > 1e5 and second.certificate_.holds is not False)


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e-10])
def test_a_covariance_that_is_wrong_in_a_weak_direction_is_refuted(factor):
    X, y, _ = weak()
    scaled = X * np.where(np.arange(8) == 1, factor, 1.0)
    model = full(2, 0.04).fit(scaled, y)
    wrong = np.diag([1.0, 0.0])
    model.group_covariances_ = wrong @ model.group_covariances_ @ wrong  # no second column
    model.relevance_ = np.diagonal(model.group_covariances_, axis1=1, axis2=2).ravel().copy()
    model.coef_ = model.coef_ * (np.arange(8) != 1)
    assert certify(model, scaled, y)["stationarity"].holds is False


def test_coefficients_and_covariances_of_dependent_columns_must_be_determined():
    X, y = draw(10)
    more, labels = np.column_stack([X, X[:, 0] - X[:, 1]]), np.append(UNEQUAL, 4)
    null = np.zeros(19)
    null[[0, 1, 18]] = 1.0, -1.0, -1.0  # the combination of columns that is zero
    for name in ("coef_", "group_covariances_"):
        model = full(labels).fit(more, y)
        assert certify(model, more, y).holds
        if name == "coef_":
            model.coef_ = model.coef_ + 1e-3 * null
        else:
            place = np.flatnonzero(np.unique(labels) == 4)[0]
            inside = null[labels == 4]
            model.group_covariances_[place] += 1e-3 * np.outer(inside, inside)
            model.relevance_[labels == 4] += 1e-3 * inside**2
        assert certify(model, more, y).holds is False


def test_groups_of_one_column_are_no_groups():
    X, y = draw(3)
    plain = SparseVAE(noise_variance=0.1, fit_intercept=False).fit(X, y)
    grouped = full(1).fit(X, y)
    assert_allclose(grouped.energy_, plain.energy_, rtol=1e-9)
    assert_allclose(grouped.relevance_, plain.relevance_, atol=1e-5)
    assert_array_equal(grouped.support_, plain.support_)
    assert grouped.group_covariances_.shape == (18, 1, 1)


def test_a_number_of_consecutive_columns_stands_for_labels():
    X, y = draw(4)
    for covariance in ("spherical", "full"):
        options = {"noise_variance": 0.1, "group_covariance": covariance}
        short = SparseVAE(groups=3, **options).fit(X, y)
        long = SparseVAE(groups=np.arange(18) // 3, **options).fit(X, y)
        assert_array_equal(short.relevance_, long.relevance_)


@pytest.mark.parametrize("noise", ["cv", "learn"])
def test_the_noise_variance_is_found_with_covariances_too(noise):
    X, y = draw(5, d=80)
    model = full(noise=noise, fit_intercept=True).fit(X, y)
    assert 0.07 < model.noise_variance_ < 0.12
    assert sound(model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_saving_copying_and_a_warm_start_keep_the_covariances(tmp_path, dtype):
    X, y = draw(6, kind=complex if dtype is np.complex64 else float)
    X = X.astype(dtype)
    model = full(warm_start=True).fit(X, y)
    assert sound(model)
    lucidae.save(model, tmp_path / "model")
    loaded = lucidae.load(tmp_path / "model")
    assert_array_equal(loaded.group_covariances_, model.group_covariances_)
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert_array_equal(loaded.posterior_covariance([0, 8]), model.posterior_covariance([0, 8]))
    assert all(claim.holds is not False for claim in certify(loaded, X, y).claims)
    steps, before = model.n_iter_, model.energy_
    assert model.fit(X, y).n_iter_ <= steps
    assert_allclose(model.energy_, before, rtol=1e-7)
    assert not hasattr(clone(model), "group_covariances_")
    assert not hasattr(SparseVAE(noise_variance=0.1).fit(X, y), "group_covariances_")


def test_another_grouping_starts_from_the_variances_of_the_last_fit():
    X, y = draw(7)
    model = full(warm_start=True).fit(X, y)
    model.set_params(groups=3).fit(X, y)
    assert sound(model)
    assert_allclose(model.energy_, full(3).fit(X, y).energy_, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        (lambda c: 1.1 * c, "stationarity"),
        (lambda c: c * np.eye(4), "stationarity"),
        (lambda c: c + np.triu(np.ones((4, 4)), 1), "group_covariances"),
        (lambda c: -c, "group_covariances"),
        (lambda c: np.nan * c, "stationarity"),
    ],
)
def test_changed_covariances_are_refuted(change, claim):
    X, y = draw(8)
    model = full().fit(X, y)
    model.group_covariances_ = change(model.group_covariances_)
    assert certify(model, X, y)[claim].holds is False
    assert not model.certificate_.holds


def test_a_wrong_support_is_refuted():
    X, y = draw(9)
    model = full().fit(X, y)
    model.support_ = model.support_[1:]
    assert certify(model, X, y)["support"].holds is False


def test_dependent_and_constant_columns_of_a_group_change_nothing():
    X, y = draw(10)
    first = full().fit(X, y)
    more = np.column_stack([X, X[:, 0] - X[:, 1], np.zeros(len(X))])
    second = full(np.append(UNEQUAL, [4, 7])).fit(more, y)
    assert_allclose(second.energy_, first.energy_, rtol=1e-7)
    assert_allclose(second.predict(more), first.predict(X), atol=1e-4)
    assert sound(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_covariance": "diagonal"}, "group_covariance='diagonal'"),
        ({"group_covariance": "full"}, "needs groups of columns and posterior='full'"),
        ({"group_covariance": "full", "groups": 3, "posterior": "diagonal"}, "posterior='full'"),
        ({"group_covariance": "full", "groups": 3, "posterior": "point"}, "posterior='full'"),
        ({"group_covariance": "full", "groups": 3, "solver": "em"}, "use solver='auto'"),
        ({"groups": 4}, "divides the number of columns"),
        ({"groups": 0}, "divides the number of columns"),
        ({"groups": -3}, "divides the number of columns"),
        ({"groups": [0, 1]}, "one label per column"),
    ],
)
def test_bad_groups_are_refused_in_one_sentence_and_nothing_is_fitted(options, message):
    X, y = draw()
    model = SparseVAE(noise_variance=0.1, **options)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("solver", ["auto", "mm", "coordinate"])
def test_solvers_agree_with_a_clear_minimum(solver):
    X, y = draw(11, n=30)
    model = full(solver=solver).fit(X, y)
    assert sound(model)
    assert_allclose(model.energy_, full().fit(X, y).energy_, rtol=1e-6)


@pytest.mark.parametrize("covariance", ["spherical", "full"])
def test_torch_gives_the_same_groups(covariance):
    torch = require("torch")
    X, y = draw(12)
    options = {"group_covariance": covariance, "solver": "coordinate"}
    plain = full().set_params(**options).fit(X, y)
    other = full().set_params(**options).fit(torch.asarray(X), torch.asarray(y))
    assert_allclose(other.relevance_.numpy(), plain.relevance_, atol=1e-6)
    assert_allclose(other.predict(torch.asarray(X)).numpy(), plain.predict(X), atol=1e-6)
    if covariance == "full":
        assert isinstance(other.group_covariances_, torch.Tensor)
        assert_allclose(other.group_covariances_.numpy(), plain.group_covariances_, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_threshold_bounds_the_rate_of_spurious_groups(size):
    rng = np.random.default_rng(size)
    for n in (1, 20, 200):
        latent = rng.standard_normal((20_000, size, n))
        ratios = np.linalg.eigvalsh(latent @ np.swapaxes(latent, 1, 2) / n)
        excess = np.maximum(ratios - 1.0, 0.0)
        evidence = n * (excess - np.log1p(excess)).sum(axis=1)
        for level in (0.05, 0.005):
            rate = np.mean(evidence > covariance_threshold(level, 1, size))
            assert rate < level + 3.0 * np.sqrt(level / 20_000), (n, level)
            assert n < 200 or rate > 0.5 * level


@pytest.mark.parametrize(("seed", "n"), [(80, 1), (79, 3)])
def test_fits_do_not_stall_at_small_noise_with_more_groups_than_rows(seed, n):
    # Near a saddle point the distance to optimality does not fall for many sweeps.
    rng = np.random.default_rng(seed)
    X, U = rng.standard_normal((12, 60)), np.zeros((60, n))
    U[:3], U[30:33] = rng.standard_normal((3, n)), rng.standard_normal((3, n))
    y = X @ U
    y = y + 0.03 * y.std() * rng.standard_normal((12, n))
    model = full(3, 1e-4 * (y**2).mean()).fit(X, y)
    assert str(model.status_) == "converged"
    assert sound(model)
