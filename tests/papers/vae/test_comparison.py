"""Cells of the comparison of full with diagonal covariance."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae_papers.declaration import Measured, Results
from lucidae_papers.vae.comparison import (
    COVARIANCES,
    RUNS,
    RunSettings,
    as_tensor,
    cell_settings,
    digits,
    measure,
    train_model,
)
from lucidae_papers.vae.mnist import Comparison
from lucidae_papers.vae.training import TrainingSettings

TINY = replace(
    RUNS["smoke"],
    latent_dim=3,
    features=8,
    training=TrainingSettings(epochs=1, batch_size=50),
)


def images(count=100):
    return [as_tensor(x[:count], "cpu") for x in digits()]


def test_a_cell_contains_what_one_arm_measures():
    cells = cell_settings("smoke")
    assert json.loads(json.dumps(cells)) == cells
    assert len(cell_settings("paper")) == 6
    chosen = replace(TINY, training=TrainingSettings(epochs=1, batch_size=500))
    group = [cell | {"design": asdict(chosen)} for cell in cells]
    whole = [as_tensor(x, "cpu") for x in digits()]
    for cell, arrays in zip(cells, measure(group, "cpu"), strict=True):
        expected = train_model(*whole, chosen, cell["arm"], cell["seed"])
        assert arrays.keys() == expected.keys()
        for name, values in expected.items():
            assert_allclose(arrays[name], values, rtol=0, err_msg=name)
        assert arrays[f"{cell['arm']}_reconstructions"].shape == (10, 8, 8)
        assert arrays[f"{cell['arm']}_samples"].dtype == np.uint8


@pytest.mark.parametrize(("setting", "value"), [("data", "faces"), ("arm", "low_rank")])
def test_unknown_settings_of_a_cell_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        measure([cell_settings("smoke")[0] | {setting: value}], "cpu")


def test_a_fixed_noise_variance_stays():
    for kind in COVARIANCES:
        found = train_model(*images(), replace(TINY, noise_variance=0.07), kind, 0)
        assert_allclose(found["noise_variance"], 0.07, rtol=1e-6)
        fit = 64 / 2 * (math.log(2 * math.pi * 0.07) + found["sampled_mse"] / 0.07)
        assert_allclose(found["loss"], fit + found["kl"], rtol=1e-5)
        learned = train_model(*images(), TINY, kind, 0)
        assert learned["noise_variance"][-1] != pytest.approx(0.07, rel=1e-3)


def test_cells_name_the_noise_variance_only_where_it_is_fixed():
    learned, fixed = (cell_settings("paper", noise) for noise in ("learn", 0.01))
    for plain, cell in zip(learned, fixed, strict=True):
        assert "noise_variance" not in plain["design"]
        assert cell["design"] == plain["design"] | {"noise_variance": 0.01}
        assert RunSettings.of(plain["design"]).noise_variance == "learn"
        assert RunSettings.of(cell["design"]).noise_variance == 0.01
        assert json.loads(json.dumps(cell)) == cell


def test_divergence_names_the_arm_and_the_seed():
    x, held_out = images()
    with pytest.raises(ValueError, match="full covariance and seed 3 diverged"):
        train_model(x * torch.nan, held_out, TINY, "full", 3)


def test_curves_are_means_over_the_seeds():
    names = ("mse", "sampled_mse", "kl", "active", "active_directions", "loss", "noise_variance")
    cells = [
        Measured(cell, {name: np.full(2, cell["seed"] + (kind == "full")) for name in names}, {})
        for kind, cell in ((cell["arm"], cell) for cell in cell_settings("paper"))
    ]
    curves = Comparison("paper", 1.0).curves(Results(tuple(cells)))
    assert_allclose(curves["mse/full"].y, 2.0)
    assert_allclose(curves["mse/diagonal"].y, 1.0)
    assert_allclose(curves["evidence"].y, 1.0)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: replace(TINY, noise_variance=0.0), "noise_variance=0.0"),
        (lambda: replace(TINY, noise_variance=math.nan), "noise_variance=nan"),
        (lambda: cell_settings("smoke", "auto"), "noise_variance='auto'"),
        (lambda: cell_settings("huge"), "scale='huge'"),
    ],
)
def test_bad_input_is_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()


@pytest.mark.slow
def test_the_full_covariance_is_not_worse_at_smoke_scale():
    pair = [as_tensor(x, "cpu") for x in digits()]
    found = {
        kind: [train_model(*pair, RUNS["smoke"], kind, seed) for seed in (0, 1)]
        for kind in COVARIANCES
    }
    last = {
        name: {kind: [run[name][-1] for run in runs] for kind, runs in found.items()}
        for name in ("loss", "active_directions", "mse")
    }
    assert max(last["loss"]["full"]) < min(last["loss"]["diagonal"])
    directions = last["active_directions"]
    assert np.mean(directions["full"]) <= np.mean(directions["diagonal"])
    assert np.mean(last["mse"]["full"]) < 0.035
