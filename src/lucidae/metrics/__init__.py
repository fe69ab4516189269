"""Metrics of the three papers.

Every metric accepts NumPy, torch and CuPy arrays and lists. Leading axes are a stack of problems:
one problem gives a Python number, a stack gives an array.
"""

from lucidae.metrics._linear import (
    axis_alignment_distance,
    equalization_variance,
    imbalance,
    importance_scores,
    non_diagonality,
    path_norm,
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
