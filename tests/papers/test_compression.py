"""Runs of the experiment on compressed networks: what they measure, and that verdicts can fail."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from lucidae_papers.compression import EXPERIMENT, METHODS, Compression
from lucidae_papers.compression_runs import SCALINGS, Inputs, _decomposed, library_text, measure
from lucidae_papers.results import Measured, Results

FEW = {"steps": 120, "batch_size": 32, "learning_rate": 1e-2}
TINY = Compression(
    {
        "perceptron": {"data": "digits", "width": 32, **FEW},
        "convolutional": {"data": "digits", "width": 8, **FEW},
        "language": {"width": 16, "depth": 1, "length": 16, **FEW},
    },
    (0.4, 0.8),
    calibration=150,
    held_out=100,
    seeds=(0,),
    seconds=1.0,
)


@pytest.mark.parametrize("cell", TINY.cells(), ids=lambda cell: cell.settings["network"])
def test_a_run_is_repeatable_and_its_plans_are_certified(cell):
    before = torch.get_rng_state()
    first, second = measure([cell.settings, cell.settings], "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert first["failed"] == 0
    for method in METHODS:
        assert_allclose(first[f"loss/{method}"], second[f"loss/{method}"], rtol=1e-6)
        assert first[f"loss/{method}"].shape == (2,)
    assert first["dense"] < (5.0 if cell.settings["network"] == "language" else 2.2)
    assert_allclose(first["loss/sequential"][1], first["dense"], rtol=0.1)


@pytest.mark.parametrize("method", SCALINGS)
@pytest.mark.parametrize("rank_of_inputs", [6, 3])
def test_recipes_reproduce_the_weight_at_full_rank_and_whitening_is_best_below(
    method, rank_of_inputs
):
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 5)
    x = torch.randn(200, rank_of_inputs).double() @ torch.randn(rank_of_inputs, 6).double()
    inputs = Inputs()
    inputs.add(x[:80])
    inputs.add(x[80:])
    factors = _decomposed(layer, inputs, method)
    with torch.no_grad():
        weight = layer.weight.double()
        assert_allclose(factors(5).second @ factors(5).first, weight, atol=1e-6)
        B, A = factors(2)[:2]
        error = (x @ (weight - B @ A).mT).square().sum()
        best = torch.linalg.svdvals(x @ weight.mT)[2:].square().sum()
        if method == "whitened":
            assert_allclose(error, best, rtol=1e-3)
        else:
            assert error > 1.001 * best


def test_the_text_has_two_parts_without_a_common_file():
    train, test = library_text()
    assert len(train) > 5 * len(test) > 10**5
    assert b"def " in test


def judged(changes):
    """Return the verdicts at paper scale for made-up losses: `changes` by network and method."""
    setting = EXPERIMENT.at("paper").setting
    cells = []
    for cell in setting.cells():
        network, count = cell.settings["network"], len(setting.shares)
        losses = dict.fromkeys(METHODS, 1.0)
        losses |= {"svd": 1.3, "asvd": 1.2, "gradients": 0.9, "relative": 0.95, "sequential": 0.8}
        losses |= changes.get(network, {})
        arrays = {f"loss/{method}": np.full(count, loss) for method, loss in losses.items()}
        arrays |= {"dense": 0.7, "parameters": 1e6, "singular": 1}
        arrays |= {"failed": changes.get("failed", 0)}
        cells.append(Measured(cell.settings, arrays, {}))
    curves = setting.curves(Results(tuple(cells)))
    return {
        name: all(verdict.judge(curves, "a paper").holds for verdict in expected)
        for name, expected in EXPERIMENT.at("paper").expect.items()
    }


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, set()),
        ({"language": {"whitened": 1.25, "equal": 1.25}}, {"whitening"}),
        ({"perceptron": {"equal": 1.1}}, {"factors"}),
        ({"convolutional": {"gradients": 1.01}}, {"ranks"}),
        ({"language": {"sequential": 0.92}}, {"sequential"}),
        ({"failed": 1}, {"certificates"}),
    ],
)
def test_verdicts_can_fail(changes, failing):
    assert {name for name, holds in judged(changes).items() if not holds} == failing
