"""The commands `lucidae fit …` (extra `cli`): a fit, its certificate, and the files it leaves."""

from __future__ import annotations

from collections.abc import Sequence
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
from lucidae.cli.console import note, tell, tell_certificate, tell_written, told_warnings, waiting
from lucidae.io.tables import READERS, Sheet, Table, read_table, read_target, write_sheet

__all__ = ["fit"]

fit = typer.Typer(help="Fit an estimator to a file; save the model and what it makes of the data.")


def number_or_word(text: str) -> Any:
    """Return the whole number, the number or the word that a user typed."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


File = Annotated[Path, typer.Argument(help="CSV, NPY, NPZ or Parquet: rows are samples.")]
Out = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Start of the files' names, or a folder/; default: FILE's name and the family.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target", help="A column of FILE, may be given again; or a second file with as many rows."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the first weights, batches and masks.")]


@fit.command()
def linear(
    file: File,
    components: Annotated[
        str | None,
        typer.Option(help="How many, or the share of variance, as 0.95; default: the rank."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Objective or learning rule; 'lucidae list' names them.")
    ] = "rag",
    solver: Annotated[str, typer.Option(help="auto, exact, gradient or stochastic.")] = "auto",
    whiten: Annotated[bool, typer.Option("--whiten", help="Codes of variance one.")] = False,
    seed: Seed = 0,
    out: Out = "",
) -> None:
    """Find ordered principal components; save the codes."""
    number = None if components is None else number_or_word(components)
    model = LinearAutoencoder(
        number, method=method, solver=solver, whiten=whiten, random_state=seed
    )
    complete(model, read_table(file), file, "linear", out)


@fit.command()
def dropout(
    file: File,
    target: Targets = None,
    components: Annotated[int | None, typer.Option(help="Hidden units; default: all.")] = None,
    rate: Annotated[
        str,
        typer.Option("--dropout", help="Probability of dropping; with a target also 'cv'."),
    ] = "0.5",
    solver: Annotated[str, typer.Option(help="exact or sgd.")] = "exact",
    seed: Seed = 0,
    out: Out = "",
) -> None:
    """Find the network dropout training converges to: a regression, or an autoencoder."""
    table = with_target(read_table(file), target or ())
    kind = DropoutAutoencoder if table.target is None else DropoutRegressor
    model = kind(components, dropout=number_or_word(rate), solver=solver, random_state=seed)
    complete(model, table, file, "dropout", out)


@fit.command()
def sparse(
    file: File,
    target: Targets = None,
    noise_variance: Annotated[
        str, typer.Option(help="A number, auto, learn (evidence) or cv (held-out rows).")
    ] = "auto",
    posterior: Annotated[str, typer.Option(help="full, diagonal or point.")] = "full",
    solver: Annotated[str, typer.Option(help="auto, mm, em, mackay or coordinate.")] = "auto",
    out: Out = "",
) -> None:
    """Find the few columns that explain the target; save coefficients and predictions."""
    if not target:
        raise ValueError(
            "A sparse fit explains a target by the other columns: name it by --target COLUMN, or "
            "give a second file by --target FILE."
        )
    gamma = number_or_word(noise_variance)
    model = SparseVAE(noise_variance=gamma, posterior=posterior, solver=solver)
    complete(model, with_target(read_table(file), target), file, "sparse", out)


def with_target(table: Table, target: Sequence[str]) -> Table:
    """Return the table with its responses: columns of its own, or those of a second file."""
    if not target:
        return table
    name = target[0]
    if len(target) > 1 or name in table.columns or Path(name).suffix.lower() not in READERS:
        return table.with_target(target)
    responses = read_target(name)
    if len(responses.values) != len(table.values):
        raise ValueError(
            f"{responses.name!r} has {len(responses.values)} rows, but {table.name!r} has "
            f"{len(table.values)}; every sample needs its target."
        )
    return replace(table, target=responses.values, target_names=responses.columns)


def complete(model: Any, table: Table, file: Path, family: str, out: str) -> None:
    """Fit, tell and save."""
    y = table.target
    if y is not None and y.shape[1] == 1:
        y = y[:, 0]  # scikit-learn's shape for one target
    with waiting(f"Fitting {type(model).__name__} to {table.name}"), told_warnings():
        model.fit(table.values, y)
        certificate = certify(model, table.values, y)
        sheets = sheets_of(model, table)
    if table.left_out:
        note(f"Left out, no numbers: {', '.join(table.left_out)}.")
    tell_certificate(certificate)
    if isinstance(model, SparseVAE):
        tell(f"Support: {_some([table.columns[index] for index in model.support_])}")
    prefix = prefix_of(out, f"{file.stem}-{family}")
    written = Path(f"{prefix}-model.npz")
    save(model, written)
    tell_written(written)
    for what, sheet in sheets.items():
        tell_written(write_sheet(Path(f"{prefix}-{what}"), sheet, file.suffix))


def prefix_of(out: str, name: str) -> Path:
    """Return how the files' names start: `out`, or `name` in the folder that it is."""
    is_folder = out.endswith("/") or Path(out).is_dir()
    return Path(out) / name if is_folder else Path(out)


def _some(names: Sequence[str], most: int = 12) -> str:
    """Return names for people: the first of them, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no column") + rest


def sheets_of(model: Any, table: Table) -> dict[str, Sheet]:
    """Return what a fit makes of its data, by name: codes, or predictions and coefficients."""
    if table.target is None:
        names = tuple(map(str, model.get_feature_names_out()))
        return {"codes": Sheet(model.transform(table.values), names)}
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
