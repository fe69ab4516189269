"""No certificate holds once a fitted number is NaN or infinite, for all estimators."""

from copy import deepcopy

import numpy as np
import pytest
import scipy.sparse
from sklearn.decomposition import PCA

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    certify,
)
from lucidae.sparsity import solve_joint

BAD = (np.nan, np.inf, -np.inf)

rng = np.random.default_rng(1)
X = rng.standard_normal((60, 6)) * [5, 4, 3, 2, 1, 0.5]
Y = X @ rng.standard_normal((6, 3)) + 0.1 * rng.standard_normal((60, 3))
WIDE = rng.standard_normal((20, 40))
ENTRIES = scipy.sparse.random_array((50, 20), density=0.2, rng=rng).tocsr()
LOW_RANK = rng.standard_normal((30, 2)) @ rng.standard_normal((2, 8))
LOW_RANK[rng.random(LOW_RANK.shape) < 0.15] = np.nan
GAPS = np.where(rng.random(X.shape) < 0.1, np.nan, X)
ATOMS = 6.0 * np.linalg.qr(rng.standard_normal((40, 12)))[0]
SIGNALS = ATOMS[:, [1, 2, 7]] @ rng.standard_normal((3, 4)) + 0.1 * rng.standard_normal((40, 4))
WAVES = ATOMS * np.exp(1j * rng.uniform(0, 6, ATOMS.shape))
SNAPSHOTS = WAVES[:, [1, 2, 7]] @ rng.standard_normal((3, 4)) + 0.1 * rng.standard_normal((40, 4))
LARGE = scipy.sparse.random_array((20, 12_000), density=0.1, rng=rng).tocsr()
AT_LARGE = LARGE[:, [3, 50]] @ rng.standard_normal((2, 3)) + 0.01 * rng.standard_normal((20, 3))
CORRELATED = 0.5 ** np.abs(np.subtract.outer(np.arange(4), np.arange(4)))
VARIANCES = rng.uniform(0.5, 1.5, 40)
FULL = {"groups": 3, "group_covariance": "full"}
UNEVEN = {"groups": [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3], "group_covariance": "full"}
GIVEN = {"noise_variance": 0.01}


def sparse(**options):
    return SparseVAE(**(GIVEN | options))


CASES = {
    "plain": (LinearAutoencoder(2, method="plain"), (X,), {}),
    "rag": (LinearAutoencoder(2, method="rag"), (X,), {}),
    "uniform": (LinearAutoencoder(2, method="uniform_l2"), (X,), {}),
    "nonuniform": (LinearAutoencoder(2, method="nonuniform_l2"), (X,), {}),
    "linear VAE": (LinearAutoencoder(2, method="linear_vae"), (X,), {}),
    "nested": (LinearAutoencoder(2, method="nested_dropout"), (X,), {}),
    "gradient": (LinearAutoencoder(2, method="rag", solver="gradient"), (X,), {}),
    "wide": (LinearAutoencoder(2), (WIDE,), {}),
    "float32": (LinearAutoencoder(2), (X.astype(np.float32),), {}),
    "sparse rows": (LinearAutoencoder(2), (ENTRIES,), {}),
    "gaps": (LinearAutoencoder(2, handle_missing="em"), (GAPS,), {}),
    "dropout autoencoder": (DropoutAutoencoder(2, dropout=0.3), (X,), {}),
    "factorization": (DropoutFactorization(2, dropout=0.3), (X,), {}),
    "completion": (DropoutFactorization(3, handle_missing="complete"), (LOW_RANK,), {}),
    "regression": (DropoutRegressor(2, dropout=0.3), (X, Y), {}),
    "regression, cv": (DropoutRegressor(2, dropout="cv"), (X, Y), {}),
    "regression, one target": (DropoutRegressor(1, dropout=0.3), (X, Y[:, 0]), {}),
    "sparse": (sparse(), (ATOMS, SIGNALS), {}),
    "one response": (sparse(), (ATOMS, SIGNALS[:, 0]), {}),
    "no intercept": (sparse(fit_intercept=False), (ATOMS, SIGNALS), {}),
    "learned": (sparse(noise_variance="learn"), (ATOMS, SIGNALS), {}),
    "held out": (sparse(noise_variance="cv"), (ATOMS, SIGNALS), {}),
    "diagonal": (sparse(posterior="diagonal", fit_intercept=False), (ATOMS, SIGNALS), {}),
    "point": (sparse(posterior="point"), (ATOMS, SIGNALS), {}),
    "groups": (sparse(groups=3), (ATOMS, SIGNALS), {}),
    "full groups": (sparse(**FULL), (ATOMS, SIGNALS), {}),
    "uneven groups": (sparse(**UNEVEN), (ATOMS, SIGNALS), {}),
    "full groups, cv": (sparse(noise_variance="cv", **FULL), (ATOMS, SIGNALS), {}),
    "full groups, covariance": (sparse(**FULL), (ATOMS, SIGNALS), {"noise_cov": VARIANCES}),
    "covariance": (sparse(), (ATOMS, SIGNALS), {"noise_cov": np.diag(VARIANCES)}),
    "learned correlation": (sparse(response_covariance="learn"), (ATOMS, SIGNALS), {}),
    "correlated": (sparse(response_covariance=CORRELATED), (ATOMS, SIGNALS), {}),
    "complex": (sparse(), (WAVES, SNAPSHOTS), {}),
    "complex full groups": (sparse(**FULL), (WAVES, SNAPSHOTS), {}),
    "sparse dictionary": (sparse(noise_variance=1e-4), (LARGE, AT_LARGE), {}),
    "PCA of scikit-learn": (PCA(2), (X,), {}),
}

NOT_JUDGED = ("history_", "status_", "n_iter_", "cv_results_")
"""Records of the iteration and of held-out errors."""


def failing(certificate):
    return {claim.name for claim in certificate if claim.holds is False}


def numbers(model):
    """Yield the names of the fitted numbers that a certificate judges, with their arrays."""
    if isinstance(model, PCA):
        names = {"components_", "mean_", "explained_variance_"}
    else:
        names = {name for name in dir(model) if name.endswith("_") and name[0] != "_"}
        names -= set(NOT_JUDGED)
    for name in sorted(name for name in names if hasattr(model, name)):
        values = np.asarray(getattr(model, name))
        if values.dtype.kind in "fc" and values.size:
            yield name, values


def with_bad_entries(values):
    """Yield copies with one bad entry each: the first, the last and the largest in magnitude."""
    places = (0, values.size - 1, int(np.argmax(np.abs(values))))
    for bad, place in zip(BAD, places, strict=True):
        changed = values.copy()
        changed[np.unravel_index(place, values.shape)] = bad
        yield changed if values.ndim else changed.item()


def is_seen(model, before, data=(), options=None):
    """Tell whether `certify` raises a ValueError, or a claim fails that did not fail `before`."""
    try:
        return bool(failing(certify(model, *data, **(options or {}))) - before)
    except ValueError as error:
        return bool(str(error))


@pytest.mark.parametrize("case", CASES)
def test_no_certificate_holds_with_a_number_that_is_not_finite(case):
    estimator, data, options = CASES[case]
    model = deepcopy(estimator).fit(*data, **options)
    healthy = certify(model, *data, **options)
    before = failing(healthy)
    # The point estimate prunes a column that the full energy would keep.
    assert healthy.holds if case != "point" else before <= {"posterior_collapse"}, healthy
    judged = dict(numbers(model))
    assert judged
    for name, values in judged.items():
        for wrong in with_bad_entries(values):
            other = deepcopy(model)
            setattr(other, name, wrong)
            assert is_seen(other, before, data, options), (name, wrong)
            assert isinstance(model, PCA) or is_seen(other, before), (name, wrong)


@pytest.mark.parametrize("noise", ["learn", [0.1, 0.2]])
def test_several_dictionaries_with_numbers_that_are_not_finite(noise):
    draw = np.random.default_rng(2)
    dictionaries = [draw.standard_normal((d, 9)) for d in (30, 40)]
    responses = [
        part[:, :2] @ draw.standard_normal((2, 5)) + 0.4 * draw.standard_normal((len(part), 5))
        for part in dictionaries
    ]
    found = solve_joint(dictionaries, responses, noise_variance=noise).value
    assert found.certificate.holds
    wrong = [{"energy": bad} for bad in BAD]
    for name in ("relevance", "noise_variance"):
        wrong += [{name: values} for values in with_bad_entries(np.asarray(getattr(found, name)))]
    for index in range(2):
        for values in with_bad_entries(np.asarray(found.coef[index])):
            parts = list(found.coef)
            parts[index] = values
            wrong.append({"coef": parts})
    for change in wrong:
        assert certify(found._replace(**change), dictionaries, responses).holds is False, change


def test_weights_and_coefficients_that_are_not_finite_are_refused():
    linear = LinearAutoencoder(2).fit(X)
    dropout = DropoutRegressor(2, dropout=0.3).fit(X, Y)
    for bad in BAD:
        for place in (0, 1):
            pairs = {
                "linear": [linear.encoder_.copy(), linear.decoder_.copy()],
                "dropout": [dropout.left_.copy(), dropout.right_.copy()],
            }
            for family, pair in pairs.items():
                pair[place].flat[-1] = bad
                settings = {"method": "rag"} if family == "linear" else {"dropout": 0.3}
                with pytest.raises(ValueError, match=r"NaN|infinity"):
                    certify(tuple(pair), X, Y, family=family, **settings)
        coef = np.zeros((3, 6))
        coef[1, 1] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            certify(coef, X, Y)
