"""Autoencoders whose optimum is known."""

from lucidae import datasets, metrics
from lucidae._certify import certify
from lucidae._persist import load, save
from lucidae._version import __version__
from lucidae.dropout import DropoutAutoencoder, DropoutFactorization, DropoutRegressor
from lucidae.dropout.equalize import equalize, equalize_pair
from lucidae.linear.estimators import LinearAutoencoder
from lucidae.moments import SecondMoment
from lucidae.sparsity.estimators import SparseVAE

__all__ = [
    "DropoutAutoencoder",
    "DropoutFactorization",
    "DropoutRegressor",
    "LinearAutoencoder",
    "SecondMoment",
    "SparseVAE",
    "__version__",
    "certify",
    "datasets",
    "equalize",
    "equalize_pair",
    "load",
    "metrics",
    "save",
]
