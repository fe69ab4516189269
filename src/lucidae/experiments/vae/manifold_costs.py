"""What a diagonal posterior covariance costs: comparisons of pairs of trained VAEs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lucidae.experiments.declaration import Curve, Results

__all__ = [
    "ALLOWED",
    "ARMS",
    "best_rates",
    "compared",
    "compared_best",
    "deep_bounds",
    "digits_best",
    "low_and_high",
    "standard_error",
]

ARMS = ("full", "diagonal")

ALLOWED = 3.0
"""A bound counts as violated if a value exceeds it by more than this many standard errors over the
seeds."""


def compared(cells: Results) -> dict[str, float]:
    """Return measured values of VAEs with diagonal and with full covariance, means over seeds.

    Let Δ be the cost of a diagonal covariance (−ELBO with diagonal minus −ELBO with full
    covariance), and H₁ and H₂ the Hadamard gaps of the decoders that were trained with diagonal and
    with full covariance. ``lower`` is the mean of Δ − H₁ and ``upper`` that of H₂ − Δ, each plus
    `ALLOWED` standard errors: negative if H₁ ≤ Δ ≤ H₂ is violated.
    """

    def per_seed(name: str) -> Any:
        return np.array([float(cell.arrays[name]) for cell in cells])

    difference = per_seed("loss/diagonal") - per_seed("loss/full")
    diagonal, full = (per_seed(f"gap/{arm}") for arm in ("diagonal", "full"))
    found = {
        "difference": np.mean(difference),
        "difference_error": standard_error(difference),
        "gap_diagonal": np.mean(diagonal),
        "gap_full": np.mean(full),
        "lower": np.mean(difference - diagonal) + ALLOWED * standard_error(difference - diagonal),
        "upper": np.mean(full - difference) + ALLOWED * standard_error(full - difference),
    }
    for name in ("mse", "sampled_mse", "kl", "active_directions", "active", "noise_variance"):
        for arm in ARMS:
            found[f"{name}_{arm}"] = np.mean(per_seed(f"{name}/{arm}"))
    for name in ("mse", "sampled_mse"):
        ratios = per_seed(f"{name}/diagonal") / per_seed(f"{name}/full")
        found[f"{name}_ratio"] = np.mean(ratios)
        found[f"{name}_ratio_error"] = standard_error(ratios)
    return {name: float(value) for name, value in found.items()}


def best_rates(cells: Results, rates: Sequence[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return values of VAEs with diagonal and with full covariance, at their best learning rates.

    Parameters
    ----------
    cells : Results
        Runs with more training steps, of one noise variance, number of latents and dimension of the
        data, for all learning rates and seeds.
    rates : sequence of float
        The learning rates.

    Returns
    -------
    tuple of dict
        For the VAEs with diagonal and for those with full covariance: each measured value as an
        array over the seeds, and the best learning rate under ``rate``.
    """
    chosen = {}
    for arm in ARMS:
        found = []
        for rate in rates:
            same = [one for one in cells if one.settings["design"]["learning_rate"] == rate]
            first = same[0].arrays
            names = [name for name in first if name.endswith(f"/{arm}") and not first[name].ndim]
            values = {
                name.removesuffix(f"/{arm}"): np.array([float(one.arrays[name]) for one in same])
                for name in names
            }
            found.append(values | {"rate": np.full(len(same), rate)})
        losses = [np.nan_to_num(np.mean(one["loss"]), nan=np.inf) for one in found]
        chosen[arm] = found[int(np.argmin(losses))]
    return chosen["diagonal"], chosen["full"]


def compared_best(diagonal: Mapping[str, Any], full: Mapping[str, Any]) -> dict[str, float]:
    """Compare two VAEs, and what each decoder reaches with the best posterior of each sample.

    Let O(a, c) be −ELBO with the decoder that was trained with covariances of kind a and the best
    posteriors of kind c. ``gain_diagonal`` and ``gain_full`` are what a full covariance gains with
    either decoder, O(a, diagonal) − O(a, full). The cost with the best posteriors,
    ``best_difference``, is O(diagonal, diagonal) − O(full, full). It lies between the two gains
    exactly if each decoder is the better one for posteriors of its own kind: ``better_full`` is
    O(diagonal, full) − O(full, full) and ``better_diagonal`` is O(full, diagonal) − O(diagonal,
    diagonal), each plus `ALLOWED` standard errors. ``encoder_diagonal`` and ``encoder_full`` are
    −ELBO with the posteriors that the encoder predicts minus −ELBO with the best ones.

    Parameters
    ----------
    diagonal, full : mapping of str to ndarray
        The values of `VaeStack.evaluate_best` of the two VAEs, one for each seed or sample.
    """
    cost = diagonal["best_diagonal"] - full["best_full"]
    better_full = diagonal["best_full"] - full["best_full"]
    better_diagonal = full["best_diagonal"] - diagonal["best_diagonal"]
    found = {
        "best_difference": np.mean(cost),
        "best_difference_error": standard_error(cost),
        "gain_diagonal": np.mean(diagonal["best_diagonal"] - diagonal["best_full"]),
        "gain_full": np.mean(full["best_diagonal"] - full["best_full"]),
        "better_full": np.mean(better_full) + ALLOWED * standard_error(better_full),
        "better_diagonal": np.mean(better_diagonal) + ALLOWED * standard_error(better_diagonal),
        "encoder_diagonal": np.mean(diagonal["encoded"] - diagonal["best_diagonal"]),
        "encoder_full": np.mean(full["encoded"] - full["best_full"]),
    }
    if "loss" in full:
        difference = diagonal["loss"] - full["loss"]
        ratios = diagonal["mse"] / full["mse"]
        low, high = difference - diagonal["gap"], full["gap"] - difference
        found |= {
            "difference": np.mean(difference),
            "difference_error": standard_error(difference),
            "gap_diagonal": np.mean(diagonal["gap"]),
            "gap_full": np.mean(full["gap"]),
            "lower": np.mean(low) + ALLOWED * standard_error(low),
            "upper": np.mean(high) + ALLOWED * standard_error(high),
            "mse_ratio": np.mean(ratios),
            "rate_diagonal": np.mean(diagonal["rate"]),
            "rate_full": np.mean(full["rate"]),
        }
    return {name: float(value) for name, value in found.items()}


def standard_error(values: Any) -> float:
    """Return the standard error of the mean of a vector; zero for one value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def low_and_high(name: str, curve: Curve) -> dict[str, Curve]:
    """Return two curves: cost for r ≥ 4 minus cost for r ≤ 3, and cost per pair of dimensions.

    The curve contains the cost of a diagonal covariance against the dimension r of the data.
    """
    panel = name.removeprefix("difference/")
    low, high = curve.y[curve.x <= 3], curve.y[curve.x >= 4]
    found = {}
    if len(low) and len(high):
        found[f"step/{panel}"] = Curve([0.0], [np.mean(high) - np.mean(low)])
    several = curve.x >= 2
    if several.any():
        r = curve.x[several]
        found[f"per_pair/{panel}"] = Curve(r, curve.y[several] / (r * (r - 1) / 2), "r =")
    return found


def deep_bounds(results: Results) -> dict[str, Curve]:
    """Return the cost of a diagonal covariance and the Hadamard gaps of the `vae-mnist` models.

    A Hadamard gap is the amount by which a full posterior covariance raises the ELBO of a VAE.
    """
    full, diagonal = (results.one(source=None, arm=arm).arrays for arm in ARMS)
    difference = float(diagonal["loss"][-1] - full["loss"][-1])
    low, high = float(diagonal["gap"]), float(full["gap"])
    values = {
        "difference": difference,
        "gap_diagonal": low,
        "gap_full": high,
        "lower": difference - low + ALLOWED * float(diagonal["gap_error"]),
        "upper": high - difference + ALLOWED * float(full["gap_error"]),
    }
    return {f"{name}/deep": Curve([0.0], [value]) for name, value in values.items()}


def digits_best(results: Results) -> dict[str, Curve]:
    """Return the values of `compared_best` for VAEs of digits, and their Hadamard gaps."""
    arms = {}
    for arm in ARMS:
        cells = results.where(source="digits", arm=arm)
        names = ("encoded", "best_full", "best_diagonal", "gap")
        arms[arm] = {
            name: np.array([np.mean(cell.arrays[name]) for cell in cells]) for name in names
        }
    values = compared_best(arms["diagonal"], arms["full"])
    values |= {f"gap_{arm}": float(np.mean(arms[arm]["gap"])) for arm in ARMS}
    return {f"{name}/digits": Curve([0.0], [value]) for name, value in values.items()}
