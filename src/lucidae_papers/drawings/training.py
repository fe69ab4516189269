"""Figures of training runs, and the style that all figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lucidae_app.report.style import LIGHT, new_figure
from lucidae_papers.compression import METHODS as RECIPES
from lucidae_papers.compression import NETWORKS
from lucidae_papers.drawings import Drawn
from lucidae_papers.embeddings import NAMES as TRUNCATIONS
from lucidae_papers.embeddings import QUANTITIES
from lucidae_papers.linear.dynamics import METHODS
from lucidae_papers.linear.penalties import RULES
from lucidae_papers.linear.training import data_set
from lucidae_papers.results import Curve
from lucidae_papers.verdicts import LABELS, Outcome, label

STYLES = {
    "uniform_l2": (LIGHT["muted"], "x"),
    "nonuniform_l2": (LIGHT["orange"], "s"),
    "rag": (LIGHT["blue"], "o"),
    "nested_dropout": (LIGHT["purple"], "^"),
    "expected_nested_dropout": (LIGHT["green"], "D"),
    "linear_vae": (LIGHT["yellow"], "v"),
    "full": (LIGHT["blue"], "o"),
    "diagonal": (LIGHT["green"], "D"),
    "autoencoder": (LIGHT["orange"], "s"),
    "group lasso": (LIGHT["purple"], "^"),
    "music": (LIGHT["orange"], "s"),
    "beamforming": (LIGHT["muted"], "x"),
    "mle": (LIGHT["green"], "D"),
    "parallel_analysis": (LIGHT["blue"], "o"),
    "hard_threshold": (LIGHT["orange"], "s"),
    "known_noise": (LIGHT["yellow"], "v"),
    "horn": (LIGHT["purple"], "^"),
    "share": (LIGHT["muted"], "x"),
}
"""Colour and marker of each method in all plots, by its name in the settings of a run."""

DASHES: dict[str, Any] = {"nesterov": "-", "adam": "--"}


def look(method: str, optimizer: str = "nesterov", **changes: Any) -> dict[str, Any]:
    """Return colour and marker of a method and line style of an optimizer, for ``axes.plot``."""
    colour, marker = STYLES[method]
    style = {"color": colour, "marker": marker, "linestyle": DASHES[optimizer], "markevery": 1}
    return style | changes


def positive(curve: Curve, floor: float = 1e-6) -> tuple[Any, Any]:
    """Return x and y of the points with x > 0, for logarithmic axes; y is at least `floor`."""
    inside = curve.x > 0
    return curve.x[inside], np.maximum(curve.y[inside], floor)


def shared_legend(figure: Any, axes: Any, columns: int = 4) -> None:
    """Add one legend, with the curves of `axes`, below all panels of a figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9)


PANELS = {"alignment": "Distance to principal axes", "subspace": "Distance to principal subspace"}
RULE_LOOKS = {
    "spaced": (LIGHT["orange"], "s", "√λ equally spaced"),
    "paper": (LIGHT["blue"], "o", "minimiser of eq. 16 (Bao et al. 2020)"),
    "best": (LIGHT["green"], "D", "best conditioned"),
}


def dynamics(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the decoders' distances to principal axes and subspace against the epochs.

    There is a row of panels per batch size, and a line per model and optimizer.
    """
    sizes = list(dict.fromkeys(trial.batch_size for trial in outcome.setting.trials))
    figure, rows = new_figure(len(sizes), 2, figsize=(8.6, 3.0 * len(sizes) + 1.1), squeeze=False)
    for line, size in zip(rows, sizes, strict=True):
        for axes, (measure, title) in zip(line, PANELS.items(), strict=True):
            for name, curve in outcome.curves.items():
                kind, *run = name.split("/")
                if kind == measure and run[2:] == ([] if size is None else [str(size)]):
                    x, y = positive(curve)
                    # Markers at even distances along the curve need at least one finite value.
                    every = 0.11 if np.isfinite(y).any() else None
                    style = look(*run[:2], markevery=every, markersize=3.5)
                    axes.plot(x, y, label=label(*run[:2]), **style)
            axes.set(title=title, xlabel="epoch", xscale="log", ylim=(-0.03, 1.0))
        if size is not None:
            line[0].set_title(f"{PANELS['alignment']}, batches of {size}")
    shared_legend(figure, rows[0][0], 3)
    caption = (
        "Solid: Nesterov, momentum 0.9; dashed: Adam. Zero on the left means that every "
        "principal direction is a column of the decoder; zero on the right, that the columns "
        "span the principal subspace."
    )
    return [Drawn(figure, caption, tuple(PANELS))]


def weights(outcome: Outcome) -> Sequence[Drawn]:
    """Return plots of the cosines between decoder columns and principal directions, and images.

    The images show the columns of the decoders.
    """
    setting = outcome.setting
    return [
        Drawn(
            _cosines(setting, outcome),
            "Cosines between principal directions (rows) and the decoder's columns; blue is −1, "
            "red +1. A diagonal matrix means that the components are found in order, and one large "
            "entry per row means that they are found in an arbitrary order.",
        ),
        Drawn(
            _decoders(setting, outcome),
            f"The first ten columns of each decoder as images after {setting.epochs[-1]} epochs "
            f"(linear VAE: {setting.converged}).",
            ("matched",),
            "-images",
        ),
    ]


def _cosines(setting: Any, outcome: Outcome) -> Figure:
    """Return a figure of the cosines between principal directions and decoder columns.

    The last column belongs to the model that needs more epochs than the others to converge.
    """
    columns = (*setting.epochs, setting.converged)
    figure, grid = new_figure(
        len(METHODS), len(columns), figsize=(8.6, 1.55 * len(METHODS)), squeeze=False
    )
    for line, method in zip(grid, METHODS, strict=True):
        for axes in line[len(setting.epochs_of(method)) :]:
            axes.set_axis_off()
        for axes, epoch in zip(line, setting.epochs_of(method), strict=False):
            cosines = setting.cosines(outcome.results, method, epoch)
            axes.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
        line[0].set_ylabel(LABELS[method].replace(" nested", "\nnested"), fontsize=9)
    slowest = [len(setting.epochs_of(method)) for method in METHODS].index(len(columns))
    for axes, epoch in zip((*grid[0][:-1], grid[slowest][-1]), columns, strict=True):
        axes.set_title(f"epoch {epoch}", loc="center", fontsize=10)
    return figure


def _decoders(setting: Any, outcome: Outcome) -> Figure:
    """Return a figure of the first columns of each decoder as images."""
    baseline = setting.baseline
    count = min(10, baseline.k)
    shape: Any = data_set(baseline.data).image_shape
    figure, grid = new_figure(
        len(METHODS), count, figsize=(0.72 * count + 1.4, 0.78 * len(METHODS)), squeeze=False
    )
    for line, method in zip(grid, METHODS, strict=True):
        last = setting.epochs_of(method)[-1]
        cell = outcome.results.one(method=method, n_epochs=last, seed=0)
        for axes, image in zip(line, cell.arrays["atoms"].reshape(-1, *shape), strict=False):
            limit = float(np.max(abs(image))) or 1.0
            axes.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        aside = {"rotation": 0, "ha": "right", "va": "center"}
        line[0].set_ylabel(LABELS[method].replace(" nested", "\nnested"), fontsize=9, **aside)
    return figure


def scaling(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the numbers of epochs until decoders are nearly aligned with the axes.

    They are drawn against the number of latents, with a line per method and optimizer. The axes are
    the principal axes of the data.
    """
    figure, axes = new_figure(figsize=(8.2, 4.2))
    for name, curve in outcome.curves.items():
        if not name.startswith("epochs/"):
            continue
        method, optimizer = name.split("/")[1:]
        finite = np.isfinite(curve.y)
        style = look(method, optimizer)
        axes.plot(curve.x[finite], curve.y[finite], label=label(method, optimizer), **style)
        if finite.any() and not finite.all():
            last = np.flatnonzero(finite)[-1]
            axes.plot(curve.x[last], curve.y[last], marker="X", markersize=10, color=style["color"])
    axes.set(xlabel="number of latents", ylabel="epochs", xscale="log", yscale="log")
    target = f"an axis-alignment distance of {outcome.setting.target:g}"
    axes.set_title(f"Epochs to {target}")
    _plain_ticks(axes, outcome.curves["epochs/rag/nesterov"].x)
    shared_legend(figure, axes, 3)
    caption = (
        "Solid: Nesterov, dashed: Adam; means over the seeds. A large cross marks the largest "
        f"number of latents at which a model reached {target} with every seed."
    )
    return [Drawn(figure, caption, ("epochs/",))]


def _plain_ticks(axes: Any, sizes: Any) -> None:
    """Put a tick with a label at each of `sizes` on a logarithmic axis, and no other ticks."""
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()


def conditioning(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of exact condition numbers and lower bounds against the number of latents."""
    looks = {
        "nonuniform/best": ("non-uniform ℓ₂, best penalties", LIGHT["orange"], "-", "s"),
        "nonuniform/bound": ("lower bound, non-uniform ℓ₂", LIGHT["orange"], ":", ""),
        "nested/geometric": ("expected nested dropout, ρ = 0.9", LIGHT["green"], "-", "D"),
        "nested/uniform": ("expected nested dropout, uniform prior", LIGHT["purple"], "--", "^"),
        "nested/bound": ("lower bound, nested dropout", LIGHT["green"], ":", ""),
    }
    figure, axes = new_figure(figsize=(8.2, 3.9))
    for name, (words, colour, dash, marker) in looks.items():
        curve = outcome.curves[name]
        shown = curve.y > 0  # the bound for two latents is zero
        style = {"color": colour, "linestyle": dash, "marker": marker}
        axes.plot(curve.x[shown], curve.y[shown], label=words, **style)
    axes.set(xlabel="number of latents", ylabel="condition number", xscale="log", yscale="log")
    _plain_ticks(axes, outcome.curves["nested/bound"].x)
    shared_legend(figure, axes, 3)
    caption = (
        "Exact condition numbers of the Hessian at the global minimum, and the lower bounds of "
        "Bao et al. 2020. For nested dropout only the non-zero eigenvalues are used, and the "
        "decoder columns have unit norm."
    )
    return [Drawn(figure, caption)]


def learning_rates(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the last distance to the principal axes against the learning rate."""
    setting = outcome.setting
    curves = {pair: outcome.curves["alignment/{}/{}".format(*pair)] for pair in setting.search}
    figure, axes = new_figure(figsize=(8.2, 4.0))
    _against_rates(axes, curves, setting.baseline.rates)
    shared_legend(figure, axes, 3)
    axes.set_ylabel("distance to the principal axes")
    caption = (
        "Axis-alignment distance after the last epoch; a diverged run counts as 1. Circles "
        "mark the rates that the other experiments use."
    )
    return [Drawn(figure, caption)]


def rates_of_scaling(outcome: Outcome) -> Sequence[Drawn]:
    """Return plots of the epochs until decoders are nearly aligned against the learning rate."""
    setting = outcome.setting
    caption = (
        f"Epochs to an axis-alignment distance of {setting.baseline.target:g}, means over the "
        "seeds; a rate at which a seed does not reach it has no point. Circles mark the rates of "
        "the experiment lae-scaling."
    )
    shared = {"sharex": True, "sharey": True}
    figure, panels = new_figure(1, len(setting.search), figsize=(9.0, 4.0), **shared)
    for axes, (k, models) in zip(np.atleast_1d(panels), setting.search.items(), strict=True):
        curves = {pair: outcome.curves[f"epochs/{k}/{pair[0]}/{pair[1]}"] for pair in models}
        _against_rates(axes, curves, {pair: setting.used(pair, k) for pair in models})
        axes.set(title=f"{k} latents", yscale="log")
        if not any(np.isfinite(curve.y).any() for curve in curves.values()):
            words = {"ha": "center", "va": "center", "transform": axes.transAxes}
            axes.text(0.5, 0.5, "reached at no rate", **words)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("epochs")
    shared_legend(figure, first, 3)
    return [Drawn(figure, caption, ("epochs/",))]


def _against_rates(
    axes: Any, curves: Mapping[tuple[str, str], Curve], used: Mapping[tuple[str, str], float]
) -> None:
    """Plot curves over learning rates by model and optimizer, with a ring at those in use."""
    for (method, optimizer), curve in curves.items():
        style, finite = look(method, optimizer), np.isfinite(curve.y)
        axes.plot(curve.x[finite], curve.y[finite], label=label(method, optimizer), **style)
        here = finite & (curve.x == used[method, optimizer])
        ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}
        axes.plot(curve.x[here], curve.y[here], color=style["color"], **ring)
    axes.set(xlabel="learning rate", xscale="log")


def penalties(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of three choices of ℓ₂ penalties and of the training with each."""
    setting = outcome.setting
    figure, panels = new_figure(1, 3, figsize=(9.0, 3.7))
    for rule in RULES:
        colour, marker, words = RULE_LOOKS[rule]
        curve = outcome.curves[f"penalties/{rule}"]
        style = {"color": colour, "marker": marker, "linestyle": "-"}
        panels[0].plot(curve.x, curve.y, label=words, **style)
    panels[0].set(title="Penalties", xlabel="latent", ylabel="λ")
    for axes, (measure, title) in zip(panels[1:], PANELS.items(), strict=True):
        for rule in RULES:
            colour, *_ = RULE_LOOKS[rule]
            for rate, dash in zip(setting.rates, (":", "--", "-"), strict=False):
                curve = outcome.curves[f"{measure}/{rule}/{rate:g}"]
                axes.plot(*positive(curve), color=colour, linestyle=dash)
        axes.set(title=title, xlabel="epoch", xscale="log", ylim=(-0.03, 1.0))
    shared_legend(figure, panels[0], 3)
    rates = ", ".join(
        f"{dash}: {rate:g}"
        for rate, dash in zip(setting.rates, ("dotted", "dashed", "solid"), strict=False)
    )
    caption = f"Training with Adam under each choice of penalties, with the learning rates {rates}."
    kinds = ("penalties", "alignment", "subspace")
    return [Drawn(figure, caption, kinds)]


def convergence(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the loss and of the hidden units' importance during dropout training.

    The variance of the importance scores (products of the norms of incoming and outgoing weights)
    is drawn. There is a row of panels per number of hidden units.
    """
    setting = outcome.setting
    colours = (LIGHT["blue"], LIGHT["orange"], LIGHT["green"])
    figure, rows = new_figure(
        len(setting.widths), 2, figsize=(8.6, 2.9 * len(setting.widths) + 0.7), squeeze=False
    )
    for (left, right), width in zip(rows, setting.widths, strict=True):
        for lam, colour in zip(setting.strengths, colours, strict=False):
            name = f"{width}/{lam:g}"
            left.plot(
                *positive(outcome.curves[f"objective/{name}"], 0.0),
                color=colour,
                linestyle="-",
                label=f"dropout, λ = {lam:g}",
            )
            best = float(outcome.curves[f"optimum/{name}"].y[0])
            left.axhline(
                best, color=colour, linestyle=":", linewidth=1.6, label=f"optimum, λ = {lam:g}"
            )
            spread = positive(outcome.curves[f"variance/{name}"], 1e-12)
            right.plot(*spread, color=colour, linestyle="-")
        left.set(title=f"Objective, r = {width}", xlabel="step", xscale="log")
        right.set(title=f"Variance of unit importance, r = {width}", xlabel="step", xscale="log")
        right.set(yscale="log")
    shared_legend(figure, rows[0][0], 3)
    caption = (
        f"Mean over {setting.runs} runs. Left: the expected objective and the global optimum "
        "of the closed form. Right: the variance over the hidden units of the importance "
        "score, the product of the norms of incoming and outgoing weights."
    )
    kinds = ("objective", "optimum", "variance")
    return [Drawn(figure, caption, kinds)]


TRUNCATION_LOOKS = {
    "plain": (LIGHT["muted"], "x", ":"),
    "pca": (LIGHT["green"], "D", "--"),
    "ordered": (LIGHT["blue"], "o", "-"),
    "nested": (LIGHT["purple"], "^", "-."),
    "prefix": (LIGHT["orange"], "s", "-"),
    "sampled": (LIGHT["yellow"], "v", "--"),
}


def truncation(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of accuracy and recall of truncated embeddings against their dimension."""
    figure, panels = new_figure(1, 2, figsize=(9.0, 4.3))
    for axes, (quantity, words) in zip(panels, QUANTITIES.items(), strict=True):
        for name, (colour, marker, dash) in TRUNCATION_LOOKS.items():
            curve = outcome.curves[f"{quantity}/{name}"]
            style = {"color": colour, "marker": marker, "linestyle": dash}
            axes.plot(curve.x, curve.y, label=TRUNCATIONS[name], **style)
        axes.set(title=words[0].upper() + words[1:], xscale="log", ylim=(0, 1.03))
        axes.set(xlabel="dimensions kept")
        _plain_ticks(axes, outcome.curves["accuracy/plain"].x)
    shared_legend(figure, panels[0], 2)
    caption = (
        "Images that were not used for training; means over the seeds. The classifier sees "
        "zeros in place of the dimensions that are not kept, and the search uses the training "
        "images. Principal components and ordered dimensions are rotations of the network that "
        "was trained at full width."
    )
    return [Drawn(figure, caption)]


RECIPE_LOOKS = {
    "svd": (LIGHT["muted"], "x", ":"),
    "asvd": (LIGHT["yellow"], "v", "--"),
    "whitened": (LIGHT["orange"], "s", "--"),
    "equal": (LIGHT["green"], "D", "-."),
    "relative": (LIGHT["purple"], "^", "--"),
    "gradients": (LIGHT["purple"], "o", "-"),
    "sequential": (LIGHT["blue"], "o", "-"),
}


def compression(outcome: Outcome) -> Sequence[Drawn]:
    """Return a plot of the loss of compressed networks against the share of parameters."""
    curves = outcome.curves
    networks = [name for name in NETWORKS if f"dense/{name}" in curves]
    figure, (panels,) = new_figure(
        1, len(networks), figsize=(3.2 * len(networks), 4.1), squeeze=False
    )
    for axes, network in zip(panels, networks, strict=True):
        for method, (colour, marker, dash) in RECIPE_LOOKS.items():
            curve = curves[f"loss/{network}/{method}"]
            style = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4}
            axes.plot(curve.x, curve.y, label=RECIPES[method], **style)
        dense = float(curves[f"dense/{network}"].y[0])
        axes.axhline(dense, color=LIGHT["muted"], linewidth=0.8)
        size = f"{curves[f'parameters/{network}'].y[0] / 1e6:.2g} million"
        title = f"{NETWORKS[network][0].upper()}{NETWORKS[network][1:]}\n{size} parameters"
        axes.set(title=title, xscale="log", xlabel="parameters kept, %")
        ticks = curve.x[:: max(1, len(curve.x) // 4)]
        _plain_ticks(axes, ticks)
    panels[0].set_ylabel("held-out loss, nats")
    shared_legend(figure, panels[0], 3)
    caption = (
        "Cross-entropy on samples that were not used for training, means over the seeds; the "
        "thin line is the network before. Parameters are those of the layers that are "
        "factorised. The first four methods keep equal shares of every layer."
    )
    return [Drawn(figure, caption)]
