"""Training of VAEs (torch), and the runs that compare full with diagonal posterior covariance."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from lucidae.arrays import to_numpy
from lucidae.datasets import fetch_mnist, load_digits
from lucidae.io.atomic import load_arrays, save_arrays
from lucidae.iteration import Below, History, ProgressBar, Solution, Status, iterate
from lucidae.metrics import active_dimensions
from lucidae.nn.collapse import active_directions
from lucidae.nn.layers import Tensor, evaluation, full_precision
from lucidae.nn.posteriors import GaussianHead
from lucidae.nn.vae import VAE, NoiseVariance, negative_log_likelihood
from lucidae.validation import check_choice, check_integer, check_number
from lucidae_papers.declaration import work

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}

WARM_UP = 100
"""Number of steps over which the learning rate of Adam rises from zero."""

CHUNK = 2500
"""Number of samples that `evaluate` passes through the model at a time."""

MODEL, OPTIMIZER, RECORD = "model/", "optimizer/", "record/"
"""Prefixes of the names of arrays in a checkpoint: parameters, Adam's moments, measured values."""


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
    # arithmetic of the layers in training; posteriors, losses and evaluation use float32
    precision: str = "float32"
    compiled: bool = False  # compile the training step with `torch.compile`
    # share of the steps, at most one half, during which the latents are independent
    uncoupled: float = 0.25
    seed: int = 0  # seed of batches and noise

    def __post_init__(self) -> None:
        check_integer(self.epochs, "epochs", low=1)
        check_integer(self.batch_size, "batch_size", low=1)
        check_number(self.learning_rate, "learning_rate", low=0.0, open_low=True)
        check_choice(self.precision, "precision", PRECISIONS)
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
    """State of a training: the model, its optimizer, the steps taken and the values per epoch."""

    model: Any  # A model whose forward pass returns an `Evidence`, such as `VAE`
    images: Tensor  # (n, …): training data, on the model's device
    held_out: Tensor  # (n', …): data for the evaluation after each epoch
    settings: TrainingSettings  # settings of the training
    n_steps: int = 0  # number of steps taken so far
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
        self.forward = torch.compile(self.model) if self.settings.compiled else self.model
        self.order: Tensor = None
        self.sums: Tensor = torch.zeros(3, device=self.images.device)

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.per_epoch * self.settings.epochs

    def step(self) -> Training:
        """Take one step of Adam on the next batch; the state is changed in place and returned."""
        position = self.n_steps % self.per_epoch
        if position == 0 or self.order is None:
            self._begin_epoch()
        self.model.train()
        size = self.settings.batch_size
        batch = self.images[self.order[position * size : (position + 1) * size]]
        self._set_schedules()
        self.optimizer.zero_grad(set_to_none=True)
        with self._arithmetic():
            evidence = self.forward(batch)
        evidence.loss.backward()
        self.optimizer.step()
        self._accumulate(evidence, batch)
        self.n_steps += 1
        if self.n_steps % self.per_epoch == 0:
            self._end_epoch()
        return self

    def _begin_epoch(self) -> None:
        """Draw the order of the samples for one epoch, and seed torch for the noise of the VAE.

        Both depend on the seed and the number of the epoch alone, so that a run that is resumed
        at the start of an epoch continues with the same numbers.
        """
        number = self.n_steps // self.per_epoch
        seeds = np.random.SeedSequence([self.settings.seed, number]).generate_state(2)
        rng = torch.Generator().manual_seed(int(seeds[0]))
        self.order = torch.randperm(len(self.images), generator=rng).to(self.images.device)
        torch.manual_seed(int(seeds[1]))
        self.sums = torch.zeros_like(self.sums)

    def _set_schedules(self) -> None:
        """Set the learning rate and the coupling of the latents for the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.rate(self.n_steps, self.total_steps)
        for head in self.heads:
            head.coupling.fill_(self.settings.coupling(self.n_steps, self.total_steps))

    def _arithmetic(self) -> AbstractContextManager[Any]:
        """Return a context in which layers compute in the precision of the settings."""
        dtype = PRECISIONS[self.settings.precision]
        context: AbstractContextManager[Any] = torch.autocast(
            self.images.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None
        )
        return context

    def _accumulate(self, evidence: Any, batch: Tensor) -> None:
        """Add loss, error and KL divergence of one step to the sums of the epoch."""
        # The sums stay on the device: reading a number would wait for it after every step.
        entries = math.prod(batch.shape[1:])
        figures = (evidence.loss, evidence.squared_error.mean() / entries, evidence.kl.mean())
        self.sums += torch.stack([figure.detach() for figure in figures])

    def _end_epoch(self) -> None:
        loss, error, kl = (self.sums / self.per_epoch).tolist()
        figures = {"train_loss": loss, "train_mse": error, "train_kl": kl}
        measured = evaluate(self.model, self.held_out, seed=self.settings.seed)
        self.records.append(figures | measured)

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
            Training.step,
            state,
            stop=Below(Training.health, 0.0),
            limit=state.total_steps,
            check_every=state.per_epoch,
            callbacks=[*filter(None, [writer]), *callbacks],
            first=state.n_steps,
        )
    if writer is not None and solution.status is not Status.DIVERGED:
        writer.save(state)
    return Solution(
        state,
        solution.status,
        solution.n_iter,
        solution.distance,
        solution.tolerance,
        state.history(),
    )


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
        model = {MODEL + name: to_numpy(part) for name, part in state.model.state_dict().items()}
        moments = {
            f"{OPTIMIZER}{index}/{name}": to_numpy(value)
            for index, values in state.optimizer.state_dict()["state"].items()
            for name, value in values.items()
        }
        history = {RECORD + name: values for name, values in state.history().values.items()}
        progress = {"n_steps": state.n_steps, "settings": _described(state)}
        save_arrays(self.path, progress | model | moments | history)
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
    parameters = {name: torch.as_tensor(value) for name, value in _under(MODEL, arrays).items()}
    try:
        state.model.load_state_dict(parameters)
    except RuntimeError as error:
        raise ValueError(
            f"{os.fspath(path)!r} belongs to another model: {error}. Remove the file, or choose "
            "another name."
        ) from error
    moments: dict[int, dict[str, Any]] = {}
    for name, values in _under(OPTIMIZER, arrays).items():
        index, _, key = name.partition("/")
        moments.setdefault(int(index), {})[key] = torch.as_tensor(values)
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.n_steps = int(arrays["n_steps"])
    records = {name: values.tolist() for name, values in _under(RECORD, arrays).items()}
    rows = zip(*records.values(), strict=True)
    state.records = [dict(zip(records, row, strict=True)) for row in rows]


def _under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays whose names start with `prefix`, under their names without the prefix."""
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }


def evaluate(model: Any, images: Tensor, *, seed: int = 0) -> dict[str, float]:
    """Return errors, KL divergence, evidence lower bound and active latents on a set of samples."""
    with seeded(model, images, seed):
        parts = [_measure(model, chunk) for chunk in images.split(CHUNK)]
    sums = torch.stack([part[0] for part in parts]).sum(0) / len(images)
    error, sampled, kl = (float(total) for total in sums)
    covariance = torch.stack([part[1] for part in parts]).sum(0) / len(images)
    mean, variance = (torch.cat([part[index] for part in parts]) for index in (2, 3))
    entries, noise = math.prod(images.shape[1:]), model.noise_variance
    fit = negative_log_likelihood(torch.as_tensor(sampled), entries, noise.cpu())
    finite = bool(torch.isfinite(mean).all())
    return {
        "mse": error / entries,
        "sampled_mse": sampled / entries,
        "kl": kl,
        "loss": float(fit) + kl if finite else math.nan,
        "noise_variance": float(noise),
        "active": float(active_dimensions(mean, variance)) if finite else 0.0,
        "active_directions": float(active_directions(covariance, mean)) if finite else 0.0,
    }


@contextmanager
def seeded(model: Any, images: Tensor, seed: int) -> Iterator[None]:
    """Context in which a model is in evaluation mode and torch is seeded; both are restored."""
    with evaluation(model), torch.random.fork_rng(devices=_cuda(images)):
        torch.manual_seed(seed)
        yield


def _measure(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return measurements of the posteriors of the samples `x`, as four tensors.

    The first has three sums over the samples: squared errors from posterior means, squared errors
    from samples of the posteriors, and KL divergences. The others are the sum of the posterior
    covariances, the posterior means, and the posterior variances.
    """
    posterior = model.encode(x)
    target = full_precision(x)
    decoded = [full_precision(model.decode(z)) for z in (posterior.mean, posterior.rsample())]
    # Sums over thousands of images lose digits in single precision.
    errors = [torch.sum(torch.square(target - mean), dtype=torch.float64) for mean in decoded]
    kl = torch.sum(posterior.kl(), dtype=torch.float64)
    covariance = posterior.covariance.sum(0).double()
    return torch.stack([*errors, kl]), covariance, posterior.mean, posterior.variance


COVARIANCES = ("full", "diagonal")
N_IMAGES = 10
"""Number of images that are reconstructed, and of samples that are drawn, for the page."""

Images = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of the runs at one scale: size of the networks, training, and seeds."""

    latent_dim: int  # number of latents; well above what the data need, so that some are not used
    width: int  # size of the residual networks; see `VAE.resnet`
    blocks: int
    stages: int
    features: int
    # settings of the training; their seed is replaced by each of `seeds`
    training: TrainingSettings
    # for each seed, one model with full and one with diagonal covariance is trained
    seeds: tuple[int, ...]
    # noise variance γ of the decoder, for values in [0, 1]. A learned γ equals the error of its own
    # model; a fixed number gives both models the same trade-off between error and KL
    noise_variance: str | float = "learn"

    def __post_init__(self) -> None:
        if self.noise_variance != "learn":
            check_number(self.noise_variance, "noise_variance", low=0.0, open_low=True)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the `RunSettings` from the dictionary that `dataclasses.asdict` made of them."""
        training = TrainingSettings(**settings["training"])
        return cls(**{**settings, "training": training, "seeds": tuple(settings["seeds"])})

    def model(self, shape: Any, kind: str, seed: int) -> VAE:
        """Return an untrained VAE for images of the given shape, with the covariance `kind`.

        With the same seed, the models with full and with diagonal covariance start with the same
        weights.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return VAE.resnet(
                shape,
                self.latent_dim,
                covariance=kind,
                width=self.width,
                blocks=self.blocks,
                stages=self.stages,
                features=self.features,
                noise_variance=self.noise_variance,
            )


RUNS = {
    "smoke": RunSettings(
        latent_dim=16,
        width=8,
        blocks=1,
        stages=1,
        features=64,
        training=TrainingSettings(epochs=12, batch_size=150, learning_rate=1.2e-2),
        seeds=(0,),
    ),
    "paper": RunSettings(
        latent_dim=128,
        width=32,
        blocks=1,
        stages=2,
        features=256,
        training=TrainingSettings(epochs=30, batch_size=256, precision="bfloat16", compiled=True),
        seeds=(0, 1, 2),
    ),
}


def digits() -> tuple[Images, Images]:
    """Return scikit-learn's digits, 8 × 8 pixels in [0, 1]: 1500 to train, 297 to evaluate."""
    images = load_digits().images
    return images[:1500], images[1500:]


def mnist() -> tuple[Images, Images]:
    """Return the training and the test images of MNIST, with pixels in [0, 1]."""
    return fetch_mnist("train").images, fetch_mnist("test").images


SOURCES: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits, "mnist": mnist}


def cell_settings(scale: str, noise_variance: str | float = "learn") -> list[dict[str, Any]]:
    """Return the settings of every run at a scale: both kinds of covariance for each seed.

    The kind is stored under the name ``"arm"`` and the settings under ``"design"``. These names are
    part of the key under which finished runs are stored, and cannot change.
    """
    chosen = replace(RUNS[check_choice(scale, "scale", RUNS)], noise_variance=noise_variance)
    data = "digits" if scale == "smoke" else "mnist"
    described = asdict(chosen) | {"seeds": list(chosen.seeds)}
    if noise_variance == "learn":
        del described["noise_variance"]
    return [
        {"data": data, "arm": kind, "seed": seed, "design": described}
        for seed in chosen.seeds
        for kind in COVARIANCES
    ]


@work("vae.comparison/1")
def measure(group: Sequence[Mapping[str, Any]], device: str) -> list[dict[str, Images]]:
    """Train the model of each run, and return measured values per epoch and images."""
    return [_measure_one(settings, device) for settings in group]


def _measure_one(settings: Mapping[str, Any], device: str) -> dict[str, Images]:
    source = SOURCES[check_choice(settings["data"], "data", SOURCES)]
    images, held_out = (as_tensor(x, device) for x in source())
    kind = check_choice(settings["arm"], "arm", COVARIANCES)
    return train_model(images, held_out, RunSettings.of(settings["design"]), kind, settings["seed"])


def train_model(
    images: Tensor, held_out: Tensor, chosen: RunSettings, kind: str, seed: int
) -> dict[str, Images]:
    """Train one model; return measured values per epoch, its number of parameters, and images."""
    model, history = fit_model(images, held_out, chosen, kind, seed)
    size = sum(parameter.numel() for parameter in model.parameters())
    return (
        history | sample_images(model, held_out[:N_IMAGES], kind) | {"parameters": np.array(size)}
    )


def fit_model(
    images: Tensor, held_out: Tensor, chosen: RunSettings, kind: str, seed: int
) -> tuple[VAE, dict[str, Images]]:
    """Train one model and return it with the measured values per epoch."""
    if images.device.type == "cpu":  # compiling for the processor takes longer than it saves
        plain = replace(chosen.training, precision="float32", compiled=False)
        chosen = replace(chosen, training=plain)
    model = chosen.model(tuple(images.shape[1:]), kind, seed)
    model = model.to(images.device, memory_format=torch.channels_last)
    settings = replace(chosen.training, seed=seed)
    bar = ProgressBar(f"{kind}, seed {seed}", delay=20.0)
    ended = train(model, images, held_out, settings, callbacks=[bar])
    if ended.status is Status.DIVERGED:
        raise ValueError(
            f"the training with {kind} covariance and seed {seed} diverged: lower its learning "
            "rate."
        )
    return model, dict(ended.history.values)


def sample_images(model: Any, x: Tensor, kind: str) -> dict[str, Images]:
    """Return reconstructions of the images `x` and as many samples from the prior, as bytes."""
    with seeded(model, x, 0):
        return {
            f"{kind}_reconstructions": as_bytes(model.reconstruct(x)),
            f"{kind}_samples": as_bytes(model.sample(len(x))),
        }


def as_tensor(x: Any, device: str) -> Tensor:
    """Return images of shape (n, height, width) as a tensor (n, 1, height, width) on a device."""
    return torch.tensor(np.asarray(x)[:, None], dtype=torch.float32, device=device)


def as_bytes(x: Tensor) -> Images:
    """Return the first channel of images in [0, 1] as bytes, shape (n, height, width)."""
    scaled = np.clip(x.float().cpu().numpy()[:, 0] * 255.0, 0, 255)
    return np.asarray(scaled.round().astype(np.uint8))
