"""Training: it learns, it resumes to the same numbers, it is measured right, it judges honestly."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.experiments.vae.cell import cell_settings, digits, measure
from lucidae.experiments.vae.checkpoint import load_model, save_model
from lucidae.experiments.vae.comparison import SCALES, Design, compare_covariances
from lucidae.experiments.vae.evaluation import evaluate
from lucidae.experiments.vae.shell import main
from lucidae.experiments.vae.training import TrainingSettings, train
from lucidae.experiments.vae.verdict import verdict
from lucidae.iteration import Status
from lucidae.metrics import active_dimensions
from lucidae.nn import VAE

SETTINGS = TrainingSettings(epochs=3, batch_size=50, learning_rate=5e-3)


def data(n=200):
    train_x, test_x = digits()
    return tuple(torch.tensor(x[:n, None], dtype=torch.float32) for x in (train_x, test_x))


def fresh(kind="full", **others):
    torch.manual_seed(0)
    return VAE.resnet((1, 8, 8), 4, covariance=kind, width=8, features=16, stages=1, **others)


class StopAfter:
    def __init__(self, checks):
        self.left = checks

    def __call__(self, progress):
        self.left -= 1
        return self.left < 0


def test_training_lowers_the_loss_and_is_repeatable():
    x, held_out = data()
    first, second = (train(fresh(), x, held_out, SETTINGS) for _ in range(2))
    history = first.history
    assert first.status is Status.ITERATION_LIMIT
    assert history["loss"][-1] < history["loss"][0]
    assert history["train_mse"][-1] < history["train_mse"][0]
    for name in history:
        assert_allclose(second.history[name], history[name], rtol=0, err_msg=name)


def test_an_interrupted_run_goes_on_to_the_same_numbers(tmp_path):
    x, held_out = data()
    whole = train(fresh(), x, held_out, SETTINGS)
    path = tmp_path / "run.npz"
    cut = train(fresh(), x, held_out, SETTINGS, checkpoint=path, callbacks=[StopAfter(1)])
    assert cut.status is Status.STOPPED
    assert len(cut.history) == 1
    torch.manual_seed(99)  # neither the caller's random state nor the start matters now
    other = VAE.resnet((1, 8, 8), 4, width=8, features=16, stages=1)
    ended = train(other, x, held_out, SETTINGS, checkpoint=path)
    for name in whole.history:
        assert_allclose(ended.history[name], whole.history[name], rtol=0, err_msg=name)
    again = train(fresh(), x, held_out, SETTINGS, checkpoint=path)
    assert again.n_iter == ended.n_iter
    assert len(again.history) == 3


def test_a_checkpoint_of_other_settings_or_another_model_is_refused(tmp_path):
    x, held_out = data(100)
    path = tmp_path / "run.npz"
    short = replace(SETTINGS, epochs=1)
    train(fresh(), x, held_out, short, checkpoint=path)
    with pytest.raises(ValueError, match="other settings"):
        train(fresh(), x, held_out, SETTINGS, checkpoint=path)
    with pytest.raises(ValueError, match="another model"):
        train(fresh("diagonal"), x, held_out, short, checkpoint=path)
    with pytest.raises(ValueError, match="other settings"):  # its own γ would replace this one
        train(fresh(noise_variance=0.1), x, held_out, short, checkpoint=path)
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match="damaged"):
        train(fresh(), x, held_out, short, checkpoint=path)


def test_the_callers_random_state_is_left_alone():
    x, held_out = data(100)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = fresh()
    torch.manual_seed(5)
    train(model, x, held_out, replace(SETTINGS, epochs=1))
    evaluate(model, held_out)
    assert torch.equal(torch.rand(3), expected)


def test_divergence_is_named():
    x, held_out = data(100)
    model = fresh()
    with torch.no_grad():
        model.head.mean.bias.fill_(torch.nan)
    ended = train(model, x, held_out, SETTINGS)
    assert ended.status is Status.DIVERGED
    assert len(ended.history) == 1


def test_latents_are_independent_at_first_and_coupled_in_the_end():
    steps = [SETTINGS.coupling(step, 80) for step in range(80)]
    assert max(steps[:20]) == 0.0 < min(steps[20:])
    assert min(steps[29:]) == 1.0
    assert np.all(np.diff(steps) >= 0)
    assert all(replace(SETTINGS, uncoupled=0.0).coupling(step, 80) == 1.0 for step in range(80))
    for total in range(1, 9):
        assert replace(SETTINGS, uncoupled=0.5).coupling(total - 1, total) == 1.0


def test_an_uncoupled_full_covariance_trains_as_a_diagonal_one():
    x, held_out = data()
    quarter = replace(SETTINGS, epochs=4)
    full, diagonal = (train(fresh(kind), x, held_out, quarter) for kind in ("full", "diagonal"))
    for name in diagonal.history:
        assert_allclose(full.history[name][0], diagonal.history[name][0], rtol=1e-4, err_msg=name)
    assert full.value.model.head.coupling == 1.0
    assert not torch.equal(full.value.model.head.factor.weight, fresh().head.factor.weight)


def test_half_precision_trains():
    x, held_out = data(100)
    ended = train(fresh(), x, held_out, replace(SETTINGS, epochs=1, precision="bfloat16"))
    assert all(math.isfinite(values[-1]) for values in ended.history.values.values())


def test_evaluation_measures_what_it_says():
    _, x = data()
    model = fresh().double().eval()
    x = x.double()
    with torch.no_grad():
        model.head.scale.bias.fill_(-3.0)
        model.head.mean.weight.mul_(10.0)
        figures = evaluate(model, x)
        posterior = model.encode(x)
        errors = torch.stack([
            (x - model.decode(posterior.rsample())).square().mean() for _ in range(50)
        ])  # fmt: skip
        assert_allclose(figures["mse"], (x - model.reconstruct(x)).square().mean(), rtol=1e-9)
        assert_allclose(figures["kl"], posterior.kl().mean(), rtol=1e-9)
    assert abs(figures["sampled_mse"] - errors.mean()) < 6 * errors.std()
    assert figures["active"] == active_dimensions(posterior.mean, posterior.variance) > 0
    size, noise = 64, figures["noise_variance"]
    fit = size / 2 * (math.log(2 * math.pi * noise) + figures["sampled_mse"] / noise)
    assert_allclose(figures["loss"], fit + figures["kl"], rtol=1e-6)


def test_saved_models_come_back(tmp_path):
    model, other = fresh(), VAE.resnet((1, 8, 8), 4, width=8, features=16, stages=1)
    save_model(tmp_path / "model.npz", model)
    load_model(tmp_path / "model.npz", other)
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(model.reconstruct(x), other.reconstruct(x))


TINY = replace(
    SCALES["smoke"],
    latent_dim=3,
    features=8,
    seeds=(0, 1),
    training=TrainingSettings(epochs=1, batch_size=50),
)


def test_study_runs_both_arms_of_every_seed_and_resumes(tmp_path):
    images, held_out = (x[:100] for x in digits())
    lines = []
    study = compare_covariances(images, held_out, TINY, checkpoints=tmp_path, report=lines.append)
    assert [(run["arm"], run["seed"]) for run in study["runs"]] == [
        ("full", 0), ("diagonal", 0), ("full", 1), ("diagonal", 1)
    ]  # fmt: skip
    assert len(lines) == 4
    assert study["pictures"]["full_reconstructions"].shape == (10, 8, 8)
    assert len(list(tmp_path.glob("*.npz"))) == 4
    pixels = (images * 255).round().astype(np.uint8)
    assert compare_covariances(pixels, pixels, replace(TINY, seeds=(0,)))["runs"]
    again = compare_covariances(images, held_out, TINY, checkpoints=tmp_path)
    for run, repeated in zip(study["runs"], again["runs"], strict=True):
        assert run["history"] == repeated["history"]
    del study["pictures"]
    json.dumps(study)


def test_cells_of_an_experiment_are_the_runs_of_the_study():
    cells = cell_settings("smoke")
    assert json.loads(json.dumps(cells)) == cells
    assert len(cell_settings("paper")) == 6
    tiny = asdict(TINY) | {"training": asdict(TrainingSettings(epochs=1, batch_size=500))}
    group = [cell | {"design": tiny} for cell in cells[:2]]
    design = replace(TINY, training=TrainingSettings(epochs=1, batch_size=500), seeds=(0,))
    study = compare_covariances(*digits(), design)
    for arrays, run in zip(measure(group, "cpu"), study["runs"], strict=True):
        assert_allclose(arrays["mse"], run["history"]["mse"], rtol=0)
    with pytest.raises(ValueError, match="data"):
        measure([cells[0] | {"data": "faces"}], "cpu")
    with pytest.raises(ValueError, match="arm"):
        measure([cells[0] | {"arm": "low_rank"}], "cpu")


def test_a_fixed_noise_variance_stays_and_is_reported():
    images, held_out = (x[:100] for x in digits())
    lines = []
    design = replace(TINY, seeds=(0,), noise_variance=0.07)
    study = compare_covariances(images, held_out, design, report=lines.append)
    assert study["design"]["noise_variance"] == 0.07
    assert all("γ 0.07" in line for line in lines)
    for run in study["runs"]:
        history = {name: np.array(values) for name, values in run["history"].items()}
        assert_allclose(history["noise_variance"], 0.07, rtol=1e-6)
        fit = 64 / 2 * (math.log(2 * math.pi * 0.07) + history["sampled_mse"] / 0.07)
        assert_allclose(history["loss"], fit + history["kl"], rtol=1e-5)
    learned = compare_covariances(images, held_out, replace(TINY, seeds=(0,)))
    for run in learned["runs"]:
        assert run["history"]["noise_variance"][-1] != pytest.approx(0.07, rel=1e-3)


def test_cells_name_the_noise_variance_only_where_it_is_fixed():
    learned, fixed = (cell_settings("paper", noise) for noise in ("learn", 0.01))
    for plain, cell in zip(learned, fixed, strict=True):
        assert "noise_variance" not in plain["design"]
        assert cell["design"] == plain["design"] | {"noise_variance": 0.01}
        assert Design.of(plain["design"]).noise_variance == "learn"
        assert Design.of(cell["design"]).noise_variance == 0.01
        assert json.loads(json.dumps(cell)) == cell


@pytest.mark.slow
def test_several_processes_give_the_same_study():
    images, held_out = (x[:60] for x in digits())
    design = replace(TINY, training=TrainingSettings(epochs=1, batch_size=30))
    alone = compare_covariances(images, held_out, design)
    shared = compare_covariances(images, held_out, design, workers=2)
    for one, two in zip(alone["runs"], shared["runs"], strict=True):
        assert one["seed"] == two["seed"]
        assert_allclose(one["history"]["mse"], two["history"]["mse"], rtol=1e-4)


def finished(arm, mse, active, directions, seed=0):
    history = {"mse": [9.0, mse], "active": [active], "active_directions": [directions]}
    return {"arm": arm, "seed": seed, "history": history | {"loss": [1.0]}}


@pytest.mark.parametrize(
    ("full", "diagonal", "expected"),
    [
        ((0.1, 4, 3), (0.2, 8, 8), (True, True, True)),
        ((0.3, 4, 3), (0.2, 8, 8), (False, True, True)),
        ((0.1, 8, 3), (0.2, 8, 8), (True, True, False)),
        ((0.1, 9, 9), (0.2, 8, 8), (True, False, False)),
    ],
)
def test_verdict_is_what_was_measured(full, diagonal, expected):
    certificate = verdict([finished("full", *full), finished("diagonal", *diagonal)])
    names = ("reconstruction", "active directions", "active latents")
    assert tuple(certificate[name].holds for name in names) == expected
    assert certificate["evidence"].holds is None


def test_command_writes_its_results(tmp_path, capsys):
    images, held_out = (x[:60] for x in digits())
    np.savez(tmp_path / "images.npz", train=images, test=held_out)
    arguments = ["--data", str(tmp_path / "images.npz"), "--out", str(tmp_path / "out")]
    arguments += ["--epochs", "1", "--seeds", "3", "--latent-dim", "2", "--no-compiled"]
    SCALES["tiny"] = TINY
    try:
        assert main([*arguments, "--scale", "tiny", "--noise-variance", "0.2"]) == 0
    finally:
        del SCALES["tiny"]
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {entry["seed"] for entry in results["runs"]} == {3}
    assert results["design"]["latent_dim"] == 2
    assert results["design"]["noise_variance"] == 0.2
    assert results["summary"]["full"]["noise_variance"]["mean"] == pytest.approx(0.2)
    assert (tmp_path / "out" / "pictures.npz").exists()
    assert "active directions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: TrainingSettings(epochs=0), "epochs=0"),
        (lambda: TrainingSettings(learning_rate=0.0), "learning_rate"),
        (lambda: TrainingSettings(precision="float16"), "precision"),
        (lambda: TrainingSettings(uncoupled=0.6), "uncoupled"),
        (lambda: replace(TINY, noise_variance=0.0), "noise_variance=0.0"),
        (lambda: replace(TINY, noise_variance=math.nan), "noise_variance=nan"),
        (lambda: cell_settings("smoke", "auto"), "noise_variance='auto'"),
        (lambda: train(fresh(), *data(10), SETTINGS), "batch_size=50"),
        (lambda: compare_covariances(np.ones((3, 4)), np.ones((3, 4)), TINY), "height"),
        (lambda: compare_covariances(np.ones((3, 4, 4)), None, TINY, workers=0), "workers"),
    ],
)
def test_bad_input_is_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()


def test_a_file_without_the_right_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "images.npz", something=np.ones(3))
    with pytest.raises(ValueError, match="'train' and 'test'"):
        main(["--data", str(tmp_path / "images.npz"), "--out", str(tmp_path)])


@pytest.mark.slow
def test_smoke_study_finds_the_larger_family_no_worse():
    design = replace(SCALES["smoke"], seeds=(0, 1))
    summary = compare_covariances(*digits(), design)["summary"]
    full, diagonal = summary["full"], summary["diagonal"]
    assert max(full["loss"]["runs"]) < min(diagonal["loss"]["runs"])
    assert full["active_directions"]["mean"] <= diagonal["active_directions"]["mean"]
    assert full["mse"]["mean"] < 0.035
