"""Functions that draw the experiment on VAEs of data from manifolds of known dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lucidae_app.report.figures import image_rows
from lucidae_app.report.page import Block, Plot
from lucidae_app.report.style import LIGHT, drawing, new_figure
from lucidae_papers.drawings.common import look, numbers, shared_legend
from lucidae_papers.outcomes import Outcome
from lucidae_papers.vae.manifold_verdicts import ARMS, PARTS, panel_words

DASHES = {1: "-", 2: "--", 4: ":"}
"""Line style of a curve, by the number of latents divided by the dimension of the data."""

LOOKS = {
    "full": (LIGHT["blue"], "-"),
    "diagonal": (LIGHT["green"], "--"),
    "coupled from the start": (LIGHT["orange"], "-."),
    "not divided by √k": (LIGHT["purple"], ":"),
    "absolute": (LIGHT["yellow"], "-"),
    "absolute from the start": (LIGHT["muted"], "--"),
}
"""Colour and line style of each way to train the posterior covariance, by its name in `ARMS`."""

WORDS = {
    "full": "full, as in GaussianHead",
    "diagonal": "diagonal",
    "coupled from the start": "full, coupled from the start",
    "not divided by √k": "full, not divided by √k",
    "absolute": "full, absolute entries",
    "absolute from the start": "full, absolute entries, coupled from the start",
}


def costs(outcome: Outcome) -> Sequence[Block]:
    """Return plots of the cost of a diagonal posterior covariance, of errors, and of ablations."""
    name = outcome.experiment.name
    curves = outcome.curves
    with drawing():
        return [
            Plot.of(
                name,
                _costs(outcome, "random"),
                "Cost of a diagonal posterior covariance (−ELBO of the diagonal-covariance VAE "
                "minus −ELBO of the full-covariance VAE), with its standard error over the seeds, "
                "against the dimension r of the data. The grey band extends from the Hadamard gap "
                "of the decoder that was trained with a diagonal covariance to the Hadamard gap "
                "of the decoder that was trained with a full covariance.",
                numbers(curves, ("difference", "gap_")),
            ),
            Plot.of(
                f"{name}-best",
                _best(outcome),
                "Runs of twice as many steps, against the dimension r of the data. Left and "
                "middle, by number of latents k: cost of a diagonal posterior covariance (−ELBO "
                "of the diagonal-covariance VAE minus −ELBO of the full-covariance VAE), once "
                "with the best posterior of each sample and once with the posteriors that the "
                "encoders predict. With a given decoder, the best full posteriors have a lower "
                "−ELBO than the best diagonal ones; the grey band extends from this gain with the "
                "decoder trained with diagonal covariance to this gain with the decoder trained "
                "with full covariance. Right: −ELBO with the posteriors of the encoder minus "
                "−ELBO with the best posteriors.",
                numbers(curves, ("best_difference", "gain_", "encoder_")),
            ),
            Plot.of(
                f"{name}-errors",
                _errors(outcome),
                "Left: reconstruction error (from posterior means) of the diagonal-covariance "
                "VAE, divided by that of the full-covariance VAE; bars are standard errors. "
                "Right: number of active directions of the latent space; the grey line is the "
                "dimension r of the data. All values are means over the seeds.",
                numbers(curves, ("mse_ratio", "active_directions")),
            ),
            Plot.of(
                f"{name}-images",
                _costs(outcome, "images"),
                "Cost of a diagonal posterior covariance (−ELBO of the diagonal-covariance VAE "
                "minus −ELBO of the full-covariance VAE), on images from generators that were "
                "trained on images of digits. The grey band extends from the Hadamard gap of the "
                "decoder that was trained with a diagonal covariance to that of the decoder "
                "trained with a full covariance.",
                numbers(curves, ("difference/images", "gap_")),
            ),
            Plot.of(
                f"{name}-generators",
                _generated(outcome),
                "Images that the generators make from random latents; one row of images for each "
                "dimension r of the data.",
                numbers(curves, ("gap_full/images",)),
            ),
            Plot.of(
                f"{name}-parts",
                _parts(outcome),
                "Training of VAEs whose full posterior covariance is parametrised or trained "
                "otherwise than in GaussianHead. Left: −ELBO on the training data minus that of "
                "the VAE with GaussianHead, over the steps. The latents of GaussianHead are "
                "independent up to the first vertical line and fully coupled from the second one "
                "on. Right: the same difference after the last step, on new posterior samples.",
                numbers(curves, ("course", "worse", "directions")),
            ),
        ]


def _costs(outcome: Outcome, source: str) -> Any:
    """Return a figure of the cost of a diagonal covariance against the dimension of the data.

    There is a row of panels per number of latents and a column per noise variance; `source` is the
    origin of the data, ``"random"`` or ``"images"``.
    """
    setting, curves = outcome.setting, outcome.curves
    panels = [(ratio, noise) for ratio, noise, _ in setting.panels(source)]
    ratios = sorted({ratio for ratio, _ in panels})
    noises = list(dict.fromkeys(noise for _, noise in panels))
    shape = (len(ratios), len(noises))
    size = (max(7.4, 2.9 * len(noises)), 2.4 * len(ratios) + 0.8)
    figure, grid = new_figure(*shape, figsize=size, squeeze=False)
    for row, ratio in enumerate(ratios):
        for column, noise in enumerate(noises):
            axes = grid[row][column]
            if (ratio, noise) not in panels:
                axes.set_axis_off()
                continue
            _cost(axes, curves, f"{source}/{ratio}/{noise}")
            axes.set(
                title=panel_words(ratio, noise),
                xlabel="r",
                xticks=[int(r) for r in curves[f"difference/{source}/{ratio}/{noise}"].x],
            )
        grid[row][0].set_ylabel("nats")
    shared_legend(figure, grid[0][0], 3)
    return figure


def _cost(axes: Any, curves: Any, panel: str) -> None:
    """Draw the cost of a diagonal covariance and the Hadamard gaps of one panel."""
    low, high, cost, error = (
        curves[f"{name}/{panel}"]
        for name in ("gap_diagonal", "gap_full", "difference", "difference_error")
    )
    axes.fill_between(low.x, low.y, high.y, color=LIGHT["muted"], alpha=0.25, linewidth=0)
    for arm, curve in (("diagonal", low), ("full", high)):
        style = {**look(arm), "linestyle": "--" if arm == "diagonal" else "-", "markevery": 1}
        axes.plot(curve.x, curve.y, label=f"Hadamard gap, {arm} decoder", **style)
    shown = {"color": LIGHT["orange"], "linestyle": "", "marker": "s", "capsize": 3}
    axes.errorbar(cost.x, cost.y, error.y, label="cost of a diagonal covariance", **shown)


def _best(outcome: Outcome) -> Any:
    """Return a figure of the runs with more steps: costs of a diagonal covariance, and encoders.

    The costs are drawn with the best posterior of each sample and with the posteriors that the
    encoders predict; the last panel shows by how much −ELBO of the encoders exceeds that of the
    best posteriors.
    """
    tuned, curves = outcome.setting.tuned, outcome.curves
    figure, grid = new_figure(1, len(tuned.ratios) + 1, figsize=(9.4, 3.6))
    *panels, right = grid
    for axes, ratio in zip(panels, tuned.ratios, strict=True):
        low, high, best, error, trained, spread = (
            curves[f"{name}/tuned/{ratio}"]
            for name in (
                "gain_diagonal",
                "gain_full",
                "best_difference",
                "best_difference_error",
                "difference",
                "difference_error",
            )
        )
        axes.fill_between(low.x, low.y, high.y, color=LIGHT["muted"], alpha=0.25, linewidth=0)
        for arm, curve in (("diagonal", low), ("full", high)):
            style = {**look(arm), "linestyle": "--" if arm == "diagonal" else "-", "markevery": 1}
            axes.plot(curve.x, curve.y, label=f"gain of a full covariance, {arm} decoder", **style)
        shown = {"linestyle": "", "capsize": 3}
        axes.errorbar(
            best.x, best.y, error.y, color=LIGHT["orange"], marker="s", label="cost, best", **shown
        )
        axes.errorbar(
            trained.x,
            trained.y,
            spread.y,
            color=LIGHT["purple"],
            marker="x",
            label="cost, encoders",
            **shown,
        )
        axes.set(title=panel_words(ratio, tuned.noise), xlabel="r", xticks=list(tuned.dimensions))
        for arm in ARMS:
            curve = curves[f"encoder_{arm}/tuned/{ratio}"]
            style = {**look(arm), "linestyle": DASHES[ratio], "markevery": 1}
            latents = "k = r" if ratio == 1 else f"k = {ratio} r"
            right.plot(curve.x, curve.y, label=f"{arm}, {latents}", **style)
    panels[0].set_ylabel("nats")
    right.set(title="Excess of the encoders", xlabel="r", xticks=list(tuned.dimensions))
    right.set_yscale("log")
    right.legend(fontsize=8)
    shared_legend(figure, panels[0], 4)
    return figure


def _errors(outcome: Outcome) -> Any:
    """Return a figure of error ratios (diagonal to full) and numbers of active directions."""
    setting, curves = outcome.setting, outcome.curves
    colours = dict(
        zip(setting.noises, (LIGHT["blue"], LIGHT["orange"], LIGHT["green"]), strict=False)
    )
    figure, (left, right) = new_figure(1, 2, figsize=(8.6, 4.2))
    for ratio, noise, _ in setting.panels("random"):
        panel = f"random/{ratio}/{noise}"
        style = {"color": colours[noise], "linestyle": DASHES[ratio], "marker": "o"}
        curve, error = curves[f"mse_ratio/{panel}"], curves[f"mse_ratio_error/{panel}"]
        left.errorbar(
            curve.x, curve.y, error.y, capsize=2, label=panel_words(ratio, noise), **style
        )
    left.axhline(1.0, color=LIGHT["muted"], linewidth=1.0)
    left.set(title="Error: diagonal / full covariance", xlabel="r")
    last = setting.noises[0]
    for ratio, noise, _ in setting.panels("random"):
        if noise != last:
            continue
        for arm in ARMS:
            curve = curves[f"active_directions_{arm}/random/{ratio}/{noise}"]
            style = {**look(arm), "linestyle": DASHES[ratio], "markevery": 1}
            right.plot(curve.x, curve.y, label=f"{arm}, {panel_words(ratio, noise)}", **style)
    right.plot(setting.dimensions, setting.dimensions, color=LIGHT["muted"], linewidth=1.0)
    right.set(title="Active directions", xlabel="r")
    right.legend(fontsize=8)
    left.legend(fontsize=8)
    return figure


def _generated(outcome: Outcome) -> Any:
    """Return a figure of generated images, a row per dimension of the data, for the first seed."""
    rows = {}
    for r in outcome.setting.image_dimensions:
        images = outcome.results.where(source="images", dimension=r).cells[0].arrays["images"]
        side = round(images.shape[1] ** 0.5)
        rows[f"r = {r}"] = images.reshape(-1, side, side)
    return image_rows(rows)


def _parts(outcome: Outcome) -> Any:
    """Return a figure of the training losses of the ablations, and of their last −ELBO.

    Ablations are VAEs whose full covariance is not parametrised and trained in all respects as in
    `GaussianHead`. Their −ELBO is drawn minus that of `GaussianHead`.
    """
    curves = outcome.curves
    figure, (left, right) = new_figure(1, 2, figsize=(8.6, 4.0))
    best = curves["course/full"]
    arms = (*ARMS, *PARTS)
    for arm in arms:
        colour, dash = LOOKS[arm]
        curve = curves[f"course/{arm}"]
        left.plot(curve.x, curve.y - best.y, color=colour, linestyle=dash, label=WORDS[arm])
    steps = outcome.setting.image_steps
    for share in (0.25, 0.375):
        left.axvline(share * steps, color=LIGHT["muted"], linewidth=1.0, linestyle=":")
    left.set(title="−ELBO minus that of GaussianHead (nats)", xlabel="step")
    left.set_yscale("symlog", linthresh=1.0)
    left.set_ylim(bottom=-0.5)
    values = [float(curves[f"worse/{arm}"].y[0]) for arm in arms[1:]]
    right.barh(np.arange(len(values)), values, color=[LOOKS[arm][0] for arm in arms[1:]])
    right.set_yticks(np.arange(len(values)), [""] * len(values))
    for place, value in enumerate(values):
        side = "left" if value >= 0 else "right"
        right.annotate(f" {value:.2f} ", (value, place), ha=side, va="center", fontsize=9)
    right.invert_yaxis()
    right.margins(x=0.25)
    right.set(title="At the end (nats)")
    shared_legend(figure, left, 2)
    return figure
