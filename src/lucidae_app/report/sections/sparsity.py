"""Section of the report on sparsity: the few columns that explain the targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.data.tables import Matrix, Table, default_names
from lucidae.datasets import make_sparse_regression
from lucidae.sparsity import SparseVAE
from lucidae_app.report import figures
from lucidae_app.report.blocks import (
    Block,
    Card,
    Clock,
    Facts,
    Note,
    Plot,
    Prose,
    Section,
    count,
    without_convergence_warnings,
)


def build(table: Table, clock: Clock) -> list[Block]:
    """Return the parts of the section: the columns that explain the targets of the table.

    If the table has no targets, the section is about generated data.
    """
    if table.target is not None:
        return _on_targets(table, table.target, clock)
    return _on_generated_data(table, clock)


def _on_targets(table: Table, target: Matrix, clock: Clock) -> list[Block]:
    """Return the parts on a sparse regression of the targets on the columns of the table."""
    model = _fitted(table.values, target, clock)
    found = [table.columns[index] for index in model.support_]
    listed = ", ".join(found[:12]) + (", …" if len(found) > 12 else "")
    return [
        Prose(
            f"Which columns explain {', '.join(table.target_names)}? The variational autoencoder "
            "with a full posterior covariance (Wipf 2023) estimates the relevance (prior variance "
            "of the coefficients) of all columns jointly and selects those that pass a test of "
            f"significance: {listed or 'none of them'}."
        ),
        _relevances(model, table.columns, None),
        Card("The sparse fit", model.certificate_),
    ]


def _on_generated_data(table: Table, clock: Clock) -> list[Block]:
    """Return the parts on a sparse regression of generated data, whose true columns are known."""
    problem = make_sparse_regression(snr_db=20.0, random_state=0)
    model = _fitted(problem.dictionary, problem.responses, clock)
    rows, columns = problem.dictionary.shape
    truth, found = set(problem.support.tolist()), set(model.support_.tolist())
    remark = Note(
        f"No column of {table.name} was given as a target, so this section uses generated data; "
        "use --target NAME to explain a column of your own."
    )
    return [
        Prose(
            f"{problem.responses.shape[1]} responses are combinations of the same {len(truth)} of "
            f"{columns} columns with {rows} rows, plus noise of unknown variance at a "
            "signal-to-noise ratio of 20 dB. The variational autoencoder with a full posterior "
            "covariance (Wipf 2023) estimates which columns they are."
        ),
        remark,
        Facts(
            (
                (f"{len(found & truth)} of {len(truth)}", "columns found"),
                (f"{len(found - truth)}", "spurious columns"),
                (f"{model.noise_variance_:.2g}", "noise variance, estimated"),
                (f"{problem.noise_variance:.2g}", "noise variance, true"),
            )
        ),
        _relevances(model, default_names(columns), problem.support),
        Card("The sparse fit", model.certificate_),
    ]


def _fitted(dictionary: Matrix, responses: Matrix, clock: Clock) -> Any:
    """Return a `SparseVAE` fitted to a dictionary and responses; the clock measures the time."""
    sizes = count(dictionary.shape[1], "column"), count(responses.shape[1], "response")
    with (
        clock(f"sparsity: {', '.join(sizes)}"),
        without_convergence_warnings(),
    ):
        return SparseVAE(random_state=0).fit(dictionary, responses)


def _relevances(model: Any, names: tuple[str, ...], truth: Matrix | None) -> Plot:
    """Return a plot of the relevance of each column.

    `truth` contains the indices of the columns from which the data were generated, or is None if
    they are not known.
    """
    values = np.asarray(model.relevance_)
    support = np.asarray(model.support_, dtype=int)
    numbers = {
        "column": list(names),
        "relevance": values.tolist(),
        "significant": np.isin(np.arange(len(values)), support).tolist(),
    }
    caption = (
        "Relevance of each column: the variance of its coefficients under the fitted prior. Small "
        "positive relevances are due to noise and fail the test of significance."
    )
    figure = figures.relevances(values, support, names, truth)
    return Plot.of("relevance", figure, caption, numbers)


SECTION = Section("sparsity", "Optimal sparse representations", build)
