"""Full against diagonal covariance in deep VAEs of equal capacity (Wipf 2023, section 5.2)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from lucidae.experiments.vae.pictures import as_images, picture, pictures
from lucidae.experiments.vae.training import TrainingSettings, train
from lucidae.experiments.vae.verdict import ARMS, summary, verdict
from lucidae.io.atomic import json_safe
from lucidae.iteration import ProgressBar, Solution, Status
from lucidae.nn.layers import Tensor
from lucidae.nn.vae import VAE
from lucidae.validation import check_integer, check_number

__all__ = ["SCALES", "Design", "compare_covariances"]


@dataclass(frozen=True, slots=True)
class Design:
    """Size of the networks, of the training and of the study.

    Parameters
    ----------
    latent_dim : int
        Number of latents; well above what the data need, so that some are left over.
    width, blocks, stages, features : int
        Size of the residual networks; see `VAE.resnet`.
    training : TrainingSettings
        Its seed is replaced by each of `seeds`.
    seeds : tuple of int
        One pair of runs for each.
    noise_variance : "learn" or float, default="learn"
        γ, on values in [0, 1]. At its optimum it follows each arm's own error; a number holds
        both arms to the same trade-off between error and KL.

    Examples
    --------
    >>> SCALES["paper"].seeds
    (0, 1, 2)
    """

    latent_dim: int
    width: int
    blocks: int
    stages: int
    features: int
    training: TrainingSettings
    seeds: tuple[int, ...]
    noise_variance: str | float = "learn"

    def __post_init__(self) -> None:
        if self.noise_variance != "learn":
            check_number(self.noise_variance, "noise_variance", low=0.0, open_low=True)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the design that `dataclasses.asdict` described."""
        training = TrainingSettings(**settings["training"])
        return cls(**{**settings, "training": training, "seeds": tuple(settings["seeds"])})

    def model(self, shape: Any, arm: str, seed: int) -> VAE:
        """Return a fresh model; of one seed, both arms start from the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return VAE.resnet(
                shape,
                self.latent_dim,
                covariance=arm,
                width=self.width,
                blocks=self.blocks,
                stages=self.stages,
                features=self.features,
                noise_variance=self.noise_variance,
            )


SCALES = {
    "smoke": Design(
        latent_dim=16,
        width=8,
        blocks=1,
        stages=1,
        features=64,
        training=TrainingSettings(epochs=12, batch_size=150, learning_rate=1.2e-2),
        seeds=(0,),
    ),
    "paper": Design(
        latent_dim=128,
        width=32,
        blocks=1,
        stages=2,
        features=256,
        training=TrainingSettings(epochs=30, batch_size=256, precision="bfloat16", compiled=True),
        seeds=(0, 1, 2),
    ),
}


def compare_covariances(
    images: Any,
    held_out: Any,
    design: Design,
    *,
    device: str = "cpu",
    checkpoints: Path | None = None,
    workers: int = 1,
    report: Callable[[str], Any] = lambda _: None,
) -> dict[str, Any]:
    """Train both arms from every seed and return all that was measured.

    Parameters
    ----------
    images, held_out : arrays of shape (n, height, width), values in [0, 1] or 0 … 255 as integers
        Training data and data for the measurements.
    design : Design
        Such as ``SCALES["smoke"]``.
    device : str, default="cpu"
        Where to train.
    checkpoints : path, optional
        Folder from which an interrupted study goes on.
    workers : int, default=1
        Processes that share the runs; small networks leave a GPU idle otherwise.
    report : callable
        Called with one line after each run.

    Returns
    -------
    dict
        JSON-safe: ``design``, ``runs`` (arm, seed, status, number of parameters, history by
        epoch), ``summary`` by arm, ``certificate``. Beside them ``pictures``: originals,
        reconstructions and samples of the first seed, as arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from lucidae.experiments.vae.training import TrainingSettings
    >>> tiny = replace(SCALES["smoke"], latent_dim=2, seeds=(0,),
    ...                training=TrainingSettings(epochs=1, batch_size=10))
    >>> x = np.random.default_rng(0).random((20, 8, 8))
    >>> study = compare_covariances(x, x, tiny)
    >>> [run["arm"] for run in study["runs"]]
    ['full', 'diagonal']
    """
    check_integer(workers, "workers", low=1)
    jobs = [
        (images, held_out, design, arm, seed, device, checkpoints)
        for seed in design.seeds
        for arm in ARMS
    ]
    runs: list[dict[str, Any]] = []
    shown: dict[str, Any] = {}
    for run, drawn in _runs(jobs, min(workers, len(jobs))):
        runs.append(run)
        shown = drawn | shown
        report(_line(run))
    certificate = verdict(runs)
    return {
        "design": asdict(design),
        "runs": runs,
        "summary": {arm: summary(runs, arm) for arm in ARMS},
        "certificate": certificate.to_dict(),
        "text": certificate.summary(),
        "pictures": shown,
    }


Run = tuple[dict[str, Any], dict[str, Any]]


def _runs(jobs: list[Any], workers: int) -> Iterator[Run]:
    """Yield every run, in order, from this process or from several."""
    if workers == 1:
        yield from (_train_one(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    threads = max(1, torch.get_num_threads() // workers)
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        yield from pool.map(_train_one, *zip(*jobs, strict=True))


def _train_one(
    images: Any,
    held_out: Any,
    design: Design,
    arm: str,
    seed: int,
    device: str,
    checkpoints: Path | None,
) -> Run:
    """Train one arm from one seed, from arrays; return what was measured, and pictures."""
    train_x, test_x = (as_images(x, device) for x in (images, held_out))
    path = None if checkpoints is None else Path(checkpoints) / f"{arm}-{seed}.npz"
    run, drawn = train_arm(train_x, test_x, design, arm, seed, path)
    return run, {"originals": picture(test_x[:10])} | drawn


def train_arm(
    images: Tensor, held_out: Tensor, design: Design, arm: str, seed: int, checkpoint: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train one model on image tensors; return its record, and pictures by name."""
    started = time.perf_counter()
    model = design.model(tuple(images.shape[1:]), arm, seed)
    model = model.to(images.device, memory_format=torch.channels_last)
    settings = replace(design.training, seed=seed)
    bar = ProgressBar(f"{arm}, seed {seed}", delay=20.0)
    ended = train(model, images, held_out, settings, checkpoint=checkpoint, callbacks=[bar])
    run = _described(arm, seed, model, ended, time.perf_counter() - started)
    return run, pictures(model, held_out[:10], arm)


def _described(
    arm: str, seed: int, model: Any, ended: Solution[Any], seconds: float
) -> dict[str, Any]:
    if ended.status is Status.DIVERGED:
        raise ValueError(
            f"the {arm} arm of seed {seed} diverged: lower the learning rate of the design."
        )
    history = {name: values.tolist() for name, values in ended.history.values.items()}
    size = sum(parameter.numel() for parameter in model.parameters())
    return {
        "arm": arm,
        "seed": seed,
        "status": str(ended.status),
        "parameters": size,
        "seconds": seconds,
        "history": json_safe(history),
    }


def _line(run: dict[str, Any]) -> str:
    last = {name: values[-1] for name, values in run["history"].items()}
    return (
        f"{run['arm']:>8} seed {run['seed']}: MSE {last['mse']:.5f}, KL {last['kl']:.1f}, "
        f"-ELBO {last['loss']:.1f} at γ {last['noise_variance']:.2g}, active {last['active']:.0f} "
        f"({last['active_directions']:.0f} directions), {run['seconds']:.0f} s"
    )
