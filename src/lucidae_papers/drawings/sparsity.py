"""Figures of sparse codes and of VAEs on manifolds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lucidae_app.report.figures import image_rows
from lucidae_app.report.style import LIGHT, new_figure
from lucidae_papers.drawings import Drawn
from lucidae_papers.drawings.training import look, shared_legend
from lucidae_papers.linear.counts import COUNTERS
from lucidae_papers.vae.manifold import ARMS, PARTS, panel_words
from lucidae_papers.verdicts import LABELS, Outcome

METHODS = ("full", "diagonal", "autoencoder", "group lasso")
CRITERION_NAMES = {
    "rows": "every row correct",
    "frobenius": "correct in Frobenius norm",
    "support": "support correct",
}


def recovery(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the success rates of four sparse methods.

    They are drawn against the number of nonzero rows of the code to be recovered. There is one
    panel for each criterion of success: the set of nonzero rows (the support) is found, or all rows
    or the Frobenius norm are within a tolerance.
    """
    setting = outcome.setting
    criteria = [setting.criterion] if setting.criterion == "support" else ["rows", "frobenius"]
    figure, panels = new_figure(1, len(criteria), figsize=(8.6, 3.7), squeeze=False, sharey=True)
    for axes, criterion in zip(panels[0], criteria, strict=True):
        for method, stored in zip(METHODS, setting.methods, strict=True):
            curve = outcome.curves[f"{criterion}/{stored}"]
            every = max(1, len(curve.x) // 10)
            # Dashed, because its curve often coincides with that of the diagonal VAE.
            dash = "--" if method == "autoencoder" else "-"
            style = look(method, markevery=every, linestyle=dash)
            axes.plot(curve.x, curve.y, label=LABELS[method], **style)
        axes.set(title=f"Success: {CRITERION_NAMES[criterion]}", xlabel="active rows r")
        axes.set_ylim(-0.03, 1.03)
    panels[0][0].set_ylabel("success rate")
    shared_legend(figure, panels[0][0])
    caption = (
        f"Share of {setting.trials} random problems that each method solves; no method can "
        f"succeed beyond r = d = {setting.d}. Where two curves coincide, the dashed one of the "
        "autoencoder lies on top of that of the diagonal-covariance VAE."
    )
    return [Drawn(figure, caption)]


def arrays(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of how often each method resolves two close sources, and of one problem.

    The panels vary the signal-to-noise ratio, for independent and for coherent sources, and the
    number of snapshots. The last one shows the spectra of one problem.
    """
    setting, methods = outcome.setting, ("full", "group lasso", "music", "beamforming")
    titles = {
        "ratio": ("Independent sources", "signal-to-noise ratio (dB)"),
        "coherent": ("Coherent sources", "signal-to-noise ratio (dB)"),
        "snapshots": ("Independent sources", f"snapshots, at {setting.ratio:g} dB"),
    }
    figure, panels = new_figure(2, 2, figsize=(8.6, 6.4))
    for axes, (panel, (title, words)) in zip(panels.flat, titles.items(), strict=False):
        for method in methods:
            curve = outcome.curves[f"{panel}/{method}"]
            dash = "--" if method == "beamforming" else "-"
            style = look(method, markersize=5, linestyle=dash)
            axes.plot(curve.x, curve.y, label=LABELS[method], **style)
        axes.set(title=title, xlabel=words, ylabel="resolved pairs", ylim=(-0.03, 1.03))
    panels[1, 0].set_xscale("log")
    panels[1, 0].set_xticks(setting.snapshots, [f"{count}" for count in setting.snapshots])
    panels[1, 0].minorticks_off()
    _spectra(panels[1, 1], outcome, methods)
    shared_legend(figure, panels[0, 0])
    # A uniform array of N sensors, half a wavelength apart, has 0.886 · 2/N rad at half power.
    width = np.rad2deg(0.886 * 2.0 / setting.sensors)
    caption = (
        f"Share of {setting.trials} pairs of sources, {setting.separation:g}° apart, that each "
        f"method resolves; the beam of the array is {width:.2g}° wide. Bottom right: powers "
        "that the methods assign to the directions near one pair of coherent sources "
        "(triangles at the top), in decibels below the highest."
    )
    return [Drawn(figure, caption)]


def _spectra(axes: Any, outcome: Outcome, methods: Sequence[str]) -> None:
    """Draw the spectra that some methods estimate for one problem with coherent sources.

    The problem has the largest signal-to-noise ratio of the study.
    """
    shown = outcome.results.where(panel="coherent").cells[-1]
    angles, sources = shown.arrays["angles"], shown.arrays["sources"]
    near = np.abs(angles - sources.mean()) <= 16.0
    for layer, method in enumerate(reversed(methods)):
        power = shown.arrays[f"spectrum/{method}"]
        decibels = 10.0 * np.log10(np.maximum(power / power.max(), 1e-9))
        sparse = method in ("full", "group lasso")
        style = look(method, zorder=2 + layer)
        chosen = near & (decibels > -40.0) if sparse else near
        if sparse:  # single directions: stems instead of a line
            width = 1.0 if method == "group lasso" else 2.5
            axes.vlines(angles[chosen], -40.0, decibels[chosen], style["color"], linewidth=width)
            style |= {"linestyle": "", "markersize": 5}
        else:
            style |= {"marker": "", "linestyle": "--" if method == "beamforming" else "-"}
        axes.plot(angles[chosen], decibels[chosen], **style)
    axes.plot(sources, [3.0, 3.0], marker="v", linestyle="", color=LIGHT["ink"], markersize=7)
    ratio = shown.settings["problem"]["snr_db"]
    axes.set(title=f"One pair of coherent sources, {ratio:g} dB", xlabel="direction (degrees)")
    axes.set(ylabel="power (dB)", ylim=(-40.0, 6.0))


def slices(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of three energies along one coordinate: of two sparse VAEs and an autoencoder.

    The VAEs have a full and a diagonal posterior covariance.
    """
    curves = outcome.curves
    figure, (left, right) = new_figure(1, 2, figsize=(8.6, 3.4))
    for method in ("full", "diagonal"):
        curve = curves[f"energy/{method}"]
        style = look(method, marker="", linestyle="-" if method == "full" else "--")
        left.plot(curve.x, curve.y, label=LABELS[method], **style)
    left.set(title="Energy along one weight", xlabel="w", ylabel="energy", ylim=(-1, 11))
    left.set_xscale("symlog", linthresh=0.01)
    left.set_xlim(left=0.0)
    left.legend(loc="lower left")
    curve = curves["energy/autoencoder"]
    deep = curve.y < -14
    right.plot(curve.x[~deep & (curve.x < 0)], curve.y[~deep & (curve.x < 0)], **AUTOENCODER)
    right.plot(curve.x[~deep & (curve.x > 0)], curve.y[~deep & (curve.x > 0)], **AUTOENCODER)
    right.annotate(
        "the energy tends to −∞ at u = 0",
        (0, -13.5),
        xytext=(12, 10),
        textcoords="offset points",
        color=LIGHT["muted"],
    )
    right.set(title="Autoencoder along one coefficient", xlabel="u", ylim=(-14, 12))
    caption = (
        "Left: energies of the full- and the diagonal-covariance VAE over one relevance w, the "
        "prior variance of a coefficient. Right: energy of the autoencoder with a logarithmic "
        "penalty over one coefficient u, which is unbounded below at u = 0 for all data."
    )
    return [Drawn(figure, caption, ("energy",))]


def covariances(outcome: Outcome) -> Sequence[Drawn]:
    """Return plots of deep VAEs: error over the epochs, and posterior variances in order."""
    arms = outcome.setting.arms
    colours = dict(zip(arms, ("blue", "orange", "purple"), strict=False))
    figure, panels = new_figure(1, 3, figsize=(9.6, 3.7))
    titles = ("mse", "variances of coordinates", "variances of directions")
    for axes, name in zip(panels, titles, strict=True):
        for arm in arms:
            curve = outcome.curves[f"{name}/{arm}"]
            dash = "-" if arm.startswith("full") else "--"
            axes.plot(curve.x, curve.y, label=arm, color=LIGHT[colours[arm]], linestyle=dash)
    panels[0].set(title="Error of the reconstruction", xlabel="epoch", yscale="log")
    for axes, what in zip(panels[1:], ("latents", "directions"), strict=True):
        axes.axhline(0.5, color=LIGHT["muted"], linewidth=1)
        axes.set(title=f"Posterior variance of {what}", xlabel=what, yscale="log")
    shared_legend(figure, panels[0], 3)
    caption = (
        "Images that were not used for training; means over the seeds. Latents and directions "
        "(eigenvectors of the mean posterior covariance) are in ascending order of variance; "
        "those below the grey line count as active."
    )
    return [Drawn(figure, caption)]


AUTOENCODER: dict[str, Any] = {"color": LIGHT["orange"], "linestyle": "-"}


COUNT_PANELS = {
    "strength": ("Strength of the signals", "strength of the weakest signal"),
    "ratio": ("Number of rows", "rows per feature"),
    "largest": ("One large signal", "strength of the largest signal"),
    "spread": ("Unequal noise", "largest to smallest noise variance"),
    "tails": ("Heavy tails of the noise", "degrees of freedom (t distribution)"),
    "none": ("No signals: a component is found", "rows per feature"),
}
"""Title of each panel and label of its horizontal axis."""

DASHED_COUNTS = ("known_noise", "horn", "share")


def counts(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the share of data sets in which each criterion counts all signals.

    There is one panel for each quantity that varies. The last one is about data without signals
    and shows how often a component is found.
    """
    setting = outcome.setting
    figure, panels = new_figure(2, 3, figsize=(8.6, 6.6), sharey=True)
    for axes, (panel, (title, words)) in zip(panels.flat, COUNT_PANELS.items(), strict=True):
        for name in COUNTERS:
            curve = outcome.curves[f"{panel}/{name}"]
            dash = "--" if name in DASHED_COUNTS else "-"
            style = look(name, markersize=4.5, linestyle=dash)
            axes.plot(curve.x, curve.y, label=LABELS[name], **style)
        axes.set_xscale("log")
        axes.set(title=title, xlabel=words, ylim=(-0.03, 1.03))
        shown = curve.x if len(curve.x) <= 4 else curve.x[::2]
        axes.set_xticks(shown, [f"{point:g}" for point in shown])
        axes.minorticks_off()
    panels[1, 1].invert_xaxis()  # from nearly Gaussian noise to heavy tails
    for axes in panels[:, 0]:
        axes.set_ylabel("share of data sets")
    shared_legend(figure, panels[0, 0], columns=3)
    caption = (
        f"Share of {setting.trials} data sets in which each criterion finds the true number of "
        f"{setting.signals} signals in {setting.n_features} features. The strength is the "
        "variance of a signal in units of the smallest that can be detected in large data. "
        f"Unless they vary, there are {setting.ratio:g} rows per feature and the weakest "
        f"signal has strength {setting.strength:g}. Bottom right: share of data sets without "
        "signals in which a component is found, which is a mistake."
    )
    return [Drawn(figure, caption)]


DASHES = {1: "-", 2: "--", 4: ":"}
"""Line style of a curve, by the number of latents divided by the dimension of the data."""

LOOKS = {
    "full": (LIGHT["blue"], "-", "full, as in GaussianHead"),
    "diagonal": (LIGHT["green"], "--", "diagonal"),
    "coupled from the start": (LIGHT["orange"], "-.", "full, coupled from the start"),
    "not divided by √k": (LIGHT["purple"], ":", "full, not divided by √k"),
    "absolute": (LIGHT["yellow"], "-", "full, absolute entries"),
    "absolute from the start": (
        LIGHT["muted"],
        "--",
        "full, absolute entries, coupled from the start",
    ),
}
"""Colour, line style and words of each way to train the posterior covariance, by its name."""


COST = (
    "Cost of a diagonal posterior covariance (−ELBO of the diagonal-covariance VAE minus −ELBO of "
    "the full-covariance VAE), with its standard error over the seeds, against the dimension r of "
    "the data. The grey band extends from the Hadamard gap of the decoder that was trained with a "
    "diagonal covariance to that of the decoder that was trained with a full covariance."
)
ERRORS = (
    "Left: reconstruction error (from posterior means) of the diagonal-covariance VAE, divided by "
    "that of the full-covariance VAE; bars are standard errors. Right: number of active directions "
    "of the latent space; the grey line is the dimension r of the data. All values are means over "
    "the seeds."
)
GENERATED = "Images that the generators make from random latents, a row for each dimension r."
PARTS_CAPTION = (
    "Training of VAEs whose full posterior covariance is parametrised or trained otherwise than in "
    "GaussianHead. Left: −ELBO on the training data minus that of the VAE with GaussianHead, over "
    "the steps. The latents of GaussianHead are independent up to the first vertical line and "
    "fully coupled from the second one on. Right: the same difference after the last step, on new "
    "posterior samples."
)


def costs(outcome: Outcome) -> Sequence[Drawn]:
    """Return plots of the cost of a diagonal posterior covariance, of errors, and of ablations."""
    on_images = f"{COST} The data are images from generators that were trained on digits."
    return [
        Drawn(_costs(outcome, "random"), COST, ("difference", "gap_")),
        Drawn(_errors(outcome), ERRORS, ("mse_ratio", "active_directions"), "-errors"),
        Drawn(_costs(outcome, "images"), on_images, ("difference/images", "gap_"), "-images"),
        Drawn(_generated(outcome), GENERATED, ("gap_full/images",), "-generators"),
        Drawn(_parts(outcome), PARTS_CAPTION, ("course", "worse", "directions"), "-parts"),
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
    low, high, cost = (
        curves[f"{name}/{panel}"] for name in ("gap_diagonal", "gap_full", "difference")
    )
    axes.fill_between(low.x, low.y, high.y, color=LIGHT["muted"], alpha=0.25, linewidth=0)
    for arm, curve in (("diagonal", low), ("full", high)):
        style = look(arm, linestyle="--" if arm == "diagonal" else "-")
        axes.plot(curve.x, curve.y, label=f"Hadamard gap, {arm} decoder", **style)
    shown = {"color": LIGHT["orange"], "linestyle": "", "marker": "s", "capsize": 3}
    axes.errorbar(cost.x, cost.y, cost.error, label="cost of a diagonal covariance", **shown)


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
        curve = curves[f"mse_ratio/{panel}"]
        left.errorbar(
            curve.x, curve.y, curve.error, capsize=2, label=panel_words(ratio, noise), **style
        )
    left.axhline(1.0, color=LIGHT["muted"], linewidth=1.0)
    left.set(title="Error: diagonal / full covariance", xlabel="r")
    last = setting.noises[0]
    for ratio, noise, _ in setting.panels("random"):
        if noise != last:
            continue
        for arm in ARMS:
            curve = curves[f"active_directions_{arm}/random/{ratio}/{noise}"]
            style = look(arm, linestyle=DASHES[ratio])
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
        colour, dash, words = LOOKS[arm]
        curve = curves[f"course/{arm}"]
        left.plot(curve.x, curve.y - best.y, color=colour, linestyle=dash, label=words)
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
