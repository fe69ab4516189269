"""The energy above the lowest one that any solver has found, against time or iterations.

Energies may be negative, so that they have no logarithm; their differences to the lowest have.
"""

from benchopt import BasePlot

SMALLEST = 1e-9
"""Differences below this are rounding errors and are drawn at this height."""


class Plot(BasePlot):
    """Curves of the differences, one for each solver."""

    name = "energy_gap"
    type = "scatter"
    options = {"dataset": ..., "objective": ..., "x_axis": ["Time", "Iteration"]}

    def plot(self, df, dataset, objective, x_axis):
        """Return the curves: medians over the repetitions."""
        chosen = df[(df["dataset_name"] == dataset) & (df["objective_name"] == objective)]
        lowest = chosen["objective_value"].min()
        curves = []
        for solver, rows in chosen.groupby("solver_name"):
            median = rows.groupby("stop_val")[["time", "objective_value"]].median()
            gap = (median["objective_value"] - lowest).clip(lower=SMALLEST)
            across = median["time"] if x_axis == "Time" else median.index
            curve = {"x": across.tolist(), "y": gap.tolist(), "label": solver}
            curves.append(curve | self.get_style(solver))
        return curves

    def get_metadata(self, df, dataset, objective, x_axis):  # noqa: ARG002
        """Return the title and the labels of the axes."""
        return {
            "title": f"{objective}\nData: {dataset}",
            "xlabel": "time (s)" if x_axis == "Time" else "iterations",
            "ylabel": "energy above the lowest, per response",
        }
