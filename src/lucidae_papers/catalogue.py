"""Table of all experiments by name, with the module that declares each of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from lucidae_papers.declaration import Experiment

__all__ = ["NAMES", "experiment", "experiments"]

MODULES = {
    "lae-landscape": "linear.landscape",
    "lae-dynamics": "linear.dynamics",
    "lae-weights": "linear.weights",
    "lae-scaling": "linear.scaling",
    "lae-penalties": "linear.penalties",
    "lae-minibatch": "linear.dynamics:MINIBATCH",
    "lae-learning-rates": "linear.learning_rates",
    "lae-conditioning": "linear.conditioning",
    "component-counts": "linear.counts",
    "dropout-landscape": "dropout.landscape",
    "dropout-paths": "dropout.paths",
    "dropout-convergence": "dropout.convergence",
    "sparse-unit": "sparsity.recovery:UNIT_ROWS",
    "sparse-scaled": "sparsity.recovery:SCALED_ROWS",
    "sparse-leadfield": "sparsity.recovery:LEADFIELD",
    "sparse-noise": "sparsity.recovery:NOISY",
    "sparse-slices": "sparsity.slices",
    "sparse-arrays": "sparsity.arrays",
    "vae-mnist": "vae.mnist",
    "vae-mnist-fixed": "vae.mnist:FIXED_NOISE",
    "embeddings-truncation": "embeddings.truncation",
    "vae-manifold": "vae.manifold",
}
"""Module of each experiment below `lucidae_papers`, in the order of the papers.

The declaration is called ``EXPERIMENT`` in its module unless another name follows the colon."""

NAMES = tuple(MODULES)

NEEDS_TORCH = ("vae-mnist", "vae-mnist-fixed", "vae-manifold", "embeddings-truncation")


def available() -> tuple[str, ...]:
    """Return the names of all experiments; without those that need torch if it is not installed."""
    torch = find_spec("torch") is not None
    return tuple(name for name in NAMES if torch or name not in NEEDS_TORCH)


@cache
def experiment(name: str) -> Experiment:
    """Return the `Experiment` called `name`; raise ValueError if no experiment has this name.

    Examples
    --------
    >>> experiment("lae-dynamics").reference
    'Bao et al. 2020, Figure 2'
    """
    if name not in NAMES:
        raise ValueError(f"no experiment is called {name!r}; expected one of {', '.join(NAMES)}.")
    module, _, declared = MODULES[name].partition(":")
    found: Experiment = getattr(import_module(f"lucidae_papers.{module}"), declared or "EXPERIMENT")
    return found


def experiments(names: Iterable[str] = ()) -> list[Experiment]:
    """Return the experiments with these names; if none is given, all that `available` names."""
    return [experiment(name) for name in (tuple(names) or available())]
