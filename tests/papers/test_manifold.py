"""VAEs trained in stacks on data of known dimension, and the verdicts on what they measure."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from lucidae.nn import GaussianHead, hadamard_gap
from lucidae_papers.engine import experiment
from lucidae_papers.results import Measured, Results
from lucidae_papers.vae import manifold, manifold_runs
from lucidae_papers.vae.batched import ARMS, WIDEST, Design, Draws, VaeRun, VaeStack, generator
from lucidae_papers.vae.manifold import PAPER, SMOKE, compared
from lucidae_papers.vae.manifold_runs import image_generators, image_rows, random_generator

TINY = Design(
    hidden=8, steps=6, batch_size=10, learning_rate=1e-2, samples=1024, draws=1, gap_samples=20
)


def settings(**changed):
    usual = {
        "source": "random",
        "dimension": 2,
        "latents": 2,
        "noise": 0.05,
        "seed": 0,
        "arms": ["full", "diagonal"],
        "entries": 5,
        "design": {name: getattr(TINY, name) for name in TINY.__dataclass_fields__},
    }
    return usual | changed


def stack(runs, design=TINY, entries=5):
    """Return a stack of runs on the same linear data."""
    mixed = torch.randn((WIDEST, entries), generator=torch.Generator().manual_seed(9))
    return VaeStack(runs, lambda normal, _: normal @ mixed / 8, entries, design, "cpu")


def test_a_run_does_not_depend_on_its_stack():
    group = [settings(), settings(latents=5, seed=3, noise="learn"), settings(dimension=4)]
    together = manifold_runs.measure(group, "cpu")
    for one, expected in zip(group, together, strict=True):
        (alone,) = manifold_runs.measure([one], "cpu")
        assert alone.keys() == expected.keys()
        for name, values in alone.items():
            assert_allclose(values, expected[name], rtol=1e-3, atol=1e-6, err_msg=name)


def test_the_posterior_is_that_of_the_head():
    runs = [VaeRun(4, "full", 0.1, 0), VaeRun(2, "diagonal", 0.1, 0)]
    trained = stack(runs)
    trained.train()
    x = torch.randn((2, 7, 5), generator=torch.Generator().manual_seed(1))
    posterior = trained.encode(x)
    weights = {name: part.detach() for name, part in trained.weights.items()}
    for index, run in enumerate(runs):
        k = run.latents
        head = GaussianHead(8, k, "full" if run.arm == "full" else "diagonal")
        parts = {"mean": head.mean, "scale": head.scale, "factor": head.factor}
        for name, layer in parts.items():
            if layer is not None:
                size = layer.out_features
                layer.weight.data = weights[name][index, :, :size].T.contiguous()
                layer.bias.data = weights[f"{name}.bias"][index, 0, :size]
        features = x[index]
        for name in ("encoder.1", "encoder.2"):
            product = features @ weights[name][index] + weights[f"{name}.bias"][index]
            features = torch.nn.functional.silu(product)
        expected = head(features)
        assert_allclose(posterior.mean[index, :, :k].detach(), expected.mean.detach(), atol=1e-5)
        found = posterior.covariance[index].detach()
        assert_allclose(found[:, :k, :k], expected.covariance.detach(), rtol=1e-4, atol=1e-6)
        assert_allclose(posterior.kl()[index].detach(), expected.kl().detach(), rtol=1e-4)
        # Padded latents have the prior, and their weights stay zero.
        prior = torch.eye(4).expand(7, 4, 4)
        assert_allclose(found[:, k:, :], prior[:, k:, :])
        assert not posterior.mean[index, :, k:].any()
        assert not weights["decoder.1"][index, k:].any()
    off = posterior.covariance[0] - torch.diag_embed(posterior.variance[0])
    assert off.abs().max() > 1e-4


@pytest.mark.parametrize("arm", ["absolute", "not divided by √k"])
def test_an_arm_changes_the_factor_as_its_name_says(arm):
    one, other = (stack([VaeRun(3, kind, 0.1, 0)]) for kind in ("full", arm))
    x = torch.randn((1, 6, 5), generator=torch.Generator().manual_seed(1))
    factors = []
    for each in (one, other):
        each.coupling = torch.ones((1, 1, 1))
        factors.append(each.encode(x).factor[0].detach())
    full, changed = factors
    scale = torch.diagonal(full, dim1=-2, dim2=-1)
    assert_allclose(torch.diagonal(changed, dim1=-2, dim2=-1), scale)
    times = math.sqrt(3) if ARMS[arm].relative else math.sqrt(3) / scale[..., None]
    assert_allclose(torch.tril(changed, -1), torch.tril(full, -1) * times, rtol=1e-4, atol=1e-9)


def test_data_and_noise_are_drawn_from_different_generators():
    data, noise = (Draws([4, 7, 4], stream, 50, "cpu")()[0] for stream in ("data", "noise"))
    assert_allclose(data[0], data[2])
    for first, second in ((data[0], noise[0]), (data[0], data[1])):
        correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(first.numel())
    states = {generator(seed, name, "cpu").initial_seed() for seed in (0, 1) for name in STREAMS}
    assert len(states) == 2 * len(STREAMS)


STREAMS = ("weights", "data", "noise", "evaluation data", "evaluation noise")


def test_a_schedule_ends_at_its_noise_and_a_learned_noise_is_the_error():
    runs = [VaeRun(2, "full", 0.02, 0), VaeRun(2, "full", "learn", 0)]
    trained = stack(runs, replace(TINY, steps=300, batch_size=200))
    course = trained.train(records=4)
    fixed, learned = trained.evaluate()
    assert_allclose(fixed["noise_variance"], 0.02, rtol=1e-6)
    assert_allclose(learned["noise_variance"], learned["sampled_mse"], rtol=0.05)
    assert course.shape == (4, 2)
    assert course[-1, 1] < course[0, 1]  # a falling γ raises the loss of the first run
    entries = 5
    for found in (fixed, learned):
        noise = found["noise_variance"]
        fit = entries / 2 * (np.log(2 * np.pi * noise) + found["sampled_mse"] / noise)
        assert_allclose(found["loss"], fit + found["kl"], rtol=1e-6)
    codes = torch.randn((20, 2), generator=torch.Generator().manual_seed(0))
    gap = hadamard_gap(trained.decoder(0), codes=codes, noise_variance=0.02)
    assert gap.value >= 0.0


def test_a_diverged_run_is_reported_as_not_a_number():
    broken = stack([VaeRun(2, "full", 0.02, 0)])
    with torch.no_grad():
        broken.weights["mean"].fill_(torch.nan)
    (found,) = broken.evaluate()
    assert math.isnan(found["loss"])
    assert math.isnan(found["gap"])
    assert math.isnan(found["active_directions"])


@pytest.mark.parametrize("r", [1, 3])
def test_a_random_generator_has_r_dimensions_and_unit_variance(r):
    inner, outer = random_generator(0, r, 9)
    u = torch.randn((4000, r), generator=torch.Generator().manual_seed(0))
    x = torch.tanh(u @ inner) @ outer
    assert_allclose(x.var(0).mean(), 1.0, rtol=0.1)
    jacobian = torch.autograd.functional.jacobian(lambda v: torch.tanh(v @ inner) @ outer, u[0])
    assert int(torch.linalg.matrix_rank(jacobian)) == r
    assert int(torch.linalg.matrix_rank(x[:20])) > r


def test_images_come_from_the_decoders_that_were_trained():
    group = [
        settings(source="images", rows="digits", generator_steps=3, dimension=r) for r in (2, 3)
    ]
    copies = [0, 0, 1, 1]
    source, entries, kept = image_generators(group, copies, "cpu")
    assert entries == 64
    normal = torch.randn((4, 6, WIDEST), generator=torch.Generator().manual_seed(0))
    x = source(normal, normal[..., 0])
    assert x.shape == (4, 6, 64)
    assert_allclose(source(normal[:1].expand(4, -1, -1), normal)[0], x[0])
    shorter = normal.clone()
    shorter[..., 2:] = 0.0
    assert_allclose(source(shorter, normal)[:2], x[:2])
    assert (source(shorter, normal)[2:] - x[2:]).abs().max() > 1e-6
    assert [one["images"].shape for one in kept] == [(8, 64), (8, 64)]
    rows, _, _ = image_rows(group, copies, "cpu")
    drawn = rows(normal, torch.tensor([[0.0, 0.999999]]))
    assert drawn.shape == (1, 2, 64)
    assert drawn.max() <= 1.0


def made_up(setting, cost=0.5, low=0.3, high=0.8):
    """Return results in which every pair measures the given cost and gaps (in nats)."""
    arms = {"diagonal": {"loss": cost, "gap": low}, "full": {"loss": 0.0, "gap": high}}
    names = ("mse", "sampled_mse", "kl", "active", "active_directions", "noise_variance")
    cells = []
    for cell in setting.cells():
        chosen = cell.settings
        arrays = {"images": np.zeros((8, 64))}
        for arm in chosen["arms"]:
            measured = dict.fromkeys(names, 2.0 if arm == "diagonal" else 1.0)
            measured |= {"loss": 1.0, "gap": 0.0, "gap_error": 0.0} | arms.get(arm, {})
            measured["active_directions"] = chosen.get("dimension", 1) + (arm == "diagonal")
            arrays |= {f"{name}/{arm}": np.array(value) for name, value in measured.items()}
            arrays[f"course/{arm}"] = np.linspace(2.0, 1.0, 16)
        cells.append(Measured(chosen, arrays, {"seconds": 0.0}))
    return Results(tuple(cells))


def judged(setting, results):
    chosen = next(
        one
        for one in map(experiment("vae-manifold").at, ("smoke", "paper"))
        if one.setting == setting
    )
    curves = setting.curves(results)
    return {
        name: all(verdict.judge(curves, "a paper").holds for verdict in verdicts)
        for name, verdicts in chosen.expect.items()
    }


def test_every_verdict_holds_where_the_theory_does_and_fails_where_it_does_not():
    right = judged(PAPER, made_up(PAPER))
    assert all(right.values())
    bounds = {"bounds", "bounds_wide", "bounds_learned", "images"}
    for wrong in (made_up(PAPER, low=0.6), made_up(PAPER, high=0.4)):
        assert {name for name, holds in judged(PAPER, wrong).items() if not holds} == bounds
    worse = judged(PAPER, Results(swapped(made_up(PAPER))))
    assert not worse["error"]
    assert not worse["latents"]
    assert not worse["needed"]
    assert not worse["parts"]
    assert judged(SMOKE, made_up(SMOKE)) == {"bounds": True}
    assert judged(SMOKE, made_up(SMOKE, high=0.1)) == {"bounds": False}


def swapped(results):
    """Return cells in which the full covariance measures what the diagonal one did."""
    cells = []
    for cell in results:
        arrays = dict(cell.arrays)
        if "mse/full" in arrays:
            for name in ("mse", "active_directions"):
                arrays[f"{name}/full"] = arrays[f"{name}/diagonal"] + 1.0
            arrays["loss/full"] = arrays["loss/full"] + 9.0
        cells.append(Measured(cell.settings, arrays, cell.about))
    return tuple(cells)


def test_bounds_allow_for_the_spread_over_the_seeds():
    def pair(cost):
        values = {"loss/diagonal": cost, "loss/full": 0.0, "gap/diagonal": 1.0, "gap/full": 1.0}
        others = ("mse", "sampled_mse", "kl", "active_directions", "active", "noise_variance")
        values |= {f"{name}/{arm}": 1.0 for name in others for arm in ("full", "diagonal")}
        return Measured({}, {name: np.array(value) for name, value in values.items()}, {})

    found = compared([2], [Results((pair(0.7), pair(0.9)))])
    error = np.std([0.7, 0.9], ddof=1) / math.sqrt(2)
    assert_allclose(found["difference"].error, error)
    assert_allclose(found["difference"].each, [[0.7], [0.9]])
    assert_allclose(found["lower"].y, -0.2 + 3 * error)
    assert_allclose(found["upper"].y, 0.2 + 3 * error)
    assert found["mse_ratio"].y == 1.0


def test_the_figures_show_the_curves():
    require("matplotlib")
    require("jinja2")
    from lucidae_papers.drawings import plots
    from lucidae_papers.verdicts import Outcome

    results = made_up(SMOKE)
    curves = SMOKE.curves(results)
    outcome = Outcome(experiment("vae-manifold"), "smoke", results, curves, ())
    drawn = plots(outcome)
    assert len({plot.name for plot in drawn}) == len(drawn) == 5
    first = drawn[0]
    place = first.numbers["series"].index("difference/random/1/0.01")
    assert first.numbers["y"][place] == pytest.approx(0.5)
    assert all(plot.svg.lstrip().startswith("<svg") for plot in drawn)


def test_without_torch_the_sentence_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "lucidae_papers.vae.manifold_runs", None)
    monkeypatch.delattr("lucidae_papers.vae.manifold_runs", raising=False)
    with pytest.raises(ValueError, match=r"lucidae\[torch\]"):
        manifold.SMOKE.cells()
