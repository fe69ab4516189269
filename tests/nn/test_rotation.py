"""The optimizer that rotates: step by step the rule of the linear family."""

import copy
import io

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.metrics import axis_alignment_distance
from lucidae.nn import RotationAugmented


def rows(n=60, m=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, m)) * np.linspace(2.0, 0.5, m)
    return X - X.mean(0)


def model(m=6, k=3, seed=1, bias=False, dtype=torch.float64):
    torch.manual_seed(seed)
    encoder = torch.nn.Linear(m, k, bias=bias, dtype=dtype)
    decoder = torch.nn.Linear(k, m, bias=bias, dtype=dtype)
    return encoder, decoder


def sgd(encoder, decoder, rate=0.01, **settings):
    return torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=rate, **settings)


def train(optimizer, encoder, decoder, x, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (x - decoder(encoder(x))).square().sum(1).mean().backward()
        optimizer.step()


def test_tied_training_ends_at_the_ordered_principal_components():
    X = rows()
    encoder, decoder = model()
    optimizer = RotationAugmented(
        sgd(encoder, decoder, 0.02, momentum=0.9, nesterov=True), encoder, decoder, tied=True
    )
    train(optimizer, encoder, decoder, torch.tensor(X), 800)
    vectors = np.linalg.eigh(X.T @ X)[1][:, ::-1][:, :3]
    assert axis_alignment_distance(decoder.weight, vectors) < 1e-6
    variances = np.var(X @ encoder.weight.detach().numpy().T, axis=0)
    assert np.all(np.diff(variances) < 0)


@pytest.mark.parametrize("bias", [True, False])
def test_the_rotation_leaves_the_function_alone_to_first_order(bias):
    """Halving the step quarters what the rotation changes, whatever surrounds the bottleneck."""
    x = torch.tensor(rows()) + 1.0
    changes = []
    for rate in (1e-3, 5e-4):
        encoder, decoder = model(bias=bias)
        optimizer = RotationAugmented(sgd(encoder, decoder, rate), encoder, decoder)
        before = decoder(encoder(x)).detach()
        (0.0 * decoder(encoder(x)).sum()).backward()
        optimizer.step()
        changes.append(torch.linalg.norm(decoder(encoder(x)).detach() - before).item())
    assert changes[0] > 0
    assert 3.8 < changes[0] / changes[1] < 4.2


def test_state_and_schedulers_work_through_the_wrapper():
    x = torch.tensor(rows())

    def make():
        encoder, decoder = model()
        inner = sgd(encoder, decoder, 0.02, momentum=0.9)
        return encoder, decoder, RotationAugmented(inner, encoder, decoder, tied=True)

    encoder, decoder, optimizer = make()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    for _ in range(10):
        train(optimizer, encoder, decoder, x, 1)
        schedule.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    again = make()
    again[0].load_state_dict(encoder.state_dict())
    again[1].load_state_dict(decoder.state_dict())
    again[2].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, encoder, decoder, x, 3)
    train(again[2], again[0], again[1], x, 3)
    assert torch.equal(again[0].weight, encoder.weight)


def test_a_step_needs_a_gradient_through_the_encoder():
    encoder, decoder = model()
    optimizer = RotationAugmented(sgd(encoder, decoder), encoder, decoder)
    assert not optimizer.tied
    x = torch.tensor(rows())
    train(optimizer, encoder, decoder, x, 1)
    encoder.eval()
    encoder(x)
    encoder.train()
    with torch.no_grad():
        encoder(x)
    with pytest.raises(RuntimeError, match="no gradient went through the encoder"):
        optimizer.step()
    encoder(x)
    with pytest.raises(RuntimeError, match="no gradient"):
        optimizer.step()
    inner = optimizer.detach()
    assert isinstance(inner, torch.optim.SGD)
    assert not encoder._forward_hooks
    loss_of(encoder, decoder, x).backward()
    with pytest.raises(RuntimeError, match="no gradient went through"):
        optimizer.step()
    decoder.weight.data = encoder.weight.data.T.clone()  # what starts tied stays tied
    assert RotationAugmented(sgd(encoder, decoder), encoder, decoder).tied


def test_half_precision_codes_are_rotated_in_full():
    encoder, decoder = model(dtype=torch.float32)
    optimizer = RotationAugmented(sgd(encoder, decoder), encoder, decoder)
    x = torch.tensor(rows(), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (x - decoder(encoder(x))).square().sum(1).mean()
    loss.backward()
    optimizer.step()
    assert encoder.weight.dtype == torch.float32
    assert bool(torch.isfinite(encoder.weight).all())


def loss_of(encoder, decoder, x):
    return (x - decoder(encoder(x))).square().sum(1).mean()


def reference_steps(parts_of_steps, tied, centered=False, rate=0.02, momentum=0.9):
    """Return the weights after gradient steps with rotation, written out in NumPy.

    Each step has parts, whose losses are added; the codes of all parts are one sample.
    """
    encoder, decoder = model()
    W1, W2 = encoder.weight.detach().numpy().copy(), decoder.weight.detach().numpy().copy()
    W2 = W1.T.copy() if tied else W2
    moved = [np.zeros_like(W1), np.zeros_like(W2)]
    for parts in parts_of_steps:
        g1, g2 = np.zeros_like(W1), np.zeros_like(W2)
        for x in parts:
            z = x @ W1.T
            residual = 2 * (z @ W2.T - x) / len(x)
            g1, g2 = g1 + (residual @ W2).T @ x, g2 + residual.T @ z
        codes = np.vstack(parts) @ W1.T
        codes = codes - codes.mean(0) if centered else codes
        moment = codes.T @ codes / len(codes)
        A = (np.triu(moment, 1) - np.tril(moment, -1)) / 2
        if tied:
            g1 = (g1 + g2.T) / 2
            g2 = g1.T
        directions = g1 - A @ W1, g2 + W2 @ A
        moved = [momentum * m + g for m, g in zip(moved, directions, strict=True)]
        W1, W2 = W1 - rate * moved[0], W2 - rate * moved[1]
    return W1, W2


def forward_first(optimizer, encoder, decoder, x):
    loss = loss_of(encoder, decoder, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def zero_first(optimizer, encoder, decoder, x):
    optimizer.zero_grad()
    loss_of(encoder, decoder, x).backward()
    optimizer.step()


def zeros_instead_of_none(optimizer, encoder, decoder, x):
    loss = loss_of(encoder, decoder, x)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()


def cleared_by_the_model(optimizer, encoder, decoder, x):
    loss_of(encoder, decoder, 3 * x + 1).backward()  # given up, with its codes
    encoder.zero_grad()
    decoder.zero_grad()
    loss_of(encoder, decoder, x).backward()
    optimizer.step()
    encoder.zero_grad()
    decoder.zero_grad()


def closure_of_lightning(optimizer, encoder, decoder, x):
    def closure():
        loss = loss_of(encoder, decoder, x)
        optimizer.zero_grad()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0


def evaluations_between(optimizer, encoder, decoder, x):
    loss = loss_of(encoder, decoder, x)
    with torch.no_grad():
        encoder(5 * x + 2)
    optimizer.zero_grad()
    loss_of(encoder, decoder, 4 * x - 1)  # its gradient is never asked for
    encoder.eval()
    encoder(7 * x)
    encoder.train()
    loss.backward()
    with torch.inference_mode():
        encoder(x + 1)
    optimizer.step()


def in_evaluation_mode(optimizer, encoder, decoder, x):
    encoder.eval()
    forward_first(optimizer, encoder, decoder, x)


def graph_used_twice(optimizer, encoder, decoder, x):
    loss = 0.5 * loss_of(encoder, decoder, x)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()


def gradient_scaler(optimizer, encoder, decoder, x):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    loss = loss_of(encoder, decoder, x)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1e9)
    scaler.step(optimizer)
    scaler.update()


def step_skipped_by_the_scaler(optimizer, encoder, decoder, x):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(loss_of(encoder, decoder, x) * 1e300 * 1e300).backward()
    scaler.step(optimizer)  # infinite gradients: nothing happens
    scaler.update()
    optimizer.zero_grad()
    scaler.scale(loss_of(encoder, decoder, x)).backward()
    scaler.step(optimizer)
    optimizer.zero_grad()


def checkpointed(optimizer, encoder, decoder, x):
    codes = torch.utils.checkpoint.checkpoint(encoder, x, use_reentrant=False)
    loss = (x - decoder(codes)).square().sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


ORDERS = (
    forward_first,
    zero_first,
    zeros_instead_of_none,
    cleared_by_the_model,
    closure_of_lightning,
    evaluations_between,
    in_evaluation_mode,
    graph_used_twice,
    gradient_scaler,
    step_skipped_by_the_scaler,
    checkpointed,
)


@pytest.mark.covering
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_every_order_of_calls_equals_steps_written_by_hand(order, tied):
    steps = [rows(seed=seed) + 0.1 * seed for seed in range(4)]
    encoder, decoder = model()
    inner = sgd(encoder, decoder, 0.02, momentum=0.9)
    optimizer = RotationAugmented(inner, encoder, decoder, tied=tied)
    for X in steps:
        order(optimizer, encoder, decoder, torch.tensor(X))
    expected = reference_steps([[X] for X in steps], tied)
    assert_allclose(encoder.weight.detach(), expected[0], atol=1e-12)
    assert_allclose(decoder.weight.detach(), expected[1], atol=1e-12)


@pytest.mark.parametrize(("tied", "centered"), [(True, False), (False, True)])
@pytest.mark.parametrize("at_once", [True, False])
def test_accumulated_gradients_equal_steps_written_by_hand(at_once, tied, centered):
    """Parts of different sizes: all forward passes first, or each with its backward pass."""
    steps = [[rows(n, seed=n + step) for n in (20, 50, 7)] for step in range(3)]
    encoder, decoder = model()
    inner = sgd(encoder, decoder, 0.02, momentum=0.9)
    optimizer = RotationAugmented(inner, encoder, decoder, tied=tied, centered=centered)
    for parts in steps:
        tensors = [torch.tensor(part) for part in parts]
        optimizer.zero_grad()
        if at_once:
            sum(loss_of(encoder, decoder, x) for x in tensors).backward()
        else:
            for x in tensors:
                loss_of(encoder, decoder, x).backward()
        optimizer.step()
    expected = reference_steps(steps, tied, centered)
    assert_allclose(encoder.weight.detach(), expected[0], atol=1e-12)
    assert_allclose(decoder.weight.detach(), expected[1], atol=1e-12)


@pytest.mark.parametrize("fails", [True, False])
def test_after_a_step_the_gradients_are_those_of_the_loss(fails, monkeypatch):
    x = torch.tensor(rows())
    encoder, decoder = model(bias=True)
    optimizer = RotationAugmented(sgd(encoder, decoder), encoder, decoder, tied=True)
    loss_of(encoder, decoder, x).backward()
    before = [p.grad.clone() for p in (*encoder.parameters(), *decoder.parameters())]
    if fails:
        monkeypatch.setattr(optimizer.optimizer, "step", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
    else:
        optimizer.step()
    after = [p.grad for p in (*encoder.parameters(), *decoder.parameters())]
    assert all(map(torch.equal, before, after))


def copied(network, optimizer):
    return copy.deepcopy((network, optimizer))


def pickled(network, optimizer):
    stream = io.BytesIO()
    torch.save((network, optimizer), stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("duplicate", [copied, pickled])
@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_of_network_and_optimizer_trains_alike_and_apart(duplicate, tied):
    x = torch.tensor(rows())
    network = torch.nn.Sequential(*model())
    inner = sgd(*network, 0.02, momentum=0.9)
    optimizer = RotationAugmented(inner, *network, tied=tied, strength=0.7, centered=True)
    train(optimizer, *network, x, 3)
    other, its_optimizer = duplicate(network, optimizer)
    assert its_optimizer.encoder is other[0]
    train(optimizer, *network, x, 3)
    kept = other[0].weight.detach().clone()
    assert not torch.equal(kept, network[0].weight)
    train(its_optimizer, *other, x, 3)
    assert torch.equal(other[0].weight, network[0].weight)
    assert torch.equal(other[1].weight, network[1].weight)


def test_a_copy_of_the_network_alone_is_not_counted():
    """A moving average of the weights is a copy of the network, too."""
    x = torch.tensor(rows())
    network = torch.nn.Sequential(*model())
    optimizer = RotationAugmented(sgd(*network, 0.02, momentum=0.9), *network)
    average = copy.deepcopy(network)
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(*network, x).backward()
        loss_of(*average, 9 * x).backward()
        optimizer.step()
    expected = reference_steps([[rows()], [rows()]], tied=False)
    assert_allclose(network[0].weight.detach(), expected[0], atol=1e-12)


def test_an_empty_batch_adds_no_rotation():
    encoder, decoder = model()
    optimizer = RotationAugmented(sgd(encoder, decoder), encoder, decoder, centered=True)
    before = encoder.weight.detach().clone()
    decoder(encoder(torch.zeros(0, 6, dtype=torch.float64))).sum().backward()
    optimizer.step()
    assert torch.equal(encoder.weight, before)
