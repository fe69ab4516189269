"""Section of the report on dropout: the linear autoencoder of minimal expected dropout loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.data.tables import Table
from lucidae.dropout import DropoutAutoencoder, DropoutRegressor, LinearProblem, regularization_path
from lucidae_app.report import figures
from lucidae_app.report.blocks import Block, Card, Clock, Plot, Prose, Section, count, fitted
from lucidae_app.report.sections.data import moment_of

WIDTH = 20
RATE = 0.5


def build(table: Table, clock: Clock) -> list[Block]:
    """Return the texts and figures of the section on dropout in the report.

    They show the optimal network for the data in `table` at one dropout rate and at many rates.
    `clock` measures the time of each computation.
    """
    width = min(WIDTH, len(table.columns))
    with clock(f"dropout: exact autoencoder of width {width}"):
        model = fitted(DropoutAutoencoder(width, dropout=RATE), table)
    blocks: list[Block] = [
        Prose(
            f"The global minimum of training a linear autoencoder with "
            f"{count(width, 'hidden unit')}, each dropped with probability {RATE:g}, follows from "
            "one singular value decomposition. Dropout subtracts the same threshold from every "
            f"singular value, which leaves a network of rank {model.rank_}, and makes all hidden "
            "units equally important (Mianjy et al. 2018)."
        ),
        _shrinkage(model),
        _path(table, width, clock),
    ]
    if table.image_shape is not None:
        blocks.append(_units(table, table.image_shape, model))
    blocks.append(Card("The optimal dropout autoencoder", model.certificate_))
    if table.target is not None:
        blocks += _regression(table, clock)
    return blocks


def _shrinkage(model: Any) -> Plot:
    """Return a plot of the singular values and the threshold that dropout subtracts from them."""
    values = np.asarray(model.singular_values_)
    numbers = {
        "direction": list(range(len(values))),
        "singular value": values.tolist(),
        "threshold": [float(model.threshold_)] * len(values),
    }
    caption = (
        "Singular values of the data. In the optimal network the threshold (dashed line) is "
        "subtracted from each of them; directions with a singular value below the threshold are "
        "not used."
    )
    figure = figures.shrinkage(values, float(model.threshold_))
    return Plot.of("shrinkage", figure, caption, numbers)


def _path(table: Table, width: int, clock: Clock) -> Plot:
    """Return a plot of rank and error of the optimal network against the dropout rate.

    `width` is the number of hidden units.
    """
    rates = np.linspace(0.0, 0.98, 99)
    with clock(f"dropout: the optimum at {len(rates)} dropout rates"):
        problem = LinearProblem.autoencoder(moment_of(table))
        path = regularization_path(problem, width, rates)
    figure = figures.panels(
        {
            "Rank of the optimal network": (path.dropout, path.rank),
            "Reconstruction error": (path.dropout, path.error),
        },
        xlabel="dropout rate",
    )
    numbers = {
        "dropout": path.dropout.tolist(),
        "rank": path.rank.tolist(),
        "threshold": path.threshold.tolist(),
        "error": path.error.tolist(),
        "objective": path.objective.tolist(),
    }
    caption = (
        "Rank and reconstruction error of the optimal network at each dropout rate, all computed "
        "from one singular value decomposition."
    )
    return Plot.of("dropout-path", figure, caption, numbers)


def _units(table: Table, shape: tuple[int, int], model: Any) -> Plot:
    """Return a plot of the outgoing weights of each hidden unit as images."""
    units = np.asarray(model.left_).T
    numbers = {"unit": list(range(len(units)))} | {
        name: column.tolist() for name, column in zip(table.columns, units.T, strict=True)
    }
    caption = (
        "Outgoing weights of each hidden unit; red is positive, white is zero, blue is negative. "
        "Unlike principal components they have no order: at the optimum all units are equally "
        "important."
    )
    figure = figures.image_grid(units.reshape(-1, *shape), signed=True)
    return Plot.of("hidden-units", figure, caption, numbers, keeps_colours=True)


def _regression(table: Table, clock: Clock) -> list[Block]:
    """Return the parts on the regression of the targets with a cross-validated dropout rate."""
    names = ", ".join(table.target_names)
    with clock("dropout: exact regression"):
        model = DropoutRegressor(dropout="cv").fit(table.values, table.target)
    score = model.score(table.values, table.target)
    return [
        Prose(
            f"The regression of {names} on the other columns, with the dropout rate chosen by "
            f"cross-validation, explains {score:.1%} of the variance of the "
            f"{'training' if table.moment is None else 'sampled'} rows."
        ),
        Card("The optimal dropout regression", model.certificate_, unfolded=False),
    ]


SECTION = Section("dropout", "The optimum of dropout training", build)
