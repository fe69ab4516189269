"""Runs of the experiment on VAEs of data from manifolds of known dimension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lucidae.nn.layers import Tensor
from lucidae_papers.cells import work
from lucidae_papers.vae.batched import Design, Source, VaeRun, VaeStack, decode, padded
from lucidae_papers.vae.images import SOURCES

Settings = Mapping[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]

N_IMAGES = 8
"""Number of generated images that are stored for the HTML page."""


@work("vae.manifold/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Train VAEs of different kinds on the same data, and measure each.

    The values of each VAE are named ``NAME/ARM``, beside arrays about the data of its run, such as
    generated images.
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
    course = stack.train().cpu().numpy()
    arrays = [dict(one) for one in extra]
    for number, (index, run, found) in enumerate(zip(copies, runs, stack.evaluate(), strict=True)):
        measured = {**found, "course": course[:, number]}
        arrays[index] |= {f"{name}/{run.arm}": value for name, value in measured.items()}
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
    "images": image_generators,
    "rows": image_rows,
}
