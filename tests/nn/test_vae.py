"""The VAE: its evidence, its noise variance, its linear case against probabilistic PCA."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae import SecondMoment
from lucidae.linear.objectives import LinearVAE
from lucidae.linear.spectrum import spectrum_of_moment
from lucidae.nn import VAE, GaussianHead, GeometricSchedule, NoiseVariance, collapse_report

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


def test_arms_of_one_seed_share_all_but_the_covariance():
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
    spectrum = spectrum_of_moment(SecondMoment.of(X))
    optimum = LinearVAE(noise=0.2).minimum(spectrum, 3)
    model.eval()
    with torch.no_grad():
        reached = np.mean([model(x).loss.item() for _ in range(40)])
    assert abs(reached - optimum) < 0.02 * abs(optimum)
    report = collapse_report(model, x)
    assert report.n_active == report.linear_active == 2
    assert sorted(report.justified, key=str) == [None, None, True]


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_round_trip_gives_the_same_evidence(kind):
    model, other = small(kind), small(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    model(torch.rand(4, 1, 8, 8))
    other.load_state_dict(model.state_dict())
    x = torch.rand(3, 1, 8, 8)
    losses = []
    for each in (model.eval(), other.eval()):
        torch.manual_seed(3)
        losses.append(each(x).loss.item())
    assert losses[0] == losses[1]
    assert other.noise_variance == model.noise_variance != 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_trains_under_autocast_and_compiled(kind):
    model = small(kind)
    compiled = torch.compile(model, backend="aot_eager")
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


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: VAE.resnet((28, 28), 2), "channels"),
        (lambda: VAE.resnet((1, 0, 8), 2), "shape"),
        (lambda: VAE.resnet((1, 8, 8), 0), "latent_dim"),
        (lambda: small()(torch.rand(2, 1, 7, 8)), "images have shape"),
        (lambda: VAE(None, torch.nn.Linear(2, 2), None), "GaussianHead"),
        (lambda: NoiseVariance("guess"), "'guess'"),
        (lambda: NoiseVariance(0.0), "above 0"),
        (lambda: NoiseVariance(float("nan")), "above 0"),
        (lambda: GeometricSchedule(0.0, 1.0, 3), "start"),
        (lambda: GeometricSchedule(1.0, 1.0, 0), "steps"),
    ],
)
def test_bad_input_is_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()
