"""Statements about the cost of a diagonal posterior covariance, and comparisons of trained VAEs.

The VAEs are those of the experiment `vae-manifold`, on data from manifolds of known dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lucidae_papers.declaration import Curve, Results, Statement, own
from lucidae_papers.verdicts import AtLeast, AtMost, Ordered, Reported

if TYPE_CHECKING:
    from lucidae_papers.vae.manifold import Manifold

ARMS = ("full", "diagonal")

ALLOWED = 3.0
"""A bound counts as violated if a value exceeds it by more than this many standard errors over the
seeds."""

PARTS = ("coupled from the start", "not divided by √k", "absolute", "absolute from the start")
"""Ablations: VAEs with a full posterior covariance that is not parametrised and trained in all
respects as in `GaussianHead`. The names are those of `batched.ARMS`."""

ABOVE_METHOD = "−ELBO minus that of a VAE with the full covariance of GaussianHead, in nats"
"""Name of the quantity that compares the ablations with `GaussianHead`."""

SOME = 0.5
"""Two mean numbers of active directions count as different if they differ by at least this."""

Noise = str | float

STATEMENTS = {
    "error": Statement(
        "On data from a manifold, the VAE with a full posterior covariance has a "
        "lower reconstruction error than the VAE with a diagonal one."
    ),
    "latents": Statement(
        "The VAE with a full posterior covariance uses fewer latents than the "
        "VAE with a diagonal one."
    ),
    "needed": Statement(
        "The VAE with a full posterior covariance uses as many latents as the manifold has "
        "dimensions."
    ),
    "bounds": own(
        "With as many latents as data dimensions, a diagonal instead of a full posterior "
        "covariance raises −ELBO by an amount between two bounds: the Hadamard gaps of the "
        "decoders trained with diagonal and with full covariance."
    ),
    "bounds_wide": own(
        "Also with two to four times as many latents as data dimensions, a diagonal instead of a "
        "full posterior covariance raises −ELBO by an amount between two bounds: the Hadamard "
        "gaps of the decoders trained with diagonal and with full covariance."
    ),
    "bounds_learned": own(
        "Also with a learned noise variance, a diagonal instead of a full posterior covariance "
        "raises −ELBO by an amount between two bounds: the Hadamard gaps of the decoders trained "
        "with diagonal and with full covariance."
    ),
    "dimension": own(
        "A diagonal instead of a full posterior covariance raises −ELBO by more for data of r ≥ 4 "
        "dimensions than for r ≤ 3."
    ),
    "images": own(
        "On generated images, a diagonal instead of a full posterior covariance raises −ELBO by "
        "an amount between two bounds: the Hadamard gaps of the decoders trained with diagonal "
        "and with full covariance."
    ),
    "parts": own(
        "Each of three measures improves the training of a full posterior covariance: off-diagonal "
        "entries that are predicted relative to the standard deviations, their division by √k for "
        "k latents, and latents that are independent in the first steps."
    ),
}


def _bounds(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that the cost of a diagonal covariance lies between two Hadamard gaps.

    The gaps are those of the decoders that were trained with diagonal and with full covariance.
    """
    verdicts: list[Any] = []
    for panel, words in panels:
        verdicts += [
            AtLeast(
                f"lower/{panel}",
                0.0,
                at="everywhere",
                says="increase of −ELBO (nats) by a diagonal instead of a full posterior "
                "covariance, minus its lower bound, the Hadamard gap of the decoder trained "
                f"with diagonal covariance, plus {ALLOWED:g} standard errors over the seeds, "
                f"{words}",
            ),
            AtLeast(
                f"upper/{panel}",
                0.0,
                at="everywhere",
                says="upper bound of the increase of −ELBO (nats) by a diagonal instead of a full "
                "posterior covariance, the Hadamard gap of the decoder trained with full "
                f"covariance, minus this increase, plus {ALLOWED:g} standard errors over the "
                f"seeds, {words}",
            ),
        ]
    return tuple(verdicts)


def panel_words(ratio: int, noise: Noise) -> str:
    """Return a phrase that describes a panel: its number of latents and its noise variance."""
    latents = "k = r" if ratio == 1 else f"k = {ratio} r"
    return f"{latents}, γ {'learned' if noise == 'learn' else f'= {noise:g}'}"


def _panels(source: str, ratios: Sequence[int], noises: Sequence[Noise]) -> list[tuple[str, str]]:
    """Return name and description of each panel: a ratio of latents to dimensions and a noise."""
    return [
        (f"{source}/{ratio}/{noise}", panel_words(ratio, noise))
        for noise in noises
        for ratio in ratios
    ]


def _errors(panels: Sequence[tuple[str, str]], low: int, high: int) -> tuple[Any, ...]:
    """Return verdicts that a diagonal covariance has at least the error of a full one.

    The errors are averaged over data of `low` to `high` dimensions.
    """
    return tuple(
        AtLeast(
            f"mse_ratio/{panel}",
            1.0,
            at=(low, high),
            says="reconstruction error from posterior means: ratio of the diagonal-covariance VAE "
            f"to the full-covariance VAE, {words}",
        )
        for panel, words in panels
    )


def _latents(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that a diagonal covariance uses more latent directions than a full one."""
    return tuple(
        Ordered(
            (f"active_directions_diagonal/{panel}", f"active_directions_full/{panel}"),
            at="mean",
            margin=SOME,
            says="number of active latent directions: diagonal-covariance VAE minus "
            f"full-covariance VAE, {words}",
        )
        for panel, words in panels
    )


def _needed(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that a full covariance uses as many directions as the data have."""
    return tuple(
        AtMost(
            f"excess/{panel}",
            SOME,
            at="everywhere",
            says="absolute difference between the number of active latent directions of the "
            f"full-covariance VAE and the dimension r of the data, {words}",
        )
        for panel, words in panels
    )


def expected(setting: Manifold) -> dict[str, tuple[Any, ...]]:
    """Return the verdicts on each statement at paper scale, for the runs of `setting`."""
    fixed = [noise for noise in setting.noises if noise != "learn"]
    low, high = 2, max(setting.dimensions)
    return {
        "error": _errors(_panels("random", (1, 2), setting.noises), low, high),
        "latents": _latents(_panels("random", (2,), setting.noises)),
        "needed": _needed(_panels("random", (2,), setting.noises)),
        "bounds": _bounds(_panels("random", (1,), fixed)),
        "bounds_wide": _bounds(_panels("random", setting.ratios[1:], fixed)),
        "bounds_learned": _bounds(_panels("random", setting.ratios[:2], ["learn"])),
        "dimension": tuple(
            AtLeast(
                f"step/{panel}",
                0.0,
                says="mean increase of −ELBO (nats) by a diagonal instead of a full posterior "
                f"covariance: for data of r ≥ 4 dimensions minus that for r ≤ 3, {words}",
            )
            for panel, words in _panels("random", (1,), fixed)
        ),
        "images": _bounds(_panels("images", setting.ratios[:2], setting.image_noises)),
        "parts": tuple(
            AtLeast(f"worse/{arm}", 0.0, says=f"{ABOVE_METHOD}: {arm}") for arm in PARTS
        ),
    }


def reported(setting: Manifold) -> tuple[Any, ...]:
    """Return the values that are reported without a verdict, each as a `Reported`."""
    noise = setting.noises[0]
    low = [r for r in setting.dimensions if 2 <= r <= 4]
    found = [
        Reported(
            f"difference/random/1/{noise}",
            at=float(r),
            says="increase of −ELBO (nats) by a diagonal instead of a full posterior covariance, "
            f"{panel_words(1, noise)}",
        )
        for r in low
    ]
    for ratio in setting.ratios[:2]:
        for arm in ARMS:
            found.append(
                Reported(
                    f"active_directions_{arm}/random/{ratio}/{noise}",
                    says=f"number of active latent directions of the {arm}-covariance VAE, "
                    f"{panel_words(ratio, noise)}",
                )
            )
    found.append(Reported("worse/diagonal", says=f"{ABOVE_METHOD}: diagonal covariance"))
    return tuple(found)


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


def standard_error(values: Any) -> float:
    """Return the standard error of the mean of a vector; zero for one value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def low_and_high(name: str, curve: Curve) -> dict[str, Curve]:
    """Return two curves that show how the cost of a diagonal covariance grows with the dimension r.

    They are the mean cost for r ≥ 4 minus that for r ≤ 3, and the cost divided by the number r(r −
    1)/2 of pairs of dimensions.
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
