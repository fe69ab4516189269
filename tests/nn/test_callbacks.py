"""Monitors: they log what the plain functions return, in Lightning and in plain loops."""

import subprocess
import sys

import pytest

from extras import require

torch = require("torch")
lightning = require("lightning.pytorch")

from lucidae.nn import (
    PrefixLoss,
    certificate_scalars,
    certify_dropout,
    certify_linear,
    collapse_report,
    collapse_scalars,
)
from lucidae.nn.callbacks import (
    CertificateMonitor,
    CollapseMonitor,
    PrefixMonitor,
    ScalarMonitor,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]


class Network(lightning.LightningModule):
    """A small VAE, a dropout bottleneck and a prefix loss in one module."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Linear(5, 6)
        self.decoder = torch.nn.Linear(3, 5)
        self.first, self.second = torch.nn.Linear(5, 2), torch.nn.Linear(2, 5)
        self.prefixes = PrefixLoss(lambda z: z.square().mean(), [1, 3])

    def encode(self, x):
        return self.encoder(x).chunk(2, dim=1)

    def decode(self, z):
        return self.decoder(z)

    def loss(self, x):
        mean, log_variance = self.encode(x)
        kl = (log_variance.exp() + mean.square() - 1 - log_variance).sum(1).mean() / 2
        error = (x - self.decode(mean)).square().sum(1).mean()
        dropped = (x - self.second(torch.nn.functional.dropout(self.first(x)))).square().mean()
        return error + kl + dropped + self.prefixes(mean)

    def training_step(self, batch, _index):
        return self.loss(batch)

    def validation_step(self, batch, _index):
        self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Board:
    """The part of a TensorBoard writer that takes figures."""

    def __init__(self):
        self.figures = {}

    def add_figure(self, name, figure, step):
        self.figures[name] = (figure, step)


class MemoryLogger(lightning.loggers.logger.Logger):
    """A logger that keeps everything in memory."""

    name, version = "memory", "0"

    def __init__(self):
        super().__init__()
        self.experiment = Board()
        self.metrics = {}

    def log_hyperparams(self, *_args, **_keywords):
        pass

    def log_metrics(self, metrics, step=None):
        self.metrics.update(metrics)


def rows():
    return torch.randn(24, 5, generator=torch.Generator().manual_seed(1))


def fit(monitors, validate=True, epochs=2, logger=None, **options):
    loader = torch.utils.data.DataLoader(rows(), batch_size=8)
    module = Network()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=logger or False,
        callbacks=monitors,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(module, loader, *([loader] if validate else []))
    return module, trainer


@pytest.mark.parametrize("validate", [True, False])
def test_the_log_has_what_the_plain_functions_return(validate):
    require("matplotlib")
    monitors = [
        CollapseMonitor(noise_variance=0.1),
        CertificateMonitor("first", "second", rows(), dropout=0.5),
        CertificateMonitor("first", "second", rows(), family="linear", name="pca"),
        PrefixMonitor(every_n_steps=1),
    ]
    logger = MemoryLogger()
    module, trainer = fit(monitors, validate, logger=logger)
    expected = {
        "collapse": collapse_scalars(collapse_report(module, rows(), noise_variance=0.1)),
        "certificate": certificate_scalars(certify_dropout(module.first, module.second, rows())),
        "pca": certificate_scalars(certify_linear(module.first, module.second, rows())),
    }
    for monitor in monitors[:3]:
        assert [row["epoch"] for row in monitor.history] == [0.0, 1.0]
        for name, value in expected[monitor.name].items():
            assert monitor.history[-1][name] == pytest.approx(value, rel=1e-5, abs=1e-9)
            logged = logger.metrics[f"{monitor.name}/{name}"]
            assert logged == pytest.approx(value, rel=1e-4, abs=1e-6)
    last = monitors[3].history[-1]
    stages = ("train", "val") if validate else ("train",)
    assert set(last) == {"epoch"} | {f"{s}/prefix_{b}" for s in stages for b in (1, 3)}
    if validate:
        mean = module.encode(rows())[0]
        assert last["val/prefix_1"] == pytest.approx(
            mean[:, :1].square().mean().item() / 3, rel=1e-5
        )
        assert logger.metrics["prefixes/val/prefix_1"] == pytest.approx(last["val/prefix_1"])
    assert set(logger.experiment.figures) == {"collapse", "certificate", "pca", "prefixes"}
    figure, step = logger.experiment.figures["collapse"]
    assert len(figure.axes) >= 4
    assert step == trainer.global_step == 6
    assert monitors[0].report.n_samples == 24
    assert monitors[1].certificate["gap"].holds is False


def test_every_other_epoch_and_no_sanity_check():
    monitor, prefixes = CollapseMonitor(rows(), every_n_epochs=2), PrefixMonitor()
    fit([monitor, prefixes], epochs=4, num_sanity_val_steps=1)
    assert [row["epoch"] for row in monitor.history] == [1.0, 3.0]
    assert len(prefixes.history) == 4
    again = CollapseMonitor(rows())
    again.load_state_dict(monitor.state_dict())
    assert again.history == monitor.history
    assert monitor.state_key != CollapseMonitor(rows(), name="other").state_key


def test_a_plain_loop_keeps_the_same_history_as_the_trainer():
    network = Network()
    collapse = CollapseMonitor(rows(), noise_variance=0.1)
    certificate = CertificateMonitor("first", "second", rows(), dropout=0.5)
    prefixes = PrefixMonitor()
    monitors = (collapse, certificate, prefixes)
    found = []
    for epoch in range(3):
        network.loss(rows() * (epoch + 1))
        prefixes.read(network, "train")
        found.append([monitor.measure(network) for monitor in monitors])
    for index, monitor in enumerate(monitors):
        expected = [{"epoch": float(epoch)} | row[index] for epoch, row in enumerate(found)]
        assert monitor.history == expected
    # Each epoch has its own mean: the losses of the epochs before are forgotten.
    last = network.encode(rows() * 3)[0][:, :1].square().mean().item() / 3
    assert prefixes.history[-1]["train/prefix_1"] == pytest.approx(last, rel=1e-5)
    assert prefixes.measure(network) == {}
    assert len(prefixes.history) == 3
    again = CollapseMonitor(rows())
    again.load_state_dict(collapse.state_dict())
    again.measure(network)
    assert again.history[-1]["epoch"] == 3.0
    assert len(collapse.history) == 3


@pytest.mark.parametrize(
    "monitor",
    [CollapseMonitor(rows()), CertificateMonitor("first", "second", rows()), PrefixMonitor()],
)
def test_only_modules_are_measured(monitor):
    with pytest.raises(ValueError, match="module is of type int, expected the network"):
        monitor.measure(3)
    assert monitor.history == []


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="every_n_epochs=0"):
        CollapseMonitor(rows(), every_n_epochs=0)
    with pytest.raises(ValueError, match="family='sparse'"):
        CertificateMonitor("a", "b", rows(), family="sparse")
    with pytest.raises(ValueError, match="family='linear', expected none"):
        CertificateMonitor("a", "b", rows(), rows(), family="linear")
    with pytest.raises(ValueError, match="outside of a training"):
        CollapseMonitor().measure(Network())


WITHOUT_LIGHTNING = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "lightning":
            raise ModuleNotFoundError(name, name=name)

import lucidae.nn
print("lightning" in sys.modules)
sys.meta_path.insert(0, Absent())
import torch
from lucidae.nn import DictionaryVAE
from lucidae.nn.callbacks import CollapseMonitor

monitor = CollapseMonitor(torch.randn(50, 2))
print(monitor.measure(DictionaryVAE(torch.eye(2), noise_variance=1.0))["active"])
print(len(monitor.history), "lightning" in sys.modules)
"""


def test_plain_loops_do_not_need_lightning():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIGHTNING], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["False", "0.0", "1 False"]


def test_a_monitor_without_scalars_cannot_be_made():
    with pytest.raises(TypeError, match="_scalars"):
        ScalarMonitor("name")
