"""Statements of Bao et al. 2020 and of docs/theory on linear autoencoders, checked directly."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp
from scipy.optimize import least_squares

from linear.observed_likelihood import loss_and_gradient, make_incomplete, parameters
from linear.problems import Moment, covariance_from, orthogonal, spectra, spectrum_from
from linear.test_theory import dense_hessian
from lucidae.linear import (
    BrockettRule,
    ExpectedNestedDropout,
    GeneralizedHebbianRule,
    LinearVAE,
    NonUniformL2,
    Reconstruction,
    RotationAugmentedRule,
    TiedWeights,
    UntiedWeights,
    VariationalWeights,
    geometric_prior,
)
from lucidae.linear.missing import ObservedRows
from lucidae.linear.objectives import brockett_ranks, keep_probabilities, rotation_generator

seeds = st.integers(0, 2**32 - 1)


def stationary_points(values, penalties):
    """Yield all stationary points up to signs, for Σ = diag(values): W = W₁ = W₂ᵀ of shape (k, m).

    Each latent i is zero or lies on an axis j of its own, with W_ij² = 1 − λᵢ/σⱼ² > 0.
    """
    k, m = len(penalties), len(values)
    for used in product([False, True], repeat=k):
        latents = [i for i in range(k) if used[i]]
        for axes in permutations(range(m), len(latents)):
            lengths = [1 - penalties[i] / values[j] for i, j in zip(latents, axes, strict=True)]
            if all(length > 0 for length in lengths):
                weights = np.zeros((k, m))
                weights[latents, list(axes)] = np.sqrt(lengths)
                yield weights


@settings(max_examples=15)
@given(seed=seeds, k=st.integers(1, 3), outside=st.integers(0, 2))
def test_every_stationary_point_is_a_global_minimum_or_a_strict_saddle(seed, k, outside):
    """Bao et al. 2020, Theorems 2 and 3, for penalties below and above the eigenvalues."""
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
    penalties = np.sort(rng.uniform(0.05, 1.0, k)) * rng.choice([values[k - 1], values[0]])
    objective, covariance = NonUniformL2(penalties), Moment(np.diag(values))
    lowest = float(objective.minimum(spectrum_from(values), k))
    for weights in stationary_points(values, penalties):
        point = UntiedWeights(weights, weights)
        slope = objective.gradient(point, covariance)
        assert max(np.abs(slope.encoder).max(), np.abs(slope.atoms).max()) < 1e-12 * values[0]
        loss = float(objective.value(point, covariance))
        saved = ((values - penalties[:, None]) ** 2 / values)[weights > 0].sum()
        assert loss == pytest.approx(values.sum() - saved, rel=1e-10)
        curvature = np.linalg.eigvalsh(dense_hessian(objective, point, values))[0]
        if loss > lowest + 1e-9 * values.sum():
            assert curvature < 0
        else:
            assert curvature > -1e-9 * values[0]


def test_latents_of_equal_length_in_the_wrong_order_are_a_strict_saddle():
    """Both rotations are flat there; a sum of the two has negative curvature."""
    values, penalties = np.array([2.0, 1.0]), np.array([0.25, 0.5])
    weights = np.array([[0.0, 1.0], [1.0, 0.0]]) * np.sqrt(0.75)
    point, objective = UntiedWeights(weights, weights), NonUniformL2(penalties)
    slope = objective.gradient(point, Moment(np.diag(values)))
    assert np.abs(slope.encoder).max() < 1e-15
    hessian = dense_hessian(objective, point, values)
    turn = np.array([weights[1], -weights[0]])
    flat = np.concatenate([turn.ravel(), turn.ravel()])
    assert abs(flat @ hessian @ flat) < 1e-9
    assert np.linalg.eigvalsh(hessian)[0] < -0.01


def test_latents_of_descending_lengths_need_not_be_in_order():
    """The gap in the proof of Bao et al. 2020, Lemma 8: only a rotation of the axes descends."""
    values, penalties = np.array([2.0, 1.0]), np.array([0.01, 0.9])
    weights = np.array([[0.0, np.sqrt(0.99)], [np.sqrt(0.55), 0.0]])  # latent 1 on axis 2
    point, objective = UntiedWeights(weights, weights), NonUniformL2(penalties)
    slope = objective.gradient(point, Moment(np.diag(values)))
    assert np.abs(slope.encoder).max() < 1e-15
    hessian = dense_hessian(objective, point, values)
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert quotient(hessian, turn @ weights) > 0.1
    assert quotient(hessian, weights @ turn) < -0.1


@pytest.mark.parametrize("seed", range(3))
def test_all_zeros_of_the_gradient_are_the_listed_points(seed):
    """Bao et al. 2020, Theorem 1, Lemma 2 and Theorem 2: no other stationary point is found."""
    values, penalties = np.array([3.0, 1.7, 0.6]), np.array([0.2, 0.9])
    objective = NonUniformL2(penalties)
    covariance, rng = Moment(np.diag(values)), np.random.default_rng(seed)
    listed = [np.abs(weights) for weights in stationary_points(values, penalties)]

    def gradient(flat):
        slope = objective.gradient(UntiedWeights(*flat.reshape(2, 2, 3)), covariance)
        return np.stack(slope).ravel()

    found = set()
    for _ in range(40):
        ended = least_squares(gradient, rng.standard_normal(12), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        if np.abs(ended.fun).max() > 1e-10:
            continue  # a stationary point of ‖gradient‖² that is none of the loss
        encoder, atoms = ended.x.reshape(2, 2, 3)
        assert_allclose(encoder, atoms, atol=1e-7)
        rest = (np.eye(3) - atoms.T @ encoder) @ np.diag(values)
        assert_allclose(rest, rest.T, atol=1e-7)
        assert np.linalg.eigvalsh(rest)[0] > -1e-7
        distances = [np.abs(np.abs(encoder) - point).max() for point in listed]
        assert min(distances) < 1e-6
        found.add(int(np.argmin(distances)))
    assert len(found) >= 4


@given(seed=seeds)
def test_a_commuting_condition_makes_a_symmetric_matrix_diagonal(seed):
    """Bao et al. 2020, Lemma 4: the diagonal of the equation decides, smallest entry first."""
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((4, 4))
    Q, squares = square + square.T, np.sort(rng.uniform(0.1, 3, 4))
    D = np.diag(squares)
    residual = 2 * Q @ D @ Q - Q @ Q @ D - D @ Q @ Q
    assert_allclose(np.diag(residual), 2 * np.sum(Q**2 * (squares - squares[:, None]), axis=1))
    assert residual[0, 0] > 0  # every term is positive, so an off-diagonal entry contradicts
    diagonal = np.diag(np.diag(Q))
    assert np.abs(2 * diagonal @ D @ diagonal - 2 * diagonal**2 @ D).max() < 1e-12


@given(seed=seeds)
def test_rayleigh_quotients_of_scalings_and_rotations(seed):
    """Bao et al. 2020, Lemma 1 and Appendices B and D, for losses without their factor ½."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(0.5, 4, 5))[::-1]
    k, (i, j) = 3, (2, 0)
    penalties = np.sort(rng.uniform(0.1, 0.9, k)) * values[k - 1]
    lengths = 1 - penalties / values[:k]
    W = np.eye(5)[:k] * np.sqrt(lengths)[:, None]
    hessian = dense_hessian(NonUniformL2(penalties), UntiedWeights(W, W), values)
    scale = 4 * (values[0] - penalties[0])
    assert quotient(hessian, W * np.eye(k)[:, :1]) == pytest.approx(scale, rel=1e-8)
    turn = np.zeros((k, k))
    turn[i, j], turn[j, i] = 1, -1
    expected = 2 * (lengths[j] - lengths[i]) * (penalties[i] - penalties[j])
    expected /= lengths[i] + lengths[j]
    assert quotient(hessian, turn @ W) == pytest.approx(expected, rel=1e-6, abs=1e-9)

    prior = geometric_prior(k, 0.7)
    kept, axes = keep_probabilities(prior), np.eye(5)[:k]
    nested = dense_hessian(ExpectedNestedDropout(prior), UntiedWeights(axes, axes), values)
    scaling = quotient(nested, axes * np.eye(k)[:, :1])
    assert scaling == pytest.approx(4 * kept[0] * values[0], rel=1e-8)
    expected = (values[j] - values[i]) * (kept[j] - kept[i]) / 2
    assert quotient(nested, turn @ axes) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def quotient(hessian, change):
    """Return the Rayleigh quotient of the Hessian along the same change of both layers."""
    flat = np.concatenate([change.ravel(), change.ravel()])
    return flat @ hessian @ flat / (flat @ flat)


@pytest.mark.parametrize("seed", range(4))
def test_the_flow_of_the_rotation_aligns_from_every_orthogonal_start(seed):
    """Bao et al. 2020, Theorem 4: V falls at the stated speed; only the ordered end is stable."""
    rng, values, k = np.random.default_rng(seed), np.array([4.0, 2.5, 1.0]), 3
    sigma, ranks = np.diag(values), np.array([3.0, 2.0, 0.5])

    def flow(_, flat):
        W = flat.reshape(k, k)
        return (rotation_generator(W @ sigma @ W.T) @ W).ravel()

    def brockett(W):
        return np.sum(ranks * (values - np.diag(W @ sigma @ W.T)))

    start = orthogonal(rng, k)
    path = solve_ivp(flow, (0, 60), start.ravel(), rtol=1e-10, atol=1e-12, dense_output=True)
    points = [path.sol(t).reshape(k, k) for t in np.linspace(0, 60, 200)]
    assert np.all(np.diff([brockett(W) for W in points]) < 1e-9)
    for W in points[::20]:
        assert_allclose(W @ W.T, np.eye(k), atol=1e-7)
    code = start @ sigma @ start.T
    speed = sum((ranks[i] - ranks[j]) * code[i, j] ** 2 for i in range(k) for j in range(i))
    step = 1e-6
    change = brockett(start + step * flow(0, start).reshape(k, k)) - brockett(start)
    assert change / step == pytest.approx(speed, rel=1e-4)
    assert_allclose(np.abs(points[-1]), np.eye(k), atol=1e-6)
    # An aligned point in another order is at rest but not stable.
    swapped = np.eye(k)[[1, 0, 2]]
    assert np.abs(flow(0, swapped.ravel())).max() == 0
    turned = swapped @ rotation(1e-6, k)
    path = solve_ivp(flow, (0, 60), turned.ravel(), rtol=1e-10, atol=1e-14)
    assert_allclose(np.abs(path.y[:, -1].reshape(k, k)), np.eye(k), atol=1e-6)


def rotation(angle, k):
    turn = np.eye(k)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn


@pytest.mark.parametrize("seed", range(3))
def test_tied_rag_rests_at_principal_axes_alone(seed):
    """Every zero of the tied direction of full rank consists of k different axes."""
    values, rng = np.array([3.0, 1.7, 0.9, 0.4]), np.random.default_rng(seed)
    covariance, rule, k = Moment(np.diag(values)), RotationAugmentedRule(), 2

    def direction(flat):
        return rule.direction(TiedWeights(flat.reshape(k, 4)), covariance).encoder.ravel()

    full = set()
    for _ in range(30):
        ended = least_squares(direction, rng.standard_normal(8), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        W = ended.x.reshape(k, 4)
        if np.abs(ended.fun).max() > 1e-11 or np.linalg.svd(W)[1][-1] < 1e-3:
            continue
        used = np.abs(W).argmax(axis=1)
        assert_allclose(np.abs(W), np.eye(4)[used], atol=1e-6)
        assert len(set(used)) == k
        full.add(tuple(used))
    assert len(full) >= 3  # all orders and pairs of axes are at rest; only one is stable


@given(seed=seeds)
def test_the_flow_of_rag_turns_the_imbalance(seed):
    """The imbalance D obeys dD/dt = AD − DA: its eigenvalues stay, and zero stays zero."""
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from([3.0, 2.0, 1.0, 0.5], seed))
    weights = UntiedWeights(*rng.standard_normal((2, 3, 4)))
    first, second = RotationAugmentedRule().direction(weights, covariance)
    speed = -(first @ weights.encoder.T + weights.encoder @ first.T)
    speed += second @ weights.atoms.T + weights.atoms @ second.T
    A = rotation_generator(weights.encoder @ covariance.matrix @ weights.encoder.T)
    D = weights.encoder @ weights.encoder.T - weights.atoms @ weights.atoms.T
    assert_allclose(speed, A @ D - D @ A, atol=1e-10 * (1 + np.abs(first).max()) ** 2)


@pytest.mark.parametrize("seed", range(3))
def test_an_em_step_is_a_preconditioned_gradient_step(seed):
    """Loadings and mean move by the noise variance times inverse information times gradient."""
    rng, k = np.random.default_rng(seed), 2
    X, _ = make_incomplete(n=40, m=5, k=k, seed=seed)
    rows = ObservedRows.of(X, None)
    X = (X - rows.center) / rows.unit
    W, mean, noise = rng.standard_normal((5, k)), rng.standard_normal(5), 0.7
    statistics = rows.statistics(np.column_stack([W, mean]), noise)
    after, _ = statistics.maximized()
    _, slope = loss_and_gradient(parameters(mean, W, noise), X, k)
    slope = -np.column_stack([slope[: 5 * k].reshape(5, k), slope[5 * k : -1]])
    step = noise * np.linalg.solve(statistics.information, slope[:, :, None])[:, :, 0]
    assert_allclose(after, np.column_stack([W, mean]) + step, rtol=1e-8, atol=1e-8)


@given(seed=seeds)
def test_rag_is_sangers_rule_minus_half_of_the_correlations(seed):
    """Bao et al. 2020, Section 6.1, with half the loss and the gradient of the decoder."""
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from([3.0, 2.0, 1.0, 0.5], seed))
    W = rng.standard_normal((3, 4))
    tied = TiedWeights(W)
    moment = W @ covariance.matrix @ W.T
    slope = Reconstruction().gradient(UntiedWeights(W, W), covariance).atoms / 2
    rag = -slope + rotation_generator(moment) @ W
    sanger = -GeneralizedHebbianRule().direction(tied, covariance).encoder
    correlations = moment - np.diag(np.diag(moment))
    assert_allclose(rag, sanger - correlations @ W / 2, atol=1e-12)


@given(seed=seeds)
def test_brockett_and_rag_rotate_by_the_off_diagonal_code_moment(seed):
    """Bao et al. 2020, Appendix G: weights dᵢ − dⱼ of Brockett's rule, ½ sign(j − i) of RAG."""
    rng = np.random.default_rng(seed)
    spectrum = spectrum_from([3.0, 2.0, 1.0, 0.5], seed)
    covariance, ranks = covariance_from(spectrum), brockett_ranks(3)
    W = orthogonal(rng, 4)[:3]
    moment = W @ covariance.matrix @ W.T
    outside = W @ covariance.matrix - moment @ W
    ascent = -BrockettRule(ranks).direction(TiedWeights(W), covariance).encoder
    mask = ranks[:, None] - ranks
    assert_allclose(ascent, 2 * ranks[:, None] * outside + (mask * moment) @ W, atol=1e-12)
    rag = -RotationAugmentedRule().direction(TiedWeights(W), covariance).encoder
    signs = np.sign(np.arange(3) - np.arange(3)[:, None])
    assert_allclose(rag, outside + (signs * moment) @ W / 2, atol=1e-12)


@given(seed=seeds)
def test_a_balanced_linear_vae_has_a_nonuniform_penalty_on_its_decoder(seed):
    """Bao et al. 2020, Appendix F: at the best V and D the decoder's penalty is s²/diag(M)."""
    rng = np.random.default_rng(seed)
    covariance = covariance_from(spectrum_from([3.0, 2.0, 1.0, 0.5], seed))
    noise, W = 0.3, rng.standard_normal((4, 2))
    M = W.T @ W + noise * np.eye(2)
    V, best = np.linalg.solve(M, W.T), noise / np.diag(M)
    weights = VariationalWeights(V, W.T, np.log(best)[:, None], np.log([[noise]]))
    slope = LinearVAE(noise).gradient(weights, covariance)
    assert np.abs(slope.encoder).max() < 1e-12
    assert np.abs(slope.log_variances).max() < 1e-12
    loss = Reconstruction().gradient(UntiedWeights(V, W.T), covariance).atoms / 2
    assert_allclose(slope.atoms, loss / noise + W.T / np.diag(M)[:, None], atol=1e-11)
