"""Data sets by name, loaded once per process: rows, spectrum, and penalties that depend on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lucidae import datasets
from lucidae.arrays import like
from lucidae.experiments.device import reference
from lucidae.linear.penalties import best_penalties, paper_penalties
from lucidae.linear.spectrum import Spectrum
from lucidae.moments import SecondMoment
from lucidae.validation import check_choice

__all__ = ["DATA", "PENALTIES", "DataSet", "centred_rows", "penalties", "spectrum"]

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the linear experiments.

    Parameters
    ----------
    load : callable
        Returns the rows.
    n_samples, n_features : int
        Its shape, known before it is loaded.
    words : str
        Its description on the page.
    image_shape : (height, width), optional
        Shape of the rows as images.
    embedded : bool, default=True
        Whether it is available without a download.
    """

    load: Callable[[], Matrix]
    n_samples: int
    n_features: int
    words: str
    image_shape: tuple[int, int] | None = None
    embedded: bool = True


def _gaussian(n_samples: int, n_features: int) -> DataSet:
    """Return the data of Bao et al. 2020, Figure 4 (5000 × 1000), at any size."""

    def load() -> Matrix:
        return datasets.make_spectrum(n_samples, n_features, random_state=0).data

    words = f"Gaussian, {n_samples} × {n_features}, eigenvalues equally spaced from 100 to 1"
    return DataSet(load, n_samples, n_features, words)


DATA = {
    "digits": DataSet(
        lambda: np.asarray(datasets.load_digits().data),
        1797,
        64,
        "digits, 1797 × 64, pixels in [0, 1], centred",
        (8, 8),
    ),
    "mnist": DataSet(
        lambda: np.asarray(datasets.fetch_mnist("train", dtype="float64").data),
        60_000,
        784,
        "MNIST, 60 000 × 784, pixels in [0, 1], centred",
        (28, 28),
        embedded=False,
    ),
    "gaussian": _gaussian(5000, 1000),
    "small-gaussian": _gaussian(500, 100),
}


@lru_cache(maxsize=2)
def centred_rows(name: str) -> Matrix:
    """Return the rows of a data set minus their mean, in float64."""
    rows = DATA[check_choice(name, "data", DATA)].load()
    return np.asarray(rows - rows.mean(axis=0))


@lru_cache(maxsize=4)
def _spectrum(name: str) -> Spectrum:
    moment = SecondMoment.of(centred_rows(name))
    return Spectrum(*moment.spectrum(), moment.trace)


def spectrum(name: str, device: str = "cpu") -> Spectrum:
    """Return all eigenpairs of a data set's second moment, on a device.

    Examples
    --------
    >>> spectrum("digits").values.shape
    (64,)
    """
    found, ref = _spectrum(name), reference(device)
    return Spectrum(like(found.values, ref), like(found.vectors, ref), found.trace)


def _spaced(_values: Matrix, k: int, low: float, high: float) -> Matrix:
    """Return penalties whose square roots are equally spaced (Bao et al. 2020, Appendix H)."""
    return np.linspace(low, high, k) ** 2


def _uniform(_values: Matrix, k: int, value: float) -> Matrix:
    return np.full(k, value)


def _paper(values: Matrix, k: int) -> Matrix:
    """Return the penalties that minimise the bound of Bao et al. 2020, eq. 16 (Figure 5)."""
    return paper_penalties(values[:k])


PENALTIES: dict[str, Callable[..., Matrix]] = {
    "spaced": _spaced,
    "uniform": _uniform,
    "paper": _paper,
    "best": best_penalties,
}


def penalties(rule: Mapping[str, Any], data: str, k: int) -> Matrix:
    """Return ℓ₂ penalties by a rule: a name of `PENALTIES` with its constants.

    Examples
    --------
    >>> penalties({"rule": "uniform", "value": 0.25}, "digits", 2)
    array([0.25, 0.25])
    """
    constants = {name: value for name, value in rule.items() if name != "rule"}
    maker = PENALTIES[check_choice(rule["rule"], "rule", PENALTIES)]
    return maker(_spectrum(data).values, k, **constants)
