"""Dropout optima beside a dominant eigenvalue: from singular values of the rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from known_spectra import rows_with
from lucidae import DropoutAutoencoder, certify, load, save


def dominated(ratio):
    return np.concatenate([[ratio], np.linspace(6.0, 4.0, 4), np.linspace(1.0, 0.5, 20)])


def angle(weights, axes):
    """Return the sine of the largest angle of the axes to the span of the weights' columns."""
    basis, _, _ = np.linalg.svd(np.asarray(weights), full_matrices=False)
    basis = basis[:, : axes.shape[1]]
    return float(np.linalg.norm(axes - basis @ (basis.T @ axes), 2))


@pytest.mark.parametrize("shape", [(200, 40), (40, 200), (40, 1100), (1100, 1030)])
@pytest.mark.parametrize("ratio", [1e8, 1e12, 1e14])
def test_the_optimum_contains_the_exact_small_components(shape, ratio):
    values = dominated(ratio)
    X, axes = rows_with(values, *shape)
    model = DropoutAutoencoder(5, dropout=1e-10).fit(X)
    inherent = np.finfo(float).eps * np.sqrt(ratio)
    assert model.rank_ == 5
    assert angle(model.left_, axes[:, :5]) <= inherent + 1e-11
    assert_allclose(model.singular_values_[:5] ** 2, values[:5], rtol=inherent + 1e-11)
    assert model.certificate_.holds, model.certificate_


def test_the_certificate_refuses_weights_without_a_small_component():
    X, axes = rows_with(dominated(1e8), 200, 40)
    model = DropoutAutoencoder(5, dropout=0.0).fit(X)
    assert model.certificate_.holds
    model.left_ = model.right_ = axes[:, [0, 1, 2, 3, 7]]
    assert model.certificate_.holds is False


def test_components_that_dropout_removes_cost_nothing():
    X, _ = rows_with(dominated(1e12), 200, 40)
    model = DropoutAutoencoder(5, dropout=0.5).fit(X)
    assert model.rank_ == 1
    assert model._state.rows is None


def test_weighted_and_saved_fits_are_the_same(tmp_path):
    X, _ = rows_with(dominated(1e12), 200, 40)
    weights = np.random.default_rng(1).integers(0, 3, 200)
    model = DropoutAutoencoder(5, dropout=0.0).fit(X, sample_weight=weights)
    repeated = DropoutAutoencoder(5, dropout=0.0).fit(np.repeat(X, weights, axis=0))
    span = np.linalg.qr(repeated.left_)[0]
    assert angle(model.left_, span) <= 1e-9
    save(model, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    assert loaded.left_.tobytes() == model.left_.tobytes()
    assert loaded.certificate_.to_dict() == model.certificate_.to_dict()
    assert certify(model, X, sample_weight=weights).holds is not False
    assert loaded.partial_fit(X).n_components_ == 5
