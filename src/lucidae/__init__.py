"""Autoencoders whose optimum is known."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lucidae._version import __version__

if TYPE_CHECKING:
    from lucidae import datasets, displays, metrics
    from lucidae.certificates.claims import certify
    from lucidae.dropout import DropoutAutoencoder, DropoutFactorization, DropoutRegressor
    from lucidae.dropout.solvers import equalize, equalize_pair
    from lucidae.linear.estimator import LinearAutoencoder
    from lucidae.models import load, save
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

_HOMES = {
    "DropoutAutoencoder": "lucidae.dropout",
    "DropoutFactorization": "lucidae.dropout",
    "DropoutRegressor": "lucidae.dropout",
    "LinearAutoencoder": "lucidae.linear",
    "SecondMoment": "lucidae.rows.passes",  # which reads data that are not in memory
    "SparseVAE": "lucidae.sparsity",
    "certify": "lucidae.certificates.claims",
    "equalize": "lucidae.dropout",
    "equalize_pair": "lucidae.dropout",
    "load": "lucidae.models",
    "save": "lucidae.models",
}
"""Module of each public function and class."""

_MODULES = {
    "arrays",
    "base",
    "certificates",
    "datasets",
    "displays",
    "dropout",
    "impute",
    "io",
    "iteration",
    "linear",
    "metrics",
    "moments",
    "rows",
    "sparsity",
    "validation",
}
"""Modules that can be used as attributes of the package without importing them."""


def __getattr__(name: str) -> Any:
    """Return a public name; its module is imported when the name is first used (PEP 562)."""
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        found = import_module(f"lucidae.{name}")
    else:
        raise AttributeError(f"module 'lucidae' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
