"""The numbers behind the masks of full-batch nested dropout, drawn for many epochs at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae._arrays import Array, to_numpy
from lucidae.linear.rules import prefix_thresholds

WIDTHS = 32
"""Widths are multiples of this, so that a device records few of them."""

SLACK = 1e-12
"""A device may round P(length < i) otherwise than the processor."""


class Draws:
    """Uniform numbers, one for each epoch, run and row, and how many latents they reach.

    NumPy draws them in the order in which the epochs need them, so that a seed gives one
    trajectory on any device, however many epochs are taken at once.

    Parameters
    ----------
    prior : array of shape (k,)
        Probabilities of the prefix lengths.
    random : numpy.random.Generator
        The source.
    n_rows : int
        Rows of the batch.

    Examples
    --------
    >>> draws = Draws(np.array([0.5, 0.5]), np.random.default_rng(0), 3)
    >>> numbers, width = draws(4, 1)
    >>> numbers.shape, width
    ((4, 1, 3), 2)
    """

    def __init__(self, prior: Array, random: np.random.Generator, n_rows: int) -> None:
        self.thresholds = prefix_thresholds(to_numpy(prior))
        self.random, self.n_rows = random, n_rows
        self.ahead: np.ndarray[Any, Any] | None = None

    def __call__(self, epochs: int, runs: int) -> tuple[np.ndarray[Any, Any], int]:
        """Return numbers of shape (epochs, runs, rows), and a width that no prefix exceeds."""
        shape = (epochs, runs, self.n_rows)
        if self.ahead is None or self.ahead.shape != shape:
            self.ahead = self.random.random(shape)
        drawn, self.ahead = self.ahead, None
        return drawn, self.width(float(drawn.max()))

    def prepare(self, epochs: int, runs: int) -> None:
        """Draw the next numbers now, while a device is busy with the last ones."""
        self.ahead = self.random.random((epochs, runs, self.n_rows))

    def width(self, largest: float) -> int:
        """Return the longest prefix for numbers up to `largest`, rounded up."""
        longest = int(np.searchsorted(self.thresholds, largest + SLACK, side="right"))
        return min(len(self.thresholds), -(-longest // WIDTHS) * WIDTHS)
