"""Statements of the experiment on VAEs of data from manifolds, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lucidae.experiments.declaration import Statement, own
from lucidae.experiments.vae.manifold_costs import ALLOWED, ARMS
from lucidae.experiments.verdicts import AtLeast, AtMost, Ordered, Reported

if TYPE_CHECKING:
    from lucidae.experiments.vae.manifold import Manifold, Tuned

__all__ = ["PARTS", "STATEMENTS", "Noise", "expected", "panel_words", "reported"]

PARTS = ("coupled from the start", "not divided by √k", "absolute", "absolute from the start")
"""Ablations: VAEs with a full posterior covariance that is not parametrised and trained in all
respects as in `GaussianHead`. The names are those of `batched.ARMS`."""

ABOVE_METHOD = "−ELBO minus that of the full covariance as in GaussianHead, in nats"
"""Name of the quantity that compares the ablations with `GaussianHead`."""

SOME = 0.5
"""Two mean numbers of active directions count as different if they differ by at least this."""

Noise = str | float

STATEMENTS = {
    "error": Statement("On a manifold, the VAE with full covariance has the lower error."),
    "latents": Statement("The VAE with full covariance uses fewer latents."),
    "needed": Statement(
        "The VAE with full covariance uses as many latents as the manifold has dimensions."
    ),
    "bounds": own(
        "With as many latents as dimensions, the cost of a diagonal covariance lies between the "
        "Hadamard gaps of the two decoders."
    ),
    "bounds_wide": own(
        "With two to four times as many latents as dimensions, the cost of a diagonal covariance "
        "lies between the Hadamard gaps of the two decoders, too."
    ),
    "bounds_learned": own(
        "With a learned noise variance, the cost of a diagonal covariance lies between the "
        "Hadamard gaps of the two decoders, too."
    ),
    "dimension": own(
        "A diagonal covariance costs more for data of r ≥ 4 dimensions than for r ≤ 3."
    ),
    "images": own(
        "On images of a generator, the cost of a diagonal covariance lies between the Hadamard "
        "gaps of the two decoders."
    ),
    "deep": own(
        "For the models of the experiment vae-mnist, the cost of a diagonal covariance lies "
        "between the Hadamard gaps of the two decoders."
    ),
    "tuned": own(
        "With training of twice the length, the best learning rate for each covariance and as "
        "many latents as dimensions, the cost of a diagonal covariance lies between the Hadamard "
        "gaps of the two decoders."
    ),
    "best": own(
        "With the best posterior of each sample, instead of the one that the encoder predicts, the "
        "cost of a diagonal covariance lies between the gains of a full covariance with each of "
        "the two decoders."
    ),
    "parts": own(
        "The training of a full covariance needs three measures together: off-diagonal entries "
        "that are predicted relative to the standard deviations, their division by √k for k "
        "latents, and latents that are independent at first."
    ),
}


def _bounds(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that the cost of a diagonal covariance lies between two Hadamard gaps.

    The gaps are those of the decoders that were trained with diagonal and with full covariance.
    `panels` are pairs of the name of a panel and its description in words.
    """
    verdicts: list[Any] = []
    for panel, words in panels:
        verdicts += [
            AtLeast(
                f"lower/{panel}",
                0.0,
                at="everywhere",
                says="cost of a diagonal covariance minus Hadamard gap of the decoder trained with "
                f"diagonal covariance, in nats, plus {ALLOWED:g} standard errors, {words}",
            ),
            AtLeast(
                f"upper/{panel}",
                0.0,
                at="everywhere",
                says="Hadamard gap of the decoder trained with full covariance minus cost of a "
                f"diagonal covariance, in nats, plus {ALLOWED:g} standard errors, {words}",
            ),
        ]
    return tuple(verdicts)


def panel_words(ratio: int, noise: Noise) -> str:
    """Return a phrase that describes a panel: its number of latents and its noise variance.

    `ratio` is the number k of latents divided by the dimension r of the data.
    """
    latents = "k = r" if ratio == 1 else f"k = {ratio} r"
    return f"{latents}, γ {'learned' if noise == 'learn' else f'= {noise:g}'}"


def _best_bounds(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    """Return verdicts that each decoder is the better one for posteriors of its own kind.

    The kinds are full and diagonal covariance. `panels` are pairs of the name of a panel and its
    description in words.
    """
    verdicts: list[Any] = []
    for panel, words in panels:
        for kind, other in (("full", "diagonal"), ("diagonal", "full")):
            verdicts.append(
                AtLeast(
                    f"better_{kind}/{panel}",
                    0.0,
                    at="everywhere",
                    says=f"−ELBO with the best {kind}-covariance posteriors, in nats: decoder "
                    f"trained with {other} covariance minus that trained with {kind} covariance, "
                    f"plus {ALLOWED:g} standard errors, {words}",
                )
            )
    return tuple(verdicts)


def _tuned_panels(tuned: Tuned) -> list[tuple[str, str]]:
    return [
        (f"tuned/{ratio}", f"longer, {panel_words(ratio, tuned.noise)}") for ratio in tuned.ratios
    ]


def _panels(source: str, ratios: Sequence[int], noises: Sequence[Noise]) -> list[tuple[str, str]]:
    return [
        (f"{source}/{ratio}/{noise}", panel_words(ratio, noise))
        for noise in noises
        for ratio in ratios
    ]


def _errors(panels: Sequence[tuple[str, str]], low: int, high: int) -> tuple[Any, ...]:
    return tuple(
        AtLeast(
            f"mse_ratio/{panel}",
            1.0,
            at=(low, high),
            says="reconstruction error from posterior means: ratio of diagonal to full "
            f"covariance, {words}",
        )
        for panel, words in panels
    )


def _latents(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    return tuple(
        Ordered(
            (f"active_directions_diagonal/{panel}", f"active_directions_full/{panel}"),
            at="mean",
            margin=SOME,
            says=f"number of active latent directions: diagonal minus full covariance, {words}",
        )
        for panel, words in panels
    )


def _needed(panels: Sequence[tuple[str, str]]) -> tuple[Any, ...]:
    return tuple(
        AtMost(
            f"excess/{panel}",
            SOME,
            at="everywhere",
            says="absolute difference between the number of active latent directions with full "
            f"covariance and the dimension r of the data, {words}",
        )
        for panel, words in panels
    )


def expected(setting: Manifold) -> dict[str, tuple[Any, ...]]:
    """Return the verdicts on all statements at paper scale."""
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
                says="mean cost of a diagonal covariance for data of r ≥ 4 dimensions minus that "
                f"for r ≤ 3, {words}",
            )
            for panel, words in _panels("random", (1,), fixed)
        ),
        "images": _bounds(_panels("images", setting.ratios[:2], setting.image_noises)),
        "deep": _bounds([("deep", "first seed of vae-mnist")]),
        "tuned": _bounds(_tuned_panels(setting.tuned)),
        "best": _best_bounds([*_tuned_panels(setting.tuned), ("digits", "images of digits")]),
        "parts": tuple(
            AtLeast(f"worse/{arm}", 0.0, says=f"{ABOVE_METHOD}: {arm}") for arm in PARTS
        ),
    }


def reported(setting: Manifold) -> tuple[Any, ...]:
    """Return verdicts that only report a measured value."""
    noise = setting.noises[0]
    low = [r for r in setting.dimensions if 2 <= r <= 4]
    found = [
        Reported(
            f"difference/random/1/{noise}",
            at=float(r),
            says=f"cost of a diagonal covariance in nats, {panel_words(1, noise)}",
        )
        for r in low
    ]
    for ratio in setting.ratios[:2]:
        for arm in ARMS:
            found.append(
                Reported(
                    f"active_directions_{arm}/random/{ratio}/{noise}",
                    says=f"number of active latent directions with {arm} covariance, "
                    f"{panel_words(ratio, noise)}",
                )
            )
    found += [
        Reported(f"{name}/deep", says=f"models of vae-mnist: {words}, in nats")
        for name, words in (
            ("difference", "cost of a diagonal covariance"),
            ("gap_diagonal", "Hadamard gap of the decoder trained with diagonal covariance"),
            ("gap_full", "Hadamard gap of the decoder trained with full covariance"),
        )
    ]
    found += [
        Reported(f"{name}/{panel}", says=f"{words}, in nats, {where}")
        for panel, where in [*_tuned_panels(setting.tuned), ("digits", "images of digits")]
        for name, words in (
            ("best_difference", "cost of a diagonal covariance with the best posteriors"),
            (
                "gain_diagonal",
                "−ELBO of best diagonal minus best full posteriors, decoder of diagonal covariance",
            ),
            (
                "gain_full",
                "−ELBO of best diagonal minus best full posteriors, decoder of full covariance",
            ),
            (
                "encoder_diagonal",
                "−ELBO with the encoder minus that with the best posteriors, diagonal covariance",
            ),
            (
                "encoder_full",
                "−ELBO with the encoder minus that with the best posteriors, full covariance",
            ),
        )
    ]
    found.append(Reported("worse/diagonal", says=f"{ABOVE_METHOD}: diagonal covariance"))
    return tuple(found)
