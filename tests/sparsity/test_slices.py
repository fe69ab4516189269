"""Energies at given relevances, and along one relevance, of a fitted `SparseVAE`."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae import SparseVAE
from lucidae.displays import EnergySliceDisplay


def drawn(kind=float):
    rng = np.random.default_rng(0)

    def normal(*shape):
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if kind is complex else real

    X = normal(15, 24)
    X[:, 12:] = 0.99 * X[:, :12] + 0.1 * X[:, 12:]
    return X + 0.5, X[:, [1, 13, 6]] @ normal(3, 8) + 0.1 * normal(15, 8) + 1.0


def dense_energies(X, y, relevance, noise, rows):
    """Return the energies of the full and of the diagonal posterior by dense formulas."""
    sigma = (X * relevance) @ X.conj().T + noise * np.eye(len(X))
    fit, n = np.trace(np.linalg.solve(sigma, y @ y.conj().T)).real, y.shape[1]
    squares = (np.abs(X) ** 2).sum(axis=0)
    lost = len(X) - rows  # directions that the intercept removes
    full = fit + n * (np.linalg.slogdet(sigma)[1] - lost * np.log(noise))
    diagonal = fit + n * (np.log1p(relevance * squares / noise).sum() + rows * np.log(noise))
    return full, diagonal


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"fit_intercept": False}])
def test_energies_along_a_relevance_are_those_of_dense_formulas(kind, options):
    X, y = drawn(kind)
    model = SparseVAE(noise_variance=0.02, **options).fit(X, y)
    intercept = model.fit_intercept
    Phi, Y = (X - X.mean(axis=0), y - y.mean(axis=0)) if intercept else (X, y)
    assert_allclose(model.energy(model.relevance_), model.energy_, rtol=1e-9)
    assert_allclose(model.energy(model.relevance_, X, y), model.energy_, rtol=1e-9)
    along = model.energy_slice(13)
    assert_allclose(along.fitted, model.relevance_[13])
    assert repr(along) == "EnergySlice(column=13, 401 relevances)"
    for place in (0, 100, 250, 400):
        w = model.relevance_.copy()
        w[[12, 13] if "groups" in options else [13]] = along.relevance[place]
        expected = dense_energies(Phi, Y, w, 0.02, len(X) - intercept)
        assert_allclose(model.energy(w), expected[0], rtol=1e-8)
        assert_allclose([along.full[place], along.diagonal[place]], expected, rtol=1e-8)
    if not options:
        assert_allclose(along.minima("full"), [model.relevance_[13]], rtol=0.05)
        assert along.minima("diagonal")[0] == 0.0
    assert np.isnan(along.point[0])
    assert np.isfinite(along.point[1:]).all()


def test_a_slice_needs_the_data_of_the_fit_and_notices_changes():
    X, y = drawn()
    model = SparseVAE(noise_variance=0.02).fit(X, y)
    loaded = pickle.loads(pickle.dumps(model))
    with pytest.raises(ValueError, match="give X and y"):
        loaded.energy_slice(0)
    assert_allclose(loaded.energy_slice(0, X, y).full, model.energy_slice(0).full)
    X[0, 0] += 1.0
    with pytest.raises(ValueError, match="changed in place"):
        model.energy(model.relevance_)


def test_wrong_arguments_are_refused():
    X, y = drawn()
    model = SparseVAE(noise_variance=0.02, groups=2).fit(X, y)
    for wrong in (np.ones(3), -np.ones(24), np.full(24, np.nan), np.arange(24.0)):
        with pytest.raises(ValueError, match="relevance"):
            model.energy(wrong)
    for wrong in (24, -1, 1.5):
        with pytest.raises(ValueError, match="j="):
            model.energy_slice(wrong)
    full = SparseVAE(noise_variance=0.02, groups=2, group_covariance="full").fit(X, y)
    with pytest.raises(ValueError, match="spherical"):
        full.energy_slice(0)
    with pytest.raises(ValueError, match="posterior"):
        model.energy_slice(0).minima("other")


def test_noise_covariances_and_weights_belong_to_the_energy():
    X, y = drawn()
    R, weights = np.linspace(0.5, 2.0, len(X)), np.arange(len(X)) % 3 + 1.0
    for options in ({"noise_cov": R}, {"sample_weight": weights}):
        model = SparseVAE(noise_variance=0.02).fit(X, y, **options)
        assert_allclose(model.energy(model.relevance_), model.energy_, rtol=1e-9)
        assert_allclose(model.energy(model.relevance_, X, y, **options), model.energy_, rtol=1e-9)


def test_the_display_marks_every_minimum():
    X, y = drawn()
    model = SparseVAE(noise_variance=0.02).fit(X, y)
    display = EnergySliceDisplay.from_estimator(model, 13)
    assert set(display.lines_) == {"full", "diagonal", "point"}
    low, high = display.ax_.get_ylim()
    assert low < 0.0 < high
    assert model.energy_slice(13).plot().ax_.get_xlabel().endswith("column 13")
