"""The commands `lucidae fit linear|dropout|sparse` (extra `cli`)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    certify,
    save,
)
from lucidae.cli.console import (
    note,
    print_certificate,
    print_line,
    print_written,
    printed_warnings,
    spinner,
)
from lucidae.cli.streams import Scheduler, cluster, streamed_table
from lucidae.data import loaded
from lucidae.io.tables import READERS, Sheet, Table, read_table, read_target, write_sheet

__all__ = ["fit"]

fit = typer.Typer(help="Fit an estimator to a file; save the model and its codes or predictions.")


def number_or_word(text: str) -> Any:
    """Return an argument as an integer, a float or a string, whichever fits first."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


File = Annotated[Path, typer.Argument(help="CSV, NPY, NPZ or Parquet, one sample per row.")]
Out = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Prefix of the output files, or a folder that ends in /; default: the name of FILE "
        "and the family, such as my-data-linear. Existing files are replaced.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="A column of FILE (repeat the option for several), or a second file of targets.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the initial weights, batches and masks.")]


@fit.command()
def linear(
    file: File,
    components: Annotated[
        str | None,
        typer.Option(
            help="Number of components, or share of the variance such as 0.95; default: the rank."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Objective or learning rule; see 'lucidae list'.")
    ] = "rag",
    solver: Annotated[str, typer.Option(help="auto, exact, gradient or stochastic.")] = "auto",
    whiten: Annotated[
        bool, typer.Option("--whiten", help="Scale the codes to variance one.")
    ] = False,
    seed: Seed = 0,
    out: Out = "",
    scheduler: Scheduler = None,
) -> None:
    """Compute ordered principal components; save the model and the codes."""
    number = None if components is None else number_or_word(components)
    model = LinearAutoencoder(
        number, method=method, solver=solver, whiten=whiten, random_state=seed
    )
    with cluster(scheduler):
        table = streamed_table(file, scheduler) or read_table(file)
        complete(model, table, file, "linear", out)


@fit.command()
def dropout(
    file: File,
    target: Targets = None,
    components: Annotated[
        int | None,
        typer.Option(
            help="Number of hidden units; default: number of features, or of targets if fewer."
        ),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            "--dropout",
            help="Probability of dropping a unit; with a target, 'cv' for cross-validation.",
        ),
    ] = "0.5",
    solver: Annotated[str, typer.Option(help="exact or sgd.")] = "exact",
    seed: Seed = 0,
    out: Out = "",
    scheduler: Scheduler = None,
) -> None:
    """Compute the optimum of dropout training: a regression with --target, else an autoencoder."""
    with cluster(scheduler):
        streamed = None if target else streamed_table(file, scheduler)
        table = streamed or with_target(read_table(file), target or ())
        kind = DropoutAutoencoder if table.target is None else DropoutRegressor
        model = kind(components, dropout=number_or_word(rate), solver=solver, random_state=seed)
        complete(model, table, file, "dropout", out)


@fit.command()
def sparse(
    file: File,
    target: Targets = None,
    noise_variance: Annotated[
        str, typer.Option(help="A number, auto, learn (by evidence) or cv (by cross-validation).")
    ] = "auto",
    posterior: Annotated[str, typer.Option(help="full, diagonal or point.")] = "full",
    solver: Annotated[str, typer.Option(help="auto, mm, em, mackay or coordinate.")] = "auto",
    out: Out = "",
) -> None:
    """Select the columns that explain the target; save coefficients and predictions."""
    if not target:
        raise ValueError(
            "A sparse fit needs a target to explain: give --target COLUMN, or a second file by "
            "--target FILE."
        )
    gamma = number_or_word(noise_variance)
    model = SparseVAE(noise_variance=gamma, posterior=posterior, solver=solver)
    complete(model, with_target(read_table(file), target), file, "sparse", out)


def with_target(table: Table, target: Sequence[str]) -> Table:
    """Return the table with its responses: columns of its own, or all columns of a second file."""
    if not target:
        return table
    name = target[0]
    if len(target) > 1 or name in table.columns or Path(name).suffix.lower() not in READERS:
        return table.with_target(target)
    responses = read_target(name)
    if len(responses.values) != len(table.values):
        raise ValueError(
            f"{responses.name!r} has {len(responses.values)} rows, but {table.name!r} has "
            f"{len(table.values)}; give one row of the target for each sample."
        )
    return replace(table, target=responses.values, target_names=responses.columns)


def complete(model: Any, table: Table, file: Path, family: str, out: str) -> None:
    """Fit the model, print its certificate, and save the model and its output tables."""
    y = table.target
    if y is not None and y.shape[1] == 1:
        y = y[:, 0]  # scikit-learn expects a vector for one target
    streamed = not isinstance(table.values, np.ndarray)
    if streamed:
        model.set_params(verbose=True)  # its progress bar replaces the spinner
    title = f"Fitting {type(model).__name__} to {table.name}"
    with nullcontext() if streamed else spinner(title), printed_warnings():
        model.fit(table.values, y)
        # The certificate of a streamed fit is that of its moment: the file is not read again.
        certificate = certify(model) if streamed else certify(model, table.values, y)
        sheets = sheets_of(model, table)
    if streamed:
        model.set_params(verbose=False)
    if table.left_out:
        note(
            "Columns left out because not all their entries are numbers: "
            f"{', '.join(table.left_out)}."
        )
    print_certificate(certificate)
    if isinstance(model, SparseVAE):
        print_line(f"Support: {_some([table.columns[index] for index in model.support_])}")
    prefix = prefix_of(out, f"{file.stem}-{family}")
    written = Path(f"{prefix}-model.npz")
    save(model, written)
    print_written(written)
    for what, sheet in sheets.items():
        print_written(write_sheet(Path(f"{prefix}-{what}"), sheet, file.suffix))


def prefix_of(out: str, name: str) -> Path:
    """Return the prefix of the output files: `out`, or `name` in `out` if `out` is a folder."""
    is_folder = out.endswith("/") or Path(out).is_dir()
    return Path(out) / name if is_folder else Path(out)


def _some(names: Sequence[str], most: int = 12) -> str:
    """Return the first names as text, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no column") + rest


def sheets_of(model: Any, table: Table) -> dict[str, Sheet]:
    """Return codes if the table has no target, else predictions and coefficients, by name."""
    if table.target is None:
        names = tuple(map(str, model.get_feature_names_out()))
        return {"codes": Sheet(loaded(model.transform(table.values)), names)}
    predictions = model.predict(table.values).reshape(len(table.values), -1)
    columns, values = table.target_names, np.atleast_2d(model.coef_).T
    if isinstance(model, SparseVAE):
        chosen = np.isin(np.arange(len(values)), model.support_)
        values = np.column_stack([chosen, model.relevance_, values])
        columns = ("in support", "relevance", *columns)
    return {
        "predictions": Sheet(predictions, table.target_names),
        "coefficients": Sheet(values, columns, table.columns, "feature"),
    }
