"""The sparsity family: which few columns explain the responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucidae.datasets import make_sparse_regression
from lucidae.io.tables import Matrix, Table, default_names
from lucidae.report import figures
from lucidae.report.blocks import Block, Card, Clock, Facts, Note, Plot, Prose, Section
from lucidae.report.sections.common import quietly
from lucidae.sparsity import SparseVAE


def build(table: Table, clock: Clock) -> list[Block]:
    """Explain the table's targets, or those of a seeded problem where it has none."""
    if table.target is not None:
        return _on_targets(table, table.target, clock)
    return _on_a_seeded_problem(table, clock)


def _on_targets(table: Table, target: Matrix, clock: Clock) -> list[Block]:
    model = _fitted(table.values, target, clock)
    found = [table.columns[index] for index in model.support_]
    listed = ", ".join(found[:12]) + (", …" if len(found) > 12 else "")
    return [
        Prose(
            f"Which columns explain {', '.join(table.target_names)}? The full-covariance VAE "
            "weighs all of them at once (Wipf 2023) and keeps those whose relevance passes a test "
            f"of significance: {listed or 'none of them'}."
        ),
        _relevances(model, table.columns, None),
        Card("The sparse fit", model.certificate_),
    ]


def _on_a_seeded_problem(table: Table, clock: Clock) -> list[Block]:
    problem = make_sparse_regression(snr_db=20.0, random_state=0)
    model = _fitted(problem.dictionary, problem.responses, clock)
    rows, columns = problem.dictionary.shape
    truth, found = set(problem.support.tolist()), set(model.support_.tolist())
    remark = Note(
        f"No column of {table.name} was named as a target, so this chapter shows a seeded problem; "
        "--target NAME explains a column of yours."
    )
    return [
        Prose(
            f"{problem.responses.shape[1]} responses were mixed from {len(truth)} of {columns} "
            f"columns, seen through {rows} rows and 20 dB of noise of unknown variance. The "
            "full-covariance VAE (Wipf 2023) looks for those columns."
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
    with (
        clock(f"sparsity: {dictionary.shape[1]} columns, {responses.shape[1]} responses"),
        quietly(),
    ):
        return SparseVAE(random_state=0).fit(dictionary, responses)


def _relevances(model: Any, names: tuple[str, ...], truth: Matrix | None) -> Plot:
    values = np.asarray(model.relevance_)
    support = np.asarray(model.support_, dtype=int)
    numbers = {
        "column": list(names),
        "relevance": values.tolist(),
        "significant": np.isin(np.arange(len(values)), support).tolist(),
    }
    caption = (
        "Relevance of each column: the variance of its coefficients under the fitted prior. Small "
        "positive ones are what noise leaves; the test of significance tells them apart."
    )
    figure = figures.relevances(values, support, names, truth)
    return Plot.of("relevance", figure, caption, numbers)


SECTION = Section("sparsity", "Optimal sparse representations", build)
