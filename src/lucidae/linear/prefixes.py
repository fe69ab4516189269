"""Prefix lengths of nested dropout: probabilities, and random numbers from which they follow.

Nested dropout keeps the first b latents of a row and sets the others to 0; b is the prefix length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.arrays import Array, namespace, to_numpy
from lucidae.validation import check_integer, check_number

Vector = np.ndarray[Any, Any]


def geometric_prior(k: int, ratio: float = 0.9) -> Vector:
    """Return the probability of each number 1, …, k of latents that nested dropout keeps.

    Number b < k has the probability ratio^(b−1) · (1 − ratio), and k has the remaining one.

    Parameters
    ----------
    k : int
        Number of latents.
    ratio : float, default=0.9
        Ratio of each probability to the previous one, between 0 and 1.

    Returns
    -------
    ndarray of shape (k,)
        The probabilities; their sum is 1.

    Examples
    --------
    >>> geometric_prior(3, ratio=0.5)
    array([0.5 , 0.25, 0.25])
    """
    k = check_integer(k, "k", low=1)
    ratio = check_number(ratio, "ratio", low=0.0, high=1.0, open_low=True, open_high=True)
    prior = (1 - ratio) * ratio ** np.arange(k, dtype=float)
    prior[-1] = ratio ** (k - 1)
    return prior


def uniform_prior(k: int) -> Vector:
    """Return the probability 1/k for each number 1, …, k of latents that nested dropout keeps."""
    k = check_integer(k, "k", low=1)
    return np.full(k, 1.0 / k)


def keep_probabilities(prior: Array) -> Array:
    """Return, for each of the k latents, the probability that nested dropout keeps it.

    `prior` has the probabilities of the prefix lengths 1 … k: latent i is kept if the prefix length
    is at least i (Bao et al. 2020, Appendix C).
    """
    xp = namespace(prior)
    return xp.flip(xp.cumulative_sum(xp.flip(prior)))


def prefix_thresholds(prior: Array) -> Array:
    """Return, for i = 1 … k, the probability that nested dropout keeps fewer than i latents.

    It keeps the first b of k latents, where b is the prefix length.
    """
    keep = keep_probabilities(prior)
    return 1 - keep / keep[0]


WIDTHS = 32
"""The number of latents whose gradients are computed is rounded up to a multiple of this number, so
that few different CUDA graphs have to be recorded."""

SLACK = 1e-12
"""Largest rounding difference between a GPU and NumPy in the probability of a prefix length."""


class PrefixNumbers:
    """Draws the uniform random numbers of nested dropout: one per epoch, run and row.

    A number determines the prefix length b of its row: the first b latents are kept. NumPy draws
    the numbers in the order in which the epochs need them. A seed therefore gives the same
    trajectory on every device, however many epochs are computed at once.
    """

    def __init__(self, prior: Array, rng: np.random.Generator, n_rows: int) -> None:
        self.thresholds = prefix_thresholds(to_numpy(prior))
        self.rng, self.n_rows = rng, n_rows
        self.ahead: Vector | None = None

    def __call__(self, epochs: int, runs: int) -> tuple[Vector, int]:
        """Return random numbers of shape (epochs, runs, rows), and a bound on the prefix lengths.

        Each number determines how many latents its row keeps, the prefix length; none of these
        exceeds the bound.
        """
        shape = (epochs, runs, self.n_rows)
        if self.ahead is None or self.ahead.shape != shape:
            self.ahead = self.rng.random(shape)
        drawn, self.ahead = self.ahead, None
        return drawn, self.width(float(drawn.max()))

    def prepare(self, epochs: int, runs: int) -> None:
        """Draw and store the random numbers of the next call, while a GPU computes."""
        self.ahead = self.rng.random((epochs, runs, self.n_rows))

    def width(self, largest: float) -> int:
        """Return a bound on the number of latents that random numbers up to `largest` keep.

        A row keeps its first b latents, where the prefix length b follows from its uniform random
        number and increases with it. The bound is the prefix length that `largest` gives, rounded
        up to a multiple of `WIDTHS`, but at most the number of latents.
        """
        longest = int(np.searchsorted(self.thresholds, largest + SLACK, side="right"))
        return min(len(self.thresholds), -(-longest // WIDTHS) * WIDTHS)
