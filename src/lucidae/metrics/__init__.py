"""Public metrics of the three papers, for one problem or a stack of them, on any device.

Every metric takes arrays of any library that follows the array API standard, with leading axes
as a stack of problems. One problem gives a Python number, a stack gives an array.
"""

from lucidae.metrics._dropout import equalization_variance, importance_scores, path_norm
from lucidae.metrics._linear import (
    axis_alignment_distance,
    imbalance,
    non_diagonality,
    subspace_distance,
)
from lucidae.metrics._sparsity import active_dimensions, exact_recovery, support_recovery

__all__ = [
    "active_dimensions",
    "axis_alignment_distance",
    "equalization_variance",
    "exact_recovery",
    "imbalance",
    "importance_scores",
    "non_diagonality",
    "path_norm",
    "subspace_distance",
    "support_recovery",
]
