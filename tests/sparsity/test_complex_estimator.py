"""Complex data through `SparseVAE`, `solve_batch`, `certify`, metrics, displays and files."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

import lucidae
from extras import require
from lucidae import SparseVAE, certify
from lucidae.displays import HistoryDisplay, RecoveryDisplay
from lucidae.metrics import exact_recovery, support_recovery
from lucidae.sparsity import solve_batch

NOISE = 0.01


TRUE = [3, 17]


def gaussian(rng, *shape):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / np.sqrt(2)


def draw(seed=0, d=20, kappa=40, n=8):
    """Return a complex dictionary, responses with an intercept, and the true coefficients."""
    rng = np.random.default_rng(seed)
    Phi, coef = gaussian(rng, d, kappa), np.zeros((n, kappa), dtype=complex)
    coef[:, TRUE] = 2 * gaussian(rng, n, 2)
    return Phi, Phi @ coef.T + NOISE**0.5 * gaussian(rng, d, n) + (1 + 2j), coef


def failed(certificate):
    return {claim.name for claim in certificate if claim.holds is False}


def test_coefficients_by_the_dense_formula():
    X, y, _ = draw()
    model = SparseVAE(noise_variance=NOISE).fit(X, y)
    Phi, Y = X - X.mean(axis=0), y - y.mean(axis=0)
    sigma = Phi * model.relevance_ @ Phi.conj().T + NOISE * np.eye(20)
    mean = model.relevance_[:, None] * (Phi.conj().T @ np.linalg.solve(sigma, Y))
    assert_allclose(model.coef_, mean.T, atol=1e-9)
    assert_allclose(model.intercept_, y.mean(axis=0) - X.mean(axis=0) @ mean, atol=1e-9)
    # The energy, with one row taken by the intercept.
    left = np.linalg.slogdet(sigma)[1] - np.log(NOISE)
    energy = 8 * left + np.trace(np.linalg.solve(sigma, Y @ Y.conj().T)).real
    assert_allclose(model.energy_, energy, rtol=1e-9)
    assert_array_equal(model.support_, TRUE)
    mean, spread = model.predict(X, return_std=True)
    assert_allclose(mean, X @ model.coef_.T + model.intercept_, atol=1e-9)
    precise = np.linalg.inv(sigma)
    variances = np.diagonal(np.eye(20) - NOISE * precise).real * NOISE
    assert_allclose(spread, np.sqrt(variances + NOISE), rtol=1e-8)
    covariance = model.posterior_covariance(TRUE)
    W = np.diag(model.relevance_)
    full = W - W @ Phi.conj().T @ precise @ Phi @ W
    assert_allclose(covariance, full[np.ix_(TRUE, TRUE)], atol=1e-10)
    assert_allclose(covariance, covariance.conj().T)


@pytest.mark.covering
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
@pytest.mark.parametrize("groups", [None, np.arange(40) // 2])
@pytest.mark.parametrize("kind", ["complex", "real dictionary", "real responses"])
def test_every_fit_is_certified_on_its_data(posterior, groups, kind):
    X, y, _ = draw(1)
    X = X.real if kind == "real dictionary" else X
    y = y.real if kind == "real responses" else y
    model = SparseVAE(posterior=posterior, groups=groups, noise_variance=0.5).fit(X, y)
    for certificate in (model.certificate_, certify(model, X, y)):
        # Like real fits, those of the other energies may end where the full energy would go on.
        assert failed(certificate) <= ({"posterior_collapse"} if posterior != "full" else set())
        assert certificate["stationarity"].holds
        assert certificate["posterior_mean"].holds
        assert certificate["energy"].holds
        assert certificate["predictive_variance"].holds
        assert certificate["support"].holds
    assert model.coef_.dtype == np.complex128
    assert model.relevance_.dtype == np.float64


def test_wrong_numbers_fail_their_claims():
    X, y, _ = draw(2)
    model = SparseVAE(noise_variance=NOISE).fit(X, y)
    fitted = {name: getattr(model, name) for name in ("coef_", "relevance_", "intercept_")}
    turned = fitted["coef_"] * np.exp(0.3j)  # the absolute values are still right
    model.coef_ = turned
    assert "posterior_mean" in failed(certify(model, X, y))
    assert failed(model.certificate_) == {"attributes"}
    model.coef_, model.relevance_ = fitted["coef_"], 1.2 * fitted["relevance_"]
    assert {"stationarity", "posterior_mean"} <= failed(certify(model, X, y))
    model.relevance_, model.intercept_ = fitted["relevance_"], fitted["intercept_"].conj()
    assert "posterior_mean" in failed(certify(model, X, y))
    model.intercept_ = fitted["intercept_"]
    assert not failed(certify(model, X, y))
    assert failed(certify(model, X.conj(), y))
    model.support_ = np.array([3])
    assert "support" in failed(certify(model, X, y))


def test_the_support_counts_two_numbers_for_each_complex_response():
    # One response, and a column that buys a log-likelihood between the two thresholds.
    rng = np.random.default_rng(3)
    X = gaussian(rng, 30, 6)
    found = {}
    for scale in np.linspace(0.05, 0.6, 20):
        y = scale * X[:, :1] * (1 + 1j) + 0.3 * gaussian(np.random.default_rng(4), 30, 1)
        model = SparseVAE(noise_variance=0.09, fit_intercept=False).fit(X, y)
        state = model.relevance_

        def log_likelihood(w, y=y):
            sigma = X * w @ X.conj().T + 0.09 * np.eye(30)
            fit = (y.conj().T @ np.linalg.solve(sigma, y)).real.item()
            return -np.linalg.slogdet(sigma)[1] - fit

        bought = 2 * (log_likelihood(state) - log_likelihood(np.where(np.arange(6), state, 0.0)))
        found[bought] = 0 in model.support_
        assert certify(model, X, y)["support"].holds
    threshold = 6.964  # the quantile of χ² with one degree of freedom at 1 − 0.05/6
    assert all(inside == (bought > threshold) for bought, inside in found.items())
    assert any(threshold < bought < 2 * threshold for bought in found)


def test_real_data_in_complex_arrays_give_the_real_fit():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((25, 40))
    y = X[:, [2, 30]] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((25, 4))
    for options in ({}, {"noise_variance": 0.1}, {"posterior": "diagonal", "noise_variance": 0.1}):
        plain = SparseVAE(**options).fit(X, y)
        for kinds in ((complex, complex), (float, complex), (complex, float)):
            cast = SparseVAE(**options).fit(X.astype(kinds[0]), y.astype(kinds[1]))
            assert_allclose(cast.relevance_, plain.relevance_, atol=1e-6)
            assert_allclose(cast.coef_, plain.coef_, atol=1e-6)
            assert_allclose(cast.noise_variance_, plain.noise_variance_, rtol=1e-6)
            assert_allclose(cast.energy_, plain.energy_, rtol=1e-9)
            assert_array_equal(cast.support_, plain.support_)
            assert failed(cast.certificate_) == failed(plain.certificate_)
            assert cast.coef_.dtype == np.complex128


def test_every_phase_of_a_column_or_response_gives_the_same_relevances():
    X, y, _ = draw(6)
    rng = np.random.default_rng(6)
    phases, shift = (np.exp(2j * np.pi * rng.uniform(size=size)) for size in (40, 8))
    plain = SparseVAE(noise_variance=NOISE).fit(X, y)
    turned = SparseVAE(noise_variance=NOISE).fit(X * phases, y * shift)
    assert_allclose(turned.relevance_, plain.relevance_, atol=1e-7)
    assert_allclose(turned.coef_, plain.coef_ * shift[:, None] / phases, atol=1e-6)


def test_repeated_rows_and_weights_agree():
    X, y, _ = draw(7)
    weights = np.where(np.arange(20) % 3 == 0, 2.0, 1.0)
    twice = np.concatenate([np.arange(20), np.arange(0, 20, 3)])
    first = SparseVAE(noise_variance=NOISE).fit(X, y, sample_weight=weights)
    second = SparseVAE(noise_variance=NOISE).fit(X[twice], y[twice])
    assert_allclose(first.coef_, second.coef_, atol=1e-9)
    assert_allclose(first.energy_, second.energy_, rtol=1e-9)
    assert_allclose(first.score(X, y, weights), second.score(X[twice], y[twice]))


def test_the_noise_variance_is_found():
    rng = np.random.default_rng(8)
    X = gaussian(rng, 60, 20)
    y = X[:, :2] @ gaussian(rng, 2, 30) + 0.5 * gaussian(rng, 60, 30)
    for rule in ("learn", "cv"):
        model = SparseVAE(noise_variance=rule, fit_intercept=False).fit(X, y)
        assert_allclose(model.noise_variance_, 0.25, rtol=0.12)
        assert model.certificate_["noise_variance"].holds is not False


def test_one_response_keeps_its_shape_and_intercept_is_a_complex_number():
    X, y, _ = draw(9)
    model = SparseVAE(noise_variance=NOISE).fit(X, y[:, 0])
    assert model.coef_.shape == (40,)
    assert isinstance(model.intercept_, complex)
    assert model.predict(X).shape == (20,)
    assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_, atol=1e-10)


def test_single_precision_is_kept():
    X, y, _ = draw(10)
    model = SparseVAE(noise_variance=NOISE).fit(X.astype(np.complex64), y)
    assert model.coef_.dtype == np.complex64
    assert model.relevance_.dtype == np.float32
    assert not failed(model.certificate_)
    rows = X[:3].astype(np.complex64)
    mean, spread = model.predict(rows, return_std=True)
    assert (mean.dtype, spread.dtype) == (np.complex64, np.float32)


def test_scores_and_searches_of_scikit_learn():
    X, y, _ = draw(11)
    model = SparseVAE(noise_variance=NOISE).fit(X, y)
    predicted = model.predict(X)
    left = (np.abs(y - predicted) ** 2).sum(axis=0)
    spread = (np.abs(y - y.mean(axis=0)) ** 2).sum(axis=0)
    assert_allclose(model.score(X, y), (1 - left / spread).mean())
    real = SparseVAE(noise_variance=NOISE).fit(X.real, y.real)
    cast = SparseVAE(noise_variance=NOISE).fit(X.real, y.real.astype(complex))
    assert_allclose(real.score(X.real, y.real), r2_score(y.real, real.predict(X.real)))
    assert_allclose(cast.score(X.real, y.real), real.score(X.real, y.real), rtol=1e-6)
    assert cross_val_score(clone(model), X, y, cv=3).min() > 0.9
    search = GridSearchCV(SparseVAE(), {"noise_variance": [NOISE, 10.0]}, cv=3).fit(X, y)
    assert search.best_params_ == {"noise_variance": NOISE}


def test_files_pickles_metrics_and_displays(tmp_path):
    X, y, coef = draw(12)
    for targets in (y, y[:, 0]):
        model = SparseVAE(noise_variance=NOISE).fit(X, targets)
        path = tmp_path / "model.lucidae"
        lucidae.save(model, path)
        for again in (lucidae.load(path), pickle.loads(pickle.dumps(model))):
            assert_array_equal(again.coef_, model.coef_)
            assert_array_equal(again.intercept_, model.intercept_)
            assert_array_equal(again.predict(X), model.predict(X))
            assert again.certificate_.to_dict() == model.certificate_.to_dict()
    model = SparseVAE(noise_variance=NOISE).fit(X, y)
    assert support_recovery(model.coef_, coef) == 1.0
    assert exact_recovery(model.coef_, coef, rtol=0.1)
    assert not exact_recovery(model.coef_, coef.conj(), rtol=0.1)
    assert not exact_recovery(model.coef_, coef.real, rtol=0.1)
    display = RecoveryDisplay.from_estimator(model, coef)
    assert display.recovered == 1.0
    assert_allclose(display.strengths, np.linalg.norm(model.coef_, axis=0))
    assert HistoryDisplay.from_estimator(model).quantity == "energy"


def test_coefficients_from_elsewhere():
    rng = np.random.default_rng(13)
    X, coef = gaussian(rng, 10, 30), np.zeros((4, 30), dtype=complex)
    coef[:, :3] = gaussian(rng, 4, 3)
    certificate = certify(coef, X, X @ coef.T)
    assert certificate["unique_in_general_position"].holds
    assert certificate["reconstruction"].value < 1e-14
    wrong = certify(coef.conj(), X, X @ coef.T)
    assert wrong["unique_in_general_position"].holds is None
    assert wrong["reconstruction"].value > 0.1
    # A column that is a complex multiple of a used one can replace it; its real part cannot tell.
    twin = np.column_stack([X[:, :29], 1j * X[:, 0]])
    assert certify(coef, twin, twin @ coef.T)["unique_in_general_position"].holds is None
    # Posterior means imply their relevances.
    Phi, y, _ = draw(13)
    model = SparseVAE(noise_variance=NOISE, fit_intercept=False).fit(Phi, y - 1 - 2j)
    again = certify(model.coef_, Phi, y - 1 - 2j, noise_variance=NOISE)
    assert again["stationarity"].holds
    assert certify(1.1 * model.coef_, Phi, y, noise_variance=NOISE)["stationarity"].holds is False


@pytest.mark.covering
@pytest.mark.parametrize("solver", ["auto", "mm"])
@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
def test_batches_solve_as_the_estimator_does(solver, posterior):
    rng = np.random.default_rng(14)
    X = gaussian(rng, 3, 12, 20)
    y = X[..., :2] @ gaussian(rng, 3, 2, 6) + 0.1 * gaussian(rng, 3, 12, 6)
    for pair in ((X, y), (X.real, y), (X, y.real)):
        solution = solve_batch(
            *pair, noise_variance=0.3, solver=solver, posterior=posterior, tol=1e-8
        )
        assert solution.converged.all()
        assert solution.value.coef.dtype == np.complex128
        for index in range(3):
            model = SparseVAE(
                noise_variance=0.3, fit_intercept=False, posterior=posterior, tol=1e-8
            )
            model.fit(pair[0][index], pair[1][index])
            if posterior != "point":  # whose energy is that of the rows that are not yet zero
                assert_allclose(solution.value.energy[index], model.energy_, rtol=1e-6)
            assert_allclose(solution.value.relevance[index], model.relevance_, atol=1e-4)
            assert_allclose(solution.value.coef[index], model.coef_, atol=1e-4)


def test_batches_at_a_tiny_noise_variance():
    rng = np.random.default_rng(15)
    X = gaussian(rng, 2, 10, 30)
    coef = np.zeros((2, 30, 5), dtype=complex)
    coef[:, :3] = gaussian(rng, 2, 3, 5)
    solution = solve_batch(X, X @ coef, noise_variance=1e-12, solver="mm")
    assert_allclose(solution.value.coef.mT, coef, atol=1e-5)


def test_torch_fits_as_numpy_does():
    torch = require("torch")
    X, y, _ = draw(16)
    plain = SparseVAE(noise_variance=NOISE).fit(X, y)
    for kinds in ((X, y), (X.real, y), (X, y.real)):
        plain = SparseVAE(noise_variance=NOISE).fit(*kinds)
        model = SparseVAE(noise_variance=NOISE).fit(*map(torch.asarray, kinds))
        assert model.coef_.dtype == torch.complex128
        assert_allclose(model.coef_.numpy(), plain.coef_, atol=1e-6)
        mean, spread = model.predict(torch.asarray(kinds[0]), return_std=True)
        expected = plain.predict(kinds[0], return_std=True)
        assert_allclose(mean.numpy(), expected[0], atol=1e-6)
        assert_allclose(spread.numpy(), expected[1], atol=1e-6)
        assert failed(model.certificate_) == failed(plain.certificate_)
        assert not failed(certify(model, torch.asarray(kinds[0]), torch.asarray(kinds[1])))
    batch = solve_batch(torch.asarray(X[None]), torch.asarray(y[None]), noise_variance=0.1)
    assert batch.value.coef.dtype == torch.complex128


def test_data_frames_of_complex_numbers():
    pandas = require("pandas")
    X, y, _ = draw(17)
    frame = pandas.DataFrame(X, columns=[f"c{j}" for j in range(40)])
    model = SparseVAE(noise_variance=NOISE).fit(frame, pandas.DataFrame(y))
    assert list(model.feature_names_in_) == list(frame.columns)
    assert_allclose(model.coef_, SparseVAE(noise_variance=NOISE).fit(X, y).coef_)
    assert model.predict(frame).shape == y.shape
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"c0": "other"}))
    listed = SparseVAE(noise_variance=NOISE).fit(X.tolist(), y.tolist())
    assert_allclose(listed.coef_, model.coef_)


def test_real_numbers_in_complex_arrays_have_the_support_of_real_data():
    rng = np.random.default_rng(5)
    X = rng.standard_normal((14, 25))
    y = X[:, [2, 7]] @ rng.standard_normal((2, 4)) + 0.3 * rng.standard_normal((14, 4))
    options = {"groups": 5, "group_covariance": "full", "noise_variance": 0.1}
    real = SparseVAE(**options).fit(X, y)
    assert len(real.support_) == 5
    cov = np.diag(rng.uniform(0.5, 2.0, 14)) + 0.1
    for dictionary, responses, noise_cov in (
        (X + 0j, y + 0j, None), (X + 0j, y, None), (X, y + 0j, None), (X + 0j, y + 0j, cov + 0j),
    ):  # fmt: skip
        same = real if noise_cov is None else SparseVAE(**options).fit(X, y, noise_cov=cov)
        model = SparseVAE(**options).fit(dictionary, responses, noise_cov=noise_cov)
        assert np.array_equal(model.support_, same.support_)
        assert model.certificate_.holds, str(model.certificate_)
        np.testing.assert_allclose(model.coef_, same.coef_, atol=1e-6)
