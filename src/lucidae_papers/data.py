"""Data sets of the linear experiments by name: rows, eigenvalues, and penalties from these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lucidae import datasets
from lucidae.arrays import like
from lucidae.linear.penalties import best_penalties, paper_penalties
from lucidae.moments import SecondMoment
from lucidae.rows.spectrum import Spectrum
from lucidae.validation import check_choice
from lucidae_papers.device import reference

__all__ = ["DATA", "PENALTIES", "DataSet", "centred_rows", "penalties", "spectrum"]

Matrix = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set of the experiments on linear autoencoders."""

    # function without arguments that returns the data, shape (n_samples, n_features)
    load: Callable[[], Matrix]
    n_samples: int  # shape of the data, known before they are loaded
    n_features: int
    words: str  # description on the HTML page
    image_shape: tuple[int, int] | None = None  # shape of the rows as images
    embedded: bool = True  # whether it is available without a download


def _gaussian(n_samples: int, n_features: int) -> DataSet:
    """Return a data set of Gaussian rows whose covariance has equally spaced eigenvalues.

    The eigenvalues are those of Bao et al. 2020, Figure 4, where the data have 5000 rows and 1000
    features.
    """

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
    """Return the rows of the data set called `name` minus their mean, as float64."""
    rows = DATA[check_choice(name, "data", DATA)].load()
    return np.asarray(rows - rows.mean(axis=0))


@lru_cache(maxsize=4)
def _spectrum(name: str) -> Spectrum:
    moment = SecondMoment.of(centred_rows(name))
    return Spectrum(*moment.spectrum(), moment.trace)


def spectrum(name: str, device: str = "cpu") -> Spectrum:
    """Return all eigenvalues and eigenvectors of the covariance of a data set, on a device."""
    found, ref = _spectrum(name), reference(device)
    return Spectrum(like(found.values, ref), like(found.vectors, ref), found.trace)


def _spaced(_values: Matrix, k: int, low: float, high: float) -> Matrix:
    """Return k penalties whose square roots are equally spaced from `low` to `high`.

    This is the choice of Bao et al. 2020, Appendix H.
    """
    return np.linspace(low, high, k) ** 2


def _uniform(_values: Matrix, k: int, value: float) -> Matrix:
    return np.full(k, value)


def _paper(values: Matrix, k: int) -> Matrix:
    """Return the k penalties that minimise the bound of Bao et al. 2020, eq. 16 (Figure 5).

    `values` are the eigenvalues of the covariance in descending order.
    """
    return paper_penalties(values[:k])


PENALTIES: dict[str, Callable[..., Matrix]] = {
    "spaced": _spaced,
    "uniform": _uniform,
    "paper": _paper,
    "best": best_penalties,
}


def penalties(rule: Mapping[str, Any], data: str, k: int) -> Matrix:
    """Return the ℓ₂ penalties of k latents that a rule gives for a data set."""
    constants = {name: value for name, value in rule.items() if name != "rule"}
    maker = PENALTIES[check_choice(rule["rule"], "rule", PENALTIES)]
    return maker(_spectrum(data).values, k, **constants)
