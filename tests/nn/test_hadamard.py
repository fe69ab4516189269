"""The Hadamard gap is what a diagonal posterior costs: closed forms and optimised posteriors."""

import json
import math
import warnings

import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import (
    VAE,
    DiagonalGaussian,
    DictionaryVAE,
    FullGaussian,
    collapse_report,
    hadamard_gap,
    negative_log_likelihood,
)


def linear(d=7, k=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    layer = torch.nn.Linear(k, d, dtype=torch.float64)
    layer.weight.data = torch.randn(d, k, generator=rng, dtype=torch.float64)
    return layer


def codes(n=6, k=4, seed=1, dtype=torch.float64):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def curved(k=2, d=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    inner, outer = (
        torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((k, 8), (8, d))
    )
    return lambda z: torch.tanh(z @ inner / math.sqrt(k)) @ outer


def bound(posterior, squared_error, d, noise):
    """Return −ELBO from the expected squared error, per sample."""
    variance = torch.tensor(noise, dtype=torch.float64)
    return negative_log_likelihood(squared_error, d, variance) + posterior.kl()


@pytest.mark.parametrize("noise", [1e-3, 0.3, 5.0])
def test_it_is_the_difference_of_the_best_bounds_of_a_linear_decoder(noise):
    decoder = linear()
    weight = decoder.weight.detach()
    d, k = weight.shape
    x = torch.randn(5, d, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    precision = torch.eye(k, dtype=torch.float64) + weight.T @ weight / noise
    mean = (x - decoder.bias.detach()) @ weight @ torch.linalg.inv(precision) / noise
    rest = torch.sum((x - decoder(mean).detach()) ** 2, 1)

    def full(factor):
        return bound(FullGaussian(mean, factor), rest + torch.sum((weight @ factor) ** 2), d, noise)

    def diagonal(scale):
        added = torch.sum(scale**2 * torch.sum(weight**2, 0))
        return bound(DiagonalGaussian(mean, scale.expand(mean.shape)), rest + added, d, noise)

    best_full = full(torch.linalg.cholesky(torch.linalg.inv(precision)))
    covariance = weight @ weight.T + noise * torch.eye(d, dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(decoder.bias.detach(), covariance)
    assert_allclose(best_full, -marginal.log_prob(x), rtol=1e-10)
    scale = torch.rsqrt(torch.diagonal(precision))
    gap = hadamard_gap(decoder, codes=mean, noise_variance=noise)
    assert_allclose(diagonal(scale) - best_full, gap.samples, rtol=1e-8)
    assert gap.value > 0.01
    for factor in (0.97, 1.03):  # no other diagonal covariance is better
        assert (diagonal(scale * factor) > diagonal(scale)).all()


def test_orthogonal_columns_cost_nothing_and_a_rotation_makes_them_orthogonal():
    decoder = linear()
    before = hadamard_gap(decoder, codes=codes(), noise_variance=0.1)
    turn = torch.linalg.svd(decoder.weight.detach()).Vh.T
    decoder.weight.data = decoder.weight.detach() @ turn
    after = hadamard_gap(decoder, codes=codes() @ turn, noise_variance=0.1)
    assert before.value > 0.1
    assert_allclose(after.samples, 0.0, atol=1e-12)


@pytest.mark.parametrize("jacobian", ["forward", "reverse"])
def test_exact_jacobians_are_those_of_autograd(jacobian):
    decode, z = curved(3, 5), codes(4, 3)
    gap = hadamard_gap(decode, codes=z, noise_variance=0.02, jacobian=jacobian)
    for row, found in zip(z, gap.samples, strict=True):
        exact = torch.autograd.functional.jacobian(lambda one: decode(one[None])[0], row)
        gram = exact.T @ exact / 0.02
        expected = (torch.log1p(torch.diagonal(gram)).sum() - torch.logdet(torch.eye(3) + gram)) / 2
        assert_allclose(found, expected, rtol=1e-9)
    assert_allclose(gap.value, gap.samples.mean())
    assert_allclose(gap.standard_error, gap.samples.std(ddof=1) / 2)


def test_large_precisions_do_not_cancel():
    angle = 1e-3
    columns = torch.tensor([[1.0, math.cos(angle)], [0.0, math.sin(angle)]], dtype=torch.float64)
    gap = hadamard_gap(lambda z: z @ columns.T, codes=codes(1, 2), noise_variance=1e-15)
    assert_allclose(gap.value, -math.log(math.sin(angle)), rtol=1e-6)


class Plain(torch.nn.Module):
    """A VAE that does not use our classes: `encode` returns mean and log-variance."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(6, 4), torch.nn.Linear(2, 6)
        self.noise_variance = 0.1

    def encode(self, x):
        return self.encoder(x).chunk(2, -1)

    def decode(self, z):
        return self.decoder(z)


def test_models_of_ours_and_of_others():
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
    plain = Plain().train()
    gap = hadamard_gap(plain, x)
    direct = hadamard_gap(plain.decoder, codes=plain.encode(x)[0].detach(), noise_variance=0.1)
    assert_allclose(gap.samples, direct.samples)
    assert plain.training
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = VAE.resnet((1, 8, 8), 3, width=8, features=8, noise_variance=1e-3)
    exact, reverse = (hadamard_gap(model, images, jacobian=kind) for kind in ("forward", "reverse"))
    assert_allclose(exact.samples, reverse.samples, rtol=1e-4)
    assert exact.noise_variance == pytest.approx(1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hadamard_gap(model, images)


def test_the_report_answers_whether_a_full_covariance_would_help():
    dictionary = torch.tensor([[1.0, 0.8], [0.0, 0.6]])
    model = DictionaryVAE(dictionary, noise_variance=0.01)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    report = collapse_report(model, x, gap_samples=8)
    gap = hadamard_gap(model, x[:8])
    assert_allclose(report.gap.samples, gap.samples)
    assert f"{gap.value:.3g}" in str(report)
    assert str(gap).startswith(f"Hadamard gap {gap.value:.3g} ± ")
    assert str(hadamard_gap(model, x[:1])).endswith(" nats (1 sample, γ = 0.01)")
    assert "Would a full covariance help?" in report._repr_html_()
    assert json.loads(json.dumps(report.to_dict()))["gap"]["n_samples"] == 8
    assert collapse_report(model, x).gap is None


class Encoding(torch.nn.Module):
    """A model whose posterior mean is its input; what `encode` returns is chosen."""

    noise_variance = 0.1

    def __init__(self, returned):
        super().__init__()
        self.layer, self.returned = linear(), returned
        torch.nn.init.zeros_(self.layer.bias)

    def encode(self, x):
        return self.returned(x)

    def decode(self, z):
        return torch.tanh(self.layer(z))


def test_encoders_may_return_the_mean_alone():
    z = codes()
    expected = hadamard_gap(Encoding(lambda x: (x, x)), codes=z).samples
    assert expected.std() > 0
    for returned in (lambda x: x, lambda x: (x, x), lambda x: [x, x]):
        assert_allclose(hadamard_gap(Encoding(returned), z).samples, expected)
    for returned in (lambda x: {"mean": x}, lambda _: (), lambda x: x[0]):
        with pytest.raises(ValueError, match=r"the posterior mean of model\.encode"):
            hadamard_gap(Encoding(returned), z)


def test_a_decoder_without_forward_mode_is_told_what_to_do():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(z):
            return z / 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2

    with pytest.raises(ValueError, match="jacobian='reverse'"):
        hadamard_gap(Halved.apply, codes=codes(), noise_variance=1.0)
    halved = hadamard_gap(Halved.apply, codes=codes(), noise_variance=1.0, jacobian="reverse")
    assert halved.value == 0.0
