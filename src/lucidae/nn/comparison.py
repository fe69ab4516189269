"""Full against diagonal covariance in deep VAEs of equal capacity (Wipf 2023, section 5.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lucidae._json import json_safe
from lucidae.certificate import Certificate, at_most, reported
from lucidae.nn._layers import Tensor, evaluation
from lucidae.nn.training import TrainingSettings, train
from lucidae.nn.vae import VAE
from lucidae.solution import Solution, Status

__all__ = ["ARMS", "SCALES", "Design", "compare_covariances", "verdict"]

ARMS = ("full", "diagonal")
REFERENCE = "Wipf 2023, section 5.2"


@dataclass(frozen=True, slots=True)
class Design:
    """Size of the networks, of the training and of the study.

    Parameters
    ----------
    latent_dim : int
        Number of latents; well above what the data need, so that some are left over.
    width, blocks, features : int
        Size of the residual networks; see `VAE.resnet`.
    training : TrainingSettings
        Its seed is replaced by each of `seeds`.
    seeds : tuple of int
        One pair of runs for each.

    Examples
    --------
    >>> SCALES["paper"].seeds
    (0, 1, 2)
    """

    latent_dim: int
    width: int
    blocks: int
    features: int
    training: TrainingSettings
    seeds: tuple[int, ...]

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
                features=self.features,
            )


SCALES = {
    "smoke": Design(
        latent_dim=16,
        width=8,
        blocks=1,
        features=64,
        training=TrainingSettings(epochs=20, batch_size=64, learning_rate=2e-3),
        seeds=(0, 1),
    ),
    "paper": Design(
        latent_dim=128,
        width=32,
        blocks=1,
        features=256,
        training=TrainingSettings(epochs=40, batch_size=256, precision="bfloat16", compiled=True),
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
    callbacks: Sequence[Callable[[Any], Any]] = (),
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
    callbacks : sequence of callable
        Passed on to the loop of each run.
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
    >>> from lucidae.nn.training import TrainingSettings
    >>> tiny = replace(SCALES["smoke"], latent_dim=2, seeds=(0,),
    ...                training=TrainingSettings(epochs=1, batch_size=10))
    >>> x = np.random.default_rng(0).random((20, 8, 8))
    >>> study = compare_covariances(x, x, tiny)
    >>> [run["arm"] for run in study["runs"]]
    ['full', 'diagonal']
    """
    train_x, test_x = (_as_images(x, device) for x in (images, held_out))
    runs, pictures = [], {"originals": _picture(test_x[:10])}
    for seed in design.seeds:
        for arm in ARMS:
            started = time.perf_counter()
            model = design.model(tuple(train_x.shape[1:]), arm, seed).to(
                device, memory_format=torch.channels_last
            )
            path = None if checkpoints is None else Path(checkpoints) / f"{arm}-{seed}.npz"
            settings = replace(design.training, seed=seed)
            ended = train(model, train_x, test_x, settings, checkpoint=path, callbacks=callbacks)
            runs.append(_described(arm, seed, model, ended, time.perf_counter() - started))
            report(_line(runs[-1]))
            if seed == design.seeds[0]:
                pictures |= _pictures(model, test_x[:10], arm)
    certificate = verdict(runs)
    return {
        "design": asdict(design),
        "runs": runs,
        "summary": {arm: _summary(runs, arm) for arm in ARMS},
        "certificate": certificate.to_dict(),
        "text": certificate.summary(),
        "pictures": pictures,
    }


def verdict(runs: Sequence[dict[str, Any]]) -> Certificate:
    """Judge the paper's claim on finished runs: less error with fewer active latents.

    Parameters
    ----------
    runs : sequence of dict
        As `compare_covariances` returns them.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> history = {"mse": [0.1], "active": [3.0], "active_directions": [3.0], "loss": [1.0]}
    >>> runs = [{"arm": arm, "seed": 0, "history": history} for arm in ARMS]
    >>> verdict(runs)["reconstruction"].holds
    True
    """
    ratio = _final(runs, "full", "mse") / _final(runs, "diagonal", "mse")
    active, directions, loss = (
        _final(runs, "full", name) - _final(runs, "diagonal", name)
        for name in ("active", "active_directions", "loss")
    )
    seeds = len({run["seed"] for run in runs})
    return Certificate(
        f"full against diagonal covariance, {seeds} seeds",
        (
            at_most(
                "reconstruction",
                "error of the full covariance over that of the diagonal one",
                REFERENCE,
                ratio,
                1.0,
                "The full covariance did not reconstruct better here.",
            ),
            at_most(
                "active directions",
                "active directions, full less diagonal, whatever the rotation of the latents",
                REFERENCE,
                directions,
                0.0,
                "The full covariance did not use fewer directions here.",
            ),
            reported(
                "active latents",
                "active coordinates, full less diagonal; a full covariance may rotate them",
                REFERENCE,
                active,
            ),
            reported("evidence", "−ELBO in nats, full less diagonal", REFERENCE, loss),
        ),
    )


def _final(runs: Sequence[dict[str, Any]], arm: str, name: str) -> float:
    return float(np.mean([run["history"][name][-1] for run in runs if run["arm"] == arm]))


def _summary(runs: Sequence[dict[str, Any]], arm: str) -> dict[str, dict[str, Any]]:
    finals = {
        name: [run["history"][name][-1] for run in runs if run["arm"] == arm]
        for name in runs[0]["history"]
    }
    return {
        name: {"mean": float(np.mean(values)), "std": float(np.std(values)), "runs": values}
        for name, values in finals.items()
    }


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
        f"-ELBO {last['loss']:.1f}, active {last['active']:.0f} "
        f"({last['active_directions']:.0f} directions), {run['seconds']:.0f} s"
    )


def _as_images(x: Any, device: str) -> Tensor:
    """Return (n, 1, height, width) images in [0, 1] on the device."""
    array = np.asarray(x)
    if array.ndim != 3 or array.shape[0] < 2:
        raise ValueError(f"images have shape {array.shape}, expected (n, height, width).")
    scaled = array / 255.0 if array.dtype == np.uint8 else array
    return torch.tensor(scaled[:, None], dtype=torch.float32, device=device)


def _picture(x: Tensor) -> np.ndarray[Any, Any]:
    shown = np.clip(x.float().cpu().numpy()[:, 0] * 255.0, 0, 255)
    return np.asarray(shown.round().astype(np.uint8))


def _pictures(model: Any, x: Tensor, arm: str) -> dict[str, np.ndarray[Any, Any]]:
    devices = [x.device] if x.device.type == "cuda" else []
    with evaluation(model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return {
            f"{arm}_reconstructions": _picture(model.reconstruct(x)),
            f"{arm}_samples": _picture(model.sample(len(x))),
        }
