"""Training of many small VAEs at once by batched products.

A stack of runs has tensors with the run as first axis. The runs share the number of steps, the
batch size and the widths of the networks. They differ in their data, in the number of latents, in
the noise variance, in the seed, and in the kind of posterior covariance. Runs with fewer latents
than others are padded: a padded latent has the mean 0 and the variance 1, its noise never reaches
the decoder, and its weights are zero and stay zero. Random numbers depend on the seed of a run
alone, so that a run does not depend on the others of its stack, except for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lucidae.metrics import active_dimensions
from lucidae.nn.collapse import active_directions
from lucidae.nn.layers import Tensor
from lucidae.nn.posteriors import (
    FACTOR_INIT,
    FullGaussian,
    hadamard_gap,
    relative_factor,
)
from lucidae.nn.training import TrainingSettings
from lucidae.nn.vae import (
    AVERAGING_RATE,
    SMALLEST_VARIANCE,
    GeometricSchedule,
    negative_log_likelihood,
)

WIDEST = 64
"""Number of normal variables that are drawn per sample: the largest number of latents.

It is constant, so that the numbers of a run do not depend on the widest run of its stack.
"""

BLOCK = 32
"""Number of steps for which random numbers are drawn at once."""

FLOOR = 1e-6
"""Smallest posterior standard deviation, as in `GaussianHead`."""

FIRST_NOISE = 0.1
"""First noise variance of a schedule, which falls to its final value over the first half of the
training steps."""

CHUNK = 1024
"""Number of samples that are evaluated at a time."""

STREAMS = {"weights": 0, "data": 1, "noise": 2, "evaluation data": 3, "evaluation noise": 4}
"""Names of the independent streams of random numbers of a run. Data and posterior noise must not
use the same stream."""


@dataclass(frozen=True, slots=True)
class Arm:
    """How the posterior covariance of a VAE is parametrised and trained."""

    coupled: bool = True  # whether the covariance is full; otherwise it is diagonal
    # whether the entries of the triangular factor below the diagonal are predicted relative to the
    # standard deviations, as in `GaussianHead`; otherwise they are predicted directly
    relative: bool = True
    # whether these entries are divided by √k for k latents, as in `GaussianHead`
    divided: bool = True
    # share of the steps during which latents are independent; see `TrainingSettings`
    uncoupled: float = 0.25


ARMS = {
    "full": Arm(),
    "diagonal": Arm(coupled=False),
    "coupled from the start": Arm(uncoupled=0.0),
    "not divided by √k": Arm(divided=False),
    "absolute": Arm(relative=False, divided=False),
    "absolute from the start": Arm(relative=False, divided=False, uncoupled=0.0),
}
"""Kinds of runs by name: a diagonal posterior covariance, a full one as in `GaussianHead`, and full
ones that differ from `GaussianHead` in one respect or two (ablations)."""


@dataclass(frozen=True, slots=True)
class Design:
    """Settings that all VAEs (runs) of a stack, which are trained together, have in common."""

    hidden: int = 256  # width of the two hidden layers of encoder and decoder
    # steps of Adam, samples per step, and the largest learning rate; see `TrainingSettings`
    steps: int = 12_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    # number of new samples for the evaluation, and of posterior samples for each
    samples: int = 8192
    draws: int = 4
    gap_samples: int = 1024  # number of samples for the Hadamard gap

    def training(self, arm: Arm) -> TrainingSettings:
        """Return the settings of training for a kind of covariance: schedules of rate and coupling.

        The coupling is the factor of the off-diagonal part of a full posterior covariance.
        """
        return TrainingSettings(
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            uncoupled=arm.uncoupled,
        )


@dataclass(frozen=True, slots=True)
class VaeRun:
    """Settings of one VAE among several that are trained together (a stack)."""

    latents: int  # number k of latents, at most `WIDEST`
    arm: str  # name of an entry of `ARMS`
    noise: str | float  # noise variance γ: learned, or the last value of a schedule
    seed: int  # seed of the initial weights, the data and the posterior noise


Source = Callable[[Tensor, Tensor], Tensor]
"""Function that makes the data of R VAEs (runs) that are trained together.

From standard normal variables of shape (R, B, `WIDEST`) and uniform variables (R, B) it makes
samples (R, B, D): for each run, B samples with D entries.
"""


def generator(seed: int, stream: str, device: Any) -> Any:
    """Return a torch random generator for one of the independent streams of a run (`STREAMS`)."""
    state = np.random.SeedSequence([seed, STREAMS[stream]]).generate_state(2, np.uint32)
    return torch.Generator(device).manual_seed(int(state[0]) * 2**31 + int(state[1]))


class Draws:
    """Random numbers for VAEs (runs) that are trained together: one generator per seed.

    Numbers are drawn for several steps at once. Runs with the same seed receive the same numbers,
    so that VAEs with full and with diagonal covariance are compared on the same data and noise.
    """

    def __init__(self, seeds: Sequence[int], stream: str, size: int, device: Any) -> None:
        distinct = sorted(set(seeds))
        self.generators = [generator(seed, stream, device) for seed in distinct]
        self.index = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        self.size, self.device, self.position = size, device, BLOCK

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return new normal variables (R, B, WIDEST) and uniform variables (R, B)."""
        if self.position == BLOCK:
            self.normal = self._drawn(torch.randn, (BLOCK, self.size, WIDEST))
            self.uniform = self._drawn(torch.rand, (BLOCK, self.size))
            self.position = 0
        here, self.position = self.position, self.position + 1
        return self.normal[self.index, here], self.uniform[self.index, here]

    def _drawn(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        made = [draw(shape, generator=one, device=self.device) for one in self.generators]
        return torch.stack(made)


def initial_weights(run: VaeRun, entries: int, hidden: int) -> dict[str, Tensor]:
    """Return the initial weights of one run by name.

    A sample has `entries` entries, and hidden layers have `hidden` units. Weights of a layer have
    the shape (number of inputs, number of outputs) and biases (1, number of outputs).

    Linear layers are initialised as in torch, and the layers of the covariance as in
    `GaussianHead`. The numbers depend on seed, sizes and number of latents, and not on the kind of
    covariance.
    """
    rng = generator(run.seed, "weights", "cpu")
    k = run.latents
    sizes = {
        "encoder.1": (entries, hidden),
        "encoder.2": (hidden, hidden),
        "mean": (hidden, k),
        "decoder.1": (k, hidden),
        "decoder.2": (hidden, hidden),
        "decoder.3": (hidden, entries),
        "scale": (hidden, k),
        "factor": (hidden, k * (k - 1) // 2),
    }
    weights = {}
    for name, (fan_in, fan_out) in sizes.items():
        drawn = torch.rand((fan_in + 1, fan_out), generator=rng) * 2 - 1
        weights[name] = drawn[1:] / math.sqrt(fan_in)
        weights[f"{name}.bias"] = drawn[:1] / math.sqrt(fan_in)
    for name in ("scale", "factor"):
        weights[name] *= FACTOR_INIT
        weights[f"{name}.bias"].zero_()
    weights["scale.bias"].fill_(math.log(math.expm1(1.0 - FLOOR)))
    return weights


def padded(parts: Sequence[Tensor]) -> Tensor:
    """Return matrices of different sizes as one array of shape (count, …), padded with zeros."""
    sizes = [max(part.shape[axis] for part in parts) for axis in (0, 1)]
    stack = torch.zeros((len(parts), *sizes))
    for target, part in zip(stack, parts, strict=True):
        target[: part.shape[0], : part.shape[1]] = part
    return stack


def layer(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """Return the outputs of the linear layer `name` for inputs x, for each run (first axis)."""
    return torch.baddbmm(weights[f"{name}.bias"], x, weights[name])


def decode(weights: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """Return the decoded means, shape (R, B, D), of latents z of shape (R, B, k).

    There are R runs, B samples with D entries each, and k latents.
    """
    hidden = functional.silu(layer(weights, "decoder.1", z))
    return layer(weights, "decoder.3", functional.silu(layer(weights, "decoder.2", hidden)))


class VaeStack:
    """Several VAEs (runs) trained together; encoders and decoders have two hidden layers."""

    def __init__(
        self, runs: Sequence[VaeRun], source: Source, entries: int, design: Design, device: str
    ) -> None:
        self.runs, self.source, self.entries, self.design = runs, source, entries, design
        self.device = device
        each = [initial_weights(run, entries, design.hidden) for run in runs]
        self.weights = {
            name: padded([weights[name] for weights in each]).to(device).requires_grad_()
            for name in each[0]
        }
        k = max(run.latents for run in runs)
        counts = torch.tensor([[[run.latents]] for run in runs])
        self.used = (torch.arange(k) < counts).to(device)
        self.noise_variance = torch.full((len(runs), 1), FIRST_NOISE, device=device)
        rows, columns = torch.tril_indices(k, k, -1)
        self.rows, self.positions = rows.to(device), (rows * k + columns).to(device)
        self.arms = [ARMS[run.arm] for run in runs]
        divisor = [
            math.sqrt(run.latents) if arm.divided else 1.0
            for run, arm in zip(runs, self.arms, strict=True)
        ]
        self.divisor = torch.tensor(divisor, device=device)[:, None, None]
        relative = torch.tensor([arm.relative for arm in self.arms], device=device)
        self.relative = relative[:, None, None]
        self.coupling = torch.zeros((len(runs), 1, 1), device=device)

    def encode(self, x: Tensor) -> FullGaussian:
        """Return the posteriors of samples x of shape (R, B, D): R runs, B samples, D entries.

        Latents that a run does not have (padding) have the prior N(0, 1) as posterior.
        """
        hidden = functional.silu(layer(self.weights, "encoder.1", x))
        hidden = functional.silu(layer(self.weights, "encoder.2", hidden))
        mean = layer(self.weights, "mean", hidden)
        scale = functional.softplus(layer(self.weights, "scale", hidden)) + FLOOR
        scale = torch.where(self.used, scale, 1.0)
        if not len(self.positions):
            return FullGaussian(mean, scale[..., None])
        below = self.coupling / self.divisor * layer(self.weights, "factor", hidden)
        # An absolute entry is an entry relative to s, divided by the s of its row.
        below = torch.where(self.relative, below, below / scale[..., self.rows])
        return FullGaussian(mean, relative_factor(scale, below, self.positions))

    def evidence(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return squared errors and KL divergences of samples x, both of shape (R, B).

        There are R runs and B samples.
        """
        posterior = self.encode(x)
        drawn = (noise * self.used)[..., None]
        z = posterior.mean + (posterior.factor @ drawn)[..., 0] * self.used
        error = torch.sum(torch.square(x - decode(self.weights, z)), -1)
        return error, posterior.kl()

    def train(self, records: int = 16) -> Tensor:
        """Train all R runs; return the mean losses of equal parts of the training, (records, R)."""
        design = self.design
        optimizer = torch.optim.Adam(list(self.weights.values()), fused=self.device != "cpu")
        seeds = [run.seed for run in self.runs]
        data, noise = (
            Draws(seeds, stream, design.batch_size, self.device) for stream in ("data", "noise")
        )
        noises, couplings = self._noises(), self._couplings()
        sums = torch.zeros((records, len(self.runs)), device=self.device)
        for step in range(design.steps):
            rate = design.training(self.arms[0]).rate(step, design.steps)
            optimizer.param_groups[0]["lr"] = rate
            self.coupling = couplings[step]
            x = self.source(*data())
            optimizer.zero_grad(set_to_none=True)
            error, kl = self.evidence(x, noise()[0][..., : self.used.shape[-1]])
            self._update_noise(step, error.detach(), noises[step])
            fit = negative_log_likelihood(error, self.entries, self.noise_variance)
            losses = torch.mean(fit + kl, 1)
            losses.sum().backward()
            optimizer.step()
            sums[step * records // design.steps] += losses.detach()
        return sums * (records / design.steps)

    def _noises(self) -> Tensor:
        """Return the noise variance of each run at each step; NaN for runs that learn it.

        The shape is (steps, R, 1), for R runs.
        """
        steps = torch.arange(self.design.steps)
        half = max(1, self.design.steps // 2)
        each = [
            torch.full(steps.shape, math.nan)
            if run.noise == "learn"
            else GeometricSchedule(FIRST_NOISE, float(run.noise), half)(steps)
            for run in self.runs
        ]
        return torch.stack(each, 1)[..., None].to(self.device, torch.float32)

    def _couplings(self) -> Tensor:
        """Return the coupling of the latents of R runs at each step, shape (steps, R, 1, 1).

        It is 0 while latents are independent and 1 when the posterior covariance is full.
        """
        steps = self.design.steps
        schedules = {arm: self.design.training(arm) for arm in self.arms}
        values = {
            arm: [one.coupling(step, steps) if arm.coupled else 0.0 for step in range(steps)]
            for arm, one in schedules.items()
        }
        table = torch.tensor([values[arm] for arm in self.arms], device=self.device)
        return table.mT[..., None, None]

    def _update_noise(self, step: int, error: Tensor, scheduled: Tensor) -> None:
        """Set the noise variance of each run from its schedule, or from the mean squared error."""
        newest = error.mean(1, keepdim=True) / self.entries
        running = newest
        if step:
            running = (1 - AVERAGING_RATE) * self.noise_variance + AVERAGING_RATE * newest
        learned = running.clamp_min(SMALLEST_VARIANCE)
        self.noise_variance = torch.where(scheduled.isnan(), learned, scheduled)

    def decoder(self, index: int) -> Callable[[Tensor], Tensor]:
        """Return the decoder of the run `index`: a function from latents (B, k) to means (B, D)."""
        k = self.runs[index].latents
        own = {name: part[index : index + 1].detach() for name, part in self.weights.items()}
        own["decoder.1"] = own["decoder.1"][:, :k]
        return lambda z: decode(own, z[None])[0]

    @torch.no_grad()
    def evaluate(self) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Return for each run the values measured on new samples, such as error and −ELBO."""
        design = self.design
        seeds = [run.seed for run in self.runs]
        data = Draws(seeds, "evaluation data", CHUNK, self.device)
        noise = Draws(seeds, "evaluation noise", CHUNK, self.device)
        chunks = math.ceil(design.samples / CHUNK)
        parts = [self._measure(self.source(*data()), noise) for _ in range(chunks)]
        sums = torch.stack([part[0] for part in parts]).mean(0).cpu()
        covariance = torch.stack([part[1] for part in parts]).mean(0)
        mean, variance = (torch.cat([part[i] for part in parts], 1) for i in (2, 3))
        return [
            self._figures(index, sums[:, index], covariance[index], mean[index], variance[index])
            for index in range(len(self.runs))
        ]

    def _measure(self, x: Tensor, noise: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means over samples x of errors and KL divergences, and moments of the posteriors.

        The means have the shape (3, R) for R runs: squared errors of the reconstructions from
        posterior means, those from `design.draws` posterior samples, and KL divergences. The
        moments are the mean posterior covariance, the posterior means and the posterior variances.
        """
        k = self.used.shape[-1]
        posterior = self.encode(x)
        at_mean = torch.sum(torch.square(x - decode(self.weights, posterior.mean)), -1)
        drawn = [self.evidence(x, noise()[0][..., :k])[0] for _ in range(self.design.draws)]
        sampled = torch.stack(drawn).double().mean((0, 2))
        figures = torch.stack([at_mean.double().mean(1), sampled, posterior.kl().double().mean(1)])
        covariance = posterior.covariance.double().mean(1)
        return figures, covariance, posterior.mean, posterior.variance

    def _figures(
        self, index: int, sums: Tensor, covariance: Tensor, mean: Tensor, variance: Tensor
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return the measured values of the run `index` by name, as zero-dimensional arrays.

        They follow from the four tensors that `_measure` returns, taken at this run.
        """
        k, noise = self.runs[index].latents, self.noise_variance[index, 0].cpu().double()
        error, sampled, kl = sums
        loss = float(negative_log_likelihood(sampled, self.entries, noise) + kl)
        found = {
            "mse": float(error) / self.entries,
            "sampled_mse": float(sampled) / self.entries,
            "kl": float(kl),
            "loss": loss,
            "noise_variance": float(noise),
        }
        names = ("active", "active_directions", "gap", "gap_error")
        found |= dict.fromkeys(names, math.nan)
        if math.isfinite(loss):
            mean, covariance = mean[:, :k], covariance[:k, :k]
            found["active"] = float(active_dimensions(mean, variance[:, :k]))
            found["active_directions"] = float(active_directions(covariance, mean))
            codes = mean[: self.design.gap_samples]
            gap = hadamard_gap(self.decoder(index), codes=codes, noise_variance=float(noise))
            found |= {"gap": gap.value, "gap_error": gap.standard_error}
        return {name: np.array(value) for name, value in found.items()}
