"""Nested dropout, prefix losses, and the ordering of a trained bottleneck."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.metrics import axis_alignment_distance
from lucidae.nn import NestedDropout, order_dimensions, prefix_losses

PRIORS = ["geometric", "uniform", [0.1, 0.2, 0.3, 0.4]]


def linear_model(dtype=torch.float64, m=6, k=4, n=50, bias=False):
    torch.manual_seed(3)
    encoder = torch.nn.Linear(m, k, bias=False, dtype=dtype)
    decoder = torch.nn.Linear(k, m, bias=bias, dtype=dtype)
    return encoder, decoder, torch.randn(n, m, dtype=dtype)


@pytest.mark.parametrize("draw", ["sample", "batch"])
@pytest.mark.parametrize("prior", PRIORS)
def test_every_mask_is_a_prefix_drawn_from_the_prior(prior, draw):
    torch.manual_seed(0)
    layer = NestedDropout(4, prior, draw=draw)
    masks = torch.cat([layer(torch.ones(40, 4)) for _ in range(500)])
    assert torch.equal(masks, torch.cummin(masks, 1).values)
    assert bool((masks[:, 0] == 1).all())
    count = 500 if draw == "batch" else len(masks)
    prior = layer.prior.double().numpy()
    kept = np.minimum(np.cumsum(prior[::-1])[::-1], 1.0)  # a latent is kept by longer prefixes
    lengths = layer(torch.ones(200, 4)).sum(1)
    assert len(lengths.unique()) == (1 if draw == "batch" else 4)
    error = np.sqrt(kept * (1 - kept) / count) + 1e-12
    assert_allclose(masks.mean(0), kept, atol=5 * error.max())


def test_evaluation_keeps_everything_or_the_asked_prefix():
    layer = NestedDropout(4).eval()
    codes = torch.randn(3, 4)
    assert torch.equal(layer(codes), codes)
    layer.prefix = 3
    assert torch.equal(layer(codes), codes * torch.tensor([1.0, 1, 1, 0]))
    assert torch.equal(layer.train()(codes, prefix=1), codes * torch.tensor([1.0, 0, 0, 0]))


def test_channels_of_images_are_dropped_whole():
    torch.manual_seed(0)
    masked = NestedDropout(5, "uniform", axis=1)(torch.ones(30, 5, 2, 3))
    assert bool((masked == masked[:, :, :1, :1]).all())
    assert torch.equal(masked, torch.cummin(masked, 1).values)


@pytest.mark.parametrize("bias", [False, True])
def test_the_shortcut_for_linear_decoders_equals_decoding_every_prefix(bias):
    encoder, decoder, x = linear_model(bias=bias)
    codes = encoder(x)
    plain = prefix_losses(codes, lambda z: decoder(z), x)
    assert_allclose(prefix_losses(codes, decoder, x).detach(), plain.detach(), rtol=1e-12)
    assert_allclose(
        prefix_losses(codes, decoder, x, prefixes=[4, 2]).detach(), plain.detach()[[3, 1]]
    )
    masked = [
        (x - decoder(NestedDropout(4)(codes, prefix=b))).square().sum(1).mean() for b in (1, 3)
    ]
    assert_allclose(plain.detach()[[0, 2]], [value.item() for value in masked], rtol=1e-12)


def test_any_decoder_and_any_loss_without_reduction():
    torch.manual_seed(0)
    decoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    codes, target = torch.randn(10, 4), torch.rand(10, 3)
    losses = prefix_losses(
        codes,
        decoder,
        target,
        loss=lambda a, b: torch.nn.functional.binary_cross_entropy_with_logits(
            a, b, reduction="none"
        ),
    )
    one = torch.nn.functional.binary_cross_entropy_with_logits(
        decoder(codes * torch.tensor([1.0, 1, 0, 0])), target, reduction="sum"
    )
    assert_allclose(losses[1].item(), one.item() / 10, rtol=1e-5)


def test_gradients_pass_gradcheck():
    _, decoder, x = linear_model(n=5)
    codes = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    layer = NestedDropout(4, "uniform").double()

    def masked(z):
        torch.manual_seed(1)
        return layer(z)

    assert torch.autograd.gradcheck(masked, codes)
    assert torch.autograd.gradcheck(lambda z: prefix_losses(z, decoder, x), codes)
    assert torch.autograd.gradcheck(lambda z: prefix_losses(z, decoder.forward, x), codes)


def test_compiles_and_keeps_its_prior_in_the_state():
    layer = NestedDropout(4, [0.1, 0.2, 0.3, 0.4])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    codes = torch.ones(100, 4)
    torch.manual_seed(5)
    eager = layer(codes)
    torch.manual_seed(5)
    assert torch.equal(compiled(codes), eager)
    other = NestedDropout(4)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.prior, layer.prior)


def test_autocast_keeps_the_losses_in_single_precision():
    encoder, decoder, x = linear_model(torch.float32)
    exact = prefix_losses(encoder(x), decoder, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = prefix_losses(encoder(x), decoder, x)
    assert losses.dtype == torch.float32
    assert_allclose(losses.detach(), exact.detach(), rtol=0.05)


def layers(m_in, k, m_out, seed=0, bias=True, dtype=torch.float64):
    torch.manual_seed(seed)
    return (
        torch.nn.Linear(m_in, k, bias=bias, dtype=dtype),
        torch.nn.Linear(k, m_out, bias=bias, dtype=dtype),
    )


@given(
    m_in=st.integers(1, 7),
    k=st.integers(1, 6),
    m_out=st.integers(1, 7),
    seed=st.integers(0, 99),
    bias=st.booleans(),
)
def test_function_unchanged_codes_uncorrelated_variances_descending(m_in, k, m_out, seed, bias):
    encoder, decoder = layers(m_in, k, m_out, seed, bias)
    x, fresh = torch.randn(30, m_in).double() + 3, 10 * torch.randn(5, m_in).double()
    with torch.no_grad():
        before = decoder(encoder(fresh))
        total = torch.cov(decoder(encoder(x)).T, correction=0).reshape(m_out, m_out).trace()
        variances = order_dimensions(encoder, decoder, x)
        assert_allclose(decoder(encoder(fresh)), before, atol=1e-9)
        moment = torch.cov(encoder(x).T, correction=0).reshape(k, k)
    assert_allclose(moment, torch.diag(variances), atol=1e-9)
    assert bool((variances[:-1] >= variances[1:] - 1e-12).all())
    assert_allclose(variances.sum(), total, rtol=1e-9)
    alive = variances > 1e-12
    gram = (decoder.weight.T @ decoder.weight).detach()[alive][:, alive]
    assert_allclose(gram, torch.eye(int(alive.sum())), atol=1e-9)


@given(m_in=st.integers(1, 6), k=st.integers(1, 6), m_out=st.integers(1, 6), seed=st.integers(0, 9))
def test_centred_codes_have_mean_zero_and_the_function_is_the_same(m_in, k, m_out, seed):
    encoder, decoder = layers(m_in, k, m_out, seed)
    x, fresh = torch.randn(30, m_in).double() + 3, 10 * torch.randn(5, m_in).double()
    with torch.no_grad():
        before = decoder(encoder(fresh))
        mean = decoder(encoder(x)).mean(0)
        order_dimensions(encoder, decoder, x, center=True)
        assert_allclose(decoder(encoder(fresh)), before, atol=1e-9)
        assert_allclose(encoder(x).mean(0), 0.0, atol=1e-9)
        assert_allclose(decoder(torch.zeros(1, k).double())[0], mean, atol=1e-9)


def test_a_minimum_of_the_plain_loss_becomes_the_principal_components():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 8)) * np.linspace(3, 0.5, 8)
    X -= X.mean(0)
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    top = vectors[:, ::-1][:, :3]
    mixed = rng.standard_normal((3, 3))
    encoder, decoder = layers(8, 3, 8, bias=False)
    encoder.weight.data = torch.tensor(mixed @ top.T)
    decoder.weight.data = torch.tensor(top @ np.linalg.inv(mixed))
    assert axis_alignment_distance(decoder.weight, top) > 0.05
    variances = order_dimensions(encoder, decoder, torch.tensor(X))
    assert axis_alignment_distance(decoder.weight, top) < 1e-12
    assert_allclose(variances, values[::-1][:3], rtol=1e-10)
    assert_allclose(encoder.weight.detach(), decoder.weight.detach().T, atol=1e-10)
