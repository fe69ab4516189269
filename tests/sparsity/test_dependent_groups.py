"""Groups whose columns are dependent, nearly dependent, or more than the rows.

The model with a covariance for every group does not depend on the axes inside a group, and says
nothing about directions that its columns do not reach. So correct fits are certified for all such
columns, and wrong ones are not.
"""

from dataclasses import replace

import numpy as np
import pytest

from lucidae import SparseVAE, certify

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


@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3])
def test_fits_with_nearly_dependent_columns_are_certified_in_all_axes(noise):
    for seed in range(2):
        energies = []
        for turned in (False, True):
            X, y = nearly_dependent(noise, seed, turned)
            model = SparseVAE(**FULL, fit_intercept=turned).fit(X, y)
            assert not unmet(model), (seed, turned, str(model.certificate_))
            energies.append(SparseVAE(**FULL, fit_intercept=False).fit(X, y).energy_)
        assert energies[0] == pytest.approx(energies[1], rel=1e-6)


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("solver", ["auto", "mm"])
@pytest.mark.parametrize(("size", "rank"), [(2, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("share", [0.1, 1e-4, 1e-6])
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


@pytest.mark.parametrize("noise", [0.0, 1e-12, 1e-9, 1e-7, 1e-5])
@pytest.mark.parametrize("factor", [0.99, 1.01, 2.0])
def test_wrong_covariances_of_nearly_dependent_columns_are_refused(noise, factor):
    X, y = nearly_dependent(noise, seed=3)
    model = SparseVAE(**FULL, fit_intercept=False).fit(X, y)
    assert certify(model, X, y).holds
    # The roots that the verifier reads agree with the wrong covariances.
    posterior = replace(model._state.posterior, roots=model._state.posterior.roots * factor**0.5)
    model._state = replace(model._state, posterior=posterior)
    model.group_covariances_ = model.group_covariances_ * factor
    model.relevance_ = model.relevance_ * factor
    assert certify(model, X, y)["stationarity"].holds is False


def test_roots_that_do_not_give_the_covariances_are_ignored():
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
