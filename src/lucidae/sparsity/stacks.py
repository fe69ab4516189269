"""What a stack of problems is given: checked arrays, noise variances and settings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lucidae._arrays import Array, as_double, as_float, is_array, like, namespace
from lucidae._validation import check_choice, check_integer, check_number
from lucidae.sparsity.penalties import as_penalty
from lucidae.sparsity.solvers import POSTERIORS
from lucidae.sparsity.updates import UPDATES


class Settings(NamedTuple):
    """How a stack is solved."""

    posterior: str
    solver: str
    penalty: Any
    tol: float
    max_iter: int

    def checked(self) -> Settings:
        """Refuse what cannot be meant, and give the penalty by its object."""
        check_choice(self.posterior, "posterior", POSTERIORS)
        check_choice(self.solver, "solver", ("auto", *UPDATES))
        check_number(self.tol, "tol", low=0.0)
        check_integer(self.max_iter, "max_iter", low=1)
        return self._replace(penalty=as_penalty(self.penalty))


def checked_stack(Phi: Any, X: Any) -> tuple[Array, Array]:
    """Return finite arrays (B, d, κ) and (B, d, n) of one library, floats as they came."""
    X = X if is_array(X) else np.asarray(X)
    Phi = Phi if is_array(Phi) else np.asarray(Phi)
    xp = namespace(Phi, X)
    if X.ndim != 3 or Phi.ndim not in (2, 3):
        raise ValueError(
            f"Phi has shape {tuple(Phi.shape)} and X {tuple(X.shape)}, expected (B, d, κ) or "
            "(d, κ), and (B, d, n): problems along the leading axis."
        )
    if Phi.ndim == 2:
        Phi = xp.broadcast_to(Phi, (X.shape[0], *Phi.shape))
    if Phi.shape[:2] != X.shape[:2] or 0 in (*Phi.shape, *X.shape):
        raise ValueError(
            f"Phi has shape {tuple(Phi.shape)} and X {tuple(X.shape)}: the first two axes, "
            "problems and rows, must agree and none may be empty."
        )
    Phi, X = as_float(Phi), as_float(X)
    if not bool(xp.all(xp.isfinite(Phi))) or not bool(xp.all(xp.isfinite(X))):
        raise ValueError("Phi or X contains NaN or infinity. Remove those problems first.")
    return Phi, X


def checked_noise(noise: Any, X: Array, posterior: str) -> Any:
    """Return one positive noise variance for each problem, or "learn"."""
    xp = namespace(X)
    if isinstance(noise, str):
        check_choice(noise, "noise_variance", ("learn",))
        if posterior == "point":
            raise ValueError(
                'noise_variance="learn" needs a posterior, and a point estimate has none: its '
                'evidence falls without end as γ → 0. Give a number, or posterior="full".'
            )
        return noise
    ones = as_double(xp.ones_like(X[:, 0, 0]))
    values = ones * like(noise, ones) if is_array(noise) or isinstance(noise, list) else (
        ones * check_number(noise, "noise_variance", low=0.0, open_low=True)
    )  # fmt: skip
    if not bool(xp.all(xp.isfinite(values) & (values > 0))):
        raise ValueError("noise_variance must be finite and above 0 for every problem.")
    return values
