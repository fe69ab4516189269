"""Dropout between two linear layers: the penalty is its mean over masks, equalizing keeps all."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.dropout import DropoutObjective, LinearProblem, Weights, solve
from lucidae.metrics import importance_scores
from lucidae.nn import DropoutPenalty, certify_dropout, equalize_layers


def layers(d_in=4, r=3, d_out=5, bias=True, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return (
        torch.nn.Linear(d_in, r, bias=bias, dtype=dtype),
        torch.nn.Linear(r, d_out, bias=bias, dtype=dtype),
    )


def mean_over_masks(first, second, x, y, dropout, reduction):
    """Return the expected squared error by going through all 2^r masks."""
    keep, total = 1 - dropout, 0.0
    for bits in itertools.product([0.0, 1.0], repeat=first.out_features):
        mask = torch.tensor(bits, dtype=x.dtype)
        chance = keep ** mask.sum() * dropout ** (len(bits) - mask.sum())
        error = (y - second(first(x) * mask / keep)).square()
        total = total + chance * (error.sum(1).mean() if reduction == "sum" else error.mean())
    return total


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_error_plus_penalty_is_the_mean_over_all_masks(bias, reduction):
    first, second = layers(bias=bias)
    x, y = torch.randn(20, 4).double() + 1, torch.randn(20, 5).double()
    error = (y - second(first(x))).square()
    plain = error.sum(1).mean() if reduction == "sum" else error.mean()
    penalty = DropoutPenalty(0.3, reduction=reduction)(first, second, x)
    expected = mean_over_masks(first, second, x, y, 0.3, reduction)
    assert_allclose((plain + penalty).item(), expected.item(), rtol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_penalty_and_gradient_equal_the_functional_core(dtype, tolerance):
    first, second = layers(bias=False, dtype=dtype)
    x = torch.randn(30, 4, dtype=dtype)
    penalty = DropoutPenalty(0.4)
    value = penalty(first, second, x)
    value.backward()
    rows = x.double().numpy()
    weights = Weights(
        second.weight.detach().double().numpy(), first.weight.detach().double().numpy().T
    )
    problem = LinearProblem(np.zeros((5, 4)), rows.T @ rows / 30, 0.0)
    objective = DropoutObjective(problem, 0.4 / 0.6)
    assert_allclose(value.item(), objective.regularizer(weights), rtol=10 * tolerance)
    bare = DropoutObjective(problem, 0.0).gradient(weights)
    slope = objective.gradient(weights)
    assert_allclose(second.weight.grad, slope.left - bare.left, atol=10 * tolerance)
    assert_allclose(first.weight.grad.T, slope.right - bare.right, atol=10 * tolerance)
    white = DropoutObjective(LinearProblem.from_matrix(np.zeros((5, 4))), 0.4 / 0.6)
    assert_allclose(penalty(first, second).item(), white.regularizer(weights), rtol=10 * tolerance)


def test_penalty_passes_gradcheck():
    first, second = layers()
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    penalty = DropoutPenalty(0.4)
    assert torch.autograd.gradcheck(lambda rows: penalty(first, second, rows), x)


@given(
    d_in=st.integers(1, 6), r=st.integers(1, 7), d_out=st.integers(1, 6), seed=st.integers(0, 50)
)
def test_equalizing_keeps_the_function_and_levels_the_units(d_in, r, d_out, seed):
    first, second = layers(d_in, r, d_out, seed=seed)
    x = torch.randn(9, d_in).double()
    with torch.no_grad():
        before, penalty = second(first(x)), DropoutPenalty(0.5)
        worth = first.weight.norm(dim=1) * second.weight.norm(dim=0)
        equalize_layers(first, second)
        assert_allclose(second(first(x)), before, atol=1e-9)
        scores = importance_scores(second.weight, first.weight.T).numpy()
        assert np.ptp(scores) < 1e-9
        assert scores @ scores <= worth @ worth + 1e-9
        assert np.isfinite(penalty(first, second).item())


def test_equalizing_without_biases_and_in_single_precision():
    first, second = layers(bias=False, dtype=torch.float32)
    x = torch.randn(9, 4)
    before = second(first(x))
    equalize_layers(first, second)
    assert first.weight.dtype == torch.float32
    assert_allclose(second(first(x)).detach(), before.detach(), atol=1e-5)


def test_certificate_splits_the_loss_into_centred_data_and_biases():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((100, 4)) + 2.0
    Y = X @ rng.standard_normal((4, 5)) + 1.0
    first, second = layers(bias=True)
    x, y = torch.tensor(X), torch.tensor(Y)
    expected = mean_over_masks(first, second, x, y, 0.5, "sum").item()
    certificate = certify_dropout(first, second, x, y)
    centred = LinearProblem(*moments(X - X.mean(0), Y - Y.mean(0)))
    weights = Weights(second.weight.detach().numpy(), first.weight.detach().numpy().T)
    power = np.var(Y, axis=0).sum()
    value = DropoutObjective(centred, 1.0).value(weights) + certificate["biases"].value * power
    assert_allclose(value, expected, rtol=1e-10)
    assert certificate["biases"].holds is False


def test_certificate_holds_at_the_optimum_with_its_biases():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((100, 4)) + 2.0
    Y = X @ rng.standard_normal((4, 5)) + 1.0
    centred = LinearProblem(*moments(X - X.mean(0), Y - Y.mean(0)))
    best = solve(centred, 1.0, 3).weights
    first, second = layers()
    first.weight.data, second.weight.data = torch.tensor(best.right.T), torch.tensor(best.left)
    first.bias.data = -first.weight.data @ torch.tensor(X.mean(0))
    second.bias.data = torch.tensor(Y.mean(0))
    certificate = certify_dropout(first, second, torch.tensor(X), torch.tensor(Y))
    assert certificate.holds, certificate.summary()
    data = torch.tensor(X)
    assert certify_dropout(*layers(4, 2, 4), data)["gap"].holds is False
    assert "biases" not in certify_dropout(*layers(4, 2, 4, bias=False), data)


def moments(X, Y):
    return Y.T @ X / len(X), X.T @ X / len(X), float((Y * Y).sum() / len(Y))


def test_compiles_under_autocast():
    first, second = layers(dtype=torch.float32)
    x = torch.randn(8, 4)
    penalty = DropoutPenalty(0.5)
    compiled = torch.compile(penalty, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = compiled(first, second, x)
    assert value.dtype == torch.float32
    assert_allclose(value.item(), penalty(first, second, x).item(), rtol=1e-6)
