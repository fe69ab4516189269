"""Statements about the cost of a diagonal posterior covariance, and comparisons of trained VAEs.

The VAEs are those of the experiment `vae-manifold`, on data from manifolds of known dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lucidae_papers.declaration import Curve, Results, Statement, own
from lucidae_papers.verdicts import AtLeast, AtMost, Ordered, Reported

if TYPE_CHECKING:
    from lucidae_papers.vae.manifold import Manifold, Tuned

__all__ = [
    "ALLOWED",
    "ARMS",
    "PARTS",
    "STATEMENTS",
    "Noise",
    "best_rates",
    "compared",
    "compared_best",
    "deep_bounds",
    "digits_best",
    "expected",
    "low_and_high",
    "panel_words",
    "reported",
    "standard_error",
]

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
    "deep": own(
        "With residual networks on images, a diagonal instead of a full covariance raises "
        "−ELBO by an amount between two bounds: the Hadamard gaps of the decoders trained with "
        "diagonal and with full covariance."
    ),
    "tuned": own(
        "After training with twice as many steps, with the best learning rate for each covariance "
        "and as many latents as data dimensions, a diagonal instead of a full posterior "
        "covariance raises −ELBO by an amount between two bounds: the Hadamard gaps of the "
        "decoders trained with diagonal and with full covariance."
    ),
    "best": own(
        "If each sample has its best posterior, instead of the one that the encoder predicts, a "
        "diagonal instead of a full posterior covariance raises −ELBO by an amount between two "
        "bounds: what a full covariance gains over a diagonal one with each of the two decoders."
    ),
    "parts": own(
        "A full posterior covariance trains well only with three measures together: off-diagonal "
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


def _best_bounds(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that each decoder is the better one for posteriors of its own kind.

    The kinds are full and diagonal covariance.
    """
    verdicts: list[Any] = []
    for panel, words in panels:
        for kind, other in (("full", "diagonal"), ("diagonal", "full")):
            verdicts.append(
                AtLeast(
                    f"better_{kind}/{panel}",
                    0.0,
                    at="everywhere",
                    says=f"−ELBO (nats) if each sample has its best {kind}-covariance posterior: "
                    f"decoder trained with {other} covariance minus decoder trained with "
                    f"{kind} covariance, plus {ALLOWED:g} standard errors over the seeds, "
                    f"{words}",
                )
            )
    return tuple(verdicts)


def _tuned_panels(tuned: Tuned) -> list[tuple[str, str]]:
    """Return name and description of each panel of the longer runs."""
    return [
        (f"tuned/{ratio}", f"longer, {panel_words(ratio, tuned.noise)}") for ratio in tuned.ratios
    ]


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
        "error": (
            *_errors(_panels("random", (1, 2), setting.noises), low, high),
            *_errors(_tuned_panels(setting.tuned), low, high),
        ),
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
        "deep": _bounds([("deep", "residual networks on images")]),
        "tuned": _bounds(_tuned_panels(setting.tuned)),
        "best": _best_bounds([*_tuned_panels(setting.tuned), ("digits", "images of digits")]),
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
    found += [
        Reported(f"{name}/deep", says=f"residual networks on images: {words}, in nats")
        for name, words in (
            (
                "difference",
                "increase of −ELBO by a diagonal instead of a full posterior covariance",
            ),
            ("gap_diagonal", "Hadamard gap of the decoder trained with diagonal covariance"),
            ("gap_full", "Hadamard gap of the decoder trained with full covariance"),
        )
    ]
    found += [
        Reported(f"{name}/{panel}", says=f"{words}, in nats, {where}")
        for panel, where in [*_tuned_panels(setting.tuned), ("digits", "images of digits")]
        for name, words in (
            (
                "best_difference",
                (
                    "increase of −ELBO by a diagonal instead of a full covariance, "
                    "with the best posterior of each sample"
                ),
            ),
            (
                "gain_diagonal",
                (
                    "−ELBO with the best diagonal-covariance posteriors minus that with the best "
                    "full-covariance posteriors, decoder trained with diagonal covariance"
                ),
            ),
            (
                "gain_full",
                (
                    "−ELBO with the best diagonal-covariance posteriors minus that with the best "
                    "full-covariance posteriors, decoder trained with full covariance"
                ),
            ),
            (
                "encoder_diagonal",
                (
                    "−ELBO with the posteriors of the encoder minus that with the best posteriors, "
                    "diagonal-covariance VAE"
                ),
            ),
            (
                "encoder_full",
                (
                    "−ELBO with the posteriors of the encoder minus that with the best posteriors, "
                    "full-covariance VAE"
                ),
            ),
        )
    ]
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


def best_rates(cells: Results, rates: Sequence[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return values of VAEs with diagonal and full covariance at their best learning rates."""
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


def deep_bounds(results: Results) -> dict[str, Curve]:
    """Return the cost of a diagonal covariance and the Hadamard gaps of residual networks.

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
    """Return curves that compare VAEs of digits with full and with diagonal covariance.

    Each curve has one point: a difference of −ELBO between the two VAEs, with the best posterior of
    each sample (`compared_best`), or the mean Hadamard gap of a decoder, which is a bound on it.
    """
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
