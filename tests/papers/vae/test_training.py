"""Training of VAEs: repeatable, resumable, and evaluated correctly."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.iteration import Status
from lucidae.metrics import active_dimensions
from lucidae.nn import VAE
from lucidae_papers.vae.comparison import digits
from lucidae_papers.vae.training import TrainingSettings, evaluate, train

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


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: TrainingSettings(epochs=0), "epochs=0"),
        (lambda: TrainingSettings(learning_rate=0.0), "learning_rate"),
        (lambda: TrainingSettings(precision="float16"), "precision"),
        (lambda: TrainingSettings(uncoupled=0.6), "uncoupled"),
        (lambda: train(fresh(), *data(10), SETTINGS), "batch_size=50"),
    ],
)
def test_bad_input_is_refused(act, words):
    with pytest.raises(ValueError, match=words):
        act()
