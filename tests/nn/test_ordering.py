"""Post-hoc ordering: same function, principal axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.metrics import axis_alignment_distance
from lucidae.nn import order_dimensions


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


def test_batches_and_the_whole_agree_and_single_precision_is_kept():
    first, second = layers(5, 3, 5, dtype=torch.float32), layers(5, 3, 5, dtype=torch.float32)
    x = torch.randn(40, 5)
    whole = order_dimensions(*first, x)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=7)
    assert whole.dtype == torch.float32
    assert_allclose(order_dimensions(*second, loader), whole, rtol=1e-6)
    assert_allclose(second[1].weight.detach(), first[1].weight.detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.nn.ReLU(), torch.nn.Linear(2, 3), torch.ones(4, 3)), "ReLU"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(4, 3), torch.ones(4, 3)), "bottleneck"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), torch.ones(4, 5)), r"\(batch, 3\)"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), torch.ones(1, 3)), "at least two"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), torch.full((4, 3), torch.nan)), "NaN"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), []), "no batch"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), 7), "loader"),
        ((torch.nn.Linear(3, 2), torch.nn.Linear(2, 3), [torch.ones(3)]), r"\(batch, …\)"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        order_dimensions(*arguments)


def test_diverged_layers_are_refused():
    encoder, decoder = layers(3, 2, 3)
    decoder.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match="diverged"):
        order_dimensions(encoder, decoder, torch.ones(4, 3))
