"""The group lasso, by the solvers of scikit-learn and skglm."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import MultiTaskLasso

from extras import require
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import group_lasso, noise_free_group_lasso, solve


class GroupLasso:
    """½‖X − ΦU‖² + λ Σⱼ‖uⱼ‖ over the rows of U, and how far U is from its minimum."""

    def __init__(self, strength):
        self.strength = strength

    def value(self, dictionary, responses, rows):
        residual = ((responses - dictionary @ rows) ** 2).sum()
        return 0.5 * residual + self.strength * np.linalg.norm(rows, axis=1).sum()

    def violation(self, dictionary, responses, rows):
        """Largest excess of a subgradient condition, relative to λ."""
        slopes = dictionary.T @ (responses - dictionary @ rows)
        norms = np.linalg.norm(rows, axis=1)
        directions = rows / np.where(norms > 0, norms, 1.0)[:, None]
        inside = np.linalg.norm(slopes - self.strength * directions, axis=1)
        outside = np.maximum(np.linalg.norm(slopes, axis=1) - self.strength, 0.0)
        return np.where(norms > 0, inside, outside).max() / self.strength


def test_group_lasso_violation_vanishes_at_its_closed_form():
    X = np.array([[3.0, 4.0], [0.3, 0.4]])
    U = np.array([[3.0, 4.0], [0.0, 0.0]]) * (1 - 1 / 5.0)
    assert GroupLasso(1.0).violation(np.eye(2), X, U) < 1e-12
    assert GroupLasso(1.0).violation(np.eye(2), X, 1.1 * U) > 0.1


@pytest.mark.parametrize("n", [1, 5])
def test_the_subgradient_conditions_hold_at_the_square_root_of_the_noise(n):
    p = make_sparse_regression(20, 30, 3, n, snr_db=10, random_state=0)
    U = group_lasso(p.dictionary, p.responses, noise_variance=p.noise_variance)
    lasso = GroupLasso(np.sqrt(p.noise_variance))
    assert U.shape == (30, n)
    assert lasso.violation(p.dictionary, p.responses, U) < 1e-3
    best = lasso.value(p.dictionary, p.responses, U)
    rng = np.random.default_rng(0)
    for _ in range(200):
        moved = U + 10 ** rng.uniform(-4, -1) * rng.standard_normal(U.shape)
        assert lasso.value(p.dictionary, p.responses, moved) >= best - 1e-9


class StandIn(MultiTaskLasso):
    """What skglm's solver looks like, and what it was asked."""

    asked = None

    def fit(self, X, y):
        type(self).asked = self.get_params()
        return super().fit(X, y)


def with_skglm(monkeypatch):
    monkeypatch.setitem(sys.modules, "skglm", SimpleNamespace(MultiTaskLasso=StandIn))
    monkeypatch.setattr(solve, "find_spec", lambda name: name)


def test_skglm_is_asked_for_the_same_problem(monkeypatch):
    p = make_sparse_regression(20, 30, 3, 4, snr_db=10, random_state=0)
    settings = {"noise_variance": p.noise_variance}
    expected = group_lasso(p.dictionary, p.responses, solver="sklearn", **settings)
    with_skglm(monkeypatch)
    found = group_lasso(p.dictionary, p.responses, solver="skglm", tol=1e-10, **settings)
    assert_allclose(found, expected, atol=1e-5)
    assert_allclose(StandIn.asked["alpha"], np.sqrt(p.noise_variance) / 20)
    assert_allclose(StandIn.asked["tol"], 1e-5 * StandIn.asked["alpha"])
    assert not StandIn.asked["fit_intercept"]


def test_skglm_is_taken_for_large_dictionaries_alone(monkeypatch):
    p = make_sparse_regression(20, 30, 3, 4, snr_db=10, random_state=0)
    with_skglm(monkeypatch)
    for large, taken in ((601, False), (600, True)):
        monkeypatch.setattr(solve, "LARGE", large)
        monkeypatch.setattr(StandIn, "asked", None)
        group_lasso(p.dictionary, p.responses, noise_variance=p.noise_variance)
        assert (StandIn.asked is not None) is taken


def test_a_solver_that_cannot_be_had_is_refused(monkeypatch):
    monkeypatch.setattr(solve, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install skglm"):
        group_lasso(np.eye(2), np.eye(2), noise_variance=1.0, solver="skglm")
    with pytest.raises(ValueError, match="solver='lars' was given"):
        group_lasso(np.eye(2), np.eye(2), noise_variance=1.0, solver="lars")


@pytest.mark.slow
def test_skglm_itself_agrees():
    require("skglm")
    p = make_sparse_regression(40, 120, 5, 6, snr_db=10, random_state=2)
    lasso = GroupLasso(np.sqrt(p.noise_variance))
    found, expected = (
        group_lasso(p.dictionary, p.responses, noise_variance=p.noise_variance, solver=solver)
        for solver in ("skglm", "sklearn")
    )
    assert lasso.violation(p.dictionary, p.responses, found) < 1e-3
    values = [lasso.value(p.dictionary, p.responses, U) for U in (found, expected)]
    assert_allclose(*values, rtol=1e-6)


def test_without_noise_the_norm_is_minimal_among_exact_fits():
    p = make_sparse_regression(12, 20, 2, 4, random_state=1)
    U = noise_free_group_lasso(p.dictionary, p.responses)
    assert_allclose(p.dictionary @ U, p.responses, atol=1e-6)
    norm = np.linalg.norm(U, axis=1).sum()
    _, _, basis = np.linalg.svd(p.dictionary)
    rng = np.random.default_rng(0)
    for _ in range(200):
        step = basis[12:].T @ rng.standard_normal((8, 4)) * 10 ** rng.uniform(-4, 0)
        assert np.linalg.norm(U + step, axis=1).sum() >= norm - 1e-5
    assert_allclose(U, p.coef.T, atol=1e-4)
