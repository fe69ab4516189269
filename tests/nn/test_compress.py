"""Low-rank layers: no optimizer beats the closed forms, no search the ranks, no fault passes."""

import copy
import itertools
import pickle
import sys
from collections import OrderedDict

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")
from torch import nn

from lucidae.nn import compress
from lucidae.nn.low_rank import allocate

STARTS = [2, pytest.param(18, marks=pytest.mark.slow)]
KINDS = list(itertools.product(["wide", "tall"], ["regular", "singular"], [0.0, 300.0]))


def seeded(seed):
    torch.manual_seed(seed)
    return torch.Generator().manual_seed(seed)


def rows(count, width, rank=None, mean=0.0, dtype=torch.float64):
    """Random rows whose covariance has the given rank, far from the origin if `mean` is large."""
    rank = width if rank is None else rank
    scales = torch.logspace(0, -2, rank, dtype=torch.float64)
    return (torch.randn(count, rank) * scales @ torch.randn(rank, width).double() + mean).to(dtype)


def random_layer(seed):
    """Return a layer, its inputs and a rank that saves parameters."""
    seeded(seed)
    side, covariance, mean = KINDS[seed % len(KINDS)]
    n, m = (5, 8) if side == "wide" else (8, 5)
    x = rows(60, m, 4 if covariance == "singular" else m, mean)
    return nn.Linear(m, n, dtype=torch.float64, bias=seed % 3 > 0), x, 1 + seed % 3


def budget_for(layer, rank):
    n, m = layer.weight.shape
    biased = 0 if layer.bias is None else n
    return (rank * (m + n) + n) / (n * m + biased)


def plan_of_rank(layer, x, rank, **settings):
    return compress.plan(layer, x, budget=budget_for(layer, rank), **settings)


def minimized(loss, *starts):
    """Return the smallest value that L-BFGS finds from the given tensors."""
    sizes = [start.numel() for start in starts]

    def value(flat):
        parts = torch.tensor(flat, requires_grad=True)
        shaped = [p.reshape(s.shape) for p, s in zip(parts.split(sizes), starts, strict=True)]
        found = loss(*shaped)
        found.backward()
        return found.item(), parts.grad.numpy()

    flat = torch.cat([start.flatten() for start in starts]).double().numpy()
    options = {"maxiter": 150, "ftol": 1e-13, "gtol": 1e-8}
    return scipy.optimize.minimize(value, flat, jac=True, method="L-BFGS-B", options=options).fun


def squared_error(y, fitted):
    return (y - fitted).square().sum(1).mean()


# --- closed forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", STARTS)
def test_alternating_least_squares_never_beats_the_factors(starts):
    for seed in range(100):
        layer, x, rank = random_layer(seed)
        with torch.no_grad():
            weight, y = layer.weight, layer(x)
            centred = x - x.mean(0)
            R = torch.linalg.svd(centred, full_matrices=False)
            R = R.Vh.mT * R.S / len(x) ** 0.5
            plan = plan_of_rank(layer, x, rank)
            assert plan.ranks == {"": rank}
            A = torch.randn(starts, rank, x.shape[1], dtype=torch.float64)
            for _ in range(60):
                B = weight @ R @ torch.linalg.pinv(A @ R)
                A = torch.linalg.pinv(B) @ weight
            found = ((weight - B @ A) @ R).square().sum((1, 2))
            variance = (y - y.mean(0)).square().sum(1).mean()
            assert plan.errors[""] <= found.min() + 1e-10 * variance
            measured = squared_error(y, plan.apply(layer)(x))
            assert_allclose(measured, plan.errors[""], rtol=1e-6, atol=1e-10 * variance)


@pytest.mark.parametrize(("shape", "rank"), [((8, 12), 2), ((12, 8), 3)])
def test_dropout_of_hidden_units_has_the_smallest_expected_error(shape, rank):
    seeded(rank)
    (n, m), strength = shape, 0.25
    layer, x = nn.Linear(m, n, dtype=torch.float64), rows(80, m, 6, 2.0)
    y = layer(x).detach()
    budget = (rank * (m + n + 1) + n) / (n * m + n)
    plan = compress.plan(layer, x, budget=budget, dropout=0.2)
    assert plan.ranks[""] == rank

    def expected(A, b, B, c):
        hidden = x @ A.mT + b
        masks = (hidden.square().mean(0) * B.square().sum(0)).sum()
        return squared_error(y, hidden @ B.mT + c) + strength * masks

    first, dropped, last = plan.apply(layer)
    assert dropped.p == 0.2
    parts = first.weight, first.bias, last.weight, last.bias
    assert_allclose(expected(*parts).item(), plan.errors[""], rtol=1e-6)
    for _ in range(3):
        A, B = torch.randn(rank, m), torch.randn(n, rank)
        found = minimized(expected, A, -A.double() @ x.mean(0), B, y.mean(0))
        assert plan.errors[""] <= found * (1 + 1e-7)
    units = first(x).square().mean(0) * last.weight.square().sum(0)
    assert_allclose(units.detach(), units.mean().item(), rtol=1e-5)
    assert plan.certificate.holds


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_calibrated_in_single_precision(dtype):
    seeded(0)
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24)).to(dtype)
    x = (rows(400, 24) + 5).to(dtype)
    plan = compress.plan(model, x, budget=0.6)
    y = model[0](x).double()
    values = torch.linalg.eigvalsh((y - y.mean(0)).mT @ (y - y.mean(0)) / len(y)).flip(0)
    rank = plan.ranks["0"]
    assert_allclose(plan.errors["0"], values[rank:].sum().item(), rtol=1e-2, atol=1e-4)
    small = plan.apply(model)
    assert {p.dtype for p in small.parameters()} == {dtype}
    assert torch.isfinite(small(x)).all()
    assert plan.certificate.holds


# --- kinds of layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [(3, 10), (8, 4)])
@pytest.mark.parametrize("options", [{"stride": 2, "padding": 1}, {"dilation": 2, "bias": False}])
def test_convolution_is_the_linear_layer_of_unfolded_patches(channels, options):
    seeded(0)
    layer = nn.Conv2d(*channels, 3, **options, dtype=torch.float64)
    x = torch.randn(6, channels[0], 9, 8, dtype=torch.float64) + 2
    patches = nn.functional.unfold(x, 3, layer.dilation, layer.padding, layer.stride)
    patches = patches.mT.reshape(-1, channels[0] * 9)
    matrix = nn.Linear(patches.shape[1], channels[1], bias="bias" not in options).double()
    matrix.load_state_dict(
        {k: v.flatten(1) if v.ndim > 1 else v for k, v in layer.state_dict().items()}
    )
    expected = plan_of_rank(matrix, patches, 2)
    plan = compress.plan(layer, x, budget=budget_for(matrix, 2))
    assert plan.ranks == {"": 2}
    assert_allclose(plan.errors[""], expected.errors[""], rtol=1e-9)
    small = plan.apply(layer)(x).movedim(1, -1).reshape(-1, channels[1])
    assert_allclose(small.detach(), expected.apply(matrix)(patches).detach(), atol=1e-9)
    assert plan.certificate.holds


def test_convolutions_of_signals_with_any_padding_and_in_sequence():
    seeded(0)
    model = nn.Sequential(
        nn.Conv1d(8, 24, 5, padding="same", padding_mode="circular"),
        nn.ReLU(inplace=True),
        nn.Conv1d(24, 16, 3, padding=2, padding_mode="reflect"),
    )
    x = torch.randn(20, 8, 30)
    plan = compress.plan(model, x, budget=0.4, sequential=True)
    assert plan.factors.keys() == {"0", "2"}
    assert plan.apply(model)(x).shape == model(x).shape
    assert plan.certificate.holds
    assert plan.apply(model)(x[0]).shape == model(x[0]).shape


class Conv1D(nn.Module):
    """The layer of that name of transformers: its weight has the shape (inputs, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_layers_of_transformers_are_known_by_their_name():
    seeded(0)
    layer, linear, x = Conv1D(20, 12), nn.Linear(20, 12), torch.randn(5, 50, 20)
    linear.weight.data.copy_(layer.weight.T)
    linear.bias.data.copy_(layer.bias)
    plan, expected = compress.plan(layer, x), compress.plan(linear, x)
    assert plan.ranks == expected.ranks
    torch.testing.assert_close(plan.apply(layer)(x), expected.apply(linear)(x))


class Tied(nn.Module):
    """A small language model; the weight of the embedding may be that of the head."""

    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.body = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.head = nn.Linear(16, 40, bias=False)
        self.unused = nn.Linear(16, 16)
        if tied == "head":
            self.head.weight = self.embedding.weight
        if tied == "body":
            self.body[2].weight = self.body[0].weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.body:
            x = layer(input=x).tanh()
        return self.head(x)


def test_weight_of_an_embedding_stays_dense():
    seeded(0)
    model, tokens = Tied("head"), torch.randint(0, 40, (30, 8))
    plan = compress.plan(model, tokens, budget=0.7)
    assert plan.ranks["head"] == 16
    assert "used elsewhere" in plan.notes["head"]
    assert plan.notes["unused"] == "was not called"
    assert plan.dense_size == 3 * (16 * 16 + 16)
    assert compress.plan(Tied(""), tokens, budget=0.7).dense_size == plan.dense_size + 640
    excluded = compress.plan(Tied("body"), tokens, include=["body.2", "body.1"], budget=0.7)
    assert "used elsewhere" in excluded.notes["body.2"]


def test_layers_that_share_a_weight_get_one_factorisation():
    seeded(0)
    model, tokens = Tied("body").double(), torch.randint(0, 40, (50, 8))
    plan = compress.plan(model, tokens, include="body.*", budget=0.45)
    assert plan.ranks["body.0"] == plan.ranks["body.2"] < 16
    assert plan.dense_size == 2 * 16 * 16 + 3 * 16
    small = plan.apply(model)
    for one, other in zip(small.body[0], small.body[2], strict=True):
        assert one.weight is other.weight
    assert sum(part.numel() for part in small.body.parameters()) == plan.size
    assert not torch.equal(small.body[0][1].bias, small.body[2][1].bias)
    assert plan.certificate.holds
    assert_allclose(plan.total, sum(plan.errors.values()))
    # the weighted sum of both covariances decides
    inputs = {}
    for at in (0, 2):
        model.body[at].register_forward_hook(
            lambda _, args, keywords, y, at=at: inputs.__setitem__(at, y), with_kwargs=True
        )
    model(tokens)
    covariances = [np.cov(y.detach().reshape(-1, 16).numpy().T, bias=True) for y in inputs.values()]
    for h in (1.0, 30.0):
        importance = {"body.0": h, "body.1": 0.0}
        plan = compress.plan(model, tokens, include="body.*", budget=0.45, importance=importance)
        values = np.linalg.eigvalsh(h * covariances[0] + covariances[1])[::-1]
        assert_allclose(plan.total, values[plan.ranks["body.0"] :].sum())


def test_one_module_in_two_places_is_called_twice_and_replaced_twice():
    seeded(0)
    layer = nn.Linear(12, 12)
    model, x = nn.Sequential(layer, nn.Tanh(), layer), torch.randn(60, 12)
    plan = compress.plan(model, x, budget=0.6)
    small = plan.apply(model)
    assert small[0] is small[2]
    y = torch.cat([layer(x), layer(layer(x).tanh())]).detach().double()
    values = np.linalg.eigvalsh(np.cov(y.numpy().T, bias=True))[::-1]
    assert_allclose(plan.errors["0"], values[plan.ranks["0"] :].sum(), rtol=1e-5)


def test_weights_that_are_computed_are_factorised_as_they_are():
    seeded(0)
    model = nn.Sequential(nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False))
    x = torch.randn(60, 12)
    normed = copy.deepcopy(model)
    nn.utils.parametrizations.weight_norm(normed[0])
    found, expected = (compress.plan(part, x, budget=0.7) for part in (normed, model))
    assert found.ranks == expected.ranks
    torch.testing.assert_close(found.apply(normed)(x), expected.apply(model)(x))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_replaced_layers_have_a_weight_for_code_that_reads_it(dropout):
    seeded(0)
    linear, conv = nn.Linear(12, 12), nn.Conv2d(6, 8, 3)
    x, images = torch.randn(60, 12), torch.randn(20, 6, 7, 7)
    small = compress.plan(linear, x, budget=0.7, dropout=dropout).apply(linear).eval()
    torch.testing.assert_close(nn.functional.linear(x, small.weight, small.bias), small(x))
    small = compress.plan(conv, images, budget=0.7, dropout=dropout).apply(conv).eval()
    expected = nn.functional.conv2d(images, small.weight, small.bias)
    torch.testing.assert_close(small(images), expected)


def test_transformer_encoder_has_no_fast_path_around_the_layers():
    seeded(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(30, 7, 16)
    plan = compress.plan(model, x, budget=0.6)
    assert plan.notes["layers.0.self_attn.out_proj"] == "was not called"
    small = plan.apply(model)
    mask = torch.zeros(30, 7, dtype=torch.bool)
    mask[:, 5:] = True
    with torch.no_grad():
        outputs = small(x), small(x, src_key_padding_mask=mask)
    torch.testing.assert_close(outputs[0], small(x))
    torch.testing.assert_close(outputs[1], small(x, src_key_padding_mask=mask))


# --- the network --------------------------------------------------------------------------------


def classifier(dtype=torch.float32):
    seeded(0)
    layers = OrderedDict(first=nn.Linear(20, 40), act=nn.ReLU(inplace=True), last=nn.Linear(40, 10))
    return nn.Sequential(layers).to(dtype)


def labelled(count=200):
    x = torch.randn(count, 20)
    data = torch.utils.data.TensorDataset(x, torch.randint(0, 10, (count,)))
    return x, torch.utils.data.DataLoader(data, 64)


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output, batch[1])


def test_the_model_is_not_changed():
    model, (x, loader) = classifier(), labelled()
    loader = list(loader)  # a DataLoader draws a seed for each pass
    model.first.eval().requires_grad_(False)
    model.train()
    model.act.eval()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    plan = compress.plan(
        model, loader, importance="gradients", loss=cross_entropy, sequential=True, budget=0.6
    )
    small = plan.apply(model)
    assert plan.certificate.holds
    assert torch.equal(state, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())
    assert not any(part._forward_hooks for part in model.modules())
    assert [part.training for part in model.modules()] == [True, True, False, True]
    assert [part.training for part in small.children()] == [True, False, True]
    assert [p.requires_grad for p in small.first.parameters()] == [False] * 3
    assert all(p.requires_grad for p in small.last.parameters())
    again = plan.apply(classifier())
    again.load_state_dict(small.state_dict())
    torch.testing.assert_close(again(x), small(x))


def test_batches_of_all_kinds_give_one_plan():
    model, (x, _) = classifier(torch.float64), labelled()
    x = x.double()
    kinds = [
        x,
        [x[:150], x[150:]],
        [(x[:10], None), (x[10:], None)],
        [{"input": x}],
        ({"input": part} for part in x.split(30)),
    ]
    plans = [compress.plan(model, batches) for batches in kinds]
    plans.append(compress.plan(model, [("odd", x)], forward=lambda model, batch: model(batch[1])))
    for plan in plans:
        assert plan.ranks == plans[0].ranks
        assert_allclose(list(plan.errors.values()), list(plans[0].errors.values()))


def test_sequential_factors_are_a_reduced_rank_regression():
    seeded(1)
    model = nn.Sequential(nn.Linear(10, 14), nn.Tanh(), nn.Linear(14, 9)).double()
    x = rows(300, 10)
    plan = compress.plan(model, x, budget=0.4, sequential=True)
    small = plan.apply(model)
    y, inputs = model(x).detach().numpy(), small[:2](x).detach().numpy()
    error = ((y - small(x).detach().numpy()) ** 2).sum(1).mean()
    assert_allclose(error, plan.errors["2"], rtol=1e-8)
    design, y = inputs - inputs.mean(0), y - y.mean(0)
    fitted = design @ np.linalg.lstsq(design, y)[0]
    values = np.linalg.eigvalsh(fitted.T @ fitted / 300)[::-1]
    best = ((y - fitted) ** 2).sum(1).mean() + values[plan.ranks["2"] :].sum()
    assert_allclose(error, best, rtol=1e-9)


def test_squared_gradients_predict_the_increase_of_the_loss():
    """For a quadratic loss of the last layer, the Fisher estimate is half its error."""
    model, (x, _) = classifier(torch.float64), labelled()
    x, target = x.double(), torch.randn(200, 10, dtype=torch.float64)
    batches = [(x[:80], target[:80]), (x[80:], target[80:])]

    def likelihood(output, batch):
        return (output - batch[1]).square().sum(1).mean() / 2

    with torch.no_grad():
        batches = [(part, model(part) + noise) for part, noise in batches]
    plan = compress.plan(model, batches, importance="gradients", loss=likelihood, budget=0.6)
    noise = torch.cat([noise - model(part) for part, noise in batches])
    assert_allclose(plan.importance["last"], noise.square().mean().item())
    gradient = torch.where(model.first(x) > 0, 1.0, 0.0) * (noise @ model.last.weight)
    assert_allclose(plan.importance["first"], gradient.square().mean().item())
    frozen = copy.deepcopy(model).requires_grad_(False)
    again = compress.plan(frozen, batches, importance="gradients", loss=likelihood, budget=0.6)
    assert_allclose(again.importance["first"], plan.importance["first"])


# --- ranks --------------------------------------------------------------------------------------


def exhaustive(values, costs, budget):
    """Return the smallest sum of values within the budget, over all choices."""
    best = np.inf
    for choice in itertools.product(*(range(len(value)) for value in values)):
        if sum(c[i] for c, i in zip(costs, choice, strict=True)) <= budget:
            best = min(best, sum(v[i] for v, i in zip(values, choice, strict=True)))
    return best


def test_ranks_are_those_of_an_exhaustive_search_and_the_bound_is_one():
    rng = np.random.default_rng(0)
    for trial in range(100):
        values, costs = [], []
        for _ in range(rng.integers(1, 5)):
            count = rng.integers(1, 8)
            costs.append(np.sort(rng.choice(np.arange(1.0, 60.0), count, replace=False)))
            value = np.sort(rng.exponential(size=count) * 10.0 ** rng.integers(-3, 3))[::-1]
            values.append(rng.permutation(value) if trial % 3 == 0 else value)
        least, most = (sum(f(c) for c in costs) for f in (np.min, np.max))
        budget = np.floor(rng.uniform(least, most + 1))
        found = allocate(values, costs, budget)
        best = exhaustive(values, costs, budget)
        assert sum(c[i] for c, i in zip(costs, found.chosen, strict=True)) <= budget
        assert found.value == sum(v[i] for v, i in zip(values, found.chosen, strict=True))
        assert_allclose(found.value, best, rtol=1e-12)
        assert 0.99 * best <= found.bound <= best


@pytest.mark.parametrize("budget_of", ["parameters", "flops", "error"])
def test_plans_have_the_best_ranks_for_each_kind_of_budget(budget_of):
    seeded(0)
    shapes, names, outputs = [(6, 9), (9, 14), (8, 63)], ["0", "2", "4"], {}
    model = nn.Sequential(
        nn.Linear(9, 6),
        nn.Unflatten(1, (2, 3)),
        nn.Conv1d(2, 9, 7, bias=False, padding=5),
        nn.Flatten(1),
        nn.Linear(63, 8),
    ).double()
    x = torch.randn(80, 9).double()
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda *arguments, name=name: outputs.__setitem__(name, arguments[-1].detach())
        )
    model(x)
    errors, costs, sizes, variance = [], [], [], 0.0
    for (n, m), name in zip(shapes, names, strict=True):
        y = outputs[name].movedim(1, -1).reshape(-1, n).numpy()
        spectrum = np.linalg.eigvalsh(np.cov(y.T, bias=True))[::-1]
        biased = n * (model.get_submodule(name).bias is not None)
        ranks = np.arange(1, min(n, m) + 1)
        size = np.append(ranks * (m + n) + n, n * m + biased).astype(float)
        error = np.append(spectrum.sum() - np.cumsum(spectrum)[ranks - 1], 0.0)
        sizes.append(size)
        errors.append(np.maximum(error, 0.0))
        variance += spectrum.sum()
        flops = np.append(ranks * (m + n), n * m) * float(len(y))
        costs.append(flops if budget_of == "flops" else size)
    dense = sum(cost[-1] for cost in costs)
    plan = None
    for budget in (0.5, 0.65, 0.8, 0.95) if budget_of != "error" else (0.02, 0.1, 0.3):
        settings = {"budget": budget, "budget_of": budget_of}
        plan = compress.plan(model, x, **settings) if plan is None else plan.at(**settings)
        if budget_of == "error":
            size = exhaustive(sizes, errors, budget * variance * (1 + 1e-9))
            assert plan.size == size
            best = exhaustive(errors, sizes, size)
        else:
            best = exhaustive(errors, costs, budget * dense)
        assert_allclose(plan.total, best, rtol=1e-9, atol=1e-14)
        assert plan.lower_bound <= best * (1 + 1e-9) + 1e-14
        assert plan.share <= budget
        counted = sum(
            p.numel() for name in names for p in plan.apply(model).get_submodule(name).parameters()
        )
        assert counted == plan.size


def test_importance_moves_ranks_to_a_layer():
    model, (x, _) = classifier(), labelled()
    plain = compress.plan(model, x, budget=0.5)
    last = compress.plan(model, x, budget=0.5, importance={"last": 1e4})
    assert last.ranks["last"] > plain.ranks["last"]
    assert last.total == pytest.approx(1e4 * last.errors["last"] + last.errors["first"])
    relative = compress.plan(model, x, budget=0.5, importance="relative")
    assert relative.share <= 0.5
    variance = model.first(x).var(0, correction=0).sum().item()
    assert_allclose(1 / relative.importance["first"], variance, rtol=1e-5)
    assert compress.plan(model, x, importance=dict.fromkeys(["first", "last"], 0.0)).total == 0.0


# --- certificate --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"sequential": True}, {"dropout": 0.1}])
def test_changed_factors_fail(settings):
    model, (_, loader) = classifier(), labelled()
    plan = compress.plan(model, loader, budget=0.5, **settings)
    assert plan.certificate.holds
    for part, change in [("second", 1.01), ("first", 0.98), ("bias", 1.5)]:
        tampered = plan.at(budget=0.5)
        old = tampered.factors["last"]
        tampered.factors["last"] = old._replace(**{part: getattr(old, part) * change})
        claim = tampered.certificate["errors"]
        assert claim.holds is False, part
        assert "'last'" in claim.advice
    cheap = plan.at(budget=0.5)
    cheap.lower_bound *= 0.9
    assert cheap.certificate["allocation"].holds is False


def test_certificate_without_a_second_pass_is_undecided():
    model, (x, loader) = classifier(), labelled()
    once = compress.plan(model, iter([x]))
    assert once.certificate.holds is None
    assert "DataLoader" in once.certificate["errors"].advice
    stored = pickle.loads(pickle.dumps(compress.plan(model, loader)))
    assert stored.certificate["errors"].undecided
    torch.testing.assert_close(stored.apply(model)(x), once.apply(model)(x))

    class Augmented:
        def __iter__(self):
            yield torch.randn(200, 20)

    moving = compress.plan(model, Augmented())
    assert moving.certificate["errors"].undecided
    assert "augmentation" in moving.certificate["errors"].advice


def test_loss_is_measured_and_not_certified():
    model, (x, loader) = classifier(), labelled()
    plan = compress.plan(model, loader, loss=cross_entropy, held_out=loader, budget=0.5)
    claim, (inputs, labels) = plan.certificate["loss"], loader.dataset.tensors
    assert claim.holds is None
    losses = [cross_entropy(m(inputs), (None, labels)) for m in (plan.apply(model), model)]
    assert claim.value == pytest.approx(losses[0].item(), rel=1e-5)
    assert f"{losses[1].item():.4g} before" in claim.statement
    assert "held-out" in claim.reference
    assert compress.plan(model, x).certificate["loss"].verdict == "does not apply"


def test_tables_name_every_layer():
    model, (x, _) = classifier(), labelled()
    model.append(nn.Conv1d(2, 2, 1, groups=2))
    plan = compress.plan(model, x, forward=lambda model, batch: model[:3](batch))
    text, page = repr(plan), plan._repr_html_()
    for name in plan.ranks:
        assert name in text
        assert name in page
    assert "groups=2" in text
    assert f"{plan.size:,} of {plan.dense_size:,} parameters" in text
    assert plan.rank_pattern() == {name: plan.ranks[name] for name in plan.factors}
    few = compress.plan(model[:3], x[:9])
    assert few.notes["first"] == "only 9 calibration rows"


# --- attention ----------------------------------------------------------------------------------


class Projections(nn.Module):
    """Self-attention with four projections, with a causal mask of its own."""

    def __init__(self, width=12, heads=3, rotary=False):
        super().__init__()
        self.num_heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width))
        self.turned = rotary

    def forward(self, query):
        q, k, v = (
            layer(query).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.turned:
            q = q.roll(1, 2)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(z.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"kdim": 7, "vdim": 5}])
def test_heads_of_full_width_compute_the_same(batch_first, bias, options):
    seeded(0)
    layer = nn.MultiheadAttention(12, 3, bias=bias, batch_first=batch_first, **options)
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    query, key, value = (
        torch.randn(6, 6, width) + 1
        for width in (12, options.get("kdim", 12), options.get("vdim", 12))
    )
    padding = torch.rand(6, 6) < 0.3
    padding[:, 0] = False
    mask = torch.ones(6, 6, dtype=torch.bool).triu(1)
    small = compress.heads(layer, [[query, key, value]], rank=4)
    for settings in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": mask, "need_weights": False},
        {"attn_mask": torch.randn(18, 6, 6), "average_attn_weights": False},
        {"attn_mask": mask, "is_causal": True, "key_padding_mask": padding},
    ):
        found, expected = (part(query, key, value, **settings) for part in (small, layer))
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
        if expected[1] is not None:
            torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-4)
    found, expected = (part(query[0], key[0], value[0]) for part in (small, layer))
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)


def test_heads_of_four_projections_inside_a_model():
    seeded(0)
    layer = Projections()
    model, x = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), layer), torch.randn(20, 6, 5)
    small = compress.heads(layer, [x[:10], x[10:]], model=model, rank=4, is_causal=True)
    inputs = model[:2](x)
    torch.testing.assert_close(small(inputs), layer(inputs), atol=1e-5, rtol=1e-4)
    fewer = compress.heads(layer, inputs.detach(), qk_rank=2, vo_rank=3, is_causal=True)
    assert fewer.q_proj.out_features == 6
    assert fewer.out_proj.in_features == 9
    assert fewer(inputs).shape == layer(inputs).shape
    few = compress.heads(layer, inputs[:1, :2].detach(), rank=4, is_causal=True)
    torch.testing.assert_close(few(inputs), layer(inputs), atol=1e-5, rtol=1e-4)


def test_keys_that_no_query_sees_do_not_count():
    seeded(0)
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(6, 5, 8)
    padding = torch.zeros(6, 5, dtype=torch.bool)
    padding[:, 3:] = True
    batch = {"query": x, "key": x, "value": x, "key_padding_mask": padding}
    values = compress.heads(layer, [batch], rank=2).qk_values
    with torch.no_grad():
        seen = compress.heads(layer, [[x, x[:, :3], x[:, :3]]], rank=2).qk_values
    assert_allclose(values, seen, rtol=1e-9)


def test_encoder_layers_take_the_new_heads():
    seeded(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(10, 6, 16)
    with torch.no_grad():
        expected = layer(x)
        layer.self_attn = compress.heads(layer.self_attn, x, model=layer, rank=8)
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)


def test_no_optimizer_beats_the_logits_or_values_of_a_head():
    seeded(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True).double()
    layer.in_proj_bias.data.normal_()
    x, rank = rows(40, 8, mean=0.5).reshape(5, 8, 8), 2
    small = compress.heads(layer, x, rank=rank)
    tokens = x.reshape(-1, 8)

    def project(weight, bias):
        return (tokens @ weight.mT + bias).reshape(40, 2, -1).transpose(0, 1)

    weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    q, k = (project(w, b).detach() for w, b in zip(weights[:2], biases[:2], strict=True))
    new_q, new_k = (project(p.weight, p.bias).detach() for p in (small.q_proj, small.k_proj))
    for head in range(2):
        logits = q[head] @ k[head].mT
        error = (logits - new_q[head] @ new_k[head].mT).square().mean().item()
        assert_allclose(error, small.qk_values[head, rank:].square().sum().item(), rtol=1e-8)
        for _ in range(3):
            found = minimized(
                lambda P, T: ((q[head] @ P) @ (k[head] @ T).mT - logits).square().mean(),  # noqa: B023
                torch.randn(4, rank),
                torch.randn(4, rank),
            )
            assert error <= found * (1 + 1e-7)
    # values: the mean output is kept, and each head loses what its spectrum says
    exact = compress.heads(layer, x, qk_rank=4, vo_rank=rank)
    found, expected = exact(x, x, x)[0], layer(x, x, x)[0]
    assert_allclose(found.mean((0, 1)).detach(), expected.mean((0, 1)).detach(), atol=1e-12)
    attended = layer(x, x, x, average_attn_weights=False)[1] @ project(
        weights[2], biases[2]
    ).reshape(2, 5, 8, 4).transpose(0, 1)
    for head in range(2):
        z = attended[:, head].reshape(-1, 4).detach()
        slices = nn.Linear(4, 8, bias=False, dtype=torch.float64)
        slices.weight.data.copy_(layer.out_proj.weight[:, 4 * head : 4 * head + 4])
        best = np.linalg.eigvalsh(np.cov(slices(z).detach().numpy().T, bias=True))[::-1]
        assert_allclose(small.vo_values[head].numpy(), best[:4], atol=1e-12)


class Rotary(Projections):
    def __init__(self):
        super().__init__()
        self.rotary_emb = nn.Identity()


@pytest.mark.parametrize(
    ("layer", "settings", "message"),
    [
        (Rotary(), {"rank": 2}, "rotary embeddings .* compress.plan"),
        (Projections(rotary=True), {"rank": 2, "is_causal": True}, "does not compute"),
        (Projections(), {"rank": 2}, "is_causal=True"),
        (Projections(), {}, "at least one"),
        (Projections(), {"rank": 5}, "rank=5"),
        (Projections(), {"rank": 2, "names": ("q", "k", "v", "o")}, "no nn.Linear named 'q'"),
        (Projections(heads=5), {"rank": 2}, "for 5 heads"),
        (nn.Linear(12, 12), {"rank": 2}, "no nn.Linear named 'q_proj'"),
        (nn.MultiheadAttention(12, 3, add_bias_kv=True), {"rank": 2}, "add_bias_kv"),
        (nn.MultiheadAttention(12, 3), {"rank": 2, "model": nn.Linear(12, 12)}, "not called"),
        ("layer", {"rank": 2}, "type str"),
    ],
)
def test_attention_that_cannot_be_truncated_is_refused(layer, settings, message):
    seeded(0)
    with pytest.raises(ValueError, match=message):
        compress.heads(layer, torch.randn(4, 5, 12), **settings)


# --- adapters -----------------------------------------------------------------------------------


def adapter_error(delta, moment, strength, product):
    missed = delta - product
    masks = strength * (product.square().sum(0) * torch.diagonal(moment)).sum()
    return ((missed @ moment) * missed).sum() + masks


@pytest.mark.covering
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("rank_of_inputs", [3, 7])
def test_no_optimizer_beats_an_adapter(dropout, rank_of_inputs):
    seeded(0)
    x, delta = rows(50, 7, rank_of_inputs, mean=0.3), torch.randn(5, 7, dtype=torch.float64)
    x[:, 2] = 0.0
    moment, strength = x.mT @ x / 50, dropout / (1 - dropout)
    for rank in (1, 2, 4):
        B, A = compress.adapter(delta, moment, rank, dropout)
        error = adapter_error(delta, moment, strength, B @ A).item()
        for _ in range(3):
            found = minimized(
                lambda C, D: adapter_error(delta, moment, strength, C @ D),
                torch.randn(5, rank),
                torch.randn(rank, 7),
            )
            assert error <= found * (1 + 1e-7) + 1e-12
        certificate = compress.certify_adapter((B, A), x, delta=delta, dropout=dropout)
        assert certificate.holds
        assert_allclose(certificate.evidence["error"], error, rtol=1e-9, atol=1e-9)
        worse = compress.certify_adapter((1.3 * B, A), x, delta=delta, dropout=dropout)
        assert worse["gap"].holds is False


def test_adapters_of_peft_and_of_regressions():
    seeded(0)
    x, delta = torch.randn(300, 8), torch.randn(6, 8)
    B, A = compress.adapter(delta, x.T @ x / 300, 2, 0.1)
    layer = nn.Module()
    layer.lora_A = nn.ModuleDict({"default": nn.Linear(8, 2, bias=False)})
    layer.lora_B = nn.ModuleDict({"default": nn.Linear(2, 6, bias=False)})
    layer.lora_dropout = nn.ModuleDict({"default": nn.Dropout(0.1)})
    layer.scaling = {"default": 4.0}
    layer.lora_A["default"].weight.data.copy_(A)
    layer.lora_B["default"].weight.data.copy_(B / 4)
    assert compress.certify_adapter(layer, x.split(100), delta=delta).holds
    assert compress.certify_adapter(layer, x, delta=delta, dropout=0.5).holds is False
    targets = x @ delta.T + 0.1 * torch.randn(300, 6)
    noisy = compress.certify_adapter(layer, x, targets=targets, tolerance=0.01)
    assert noisy.holds
    assert noisy.evidence["smallest_error"] > 0.05
    alone = compress.certify_adapter(layer, x)
    assert alone["gap"].verdict == "does not apply"
    assert alone["rank"].value == 2
    with pytest.raises(ValueError, match=r"\['default'\]"):
        compress.certify_adapter(layer, x, name="other")
    with pytest.raises(ValueError, match="lora_A"):
        compress.certify_adapter(nn.Linear(8, 6), x)
    with pytest.raises(ValueError, match="one of them"):
        compress.certify_adapter(layer, x, delta=delta, targets=targets)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0.01}, r"smallest ranks need 0\.1\d+: give at least this"),
        ({"budget": 0.01, "budget_of": "flops"}, "smallest ranks need"),
        ({"budget": 1.5}, "budget=1.5"),
        ({"budget_of": "layers"}, "'parameters', 'flops', 'error'"),
        ({"include": "*.mlp.*"}, "'first', 'last'"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"importance": "gradients"}, "without a loss"),
        ({"importance": "fisher"}, "'relative', 'gradients' or None"),
        ({"importance": {"third": 1.0}}, "first, last"),
        ({"importance": {"last": -1.0}}, "importance"),
        ({"sequential": 1}, "sequential"),
    ],
)
def test_wrong_settings_are_explained(settings, message):
    with pytest.raises(ValueError, match=message):
        compress.plan(classifier(), labelled()[0], **settings)


def test_wrong_data_are_explained():
    model, (x, _) = classifier(), labelled()
    with pytest.raises(ValueError, match="no batch"):
        compress.plan(model, [])
    with pytest.raises(ValueError, match="read only once"):
        compress.plan(model, iter([x]), sequential=True)
    with pytest.raises(ValueError, match="'first' contain NaN"):
        compress.plan(model, x * torch.nan)
    with pytest.raises(ValueError, match="do not vary"):
        compress.plan(model, x[:1])
    with pytest.raises(ValueError, match="no gradient"):
        compress.plan(model, x, importance="gradients", loss=lambda y, _: y.detach().mean())
    with pytest.raises(ValueError, match="type int"):
        compress.plan(model, 3)
    with pytest.raises(ValueError, match="type function"):
        compress.plan(lambda x: x, x)
    with pytest.raises(ValueError, match="for which it was made"):
        compress.plan(model, x).apply(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="for which it was made"):
        compress.plan(model[:1], x).apply(nn.Sequential(OrderedDict(first=nn.Linear(3, 3))))


# --- several processes --------------------------------------------------------------------------

SETTINGS = [
    {},
    {"sequential": True},
    {"importance": "gradients", "loss": lambda y, batch: y.square().mean()},
]


def planned(model, x):
    found = []
    for settings in SETTINGS:
        plan = compress.plan(model, x.split(40), budget=0.5, **settings)
        claim = plan.certificate["errors"]
        found.append((plan.ranks, plan.errors, plan.total, claim.holds, plan.certificate.evidence))
    attention = nn.MultiheadAttention(20, 2, batch_first=True).double()
    torch.manual_seed(1)
    for parameter in attention.parameters():
        parameter.data.normal_()
    small = compress.heads(attention, x.reshape(-1, 4, 20), rank=3)
    return [*found, (small.qk_values, small.vo_values)]


def one_process(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    model, x = classifier(torch.float64), many_rows()
    model = torch.nn.parallel.DistributedDataParallel(model)
    torch.save(planned(model, x[:120] if rank == 0 else x[120:]), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def many_rows():
    seeded(3)
    return rows(200, 20, mean=50.0)


@pytest.mark.skipif(sys.platform == "win32", reason="the processes meet in a file")
def test_two_processes_give_the_plan_of_one(tmp_path):
    preloaded = torch.multiprocessing.get_context("forkserver")
    preloaded.set_forkserver_preload([__name__])
    torch.multiprocessing.start_processes(
        one_process, (str(tmp_path),), nprocs=2, start_method="forkserver"
    )
    expected = planned(classifier(torch.float64), many_rows())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        for one, other in zip(found[:-1], expected[:-1], strict=True):
            assert one[0] == other[0]
            assert_allclose(list(one[1].values()), list(other[1].values()), rtol=1e-6)
            assert_allclose(one[2], other[2], rtol=1e-6)
            assert one[3] is other[3] is True
        for one, other in zip(found[-1], expected[-1], strict=True):
            assert_allclose(one, other, rtol=1e-8, atol=1e-10)
