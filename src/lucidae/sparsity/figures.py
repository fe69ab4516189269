"""Measured values of a sparse fit, from which its certificate is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FINEST = 1e-6
"""Smallest distance to stationarity that a certificate requires, even if `tol` is smaller."""

FORMER = (
    "The estimator was saved by an earlier version of lucidae, which did not measure this. Call "
    "certify(estimator, X, y) to measure it."
)

Figure = float | None


@dataclass(frozen=True, slots=True)
class SparseFigures:
    """The measured values of one sparse fit, without the training data. None means not measured."""

    title: str  # name of what was measured, such as "full posterior"
    # distance to the optimality (KKT) conditions, and the largest that counts as stationary
    violation: Figure
    tolerance: Figure
    relative_error: float  # relative error ‖X − ΦU‖/‖X‖ of the reconstructed responses
    # the same for the least-squares refit on the columns with non-zero coefficients
    exact_error: float
    # number of active latents (columns whose posterior variance is below the prior variance), and
    # number of all columns
    n_active: int
    n_columns: int
    rank: int  # numerical rank of the responses
    # for each column with non-zero coefficients, the norm of its row of U times its own norm
    row_norms: Any
    # number of collapsed (not active) latents whose activation would lower the full energy
    unjustified: int | None = None
    coherence: Figure = None  # largest absolute correlation of two columns of the dictionary
    violation_error: float = 0.0  # bounds on the rounding errors of `violation` and `mean_distance`
    mean_error: float = 0.0
    # smallest distance to the KKT conditions that solvers which form Σ in float64 can be expected
    # to attain
    reach: float = 0.0
    # `mean_distance` is the larger of two distances: that of the coefficients from the posterior
    # mean
    mean_distance: Figure = None
    mean_tolerance: float = FINEST
    # how γ was found: "given"
    noise_rule: str = ""
    noise_distance: Figure = None  # relative distance of γ from the value that this rule gives
    # relative difference between the reported energy and the verifier's, and a bound on its error
    # because stored covariances of nearly dependent columns are rounded
    energy_distance: Figure = None
    energy_error: float = 0.0
    # number of collapsed latents for which rounding errors leave open whether their activation
    # would lower the full energy
    undecided: int = 0
    n_used: int = 0  # number of columns with non-zero coefficients
    # spark (smallest number of linearly dependent columns) that the dictionary has if its columns
    # are in general position
    spark: Figure = None
    # whether it was proved that no other set of as few columns represents the responses
    position: bool = False
    # sentence that says what was checked about uniqueness, or why nothing is claimed
    position_reason: str = ""
    rows: int = 0  # number of rows
    # number of columns that `support_` contains wrongly or lacks, and of those whose evidence is
    # too close to the threshold to tell
    support_wrong: int | None = None
    support_undecided: int = 0
    # largest difference between the estimator's and the verifier's posterior variances of the
    # predicted means, divided by γ, and a bound on its rounding error
    variance_distance: Figure = None
    variance_error: float = 0.0
    # largest relative deviation of the covariances of groups from symmetric, positive semi-definite
    # matrices whose diagonals are the relevances; None without such covariances
    covariance_distance: Figure = None
    # with a noise covariance R: the rank of R, its number of rows, and the share of the sum of
    # squares of the responses outside the range of R. None for white noise
    noise_rank: int | None = None
    noise_rows: int | None = None
    noise_outside: Figure = None
    # how much the columns in use change with the noise variance: the result of
    # ``PathTrace.stability``, if a path of noise variances was computed
    path: dict[str, Any] | None = None
    # the numbers, by name, from which the measured values can be computed again
    evidence: dict[str, Any] = field(default_factory=dict)
