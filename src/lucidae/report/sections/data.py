"""First chapter: what was read, and how its variance is spread."""

from __future__ import annotations

import numpy as np

from lucidae.io.tables import Table
from lucidae.moments import SecondMoment
from lucidae.report import figures
from lucidae.report.blocks import Block, Clock, Facts, Note, Plot, Prose, Section

KEPT = 0.9
SHOWN = 20
UNEVEN = 100.0
"""Ratio of the columns' standard deviations from which the report advises to standardise."""


LARGEST_WIDTH = 4000
"""Beyond this many columns the full covariance of the page would take minutes."""


def build(table: Table, clock: Clock) -> list[Block]:
    """Describe the table and draw its spectrum."""
    if len(table.columns) > LARGEST_WIDTH:
        raise ValueError(
            f"{table.name!r} has {len(table.columns):,} columns; the report takes up to "
            f"{LARGEST_WIDTH:,}. Choose columns, or use lucidae.LinearAutoencoder in Python."
        )
    with clock("second moment of the rows"):
        moment = SecondMoment.of(table.values)
    with clock("its spectrum"):
        variances, _ = moment.spectrum()
    shares = variances / max(moment.trace, np.finfo(float).tiny)
    chosen = int(np.searchsorted(np.cumsum(shares), KEPT)) + 1
    rank = int(np.sum(variances > variances[0] * np.finfo(float).eps * len(variances)))
    if rank == 0:
        raise ValueError(f"{table.name!r} never changes from row to row; there is nothing to find.")
    blocks: list[Block] = [
        Facts(
            (
                (f"{len(table.values):,}", "rows"),
                (f"{moment.n_features:,}", "columns"),
                (f"{rank:,}", "numerical rank"),
                (f"{min(chosen, rank):,}", f"components for {KEPT:.0%} of the variance"),
            )
        )
    ]
    blocks += _remarks(table, moment)
    if table.image_shape is not None:
        blocks.append(_sample(table, table.image_shape))
    blocks.append(_spectrum(variances[:rank], shares[:rank], min(chosen, rank)))
    return blocks


def _remarks(table: Table, moment: SecondMoment) -> list[Block]:
    """Say what a reader of the data would want to know before any fit."""
    remarks: list[Block] = []
    if table.left_out:
        names = ", ".join(table.left_out[:8]) + (", …" if len(table.left_out) > 8 else "")
        remarks.append(Note(f"Left out, because they hold no numbers: {names}."))
    spread = np.sqrt(np.diag(moment.covariance))
    constant = int(np.sum(spread == 0))
    if constant:
        subject = "1 column never changes" if constant == 1 else f"{constant} columns never change"
        remarks.append(Prose(f"{subject}: no variance, nothing to learn."))
    moving = spread[spread > 0]
    if table.image_shape is None and len(moving) and moving.max() > UNEVEN * moving.min():
        remarks.append(
            Note(
                f"The columns' standard deviations range from {moving.min():.3g} to "
                f"{moving.max():.3g}: the largest columns will dominate. Unless the units "
                "are meant to count, give --standardize, or a StandardScaler in a pipeline."
            )
        )
    return remarks


def _sample(table: Table, shape: tuple[int, int]) -> Plot:
    rows = np.linspace(0, len(table.values) - 1, num=min(SHOWN, len(table.values)), dtype=int)
    images = table.values[rows].reshape(-1, *shape)
    numbers = {"row": (rows + 1).tolist()} | {
        name: column.tolist()
        for name, column in zip(table.columns, table.values[rows].T, strict=True)
    }
    caption = f"{len(rows)} of the rows, evenly spaced, as pictures of {shape[0]} × {shape[1]}."
    return Plot.of("sample", figures.pictures(images), caption, numbers)


def _spectrum(variances: np.ndarray, shares: np.ndarray, chosen: int) -> Plot:
    numbers = {
        "component": list(range(1, len(variances) + 1)),
        "variance": variances.tolist(),
        "share": shares.tolist(),
        "cumulative share": np.cumsum(shares).tolist(),
    }
    caption = (
        "The spectrum of the covariance. Everything that a linear autoencoder can reach, and how "
        f"fast training gets there, is decided by this curve; the dashed line marks {KEPT:.0%}."
    )
    return Plot.of("spectrum", figures.spectrum(variances, shares, chosen), caption, numbers)


SECTION = Section("data", "The data", build)
