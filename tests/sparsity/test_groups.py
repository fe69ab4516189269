"""Groups of columns that share a relevance or have a covariance matrix of their own.

The model with a covariance for every group does not depend on the axes inside a group, and says
nothing about directions that its columns do not reach: correct fits are certified for dependent
columns too, and wrong ones are not.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import KFold

import lucidae
from extras import require
from lucidae import SparseVAE, certify


def dummies():
    """Return dummy columns of a category whose first level does not occur, with three others."""
    rng = np.random.default_rng(0)
    level = np.eye(4)[rng.integers(1, 4, 80)]
    X = np.column_stack([level, rng.standard_normal((80, 3))])
    return X, level @ [0.0, 3.0, -2.0, 1.0] + 0.1 * rng.standard_normal(80)


@pytest.mark.covering
@pytest.mark.parametrize("noise", ["learn", "cv", 0.01])
@pytest.mark.parametrize(
    ("posterior", "solver", "place", "dtype"),
    [
        ("full", "auto", 0, np.float64), ("full", "em", 2, np.float32),
        ("full", "mackay", 3, np.float64), ("diagonal", "auto", 3, np.float64),
        ("point", "auto", 2, np.float32),
    ],
)  # fmt: skip
def test_a_constant_column_has_the_relevance_of_its_group(posterior, solver, noise, place, dtype):
    if posterior == "point" and noise == "learn":
        return  # a point estimate has no variance from which to learn
    X, y = dummies()
    X[:, [0, place]] = X[:, [place, 0]]
    model = SparseVAE(
        posterior=posterior, solver=solver, noise_variance=noise, groups=[0, 0, 0, 0, 1, 2, 3],
        warm_start=True,
    )  # fmt: skip
    for _ in range(2):
        model.fit(X.astype(dtype), y)
        assert_array_equal(model.relevance_[:4], model.relevance_[1])
        assert model.relevance_[1] > 0.1
        assert_array_equal(model.support_, [0, 1, 2, 3])
        assert model.certificate_["stationarity"].holds
        assert model.certificate_["support"].holds


def test_a_constant_column_changes_nothing_about_the_others():
    X, y = dummies()
    with_it = SparseVAE(groups=[0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    without = SparseVAE(groups=[0, 0, 0, 1, 2, 3]).fit(X[:, 1:], y)
    np.testing.assert_allclose(with_it.relevance_[1:], without.relevance_, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(with_it.energy_, without.energy_)


def test_a_group_of_constant_columns_has_no_relevance():
    X, y = dummies()
    X = np.column_stack([np.full((80, 2), 3.0), X])
    model = SparseVAE(groups=[9, 9, 0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    assert_array_equal(model.relevance_[:2], 0.0)
    assert_array_equal(model.support_, [2, 3, 4, 5])


def test_another_relevance_of_a_constant_column_fails():
    X, y = dummies()
    model = SparseVAE(groups=[0, 0, 0, 0, 1, 2, 3]).fit(X, y)
    for value in (0.0, 100.0):
        relevance = model.relevance_.copy()
        relevance[0] = value
        model.relevance_ = relevance
        assert certify(model, X, y)["stationarity"].holds is False
        model.fit(X, y)


# --- a covariance matrix for every group ---------------------------------------------------------


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


@pytest.mark.parametrize("factor", [1e-3, 1e-8, 1e-12, 1e9])
def test_the_unit_of_a_column_inside_a_group_changes_nothing(factor):
    X, y, first = weak()
    scaled = X * np.where(np.arange(8) == 1, factor, 1.0)
    second = full(2, 0.04).fit(scaled, y)
    assert_allclose(second.energy_, first.energy_, rtol=1e-6)
    assert_array_equal(second.support_, first.support_)
    assert_allclose(second.predict(scaled), first.predict(X), atol=1e-6)
    assert sound(second)
    assert certify(second, scaled, y).holds


@pytest.mark.covering
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
    model.group_covariances_ = full().fit(X, y).group_covariances_
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


# --- columns that are dependent, nearly dependent, or more than the rows -------------------------


FULL = {"groups": 3, "group_covariance": "full", "noise_variance": 0.09}


def nearly_dependent(noise, seed, turned=False):
    """Return 25 groups of three columns, the third a combination of the others plus noise."""
    rng = np.random.default_rng(seed)
    d, G, n = 30, 25, 8
    blocks = rng.standard_normal((G, d, 3))
    blocks[:, :, 2:] = blocks[:, :, :2] @ rng.standard_normal((G, 2, 1))
    y = np.concatenate(blocks[:2], axis=1) @ rng.standard_normal((6, n))
    y = y + 0.3 * rng.standard_normal((d, n))
    blocks = blocks + noise * rng.standard_normal((G, d, 3))
    if turned:
        blocks = blocks @ np.linalg.qr(rng.standard_normal((G, 3, 3)))[0]
    return np.concatenate(blocks, axis=1), y


def unmet(model):
    return [claim.name for claim in model.certificate_ if claim.holds is False or claim.undecided]


@pytest.mark.covering
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_groups_with_more_columns_than_rows_are_certified(is_complex, intercept):
    rng = np.random.default_rng(0)
    for rows, size in ((1 + intercept, 2), (2, 3), (3, 5), (4, 8)):
        X = rng.standard_normal((rows, 2 * size)) + 1j * is_complex * rng.standard_normal(2 * size)
        X = X if is_complex else X.real
        y = 3.0 * X[:, :1] + 0.1 * rng.standard_normal((rows, 2))
        model = SparseVAE(
            groups=size, group_covariance="full", noise_variance=0.1, fit_intercept=intercept
        ).fit(X, y)
        assert not unmet(model), (rows, size, str(model.certificate_))


@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-7, 1e-3])
def test_fits_with_nearly_dependent_columns_are_certified_in_all_axes(noise):
    for seed in range(2):
        energies = []
        for turned in (False, True):
            X, y = nearly_dependent(noise, seed, turned)
            model = SparseVAE(**FULL, fit_intercept=turned).fit(X, y)
            if noise == 1e-7:  # entries of Γ cancel: float64 decides not every claim
                assert model.certificate_.holds is not False
            else:
                assert not unmet(model), (seed, turned, str(model.certificate_))
            energies.append(SparseVAE(**FULL, fit_intercept=False).fit(X, y).energy_)
        assert energies[0] == pytest.approx(energies[1], rel=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["auto", "mm"])
@pytest.mark.parametrize(
    ("size", "rank", "kind"), [(2, 1, float), (3, 1, complex), (3, 2, float), (3, 2, complex)]
)
@pytest.mark.parametrize("share", [0.1, 1e-6])
def test_exactly_dependent_columns_fit_like_a_basis_of_their_span(share, size, rank, solver, kind):
    """With few groups all are active, and steps gain less than the rounding error of the energy."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    span = normal(15, 30, rank)
    mixing = np.concatenate([np.tile(np.eye(rank), (15, 1, 1)), normal(15, rank, size - rank)], 2)
    X = np.concatenate(span @ mixing, axis=1)
    y = X[:, : 2 * size] @ normal(2 * size, 8)
    y = y + 0.3 * np.sqrt(np.mean(np.abs(y) ** 2)) * normal(30, 8)
    options = {"group_covariance": "full", "solver": solver, "fit_intercept": False}
    options["noise_variance"] = share * np.mean(np.abs(y) ** 2)
    model = SparseVAE(groups=size, **options).fit(X, y)
    assert model.status_ == "converged"
    assert not unmet(model), str(model.certificate_)
    basis = SparseVAE(groups=rank, **options).fit(np.concatenate(span, axis=1), y)
    assert model.energy_ == pytest.approx(basis.energy_, rel=1e-6)


def test_wrong_covariances_of_nearly_dependent_columns_are_not_certified():
    X, y = nearly_dependent(1e-7, seed=3)
    model = SparseVAE(**FULL, fit_intercept=False).fit(X, y)
    model.group_covariances_ = model.group_covariances_ * 1.01
    model.relevance_ = model.relevance_ * 1.01
    assert certify(model, X, y).holds is not True


def test_a_group_left_out_is_found_although_its_columns_are_dependent():
    X, y = nearly_dependent(0.0, seed=1)
    model = SparseVAE(**FULL, fit_intercept=False).fit(X[:, 3:], y)
    wider = SparseVAE(**FULL, fit_intercept=False).fit(X, y)
    covariances = np.concatenate([np.zeros((1, 3, 3)), model.group_covariances_])
    wider.group_covariances_ = covariances
    wider.relevance_ = np.concatenate([np.zeros(3), model.relevance_])
    wider.coef_ = np.concatenate([np.zeros((8, 3)), model.coef_], axis=1)
    assert certify(wider, X, y)["stationarity"].holds is False


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("full", [False, True])
def test_rounded_coefficients_of_single_precision_pass_and_wrong_ones_fail(dtype, full):
    # Coefficients of nearly dependent columns are large and cancel; their rounding errors do not.
    rng = np.random.default_rng(0)
    kind = np.complex128 if dtype is np.complex64 else np.float64

    def gaussian(*shape):
        drawn = rng.standard_normal(shape)
        return drawn + 1j * rng.standard_normal(shape) if kind is np.complex128 else drawn

    X = gaussian(20, 12)
    X[:, 1::3] = X[:, ::3] + 3e-3 * gaussian(20, 4)
    large = 1e3 * gaussian(1, 5)
    y = X[:, :3] @ np.vstack([0.1 * gaussian(1, 5) - large, large, gaussian(1, 5)])
    y = y + 0.1 * gaussian(20, 5)
    groups = {"groups": 3, "group_covariance": "full"} if full else {}
    X = X.astype(dtype)
    model = SparseVAE(noise_variance=0.01, fit_intercept=False, **groups).fit(X, y)
    assert model.coef_.dtype == dtype
    assert model.certificate_["posterior_mean"].holds, model.certificate_["posterior_mean"]
    model.coef_ = model.coef_ * dtype(1.001)
    assert certify(model, X, y)["posterior_mean"].holds is False
