"""Training of three networks, and their loss with low-rank layers by seven methods."""

from __future__ import annotations

import math
import sysconfig
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lucidae.nn import compress
from lucidae.nn.layers import Tensor, evaluation
from lucidae.nn.low_rank import (
    LowRankFactors,
    input_rows,
    matrix_of,
    observed,
    observer,
    with_factors,
)
from lucidae_papers.cells import work
from lucidae_papers.embedding_runs import SOURCES

Arrays = dict[str, np.ndarray[Any, Any]]
Batches = list[tuple[Tensor, Tensor]]
Factors = dict[str, LowRankFactors]

EVALUATED = 100
"""Samples of one batch of the evaluation and of the calibration."""

# --- networks and data --------------------------------------------------------------------------


def _perceptron(width: int) -> Callable[[int], Any]:
    """Return a maker of networks with three hidden layers, for images of a given size."""
    return lambda side: nn.Sequential(
        nn.Flatten(),
        nn.Linear(side * side, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def _convolutional(width: int) -> Callable[[int], Any]:
    """Return a maker of networks with three convolutions and one hidden layer."""
    return lambda side: nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * width * (side // 4) ** 2, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, 10),
    )


IMAGE_NETWORKS = {
    "perceptron": (_perceptron, ["1", "3", "5"]),
    "convolutional": (_convolutional, ["3", "6", "9"]),
}
"""Maker of each classifier of images, and the layers that are factorised."""


class TransformerBlock(nn.Module):
    """Causal self-attention and two layers with a GELU between them, both on normalised inputs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch of sequences, (B, L, width)."""
        parts = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class LanguageModel(nn.Module):
    """Transformer that predicts the next byte of a text."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *[TransformerBlock(width, max(1, width // 64)) for _ in range(depth)]
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next byte at each place, (B, L, 256)."""
        places = self.places.weight[: tokens.shape[1]]
        return self.head(self.blocks(self.bytes(tokens) + places))


@lru_cache(maxsize=1)
def library_text() -> tuple[bytes, bytes]:
    """Return Python's standard library in two parts: nine of ten files, and the others."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = [], []
    for path in sorted(folder.glob("**/*.py")):
        inside = path.relative_to(folder)
        if not {"site-packages", "dist-packages", "test", "tests"} & set(inside.parts):
            parts[zlib.crc32(inside.as_posix().encode()) % 10 == 0].append(path.read_bytes())
    return b"".join(parts[0]), b"".join(parts[1])


def _prepared(settings: Mapping[str, Any], device: str) -> tuple[Any, list[str], Any, Any]:
    """Return a network, its layers to factorise, and pairs (inputs, targets) of both parts."""
    if settings["network"] in IMAGE_NETWORKS:
        x, y, held_x, held_y = SOURCES[settings["data"]]()
        side = math.isqrt(x.shape[1])
        make, names = IMAGE_NETWORKS[settings["network"]]
        model = make(settings["width"])(side).to(device)
        pairs = [
            (
                torch.as_tensor(np.asarray(a), dtype=torch.float32).reshape(-1, 1, side, side),
                torch.as_tensor(np.asarray(b).astype(np.int64)),
            )
            for a, b in ((x, y), (held_x, held_y))
        ]
    else:
        model = LanguageModel(settings["width"], settings["depth"], settings["length"]).to(device)
        names = ["blocks.*"]
        numbers = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in library_text()]
        pairs = [_sequences(part.long(), settings["length"]) for part in numbers]
    train, test = ((a.to(device), b.to(device)) for a, b in pairs)
    return model, names, train, test


def _sequences(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return tokens of a text as rows of a given length, and for each token the next one."""
    whole = (len(tokens) - 1) // length * length
    return tokens[:whole].reshape(-1, length), tokens[1 : whole + 1].reshape(-1, length)


def _cross_entropy(output: Any, batch: Any) -> Tensor:
    """Return the mean cross-entropy of logits, in nats per label."""
    return nn.functional.cross_entropy(output.flatten(0, -2).float(), batch[1].flatten())


def _fit(model: Any, data: tuple[Tensor, Tensor], settings: Mapping[str, Any]) -> None:
    """Train a network by AdamW; the learning rate rises for 50 steps and falls along a cosine."""
    x, y = data
    steps, rate = settings["steps"], settings["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1, (k + 1) / 50) * (1 + math.cos(math.pi * k / steps)) / 2
    )
    rng = torch.Generator().manual_seed(settings["seed"])
    for _ in range(steps):
        rows = torch.randint(len(x), (settings["batch_size"],), generator=rng).to(x.device)
        optimizer.zero_grad()
        _cross_entropy(model(x[rows]), (None, y[rows])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _loss(model: Any, batches: Batches) -> float:
    """Return the mean cross-entropy of a network."""
    with evaluation(model):
        found = [len(batch[0]) * float(_cross_entropy(model(batch[0]), batch)) for batch in batches]
    return sum(found) / sum(len(batch[0]) for batch in batches)


# --- factors by other methods -------------------------------------------------------------------


class Inputs:
    """Second moment E[xxᵀ] and mean E|x| of the inputs of a layer."""

    def __init__(self) -> None:
        self.rows, self.squares, self.sizes = 0, 0.0, 0.0  # type: Any, Any, Any

    def add(self, x: Tensor) -> None:
        """Add rows of inputs."""
        x = x.double()
        self.rows += len(x)
        self.squares, self.sizes = self.squares + x.mT @ x, self.sizes + x.abs().sum(0)


def _inputs_of(model: Any, names: Sequence[str], batches: Batches) -> dict[str, Inputs]:
    """Run a network, and return what the recipes need to know about the inputs of its layers."""
    layers = {name: model.get_submodule(name) for name in names}
    found = {name: Inputs() for name in names}

    def add(name: str, x: Tensor, _: Tensor) -> None:
        found[name].add(input_rows(layers[name], x))

    with observed(model, {layer: observer(add, name) for name, layer in layers.items()}):
        for batch in batches:
            model(batch[0])
    return found


def _plain(_: Inputs, size: int) -> tuple[Tensor, Tensor]:
    return torch.eye(size).double(), torch.eye(size).double()


def _activation_aware(inputs: Inputs, size: int) -> tuple[Tensor, Tensor]:
    """Return the scaling of ASVD, (E|x|)^½, and its inverse (Yuan et al. 2023)."""
    scale = (inputs.sizes / inputs.rows).sqrt().expand(size) + 1e-6
    return torch.diag(scale), torch.diag(1 / scale)


def _whitening(inputs: Inputs, size: int) -> tuple[Tensor, Tensor]:
    """Return a Cholesky factor of E[xxᵀ] and its inverse, as SVD-LLM does (Wang et al. 2024).

    If there is no such factor, the moment is shifted by its smallest eigenvalue and 1e-6.
    """
    moment = inputs.squares / inputs.rows
    factor, failed = torch.linalg.cholesky_ex(moment)
    if failed:
        shift = 1e-6 - torch.linalg.eigvalsh(moment)[0]
        factor = torch.linalg.cholesky(moment + shift * torch.eye(size).to(moment))
    return factor, torch.linalg.inv(factor)


SCALINGS = {"svd": _plain, "asvd": _activation_aware, "whitened": _whitening}
"""Matrices S and S⁻¹ of each recipe: the weight W becomes the truncated decomposition of WS, times
S⁻¹. The bias stays as it is."""


def _decomposed(layer: Any, inputs: Inputs, method: str) -> Callable[[int], LowRankFactors]:
    """Return a function from ranks to factors of a layer by one of the recipes."""
    weight = matrix_of(layer).double()
    scaling, inverse = (part.to(weight) for part in SCALINGS[method](inputs, weight.shape[1]))
    U, s, Vt = torch.linalg.svd(weight @ scaling, full_matrices=False)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()
    return lambda rank: LowRankFactors(U[:, :rank] * s[:rank], Vt[:rank] @ inverse, bias)


# --- runs ---------------------------------------------------------------------------------------


@work("compression.layers/1")
def measure(group: Sequence[Mapping[str, Any]], device: str) -> list[Arrays]:
    """Train the network of each run, and measure its loss with low-rank layers."""
    return [_measure_one(settings, device) for settings in group]


def _measure_one(settings: Mapping[str, Any], device: str) -> Arrays:
    """Return the losses on held-out samples by method, for each share of the parameters kept."""
    with torch.random.fork_rng(devices=[] if device == "cpu" else None):
        torch.manual_seed(settings["seed"])
        model, layers, train, test = _prepared(settings, device)
        _fit(model, train, settings)
    held_out = _batches(test, settings["held_out"])
    calibration = _batches(train, settings["calibration"])
    found = _compare(model, layers, calibration, held_out, settings["shares"])
    found["dense"] = np.array(_loss(model, held_out))
    return found


def _batches(data: tuple[Tensor, Tensor], count: int) -> Batches:
    """Return `count` samples, spread over the data, in batches."""
    x, y = data
    rows = torch.linspace(0, len(x) - 1, min(count, len(x))).long().to(x.device).split(EVALUATED)
    return [(x[part], y[part]) for part in rows]


def _compare(
    model: Any, layers: list[str], calibration: Batches, held_out: Batches, shares: Sequence[float]
) -> Arrays:
    """Return the losses by method, sizes, and how often a claim or a Cholesky factor failed."""

    def planned(importance: Any, **settings: Any) -> compress.CompressionPlan:
        loss = _cross_entropy if importance == "gradients" else None
        return compress.plan(
            model,
            calibration,
            include=layers,
            budget=0.9,
            importance=importance,
            loss=loss,
            **settings,
        )

    plans = {"relative": planned("relative"), "gradients": planned("gradients")}
    plans["sequential"] = planned(plans["gradients"].importance, sequential=True)
    names = list(plans["gradients"].ranks)
    alone = {name: compress.plan(model, calibration, include=name, budget=0.9) for name in names}
    inputs = _inputs_of(model, names, calibration)
    moments = [inputs[name].squares / inputs[name].rows for name in names]
    losses: dict[str, list[float]] = {}
    failed = 0
    recipes = {
        method: {
            name: _decomposed(model.get_submodule(name), inputs[name], method) for name in names
        }
        for method in SCALINGS
    }
    for share in shares:
        equal = [plan.at(budget=share) for plan in alone.values()]
        ranks = {name: rank for plan in equal for name, rank in plan.rank_pattern().items()}
        factors: dict[str, Factors] = {
            method: {name: recipe[name](rank) for name, rank in ranks.items()}
            for method, recipe in recipes.items()
        }
        factors["equal"] = {name: part for plan in equal for name, part in plan.factors.items()}
        for method, chosen in plans.items():
            now = chosen.at(budget=share)
            factors[method] = now.factors
            failed += now.certificate.holds is not True
        for method, parts in factors.items():
            small = with_factors(model, parts, 0.0)
            losses.setdefault(method, []).append(_loss(small, held_out))
    return {f"loss/{method}": np.array(values) for method, values in losses.items()} | {
        "failed": np.array(failed),
        "singular": np.array(sum(bool(torch.linalg.cholesky_ex(c)[1]) for c in moments)),
        "parameters": np.array(plans["gradients"].dense_size),
    }
