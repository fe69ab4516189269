"""The noise variance: given, learned, or read off held-out rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from lucidae import SparseVAE
from lucidae.datasets import make_sparse_regression

PLAIN = {"fit_intercept": False}


def drawn(d, kappa, r, n, snr, seed):
    return make_sparse_regression(d, kappa, r, n, tau=min(n, 5), snr_db=snr, random_state=seed)


def outcome(settings, snr, seeds):
    """Ratios of estimated to true variance, missed and spurious columns."""
    ratios, missed, spurious = [], [], []
    for seed in seeds:
        p = drawn(*settings, snr, seed)
        model = SparseVAE(**PLAIN).fit(p.dictionary, p.responses)
        ratios.append(model.noise_variance_ / p.noise_variance)
        ratios[-1] /= max(4 - 1.5 * settings[0] / settings[1], 1)  # of "auto"
        missed.append(len(set(p.support) - set(model.support_)))
        spurious.append(len(set(model.support_) - set(p.support)))
    return np.array(ratios), np.array(missed), np.array(spurious)


@pytest.mark.covering
@pytest.mark.parametrize("snr", [10, 20])
@pytest.mark.parametrize(
    "settings", [(100, 50, 5, 20), (100, 200, 10, 20), (50, 400, 5, 5)], ids=str
)
def test_auto_finds_the_true_columns_and_hardly_any_other(settings, snr):
    ratios, missed, spurious = outcome(settings, snr, range(100, 102))
    assert not missed.any()
    assert spurious.mean() < 1
    assert (ratios > 0.5).all()
    assert (ratios < 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("snr", [10, 20])
@pytest.mark.parametrize(
    "settings", [(100, 50, 5, 20), (100, 200, 10, 20), (100, 200, 10, 5), (50, 400, 5, 5)], ids=str
)
def test_auto_finds_the_true_columns_on_many_seeds(settings, snr):
    ratios, missed, spurious = outcome(settings, snr, range(200, 220))
    assert missed.mean() <= 0.05
    assert spurious.mean() < 1
    assert (ratios > 0.5).all()


def test_learned_noise_is_within_a_fifth_where_the_problem_is_determined():
    for seed, (kappa, n) in enumerate([(50, 20), (50, 50), (20, 20), (10, 100), (1, 30)]):
        p = drawn(100, kappa, min(5, kappa), n, 10, seed)
        model = SparseVAE(**PLAIN).fit(p.dictionary, p.responses)
        assert abs(model.noise_variance_ / p.noise_variance - 1) < 0.2


@pytest.mark.parametrize("n", [1, 5])
def test_noise_does_not_collapse_on_noisy_under_determined_data(n):
    for seed in range(2):
        p = drawn(50, 200, 4, n, 20, seed)
        model = SparseVAE(**PLAIN).fit(p.dictionary, p.responses)
        assert model.noise_variance_ > 0.3 * p.noise_variance


@pytest.mark.parametrize("settings", [(100, 200, 10), (50, 400, 5)], ids=str)
def test_one_response_is_not_taken_for_noise(settings):
    for seed in range(100, 102):
        p = drawn(*settings, 1, 20, seed)
        model = SparseVAE(noise_variance="cv", **PLAIN).fit(p.dictionary, p.responses)
        assert 0.3 < model.noise_variance_ / p.noise_variance < 4
        assert_allclose(model.support_, p.support)


@pytest.mark.parametrize("snr", [0, 20, 40])
@pytest.mark.parametrize("kappa", [31, 60, 100])
def test_auto_multiplies_the_held_out_error_by_a_factor_that_grows_with_the_columns(kappa, snr):
    p = drawn(60, kappa, 3, 10, snr, 1)
    cv, auto = (
        SparseVAE(noise_variance=rule, **PLAIN).fit(p.dictionary, p.responses).noise_variance_
        for rule in ("cv", "auto")
    )
    factor = 4 - 1.5 * 60 / kappa  # 1 at half as many columns as rows, where "auto" learns
    assert auto == pytest.approx(min(factor * cv, np.mean(p.responses**2)))


def test_pure_noise_has_no_support_and_all_of_its_variance():
    rng = np.random.default_rng(0)
    Phi, X = rng.standard_normal((40, 100)), rng.standard_normal((40, 8))
    model = SparseVAE(**PLAIN).fit(Phi, X)
    assert model.support_.size == 0
    assert 0.8 < model.noise_variance_ < 1.3


def test_learning_collapses_where_theory_says_so_and_warns():
    p = drawn(20, 200, 3, 2, 20, 0)
    with pytest.warns(ConvergenceWarning, match=r"still falling|limit"):
        model = SparseVAE(noise_variance="learn", max_iter=60, **PLAIN).fit(
            p.dictionary, p.responses
        )
    assert model.noise_variance_ < 0.3 * p.noise_variance


def test_learned_noise_is_stationary():
    p = drawn(60, 10, 3, 8, 10, 3)
    model = SparseVAE(noise_variance="learn", tol=1e-9, **PLAIN).fit(p.dictionary, p.responses)

    def energy(noise):
        sigma = p.dictionary * model.relevance_ @ p.dictionary.T + noise * np.eye(60)
        _, log_determinant = np.linalg.slogdet(sigma)
        return np.trace(p.responses.T @ np.linalg.solve(sigma, p.responses)) + 8 * log_determinant

    assert_allclose(model.energy_, energy(model.noise_variance_), rtol=1e-10)
    for factor in (0.97, 1.03):
        assert energy(factor * model.noise_variance_) > model.energy_


@pytest.mark.parametrize("posterior", ["full", "diagonal", "point"])
def test_held_out_rows_give_a_sensible_noise_for_every_posterior(posterior):
    p = drawn(40, 60, 3, 6, 20, 4)
    model = SparseVAE(posterior=posterior, noise_variance="cv", cv=4, **PLAIN).fit(
        p.dictionary, p.responses
    )
    assert 0.5 < model.noise_variance_ / p.noise_variance < 3
    assert set(p.support) <= set(model.support_)


def test_folds_may_be_a_number_a_splitter_or_a_list():
    p = drawn(30, 40, 3, 6, 20, 5)
    fits = [
        SparseVAE(noise_variance="cv", cv=cv, **PLAIN)
        .fit(p.dictionary, p.responses)
        .noise_variance_
        for cv in (3, KFold(3), list(KFold(3).split(p.dictionary)))
    ]
    assert_allclose(fits[1], fits[2])
    assert_allclose(fits, p.noise_variance, rtol=0.6)


def test_noise_free_data_are_recognised_by_their_held_out_rows():
    p = make_sparse_regression(40, 60, 3, 6, random_state=6)
    model = SparseVAE(**PLAIN).fit(p.dictionary, p.responses)
    assert model.noise_variance_ < 1e-6 * np.mean(p.responses**2)
    assert_allclose(model.support_, p.support)
    assert_allclose(model.coef_, p.coef, atol=1e-3)


def test_random_state_shuffles_the_folds_and_repeats_them():
    p = drawn(30, 40, 3, 3, 10, 7)

    def noise(state):
        return SparseVAE(random_state=state, **PLAIN).fit(p.dictionary, p.responses).noise_variance_

    assert noise(1) == noise(1)
    assert noise(1) != noise(2)


def test_a_noise_variance_that_creeps_towards_zero_gets_advice():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 40))
    y = X[:, :3] @ rng.standard_normal((3, 5)) + 0.1 * rng.standard_normal((20, 5))
    with pytest.warns(ConvergenceWarning, match=r"still falling.* use noise_variance='cv'"):
        model = SparseVAE(noise_variance="learn", max_iter=100).fit(X, y)
    # With more rows than columns there is a minimum, and more iterations do help.
    with pytest.warns(ConvergenceWarning, match="Raise max_iter"):
        SparseVAE(noise_variance="learn", max_iter=2).fit(X[:, :5], y)
    claim = model.certificate_["noise_variance"]
    assert claim.holds is False
    assert "towards zero" in claim.advice
    assert "noise_variance='cv'" in claim.advice


@pytest.mark.parametrize("options", [{}, {"groups": 3, "group_covariance": "full"}])
def test_the_chosen_noise_variance_does_not_depend_on_axes_or_signs(options):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((24, 45))
    y = X[:, :6] @ rng.standard_normal((6, 4)) + 0.3 * rng.standard_normal((24, 4))
    flipped, turned = X * np.resize([1.0, -1.0], 45), X.copy()
    for first in range(0, 45, 3) if options else ():
        axes, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        turned[:, first : first + 3] = X[:, first : first + 3] @ axes
    responses, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    pairs = [(X, y), (flipped, -y), (turned[:, ::-1], y @ responses)]
    found = [SparseVAE(noise_variance="cv", **options).fit(*pair).noise_variance_ for pair in pairs]
    assert_allclose(found, found[0], rtol=1e-6)


def test_the_support_of_complex_noise_has_the_stated_error_rate():
    """Bonferroni bounds the probability of any column; half the evidence would be far below it."""
    rng, found = np.random.default_rng(12), 0
    for _ in range(120):
        parts = rng.standard_normal((2, 10, 6)), rng.standard_normal((2, 10, 20))
        X, y = (real + 1j * imaginary for real, imaginary in parts)
        model = SparseVAE(noise_variance=2.0, significance=0.2, **PLAIN)
        found += model.fit(X, y).support_.size > 0
    assert 0.01 * 120 < found < 0.2 * 120
