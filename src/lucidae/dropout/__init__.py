"""Dropout in linear networks: the exact optimum of dropout training.

The package contains the expected loss of dropout training, its global minimum in closed form,
equalizers (rotations of the hidden layer that give all hidden units equal norms), the loss
landscape, training by stochastic gradient descent (SGD), certificates and estimators. They follow
Mianjy et al. 2018, but allow inputs of any covariance.
"""

from lucidae.dropout.autoencoder import DropoutAutoencoder
from lucidae.dropout.claims import certify_weights
from lucidae.dropout.completion import CompletionPath, completion_path
from lucidae.dropout.factorization import DropoutFactorization
from lucidae.dropout.landscape import (
    classify,
    equalized_critical_points,
    scalar_surface,
    smallest_curvature,
)
from lucidae.dropout.path import (
    CrossValidation,
    RankPath,
    RegularizationPath,
    rank_path,
    regularization_path,
)
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights
from lucidae.dropout.regressor import DropoutRegressor
from lucidae.dropout.sgd import GaussianSource, SampleSource, descend
from lucidae.dropout.solvers import ExactSolution, equalize, equalize_pair, solve, solve_tied

__all__ = [
    "CompletionPath",
    "CrossValidation",
    "DropoutAutoencoder",
    "DropoutFactorization",
    "DropoutObjective",
    "DropoutRegressor",
    "ExactSolution",
    "GaussianSource",
    "LinearProblem",
    "RankPath",
    "RegularizationPath",
    "SampleSource",
    "Weights",
    "certify_weights",
    "classify",
    "completion_path",
    "descend",
    "equalize",
    "equalize_pair",
    "equalized_critical_points",
    "rank_path",
    "regularization_path",
    "scalar_surface",
    "smallest_curvature",
    "solve",
    "solve_tied",
]
