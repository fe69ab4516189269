"""Training a VAE: seeded, resumable, measured once an epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lucidae.experiments.vae.checkpoint import SaveTraining, restore
from lucidae.experiments.vae.evaluation import evaluate
from lucidae.iteration import Below, History, Solution, Status, iterate
from lucidae.nn.layers import Tensor
from lucidae.nn.posteriors import GaussianHead
from lucidae.validation import check_choice, check_integer, check_number

__all__ = ["Training", "TrainingSettings", "train"]

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a VAE is trained: Adam with a short warm-up and a cosine decay of its rate.

    A full covariance that is free from the start adapts to a decoder that has learned nothing
    yet: it drops directions that the data need later, and the many noisy gradients of its factor
    drown the encoder's own. Latents are therefore kept independent at first, whatever the kind
    of covariance, and then coupled step by step (`GaussianHead.coupling`).

    Parameters
    ----------
    epochs : int, default=40
        Passes over the data.
    batch_size : int, default=256
        Samples a step; an incomplete last batch of an epoch is left out.
    learning_rate : float, default=1e-3
        Largest rate of Adam.
    precision : {"float32", "bfloat16"}, default="float32"
        Arithmetic of the layers in training; posteriors, losses and measurements are in float32.
    compiled : bool, default=False
        Compile the training step with `torch.compile`.
    uncoupled : float, default=0.25
        Share of the steps, at most a half, with independent latents; over half as many steps
        more, their coupling rises to 1.
    seed : int, default=0
        Source of batches and noise.

    Examples
    --------
    >>> from lucidae.experiments.vae.training import TrainingSettings
    >>> TrainingSettings(epochs=2).rate(0, 100), TrainingSettings(epochs=2).rate(99, 100) < 1e-5
    (1e-05, True)
    """

    epochs: int = 40
    batch_size: int = 256
    learning_rate: float = 1e-3
    precision: str = "float32"
    compiled: bool = False
    uncoupled: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer(self.epochs, "epochs", low=1)
        check_integer(self.batch_size, "batch_size", low=1)
        check_number(self.learning_rate, "learning_rate", low=0.0, open_low=True)
        check_choice(self.precision, "precision", PRECISIONS)
        check_number(self.uncoupled, "uncoupled", low=0.0, high=0.5)
        check_integer(self.seed, "seed", low=0)

    def rate(self, step: int, total: int) -> float:
        """Return Adam's rate at `step` of `total`: up over the first 100 steps, then cosine."""
        warm = min(1.0, (step + 1) / min(100, total))
        return self.learning_rate * warm * (1 + math.cos(math.pi * step / total)) / 2

    def coupling(self, step: int, total: int) -> float:
        """Return how far latents are coupled at `step` of `total`: 0 at first, 1 in the end."""
        alone = self.uncoupled * total
        return min(1.0, max(0.0, 2 * (step + 1 - alone) / alone)) if alone else 1.0


@dataclass(eq=False)
class Training:
    """The state of a run: the model, its optimizer, how far it is and what was measured.

    Parameters
    ----------
    model : nn.Module
        Whose forward pass returns an `Evidence`.
    images : tensor of shape (n, …)
        Training data, on the model's device.
    held_out : tensor of shape (n', …)
        Data for the measurements.
    settings : TrainingSettings
    n_steps : int, default=0
        Steps taken so far.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE
    >>> from lucidae.experiments.vae.training import Training, TrainingSettings
    >>> model = VAE.resnet((1, 8, 8), 2, width=8, features=8)
    >>> x = torch.rand(40, 1, 8, 8)
    >>> Training(model, x, x, TrainingSettings(epochs=2, batch_size=10)).per_epoch
    4
    """

    model: Any
    images: Tensor
    held_out: Tensor
    settings: TrainingSettings
    n_steps: int = 0
    records: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.per_epoch = len(self.images) // self.settings.batch_size
        if self.per_epoch == 0:
            raise ValueError(
                f"batch_size={self.settings.batch_size} was given for {len(self.images)} samples, "
                "expected at most as many."
            )
        on_gpu = self.images.device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=on_gpu)
        self.heads = [part for part in self.model.modules() if isinstance(part, GaussianHead)]
        self.forward = torch.compile(self.model) if self.settings.compiled else self.model
        self.order: Tensor = None
        self.sums: Tensor = torch.zeros(3, device=self.images.device)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.per_epoch * self.settings.epochs

    def step(self) -> Training:
        """Take one step of Adam on the next batch; the state is its own successor."""
        position = self.n_steps % self.per_epoch
        if position == 0 or self.order is None:
            self._begin_epoch()
        self.model.train()
        size = self.settings.batch_size
        batch = self.images[self.order[position * size : (position + 1) * size]]
        self._follow_the_schedules()
        self.optimizer.zero_grad(set_to_none=True)
        with self._arithmetic():
            evidence = self.forward(batch)
        evidence.loss.backward()
        self.optimizer.step()
        self._add_up(evidence, batch)
        self.n_steps += 1
        if self.n_steps % self.per_epoch == 0:
            self._end_epoch()
        return self

    def _begin_epoch(self) -> None:
        """Draw the order of the samples and seed the noise: each epoch depends on its number."""
        number = self.n_steps // self.per_epoch
        seeds = np.random.SeedSequence([self.settings.seed, number]).generate_state(2)
        generator = torch.Generator().manual_seed(int(seeds[0]))
        self.order = torch.randperm(len(self.images), generator=generator).to(self.images.device)
        torch.manual_seed(int(seeds[1]))
        self.sums = torch.zeros_like(self.sums)

    def _follow_the_schedules(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(self.n_steps, self.total_steps)
        for head in self.heads:
            head.coupling.fill_(self.settings.coupling(self.n_steps, self.total_steps))

    def _arithmetic(self) -> AbstractContextManager[Any]:
        dtype = PRECISIONS[self.settings.precision]
        context: AbstractContextManager[Any] = torch.autocast(
            self.images.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None
        )
        return context

    def _add_up(self, evidence: Any, batch: Tensor) -> None:
        entries = math.prod(batch.shape[1:])
        figures = (evidence.loss, evidence.squared_error.mean() / entries, evidence.kl.mean())
        self.sums += torch.stack([figure.detach() for figure in figures])

    def _end_epoch(self) -> None:
        loss, error, kl = (self.sums / self.per_epoch).tolist()
        figures = {"train_loss": loss, "train_mse": error, "train_kl": kl}
        measured = evaluate(self.model, self.held_out, seed=self.settings.seed)
        self.records.append(figures | measured)

    def health(self) -> float:
        """Return 1 while the loss is finite, NaN once it is not."""
        return 1.0 if not self.records or math.isfinite(self.records[-1]["loss"]) else math.nan

    def history(self) -> History:
        """Return what was measured after each epoch."""
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
    """Train a VAE; go on where an earlier run of the same settings was interrupted.

    Parameters
    ----------
    model : nn.Module
        Such as `VAE`; trained in place.
    images, held_out : tensors
        Training data and data for the measurements, on the model's device.
    settings : TrainingSettings
    checkpoint : path, optional
        Where the run is written, as arrays, and found again.
    callbacks : sequence of callable
        Passed on to `lucidae.iteration.loop`; called after each epoch.

    Returns
    -------
    Solution
        Its value is the `Training`, its history what was measured after each epoch; DIVERGED when
        the loss stopped being finite.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import VAE
    >>> from lucidae.experiments.vae.training import TrainingSettings, train
    >>> _ = torch.manual_seed(0)
    >>> model = VAE.resnet((1, 8, 8), 2, width=8, features=8)
    >>> x = torch.rand(40, 1, 8, 8)
    >>> ended = train(model, x, x, TrainingSettings(epochs=2, batch_size=20))
    >>> ended.status, len(ended.history["mse"])
    (<Status.ITERATION_LIMIT: 'iteration limit'>, 2)
    """
    state = Training(model, images, held_out, settings)
    keeper = None if checkpoint is None else SaveTraining(checkpoint)
    if checkpoint is not None:
        restore(state, checkpoint)
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        solution = iterate(
            Training.step,
            state,
            stop=Below(Training.health, 0.0),
            limit=state.total_steps,
            check_every=state.per_epoch,
            callbacks=[*filter(None, [keeper]), *callbacks],
            first=state.n_steps,
        )
    if keeper is not None and solution.status is not Status.DIVERGED:
        keeper.save(state)
    return Solution(
        state,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        state.history(),
    )
