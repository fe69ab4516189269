"""The report on a table of data: its sections, in their order, and the page made of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae import DropoutAutoencoder, DropoutRegressor, LinearAutoencoder, SecondMoment, SparseVAE
from lucidae.datasets import make_sparse_regression
from lucidae.dropout import LinearProblem, regularization_path
from lucidae.rows.files import FILES
from lucidae.rows.tables import Matrix, ReadOptions, Table, default_names, some
from lucidae_app.console import timed
from lucidae_app.preparation import Preparation, Prepared, uneven_scales
from lucidae_app.report import figures
from lucidae_app.report.page import (
    Advice,
    Answer,
    Block,
    Card,
    Chapter,
    Clock,
    Code,
    Folded,
    Grid,
    Plot,
    Prose,
    count,
    duration,
    fill_page,
    write_page,
)
from lucidae_app.streams import standardized

Progress = Callable[[str, int, int], None]
"""Function that is called before each section with its title, its number and that of all."""

LARGEST_WIDTH = 4000  # columns that the report accepts; the spectrum of more would take minutes
NAMED = 4  # components that are described in words, and columns in each description
INFLUENTIAL = 5  # rows of high leverage that are listed
DRAWN = 20  # components that are drawn
HIDDEN_UNITS, DROPOUT = 20, 0.5
TOTAL = "the whole page, including figures"


class Study:
    """What all sections use: the data, and their optimal linear autoencoder."""

    def __init__(self, prepared: Prepared, clock: Clock) -> None:
        self.prepared, self.clock = prepared, clock
        table = prepared.table
        if len(table.columns) > LARGEST_WIDTH:
            raise ValueError(
                f"{table.name!r} has {len(table.columns):,} columns; the report accepts up to "
                f"{LARGEST_WIDTH:,}. Choose some with --columns, or use lucidae fit linear."
            )
        table = scaled(prepared)
        if table.moment is None:
            with np.errstate(over="ignore"):  # what overflows is refused by the fit
                spread = np.nanstd(table.values, axis=0)
        else:
            spread = np.sqrt(np.diag(table.moment.covariance))
        if not np.any(spread > 0):
            raise ValueError(
                f"All rows of {table.name!r} are equal; the report needs columns that vary: choose "
                "others with --columns."
            )
        self.spread = spread
        with clock("linear: exact fit"):
            self.exact, self.is_doubtful = fitted(table)
        if np.isnan(table.values).any():  # the other sections need complete rows
            filled = self.exact.inverse_transform(self.exact.transform(table.values))
            table = replace(table, values=np.where(np.isnan(table.values), filled, table.values))
        self.table = table

    @property
    def n_components(self) -> int:
        """Number of components that stand out of noise."""
        return counted(self.exact)

    @property
    def explained(self) -> float:
        """Share of the variance that the components explain."""
        return float(np.sum(self.exact.explained_variance_ratio_))

    @property
    def is_file(self) -> bool:
        """Whether the table was read from a file."""
        return Path(self.table.name).suffix.lower() in FILES

    @cached_property
    def moment(self) -> SecondMoment:
        """Second moment of all rows."""
        with self.clock("covariance of the columns"):
            return (
                SecondMoment.of(self.table.values)
                if self.table.moment is None
                else self.table.moment
            )

    @cached_property
    def influential(self) -> dict[int, float]:
        """Rows that the claim `leverage` of the certificate names, and their largest shares."""
        if self.table.moment is not None:  # only a sample of the rows is known
            return {}
        # An outlier may make a component of its own, below those that stand out of noise.
        variances, _ = self.moment.spectrum()
        number = max(self.exact.n_components_, int(np.sum(variances > np.mean(variances))))
        model = LinearAutoencoder(number).fit(self.table.values)
        evidence = model.certificate_.evidence
        rows, shares = evidence.get("leverage_rows", ()), evidence.get("leverage_shares", ())
        return dict(zip(map(int, rows), map(float, shares), strict=True))

    def command(self, words: str) -> str:
        """Return a command line for the file, with the options of this report."""
        file = quote(self.table.name) if self.is_file else "my-data.csv"
        verb, _, options = words.partition(" FILE")
        return f"lucidae {verb} {file}{options}{self.prepared.preparation.arguments}"


def scaled(prepared: Prepared) -> Table:
    """Return a table with means filled in and columns scaled, if the user chose so."""
    table = prepared.table
    if table.moment is not None:
        return standardized(table) if prepared.preparation.standardize else table
    for step in prepared.steps(LinearAutoencoder()):
        table = replace(table, values=step.fit_transform(table.values))
    return table


def fitted(table: Table) -> tuple[Any, bool]:
    """Return the exact linear autoencoder with as many components as stand out of noise.

    The second result tells whether their number is doubtful, because the noise of columns differs.
    """
    gaps = table.moment is None and bool(np.isnan(table.values).any())
    model = LinearAutoencoder("hard_threshold", handle_missing="em" if gaps else "error")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)  # the page says that no component stands out
        _fit(model, table)
    return model, any("noise of the same variance" in str(warning.message) for warning in caught)


def _fit(model: Any, table: Table) -> None:
    """Fit a model to the rows of a table, or to the moment of all rows if it has only a sample."""
    if table.moment is None:
        model.fit(table.values)
    else:
        model.fit_batches(None, start=table.moment)


def counted(model: Any) -> int:
    """Return the number of components of a model of `fitted`; 0 if none stands out of noise.

    With gaps, the criterion may find fewer in the k that were fitted, but more than k − 1 in a fit
    of k − 1.
    """
    return int(model.n_components_) if model.component_count_.n_components else 0


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report; `name` is its HTML anchor."""

    name: str
    title: str
    build: Callable[[Study], Sequence[Block]]  # an empty sequence if the section does not apply


def write_report(data: Table | Prepared, path: str | os.PathLike[str]) -> Path:
    """Write the report on `data` to `path`, completely or not at all.

    Parameters
    ----------
    data : Table or Prepared
        The data, with names of columns and, optionally, targets.
    path : path-like
        Path of the page; an existing file is replaced.

    Returns
    -------
    Path
        The path of the page.
    """
    return write_page(path, render(data, SECTIONS))


def render(data: Table | Prepared, sections: Sequence[Section]) -> str:
    """Return the report on `data` as the text of an HTML page."""
    prepared = data if isinstance(data, Prepared) else Prepared(data, Preparation(ReadOptions()))
    clock, chapters = Clock(), []
    with clock(TOTAL), timed("Writing the report"):
        study = Study(prepared, clock)
        for section in sections:
            blocks = section.build(study)
            if blocks:
                chapters.append(Chapter(section.name, section.title, blocks))
    rows = tuple((task, duration(seconds)) for task, seconds in clock.seconds.items())
    times = Folded("Wall-clock times", (Grid(("task", "time"), rows),))
    chapters[-1] = replace(chapters[-1], blocks=[*chapters[-1].blocks, times])
    return fill_page(f"A report on {study.table.name}", "", chapters, clock.seconds[TOTAL])


def by_column(table: Table, rows: Matrix) -> dict[str, Matrix]:
    """Return the entries of `rows` by the names of the table's columns."""
    return dict(zip(table.columns, np.asarray(rows).T, strict=True))


def certificate_card(label: str, model: Any, legend: str = "") -> Card:
    """Return the certificate of a fit, folded."""
    return Card(label, model.certificate_, unfolded=False, legend=legend)


# --- the answer -------------------------------------------------------------------------------

LEGEND = (
    "A certificate lists claims about a fit, each with the measured value and the theorem: ✓ the "
    "claim holds, ✗ it fails, ? it could not be decided, – it does not apply, or its value is "
    "only reported."
)


def answer_section(study: Study) -> list[Block]:
    """Return how many components there are, what they are, and what to do."""
    table, exact, found = study.table, study.exact, study.n_components
    share = f"{study.explained:.0%} of the variance"
    if found:
        text = f"{count(found, 'component').capitalize()} of {table.name} "
        text += f"{'stands' if found == 1 else 'stand'} out of noise and "
        text += f"{'explains' if found == 1 else 'explain'} {share}."
    else:
        text = f"No component of {table.name} stands out of noise. The first explains {share}."
    blocks: list[Block] = [
        Answer(text),
        Prose(
            f"{table.n_rows:,} rows, {len(table.columns):,} columns; the number of components is "
            "that of the optimal hard threshold (Gavish & Donoho 2014)."
        ),
    ]
    if table.image_shape is None:
        blocks.append(_described(table, exact))
    blocks.append(Advice("What to know and do", tuple(_advice(study))))
    blocks.append(certificate_card("Certificate of the components", exact, legend=LEGEND))
    return blocks


DESCRIPTION = ("component", "variance", "largest loadings")


def _described(table: Table, exact: Any) -> Grid:
    """Return a table of the first components and the columns with their largest loadings."""
    rows = []
    for at, (axis, share) in enumerate(
        zip(exact.components_[:NAMED], exact.explained_variance_ratio_, strict=False)
    ):
        largest = np.argsort(-np.abs(axis), kind="stable")[:NAMED]
        words = [
            f"{figures.shortened(table.columns[i])} {axis[i]:+.2f}" for i in largest if axis[i]
        ]
        rows.append((str(at), f"{share:.0%}", ", ".join(words).replace("-", "−")))
    return Grid(DESCRIPTION, tuple(rows))


def _advice(study: Study) -> list[tuple[str, str]]:
    """Return what the reader should know or do, each with a command or an empty text."""
    prepared, table, found = study.prepared, study.table, []
    if table.image_shape is None and (uneven := uneven_scales(study.spread)):
        text = f"{uneven}. If the units are arbitrary, scale the columns:"
        found.append((text, f"{study.command('report FILE')} --standardize"))
    elif study.is_doubtful:
        text = (
            "The number of components assumes noise of the same variance in all columns, but it "
            "differs, so that there may be fewer components than this"
        )
        is_scaled = prepared.preparation.standardize or not study.is_file
        command = "" if is_scaled else f"{study.command('report FILE')} --standardize"
        found.append(
            (f"{text}." if is_scaled else f"{text}. Compare with scaled columns:", command)
        )
    if rows := study.influential:
        named = some([str(prepared.row_number(row)) for row in rows], INFLUENTIAL)
        text = f"row {named}: it has" if len(rows) == 1 else f"rows {named}: each has"
        found.append((f"Look at {text} a large share of a component (rows from 0; see below).", ""))
    found += [(sentence, "") for sentence in prepared.notes]
    if table.left_out:
        names = some([f"{name} ({why})" for name, why in table.left_out.items()], 8)
        found.append((f"Columns left out: {names}.", ""))
    if table.moment is not None:
        text = (
            "The file was read once, in blocks. What needs the rows themselves uses "
            f"{len(table.values):,} of {table.n_rows:,}, evenly spaced."
        )
        found.append((text, ""))
    if constant := [table.columns[at] for at in np.flatnonzero(study.spread == 0)]:
        found.append((f"Constant, hence in no component: {some(constant, 8)}.", ""))
    command = study.command(f"fit linear FILE --components {max(study.n_components, 1)}")
    saved = f"components{', filled rows' * study.prepared.has_gaps} and codes"
    included = "" if table.target is None else " (target included)"
    found.append((f"Save {saved}{included}:", command))
    if table.target is None:
        last = int(np.flatnonzero(study.spread > 0)[-1])
        column = quote(table.columns[last]) if study.is_file else "price"
        command = study.command(f"report FILE --target {column}")
        found.append(("Find the columns that explain one of them:", command))
    return found


# --- the components ---------------------------------------------------------------------------


def components_section(study: Study) -> list[Block]:
    """Return figures of the spectrum and of the components."""
    table, exact = study.table, study.exact
    blocks: list[Block] = [_spectrum(study), _components(table, exact)]
    if table.image_shape is not None:
        blocks.append(_reconstructions(table, table.image_shape, exact))
    return blocks


def _spectrum(study: Study) -> Plot:
    """Return a plot of the eigenvalues of the covariance, with the chosen number marked."""
    variances, _ = study.moment.spectrum()
    rank = int(np.sum(variances > variances[0] * np.finfo(float).eps * len(variances)))
    shares = variances[:rank] / max(study.moment.trace, np.finfo(float).tiny)
    numbers = {
        "component": range(rank),
        "variance": variances[:rank],
        "share": shares,
        "cumulative share": np.cumsum(shares),
    }
    chosen = study.exact.n_components_
    caption = (
        "Variances of the principal components, the eigenvalues of the covariance of the columns, "
        f"numbered from 0 as in components_. The dashed lines mark the {count(chosen, 'component')}"
        " of the answer."
    )
    if study.prepared.has_gaps:
        caption += " Missing values are filled in here, which changes the variances a little."
    drawn = figures.spectrum(variances[:rank], shares, chosen, study.explained)
    return Plot.of("spectrum", drawn, caption, numbers)


def _components(table: Table, model: Any) -> Plot:
    """Return a plot of the first components, as images or as a matrix of loadings."""
    drawn = model.components_[:DRAWN]
    shares = model.explained_variance_ratio_[:DRAWN]
    if table.image_shape is None:
        figure = figures.loadings(drawn, table.columns)
    else:
        titles = [f"{index}: {share:.1%}" for index, share in enumerate(shares)]
        figure = figures.image_grid(drawn.reshape(-1, *table.image_shape), titles)
    numbers = {"component": range(len(drawn)), "share of variance": shares}
    caption = (
        f"The first {count(len(drawn), 'component')}, by decreasing variance; red is positive, "
        "white is zero, blue is negative."
    )
    numbers |= by_column(table, drawn)
    return Plot.of("components", figure, caption, numbers, keeps_colours=True)


def _reconstructions(table: Table, shape: tuple[int, int], exact: Any) -> Plot:
    """Return a plot of a few rows and of their reconstructions from codes of increasing length."""
    rows = np.linspace(0, len(table.values) - 1, num=min(10, len(table.values)), dtype=int)
    originals = table.values[rows]
    codes = (originals - exact.mean_) @ exact.components_.T
    drawn = {"original": originals}
    for k in sorted({min(k, len(exact.components_)) for k in (5, len(exact.components_))}):
        drawn[f"k = {k}"] = exact.mean_ + codes[:, :k] @ exact.components_[:k]
    images = {name: values.reshape(-1, *shape) for name, values in drawn.items()}
    numbers = {"row": np.tile(rows, len(drawn)), "version": np.repeat(list(drawn), len(rows))}
    numbers |= by_column(table, np.vstack(list(drawn.values())))
    caption = "Rows of the data, and their reconstructions from the first k components."
    return Plot.of("reconstructions", figures.image_rows(images), caption, numbers)


# --- rows of high leverage --------------------------------------------------------------------


def influence_section(study: Study) -> list[Block]:
    """Return the rows that the claim `leverage` names, and the result without them."""
    rows, table = [*study.influential], study.table
    if not rows or len(table.values) - len(rows) < 2:
        return []
    centre, scale = np.median(table.values, axis=0), np.where(study.spread > 0, study.spread, 1.0)
    listed = []
    for row in rows[:INFLUENTIAL]:
        seen = ~np.isnan(study.prepared.table.values[row])  # not what was filled in
        far = seen * np.abs(table.values[row] - centre) / scale
        columns = [table.columns[at] for at in np.argsort(-far, kind="stable")[:3]]
        number = str(study.prepared.row_number(row))
        share = f"{study.influential[row]:.0%}"
        listed.append((number, share, ", ".join(map(figures.shortened, columns))))
    given = study.prepared.table
    left = replace(given, values=np.delete(given.values, rows, axis=0))
    with study.clock("linear: exact fit without rows of high leverage"):
        without, _ = fitted(scaled(replace(study.prepared, table=left)))
    cosines = (study.exact.components_ @ without.components_.T) ** 2
    similar = np.argmax(cosines, axis=0)
    compared = [
        (*row, f"{similar[at]} ({cosines[similar[at], at]:.2f})")
        for at, row in enumerate(_described(table, without).rows)
    ]
    explained = float(np.sum(without.explained_variance_ratio_))
    found, one = counted(without), len(rows) == 1
    return [
        Prose(
            f"{count(len(rows), 'row').capitalize()} of {len(table.values):,} "
            f"{'has' if one else 'have'} far more than {'its' if one else 'their'} share of a "
            "component, or of the variance."
        ),
        Grid(("row (from 0)", "largest share", "columns farthest from the median"), tuple(listed)),
        Prose(
            f"Without {'it' if one else 'them'}, {count(found, 'component')} "
            f"{'stands' if found == 1 else 'stand'} out of noise; the fit explains {explained:.0%} "
            "of the variance:"
        ),
        Grid((*DESCRIPTION, "like, with all rows (cos²)"), tuple(compared)),
    ]


# --- dropout ----------------------------------------------------------------------------------


def dropout_section(study: Study) -> list[Block]:
    """Return the optimal network of dropout training at one dropout rate and at many rates."""
    table, clock = study.table, study.clock
    width = min(HIDDEN_UNITS, len(table.columns))
    model = DropoutAutoencoder(width, dropout=DROPOUT)
    with clock(f"dropout: exact autoencoder of width {width}"):
        _fit(model, table)
    rates = np.linspace(0.0, 0.98, 99)
    with clock(f"dropout: the optimum at {len(rates)} dropout rates"):
        path = regularization_path(LinearProblem.autoencoder(study.moment), width, rates)
    values, threshold = np.asarray(model.singular_values_), float(model.threshold_)
    numbers = {name: getattr(path, name) for name in ("dropout", "rank", "threshold", "error")}
    caption = (
        "Left: singular values of the data; the threshold (dashed line) is subtracted from each "
        "of them. Right: rank of the optimal network at every dropout rate."
    )
    blocks: list[Block] = [
        Prose(
            f"The global minimum of training a linear autoencoder with "
            f"{count(width, 'hidden unit')}, each dropped with probability {DROPOUT:g}, follows "
            "from one singular value decomposition: dropout subtracts one threshold from every "
            f"singular value, which leaves a network of rank {model.rank_} (Mianjy et al. 2018)."
        ),
        Plot.of(
            "dropout", figures.dropout(values, threshold, path.dropout, path.rank), caption, numbers
        ),
        certificate_card("Certificate of the dropout autoencoder", model),
    ]
    if table.target is None:
        return blocks
    with clock("dropout: exact regression"):
        regression = DropoutRegressor(dropout="cv").fit(table.values, table.target)
    score = regression.score(table.values, table.target)
    sentence = (
        f"The regression of {', '.join(table.target_names)} on the other columns, with the "
        f"dropout rate chosen by cross-validation, explains {score:.1%} of the variance of the "
        f"{'training' if table.moment is None else 'sampled'} rows."
    )
    return [
        *blocks,
        Prose(sentence),
        certificate_card("Certificate of the dropout regression", regression),
    ]


# --- sparsity ---------------------------------------------------------------------------------


def sparsity_section(study: Study) -> list[Block]:
    """Return the columns that explain the targets; generated data if the report has no file."""
    table, clock = study.table, study.clock
    if table.target is None:
        return [] if study.is_file else _on_generated_data(clock)
    model = _fitted_sparse(table.values, table.target, clock)
    found = [table.columns[index] for index in model.support_]
    listed = ", ".join(found[:12]) + (", …" if len(found) > 12 else "")
    return [
        Prose(
            f"Which columns explain {', '.join(table.target_names)}? The variational autoencoder "
            "with a full posterior covariance (Wipf 2023) selects those that pass a test of "
            f"significance: {listed or 'none of them'}."
        ),
        _relevances(model, table.columns, None),
        certificate_card("Certificate of the sparse fit", model),
    ]


def _on_generated_data(clock: Clock) -> list[Block]:
    """Return the parts on a sparse regression of generated data, whose true columns are known."""
    problem = make_sparse_regression(snr_db=20.0, random_state=0)
    model = _fitted_sparse(problem.dictionary, problem.responses, clock)
    rows, columns = problem.dictionary.shape
    truth, found = set(problem.support.tolist()), set(model.support_.tolist())
    return [
        Prose(
            f"Generated data: {problem.responses.shape[1]} responses are combinations of the same "
            f"{len(truth)} of {columns} columns with {rows} rows, plus noise (20 dB). The "
            "variational autoencoder with a full posterior covariance (Wipf 2023) finds "
            f"{len(found & truth)} of the {len(truth)} columns and {len(found - truth)} others."
        ),
        _relevances(model, default_names(columns), problem.support),
        certificate_card("Certificate of the sparse fit", model),
    ]


def _fitted_sparse(dictionary: Matrix, responses: Matrix, clock: Clock) -> Any:
    sizes = f"{count(dictionary.shape[1], 'column')}, {count(responses.shape[1], 'response')}"
    with clock(f"sparsity: {sizes}"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the certificate on the page says it
        return SparseVAE(random_state=0).fit(dictionary, responses)


def _relevances(model: Any, names: tuple[str, ...], truth: Matrix | None) -> Plot:
    """Return a plot of the relevances; `truth` are the columns that made the data, if known."""
    values = np.asarray(model.relevance_)
    support = np.asarray(model.support_, dtype=int)
    numbers = {
        "column": names,
        "relevance": values,
        "significant": np.isin(np.arange(len(values)), support),
    }
    caption = (
        "Relevance of each column: the variance of its coefficients under the fitted prior. Small "
        "positive relevances are due to noise and fail the test of significance."
    )
    figure = figures.relevances(values, support, names, truth)
    return Plot.of("relevance", figure, caption, numbers)


# --- what the reader can do next --------------------------------------------------------------

IN_PYTHON = """\
from lucidae import DropoutRegressor, LinearAutoencoder, SparseVAE

model = LinearAutoencoder("hard_threshold").fit({X})
codes = model.transform({X})            # coordinates along the principal axes, in order
print(model.certificate_)               # distance to the optimum, claim by claim

DropoutRegressor(dropout="cv").fit(X, Y)        # the optimum of dropout training
SparseVAE().fit(X, y).support_                  # the columns that explain y"""


def details_section(study: Study) -> list[Block]:
    """Return how the file was read, and code behind a fold."""
    header = study.table.header
    source = repr(study.table.name) if study.is_file else "X"
    return [
        *([Prose(f"How the file was read: {header}.")] if header else []),
        Folded("The same in Python", (Code(IN_PYTHON.replace("{X}", source)),)),
        Prose(
            "The command lucidae laboratory writes loss landscapes that you can turn, and that "
            "show why these models have a known optimum."
        ),
    ]


SECTIONS: tuple[Section, ...] = (
    Section("answer", "The answer", answer_section),
    Section("components", "The components", components_section),
    Section("influence", "Rows of high leverage", influence_section),
    Section("dropout", "The optimum of dropout training", dropout_section),
    Section("sparsity", "The columns that explain a target", sparsity_section),
    Section("details", "Details", details_section),
)
