"""Recovery of row-sparse codes: the order that the theory predicts (Wipf 2023, Figure 2)."""

import numpy as np
import pytest

from lucidae import SparseVAE
from lucidae.datasets import make_meg_leadfield, make_sparse_regression
from lucidae.metrics import exact_recovery
from lucidae.sparsity import group_lasso, noise_free_group_lasso

TINY = 1e-10


def estimate(name, p, noise):
    if name == "lasso":
        if p.noise_variance:
            return group_lasso(p.dictionary, p.responses, noise_variance=noise).T
        return noise_free_group_lasso(p.dictionary, p.responses, tol=1e-4, max_iter=600).T
    model = SparseVAE(posterior=name, noise_variance=noise, fit_intercept=False)
    return model.fit(p.dictionary, p.responses).coef_


def largest_rows_are_right(coef, p):
    top = np.argsort(-np.linalg.norm(coef, axis=0))[: len(p.support)]
    return set(top) == set(p.support)


def rates(methods, seeds, r, **options):
    """Share of successes by the Frobenius and by the row-wise criterion (support with noise)."""
    found = {name: [] for name in methods}
    for seed in seeds:
        p = make_sparse_regression(r=r, random_state=seed, **options)
        for name in methods:
            noise = p.noise_variance or TINY
            coef = estimate(name, p, noise)
            if p.noise_variance:
                found[name].append([largest_rows_are_right(coef, p)] * 2)
            else:
                judged = [exact_recovery(coef, p.coef, criterion=c) for c in ("frobenius", "rows")]
                found[name].append(judged)
    return {name: np.mean(results, axis=0) for name, results in found.items()}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_unit_rows_full_beats_autoencoder_beats_lasso():
    half = rates(["full", "point"], range(300, 303), 50)
    assert half["full"].min() == 1
    assert half["point"].min() >= 0.6
    many = rates(["full", "point", "lasso"], range(300, 302), 70)
    assert many["full"].min() == 1
    assert many["lasso"].max() == 0
    assert many["point"].max() <= many["full"].min()


def test_scaled_rows_help_the_full_posterior_alone():
    found = rates(["full", "diagonal", "point"], range(300, 303), 50, row_scaling="jeffreys")
    assert found["full"].min() == 1
    assert found["diagonal"].max() == found["point"].max() == 0


def test_with_noise_full_and_diagonal_beat_the_autoencoder_and_the_lasso():
    found = rates(["full", "diagonal", "point", "lasso"], range(300, 303), 60, snr_db=20)
    assert found["full"].min() == 1
    assert found["full"].min() >= found["diagonal"].max() >= found["point"].max()
    assert found["lasso"].max() <= 0.4


def test_a_leadfield_is_solved_by_the_full_posterior():
    Phi = make_meg_leadfield(50, 100, random_state=0)
    found = rates(["full", "point"], range(3), 10, dictionary=Phi)
    assert found["full"][0] == 1
    assert found["point"][0] <= found["full"][0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_recovery_rates_on_many_fresh_seeds():
    seeds = range(400, 410)
    unit = {r: rates(["full", "diagonal", "point"], seeds, r) for r in (50, 70, 90)}
    assert unit[50]["full"].min() >= 0.9
    assert unit[70]["full"].min() >= 0.8
    assert unit[90]["full"].max() <= 0.1
    assert unit[70]["point"].max() <= 0.6
    assert abs(unit[70]["diagonal"] - unit[70]["point"]).max() <= 0.3  # Lemma 4.3
    scaled = {r: rates(["full", "point"], seeds, r, row_scaling="jeffreys") for r in (50, 70, 90)}
    assert scaled[50]["full"].min() == 1
    assert scaled[70]["full"].min() >= 0.9
    assert scaled[90]["full"][0] >= 0.5
    assert max(found["point"].max() for found in scaled.values()) <= 0.1
    noisy = {r: rates(["full", "diagonal", "point"], seeds, r, snr_db=20) for r in (60, 70)}
    assert noisy[60]["full"][0] >= 0.9
    assert noisy[70]["full"][0] >= noisy[70]["diagonal"][0] >= noisy[70]["point"][0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_lasso_recovers_least():
    found = rates(["lasso"], range(500, 504), 50)
    assert found["lasso"].max() <= 0.75
    noisy = rates(["lasso"], range(500, 506), 60, snr_db=20)
    assert noisy["lasso"].max() <= 0.34
