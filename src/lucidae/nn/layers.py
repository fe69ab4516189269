"""What every room of `lucidae.nn` asks of torch layers and of the data that it is handed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

Tensor: TypeAlias = Any


def check_linear(layer: Any, name: str) -> Any:
    """Return `layer` if it is a plain, materialised `nn.Linear` with finite weights."""
    if not isinstance(layer, nn.Linear) or isinstance(layer, nn.LazyLinear):
        raise ValueError(f"{name} is a {type(layer).__name__}, expected an nn.Linear layer.")
    if not torch.isfinite(layer.weight).all():
        raise ValueError(f"{name}.weight contains NaN or infinity: that layer has diverged.")
    return layer


def check_bottleneck(first: Any, second: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    """Return two linear layers of which the second reads what the first writes."""
    check_linear(first, names[0])
    check_linear(second, names[1])
    if first.out_features != second.in_features:
        raise ValueError(
            f"{names[0]} writes {first.out_features} units and {names[1]} reads "
            f"{second.in_features}: give the two layers on either side of one bottleneck."
        )
    return first, second


def batches(data: Any, name: str = "data") -> Iterator[Tensor]:
    """Yield batches of inputs from a tensor, or from a loader of tensors or (tensor, …) tuples."""
    if isinstance(data, torch.Tensor):
        yield _finite_batch(data, name)
        return
    if not isinstance(data, Iterable):
        raise ValueError(f"{name} is a {type(data).__name__}, expected a tensor or a loader.")
    count = 0
    for item in data:
        batch = item[0] if isinstance(item, list | tuple) else item
        yield _finite_batch(batch, name)
        count += 1
    if not count:
        raise ValueError(f"{name} gave no batch; a generator can be read only once.")


def _finite_batch(batch: Any, name: str) -> Tensor:
    if not isinstance(batch, torch.Tensor) or batch.ndim < 2 or batch.numel() == 0:
        shape = tuple(batch.shape) if isinstance(batch, torch.Tensor) else type(batch).__name__
        raise ValueError(f"{name} gave {shape}, expected tensors of shape (batch, …), not empty.")
    if not torch.isfinite(batch).all():
        raise ValueError(f"{name} contains NaN or infinity. Remove or impute those entries first.")
    return batch


def full_precision(x: Tensor) -> Tensor:
    """Return `x` in float32 at least: half precision has too few digits for variances."""
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off where `x` lives, for sums and factors that need every digit."""
    context: AbstractContextManager[Any] = torch.autocast(x.device.type, enabled=False)
    return context


@contextmanager
def evaluation(module: Any) -> Iterator[Any]:
    """Put `module` in evaluation mode without gradients, and back as it was afterwards."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield module
    finally:
        module.train(was_training)


def device_of(module: Any) -> Any:
    """Return the device of a module's first parameter or buffer, the host when it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")
