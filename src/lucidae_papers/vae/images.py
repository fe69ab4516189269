"""Images on which the VAEs of the experiments are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lucidae.datasets import fetch_mnist, load_digits

Images = np.ndarray[Any, Any]


def digits() -> tuple[Images, Images]:
    """Return scikit-learn's digits, 8 × 8 pixels in [0, 1]: 1500 to train, 297 to evaluate."""
    images = load_digits().images
    return images[:1500], images[1500:]


def mnist() -> tuple[Images, Images]:
    """Return the training and the test images of MNIST, with pixels in [0, 1]."""
    return fetch_mnist("train").images, fetch_mnist("test").images


SOURCES: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits, "mnist": mnist}


def as_tensor(x: Any, device: str) -> torch.Tensor:
    """Return images of shape (n, height, width) as a tensor (n, 1, height, width) on a device."""
    return torch.tensor(np.asarray(x)[:, None], dtype=torch.float32, device=device)
