"""The commands `lucidae fit linear|dropout|sparse` (extra `cli`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.pipeline import Pipeline, make_pipeline

from lucidae import (
    DropoutAutoencoder,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    certify,
)
from lucidae.counting import CRITERIA
from lucidae.models import Source, save_from
from lucidae.rows import ReadInterrupted
from lucidae.rows.files import FILES, blocks_of_file, read_table, target_options
from lucidae.rows.kinds import in_memory, named_rows
from lucidae.rows.tables import some
from lucidae_app.console import (
    note,
    print_certificate,
    print_line,
    print_written,
    printed_warnings,
    timed,
)
from lucidae_app.files import (
    Force,
    Sheet,
    check_results,
    sheet_path,
    write_sheet,
)
from lucidae_app.preparation import Preparation, Prepared, on_table, uneven_scales
from lucidae_app.streams import (
    Scheduler,
    SplitRows,
    cluster,
    n_rows_of,
    results_of,
    streamed_table,
)

NOISE = ("cv", "cv_1se", "learn", "auto")
"""Rules that choose the noise variance."""

fit = typer.Typer(help="Fit an estimator to a file; save the model and its codes or predictions.")


def number_of(text: str) -> float:
    """Return the number that a text contains; NaN if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def components_of(text: str | None) -> int | float | str | tuple[str, float] | None:
    """Return the value of ``--components``: a number, a share of the variance or a criterion.

    The criterion ``hard_threshold`` can be followed by a colon and the known variance of the noise.
    """
    if text is None:
        return None
    name, colon, variance = text.replace("-", "_").partition(":")
    if name in CRITERIA and not colon:
        return name
    if name == "hard_threshold" and 0 < number_of(variance) < math.inf:
        return name, number_of(variance)
    number = number_of(text)
    if number >= 1 and number.is_integer():
        return int(number)
    if 0 < number < 1:
        return number
    raise ValueError(
        f"--components {text} was given, expected an integer of at least 1, a share of the "
        f"variance strictly between 0 and 1, such as 0.95, one of {', '.join(CRITERIA)}, or "
        "hard_threshold:V with the variance V of the noise, a number above 0."
    )


def number_or_word(
    option: str, text: str, words: Sequence[str], allowed: Callable[[float], bool], expected: str
) -> float | str:
    """Return the value of an option that takes an `allowed` number or one of some words."""
    if text in words:
        return text
    number = number_of(text)
    if allowed(number):
        return number
    raise ValueError(f"--{option} {text} was given, expected {expected}.")


File = Annotated[
    Path, typer.Argument(help="Data file (CSV, NPY, NPZ or Parquet), one sample per row.")
]
Out = Annotated[
    str,
    typer.Option(
        metavar="PREFIX",
        help="Prefix of the output files, or a folder that ends in /; by default the name of FILE "
        "and of the command, such as my-data-linear.",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="The column of FILE to be predicted, by name or 0-based index (repeat the option for "
        "several), or a second file that contains the targets.",
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed of the initial weights, batches and dropout masks.")
]


@fit.command()
@on_table
def linear(
    chosen: Preparation,
    file: File,
    components: Annotated[
        str | None,
        typer.Option(
            help="Number of components, or share of the variance to be explained, such as 0.95, "
            "or the name of a criterion that chooses the number: mle, parallel_analysis, "
            "hard_threshold, or hard_threshold:V for noise of the known variance V; by "
            "default the rank of the data."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Objective or learning rule; 'lucidae list' shows all methods.")
    ] = "rag",
    solver: Annotated[
        str, typer.Option(help="Solver: auto, exact, gradient or stochastic.")
    ] = "auto",
    whiten: Annotated[
        bool, typer.Option("--whiten", help="Scale the codes to variance one.")
    ] = False,
    seed: Seed = 0,
    out: Out = "",
    force: Force = False,
    scheduler: Scheduler = None,
) -> None:
    """Compute ordered principal components; save model, codes and components."""
    model = LinearAutoencoder(
        components_of(components),
        method=method,
        solver=solver,
        whiten=whiten,
        handle_missing="em" if chosen.missing == "em" else "error",
        random_state=seed,
    )
    job = Job(file, "linear", out, force, chosen)
    with cluster(scheduler):
        complete(model, job, job.read(scheduler))


@fit.command()
@on_table
def dropout(
    chosen: Preparation,
    file: File,
    target: Targets = None,
    components: Annotated[
        int | None,
        typer.Option(
            help="Number of hidden units; by default the number of features, or the number of "
            "targets if that is smaller."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--dropout",
            help="Probability of dropping a unit, at least 0 and less than 1, by default 0.5; with "
            "a target also cv (cross-validation) or cv_1se (with the rule of one standard error).",
            show_default=False,
        ),
    ] = None,
    solver: Annotated[str, typer.Option(help="Solver: exact (closed form) or sgd.")] = "exact",
    seed: Seed = 0,
    out: Out = "",
    force: Force = False,
    scheduler: Scheduler = None,
) -> None:
    """Compute the optimum of dropout training.

    With --target it is a regression on the targets, otherwise an autoencoder.
    """
    job = Job(file, "dropout", out, force, chosen)
    kind: Any = DropoutRegressor if target else DropoutAutoencoder
    probability = number_or_word(
        "dropout", rate or "0.5", ("cv", "cv_1se") if target else (), lambda p: 0 <= p < 1,
        "a probability of at least 0 and less than 1, or cv or cv_1se (cross-validation) if "
        "--target is given",
    )  # fmt: skip
    model = kind(components, dropout=probability, solver=solver, random_state=seed)
    rows_needed = isinstance(probability, str) or solver == "sgd"
    with cluster(scheduler):
        prepared = job.read(scheduler, rows_needed=rows_needed)
        complete(model, job, prepared)
    if hint := rate_hint(rate, len(prepared.table.target_names), components):
        note(hint)


def rate_hint(rate: str | None, n_targets: int, components: int | None = None) -> str:
    """Return a sentence that says how the default dropout rate shrinks a regression.

    The sentence is empty if a rate was given, or if there is no target and hence no regression.
    """
    if rate is not None or n_targets == 0:
        return ""
    # The threshold σλ/(r + λ) of the only singular value σ is σ/2 for λ = 1 and one hidden unit.
    halved = n_targets == 1 and components in (None, 1)
    effect = "halves the coefficients of least squares" if halved else "shrinks the coefficients"
    return (
        f"The dropout rate 0.5, the default, {effect}, whatever the data: --dropout cv chooses the "
        "rate by cross-validation, and --dropout 0 does not shrink."
    )


@fit.command()
@on_table
def sparse(
    chosen: Preparation,
    file: File,
    target: Targets = None,
    noise_variance: Annotated[
        str,
        typer.Option(
            help="Noise variance of the target: a number above 0, learn (with the coefficients), "
            "cv (by cross-validation), cv_1se (with the rule of one standard error), "
            "or auto (chooses learn or cv, depending on the data)."
        ),
    ] = "auto",
    posterior: Annotated[
        str,
        typer.Option(
            help="Posterior covariance of the coefficients: full, diagonal, or point (a point "
            "estimate without covariance)."
        ),
    ] = "full",
    solver: Annotated[
        str,
        typer.Option(help="Solver: auto, coordinate, or an update rule: mm, em or mackay."),
    ] = "auto",
    groups: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Each N consecutive columns are selected together, such as 3 for sources with "
            "three orientations.",
        ),
    ] = None,
    no_intercept: Annotated[
        bool, typer.Option("--no-intercept", help="Do not centre the columns and the target.")
    ] = False,
    out: Out = "",
    force: Force = False,
) -> None:
    """Select the columns that explain the target; save coefficients and predictions."""
    if not target:
        raise ValueError(
            "A sparse fit needs a target to explain: give a column with --target COLUMN, or a "
            "second file with --target FILE."
        )
    gamma = number_or_word(
        "noise-variance", noise_variance, NOISE, lambda value: 0 < value < math.inf,
        "a finite number above 0, auto, learn, cv or cv_1se",
    )  # fmt: skip
    model = SparseVAE(
        noise_variance=gamma, posterior=posterior, solver=solver, groups=groups,
        fit_intercept=not no_intercept,
    )  # fmt: skip
    job = Job(file, "sparse", out, force, chosen)
    complete(model, job, job.read_with_targets())


@dataclass(frozen=True, slots=True)
class Job:
    """Files and options of one run of ``lucidae fit``."""

    file: Path  # the table to which the model is fitted
    family: str  # ``"linear"``, ``"dropout"`` or ``"sparse"``
    out: str  # prefix of the output files, or a folder; empty for the default prefix
    force: bool  # whether results of a fit to another file may be replaced
    preparation: Preparation  # how the table is read and prepared

    @property
    def target_file(self) -> Path | None:
        """The file of the targets if ``--target`` names a file; None if it names columns."""
        options = self.preparation.options
        targets = options.targets
        if len(targets) != 1 or Path(targets[0]).suffix.lower() not in FILES:
            return None
        plain = replace(options, columns=(), targets=())
        chosen = blocks_of_file(self.file, options=plain).chosen
        assert chosen is not None, "a file has columns"
        return None if targets[0] in chosen.names else Path(targets[0])

    @property
    def model_path(self) -> Path:
        """Path of the output file of the model."""
        return self.path_of("model.npz")

    def path_of(self, what: str) -> Path:
        """Return the path, without its suffix, of the output table `what`, such as "codes"."""
        prefix = Path(self.out)
        if self.out.endswith("/") or prefix.is_dir():
            prefix /= f"{self.file.stem}-{self.family}"
        return Path(f"{prefix}-{what}")

    def read(self, scheduler: str | None, *, rows_needed: bool = False) -> Prepared:
        """Return the table with its targets; a large table is not loaded but read in blocks.

        If the fit needs all rows at once (`rows_needed`), the table is loaded whatever its size.
        """
        chosen = self.preparation
        if scheduler is not None and (rows_needed or chosen.needs_rows):
            raise ValueError(
                f"--scheduler {scheduler} was given, but cross-validation (such as --dropout cv), "
                "the solver sgd, --missing and --standardize need all rows in memory: leave out "
                "--scheduler, or use none of them."
            )
        if not rows_needed and not chosen.needs_rows:
            table = streamed_table(self.file, scheduler, chosen, self.target_file)
            if table is not None:
                return Prepared(table, chosen)
        return self.read_with_targets()

    def read_with_targets(self) -> Prepared:
        """Return the table with its targets, which are some of its columns or in a second file."""
        second, chosen = self.target_file, self.preparation
        if second is None:
            return chosen.read(self.file)
        options = target_options(chosen.options, second)
        responses = read_table(second, options, target=True, missing=True)
        return chosen.with_options(targets=()).read(self.file, responses)


def complete(model: Any, job: Job, prepared: Prepared) -> None:
    """Fit the model, save it and its output tables, and print its certificate.

    If an output file exists that must not be replaced, an error is raised before the fit. With
    ``--missing mean`` or ``--standardize`` the saved model is a pipeline.
    """
    table = prepared.table
    inputs = [job.file, *filter(None, [job.target_file])]
    paths = map(job.path_of, _names_of_sheets(model, prepared))
    others = [sheet_path(path, job.file.suffix) for path in paths]
    check_results(job.model_path, others, job.file, inputs, job.force)
    y = table.target
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]  # scikit-learn expects a vector for one target
    streamed = not isinstance(table.values, np.ndarray)
    rows = named_rows(table.values, table.columns if table.is_named else None)
    whole = make_pipeline(*prepared.steps(model), model) if prepared.steps(model) else model
    # Regressions do not depend on the units of the columns, and pixels have one unit.
    in_units = not (table.target_names or table.image_shape or prepared.preparation.standardize)
    if in_units and not streamed:
        with np.errstate(over="ignore"):  # what overflows is refused by the fit
            uneven = uneven_scales(np.nanstd(table.values, axis=0))
        if uneven:
            note(f"{uneven}: --standardize scales them.")
    verbose = model.verbose
    if streamed:
        model.set_params(verbose="auto")  # its progress bar replaces this time
    title = f"Fitting {type(model).__name__} to {table.name}"
    with printed_warnings(), nullcontext() if streamed else timed(title):
        _fit_table(whole, rows, y)
        # The certificate of a streamed fit is that of its moment: the file is not read again.
        given = rows if whole is model else whole[:-1].transform(rows)
        certificate = certify(model) if streamed else certify(model, given, y)
        sheets = sheets_of(whole, rows, prepared)
    model.set_params(verbose=verbose)
    # All files are written before anything is printed: the reader of a pipe may close it.
    save_from(whole, job.model_path, Source.of(job.file))
    written = [job.model_path]
    for what, sheet in sheets.items():
        with printed_warnings():
            written.append(write_sheet(job.path_of(what), sheet, job.file.suffix))
    print_certificate(certificate)
    influential = certificate.evidence.get("leverage_rows", ())[:5]  # no more are named
    if prepared.kept is not None and len(influential):
        pairs = [f"row {row} is row {prepared.row_number(row)}" for row in influential]
        print_line(f"The certificate does not count rows left out; in {table.name} {some(pairs)}.")
    if isinstance(model, SparseVAE):
        chosen = [table.columns[index] for index in model.support_]
        print_line(f"Significant columns: {some(chosen) or 'none'}")
    if isinstance(model, LinearAutoencoder):
        if not isinstance(model.n_components, int):
            print_line(f"Number of components: {model.n_components_}")
        if not streamed and (constant := prepared.constant_columns):
            print_line(f"Constant, hence in no component: {some(constant, 8)}.")
    for path in written:
        print_written(path)


def _fit_table(model: Any, rows: Any, y: Any) -> None:
    """Fit the model to the rows of a table, and say after Ctrl-C that nothing is kept."""
    try:
        if isinstance(rows, SplitRows):
            model.fit_batches(rows)
        else:
            model.fit(rows, y)
    except ReadInterrupted as stop:
        note(
            f"Reading was interrupted after {stop.n_rows} rows. The command keeps nothing of them "
            "and has written no file: run it again to fit all rows."
        )
        raise


def _names_of_sheets(model: Any, prepared: Prepared) -> list[str]:
    """Return the names of the output tables of a model."""
    names = ["predictions", "coefficients"] if prepared.table.target_names else ["codes"]
    if isinstance(model, LinearAutoencoder):
        names.append("components")
    return [*names, "filled"] if prepared.has_gaps else names


def sheets_of(whole: Any, rows: Any, prepared: Prepared) -> dict[str, Sheet]:
    """Return the output tables by name, computed by a fitted model from the `rows` of a table.

    They are "codes" (and "components") if the table has no target, otherwise "predictions" and
    "coefficients", and the "filled" rows if values were missing. Codes and predictions of a table
    that is read in blocks are computed when they are written; those of rows that were left out are
    missing.
    """
    table = prepared.table
    model = whole[-1] if isinstance(whole, Pipeline) else whole

    def of_rows(method: Any, columns: tuple[str, ...]) -> Sheet:
        if in_memory(rows):
            found = prepared.spread(np.asarray(method(rows)).reshape(-1, len(columns)))
            return Sheet([found], columns, len(found))
        return Sheet(results_of(method, rows, len(columns)), columns, n_rows_of(rows))

    def filled(rows: Any) -> Any:
        if isinstance(model, LinearAutoencoder) and prepared.preparation.missing == "em":
            found = whole.inverse_transform(whole.transform(rows))
            return np.where(np.isnan(table.values), found, table.values)
        return whole[0].transform(rows)  # the imputer

    def by_feature(values: Any, columns: tuple[str, ...]) -> Sheet:
        return Sheet([values], columns, len(values), table.columns, "feature")

    found: dict[str, Sheet] = {}
    if not table.target_names:
        names = tuple(map(str, model.get_feature_names_out()))
        found["codes"] = of_rows(whole.transform, names)
        if isinstance(model, LinearAutoencoder):
            found["components"] = by_feature(np.asarray(model.components_).T, names)
    else:
        columns, values = table.target_names, np.atleast_2d(model.coef_).T
        if isinstance(model, SparseVAE):
            chosen = np.isin(np.arange(len(values)), model.support_)
            values = np.column_stack([chosen, model.relevance_, values])
            columns = ("in support", "relevance", *columns)
        found["predictions"] = of_rows(whole.predict, table.target_names)
        found["coefficients"] = by_feature(values, columns)
    if prepared.has_gaps:
        found["filled"] = of_rows(filled, table.columns)
    return found
