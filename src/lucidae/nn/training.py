"""Training of variational autoencoders, and scalars that any training loop can log.

A log, such as that of TensorBoard, takes a flat dictionary from names to numbers.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lucidae.arrays import to_numpy
from lucidae.certificates.claims import Certificate
from lucidae.io import load_arrays, save_arrays
from lucidae.iteration import Below, History, Solution, Status, iterate
from lucidae.iteration.progress import progress_bars
from lucidae.metrics import active_dimensions
from lucidae.nn.collapse import CollapseReport, active_directions, collapse_report
from lucidae.nn.layers import Tensor, batches, device_of, evaluation, full_precision
from lucidae.nn.posteriors import GaussianHead
from lucidae.nn.prefixes import PrefixLoss
from lucidae.nn.vae import NoiseVariance, negative_log_likelihood
from lucidae.validation import (
    check_argument,
    check_integer,
    check_number,
    install_command,
    warn_user,
)

FEWEST_STEPS = 5000
"""Number of steps below which most networks are not trained, so that small data get more epochs."""

FEWEST_EPOCHS = 30

WARM_UP = 100
"""Number of steps over which the learning rate of Adam rises from zero."""

CHUNK = 2500
"""Number of samples that `evaluate` passes through the model at a time."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of the training: Adam with a short warm-up and a cosine decay of the learning rate.

    A full covariance that is trained from the first step adapts to a decoder that has not learned
    anything yet: directions of the latents that the data need later collapse, and the many noisy
    gradients of its triangular factor dominate those of the encoder. Latents are therefore
    independent at first, whatever the kind of covariance, and are then coupled step by step
    (`GaussianHead.coupling`).
    """

    epochs: int = 40  # passes over the data
    batch_size: int = 256  # samples per step; an incomplete last batch of an epoch is left out
    learning_rate: float = 1e-3  # largest rate of Adam
    # share of the steps, at most one half, during which the latents are independent
    uncoupled: float = 0.25
    seed: int = 0  # seed of batches and noise

    def __post_init__(self) -> None:
        check_integer(self.epochs, "epochs", low=1)
        check_integer(self.batch_size, "batch_size", low=1)
        check_number(self.learning_rate, "learning_rate", low=0.0, open_low=True)
        check_number(self.uncoupled, "uncoupled", low=0.0, high=0.5)
        check_integer(self.seed, "seed", low=0)

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate at `step` of `total`: linear warm-up times cosine decay."""
        warm = min(1.0, (step + 1) / min(WARM_UP, total))
        return self.learning_rate * warm * (1 + math.cos(math.pi * step / total)) / 2

    def coupling(self, step: int, total: int) -> float:
        """Return the coupling of the latents at `step` of `total` steps: it rises from 0 to 1.

        At 0 the latents are independent, at 1 the covariance is full.
        """
        alone = self.uncoupled * total
        return min(1.0, max(0.0, 2 * (step + 1 - alone) / alone)) if alone else 1.0


@dataclass(eq=False)
class Training:
    """State of a training: the model, its optimizer, and the values after each epoch."""

    model: Any  # A model whose forward pass returns an `Evidence`, such as `VAE`
    images: Tensor  # (n, …): training data, on the model's device
    held_out: Tensor  # (n', …): data for the evaluation after each epoch
    settings: TrainingSettings  # settings of the training
    # measured values after each epoch, by name
    records: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.per_epoch = len(self.images) // self.settings.batch_size
        if self.per_epoch == 0:
            raise ValueError(
                f"batch_size={self.settings.batch_size} was given for {len(self.images)} samples, "
                "expected a batch size of at most the number of samples."
            )
        on_gpu = self.images.device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=on_gpu)
        self.heads = [part for part in self.model.modules() if isinstance(part, GaussianHead)]

    def epoch(self) -> Training:
        """Take the steps of one epoch and evaluate the model; the state is changed and returned.

        The order of the samples and the noise of the VAE depend on the seed and the number of the
        epoch alone, so that a run that is resumed continues with the same numbers.
        """
        settings, size, number = self.settings, self.settings.batch_size, len(self.records)
        seeds = np.random.SeedSequence([settings.seed, number]).generate_state(2)
        rng = torch.Generator().manual_seed(int(seeds[0]))
        order = torch.randperm(len(self.images), generator=rng).to(self.images.device)
        torch.manual_seed(int(seeds[1]))
        sums: Tensor = torch.zeros(3, device=self.images.device)
        total = self.per_epoch * settings.epochs
        self.model.train()
        for step, chosen in enumerate(order.split(size)[: self.per_epoch], number * self.per_epoch):
            batch = self.images[chosen]
            for group in self.optimizer.param_groups:
                group["lr"] = settings.rate(step, total)
            for head in self.heads:
                head.coupling.fill_(settings.coupling(step, total))
            self.optimizer.zero_grad(set_to_none=True)
            evidence = self.model(batch)
            evidence.loss.backward()
            self.optimizer.step()
            # The sums stay on the device: reading a number would wait for it after every step.
            entries = math.prod(batch.shape[1:])
            figures = (evidence.loss, evidence.squared_error.mean() / entries, evidence.kl.mean())
            sums += torch.stack([figure.detach() for figure in figures])
        loss, error, kl = (sums / self.per_epoch).tolist()
        trained = {"train_loss": loss, "train_mse": error, "train_kl": kl}
        self.records.append(trained | evaluate(self.model, self.held_out, seed=settings.seed))
        return self

    def health(self) -> float:
        """Return 1.0 if the last loss is finite, otherwise NaN, so that `iterate` stops."""
        return 1.0 if not self.records or math.isfinite(self.records[-1]["loss"]) else math.nan

    def history(self) -> History:
        """Return the values measured after each epoch as a `History`."""
        names = self.records[0] if self.records else {}
        values = {name: np.array([row[name] for row in self.records]) for name in names}
        return History(np.arange(1, len(self.records) + 1), values)


def train(
    model: Any,
    images: Tensor,
    held_out: Tensor,
    settings: TrainingSettings,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callable[[Any], Any]] = (),
) -> Solution[Training]:
    """Train a VAE, or continue an interrupted training with the same settings."""
    state = Training(model, images, held_out, settings)
    writer = None if checkpoint is None else CheckpointWriter(checkpoint)
    if checkpoint is not None:
        restore(state, checkpoint)
    with torch.random.fork_rng(devices=_cuda(images)):
        solution = iterate(
            Training.epoch,
            state,
            stop=Below(Training.health, 0.0),
            limit=settings.epochs,
            callbacks=[*filter(None, [writer]), *callbacks],
            first=len(state.records),
        )
    if writer is not None and solution.status is not Status.DIVERGED:
        writer.save(state)
    n_iter = solution.n_iter * state.per_epoch
    return replace(solution, n_iter=n_iter, history=state.history())


def _cuda(images: Tensor) -> list[Any]:
    """Return a list with the CUDA device of the images; empty if they are on the processor.

    `torch.random.fork_rng` restores the random states of these devices and of the processor.
    """
    return [images.device] if images.device.type == "cuda" else []


class CheckpointWriter:
    """Callback that writes a training to a file from time to time, so that it can be continued."""

    def __init__(self, path: str | os.PathLike[str], every_seconds: float = 30.0) -> None:
        self.path = Path(path)
        self.every_seconds = every_seconds
        self._written = time.monotonic()

    def __call__(self, progress: Any) -> None:
        """Write the state if the last write was at least `every_seconds` ago."""
        if time.monotonic() - self._written >= self.every_seconds:
            self.save(progress.state)

    def save(self, state: Training) -> None:
        """Write the parameters of the model, the moments of Adam and the values measured so far."""
        moments = state.optimizer.state_dict()["state"]
        groups: dict[str, Mapping[str, Any]] = {
            "model": state.model.state_dict(),
            "record": state.history().values,
            **{f"optimizer/{index}": values for index, values in moments.items()},
        }
        arrays = {
            f"{group}/{name}": to_numpy(value)
            for group, values in groups.items()
            for name, value in values.items()
        }
        n_steps = len(state.records) * state.per_epoch
        progress = {"n_steps": n_steps, "settings": _described(state)}
        save_arrays(self.path, progress | arrays)
        self._written = time.monotonic()


def _described(state: Training) -> str:
    """Return the settings of a training and of its noise variance as one line of JSON."""
    settings = [part.setting for part in state.model.modules() if isinstance(part, NoiseVariance)]
    noise = ["scheduled" if callable(setting) else str(setting) for setting in settings]
    return json.dumps(asdict(state.settings) | {"noise_variance": noise}, sort_keys=True)


def restore(state: Training, path: str | os.PathLike[str]) -> None:
    """Load a checkpoint into a training in place; do nothing if the file does not exist."""
    if not Path(path).exists():
        return
    arrays = load_arrays(path, "a checkpoint of a training run")
    if str(arrays.get("settings")) != _described(state):
        raise ValueError(
            f"{os.fspath(path)!r} belongs to a training with other settings, "
            f"{arrays.get('settings')}, expected {_described(state)}: remove the file, or choose "
            "another name."
        )
    groups: dict[str, dict[str, Any]] = {}
    for name, values in arrays.items():
        group, _, key = name.rpartition("/")
        groups.setdefault(group, {})[key] = torch.as_tensor(values) if group else values
    records = groups.pop("record", {})
    try:
        state.model.load_state_dict(groups.pop("model"))
    except RuntimeError as error:
        raise ValueError(
            f"{os.fspath(path)!r} belongs to another model: {error}. Remove the file, or choose "
            "another name."
        ) from error
    moments = {int(group.rpartition("/")[2]): found for group, found in groups.items() if group}
    settings = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": settings})
    rows = zip(*(values.tolist() for values in records.values()), strict=True)
    state.records = [dict(zip(records, row, strict=True)) for row in rows]


@contextmanager
def seeded(model: Any, images: Tensor, seed: int) -> Iterator[None]:
    """Context in which a model is in evaluation mode and torch is seeded; both are restored."""
    with evaluation(model), torch.random.fork_rng(devices=_cuda(images)):
        torch.manual_seed(seed)
        yield


def evaluate(model: Any, images: Tensor, *, seed: int = 0) -> dict[str, float]:
    """Return errors, KL divergence, evidence lower bound and active latents on a set of samples."""
    sums: Any = 0.0  # squared errors from posterior means and from samples, KL divergences
    covariance: Any = 0.0
    means, variances = [], []
    with seeded(model, images, seed):
        for x in images.split(CHUNK):
            posterior = model.encode(x)
            parts = [
                torch.square(full_precision(x) - full_precision(model.decode(z)))
                for z in (posterior.mean, posterior.rsample())
            ]
            # Sums over thousands of images lose digits in single precision.
            parts.append(posterior.kl())
            sums = sums + torch.stack([torch.sum(part, dtype=torch.float64) for part in parts])
            covariance = covariance + posterior.covariance.sum(0).double()
            means.append(posterior.mean)
            variances.append(posterior.variance)
    error, sampled, kl = (sums / len(images)).tolist()
    mean, variance = torch.cat(means), torch.cat(variances)
    entries, noise = math.prod(images.shape[1:]), model.noise_variance
    fit = negative_log_likelihood(torch.as_tensor(sampled), entries, noise.cpu())
    finite = bool(torch.isfinite(mean).all())
    directions = active_directions(covariance / len(images), mean) if finite else 0
    return {
        "mse": error / entries,
        "sampled_mse": sampled / entries,
        "kl": kl,
        "loss": float(fit) + kl if finite else math.nan,
        "noise_variance": float(noise),
        "active": float(active_dimensions(mean, variance)) if finite else 0.0,
        "active_directions": float(directions),
    }


def fit_vae(
    model: Any,
    data: Any,
    *,
    held_out: Any = None,
    epochs: int | str = "auto",
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    checkpoint: str | os.PathLike[str] | None = None,
    random_state: int = 0,
    verbose: bool | str = "auto",
) -> Solution[Any]:
    """Train a variational autoencoder by Adam, with schedules that work.

    The learning rate rises over 100 steps and then falls to zero along a cosine. Latents are
    independent for the first quarter of the steps and are then coupled (`GaussianHead.coupling`): a
    full covariance that adapts to an untrained decoder loses directions that the data need later. A
    noise variance that is learned is the running mean of the squared error (`NoiseVariance`).

    Parameters
    ----------
    model : nn.Module
        A `VAE`, or any module whose forward pass returns an `Evidence` and that has methods
        ``encode`` and ``decode``. It is trained in place, on the device of its parameters.
    data : tensor, array, or iterable of batches
        Samples. If a batch is a tuple, its first entry is used. All samples are held in memory.
    held_out : tensor, array, or iterable of batches, optional
        Samples for the figures after each epoch; by default (at most 2500 of) `data`.
    epochs : int or "auto", default="auto"
        Number of passes over the data; ``"auto"`` is 30, and more if these are fewer than 5000
        steps.
    batch_size : int, default=256
        Samples of one step, at most the number of samples.
    learning_rate : float, default=1e-3
        Largest learning rate.
    checkpoint : path, optional
        File to which the training is written every 30 seconds, and from which an interrupted call
        with the same arguments goes on.
    random_state : int, default=0
        Seed of the order of the samples and of the noise.
    verbose : bool or "auto", default="auto"
        Whether to show progress; ``"auto"`` shows it after two seconds.

    Returns
    -------
    Solution
        `value` is the model, `status` says how the training ended, and `history` has after each
        epoch: ``loss`` (negative evidence lower bound in nats), ``mse``, ``kl``,
        ``noise_variance``, ``active`` (coordinates) and ``active_directions`` of the samples held
        out, and ``train_loss``, ``train_mse`` and ``train_kl``.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE, GaussianHead, fit_vae
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(500, 2) @ torch.randn(2, 8) + 0.1 * torch.randn(500, 8)
    >>> model = VAE(torch.nn.Identity(), GaussianHead(8, 4), torch.nn.Linear(4, 8))
    >>> solution = fit_vae(model, x, epochs=60, batch_size=50, learning_rate=0.02)
    >>> int(solution.history["active_directions"][-1])
    2
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(
            f"model is of type {type(model).__name__}, expected an nn.Module such as "
            "lucidae.nn.VAE."
        )
    device = device_of(model)
    samples = _samples(data, "data").to(device)
    shown = samples[:CHUNK] if held_out is None else _samples(held_out, "held_out").to(device)
    size = check_integer(batch_size, "batch_size", low=1)
    if epochs == "auto":
        per_epoch = max(1, len(samples) // size)
        epochs = max(FEWEST_EPOCHS, -(-FEWEST_STEPS // per_epoch))
    settings = TrainingSettings(
        epochs=check_integer(epochs, "epochs", low=1, others=" or 'auto'"),
        batch_size=min(size, len(samples)),
        learning_rate=learning_rate,
        seed=random_state,
    )
    bars = progress_bars("fit_vae", check_argument(verbose, "verbose"))
    for bar in bars:
        bar.unit = "epochs"
    ended = train(model, samples, shown, settings, checkpoint=checkpoint, callbacks=bars)
    if ended.status is Status.DIVERGED:
        warn_user(
            f"the loss became NaN or infinite after {ended.n_iter} steps: train again with new "
            f"weights and a learning_rate below {learning_rate:g}."
        )
    return replace(ended, value=model)


def _samples(data: Any, name: str) -> Tensor:
    """Return all samples as one floating tensor."""
    data = torch.as_tensor(data) if isinstance(data, np.ndarray) else data
    samples = torch.cat(list(batches(data, name)))
    return samples if samples.is_floating_point() else samples.float()


Scalars = dict[str, float]

LENGTH = re.compile(r"(?P<name>.*)_(?P<length>\d+)")
"""Pattern of the names of scalars that belong to a prefix, such as ``prefix_8``."""


def collapse_scalars(report: Any, loader: Any = None, **settings: Any) -> Scalars:
    """Return the numbers of a collapse report that are worth following during training.

    Parameters
    ----------
    report : CollapseReport, or nn.Module
        Result of `collapse_report`, or the model itself.
    loader : tensor, or iterable of batches, optional
        Inputs of the model, if `report` is a model.
    **settings
        Further arguments of `collapse_report`, if `report` is a model.

    Returns
    -------
    dict of str to float
        ``active``, the number of active latents; ``total_kl`` in nats; and, where they are known,
        ``noise_variance`` and ``linear_latents``, the number of latents that a linear VAE of this
        noise would use.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import DictionaryVAE, collapse_scalars
    >>> model = DictionaryVAE(torch.eye(2), noise_variance=1.0)
    >>> scalars = collapse_scalars(model, torch.randn(50, 2))
    >>> scalars["active"], scalars["noise_variance"]
    (0.0, 1.0)
    """
    if loader is not None:
        report = collapse_report(report, loader, **settings)
    if not isinstance(report, CollapseReport):
        raise ValueError(
            f"report is of type {type(report).__name__}, expected a CollapseReport, the result of "
            "collapse_report, or a model and its inputs."
        )
    found = {
        "active": report.n_active,
        "total_kl": report.total_kl,
        "noise_variance": report.noise_variance,
        "linear_latents": report.linear_latents,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def certificate_scalars(certificate: Certificate) -> Scalars:
    """Return the measured values of a certificate, and how many of its claims hold.

    Parameters
    ----------
    certificate : Certificate
        Result of `certify`, `certify_dropout` or `certify_linear`.

    Returns
    -------
    dict of str to float
        The value of each claim that has one, by the name of the claim; ``claims_held`` and
        ``claims_failed``, the numbers of claims that hold and that fail.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import certificate_scalars, certify_dropout
    >>> _ = torch.manual_seed(0)
    >>> first, second = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False)
    >>> scalars = certificate_scalars(certify_dropout(first, second, torch.randn(50, 3)))
    >>> scalars["gap"] > 0, scalars["claims_failed"] > 0
    (True, True)
    """
    if not isinstance(certificate, Certificate):
        raise ValueError(
            f"certificate is of type {type(certificate).__name__}, expected a Certificate, the "
            "result of certify."
        )
    found = {
        claim.name: float(claim.value)
        for claim in certificate.claims
        if claim.value is not None and math.isfinite(claim.value)
    }
    verdicts = [claim.holds for claim in certificate.claims]
    counted = {"claims_held": verdicts.count(True), "claims_failed": verdicts.count(False)}
    return found | {name: float(value) for name, value in counted.items()}


def prefix_scalars(module: Any) -> Scalars:
    """Return the losses of all prefixes in the last call of every `PrefixLoss` in a module.

    Parameters
    ----------
    module : nn.Module
        A `PrefixLoss`, or a network that contains some.

    Returns
    -------
    dict of str to float
        The entries of `PrefixLoss.last`. If several of these modules have the same name, the path
        of each module in the network precedes its names.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import PrefixLoss, prefix_scalars
    >>> loss = PrefixLoss(torch.sum, dims=[1, 2])
    >>> _ = loss(torch.ones(3, 2))
    >>> prefix_scalars(loss)
    {'prefix_1': 3.0, 'prefix_2': 6.0}
    """
    if not callable(getattr(module, "named_modules", None)):
        raise ValueError(f"module is of type {type(module).__name__}, expected an nn.Module.")
    inside = {path: part for path, part in module.named_modules() if isinstance(part, PrefixLoss)}
    names = [part.name for part in inside.values()]
    return {
        f"{path}.{name}" if names.count(part.name) > 1 else name: value
        for path, part in inside.items()
        for name, value in part.last.items()
    }


def mean_scalars(rows: Iterable[Mapping[str, float]]) -> Scalars:
    """Return the mean of each scalar over those dictionaries in which it occurs.

    Parameters
    ----------
    rows : iterable of mappings from str to float
        For example the losses of the prefixes in each step; random prefixes differ between steps.

    Returns
    -------
    dict of str to float
        The mean of each scalar, by its name.

    Examples
    --------
    >>> from lucidae.nn import mean_scalars
    >>> mean_scalars([{"prefix_1": 3.0}, {"prefix_1": 1.0, "prefix_2": 0.5}])
    {'prefix_1': 2.0, 'prefix_2': 0.5}
    """
    gathered: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            gathered.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in gathered.items()}


def scalars_figure(history: Sequence[Mapping[str, float]], title: str = "") -> Any:
    """Draw scalars against the epoch of their measurement, one panel for each.

    Scalars that end in the length of a prefix, such as ``prefix_8``, share one panel. Panels whose
    values vary by more than a factor of 20 have a logarithmic axis, on which a zero is a gap,
    except those of counts and of values below zero.

    Parameters
    ----------
    history : sequence of mappings from str to float
        Scalars in the order in which they were measured; the entry ``"epoch"`` is the abscissa,
        by default the number of the row.
    title : str, default=""
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Not registered with pyplot, so that it need not be closed.

    Examples
    --------
    >>> from lucidae.nn import scalars_figure
    >>> figure = scalars_figure([{"gap": 1.0}, {"gap": 0.1}], "Certificate")
    >>> len(figure.axes)
    1
    """
    if not history or not any(name != "epoch" for row in history for name in row):
        raise ValueError(
            "history contains no scalar, expected at least one measurement: call measure first."
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"scalars_figure needs matplotlib: {install_command('cli')}") from error
    panels: dict[str, dict[int, str]] = {}  # names by length, of each panel
    for name in dict.fromkeys(name for row in history for name in row if name != "epoch"):
        found = LENGTH.fullmatch(name)
        group, length = (found["name"], int(found["length"])) if found else (name, 0)
        panels.setdefault(group, {})[length] = name
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(max(6.4, 4.0 * columns), 3.0 * rows), layout="constrained")
    flat = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place, (name, members) in zip(flat, panels.items(), strict=False):
        _draw_panel(place, name, members, history)
    for place in flat[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(title)
    return figure


def _draw_panel(
    axes: Any, title: str, members: Mapping[int, str], history: Sequence[Mapping[str, float]]
) -> None:
    """Draw the curves of one panel; those of prefixes get darker with their length."""
    import matplotlib as mpl

    shades = mpl.colormaps["viridis_r"]
    values: list[float] = []
    for position, (length, name) in enumerate(sorted(members.items())):
        points = [
            (row.get("epoch", step), row[name]) for step, row in enumerate(history) if name in row
        ]
        colour = shades((position + 1) / len(members)) if len(members) > 1 else None
        axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=length or None)
        values += [value for _, value in points]
    positive = [value for value in values if value > 0]
    are_counts = all(float(value).is_integer() for value in values)
    if positive and min(values) >= 0 and max(values) > 20 * min(positive) and not are_counts:
        axes.set_yscale("log", nonpositive="mask")
    axes.set(title=title.replace("_", " "), xlabel="epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(members) > 1:
        # Beside the curves, which would otherwise be hidden.
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "frameon": False}
        axes.legend(title="dimensions", fontsize=8, title_fontsize=8, **beside)
