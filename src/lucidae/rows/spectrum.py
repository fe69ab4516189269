"""Leading eigenvalues and eigenvectors of a second moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, fields_beside, machine_epsilon, namespace, to_numpy

TINY = float(np.finfo(float).tiny)
"""The smallest normal float64 number, used in place of zero if one would divide by zero."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Leading eigenvalues and eigenvectors of the second moment of data.

    Parameters
    ----------
    values : array of shape (q,)
        The q leading eigenvalues, descending; q is at most the number of features m.
    vectors : array of shape (m, q)
        Their eigenvectors, one per column.
    trace : float
        Sum of all m eigenvalues.
    beyond : float or None
        Sum of the m − q other eigenvalues if it was computed from the rows
        (`lucidae.rows.leading`), so that it is accurate even if it is tiny compared with
        `trace`, and so are all eigenvalues. None if it is known as a difference alone.
    """

    values: Array
    vectors: Array
    trace: float
    beyond: float | None = None

    @property
    def n_features(self) -> int:
        """Number of features m."""
        return int(self.vectors.shape[0])

    def leading(self, k: int) -> Spectrum:
        """Return the spectrum with its first `k` eigenvalues and eigenvectors alone."""
        beyond = self.beyond
        if beyond is not None:
            beyond += float(namespace(self.values).sum(self.values[k:]))
        return Spectrum(self.values[:k], self.vectors[:, :k], self.trace, beyond)

    def beside(self, ref: Array) -> Spectrum:
        """Return the spectrum in the library and on the device of the array `ref`."""
        moved: Spectrum = fields_beside(self, ref)
        return moved

    def noise(self, k: int) -> float:
        """Return the mean of all eigenvalues after the first `k`; 0 if there are none.

        This is the noise variance of probabilistic PCA with `k` components.
        """
        m = self.n_features
        if k >= m:
            return 0.0
        if self.beyond is not None and k <= self.values.shape[0]:
            rest = float(namespace(self.values).sum(self.values[k:]))
            return max(0.0, rest + self.beyond) / (m - k)
        leading = float(namespace(self.values).sum(self.values[:k]))
        return max(0.0, self.trace - leading) / (m - k)

    def rank(self) -> int:
        """Return the numerical rank: the number of eigenvalues above their rounding error.

        The error is m·ε times the largest eigenvalue, for m features and the machine epsilon ε.
        """
        return int(np.sum(self.resolved(int(self.values.shape[0])) > 0.0))

    def resolved(self, q: int) -> np.ndarray[Any, Any]:
        """Return the first `q` eigenvalues; those below their rounding error are set to zero.

        The error is m·ε times the largest eigenvalue, for m features and the machine epsilon ε.
        Eigenvalues that were not computed, because there are fewer rows than features, are zero as
        well. The result is therefore the same for eigenvalues from rows and from a second moment.
        """
        values = to_numpy(self.values)
        floor = machine_epsilon(self.values) * self.n_features * float(values.max(initial=0.0))
        padded = np.append(values, np.zeros(max(0, min(q, self.n_features) - len(values))))
        return np.where(padded > floor, padded, 0.0)[:q]
