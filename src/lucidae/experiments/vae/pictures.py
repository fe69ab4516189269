"""Images in and out of a study: arrays to tensors, reconstructions and samples to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lucidae.nn.layers import Tensor, evaluation

__all__ = ["as_images", "picture", "pictures"]


def as_images(x: Any, device: str) -> Tensor:
    """Return (n, 1, height, width) images in [0, 1] on the device."""
    array = np.asarray(x)
    if array.ndim != 3 or array.shape[0] < 2:
        raise ValueError(f"images have shape {array.shape}, expected (n, height, width).")
    scaled = array / 255.0 if array.dtype == np.uint8 else array
    return torch.tensor(scaled[:, None], dtype=torch.float32, device=device)


def picture(x: Tensor) -> np.ndarray[Any, Any]:
    """Return the first channel of images in [0, 1] as bytes, shape (n, height, width)."""
    shown = np.clip(x.float().cpu().numpy()[:, 0] * 255.0, 0, 255)
    return np.asarray(shown.round().astype(np.uint8))


def pictures(model: Any, x: Tensor, arm: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a model makes of some images, and as many draws from its prior."""
    devices = [x.device] if x.device.type == "cuda" else []
    with evaluation(model), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return {
            f"{arm}_reconstructions": picture(model.reconstruct(x)),
            f"{arm}_samples": picture(model.sample(len(x))),
        }
