"""Linear autoencoders that recover the principal components (Bao et al. 2020)."""

from lucidae.counting import ComponentCount, count_components
from lucidae.linear.certify import certify_components, certify_weights
from lucidae.linear.estimator import LinearAutoencoder
from lucidae.linear.methods import (
    METHODS,
    Method,
    MethodSettings,
    geometric_prior,
    make_method,
    register_method,
    uniform_prior,
    unregister_method,
)
from lucidae.linear.objectives import (
    BrockettRule,
    ExpectedNestedDropout,
    GeneralizedHebbianRule,
    LinearVAE,
    NestedDropoutRule,
    NonUniformL2,
    Objective,
    Reconstruction,
    RotationAugmentedRule,
    Rule,
)
from lucidae.linear.simulation import Plan, Run, Trajectory, epochs_to_alignment, simulate
from lucidae.linear.theory import (
    best_penalties,
    nonuniform_penalties,
    paper_penalties,
    uniform_penalties,
)
from lucidae.linear.weights import TiedWeights, UntiedWeights, VariationalWeights
from lucidae.spectrum import Spectrum

__all__ = [
    "METHODS",
    "BrockettRule",
    "ComponentCount",
    "ExpectedNestedDropout",
    "GeneralizedHebbianRule",
    "LinearAutoencoder",
    "LinearVAE",
    "Method",
    "MethodSettings",
    "NestedDropoutRule",
    "NonUniformL2",
    "Objective",
    "Plan",
    "Reconstruction",
    "RotationAugmentedRule",
    "Rule",
    "Run",
    "Spectrum",
    "TiedWeights",
    "Trajectory",
    "UntiedWeights",
    "VariationalWeights",
    "best_penalties",
    "certify_components",
    "certify_weights",
    "count_components",
    "epochs_to_alignment",
    "geometric_prior",
    "make_method",
    "nonuniform_penalties",
    "paper_penalties",
    "register_method",
    "simulate",
    "uniform_penalties",
    "uniform_prior",
    "unregister_method",
]
