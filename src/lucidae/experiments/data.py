"""Data by name, loaded once in each process: rows, their spectrum, and penalties that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from lucidae import datasets
from lucidae.arrays import like
from lucidae.experiments.device import reference
from lucidae.linear.penalties import best_penalties, paper_penalties
from lucidae.linear.spectrum import Spectrum, spectrum_of_moment
from lucidae.moments import SecondMoment
from lucidae.validation import check_choice

__all__ = ["PENALTIES", "centred_rows", "image_shape", "penalties", "spectrum"]

Matrix = np.ndarray[Any, Any]


def _digits() -> Matrix:
    return np.asarray(datasets.load_digits().data)


def _mnist() -> Matrix:
    return np.asarray(datasets.fetch_mnist("train", dtype="float64").data)


def _gaussian() -> Matrix:
    """Bao et al. 2020, Figure 4: m = 1000, n = 5000, eigenvalues from 100 down to 1."""
    return datasets.make_spectrum(5000, 1000, random_state=0).data


def _small_gaussian() -> Matrix:
    """Return the same with a tenth of the features."""
    return datasets.make_spectrum(
        500, 100, eigenvalues=np.linspace(100.0, 1.0, 100), random_state=0
    ).data


SOURCES: dict[str, Callable[[], Matrix]] = {
    "digits": _digits,
    "mnist": _mnist,
    "gaussian": _gaussian,
    "small-gaussian": _small_gaussian,
}
EMBEDDED = ("digits", "gaussian", "small-gaussian")
"""What needs no download."""

SHAPES = {"digits": (8, 8), "mnist": (28, 28)}


@lru_cache(maxsize=2)
def centred_rows(name: str) -> Matrix:
    """Return the rows of a data set with their mean taken off, in float64."""
    rows = SOURCES[check_choice(name, "data", SOURCES)]()
    return np.asarray(rows - rows.mean(axis=0))


@lru_cache(maxsize=4)
def _spectrum(name: str) -> Spectrum:
    return spectrum_of_moment(SecondMoment.of(centred_rows(name)))


def spectrum(name: str, device: str = "cpu") -> Spectrum:
    """Return all eigenpairs of a data set's second moment, on a device.

    Examples
    --------
    >>> spectrum("digits").values.shape
    (64,)
    """
    found, ref = _spectrum(name), reference(device)
    return Spectrum(like(found.values, ref), like(found.vectors, ref), found.trace)


def image_shape(name: str) -> tuple[int, int]:
    """Return height and width of a data set's images."""
    return SHAPES[check_choice(name, "data", SHAPES)]


def _spaced(_values: Matrix, k: int, low: float, high: float) -> Matrix:
    """Return λ with √λ equally spaced. Bao et al. 2020, Appendix H."""
    return np.linspace(low, high, k) ** 2


def _uniform(_values: Matrix, k: int, value: float) -> Matrix:
    return np.full(k, value)


def _paper(values: Matrix, k: int) -> Matrix:
    """Bao et al. 2020, eq. 16 and Figure 5."""
    return paper_penalties(values[:k])


def _best(values: Matrix, k: int) -> Matrix:
    """Return the truly best conditioned ones."""
    return best_penalties(values, k)


PENALTIES: dict[str, Callable[..., Matrix]] = {
    "spaced": _spaced,
    "uniform": _uniform,
    "paper": _paper,
    "best": _best,
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
