"""Deep VAEs: training, the comparison of covariances, and posteriors optimised one by one."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from lucidae.metrics import active_dimensions
from lucidae.nn import VAE
from lucidae.nn.training import TrainingSettings, evaluate, train
from lucidae_papers import experiment
from lucidae_papers.results import Measured, Results
from lucidae_papers.vae import mnist, published
from lucidae_papers.vae.images import digits

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
    assert ended.status.name == "DIVERGED"
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


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: TrainingSettings(epochs=0), "epochs=0"),
        (lambda: TrainingSettings(learning_rate=0.0), "learning_rate"),
        (lambda: TrainingSettings(uncoupled=0.6), "uncoupled"),
        (lambda: train(fresh(), *data(10), SETTINGS), "batch_size=50"),
    ],
)
def test_bad_settings_of_a_training_are_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()


def settings(arm, **changes):
    """Return the settings of a small run of the experiment, with changes."""
    names = ("vae-mnist", "vae-mnist-decoder")
    cells = [cell for name in names for cell in experiment(name).at("smoke").setting.cells()]
    (one,) = (
        cell.settings for cell in cells if (cell.settings["arm"], cell.settings["seed"]) == arm
    )
    return {**one, "epochs": 1, **changes}


@pytest.mark.parametrize("arm", published.ARMS)
def test_every_arm_of_the_published_networks_trains(arm):
    (found,) = published.measure([settings((arm, 1))], "cpu")
    k = settings((arm, 1))["latents"]
    assert found["covariance"].shape == (k, k)
    assert np.all(np.linalg.eigvalsh(found["covariance"]) > 0)
    coupled = np.abs(found["covariance"] - np.diag(np.diag(found["covariance"]))).max()
    assert (coupled > 1e-8) == arm.startswith("full")
    assert np.isfinite(found["loss"]).all()
    json.dumps(settings((arm, 1)))


def test_the_published_networks_have_the_published_sizes():
    model = published.make_vae(28, 32, 5, "diagonal", 0)
    x = torch.rand(3, 1, 28, 28)
    features = model.encoder(x)
    assert features.shape == (3, 32)
    assert model.decode(torch.zeros(2, 32)).shape == (2, 1, 28, 28)
    # Weights counted by hand: convolutions without bias, normalisations 2 and PReLU 1 each.
    first = 5 * 9 + 10 + 1
    halves = (25 * 9 + 10 + 1 + 25 * 9 + 10) + (25 + 10) + 1
    halves += (50 * 9 + 20 + 1 + 100 * 9 + 20) + (50 + 20) + 1
    hidden = 10 * 32 + 32 + 1
    assert sum(part.numel() for part in model.encoder.parameters()) == first + halves + hidden
    grown = 2 * (25 * 9 + 10 + 1 + 25 * 16 + 5 + 10 + 1)
    decoder = 32 * 245 + 245 + grown + 5 * 9 + 2 + 1
    assert sum(part.numel() for part in model.decoder.parameters()) == decoder


def test_one_cycle_is_that_of_torch():
    cycle = published.OneCycle(learning_rate=2e-3)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=2e-3, total_steps=1001, cycle_momentum=False
    )
    for step in range(1000):
        assert_allclose(cycle.rate(step, 1001), schedule.get_last_lr()[0], rtol=1e-9)
        optimizer.step()
        schedule.step()


def test_an_interrupted_run_of_the_published_networks_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(published.tempfile, "gettempdir", lambda: str(tmp_path))
    chosen = settings(("full", 1), epochs=2)
    (whole,) = published.measure([chosen], "cpu")
    assert not list((tmp_path / "lucidae-checkpoints").iterdir())

    def cut(*given, **others):
        return train(*given, **others, callbacks=[StopAfter(1)])

    monkeypatch.setattr(published, "train", cut)
    monkeypatch.setattr(published, "_mean_covariance", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        published.measure([chosen], "cpu")
    monkeypatch.undo()
    monkeypatch.setattr(published.tempfile, "gettempdir", lambda: str(tmp_path))
    (again,) = published.measure([chosen], "cpu")
    assert_allclose(again["loss"], whole["loss"], rtol=0)


def test_active_latents_are_counted_by_coordinate_and_by_direction():
    """A rotation hides inactive directions from the coordinates."""
    setting = experiment("vae-mnist").at("smoke").setting
    k = setting.latents
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(k, k)))[0]
    plain = np.diag([0.01] * 3 + [1.0] * (k - 3))
    history = {name: np.ones(2) for name in mnist.QUANTITIES}
    cells = [
        Measured(
            cell.settings,
            {
                **history,
                "covariance": turn @ plain @ turn.T if "full" in cell.settings["arm"] else plain,
            },
            {},
        )
        for cell in setting.cells()
    ]
    curves = setting.curves(Results(tuple(cells)))
    assert_allclose(curves["directions/full"].y, 3)
    assert_allclose(curves["directions/diagonal"].y, 3)
    assert_allclose(curves["coordinates/diagonal"].y, 3)
    assert curves["coordinates/full"].y[0] < 3
