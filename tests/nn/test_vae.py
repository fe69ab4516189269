"""Variational autoencoders: evidence, noise variance, the linear case, a fixed dictionary."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae import SecondMoment
from lucidae.linear import LinearVAE, Spectrum
from lucidae.nn import (
    VAE,
    DictionaryVAE,
    GaussianHead,
    GeometricSchedule,
    NoiseVariance,
    collapse_report,
)

KINDS = ["full", "diagonal", "low_rank"]


def small(kind="full", **settings):
    torch.manual_seed(0)
    return VAE.resnet((1, 8, 8), 4, covariance=kind, width=8, features=16, **settings)


def linear_vae(m=5, k=3, kind="diagonal", noise="learn"):
    head = GaussianHead(m, k, kind)
    return VAE(torch.nn.Identity(), head, torch.nn.Linear(k, m), noise_variance=noise).double()


@pytest.mark.parametrize("kind", KINDS)
def test_evidence_is_likelihood_plus_divergence(kind):
    model = small(kind, noise_variance=0.3).eval()
    x = torch.rand(6, 1, 8, 8)
    torch.manual_seed(1)
    evidence = model(x)
    torch.manual_seed(1)
    posterior = model.encode(x)
    decoded = torch.distributions.Normal(model.decode(posterior.rsample()), math.sqrt(0.3))
    expected = posterior.kl() - decoded.log_prob(x).flatten(1).sum(1)
    assert_allclose(evidence.loss.item(), expected.mean().item(), rtol=1e-5)
    assert_allclose(evidence.kl.detach(), posterior.kl().detach(), rtol=1e-6)


def test_models_of_one_seed_share_all_but_the_covariance():
    full, diagonal = small("full"), small("diagonal")
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(full.reconstruct(x), diagonal.reconstruct(x))
    other = {name: p for name, p in full.named_parameters() if "factor" not in name}
    for name, parameter in diagonal.named_parameters():
        assert torch.equal(parameter, other[name]), name
    extra = sum(p.numel() for p in full.parameters()) - sum(
        p.numel() for p in diagonal.parameters()
    )
    assert extra == 6 * (16 + 1)  # k(k − 1)/2 entries from 16 features and a bias


def test_any_image_size_and_colours():
    for shape in [(3, 7, 9), (1, 28, 28), (2, 5, 4), (1, 1, 1)]:
        model = VAE.resnet(shape, 3, width=8, features=8, stages=2)
        x = torch.rand(2, *shape)
        assert model.reconstruct(x).shape == x.shape
        assert model.sample(3).shape == (3, *shape)


def test_learned_noise_is_the_running_mean_of_the_squared_error():
    noise = NoiseVariance("learn")
    errors = torch.tensor([0.5, 0.1, 0.2])
    for error in errors:
        noise(error)
    first = 0.95 * 0.5 + 0.05 * 0.1
    assert_allclose(noise.value.item(), 0.95 * first + 0.05 * 0.2, rtol=1e-6)
    noise.eval()
    assert noise(torch.tensor(9.0)).item() == noise.value.item()
    assert NoiseVariance("learn")(torch.tensor(0.0)).item() > 0


def test_scheduled_and_fixed_noise():
    schedule = NoiseVariance(GeometricSchedule(1.0, 1e-2, steps=2))
    assert_allclose(
        [schedule(torch.tensor(5.0)).item() for _ in range(4)], [1, 0.1, 0.01, 0.01], rtol=1e-5
    )
    for number in (0.3, np.float32(0.3), np.float64(0.3)):
        fixed = NoiseVariance(number)
        assert fixed(torch.tensor(5.0)).item() == pytest.approx(0.3)
    constant = NoiseVariance(lambda step: 0.25)
    assert constant(torch.tensor(5.0)).item() == 0.25


def test_the_optimal_noise_makes_the_gradient_exact():
    """With γ at its optimum the loss is d/2·log MSE + KL up to a constant, gradients included."""
    model = small().double()
    x = torch.rand(5, 1, 8, 8).double()
    torch.manual_seed(1)
    model(x).loss.backward()
    gradient = model.encoder.body[0].weight.grad.clone()
    model.zero_grad()
    torch.manual_seed(1)
    posterior = model.encode(x)
    error = (x - model.decode(posterior.rsample())).square().mean()
    (32 * torch.log(error) + posterior.kl().mean()).backward()
    assert_allclose(model.encoder.body[0].weight.grad, gradient, rtol=1e-9)


def test_linear_vae_reaches_probabilistic_pca_and_reports_a_justified_collapse():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5)) * [2.0, 1.2, 0.3, 0.3, 0.3]
    X -= X.mean(0)
    x = torch.tensor(X)
    torch.manual_seed(0)
    model = linear_vae(noise=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(600):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * (1 - step / 600) + 1e-4
        optimizer.zero_grad()
        model(x).loss.backward()
        optimizer.step()
    moment = SecondMoment.of(X)
    spectrum = Spectrum(*moment.spectrum(), moment.trace)
    optimum = LinearVAE(noise=0.2).minimum(spectrum, 3)
    model.eval()
    with torch.no_grad():
        reached = np.mean([model(x).loss.item() for _ in range(40)])
    assert abs(reached - optimum) < 0.02 * abs(optimum)
    report = collapse_report(model, x)
    assert report.n_active == report.linear_latents == 2
    assert sorted(report.justified, key=str) == [None, None, True]


# The posteriors of all kinds are compiled by tests of their own; a whole network takes seconds.
@pytest.mark.parametrize(("kind", "compiles"), [(kind, kind == "full") for kind in KINDS])
def test_trains_under_autocast_and_compiled(kind, compiles):
    model = small(kind)
    compiled = torch.compile(model, backend="aot_eager") if compiles else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.rand(16, 1, 8, 8)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            evidence = compiled(x)
        evidence.loss.backward()
        optimizer.step()
        losses.append(evidence.loss.item())
    assert evidence.loss.dtype == evidence.kl.dtype == torch.float32
    assert all(math.isfinite(loss) for loss in losses)
    assert int(model.noise.steps) == 3


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


def unreduced_loss(phi, X, w_x, encoder, factor, gamma):
    """Return the loss of eq. 5 over all samples, encoder included, written out densely."""
    (d, n), decoder, means = X.shape, phi * w_x, encoder @ X
    error = np.sum((X - decoder @ means) ** 2) + n * np.sum((decoder @ factor) ** 2)
    posterior = np.sum(factor**2) - 2 * np.linalg.slogdet(factor)[1]
    return error / gamma + n * d * math.log(gamma) + np.sum(means**2) + n * posterior


def optimal_encoder_and_posterior(phi, w_x, gamma, kind):
    """Return the minimum of eq. 5 over encoder and posterior (Wipf 2023, eq. 15, appendix C.1)."""
    decoder = phi * w_x
    encoder = np.linalg.solve(decoder @ decoder.T + gamma * np.eye(len(phi)), decoder).T
    precision = np.eye(len(w_x)) + decoder.T @ decoder / gamma
    if kind == "diagonal":
        precision = np.diag(np.diag(precision))
    return encoder, np.linalg.inv(precision)


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
    encoder, posterior = optimal_encoder_and_posterior(phi, w_x, gamma, kind)
    set_parameters(model, w_x, encoder, np.linalg.cholesky(posterior))
    assert_allclose(model.energy(x), energy(phi, X, w_x**2, gamma, kind), rtol=1e-7)
    sigma = phi @ np.diag(w_x**2) @ phi.T + gamma * np.eye(6)
    codes = np.diag(w_x**2) @ phi.T @ np.linalg.solve(sigma, X)
    assert_allclose(model.coefficients(x).detach(), codes.T, atol=1e-9)
    assert_allclose(model.relevance, w_x**2, rtol=1e-12)


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
