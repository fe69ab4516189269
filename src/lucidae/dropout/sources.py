"""Where dropout training finds its examples: a population, or the rows of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from lucidae._arrays import Array, device, like, namespace, normal

Rng = np.random.RandomState


class Source(Protocol):
    """Where examples come from."""

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Return inputs (n_runs, batch_size, d2) and outputs (n_runs, batch_size, d1)."""


@dataclass(frozen=True, slots=True, eq=False)
class GaussianSource:
    """White Gaussian inputs and y = Mx: the population of Mianjy et al. 2018, section 6."""

    matrix: Array

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Draw fresh examples for every run."""
        inputs = normal(rng, (n_runs, batch_size, self.matrix.shape[1]), ref)
        return inputs, inputs @ self.matrix.mT


@dataclass(frozen=True, slots=True, eq=False)
class SampleSource:
    """Rows drawn with replacement from a data set, in proportion to their weights.

    Inputs are centred and brought to white coordinates as they are drawn, x' = Bᵀ(x − μ); of a
    sparse data set no more than the batch is ever dense.
    """

    inputs: Any
    outputs: Array
    center: Array
    lift: Array
    output_center: Array
    cumulative: np.ndarray[Any, Any] | None = None

    def draw(self, rng: Rng, n_runs: int, batch_size: int, ref: Array) -> tuple[Array, Array]:
        """Draw rows for every run."""
        rows = self._rows(rng, n_runs * batch_size)
        white = _take(self.inputs, rows, ref) @ self.lift - self.center @ self.lift
        targets = _take(self.outputs, rows, ref) - self.output_center
        xp = namespace(ref)
        return tuple(
            xp.reshape(like(part, ref), (n_runs, batch_size, part.shape[1]))
            for part in (white, targets)
        )

    def _rows(self, rng: Rng, count: int) -> np.ndarray[Any, Any]:
        if self.cumulative is None:
            return np.asarray(rng.randint(self.inputs.shape[0], size=count))
        drawn = rng.random_sample(count) * self.cumulative[-1]
        return np.asarray(np.searchsorted(self.cumulative, drawn, side="right"))


def _take(values: Any, rows: np.ndarray[Any, Any], ref: Array) -> Array:
    """Return some rows; of a sparse matrix, a batch of them made dense."""
    if scipy.sparse.issparse(values):
        return values[rows].toarray()
    xp = namespace(values)
    return like(xp.take(values, xp.asarray(rows, device=device(values)), axis=0), ref)
