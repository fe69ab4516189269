"""Checks of the arguments of metrics, and norms that neither overflow nor divide by zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    as_float,
    is_complex,
    largest,
    like,
    namespace,
    scalar,
    where_set,
)
from lucidae.validation import real_array


def finite_array(x: Any, name: str, least_axes: int, *, accept_complex: bool = False) -> Array:
    """Return `x` as a floating array with at least `least_axes` axes.

    Raise a ValueError, in which the argument is called `name`, if it has fewer axes, is empty, or
    has entries that are not finite real numbers (or complex ones, if `accept_complex`).
    """
    array = real_array(x, name, accept_complex=accept_complex)
    xp = namespace(array)
    if array.ndim < least_axes or 0 in array.shape:
        raise ValueError(
            f"{name} must have at least {least_axes} axes, and each of them at least one entry; "
            f"got shape {tuple(array.shape)}."
        )
    array = as_float(array)
    if not bool(xp.all(xp.isfinite(array))):
        raise ValueError(f"{name} contains NaN or infinite values; give finite numbers.")
    return array


def matrix(x: Any, name: str) -> Array:
    """Return `x` as a matrix, or a batch of matrices (…, n, m), after checking that it is finite.

    `name` is the name of the argument in errors.
    """
    return finite_array(x, name, least_axes=2)


def pair(first: Any, second: Any, names: tuple[str, str]) -> tuple[Array, Array]:
    """Return two matrices, or batches of matrices, in the library and dtype of the first.

    Leading axes that do not broadcast raise a ValueError; `names` are the arguments' names in it.
    """
    left, right = matrix(first, names[0]), matrix(second, names[1])
    try:
        np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
    except ValueError as error:
        raise ValueError(
            f"the leading axes of {names[0]}, which has shape {tuple(left.shape)}, and of "
            f"{names[1]}, which has shape {tuple(right.shape)}, do not match: give equally "
            "many matrices of both, or a single matrix for one of them."
        ) from error
    return left, like(right, left)


def require(condition: bool, first: Array, second: Array, expected: str) -> None:
    """Raise a ValueError with the shapes of both arrays unless `condition` is true.

    `expected` describes the expected shapes.
    """
    if not condition:
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"expected {expected}; got shapes {shapes}.")


def norms(x: Array, axis: int) -> Array:
    """Return the Euclidean norms of the vectors of `x` along `axis`.

    The vectors are divided by their largest entry before squaring, which prevents overflow.
    """
    xp = namespace(x)
    x = xp.abs(x) if is_complex(x) else x
    scale = xp.max(xp.abs(x), axis=axis, keepdims=True)
    scaled = x / where_set(scale, scale == 0, 1.0)
    return xp.squeeze(scale, axis=axis) * xp.sqrt(xp.sum(scaled * scaled, axis=axis))


def unit_columns(x: Array, rtol: float) -> Array:
    """Return the matrices `x` (…, m, k) with every column scaled to norm one.

    Columns whose norm is at most `rtol` times the largest norm become zero.
    """
    xp = namespace(x)
    lengths = norms(x, axis=-2)[..., None, :]
    negligible = lengths <= rtol * xp.max(lengths, axis=-1, keepdims=True)
    return where_set(x / where_set(lengths, negligible, 1.0), negligible, 0.0)


ROOM = 2.0**32
"""Number by which entries are divided, so that sums of up to 2³² of them do not overflow."""


def with_room(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays; all are divided by 2³² (`ROOM`) if sums of their entries could overflow.

    The caller must compute a result that does not change if all arrays are multiplied by the same
    number.
    """
    limit = float(namespace(arrays[0]).finfo(arrays[0].dtype).max) / ROOM
    if max(largest(array) for array in arrays) <= limit:
        return arrays
    return tuple(array / ROOM for array in arrays)


def within_range(result: Array, *given: Array) -> Array:
    """Return `result`; raise an error if it overflows, with the largest of the `given` entries."""
    if bool(namespace(result).all(namespace(result).isfinite(result))):
        return result
    peak = max(largest(array) for array in given)
    raise ValueError(
        f"the result overflows {given[0].dtype}: the largest entry of the given matrices is "
        f"{peak:.3g}. Divide them by a constant first."
    )


def single_or_stack(values: Array) -> Any:
    """Return a zero-dimensional array (one problem) as a Python float, other arrays unchanged."""
    return scalar(values) if values.ndim == 0 else values
