"""One run of the comparison as a cell of an experiment: settings in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from lucidae.datasets import fetch_mnist, load_digits
from lucidae.experiments.declaration import work
from lucidae.experiments.vae.comparison import SCALES, Design, train_arm
from lucidae.experiments.vae.pictures import as_images
from lucidae.experiments.vae.verdict import ARMS
from lucidae.validation import check_choice

__all__ = ["cell_settings", "measure"]

Images = np.ndarray[Any, Any]


def digits() -> tuple[Images, Images]:
    """Return the embedded digits as 8 × 8 images in [0, 1], for training and for measuring."""
    images = load_digits().images
    return images[:1500], images[1500:]


def mnist() -> tuple[Images, Images]:
    """Return MNIST's training and test images in [0, 1]."""
    return fetch_mnist("train").images, fetch_mnist("test").images


SOURCES: dict[str, Callable[[], tuple[Images, Images]]] = {"digits": digits, "mnist": mnist}


def cell_settings(scale: str, noise_variance: str | float = "learn") -> list[dict[str, Any]]:
    """Return the settings of every run at a scale: both arms from each seed.

    Parameters
    ----------
    scale : {"smoke", "paper"}
        Names the design.
    noise_variance : "learn" or float, default="learn"
        As in `Design`.

    Returns
    -------
    list of dict
        JSON-safe. A γ that is learned is not named, as in cells from before it could be fixed.

    Examples
    --------
    >>> [(cell["arm"], cell["seed"]) for cell in cell_settings("smoke")]
    [('full', 0), ('diagonal', 0)]
    """
    design = replace(SCALES[check_choice(scale, "scale", SCALES)], noise_variance=noise_variance)
    data = "digits" if scale == "smoke" else "mnist"
    described = asdict(design) | {"seeds": list(design.seeds)}
    if noise_variance == "learn":
        del described["noise_variance"]
    return [
        {"data": data, "arm": arm, "seed": seed, "design": described}
        for seed in design.seeds
        for arm in ARMS
    ]


@work("vae.comparison/1")
def measure(group: Sequence[Mapping[str, Any]], device: str) -> list[dict[str, Images]]:
    """Train the runs of some cells and return their histories, one entry an epoch.

    Parameters
    ----------
    group : sequence of mappings
        Entries of `cell_settings`.
    device : str
        What torch calls a device.

    Returns
    -------
    list of dict
        The arrays of `evaluation.evaluate` by epoch, ``parameters``, and pictures.

    Examples
    --------
    >>> cell = cell_settings("smoke")[0]
    >>> training = {**cell["design"]["training"], "epochs": 1, "batch_size": 750}
    >>> design = {**cell["design"], "training": training, "latent_dim": 2}
    >>> (arrays,) = measure([{**cell, "design": design}], "cpu")
    >>> arrays["mse"].shape, arrays["full_samples"].shape
    ((1,), (10, 8, 8))
    """
    return [_measure_one(settings, device) for settings in group]


def _measure_one(settings: Mapping[str, Any], device: str) -> dict[str, Images]:
    source = SOURCES[check_choice(settings["data"], "data", SOURCES)]
    images, held_out = (as_images(x, device) for x in source())
    design = Design.of(settings["design"])
    if device == "cpu":  # compiling for the processor costs more than it brings at these sizes
        plain = replace(design.training, precision="float32", compiled=False)
        design = replace(design, training=plain)
    arm = check_choice(settings["arm"], "arm", ARMS)
    run, shown = train_arm(images, held_out, design, arm, settings["seed"], None)
    history = {name: np.array(values) for name, values in run["history"].items()}
    return history | shown | {"parameters": np.array(run["parameters"])}
