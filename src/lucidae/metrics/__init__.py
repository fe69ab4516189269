"""Metrics of Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023 for weights and coefficients.

Every metric accepts NumPy, torch and CuPy arrays and lists. Arrays with leading axes, such as
(runs, m, k), are batches of problems: the result is a Python number for one problem, and an array
with these leading axes for a batch.
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
