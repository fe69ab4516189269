"""The dropout family: the autoencoder that dropout training converges to."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.dropout import DropoutAutoencoder, DropoutRegressor, LinearProblem, regularization_path
from lucidae.io.tables import Table
from lucidae.moments import SecondMoment
from lucidae.report import figures
from lucidae.report.blocks import Block, Card, Clock, Plot, Prose, Section
from lucidae.report.sections.common import count

WIDTH = 20
RATE = 0.5


def build(table: Table, clock: Clock) -> list[Block]:
    """Fit the optimum, follow it along the dropout rate, show its units."""
    width = min(WIDTH, len(table.columns))
    with clock(f"dropout: exact autoencoder of width {width}"):
        model = DropoutAutoencoder(width, dropout=RATE).fit(table.values)
    blocks: list[Block] = [
        Prose(
            f"Train a linear autoencoder with {count(width, 'hidden unit')}, each dropped with "
            f"probability {RATE:g}, for as long as you like: it ends at a network that one "
            "singular value decomposition gives at once. Dropout takes the same threshold from "
            f"every singular value, leaves rank {model.rank_}, and spreads the rest evenly over "
            "the units (Mianjy et al. 2018)."
        ),
        _shrinkage(model),
        _path(table, width, clock),
    ]
    if table.image_shape is not None:
        blocks.append(_units(table, table.image_shape, model))
    blocks.append(Card("The exact dropout autoencoder", model.certificate_))
    if table.target is not None:
        blocks += _regression(table, clock)
    return blocks


def _shrinkage(model: Any) -> Plot:
    values = np.asarray(model.singular_values_)
    numbers = {
        "direction": list(range(1, len(values) + 1)),
        "singular value": values.tolist(),
        "threshold": [float(model.threshold_)] * len(values),
    }
    caption = (
        "Singular values of the data. The optimal network keeps what rises above the shaded band; "
        "a direction that ends inside it is gone."
    )
    figure = figures.shrinkage(values, float(model.threshold_))
    return Plot.of("shrinkage", figure, caption, numbers)


def _path(table: Table, width: int, clock: Clock) -> Plot:
    rates = np.linspace(0.0, 0.98, 99)
    with clock(f"dropout: the optimum at {len(rates)} dropout rates"):
        problem = LinearProblem.autoencoder(SecondMoment.of(table.values))
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
    caption = "What each dropout rate would lead to, all from one decomposition."
    return Plot.of("dropout-path", figure, caption, numbers)


def _units(table: Table, shape: tuple[int, int], model: Any) -> Plot:
    units = np.asarray(model.left_).T
    numbers = {"unit": list(range(1, len(units) + 1))} | {
        name: column.tolist() for name, column in zip(table.columns, units.T, strict=True)
    }
    caption = (
        "What each hidden unit draws. Unlike principal components they come in no order: at the "
        "optimum every unit matters as much as every other, so that any of them can be dropped."
    )
    figure = figures.pictures(units.reshape(-1, *shape), signed=True)
    return Plot.of("hidden-units", figure, caption, numbers)


def _regression(table: Table, clock: Clock) -> list[Block]:
    names = ", ".join(table.target_names)
    with clock("dropout: exact regression"):
        model = DropoutRegressor(dropout="cv").fit(table.values, table.target)
    score = model.score(table.values, table.target)
    return [
        Prose(
            f"As a regression of {names} on the other columns, its dropout rate chosen by "
            f"cross-validation, the exact network explains {score:.1%} of the variance of the "
            "rows that it was fitted to."
        ),
        Card("The exact dropout regression", model.certificate_, unfolded=False),
    ]


SECTION = Section("dropout", "Dropout, solved exactly", build)
