"""What a linear autoencoder needs from data that are read in blocks."""

from __future__ import annotations

from typing import Any

from lucidae.linear.data import EXACT_FEATURES
from lucidae.linear.methods import Options
from lucidae.moments import SecondMoment

__all__ = ["check_streamed", "draws_rows"]


def draws_rows(options: Options, X: Any) -> bool:
    """Tell whether a fit to `X` needs the rows themselves and not only their moment."""
    shape: tuple[int, ...] = getattr(X, "shape", None) or ()
    return options.route == "stochastic" or (len(shape) == 2 and shape[1] > EXACT_FEATURES)


def check_streamed(options: Options, n_features: int, start: SecondMoment | None) -> None:
    """Refuse what cannot be fitted to data that are read once, in blocks."""
    if options.route == "stochastic":
        raise ValueError(
            f"solver={options.solver!r} with method={options.method!r} draws rows in random order, "
            "but X is read in blocks: use solver='exact', give an array or a memory map, or call "
            "partial_fit with each batch."
        )
    if n_features > EXACT_FEATURES:
        raise ValueError(
            f"X has {n_features} features and is read in blocks, for which the second moment is "
            f"formed up to {EXACT_FEATURES} features: give an array or a memory map, or call "
            "partial_fit with each batch."
        )
    if isinstance(options.n_components, int) and options.n_components > n_features:
        raise ValueError(
            f"n_components={options.n_components} was given, but X has {n_features} features: "
            f"expected at most {n_features}."
        )
    if start is not None and start.n_features != n_features:
        raise ValueError(
            f"start has {start.n_features} features, but X has {n_features}: it must be the moment "
            "of earlier rows of the same data."
        )
