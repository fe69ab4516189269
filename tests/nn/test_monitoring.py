"""Scalars for the log of a training, and monitors that write them in Lightning or plain loops."""

import math
import subprocess
import sys

import pytest
from numpy.testing import assert_allclose

from extras import require
from interpreters import without

torch = require("torch")
lightning = require("lightning.pytorch")

from lucidae.nn import (
    DictionaryVAE,
    PrefixLoss,
    certificate_scalars,
    certify_dropout,
    certify_linear,
    collapse_report,
    collapse_scalars,
    mean_scalars,
    prefix_scalars,
    scalars_figure,
)
from lucidae.nn.callbacks import (
    CertificateMonitor,
    CollapseMonitor,
    PrefixMonitor,
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


def test_plain_loops_do_not_need_lightning():
    program = """
import torch
from lucidae.nn import DictionaryVAE
from lucidae.nn.callbacks import CollapseMonitor

monitor = CollapseMonitor(torch.randn(50, 2))
print(monitor.measure(DictionaryVAE(torch.eye(2), noise_variance=1.0))["active"])
print(len(monitor.history), "lightning" in sys.modules)
"""
    command = [sys.executable, "-c", without(["lightning"], program)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["0.0", "1 False"]


def data(n=200):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x * torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)


def principal_layers(turn=None):
    """Return an encoder and a decoder at the principal components, turned if asked."""
    x = data() - data().mean(0)
    top = torch.linalg.eigh(x.T @ x / len(x)).eigenvectors.flip(1)[:, :2]
    top = top if turn is None else top @ turn
    encoder, decoder = torch.nn.Linear(4, 2).double(), torch.nn.Linear(2, 4).double()
    encoder.weight.data, decoder.weight.data = top.T.clone(), top.clone()
    return encoder, decoder


def test_a_linear_bottleneck_is_judged_by_the_principal_components():
    certificate = certify_linear(*principal_layers(), data())
    assert certificate.holds
    turned = certify_linear(
        *principal_layers(torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()), data()
    )
    assert turned["subspace"].holds
    assert turned["alignment"].holds is False


def test_scalars_of_a_certificate_are_its_values():
    certificate = certify_linear(*principal_layers(), data())
    scalars = certificate_scalars(certificate)
    for claim in certificate.claims:
        if claim.value is not None and math.isfinite(claim.value):
            assert scalars[claim.name] == claim.value
    assert scalars["claims_failed"] == 0
    assert scalars["claims_held"] == sum(claim.holds is True for claim in certificate.claims)
    first, second = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    found = certificate_scalars(certify_dropout(first, second, data()))
    assert found["gap"] > 0
    assert found["claims_failed"] >= 1
    assert all(type(value) is float for value in found.values())


def test_scalars_of_a_collapse_report_are_its_numbers():
    report = collapse_report(DictionaryVAE(torch.eye(4).double(), 0.5), data())
    scalars = collapse_scalars(report)
    assert scalars["active"] == report.n_active
    assert scalars["total_kl"] == report.total_kl
    assert scalars["linear_latents"] == 4
    assert all(type(value) is float for value in scalars.values())


def test_scalars_of_prefixes_inside_a_network():
    one, two = PrefixLoss(torch.sum, [1, 3]), PrefixLoss(torch.mean, [2], name="other")
    network = torch.nn.ModuleDict({"a": one, "b": two})
    one(torch.ones(2, 4))
    two(torch.ones(2, 4))
    assert prefix_scalars(network) == {"prefix_1": 2.0, "prefix_3": 6.0, "other_2": 0.5}
    twice = torch.nn.ModuleDict({"a": one, "b": PrefixLoss(torch.sum, [1])})
    assert list(prefix_scalars(twice)) == ["a.prefix_1", "a.prefix_3"]
    assert mean_scalars([]) == {}
    assert_allclose(mean_scalars([{"x": 1.0}, {"x": 2.0, "y": 4.0}])["x"], 1.5)


def test_the_figure_has_a_panel_for_each_scalar_and_one_for_all_prefixes():
    require("matplotlib")
    history = [
        {"epoch": float(e), "gap": 10.0**-e, "prefix_2": 3.0 - e, "prefix_16": 1.0, "held": e}
        for e in range(3)
    ]
    figure = scalars_figure(history, "Training")
    drawn = {axes.get_title(): axes for axes in figure.axes if axes.has_data()}
    assert list(drawn) == ["gap", "prefix", "held"]
    assert drawn["gap"].get_yscale() == "log"
    assert drawn["held"].get_yscale() == "linear"
    assert [line.get_label() for line in drawn["prefix"].lines] == ["2", "16"]
    assert_allclose(drawn["gap"].lines[0].get_xdata(), [0, 1, 2])
    history = [{"gap": gap, "active": 40 * gap} for gap in (1.0, 0.025, 0.0)]
    axes = {axes.get_title(): axes for axes in scalars_figure(history).axes}
    assert axes["gap"].get_yscale() == "log"  # with a gap in place of zero
    assert axes["active"].get_yscale() == "linear"  # counts
