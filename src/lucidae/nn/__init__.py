"""Torch layers, posteriors, optimizers and diagnostics for deep networks (extra ``torch``).

`lucidae.nn.callbacks` has monitors of collapse, certificates and prefix losses, for plain loops and
for Lightning (extra ``lightning``); it has to be imported by its name.
"""

from __future__ import annotations

from lucidae.validation import install_command

try:
    import torch as torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        f"lucidae.nn needs PyTorch, which is not installed: {install_command('torch')}."
    ) from error

from lucidae.nn.bottleneck import (
    DropoutPenalty,
    RotationAugmented,
    certify_dropout,
    certify_linear,
    equalize_layers,
    order_dimensions,
)
from lucidae.nn.collapse import CollapseReport, active_directions, collapse_report
from lucidae.nn.layers import ResidualBlock, ResNetDecoder, ResNetEncoder
from lucidae.nn.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    GaussianHead,
    HadamardGap,
    LowRankGaussian,
    hadamard_gap,
)
from lucidae.nn.prefixes import NestedDropout, PrefixLoss, prefix_losses
from lucidae.nn.training import (
    certificate_scalars,
    collapse_scalars,
    fit_vae,
    mean_scalars,
    prefix_scalars,
    scalars_figure,
)
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
    "PrefixLoss",
    "ResNetDecoder",
    "ResNetEncoder",
    "ResidualBlock",
    "RotationAugmented",
    "active_directions",
    "certificate_scalars",
    "certify_dropout",
    "certify_linear",
    "collapse_report",
    "collapse_scalars",
    "equalize_layers",
    "fit_vae",
    "hadamard_gap",
    "mean_scalars",
    "negative_log_likelihood",
    "order_dimensions",
    "prefix_losses",
    "prefix_scalars",
    "scalars_figure",
]
