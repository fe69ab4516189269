"""Runs of Wipf 2023, Section 5.2, with the networks that Zheng et al. 2023 published for MNIST.

The encoder is a small residual network: a 3 × 3 convolution, two residual blocks of stride 2, the
mean over the pixels, and one hidden layer. The decoder goes the opposite way by two blocks of a
residual and a transposed convolution. All convolutions have batch normalisation and PReLU. Adam
follows one cycle of the learning rate. The runs differ in how the posterior covariance is made.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lucidae.iteration import Status
from lucidae.nn.posteriors import GaussianHead
from lucidae.nn.training import TrainingSettings, seeded, train
from lucidae.nn.vae import VAE
from lucidae_papers.cells import digest, work
from lucidae_papers.vae.images import SOURCES, as_tensor

ARMS = {
    "full": ("full", 0.0),
    "full, warm-up": ("full", 0.25),
    "diagonal": ("diagonal", 0.0),
    "full, no head": ("decoder", 0.0),
    "diagonal, no head": ("decoder_diagonal", 0.0),
}
"""For each arm the covariance of its `GaussianHead`, and the share of the steps in which latents
are independent. Without a head the covariance is that of the decoder linearised at the mean."""

HIDDEN = 32  # width of the hidden layer of the encoder
CHUNK = 2000  # test images whose posteriors are computed at a time


@dataclass(frozen=True, slots=True)
class OneCycle(TrainingSettings):
    """Training whose learning rate rises in 30 % of the steps and falls in the rest, by cosines."""

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate at `step` of `total` (Smith & Topin 2019, as in PyTorch)."""
        first, last = self.learning_rate / 25, self.learning_rate / 25e4
        turn, end = 0.3 * total - 1, total - 1
        if step <= turn:
            low, done = first, step / turn if turn > 0 else 1.0
        else:
            low, done = last, (end - step) / (end - turn)
        return low + (self.learning_rate - low) * (1 - math.cos(math.pi * done)) / 2


class Residual(nn.Module):
    """The sum of two branches, followed by a third module."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.then = branch, shortcut, then

    def forward(self, x: Any) -> Any:
        """Return then(branch(x) + shortcut(x))."""
        return self.then(self.branch(x) + self.shortcut(x))


def _normed(layer: nn.Module, channels: int, *, bent: bool = True) -> nn.Sequential:
    """Return a convolution with batch normalisation and, if `bent`, PReLU."""
    return nn.Sequential(layer, nn.BatchNorm2d(channels), *([nn.PReLU()] if bent else []))


def _convolution(entering: int, leaving: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(entering, leaving, size, stride=stride, padding=size // 2, bias=False)


def _shrinking(entering: int, leaving: int) -> Residual:
    """Return a residual block that halves the image."""
    return Residual(
        nn.Sequential(
            _normed(_convolution(entering, leaving, 2), leaving),
            _normed(_convolution(leaving, leaving), leaving, bent=False),
        ),
        _normed(_convolution(entering, leaving, 2, size=1), leaving, bent=False),
        nn.PReLU(),
    )


def _growing(channels: int) -> Residual:
    """Return a residual convolution that is followed by one that doubles the image."""
    return Residual(
        _normed(_convolution(channels, channels), channels),
        nn.Identity(),
        _normed(nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1), channels),
    )


class Pooled(nn.Module):
    """The mean of every channel over the pixels."""

    def forward(self, x: Any) -> Any:
        """Return means (B, channels) of images (B, channels, height, width)."""
        return x.mean((2, 3))


def make_vae(side: int, latents: int, channels: int, covariance: str, seed: int) -> VAE:
    """Return an untrained VAE for images of side × side pixels; `side` is a multiple of 4."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            _normed(_convolution(1, channels), channels),
            _shrinking(channels, channels),
            _shrinking(channels, 2 * channels),
            Pooled(),
            nn.Linear(2 * channels, HIDDEN),
            nn.PReLU(),
        )
        decoder = nn.Sequential(
            nn.Linear(latents, channels * (side // 4) ** 2),
            nn.ReLU(),
            nn.Unflatten(1, (channels, side // 4, side // 4)),
            _growing(channels),
            _growing(channels),
            _normed(_convolution(channels, 1), 1),
            nn.Sigmoid(),
        )
        return VAE(encoder, GaussianHead(HIDDEN, latents, covariance), decoder)


@work("vae.published/1")
def measure(group: Sequence[Mapping[str, Any]], device: str) -> list[dict[str, Any]]:
    """Train the model of each run; return values per epoch and the posteriors' mean covariance."""
    return [_measure_one(settings, device) for settings in group]


def _measure_one(settings: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Train one model. A run that is interrupted goes on where it was, on the same machine."""
    images, held_out = (
        as_tensor(0.001 + 0.998 * np.asarray(x), device) for x in SOURCES[settings["data"]]()
    )
    covariance, uncoupled = ARMS[settings["arm"]]
    model = make_vae(
        images.shape[-1], settings["latents"], settings["channels"], covariance, settings["seed"]
    ).to(images.device)
    training = OneCycle(
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        uncoupled=uncoupled,
        seed=settings["seed"],
    )
    name = digest({"work": str(measure), "settings": settings})
    checkpoint = Path(tempfile.gettempdir()) / "lucidae-checkpoints" / f"{name}.npz"
    checkpoint.parent.mkdir(exist_ok=True)
    ended = train(model, images, held_out, training, checkpoint=checkpoint)
    if ended.status is Status.DIVERGED:
        raise ValueError(
            f"the training of {settings['arm']!r} with seed {settings['seed']} diverged: lower its "
            "learning rate."
        )
    found = dict(ended.history.values) | {"covariance": _mean_covariance(model, held_out)}
    checkpoint.unlink(missing_ok=True)
    return found


def _mean_covariance(model: VAE, images: Any) -> Any:
    """Return the posterior covariance (k, k), averaged over images."""
    with seeded(model, images, 0):
        sums = [model.encode(part).covariance.double().sum(0) for part in images.split(CHUNK)]
    return (torch.stack(sums).sum(0) / len(images)).cpu().numpy()
