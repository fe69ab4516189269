"""PrefixLoss: the same gradients as the explicit sum, unbiased sampling, and where it must run."""

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

F = torch.nn.functional

from lucidae.nn import NestedDropout, PrefixLoss

DIMS = (2, 5, 8)


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    encoder = torch.nn.Sequential(
        torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 8)
    ).to(dtype)
    head = torch.nn.Linear(8, 3).to(dtype)
    x, other = torch.randn(12, 6, dtype=dtype), torch.randn(12, 6, dtype=dtype)
    return encoder, head, x, other, torch.arange(12) % 3


def contrastive(anchor, positive):
    """InfoNCE with in-batch negatives on cosines."""
    logits = F.normalize(anchor, dim=-1) @ F.normalize(positive, dim=-1).mT / 0.1
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def distillation(student, teacher):
    """Similarity structure of a teacher whose embeddings are not truncated."""
    return (student @ student.mT - teacher @ teacher.mT).square().mean()


class Classifier(torch.nn.Module):
    """A loss with parameters: a linear head on the embedding."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, embedding, labels):
        return F.cross_entropy(self.head(embedding), labels)


def gradients(modules, value):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.autograd.grad(value, parameters, allow_unused=True)


def assert_same_gradients(first, second, tolerance=1e-12):
    for one, other in zip(first, second, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("truncate", ["mask", "slice"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_contrastive_loss_has_the_gradients_of_the_explicit_sum(truncate, recompute):
    encoder, _, x, other, _ = network()
    weights = [0.3, 1.0, 2.5]
    loss = PrefixLoss(
        contrastive, DIMS, weights=weights, embeddings=2, truncate=truncate, recompute=recompute
    )
    value = loss(encoder(x), encoder(other))
    explicit = sum(
        w * contrastive(encoder(x)[:, :b], encoder(other)[:, :b])
        for w, b in zip(weights, DIMS, strict=True)
    )
    assert_allclose(value.item(), explicit.item(), rtol=1e-13)
    assert_same_gradients(gradients([encoder], value), gradients([encoder], explicit))
    for b in DIMS:
        one = contrastive(encoder(x)[:, :b], encoder(other)[:, :b]).item()
        assert_allclose(loss.last[f"prefix_{b}"], one, rtol=1e-13)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_head_uses_its_own_first_columns(recompute):
    encoder, head, x, _, labels = network()
    loss = PrefixLoss(Classifier(head), DIMS, recompute=recompute)
    assert head.weight in set(loss.parameters())
    explicit = sum(
        F.cross_entropy(encoder(x)[:, :b] @ head.weight[:, :b].T + head.bias, labels) for b in DIMS
    )
    value = loss(encoder(x), labels)
    both = [encoder, head]
    assert_same_gradients(gradients(both, value), gradients(both, explicit))


def test_only_the_named_arguments_are_truncated():
    encoder, _, x, other, _ = network()
    teacher = torch.randn(12, 20, dtype=torch.float64)
    value = PrefixLoss(distillation, [3])(encoder(x), teacher)
    assert_allclose(value.item(), distillation(encoder(x)[:, :3], teacher).item(), rtol=1e-13)
    named = PrefixLoss(
        lambda *, query, documents, scale: scale * contrastive(query, documents[0]),
        [3],
        embeddings=("query", "documents"),
    )
    found = named(query=encoder(x), documents=[encoder(other)], scale=2.0)
    expected = 2 * contrastive(encoder(x)[:, :3], encoder(other)[:, :3])
    assert_allclose(found.item(), expected.item(), rtol=1e-13)


@pytest.mark.parametrize("truncate", ["mask", "slice"])
def test_normalised_prefixes_are_unit_vectors(truncate):
    encoder, _, x, _, _ = network()
    seen = []

    def loss(z):
        seen.append(z)
        return z.sum()

    PrefixLoss(loss, DIMS, normalize=True, truncate=truncate)(encoder(x))
    for z, b in zip(seen, DIMS, strict=True):
        assert_allclose(torch.linalg.vector_norm(z, dim=1).detach(), 1.0, rtol=1e-12)
        assert z.shape[1] == (b if truncate == "slice" else 8)


def test_channels_of_images_are_truncated_on_their_axis():
    torch.manual_seed(0)
    images = torch.randn(2, 4, 3, 3)
    value = PrefixLoss(lambda z: z.square().sum(), [3], axis=1)(images)
    assert_allclose(value.item(), images[:, :3].square().sum().item(), rtol=1e-6)


@pytest.mark.covering
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("prior", ["uniform", "geometric", [0.05, 0, 0.15, 0.2, 0.2, 0, 0.3, 0.1]])
def test_sampled_prefixes_are_unbiased_for_the_expected_loss(prior, samples):
    torch.manual_seed(0)
    z = torch.randn(4, 8, dtype=torch.float64)
    weights = np.linspace(0.5, 2, 8)
    loss = PrefixLoss(lambda e: e.square().sum(), 8, prior=prior, weights=weights, samples=samples)
    exact = loss.eval()(z).item()
    squares = np.cumsum((z**2).sum(0).numpy())
    probabilities = NestedDropout(8, prior).prior.double().numpy()
    assert_allclose(exact, np.sum(probabilities * weights * squares), rtol=1e-6)
    assert loss.calls == 0
    loss.train()
    values = np.array([loss(z).item() for _ in range(1500)])
    assert abs(values.mean() - exact) < 5 * values.std() / len(values) ** 0.5
    if samples > 1:
        alone = PrefixLoss(loss.loss, 8, prior=prior, weights=weights)
        assert values.std() < np.std([alone(z).item() for _ in range(300)]) / samples**0.5


def lengths(loss, count=20):
    z = torch.ones(1, 8)
    return [loss(z).item() for _ in range(count)]


def test_lengths_depend_on_the_seed_alone_and_continue_after_loading():
    def make(seed=0):
        return PrefixLoss(torch.sum, 8, prior="uniform", seed=seed)

    torch.manual_seed(1)
    first = make()
    before = torch.get_rng_state()
    drawn = lengths(first)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert lengths(make()) == drawn
    assert lengths(make(5)) != drawn
    half = make()
    lengths(half, 10)
    resumed = make()
    resumed.load_state_dict(half.state_dict())
    assert lengths(resumed, 10) == drawn[10:]
    free = make(None)
    torch.manual_seed(3)
    once = lengths(free)
    torch.manual_seed(3)
    assert lengths(free) == once


# The compiler looks at the gradient of the inputs of a graph, which here are outputs of a network.
NON_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@NON_LEAF
@pytest.mark.parametrize("prior", [None, "uniform"])
def test_the_compiled_loss_is_the_same(prior):
    torch.compiler.reset()
    encoder, _, x, other, _ = network()
    dims = DIMS if prior is None else 8
    loss = PrefixLoss(contrastive, dims, prior=prior, embeddings=2)
    compiled = torch.compile(copy.deepcopy(loss), backend="aot_eager", fullgraph=True)
    for _ in range(4):
        eager, found = (one(encoder(x), encoder(other)) for one in (loss, compiled))
        assert_allclose(found.item(), eager.item(), rtol=1e-12)
        assert_same_gradients(gradients([encoder], found), gradients([encoder], eager))
        assert compiled.last == pytest.approx(loss.last)


def test_autocast_keeps_the_sum_in_single_precision():
    encoder, _, x, other, _ = network(dtype=torch.float32)
    loss = PrefixLoss(contrastive, DIMS, embeddings=2, normalize=True)
    exact = loss(encoder(x), encoder(other))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(encoder(x), encoder(other))
    assert value.dtype == torch.float32
    assert_allclose(value.item(), exact.item(), rtol=0.05)
    value.backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


def test_weights_and_prior_keep_their_precision_in_half_precision():
    loss = PrefixLoss(torch.sum, 300, prior="uniform", weights=np.linspace(0.1, 1, 300))
    before = loss.weights.clone(), loss.prior.clone()
    loss.bfloat16()
    assert torch.equal(loss.weights, before[0])
    assert torch.equal(loss.prior, before[1])
    assert list(loss.state_dict()) == ["calls"]
