"""Function that draws how often criteria find the true number of components."""

from __future__ import annotations

from collections.abc import Sequence

from lucidae.experiments.drawings.common import look, numbers, shared_legend
from lucidae.experiments.labels import NAMES
from lucidae.experiments.linear.counts import COUNTERS
from lucidae.experiments.outcomes import Outcome
from lucidae.report.blocks import Block, Plot
from lucidae.report.style import drawing, new_figure

PANELS = {
    "strength": ("Strength of the signals", "strength of the weakest signal"),
    "ratio": ("Number of rows", "rows per feature"),
    "largest": ("One large signal", "strength of the largest signal"),
    "spread": ("Unequal noise", "largest to smallest noise variance"),
    "tails": ("Heavy tails of the noise", "degrees of freedom (t distribution)"),
    "none": ("No signals: a component is found", "rows per feature"),
}
"""Title of each panel and label of its horizontal axis."""

DASHED = ("known_noise", "horn", "share")


def counts(outcome: Outcome) -> Sequence[Block]:
    """Return a plot of the share of data sets in which each criterion counts all signals.

    There is one panel for each quantity that varies. The last one is about data without signals
    and shows how often a component is found.
    """
    setting = outcome.setting
    with drawing():
        figure, panels = new_figure(2, 3, figsize=(8.6, 6.6), sharey=True)
        for axes, (panel, (title, words)) in zip(panels.flat, PANELS.items(), strict=True):
            for name in COUNTERS:
                curve = outcome.curves[f"{panel}/{name}"]
                dash = "--" if name in DASHED else "-"
                style = {**look(name), "markevery": 1, "markersize": 4.5, "linestyle": dash}
                axes.plot(curve.x, curve.y, label=NAMES[name], **style)
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
        return [Plot.of(outcome.experiment.name, figure, caption, numbers(outcome.curves))]
