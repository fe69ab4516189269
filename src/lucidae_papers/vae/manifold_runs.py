"""Runs of the experiment on VAEs of data from manifolds of known dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lucidae.nn.layers import Tensor
from lucidae.nn.posteriors import hadamard_gap
from lucidae.nn.training import seeded
from lucidae.nn.vae import negative_log_likelihood
from lucidae_papers.declaration import work
from lucidae_papers.vae.batched import (
    EVALUATED_DRAWS,
    Design,
    Source,
    VaeRun,
    VaeStack,
    best_losses,
    decode,
    padded,
)
from lucidae_papers.vae.training import SOURCES, RunSettings, as_tensor, fit_model

__all__ = ["measure", "measure_best", "measure_images", "measure_tuned"]

Settings = Mapping[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]

N_IMAGES = 8
"""Number of generated images that are stored for the HTML page."""


@work("vae.manifold/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train VAEs of different kinds on the same data, and measure each."""
    stack, copies, arrays = _stack(group, device)
    course = stack.train().cpu().numpy()
    found = stack.evaluate()
    measured = [{**one, "course": course[:, number]} for number, one in enumerate(found)]
    return _by_arm(arrays, copies, stack, measured)


@work("vae.manifold_tuned/1")
def measure_tuned(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train VAEs as `measure` does, and measure the best posteriors of their decoders as well.

    The settings are those of `measure`, with the number ``best_samples`` of samples and the number
    ``best_steps`` of steps for `VaeStack.evaluate_best`.
    """
    stack, copies, arrays = _stack(group, device)
    stack.train()
    best = stack.evaluate_best(group[0]["best_samples"], group[0]["best_steps"])
    measured = [one | more for one, more in zip(stack.evaluate(), best, strict=True)]
    return _by_arm(arrays, copies, stack, measured)


def _stack(group: Sequence[Settings], device: str) -> tuple[VaeStack, list[int], list[Arrays]]:
    """Return the VAEs of a group of runs, and what is needed to sort their results.

    The second value is, for each VAE, the index of its settings in `group`; the third contains
    arrays about the data, such as generated images, for each of the settings.
    """
    first = group[0]
    runs = [
        VaeRun(one["latents"], arm, one["noise"], one["seed"])
        for one in group
        for arm in one["arms"]
    ]
    copies = [index for index, one in enumerate(group) for _ in one["arms"]]
    source, entries, extra = SAMPLERS[first["source"]](group, copies, device)
    stack = VaeStack(runs, source, entries, Design(**first["design"]), device)
    return stack, copies, [dict(one) for one in extra]


def _by_arm(
    arrays: list[Arrays], copies: Sequence[int], stack: VaeStack, measured: Sequence[Arrays]
) -> list[Arrays]:
    """Return `arrays` with the measured values of each VAE added, under ``NAME/ARM``."""
    for index, run, values in zip(copies, stack.runs, measured, strict=True):
        arrays[index] |= {f"{name}/{run.arm}": value for name, value in values.items()}
    return arrays


Sampler = Callable[[Sequence[Settings], Sequence[int], str], tuple[Source, int, list[Arrays]]]


def random_generators(
    group: Sequence[Settings], copies: Sequence[int], device: str
) -> tuple[Source, int, list[Arrays]]:
    """Return a source of data x = tanh(u A) B, for standard normal u of r entries.

    A and B are the weights of a random network. The entries of A have the variance 1/r, and B is
    scaled such that the entries of x have the mean variance 1. The number of entries of x and an
    empty dictionary for each of the settings in `group` are returned, too.
    """
    each = [random_generator(one["seed"], one["dimension"], one["entries"]) for one in group]
    inner, outer = (padded([each[index][part] for index in copies]).to(device) for part in (0, 1))
    width = inner.shape[1]

    def source(normal: Tensor, _: Tensor) -> Tensor:
        return torch.tanh(normal[..., :width] @ inner) @ outer

    return source, int(outer.shape[2]), [{} for _ in group]


def random_generator(seed: int, dimension: int, entries: int) -> tuple[Tensor, Tensor]:
    """Return the matrices A and B of a random network, whose samples are tanh(u A) B for random u.

    u has `dimension` entries, and the samples have `entries` entries.
    """
    rng = np.random.default_rng([seed, dimension, entries])
    inner = rng.standard_normal((dimension, entries)) / np.sqrt(dimension)
    outer = rng.standard_normal((entries, entries))
    made = np.tanh(rng.standard_normal((2000, dimension)) @ inner) @ outer
    outer /= np.sqrt(np.mean(np.var(made, axis=0)))
    return torch.tensor(inner).float(), torch.tensor(outer).float()


def image_generators(
    group: Sequence[Settings], copies: Sequence[int], device: str
) -> tuple[Source, int, list[Arrays]]:
    """Return a source of images from trained generators, their size, and sample images.

    The generators are the decoders of VAEs with as many latents as the dimension of the data. These
    VAEs have a diagonal covariance and are trained on the images ``rows`` first.
    """
    design = Design(**group[0]["design"])
    design = replace(design, steps=group[0]["generator_steps"])
    runs = [VaeRun(one["dimension"], "diagonal", "learn", one["seed"] + 1000) for one in group]
    rows, entries, _ = image_rows(group, range(len(group)), device)
    stack = VaeStack(runs, rows, entries, design, device)
    stack.train()
    weights = {
        name: part.detach()[list(copies)]
        for name, part in stack.weights.items()
        if name.startswith("decoder")
    }
    width = weights["decoder.1"].shape[1]

    def source(normal: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            return decode(weights, normal[..., :width])

    shown = torch.randn((N_IMAGES, width), generator=torch.Generator().manual_seed(0)).to(device)
    images = source(shown.expand(len(copies), -1, -1), shown).cpu().numpy()
    kept = [{"images": images[copies.index(index)]} for index in range(len(group))]
    return source, entries, kept


def image_rows(
    group: Sequence[Settings], _: Sequence[int], device: str
) -> tuple[Source, int, list[Arrays]]:
    """Return a source that draws training images of a data set with replacement, and their size."""
    images = np.asarray(SOURCES[group[0]["rows"]]()[0], dtype=np.float32)
    rows = torch.tensor(images.reshape(len(images), -1), device=device)

    def source(_: Tensor, uniform: Tensor) -> Tensor:
        return rows[(uniform * len(rows)).long().clamp_max(len(rows) - 1)]

    return source, int(rows.shape[1]), [{} for _ in group]


SAMPLERS: dict[str, Sampler] = {
    "random": random_generators,
    "tuned": random_generators,
    "images": image_generators,
    "rows": image_rows,
}


@work("vae.manifold_images/1")
def measure_images(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train residual networks of images, and measure them and the Hadamard gaps of their decoders.

    The settings are those of `cell_settings`, with the number ``gap_samples`` of images
    for the gap.
    """
    return [_measure_images(settings, device)[1] for settings in group]


@work("vae.manifold_best/1")
def measure_best(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train models of images as `measure_images` does, and measure their best posteriors as well.

    The settings are those of `measure_images`, with the numbers ``best_samples`` of images and
    ``best_steps`` of steps for `best_losses`.
    """
    found = []
    for settings in group:
        model, arrays = _measure_images(settings, device)
        held_out = as_tensor(SOURCES[settings["data"]]()[1], device)
        found.append(arrays | _best(model, held_out[: settings["best_samples"]], settings))
    return found


def _measure_images(settings: Settings, device: str) -> tuple[Any, Arrays]:
    """Train the model of one run; return it in double precision, and its measured values."""
    images, held_out = (as_tensor(x, device) for x in SOURCES[settings["data"]]())
    chosen = RunSettings.of(settings["design"])
    model, history = fit_model(images, held_out, chosen, settings["arm"], settings["seed"])
    # In double precision, because convolutions on a GPU round to fewer digits than float32 has; in
    # the usual order of axes, because group normalisation has a derivative in forward mode there.
    double = model.to(dtype=torch.float64, memory_format=torch.contiguous_format)
    gap = hadamard_gap(double, held_out[: settings["gap_samples"]].double())
    measured = {"gap": np.array(gap.value), "gap_error": np.array(gap.standard_error)}
    return double, {**history, **measured}


def _best(model: Any, images: Tensor, settings: Settings) -> Arrays:
    """Return −ELBO of each image with the posterior of the encoder and with the best ones.

    The names are those of `VaeStack.evaluate_best`. The model is in double precision.
    """
    model = model.eval().requires_grad_(False)
    noise, images = float(model.noise_variance), images.double()
    x = images.flatten(1)

    def decode(z: Tensor) -> Tensor:
        return model.decode(z).flatten(1)

    with seeded(model, images, settings["seed"]):
        posterior = model.encode(images)
        errors = [
            torch.sum(torch.square(x - decode(posterior.rsample())), 1)
            for _ in range(EVALUATED_DRAWS)
        ]
        fit = negative_log_likelihood(torch.stack(errors).mean(0), x.shape[1], torch.tensor(noise))
        found = {"encoded": fit + posterior.kl()}
    best = best_losses(decode, x, noise, posterior.mean, settings["best_steps"])
    found |= {f"best_{kind}": losses for kind, losses in best.items()}
    return {name: losses.cpu().numpy() for name, losses in found.items()}
