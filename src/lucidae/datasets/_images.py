"""Sets of small images, in the shape of scikit-learn's own loaders."""

from __future__ import annotations

from typing import Any

import numpy as np
import sklearn.datasets
from sklearn.utils import Bunch

PIXEL_TYPES = ("float32", "float64", "uint8")


def pixel_type(dtype: Any) -> str:
    """Return the name of `dtype` if images can be had in it."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if name not in PIXEL_TYPES:
        raise ValueError(f"dtype must be one of {', '.join(PIXEL_TYPES)}; got {dtype!r}.")
    return name


def scale_pixels(pixels: Any, brightest: int, dtype: Any) -> Any:
    """Return pixels in [0, 1] for a floating `dtype`, and as they are for uint8."""
    if pixel_type(dtype) == "uint8":
        return pixels.astype(np.uint8)
    return np.divide(pixels, brightest, dtype=pixel_type(dtype))


def image_bunch(data: Any, target: Any, image_shape: tuple[int, int], description: str) -> Any:
    """Return rows of pixels and labels with the names that scikit-learn gives them."""
    height, width = image_shape
    return Bunch(
        data=data,
        target=target,
        images=data.reshape(-1, height, width),
        image_shape=image_shape,
        feature_names=[f"pixel_{row}_{column}" for row in range(height) for column in range(width)],
        target_names=np.arange(10),
        DESCR=description,
    )


def load_digits(*, dtype: Any = "float64", return_X_y: bool = False) -> Any:
    """Return the 1797 handwritten digits, 8 by 8, that come with scikit-learn.

    Parameters
    ----------
    dtype : {"float64", "float32", "uint8"}, default="float64"
        Floating: pixels divided by 16, so in [0, 1] as those of MNIST. uint8: the raw 0…16.
    return_X_y : bool, default=False
        Return (data, target) alone.

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        ``data`` (1797, 64), ``target`` (1797,), ``images`` (1797, 8, 8), ``image_shape``,
        ``feature_names``, ``target_names``, ``DESCR``.

    Examples
    --------
    >>> from lucidae.datasets import load_digits
    >>> digits = load_digits()
    >>> digits.data.shape, float(digits.data.max())
    ((1797, 64), 1.0)
    """
    raw = sklearn.datasets.load_digits()
    digits = image_bunch(scale_pixels(raw.data, 16, dtype), raw.target, (8, 8), raw.DESCR)
    return (digits.data, digits.target) if return_X_y else digits
