"""Sparse regression of several responses on a fixed dictionary: VAEs, autoencoder, group lasso."""

from lucidae.sparsity.batch import SparseBatch, SparseGroupBatch, solve_batch
from lucidae.sparsity.claims import certify_coefficients
from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.joint import SparseJoint, joint_blocks, solve_joint
from lucidae.sparsity.objectives import Energy, EnergySlice, register_posterior
from lucidae.sparsity.path import NoisePath, noise_path
from lucidae.sparsity.solve import group_lasso, noise_free_group_lasso

__all__ = [
    "Energy",
    "EnergySlice",
    "NoisePath",
    "SparseBatch",
    "SparseGroupBatch",
    "SparseJoint",
    "SparseVAE",
    "certify_coefficients",
    "group_lasso",
    "joint_blocks",
    "noise_free_group_lasso",
    "noise_path",
    "register_posterior",
    "solve_batch",
    "solve_joint",
]
