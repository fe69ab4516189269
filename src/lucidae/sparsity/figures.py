"""Measured figures of a sparse fit, from which its certificate is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lucidae.io.models import saved_as

FINEST = 1e-6
"""No smaller distance to stationarity is required, whatever `tol` says."""

FORMER = (
    "An earlier version saved these figures and did not measure this: use certify(estimator, X, y)."
)

Figure = float | None


def _former(fields: dict[str, Any]) -> dict[str, Any]:
    """Return figures that earlier versions saved: what they did not measure stays unknown."""
    dropped = ("certificate", "dimension")
    fields = {name: value for name, value in fields.items() if name not in dropped}
    if fields.get("position") is not True:  # uniqueness was assumed in version 2
        fields |= {"spark": None, "position": False, "position_reason": FORMER}
    return {"n_used": fields["n_active"]} | fields


@saved_as(
    "lucidae.sparsity.figures/3",
    formerly=(
        "lucidae.sparsity.summary:Summary",
        "lucidae.sparsity.figures/1",
        "lucidae.sparsity.figures/2",
    ),
    upgrade=_former,
)
@dataclass(frozen=True, slots=True)
class SparseFigures:
    """The figures of one fit: small, and free of the training data. None: not measured.

    In the formulas Φ is the dictionary, X the responses, U the coefficients, W the diagonal matrix
    of the relevances w, γ the noise variance and Σ = ΦWΦᵀ + γI.

    Parameters
    ----------
    title : str
        What was measured.
    violation, tolerance : float
        Distance to stationarity, and the largest that counts as stationary.
    relative_error : float
        ‖X − ΦU‖/‖X‖.
    exact_error : float
        The same for the least-squares refit on the columns with non-zero coefficients.
    n_active, n_columns : int
        Number of active latents, and of all columns.
    rank : int
        Numerical rank of the responses.
    row_norms : ndarray
        Norms of the active rows of U times those of their columns.
    unjustified : int
        Number of collapsed latents whose activation would lower the full energy.
    coherence : float
        Largest absolute correlation of two columns of the dictionary.
    violation_error, mean_error : float
        Bounds on the rounding errors of `violation` and `mean_distance`.
    reach : float
        Distance that solvers which form Σ in doubles can be expected to reach.
    mean_distance, mean_tolerance : float
        Distance of the coefficients from the posterior mean, in prior standard deviations, or of
        the predictions from that mean, in standard deviations of the responses; the larger one,
        and the largest that is allowed.
    noise_rule : str
        How γ was found: "given", "learn", "floor" (learning ended at the smallest value allowed),
        "cv" (held-out rows) or "fallback" (a single row).
    noise_distance : float
        Relative distance of γ from the value that this rule gives.
    energy_distance : float
        Relative distance of the reported energy from the verifier's.
    undecided : int
        Number of collapsed latents of which rounding leaves open whether they are justified.
    n_used : int
        Number of columns with non-zero coefficients.
    spark : float
        Spark of the dictionary if its columns are in general position.
    position : bool
        Whether it was proved that no other set of as few columns represents the responses.
    position_reason : str
        What was checked, or why nothing is claimed.
    rows : int
        Number of rows.
    support_wrong, support_undecided : int
        Number of columns that `support_` contains wrongly or lacks, and of those whose evidence is
        too close to the threshold to tell.
    variance_distance, variance_error : float
        Largest difference of the posterior variances of the predicted means, in units of γ, and a
        bound on its rounding error.
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
    position: bool = False
    position_reason: str = ""
    rows: int = 0
    support_wrong: int | None = None
    support_undecided: int = 0
    variance_distance: Figure = None
    variance_error: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)
