"""The figures that a certificate of this family judges, as they are kept and saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lucidae.io.models import saved_as

FINEST = 1e-6
"""No smaller distance to stationarity is required, whatever `tol` says."""

FORMER = "These figures were saved by an earlier version: certify(estimator, X, y)."

Figure = float | None


def _former(fields: dict[str, Any]) -> dict[str, Any]:
    """Return figures that earlier versions saved: what they did not measure stays unknown."""
    dropped = ("certificate", "dimension")
    fields = {name: value for name, value in fields.items() if name not in dropped}
    return fields | {"n_used": fields["n_active"], "position_reason": FORMER}


@saved_as(
    "lucidae.sparsity.figures/2",
    formerly=("lucidae.sparsity.summary:Summary", "lucidae.sparsity.figures/1"),
    upgrade=_former,
)
@dataclass(frozen=True, slots=True)
class SparseFigures:
    """The figures of one fit: small, and free of the training data. None: not measured.

    Parameters
    ----------
    title : str
    violation, tolerance : float
        Distance to stationarity, and the largest that counts as stationary.
    relative_error : float
        ‖X − ΦU‖/‖X‖.
    exact_error : float
        The same for the least-squares refit on the columns with non-zero coefficients.
    n_active, n_columns : int
    rank : int
        Numerical rank of the responses.
    row_norms : ndarray
        Norms of the active rows of U times those of their columns.
    unjustified : int
        Collapsed latents whose activation would lower the full energy.
    coherence : float
        Of the dictionary.
    violation_error, mean_error : float
        Bounds on the rounding errors of `violation` and `mean_distance`.
    reach : float
        Distance that solvers which form Σ in doubles can be expected to reach.
    mean_distance, mean_tolerance : float
        Distance of the coefficients from the posterior mean, in prior standard deviations.
    noise_rule : str
        Where γ came from: given, learn, floor, cv or fallback.
    noise_distance : float
        Relative distance of γ from what the rule promises.
    energy_distance : float
        Relative distance of the reported energy from the verifier's.
    undecided : int
        Collapsed latents of which rounding leaves open whether they are justified.
    n_used : int
        Columns with non-zero coefficients.
    spark : float
        Of columns in general position.
    position : bool
        Whether general position was proved (True), refuted (False) or assumed (None).
    position_reason : str
    rows : int
        Number of rows.
    evidence : dict
        The numbers from which the figures can be computed again.
    """

    title: str
    violation: Figure
    tolerance: Figure
    relative_error: float
    exact_error: float
    n_active: int
    n_columns: int
    rank: int
    row_norms: Any
    unjustified: int | None = None
    coherence: Figure = None
    violation_error: float = 0.0
    mean_error: float = 0.0
    reach: float = 0.0
    mean_distance: Figure = None
    mean_tolerance: float = FINEST
    noise_rule: str = ""
    noise_distance: Figure = None
    energy_distance: Figure = None
    undecided: int = 0
    n_used: int = 0
    spark: Figure = None
    position: bool | None = None
    position_reason: str = ""
    rows: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)
