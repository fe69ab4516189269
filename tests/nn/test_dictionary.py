"""The VAE with a fixed dictionary: eq. 5 by stochastic gradients against the reduced energies."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae import SparseVAE
from lucidae.nn import DictionaryVAE, collapse_report
from unreduced_vae import optimal_encoder, optimal_posterior, unreduced_loss


def problem(d=6, k=9, n=40, active=2, gamma=0.05, seed=0):
    rng = np.random.default_rng(seed)
    phi = rng.standard_normal((d, k))
    phi /= np.linalg.norm(phi, axis=0)
    codes = np.zeros((k, n))
    codes[rng.choice(k, active, replace=False)] = rng.standard_normal((active, n))
    return phi, phi @ codes + math.sqrt(gamma) * rng.standard_normal((d, n))


def energy(phi, X, w, gamma, kind):
    """Return eq. 18 or eq. 50, written out densely."""
    d, n = X.shape
    sigma = phi @ np.diag(w) @ phi.T + gamma * np.eye(d)
    fit = np.trace(X @ X.T @ np.linalg.inv(sigma))
    if kind == "full":
        return fit + n * np.linalg.slogdet(sigma)[1]
    norms = (phi**2).sum(0)
    return fit + n * np.log(gamma + w * norms).sum() + n * (d - len(w)) * math.log(gamma)


def set_parameters(model, w_x, encoder, factor):
    with torch.no_grad():
        model.weight.copy_(torch.tensor(w_x))
        model.encoder.copy_(torch.tensor(encoder))
        diagonal = np.diag(factor) - 1e-8
        model.raw_scale.copy_(torch.tensor(np.log(np.expm1(diagonal))))
        if model.covariance == "full":
            model.below.copy_(torch.tensor(np.tril(factor, -1)))


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_loss_is_equation_5_and_its_best_encoder_gives_the_reduced_energy(kind):
    gamma, (phi, X) = 0.05, problem()
    rng = np.random.default_rng(1)
    w_x = rng.standard_normal(9)
    model = DictionaryVAE(torch.tensor(phi), gamma, covariance=kind)
    factor = np.tril(rng.random((9, 9))) + np.eye(9)
    factor = factor if kind == "full" else np.diag(np.diag(factor))
    encoder = rng.standard_normal((9, 6))
    set_parameters(model, w_x, encoder, factor)
    given = unreduced_loss(phi, X, w_x, encoder, factor, gamma)
    x = torch.tensor(X.T)
    assert_allclose(model.energy(x), given - 40 * 9, rtol=1e-9)
    posterior = optimal_posterior(phi, w_x, gamma, kind == "diagonal")
    set_parameters(model, w_x, optimal_encoder(phi, w_x, gamma), np.linalg.cholesky(posterior))
    assert_allclose(model.energy(x), energy(phi, X, w_x**2, gamma, kind), rtol=1e-7)
    sigma = phi @ np.diag(w_x**2) @ phi.T + gamma * np.eye(6)
    codes = np.diag(w_x**2) @ phi.T @ np.linalg.solve(sigma, X)
    assert_allclose(model.coefficients(x).detach(), codes.T, atol=1e-9)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_sampled_loss_is_unbiased(kind):
    phi, X = problem()
    x = torch.tensor(X.T)
    exact = DictionaryVAE(torch.tensor(phi), 0.05, covariance=kind)
    sampled = DictionaryVAE(torch.tensor(phi), 0.05, covariance=kind, sampled=True)
    torch.manual_seed(0)
    with torch.no_grad():
        draws = torch.stack([sampled(x).loss for _ in range(400)])
        error = 5 * draws.std() / 20
        assert abs(draws.mean() - exact(x).loss) < error


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_stochastic_gradients_reach_the_energy_of_the_direct_solver(kind):
    gamma, (phi, X) = 0.05, problem()
    torch.manual_seed(0)
    model = DictionaryVAE(torch.tensor(phi), gamma, covariance=kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, steps = torch.tensor(X.T), 3000
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / steps) + 1e-5
        batch = x[torch.randint(0, 40, (20,))]
        optimizer.zero_grad()
        model(batch).loss.backward()
        optimizer.step()
    direct = SparseVAE(posterior=kind, noise_variance=gamma, fit_intercept=False).fit(phi, X)
    relevance = direct.relevance_
    assert_allclose(direct.energy_, energy(phi, X, relevance, gamma, kind), rtol=1e-9)
    assert abs(model.energy(x) - direct.energy_) < 0.01 * abs(direct.energy_)
    assert_allclose(model.relevance, relevance, atol=0.05 * relevance.max())
    if kind == "full":  # a diagonal posterior may give up columns that the likelihood would keep
        assert all(verdict is not False for verdict in collapse_report(model, x).justified)


def test_gradcheck_compile_and_state():
    phi, X = problem(d=3, k=4, n=5)
    for kind in ("full", "diagonal"):
        model = DictionaryVAE(torch.tensor(phi), 0.1, covariance=kind)
        x = torch.tensor(X.T, requires_grad=True)
        assert torch.autograd.gradcheck(lambda rows, m=model: m(rows).loss, x)
        with torch.no_grad():
            model.weight.mul_(0.3)
        compiled = torch.compile(model, backend="aot_eager")
        assert_allclose(compiled(x).loss.item(), model(x).loss.item(), rtol=1e-12)
        other = DictionaryVAE(torch.tensor(phi), 0.7, covariance=kind)
        other.load_state_dict(model.state_dict())
        assert_allclose(other.energy(x.detach()), model.energy(x.detach()))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: DictionaryVAE(torch.ones(3), 0.1), r"\(d, κ\)"),
        (lambda: DictionaryVAE(torch.full((2, 2), torch.nan), 0.1), "finite"),
        (lambda: DictionaryVAE(torch.eye(2), 0.0), "noise_variance"),
        (lambda: DictionaryVAE(torch.eye(2), 0.1, covariance="low_rank"), "covariance"),
        (lambda: DictionaryVAE(torch.eye(2), 0.1)(torch.ones(4, 3)), r"\(B, 2\)"),
    ],
)
def test_bad_input_is_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()
