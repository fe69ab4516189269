"""Dropout, solved exactly: the network that dropout training converges to, in one decomposition.

Objectives, closed form, equalizers, landscape, Algorithm 1, certificate and estimators of
Mianjy et al. 2018, for inputs of any covariance.
"""

from lucidae.dropout.certificate import certify_estimator, certify_weights
from lucidae.dropout.estimators import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
)
from lucidae.dropout.landscape import classify, equalized_critical_points, scalar_surface
from lucidae.dropout.objectives import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.path import regularization_path
from lucidae.dropout.sgd import descend
from lucidae.dropout.solvers import solve, solve_tied

__all__ = [
    "DropoutAutoencoder",
    "DropoutFactorization",
    "DropoutObjective",
    "DropoutRegressor",
    "LinearProblem",
    "Weights",
    "certify_estimator",
    "certify_weights",
    "classify",
    "descend",
    "equalized_critical_points",
    "regularization_path",
    "scalar_surface",
    "solve",
    "solve_tied",
]
