"""Autoencoders whose optimum is known."""

from lucidae import datasets, displays, metrics
from lucidae._version import __version__
from lucidae.certificate import certify
from lucidae.dropout import DropoutAutoencoder, DropoutFactorization, DropoutRegressor
from lucidae.dropout.equalize import equalize, equalize_pair
from lucidae.io.models import load, save
from lucidae.linear.estimator import LinearAutoencoder
from lucidae.moments import SecondMoment
from lucidae.sparsity.estimator import SparseVAE

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
    "displays",
    "equalize",
    "equalize_pair",
    "load",
    "metrics",
    "save",
]
