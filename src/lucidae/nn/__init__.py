"""Torch layers, posteriors, optimizers and diagnostics for deep networks (extra ``torch``)."""

from __future__ import annotations

try:
    import torch as torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "lucidae.nn needs PyTorch, which is not installed: pip install 'lucidae[torch]'."
    ) from error

from lucidae.nn.diagnostics import CollapseReport, active_directions, collapse_report
from lucidae.nn.dropout import DropoutPenalty, certify_dropout, equalize_layers
from lucidae.nn.hadamard import HadamardGap, hadamard_gap
from lucidae.nn.layers import ResidualBlock, ResNetDecoder, ResNetEncoder
from lucidae.nn.nested import NestedDropout, order_dimensions, prefix_losses
from lucidae.nn.posteriors import DiagonalGaussian, FullGaussian, GaussianHead, LowRankGaussian
from lucidae.nn.rotation import RotationAugmented
from lucidae.nn.vae import (
    VAE,
    DictionaryVAE,
    Evidence,
    GeometricSchedule,
    NoiseVariance,
    negative_log_likelihood,
)

__all__ = [
    "VAE",
    "CollapseReport",
    "DiagonalGaussian",
    "DictionaryVAE",
    "DropoutPenalty",
    "Evidence",
    "FullGaussian",
    "GaussianHead",
    "GeometricSchedule",
    "HadamardGap",
    "LowRankGaussian",
    "NestedDropout",
    "NoiseVariance",
    "ResNetDecoder",
    "ResNetEncoder",
    "ResidualBlock",
    "RotationAugmented",
    "active_directions",
    "certify_dropout",
    "collapse_report",
    "equalize_layers",
    "hadamard_gap",
    "negative_log_likelihood",
    "order_dimensions",
    "prefix_losses",
]
