"""Passes of a network over calibration batches: hooks on its layers, and moments of their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from lucidae.nn.layers import Tensor, device_of, full_precision, without_autocast

__all__ = [
    "CalibrationSource",
    "Moment",
    "RowMoment",
    "batches_of",
    "call",
    "meet",
    "observed",
    "observer",
    "samples_of",
    "summed",
    "unwrapped",
]

BLOCK_ROWS = 8192  # rows of a float32 product, whose rounding error grows with their number


class Moment(NamedTuple):
    """Mean (d,) and covariance (d, d) of the rows of all processes, in float64."""

    rows: int
    mean: Tensor
    covariance: Tensor


class RowMoment:
    """Sums over rows: products of blocks in float32 (float64 for float64 rows), added in float64.

    Rows are shifted by the mean of the first batch, so that large means cost no digits.
    """

    def __init__(self, size: int, device: Any) -> None:
        device = "cpu" if torch.device(device).type == "mps" else device  # which has no float64
        self.rows = 0
        self.shift = torch.zeros(size, dtype=torch.float64, device=device)
        self.sums = torch.zeros_like(self.shift)
        self.squares = torch.zeros(size, size, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        """Add rows of shape (N, d)."""
        if not len(rows):  # an expert to which no token was sent
            return
        rows = full_precision(rows.detach())
        if not self.rows:
            self.shift = rows.mean(0)
        with without_autocast(rows), _float32_products():
            for block in rows.split(BLOCK_ROWS):
                shifted = block - self.shift
                self.sums += shifted.sum(0, dtype=self.sums.dtype).to(self.sums.device)
                self.squares += (shifted.mT @ shifted).to(self.sums.device)
        self.rows += len(rows)

    def merged(self) -> Moment:
        """Return the moment of the rows of all processes.

        With t = Σ(y − s) for the shift s and d = ȳ − s for the common mean ȳ, the squares about
        the mean are Σ(y − s)(y − s)ᵀ − dtᵀ − tdᵀ + N ddᵀ in each process.
        """
        shift = self.shift.to(self.sums)
        count = summed(self.sums.new_tensor(float(self.rows)))
        mean = summed(self.sums + self.rows * shift) / count.clamp_min(1.0)
        offset = mean - shift
        cross = torch.outer(offset, self.sums - self.rows / 2 * offset)
        squares = summed(self.squares - cross - cross.mT) / count.clamp_min(1.0)
        return Moment(int(count), mean, (squares + squares.mT) / 2)


@contextmanager
def _float32_products() -> Iterator[None]:
    """Switch off TensorFloat-32, whose 11 bits are too few for the small eigenvalues of a Gram."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def summed(values: Tensor) -> Tensor:
    """Return the sum of a tensor over the processes of `torch.distributed`, if there are any."""
    processes = torch.distributed
    if processes.is_available() and processes.is_initialized():
        values = values.clone()
        processes.all_reduce(values)
    return values


Observer = Callable[[tuple[Any, ...], dict[str, Any], Any], Any]


@contextmanager
def observed(
    model: Any, observers: Mapping[Any, Observer], *, gradients: bool = False
) -> Iterator[None]:
    """Call observers after layers of a model, which is in evaluation mode meanwhile.

    An observer gets the arguments, the keywords and the output of its layer; what it returns, if
    not None, replaces the output. Modes and hooks are restored.
    """
    modes = [(part, part.training) for part in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()

    def hook(observer: Observer) -> Any:
        return lambda _, args, keywords, output: observer(args, keywords, output)

    handles = [
        layer.register_forward_hook(hook(observer), with_kwargs=True)
        for layer, observer in observers.items()
    ]
    try:
        model.eval()
        torch.backends.mha.set_fastpath_enabled(False)  # it reads weights past the layers
        with torch.set_grad_enabled(gradients):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()
        for part, mode in modes:
            part.training = mode


def batches_of(loader: Any, model: Any) -> Iterator[Any]:
    """Yield the batches of a loader on the device of the model; a tensor or dict is one batch."""
    alone = isinstance(loader, torch.Tensor | Mapping)
    if not alone and not isinstance(loader, Iterable):
        raise ValueError(
            f"loader is of type {type(loader).__name__}, expected an iterable of batches such as a "
            "DataLoader, or a tensor."
        )
    device, empty = device_of(model), True
    for batch in (loader,) if alone else loader:
        empty = False
        yield _moved(batch, device)
    if empty:
        raise ValueError(
            "the loader contains no batch, expected at least one. A generator can be read only "
            "once: give a list or a DataLoader."
        )


def _moved(batch: Any, device: Any) -> Any:
    """Return a batch with all its tensors on a device."""
    if isinstance(batch, Mapping):
        return {name: _moved(part, device) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        return [_moved(part, device) for part in batch]
    return batch.to(device) if hasattr(batch, "to") else batch


def call(model: Any, batch: Any, forward: Callable[[Any, Any], Any] | None = None) -> Any:
    """Return the output of a model for a batch: a tensor, a tuple with the input first, a dict."""
    if forward is not None:
        return forward(model, batch)
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, list | tuple) else batch)


def samples_of(batch: Any) -> int:
    """Return the length of the first tensor of a batch; 1 if it has none."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, Mapping | list | tuple):
        return next((samples_of(p) for p in parts if isinstance(p, torch.Tensor)), 1)
    return 1


def unwrapped(model: Any) -> Any:
    """Return the network inside wrappers for several processes and of `torch.compile`.

    Hooks on the layers of a compiled network are not called.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is of type {type(model).__name__}, expected an nn.Module.")
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


@dataclass(frozen=True, slots=True)
class CalibrationSource:
    """The model of a plan, and how its batches are read."""

    model: Any
    loader: Any
    forward: Callable[[Any, Any], Any] | None
    loss: Callable[[Any, Any], Any] | None
    held_out: Any

    @property
    def read_once(self) -> bool:
        """Whether the loader is an iterator, which has no second pass."""
        return isinstance(self.loader, Iterator)

    def outputs(self, *models: Any, loader: Any = None) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each batch and the outputs of one or several models for it."""
        for batch in batches_of(self.loader if loader is None else loader, self.model):
            yield batch, [call(model, batch, self.forward) for model in models]


def observer(use: Callable[[str, Tensor, Tensor], Any], name: str) -> Observer:
    """Return an observer of a layer of one argument that calls ``use(name, input, output)``."""

    def observe(args: tuple[Any, ...], keywords: dict[str, Any], output: Tensor) -> Any:
        return use(name, args[0] if args else next(iter(keywords.values())), output)

    return observe


def meet(
    source: CalibrationSource,
    small: Any,
    names: Iterable[str],
    use: Callable[[str, Tensor, Tensor], None],
) -> None:
    """Call ``use(name, x, y)`` for each call of a layer: x its input in `small`, y in the model."""
    waiting: dict[str, deque[Tensor]] = {name: deque() for name in names}

    def keep(name: str, _: Tensor, y: Tensor) -> None:
        waiting[name].append(y.clone())  # the next layer may work in place

    def pair(name: str, x: Tensor, _: Tensor) -> None:
        use(name, x, waiting[name].popleft())

    hooks = {source.model.get_submodule(name): observer(keep, name) for name in waiting}
    others = {small.get_submodule(name): observer(pair, name) for name in waiting}
    with observed(source.model, hooks), observed(small, others):
        for _ in source.outputs(source.model, small):
            pass
