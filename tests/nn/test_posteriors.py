"""Posteriors and the layer that predicts them: Monte Carlo, torch's own formulas, extremes."""

import math

import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import DiagonalGaussian, FullGaussian, GaussianHead, LowRankGaussian

KINDS = ["full", "diagonal", "low_rank"]
STANDARD = torch.distributions.MultivariateNormal


def posterior(kind, batch=4, k=3, seed=0):
    torch.manual_seed(seed)
    mean = torch.randn(batch, k, dtype=torch.float64)
    scale = 0.2 + torch.rand(batch, k, dtype=torch.float64)
    if kind == "diagonal":
        return DiagonalGaussian(mean, scale)
    if kind == "low_rank":
        return LowRankGaussian(mean, scale, torch.randn(batch, k, 2, dtype=torch.float64))
    below = torch.randn(batch, k, k, dtype=torch.float64).tril(-1)
    return FullGaussian(mean, below + torch.diag_embed(scale))


def prior(k=3):
    return STANDARD(torch.zeros(k).double(), torch.eye(k).double())


@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_kl_equal_those_of_torch(kind):
    q = posterior(kind)
    reference = STANDARD(q.mean, q.covariance)
    assert_allclose(q.variance, torch.diagonal(q.covariance, dim1=-2, dim2=-1), rtol=1e-12)
    assert_allclose(q.kl(), torch.distributions.kl_divergence(reference, prior()), rtol=1e-10)
    marginal = torch.distributions.Normal(q.mean, q.variance.sqrt())
    unit = torch.distributions.Normal(torch.zeros(()).double(), torch.ones(()).double())
    assert_allclose(q.marginal_kl(), torch.distributions.kl_divergence(marginal, unit), rtol=1e-10)
    assert bool((q.kl() >= q.marginal_kl().sum(-1) - 1e-9).all())


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments_and_the_kl_by_monte_carlo(kind):
    q = posterior(kind)
    count = 40_000
    samples = q.rsample((count,))
    assert samples.shape == (count, 4, 3)
    error = 5 * q.variance.sqrt() / math.sqrt(count)
    assert bool(((samples.mean(0) - q.mean).abs() < error).all())
    for index in range(4):
        sample = torch.cov(samples[:, index].T)
        assert_allclose(sample, q.covariance[index], atol=0.05 * q.variance[index].max().item())
    ratio = STANDARD(q.mean, q.covariance).log_prob(samples) - prior().log_prob(samples)
    spread = 5 * ratio.std(0) / math.sqrt(count)
    assert bool(((ratio.mean(0) - q.kl()).abs() < spread).all())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_kl_and_samples_pass_gradcheck(kind):
    parts = [part.clone().requires_grad_() for part in posterior(kind, batch=2)]
    build = type(posterior(kind))

    def triangular(*given):
        return build(given[0], given[1].tril()) if kind == "full" else build(*given)

    def sample(*given):
        torch.manual_seed(1)
        return triangular(*given).rsample((2,))

    assert torch.autograd.gradcheck(lambda *given: triangular(*given).kl(), parts)
    assert torch.autograd.gradcheck(sample, parts)
    assert torch.autograd.gradcheck(lambda *given: triangular(*given).marginal_kl(), parts)


@pytest.mark.parametrize("kind", KINDS)
def test_head_predicts_posteriors_that_start_near_the_prior(kind):
    torch.manual_seed(0)
    head = GaussianHead(16, 5, kind)
    q = head(torch.randn(7, 16))
    assert q.mean.shape == q.variance.shape == (7, 5)
    assert q.covariance.shape == (7, 5, 5)
    assert q.kl().shape == (7,)
    assert q.rsample().shape == (7, 5)
    assert_allclose(q.covariance.detach(), torch.eye(5).expand(7, 5, 5), atol=0.06)
    assert head(torch.randn(2, 3, 16)).kl().shape == (2, 3)
    single = GaussianHead(3, 1, kind)(torch.randn(6, 3))
    assert single.covariance.shape == (6, 1, 1)
    assert bool((single.kl() >= 0).all())


@pytest.mark.parametrize("kind", ["full", "low_rank"])
def test_latents_are_independent_without_coupling(kind):
    torch.manual_seed(0)
    head = GaussianHead(8, 4, kind)
    torch.nn.init.normal_(head.factor.weight)
    features = torch.randn(5, 8)
    coupled = head(features)
    head.coupling.fill_(0.0)
    q = head(features)
    assert torch.equal(q.covariance, torch.diag_embed(q.variance))
    assert not torch.equal(coupled.covariance, torch.diag_embed(coupled.variance))
    other = GaussianHead(8, 4, kind)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(features).covariance, q.covariance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e4, 1e-4])
def test_extreme_features_stay_finite_in_single_precision(kind, size):
    torch.manual_seed(0)
    head = GaussianHead(8, 6, kind)
    features = (size * torch.randn(20, 8)).requires_grad_()
    q = head(features)
    loss = q.kl().sum() + q.rsample().square().sum() + q.marginal_kl().sum()
    loss.backward()
    assert math.isfinite(loss.item())
    assert bool(torch.isfinite(features.grad).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in head.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_features_give_a_posterior_in_single_precision(kind):
    torch.manual_seed(0)
    head = GaussianHead(8, 4, kind)
    features = torch.randn(5, 8)
    exact = head(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = head(features)
        parts = (q.mean, q.variance, q.covariance, q.kl(), q.rsample(), q.marginal_kl())
    assert all(part.dtype == torch.float32 for part in parts)
    assert_allclose(q.kl().detach(), exact.kl().detach(), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_whole_and_survives_the_state_dict(kind):
    head, other = GaussianHead(8, 4, kind), GaussianHead(8, 4, kind)
    other.load_state_dict(head.state_dict())
    features = torch.randn(5, 8)

    def loss(module):
        return lambda x: module(x).kl().sum() + module(x).rsample().sum()

    torch.manual_seed(2)
    compiled = torch.compile(loss(head), backend="aot_eager", fullgraph=True)(features)
    torch.manual_seed(2)
    assert_allclose(compiled.item(), loss(other)(features).item(), rtol=1e-6)
