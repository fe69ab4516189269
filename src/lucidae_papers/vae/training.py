"""Residual VAEs of images with full and diagonal covariance, for the study of manifolds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch

from lucidae.datasets import fetch_mnist, load_digits
from lucidae.iteration import ProgressBar, Status
from lucidae.nn.layers import Tensor
from lucidae.nn.training import TrainingSettings, train
from lucidae.nn.vae import VAE
from lucidae.validation import check_choice

COVARIANCES = ("full", "diagonal")
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


def cell_settings(scale: str) -> list[dict[str, Any]]:
    """Return the settings of every run at a scale: both kinds of covariance for each seed.

    The kind is stored under the name ``"arm"`` and the settings under ``"design"``. These names are
    part of the key under which finished runs are stored, and cannot change.
    """
    chosen = RUNS[check_choice(scale, "scale", RUNS)]
    data = "digits" if scale == "smoke" else "mnist"
    described = asdict(chosen) | {"seeds": list(chosen.seeds)}
    return [
        {"data": data, "arm": kind, "seed": seed, "design": described}
        for seed in chosen.seeds
        for kind in COVARIANCES
    ]


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


def as_tensor(x: Any, device: str) -> Tensor:
    """Return images of shape (n, height, width) as a tensor (n, 1, height, width) on a device."""
    return torch.tensor(np.asarray(x)[:, None], dtype=torch.float32, device=device)
