"""Whatever is given: a clear error, or a right result."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

from extras import require
from lucidae import LinearAutoencoder

X = np.random.default_rng(0).standard_normal((50, 6)) @ np.diag([3.0, 2.0, 1.5, 1.0, 0.5, 0.2]) + 3


def spoiled(value):
    rows = X.copy()
    rows[3, 2] = value
    return rows


def test_bad_tensors_are_refused():
    torch = require("torch")
    for rows in (spoiled(np.nan), X[0], X[:1], np.empty((0, 3)), X + 1j):
        with pytest.raises(ValueError, match=r"NaN|dimensions|minimum of 2|empty|complex"):
            LinearAutoencoder(1).fit(torch.tensor(rows))


# Values that no setting takes are those of tests/test_junk.py.
BAD_SETTINGS = {
    "k too large": ({"n_components": 7}, "X has 6 features"),
    "adam with a rule": ({"optimizer": "adam"}, "Adam rescales"),
    "negative penalty": ({"method": "nonuniform_l2", "l2": [0.1, -0.1]}, "at least 0"),
    "too many penalties": ({"method": "nonuniform_l2", "l2": [0.1] * 3}, "expected 2"),
    "one penalty": ({"method": "nonuniform_l2", "l2": 0.1}, "expected 2"),
    "unequal penalties": ({"method": "uniform_l2", "l2": [0.1, 0.2]}, "one number"),
    "matrix of penalties": ({"method": "nonuniform_l2", "l2": np.eye(2)}, "or one per latent"),
    "long prior": ({"method": "nested_dropout", "prior": [0.5, 0.3, 0.2]}, "expected 2"),
    "untied rule": ({"method": "gha", "tied": False}, "one set of weights"),
    "tied vae": ({"method": "linear_vae", "tied": True}, "differ at the optimum"),
    "start of 0": ({"init_scale": 0.0}, r"in \(0, 1e"),
    "huge start": ({"init_scale": 1e11}, r"in \(0, 1e\+10\]"),
    "stream without k": (
        {"n_components": None, "solver": "stochastic"},
        "n_components as an integer",
    ),
    "stream of a share": (
        {"n_components": 0.5, "solver": "stochastic"},
        "n_components as an integer",
    ),
}


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_settings_are_refused_and_leave_no_fit(settings, message):
    estimator = LinearAutoencoder(**({"n_components": 2} | settings))
    with pytest.raises(ValueError, match=message):
        estimator.fit(X)
    with pytest.raises(NotFittedError):
        estimator.transform(X)


BAD_WEIGHTS = {
    "all zero": (np.zeros(50), "not all weights may be zero"),
    "less than one in all": (np.full(50, 0.01), "weights are frequencies"),
}


@pytest.mark.parametrize("solver", ["exact", "stochastic"])
@pytest.mark.parametrize(("weights", "message"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_bad_weights_are_refused(weights, message, solver):
    with pytest.raises(ValueError, match=message):
        LinearAutoencoder(2, solver=solver).fit(X, sample_weight=weights)


def test_codes_and_rows_of_another_shape_are_refused():
    fitted = LinearAutoencoder(2).fit(X)
    with pytest.raises(ValueError, match="expected 2 codes"):
        fitted.inverse_transform(np.ones((3, 5)))
    with pytest.raises(ValueError, match="NaN"):
        fitted.inverse_transform(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="expecting 6 features"):
        fitted.transform(X[:, :4])
    with pytest.raises(NotFittedError):
        _ = LinearAutoencoder().certificate_


@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-150, 1e160, 1e200, 1e300])
def test_scales_whose_squares_leave_double_precision_are_refused(scale, solver):
    with pytest.raises(ValueError, match=r"the squares of X (under|over)flow double precision"):
        LinearAutoencoder(2, solver=solver).fit(X * scale)


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["exact", "gradient", "stochastic"])
@pytest.mark.parametrize("method", ["rag", "gha", "brockett", "nonuniform_l2", "linear_vae"])
@pytest.mark.parametrize("scale", [1e-130, 1e-100, 1e-30, 1e30, 1e100])
def test_extreme_scales_give_the_same_components(scale, method, solver):
    settings = {"method": method, "solver": solver, "random_state": 0, "tol": 1e-2}
    settings["batch_size"] = 50
    fitted = LinearAutoencoder(2, **settings).fit(X * scale)
    expected = LinearAutoencoder(2, **settings).fit(X)
    assert fitted.n_iter_ == expected.n_iter_
    assert_allclose(fitted.components_, expected.components_, atol=1e-5)
    assert_allclose(fitted.explained_variance_ / scale**2, expected.explained_variance_, rtol=1e-5)
    decoded = fitted.inverse_transform(fitted.transform(X * scale)) / scale
    assert_allclose(decoded, expected.inverse_transform(expected.transform(X)), rtol=1e-5)
    verdicts = {claim.name: claim.holds for claim in fitted.certificate_.claims}
    assert verdicts == {claim.name: claim.holds for claim in expected.certificate_.claims}


def test_a_mean_far_above_the_deviations_keeps_them():
    centred = X - X.mean(axis=0)
    fitted, expected = LinearAutoencoder(3).fit(centred + 1e8), LinearAutoencoder(3).fit(centred)
    assert_allclose(fitted.components_, expected.components_, atol=1e-6)
    assert_allclose(fitted.explained_variance_, expected.explained_variance_, rtol=1e-6)


@pytest.mark.parametrize("n_rows", [2, 3])
def test_components_that_few_rows_do_not_determine_are_named_in_the_certificate(n_rows):
    X = np.random.default_rng(0).standard_normal((n_rows, 6))
    model = LinearAutoencoder(n_rows + 1).fit(X)
    assert np.all(model.explained_variance_[n_rows - 1 :] < 1e-12 * model.explained_variance_[0])
    assert model.certificate_["eigengap"].holds is None
    assert f"{n_rows - 1}–{n_rows}" in model.certificate_["eigengap"].advice
    determined = LinearAutoencoder().fit(X)  # by default the rank
    assert determined.n_components_ == n_rows - 1
    assert determined.certificate_["eigengap"].holds
