"""What finished runs of both arms say about the paper's claim (Wipf 2023, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lucidae.certificate import Certificate, Claim, at_most, reported

__all__ = ["ARMS", "summary", "verdict"]

ARMS = ("full", "diagonal")
REFERENCE = "Wipf 2023, section 5.2"


def verdict(runs: Sequence[dict[str, Any]]) -> Certificate:
    """Judge the paper's claim on finished runs: less error with fewer active latents.

    Parameters
    ----------
    runs : sequence of dict
        As `compare_covariances` returns them.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> history = {"mse": [0.1], "active": [3.0], "active_directions": [3.0], "loss": [1.0]}
    >>> runs = [{"arm": arm, "seed": 0, "history": history} for arm in ARMS]
    >>> verdict(runs)["reconstruction"].holds
    True
    """
    ratio = final(runs, "full", "mse") / final(runs, "diagonal", "mse")
    active, directions, loss = (
        final(runs, "full", name) - final(runs, "diagonal", name)
        for name in ("active", "active_directions", "loss")
    )
    seeds = len({run["seed"] for run in runs})
    return Certificate(
        f"full against diagonal covariance, {seeds} seed{'' if seeds == 1 else 's'}",
        (
            at_most(
                "reconstruction",
                "error of the full covariance over that of the diagonal one",
                REFERENCE,
                ratio,
                1.0,
                "The full covariance did not reconstruct better here.",
            ),
            fewer(
                "active directions",
                "active directions, full less diagonal, whatever the rotation of the latents",
                directions,
                "The full covariance did not use fewer directions here.",
            ),
            fewer(
                "active latents",
                "active latents, full less diagonal, as the coordinates stand",
                active,
                "A full covariance leaves the rotation of the latents free, so that few active "
                "directions can lie across many coordinates.",
            ),
            reported("evidence", "−ELBO in nats, full less diagonal", REFERENCE, loss),
        ),
    )


def final(runs: Sequence[dict[str, Any]], arm: str, name: str) -> float:
    """Return the mean over seeds of a figure after the last epoch."""
    return float(np.mean([run["history"][name][-1] for run in runs if run["arm"] == arm]))


def summary(runs: Sequence[dict[str, Any]], arm: str) -> dict[str, dict[str, Any]]:
    """Return mean, standard deviation and values over seeds of every final figure of an arm."""
    finals = {
        name: [run["history"][name][-1] for run in runs if run["arm"] == arm]
        for name in runs[0]["history"]
    }
    return {
        name: {"mean": float(np.mean(values)), "std": float(np.std(values)), "runs": values}
        for name, values in finals.items()
    }


def fewer(name: str, statement: str, difference: float, advice: str) -> Claim:
    """Claim that a difference of counts is negative."""
    holds = difference < 0
    return Claim(name, statement, REFERENCE, difference, 0.0, holds, "" if holds else advice)
