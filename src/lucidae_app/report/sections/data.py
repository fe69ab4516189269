"""Section of the report on the data: size, remarks, sample images and spectrum."""

from __future__ import annotations

import numpy as np

from lucidae.data.tables import Table, some
from lucidae.moments import SecondMoment
from lucidae_app.report import figures
from lucidae_app.report.blocks import Block, Clock, Facts, Note, Plot, Prose, Section, count

EXPLAINED = 0.9
"""Share of the variance that the components in the report explain together."""

SAMPLE = 20
"""Number of rows that are drawn as images."""

UNEVEN = 100.0
"""Ratio of the largest to the smallest standard deviation of the columns above which the report
advises to standardise them."""

LARGEST_WIDTH = 4000
"""Largest number of columns that the report accepts; the spectrum of more would take minutes."""


def build(table: Table, clock: Clock) -> list[Block]:
    """Return the parts of the section: sizes, remarks, sample images and the spectrum."""
    if len(table.columns) > LARGEST_WIDTH:
        raise ValueError(
            f"{table.name!r} has {len(table.columns):,} columns; the report accepts up to "
            f"{LARGEST_WIDTH:,}. Select columns, or use lucidae.LinearAutoencoder in Python."
        )
    with clock("covariance of the columns"):
        moment = moment_of(table)
    with clock("its spectrum"):
        variances, _ = moment.spectrum()
    shares = variances / max(moment.trace, np.finfo(float).tiny)
    chosen = int(np.searchsorted(np.cumsum(shares), EXPLAINED)) + 1
    rank = int(np.sum(variances > variances[0] * np.finfo(float).eps * len(variances)))
    if rank == 0:
        raise ValueError(f"All rows of {table.name!r} are equal; the report needs data that vary.")
    blocks: list[Block] = [
        Facts(
            (
                (f"{table.n_rows:,}", "rows"),
                (f"{moment.n_features:,}", "columns"),
                (f"{rank:,}", "numerical rank"),
                (f"{min(chosen, rank):,}", f"components for {EXPLAINED:.0%} of the variance"),
            )
        )
    ]
    blocks += _remarks(table, moment)
    if table.image_shape is not None:
        blocks.append(_sample(table, table.image_shape))
    blocks.append(_spectrum(variances[:rank], shares[:rank], min(chosen, rank)))
    return blocks


def moment_of(table: Table) -> SecondMoment:
    """Return the second moment of all rows of a table."""
    return SecondMoment.of(table.values) if table.moment is None else table.moment


def _remarks(table: Table, moment: SecondMoment) -> list[Block]:
    """Return paragraphs on the header, and on columns left out, constant or of different scale."""
    remarks: list[Block] = []
    if table.header:
        remarks.append(Prose(f"How the file was read: {table.header}."))
    if table.left_out:
        names = some([f"{name} ({why})" for name, why in table.left_out.items()], 8)
        remarks.append(Note(f"Columns left out: {names}."))
    if table.moment is not None:
        remarks.append(
            Note(
                f"The file was read once, in blocks. What is computed from the covariance of the "
                f"columns uses all {table.n_rows:,} rows; what needs the rows themselves uses "
                f"{len(table.values):,} of them, evenly spaced."
            )
        )
    spread = np.sqrt(np.diag(moment.covariance))
    constant = int(np.sum(spread == 0))
    if constant:
        subject = "One column is" if constant == 1 else f"{constant} columns are"
        remarks.append(Prose(f"{subject} constant and cannot contribute to any component."))
    varying = spread[spread > 0]
    if table.image_shape is None and len(varying) and varying.max() > UNEVEN * varying.min():
        remarks.append(
            Note(
                f"The standard deviations of the columns range from {varying.min():.3g} to "
                f"{varying.max():.3g}, so that the largest columns dominate the components. If the "
                "units are arbitrary, use --standardize, or a StandardScaler in a pipeline."
            )
        )
    return remarks


def _sample(table: Table, shape: tuple[int, int]) -> Plot:
    """Return a plot of evenly spaced rows as images of the given height and width."""
    rows = np.linspace(0, len(table.values) - 1, num=min(SAMPLE, len(table.values)), dtype=int)
    images = table.values[rows].reshape(-1, *shape)
    numbers = {"row": rows.tolist()} | {
        name: column.tolist()
        for name, column in zip(table.columns, table.values[rows].T, strict=True)
    }
    caption = (
        f"{len(rows)} evenly spaced rows of the data, as images of {shape[0]} × {shape[1]} pixels."
    )
    return Plot.of("sample", figures.image_grid(images), caption, numbers)


def _spectrum(variances: np.ndarray, shares: np.ndarray, chosen: int) -> Plot:
    """Return a plot of the eigenvalues of the covariance, with `chosen` components marked."""
    numbers = {
        "component": list(range(len(variances))),
        "variance": variances.tolist(),
        "share": shares.tolist(),
        "cumulative share": np.cumsum(shares).tolist(),
    }
    caption = (
        "Eigenvalues of the covariance matrix of the columns: the variances of the principal "
        "components. They determine the minimum of the loss of a linear autoencoder and the speed "
        "of its training. The dashed lines mark the "
        f"{count(chosen, 'component')} that {'explains' if chosen == 1 else 'explain'} "
        f"{EXPLAINED:.0%} of the variance. Components are numbered from 0, as in components_."
    )
    return Plot.of("spectrum", figures.spectrum(variances, shares, chosen), caption, numbers)


SECTION = Section("data", "The data", build)
