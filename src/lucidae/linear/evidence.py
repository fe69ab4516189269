"""What a linear autoencoder's certificate is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae._arrays import as_double, namespace, scalar, to_numpy
from lucidae.linear.covariance import Covariance
from lucidae.linear.methods import Method, relative_direction
from lucidae.linear.objectives import NonUniformL2
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.theory import (
    dying_latents,
    objective_curvatures,
    residual_bounds,
    subspace_determined,
    unidentifiable,
)

Vector = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a certificate is drawn from.

    Parameters
    ----------
    method : Method
        The method, with its penalties or prior.
    weights : weights
        Encoder and decoder as trained, latents in their own order.
    covariance : Covariance
        Products with the second moment.
    spectrum : Spectrum or None
        Leading eigenpairs, at least k of them; None where they are out of reach.
    tolerance : float
        What the fit asked of its stationarity.
    learning_rate : float or None
        The step size that was used, for the prediction of epochs.
    momentum : float
        The momentum that was used.
    """

    method: Method
    weights: Any
    covariance: Covariance
    spectrum: Spectrum | None
    tolerance: float = 1e-6
    learning_rate: float | None = None
    momentum: float = 0.0

    @property
    def k(self) -> int:
        """Number of latents."""
        return int(self.weights.encoder.shape[-2])

    def values(self) -> Vector:
        """Return the known eigenvalues on the host; none where they are out of reach."""
        return np.empty(0) if self.spectrum is None else to_numpy(self.spectrum.values)

    def dead(self) -> Vector:
        """Return the latents, counted from 1, that must die under their penalties."""
        objective = self.method.objective
        if self.spectrum is None or not isinstance(objective, NonUniformL2):
            return np.empty(0, dtype=int)
        return dying_latents(self.values()[: self.k], to_numpy(objective.penalties))

    def shared(self) -> Vector:
        """Return the components, counted from 1, that the data do not tell apart."""
        if self.spectrum is None:
            return np.empty(0, dtype=int)
        return unidentifiable(self.values(), self.k)

    def determined(self) -> bool:
        """Tell whether the data determine the subspace, as far as the spectrum is known."""
        return self.spectrum is None or subspace_determined(self.values(), self.k)

    def curvatures(self) -> Vector | None:
        """Return the eigenvalues of the Hessian at the optimum, where they are known."""
        return None if self.spectrum is None else objective_curvatures(self.method, self.values())

    def variances(self) -> Vector:
        """Return the variance along each decoder column, penalties put in ascending order."""
        atoms = as_double(self.weights.atoms)
        xp = namespace(atoms)
        power = to_numpy(xp.sum(atoms * atoms, axis=-1))
        along = to_numpy(xp.sum(self.covariance.apply(atoms) * atoms, axis=-1))
        variances = along / np.maximum(power, np.finfo(float).tiny)
        if isinstance(self.method.objective, NonUniformL2):
            variances = variances[np.argsort(to_numpy(self.method.objective.penalties))]
        return np.asarray(variances)

    def stationarity(self) -> float:
        """Return the size of the rule's direction, relative to its scale and to the weights."""
        method = self.method.expected() if self.method.needs_rows else self.method
        spectrum = self.spectrum or self._ritz_spectrum()
        scale = max(method.scale(spectrum), np.finfo(float).tiny)
        return scalar(relative_direction(method, self.weights, self.covariance, scale))

    def _ritz_spectrum(self) -> Spectrum:
        atoms = as_double(self.weights.atoms)
        bounds = residual_bounds(self.covariance, atoms, n_iter=1)
        return Spectrum(bounds.values, atoms.mT, float(self.covariance.trace))
