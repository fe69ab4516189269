"""Measured values of a sparse fit, from which its certificate is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lucidae.io.models import saved_as

FINEST = 1e-6
"""Smallest distance to stationarity that a certificate requires, even if `tol` is smaller."""

FORMER = (
    "The estimator was saved by an earlier version of lucidae, which did not measure this. Call "
    "certify(estimator, X, y) to measure it."
)

Figure = float | None


def _former(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of measured values saved by earlier versions, in the present format.

    What the earlier version did not measure is marked as not measured.
    """
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
    """The measured values of one sparse fit, without the training data. None means not measured.

    In the formulas Φ is the dictionary, X the responses, U the coefficients, W the diagonal matrix
    of the relevances (prior variances of the coefficients), γ the noise variance and Σ = ΦWΦᵀ + γI
    the covariance of a response. The energy is the loss that was minimised.

    Parameters
    ----------
    title : str
        Name of what was measured, such as "full posterior".
    violation, tolerance : float
        Distance to the optimality (KKT) conditions, and the largest that counts as stationary.
    relative_error : float
        Relative error ‖X − ΦU‖/‖X‖ of the reconstructed responses.
    exact_error : float
        The same for the least-squares refit on the columns with non-zero coefficients.
    n_active, n_columns : int
        Number of active latents (columns whose posterior variance is below the prior variance),
        and number of all columns.
    rank : int
        Numerical rank of the responses.
    row_norms : ndarray
        For each column with non-zero coefficients, the norm of its row of U times its own norm.
    unjustified : int
        Number of collapsed (not active) latents whose activation would lower the full energy.
    coherence : float
        Largest absolute correlation of two columns of the dictionary.
    violation_error, mean_error : float
        Bounds on the rounding errors of `violation` and `mean_distance`.
    reach : float
        Smallest distance to the KKT conditions that solvers which form Σ in float64 can be expected
        to attain.
    mean_distance, mean_tolerance : float
        `mean_distance` is the larger of two distances: that of the coefficients from the posterior
        mean, in prior standard deviations, and that of the predictions from those of this mean, in
        standard deviations of the responses. `mean_tolerance` is the largest distance allowed.
    noise_rule : str
        How γ was found: "given", "learn", "floor" (learning ended at the smallest value allowed),
        "learn_diagonal" (one for each row; γ is their mean), "cv" and "cv_1se" (held-out rows) or
        "fallback" (a single row).
    noise_distance : float
        Relative distance of γ from the value that this rule gives.
    energy_distance, energy_error : float
        Relative difference between the reported energy and the verifier's, and a bound on its error
        because stored covariances of nearly dependent columns are rounded.
    undecided : int
        Number of collapsed latents for which rounding errors leave open whether their activation
        would lower the full energy.
    n_used : int
        Number of columns with non-zero coefficients.
    spark : float
        Spark (smallest number of linearly dependent columns) that the dictionary has if its columns
        are in general position.
    position : bool
        Whether it was proved that no other set of as few columns represents the responses.
    position_reason : str
        Sentence that says what was checked about uniqueness, or why nothing is claimed.
    rows : int
        Number of rows.
    support_wrong, support_undecided : int
        Number of columns that `support_` contains wrongly or lacks, and of those whose evidence is
        too close to the threshold to tell.
    variance_distance, variance_error : float
        Largest difference between the estimator's and the verifier's posterior variances of the
        predicted means, divided by γ, and a bound on its rounding error.
    covariance_distance : float
        Largest relative deviation of the covariances of groups from symmetric, positive
        semi-definite matrices whose diagonals are the relevances; None without such covariances.
    noise_rank, noise_rows, noise_outside : int, int and float
        With a noise covariance R: the rank of R, its number of rows, and the share of the sum of
        squares of the responses outside the range of R. None for white noise.
    path : dict
        How much the columns in use change with the noise variance: the result of
        ``PathTrace.stability``, if a path of noise variances was computed.
    evidence : dict
        The numbers, by name, from which the measured values can be computed again.
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
    energy_error: float = 0.0
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
    covariance_distance: Figure = None
    noise_rank: int | None = None
    noise_rows: int | None = None
    noise_outside: Figure = None
    path: dict[str, Any] | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
