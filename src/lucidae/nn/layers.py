"""Checks and helpers for torch layers and data, and the layers of the residual networks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from lucidae.validation import check_integer

Tensor: TypeAlias = Any


def check_bottleneck(first: Any, second: Any, names: tuple[str, str]) -> tuple[Any, Any]:
    """Return two linear layers if the second can follow the first and their weights are finite.

    Otherwise raise an error; `names` are the names of the layers in the message.
    """
    check_pair(first, second, names)
    for layer, name in zip((first, second), names, strict=True):
        if not torch.isfinite(layer.weight).all():
            raise ValueError(
                f"{name}.weight contains NaN or infinity: the training has diverged. Train again "
                "with a smaller learning rate."
            )
    return first, second


def check_pair(first: Any, second: Any, names: tuple[str, str]) -> None:
    """Raise an error unless the second of two linear layers can follow the first."""
    for layer, name in zip((first, second), names, strict=True):
        if not isinstance(layer, nn.Linear) or isinstance(layer, nn.LazyLinear):
            raise ValueError(
                f"{name} is {_kind(layer)}, expected an nn.Linear layer (of an nn.Sequential, give "
                "the layer itself)."
            )
    if first.out_features != second.in_features:
        raise ValueError(
            f"{names[0]} has {first.out_features} output features and {names[1]} has "
            f"{second.in_features} input features, expected equal numbers: give the layers before "
            "and after the same hidden units."
        )


def check_module(module: Any, name: str, what: str) -> Any:
    """Return `module` if it can be called like a network; otherwise raise an error."""
    if isinstance(module, type) or not callable(module):
        raise ValueError(f"{name} is {_kind(module)}, expected an nn.Module {what}.")
    return module


def check_tensor(x: Any, name: str, shape: tuple[Any, ...], reference: Any = None) -> Tensor:
    """Return `x` if it is a non-empty real tensor of the expected shape; otherwise raise an error.

    The entries are not tested for NaN and infinity: on an accelerator this would wait for the
    device.
    """
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name} is {_kind(x)}, expected a tensor of shape {_shown(shape)}.")
    if x.is_complex():
        raise ValueError(f"{name} is complex ({x.dtype}), expected real numbers.")
    if x.is_meta and reference is None:
        raise ValueError(
            f"{name} is on the device 'meta', which stores no numbers, expected a "
            "device such as 'cpu' or 'cuda': create the tensor there."
        )
    sizes = shape[1:] if shape[0] is ... else shape
    fits = x.ndim >= len(sizes) if shape[0] is ... else x.ndim == len(sizes)
    last = x.shape[x.ndim - len(sizes) :] if fits else ()
    if not fits or any(
        isinstance(want, int) and got != want for got, want in zip(last, sizes, strict=True)
    ):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected {_shown(shape)}.")
    if 0 in x.shape:
        raise ValueError(f"{name} is empty: its shape is {tuple(x.shape)}. Give at least one row.")
    if reference is not None and x.device != reference.device:
        raise ValueError(
            f"{name} is on the device {str(x.device)!r} and the module on "
            f"{str(reference.device)!r}, expected the same device: move one of them with .to()."
        )
    return x


def _shown(shape: tuple[Any, ...]) -> str:
    """Return a shape as a string for a message, such as ``(B, 3)``."""
    names = ["…" if size is ... else str(size) for size in shape]
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _kind(x: Any) -> str:
    """Return a phrase for the type of an object in a message, such as "of type list"."""
    return "None" if x is None else f"of type {type(x).__name__}"


def batches(data: Any, name: str = "data") -> Iterator[Tensor]:
    """Yield batches of inputs from a tensor, or from a loader of tensors or (tensor, …) tuples.

    A batch that is not a non-empty tensor of finite real numbers is an error.
    """
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
        raise ValueError(
            f"{name} contains no batch, expected at least one. A generator can be read only once: "
            "give a list or a DataLoader."
        )


def _finite_batch(batch: Any, name: str) -> Tensor:
    """Return a batch if it is a non-empty tensor of finite real numbers; else raise an error."""
    if not isinstance(batch, torch.Tensor) or batch.ndim < 2 or batch.numel() == 0:
        given = (
            f"of shape {tuple(batch.shape)}" if isinstance(batch, torch.Tensor) else _kind(batch)
        )
        raise ValueError(
            f"{name} contains a batch {given}, expected non-empty tensors of shape (B, …)."
        )
    if not torch.isfinite(check_tensor(batch, name, (...,))).all():
        raise ValueError(f"{name} contains NaN or infinity. Remove or impute those entries first.")
    return batch


def full_precision(x: Tensor) -> Tensor:
    """Return `x` unchanged if it is float64, otherwise as float32.

    Half precision has too few digits for variances.
    """
    return x if x.dtype == torch.float64 else x.float()


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast on the device of `x`.

    It is for computations that need full precision.
    """
    context: AbstractContextManager[Any] = torch.autocast(x.device.type, enabled=False)
    return context


@contextmanager
def evaluation(module: Any, *, gradients: bool = False) -> Iterator[Any]:
    """Put all parts of a module in evaluation mode, and restore the mode of each afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.set_grad_enabled(gradients):
            yield module
    finally:
        for part, mode in modes:
            part.training = mode


def device_of(module: Any) -> Any:
    """Return the device of a module's first parameter or buffer, the CPU if it has none."""
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def summed(values: Tensor) -> Tensor:
    """Return the sum of a tensor over the processes of `torch.distributed`, if there are any."""
    processes = torch.distributed
    if processes.is_available() and processes.is_initialized():
        values = values.clone()
        processes.all_reduce(values)
    return values


FAR = 1024.0
"""Distance from the origin at which a decoder is evaluated to find out whether it is affine (b +
Wz)."""


def affine_matrix(decode: Callable[[Tensor], Any], codes: Tensor) -> Tensor | None:
    """Return the matrix W (D × k) of a decoder z ↦ b + Wz in double precision; None if not affine.

    The decoder is evaluated at 0, which gives b, and at multiples of the k unit vectors, which give
    W. It counts as affine if it equals b + Wz, up to rounding, at random points near the origin and
    far from it, and at some of the latents `codes` of shape (n, k). The points are the same in each
    call.
    """
    k = codes.shape[1]
    random = torch.randn(8, k, generator=torch.Generator().manual_seed(0)).to(codes)
    axes = torch.eye(k, dtype=codes.dtype, device=codes.device)
    # Far from the origin a nonlinear decoder differs most, and W suffers least from rounding of b.
    origin = torch.zeros_like(random[:1])
    z = torch.cat([origin, FAR * axes, random, FAR * random, codes[:8]])
    with without_autocast(z):
        found = decode(z)
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        return None
    if found.ndim < 2 or len(found) != len(z):
        return None
    values, z = found.detach().flatten(1).double(), z.double()
    offset, matrix = values[:1], (values[1 : k + 1] - values[:1]) / FAR
    expected = offset + z @ matrix
    size = offset.abs() + z.abs() @ matrix.abs()
    same = (values - expected).abs() <= _rounding(found.dtype) * size
    # A comparison with NaN is False: a decoder that overflows does not count as affine.
    return matrix.mT if bool(same.all()) else None


def _rounding(dtype: Any) -> float:
    """Return the largest relative error that rounding may cause in a few products of matrices."""
    unit = float(torch.finfo(dtype).eps)
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        unit = float(torch.finfo(torch.bfloat16).eps)
    return min(512 * unit, 0.05)


class ResidualBlock(nn.Module):
    """Residual block x + conv(act(norm(conv(act(norm(x)))))) with a constant number of channels.

    Parameters
    ----------
    channels : int
        Number of input and output channels. Channels are normalised in groups, so that the output
        of a sample does not depend on the other samples of its batch.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import ResidualBlock
    >>> ResidualBlock(8)(torch.randn(2, 8, 5, 5)).shape
    torch.Size([2, 8, 5, 5])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = check_integer(channels, "channels", low=1)
        self.body = nn.Sequential(
            *_normalised(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            *_normalised(channels),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for images x; both have the shape (B, channels, height, width)."""
        check_tensor(x, "x", ("B", self.channels, "height", "width"))
        return x + self.body(x)


def _normalised(channels: int) -> tuple[Any, Any]:
    """Return a group normalisation of the channels and a SiLU activation, two layers."""
    return nn.GroupNorm(math.gcd(8, channels), channels), nn.SiLU()


def _image_sizes(
    shape: Any, width: int, blocks: int, stages: int
) -> tuple[tuple[int, int, int], list[tuple[int, int]]]:
    """Return the shape of an image, and (height, width) at each stage, which halves both."""
    if not isinstance(shape, tuple | list | torch.Size) or len(shape) != 3:
        raise ValueError(f"shape={shape!r} was given, expected (channels, height, width).")
    channels, *size = (check_integer(size, "shape", low=1) for size in shape)
    check_integer(width, "width", low=1)
    check_integer(blocks, "blocks", low=0)
    check_integer(stages, "stages", low=0)
    sizes = [(size[0], size[1])]
    for _ in range(stages):
        sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
    return (channels, *sizes[0]), sizes


class ResNetEncoder(nn.Module):
    """Network from images to features; residual stages halve the size and double the channels.

    Parameters
    ----------
    shape : (channels, height, width)
        Shape of an image.
    features : int, default=256
        Number of features that are returned for an image.
    width : int, default=32
        Number of channels at full image size; each stage doubles it.
    blocks : int, default=1
        Number of residual blocks at each size.
    stages : int, default=2
        Number of times that the image size is halved.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import ResNetEncoder
    >>> ResNetEncoder((1, 8, 8), features=16, width=8)(torch.randn(3, 1, 8, 8)).shape
    torch.Size([3, 16])
    """

    def __init__(
        self, shape: Any, features: int = 256, *, width: int = 32, blocks: int = 1, stages: int = 2
    ) -> None:
        super().__init__()
        self.shape, sizes = _image_sizes(shape, width, blocks, stages)
        self.out_features = check_integer(features, "features", low=1)
        layers: list[Any] = [nn.Conv2d(self.shape[0], width, 3, padding=1)]
        for stage in range(stages):
            channels = width * 2**stage
            layers += [ResidualBlock(channels) for _ in range(blocks)]
            layers.append(nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1))
        last = width * 2**stages
        layers += [ResidualBlock(last) for _ in range(blocks)]
        layers += [*_normalised(last), nn.Flatten()]
        layers += [nn.Linear(last * math.prod(sizes[-1]), features), nn.SiLU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of a batch of images x, shape (B, features)."""
        return self.body(check_tensor(x, "x", ("B", *self.shape)))


class ResNetDecoder(nn.Module):
    """Network from latents to images: the stages of `ResNetEncoder` in reverse order.

    Parameters
    ----------
    shape : (channels, height, width)
        Shape of an image.
    latent_dim : int
        Number of latents.
    width, blocks, stages
        As in `ResNetEncoder`.

    Examples
    --------
    >>> import torch
    >>> from lucidae.nn import ResNetDecoder
    >>> ResNetDecoder((1, 7, 9), 4, width=8)(torch.randn(3, 4)).shape
    torch.Size([3, 1, 7, 9])
    """

    def __init__(
        self, shape: Any, latent_dim: int, *, width: int = 32, blocks: int = 1, stages: int = 2
    ) -> None:
        super().__init__()
        self.shape, sizes = _image_sizes(shape, width, blocks, stages)
        self.in_features = check_integer(latent_dim, "latent_dim", low=1)
        last = width * 2**stages
        layers: list[Any] = [
            nn.Linear(latent_dim, last * math.prod(sizes[-1])),
            nn.Unflatten(1, (last, *sizes[-1])),
        ]
        for stage in reversed(range(stages)):
            channels = width * 2 ** (stage + 1)
            layers += [ResidualBlock(channels) for _ in range(blocks)]
            enlarge = nn.Upsample(sizes[stage])
            mix = nn.Conv2d(channels, channels // 2, 3, padding=1)
            layers.append(nn.Sequential(OrderedDict(enlarge=enlarge, mix=mix)))
        layers += [ResidualBlock(width) for _ in range(blocks)]
        layers += [*_normalised(width), nn.Conv2d(width, self.shape[0], 3, padding=1)]
        self.body = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor:
        """Return the images of a batch of latents z, shape (B, channels, height, width)."""
        return self.body(check_tensor(z, "z", ("B", self.in_features)))
