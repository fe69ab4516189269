"""Certificates of fits to rows with missing entries: what they notice, by independent formulas."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.observed_likelihood import loss_and_gradient, make_incomplete, parameters
from lucidae import LinearAutoencoder, certify
from lucidae.linear import verified_missing
from lucidae.linear.verified_missing import data_of_gaussian, measure_observed


def em(k=2, **settings):
    return LinearAutoencoder(k, handle_missing="em", **settings)


def relative_size(fitted, X, weights=None):
    """Return the value of the claim `likelihood` from the derivatives of the naive likelihood."""
    m, k = fitted.loadings.shape
    total = len(X) if weights is None else np.sum(weights)
    theta = parameters(fitted.mean, fitted.loadings, fitted.noise)
    _, slope = loss_and_gradient(theta, X, k, weights)
    return np.sqrt(fitted.noise * np.sum(slope[:-1] ** 2) + 2 / m * slope[-1] ** 2) / total


@pytest.mark.parametrize("operations", [2e9, 0.0])
def test_the_gradient_is_that_of_the_likelihood(monkeypatch, operations):
    monkeypatch.setattr(verified_missing, "DIRECT_OPERATIONS", operations)
    monkeypatch.setattr(verified_missing, "BLOCK_ENTRIES", 100)
    X, _ = make_incomplete(80, 6, 2, 0.3, seed=1)
    weights = np.random.default_rng(0).uniform(0.0, 3.0, 80)
    model = em().fit(X)
    fitted = replace(model._state.observed, mean=model._state.observed.mean + 0.1, noise=1.3)
    figures = measure_observed(fitted, X, weights, model.encoder_)
    assert_allclose(figures.gradient.value, relative_size(fitted, X, weights), rtol=1e-9)
    assert figures.gradient.error < 1e-10
    theta = parameters(fitted.mean, fitted.loadings, fitted.noise)
    assert_allclose(figures.log_likelihood, -loss_and_gradient(theta, X, 2, weights)[0])


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


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("operations", [2e9, 0.0])
def test_changed_parameters_fail(monkeypatch, change, operations):
    monkeypatch.setattr(verified_missing, "DIRECT_OPERATIONS", operations)
    X, _ = make_incomplete(100, 6, 2, 0.3, seed=3)
    model = em().fit(X)
    fitted = replace(model._state.observed, **change(model._state.observed))
    model._state.observed = fitted
    assert certify(model, X)["likelihood"].holds is False
    assert certify(model, X).holds is False


def test_changed_weights_and_attributes_fail():
    X, _ = make_incomplete(100, 6, 2, 0.3, seed=4)
    model, state = em().fit(X), em().fit(X)._state
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])
    changed = replace(state.model, encoder=turn @ state.model.encoder)
    state._model = changed
    certificate = state.certify_observed(X, None, "changed")
    assert certificate["attributes"].holds is False
    model.components_ = turn @ model.components_
    assert model.certificate_["attributes"].holds is False
    wrong = em().fit(X)
    wrong._state._model = replace(wrong._state.model, mean=wrong._state.model.mean + 0.1)
    assert certify(wrong, X)["attributes"].holds is False


def test_other_rows_fail():
    X, complete = make_incomplete(100, 6, 2, 0.3, seed=5)
    model = em().fit(X)
    assert certify(model, X[:50])["likelihood"].holds is False
    assert certify(model, complete)["likelihood"].holds is False


def test_weights_count():
    X, _ = make_incomplete(100, 6, 2, 0.3, seed=6)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 100)
    model = em().fit(X, sample_weight=weights)
    assert model.certificate_.holds
    assert certify(model, X, sample_weight=weights)["likelihood"].holds
    assert certify(model, X)["likelihood"].holds is False


def test_a_fit_to_complete_rows_is_judged_on_rows_with_missing_entries():
    X, complete = make_incomplete(100, 6, 2, 0.3, seed=7)
    certificate = certify(em().fit(complete), X)
    assert certificate["subspace"].holds
    assert certificate["likelihood"].holds is False


# Identifiability.


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
    assert "2 groups" in claim.advice
    assert "columns 0 and 4, 0 and 5" in claim.advice


def test_linked_features_determine_one_component():
    claim = em(1).fit(halves(2)).certificate_["identifiability"]
    assert claim.holds
    assert "columns 0 and 6, 0 and 7, 0 and 8 and 13 other pairs" in claim.advice


@pytest.mark.parametrize(("k", "free"), [(1, 0), (2, 0), (3, 1), (4, 3)])
def test_free_directions_are_rotations_about_the_features_that_link_two_groups(k, free):
    # The loadings of one group can be turned about those of the link, which changes no covariance
    # that is observed: rotations of the k − 1 dimensions orthogonal to it, (k − 1)(k − 2)/2.
    X = halves(1, k=k, side=7)
    model = em(k, max_iter=500, tol=1e-4).fit(X)
    claim = model.certificate_["identifiability"]
    assert claim.value == free
    assert claim.holds is (free == 0)
    if not free:
        return
    fitted = model._state.observed
    W, axes = fitted.loadings, np.linalg.svd(fitted.loadings[7:8])[2]
    rotation = np.eye(k)
    rotation[1:3, 1:3] = [[0.6, 0.8], [-0.8, 0.6]]
    turned = np.concatenate([W[:8], W[8:] @ (axes.T @ rotation @ axes)])
    before, after = (
        loss_and_gradient(parameters(fitted.mean, loadings, fitted.noise), X, k)[0]
        for loadings in (W, turned)
    )
    assert_allclose(after, before, rtol=1e-10)
    assert np.max(np.abs(turned @ turned.T - W @ W.T)) > 0.1


def test_large_problems(monkeypatch):
    X = halves(2)
    model = em(1).fit(X)
    monkeypatch.setattr(verified_missing, "TANGENT_PARAMETERS", 3)
    assert certify(model, X)["identifiability"].undecided
    monkeypatch.setattr(verified_missing, "PAIRED_FEATURES", 3)
    assert certify(model, X)["identifiability"].verdict == "does not apply"
    monkeypatch.setattr(verified_missing, "DENSE_FEATURES", 3)
    data, dense = data_of_gaussian(model._state.observed), model._state.observed
    rows = np.random.default_rng(0).standard_normal((3, 10))
    covariance = dense.loadings @ dense.loadings.T + dense.noise * np.eye(10)
    assert data.matrix is None
    assert_allclose(data.apply(rows), rows @ covariance)
    assert certify(model, X)["subspace"].holds


# What the missing entries cost.


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
    whole = measure_observed(model._state.observed, complete, None, model.encoder_)
    assert_allclose(whole.lost, 0.0, atol=1e-12)


def test_more_features_than_are_decomposed():
    X, _ = make_incomplete(60, 1100, 2, 0.3, seed=10)
    model = em().fit(X)
    assert model.certificate_["likelihood"].holds
    assert model.certificate_["subspace"].holds
    assert model.certificate_.holds is not False
