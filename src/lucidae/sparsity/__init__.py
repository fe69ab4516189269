"""Optimal sparse representations: the full-covariance VAE and its relatives."""

from lucidae.sparsity.batch import SparseBatch, solve_batch
from lucidae.sparsity.certificate import certify_coefficients
from lucidae.sparsity.estimator import SparseVAE, certify_estimator
from lucidae.sparsity.group_lasso import group_lasso, noise_free_group_lasso

__all__ = [
    "SparseBatch",
    "SparseVAE",
    "certify_coefficients",
    "certify_estimator",
    "group_lasso",
    "noise_free_group_lasso",
    "solve_batch",
]
