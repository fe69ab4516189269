"""The report on a table of data: its sections, in their order, and the page made of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae import DropoutAutoencoder, DropoutRegressor, LinearAutoencoder, SecondMoment, SparseVAE
from lucidae.data.files import FILES
from lucidae.data.tables import Matrix, Table, default_names, some
from lucidae.datasets import make_sparse_regression
from lucidae.dropout import LinearProblem, regularization_path
from lucidae_app.report import figures
from lucidae_app.report.page import (
    LABORATORY_NAME,
    Block,
    Card,
    Chapter,
    Clock,
    Code,
    Download,
    Facts,
    Grid,
    Note,
    Plot,
    Prose,
    count,
    duration,
    fill_page,
    laboratory_page,
    write_page,
)

Progress = Callable[[str, int, int], None]
"""Function that is called before each section with its title, its number and that of all."""

LEAD = (
    "Autoencoders whose optimum is known: the optimal representation of these data, the distance "
    "of trained models to it, and the theorems that apply."
)
LARGEST_WIDTH = 4000  # columns that the report accepts; the spectrum of more would take minutes
WIDEST_TRAINING = 1500  # columns for which models are trained; for more it would take too long
EXPLAINED = 0.9  # share of the variance that the components explain together
UNEVEN = 100.0  # ratio of standard deviations above which the report advises to standardise
SAMPLE = 20  # rows that are drawn as images
DRAWN = 20  # components that are drawn
TRAINED = 10  # latents of the trained models
EARLY = 30  # epochs of a training that is stopped too early, as an example
HIDDEN_UNITS, DROPOUT = 20, 0.5
TOTAL = "the whole page, including figures"


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report; `name` is its HTML anchor."""

    name: str
    title: str
    build: Callable[[Table, Clock], Sequence[Block]]


def write_report(
    table: Table, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Path:
    """Write the report on `table` to `path`, completely or not at all.

    Parameters
    ----------
    table : Table
        The data, with names of columns and, optionally, targets.
    path : path-like
        Path of the page; an existing file is replaced.
    progress : callable, optional
        Called before each section with its title, its number from 0, and the number of sections.

    Returns
    -------
    Path
        The path of the page.
    """
    return write_page(path, render(table, SECTIONS, progress=progress))


def render(table: Table, sections: Sequence[Section], *, progress: Progress | None = None) -> str:
    """Return the report on `table` as the text of an HTML page."""
    clock, chapters = Clock(), []
    with clock(TOTAL):
        for number, section in enumerate(sections):
            if progress is not None:
                progress(section.title, number, len(sections))
            chapters.append(Chapter(section.name, section.title, section.build(table, clock)))
    rows = tuple((task, duration(seconds)) for task, seconds in clock.seconds.items())
    text = "Wall-clock time of each task of this report. The first includes loading the libraries."
    chapters.insert(-1, Chapter("timings", "Timings", [Prose(text), Grid(("task", "time"), rows)]))
    return fill_page(f"A report on {table.name}", LEAD, chapters, clock.seconds[TOTAL])


def moment_of(table: Table) -> SecondMoment:
    """Return the second moment of all rows of a table."""
    return SecondMoment.of(table.values) if table.moment is None else table.moment


def fitted(model: Any, table: Table) -> Any:
    """Return `model` fitted to all rows of a table; for a large file, to their second moment."""
    if table.moment is None:
        return model.fit(table.values)
    return model.fit_batches(None, start=table.moment)


def by_column(table: Table, rows: Matrix) -> dict[str, Matrix]:
    """Return the entries of `rows` by the names of the table's columns."""
    return dict(zip(table.columns, np.asarray(rows).T, strict=True))


@contextmanager
def without_convergence_warnings() -> Iterator[None]:
    """Suppress warnings that training did not converge, which the certificate on the page says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


# --- the data ---------------------------------------------------------------------------------


def data_section(table: Table, clock: Clock) -> list[Block]:
    """Return sizes, remarks, sample images and the spectrum of the covariance."""
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
    rank = int(np.sum(variances > variances[0] * np.finfo(float).eps * len(variances)))
    if rank == 0:
        raise ValueError(f"All rows of {table.name!r} are equal; the report needs data that vary.")
    chosen = min(int(np.searchsorted(np.cumsum(shares), EXPLAINED)) + 1, rank)
    blocks: list[Block] = [
        Facts(
            (
                (f"{table.n_rows:,}", "rows"),
                (f"{moment.n_features:,}", "columns"),
                (f"{rank:,}", "numerical rank"),
                (f"{chosen:,}", f"components for {EXPLAINED:.0%} of the variance"),
            )
        ),
        *_remarks(table, moment),
    ]
    if table.image_shape is not None:
        blocks.append(_sample(table, table.image_shape))
    blocks.append(_spectrum(variances[:rank], shares[:rank], chosen))
    return blocks


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
    figure = figures.image_grid(table.values[rows].reshape(-1, *shape))
    caption = (
        f"{len(rows)} evenly spaced rows of the data, as images of {shape[0]} × {shape[1]} pixels."
    )
    return Plot.of("sample", figure, caption, {"row": rows} | by_column(table, table.values[rows]))


def _spectrum(variances: Matrix, shares: Matrix, chosen: int) -> Plot:
    """Return a plot of the eigenvalues of the covariance, with `chosen` components marked."""
    numbers = {
        "component": range(len(variances)),
        "variance": variances,
        "share": shares,
        "cumulative share": np.cumsum(shares),
    }
    caption = (
        "Eigenvalues of the covariance matrix of the columns: the variances of the principal "
        "components. They determine the minimum of the loss of a linear autoencoder and the speed "
        "of its training. The dashed lines mark the "
        f"{count(chosen, 'component')} that {'explains' if chosen == 1 else 'explain'} "
        f"{EXPLAINED:.0%} of the variance. Components are numbered from 0, as in components_."
    )
    return Plot.of("spectrum", figures.spectrum(variances, shares, chosen), caption, numbers)


# --- linear autoencoders ----------------------------------------------------------------------

LEGEND = (
    "A certificate lists claims about a fit, each with the measured value and the theorem: ✓ the "
    "claim holds, ✗ it fails, ? it could not be decided, – it does not apply, or its value is "
    "only reported."
)
METHODS = {"Plain gradient descent": "plain", "Rotation-augmented gradients": "rag"}


def linear_section(table: Table, clock: Clock) -> list[Block]:
    """Return the exact fit, two trained models and certificates."""
    with clock("linear: exact fit"):
        exact = fitted(LinearAutoencoder(EXPLAINED, solver="exact"), table)
    blocks: list[Block] = [
        Prose(
            "The optimal linear autoencoder with k latent variables (latents) projects on the k "
            f"leading principal components. To explain {EXPLAINED:.0%} of the variance it needs "
            f"{count(exact.n_components_, 'component')}; the exact solver computes them from the "
            "covariance matrix of the columns."
        ),
        _components(table, exact),
    ]
    if table.image_shape is not None:
        blocks.append(_reconstructions(table, table.image_shape, exact, clock))
    blocks += [Prose(LEGEND), Card("The exact fit", exact.certificate_)]
    if len(table.columns) <= WIDEST_TRAINING:
        blocks += _training(table, exact, clock)
    return blocks


def _components(table: Table, model: Any) -> Plot:
    """Return a plot of the first components, as images or as a matrix of loadings."""
    drawn = model.components_[:DRAWN]
    shares = model.explained_variance_ratio_[:DRAWN]
    if table.image_shape is None:
        figure = figures.loadings(drawn, table.columns)
    else:
        titles = [f"{index}: {share:.1%}" for index, share in enumerate(shares)]
        figure = figures.image_grid(drawn.reshape(-1, *table.image_shape), titles, signed=True)
    numbers = {"component": range(len(drawn)), "share of variance": shares}
    caption = (
        f"The first {count(len(drawn), 'component')}, by decreasing variance and numbered from 0; "
        "red is positive, white is zero, blue is negative."
    )
    numbers |= by_column(table, drawn)
    return Plot.of("components", figure, caption, numbers, keeps_colours=True)


def _reconstructions(table: Table, shape: tuple[int, int], exact: Any, clock: Clock) -> Plot:
    """Return a plot of a few rows and of their reconstructions from codes of increasing length."""
    rows = np.linspace(0, len(table.values) - 1, num=min(10, len(table.values)), dtype=int)
    originals = table.values[rows]
    drawn = {"original": originals}
    for k in sorted({min(k, exact.n_components_) for k in (2, 5, 10, exact.n_components_)}):
        with clock("linear: codes and reconstructions"):
            model = fitted(LinearAutoencoder(k, solver="exact"), table)
            drawn[f"k = {k}"] = model.inverse_transform(model.transform(originals))
    images = {name: values.reshape(-1, *shape) for name, values in drawn.items()}
    numbers = {"row": np.tile(rows, len(drawn)), "version": np.repeat(list(drawn), len(rows))}
    numbers |= by_column(table, np.vstack(list(drawn.values())))
    caption = "Rows of the data, and their reconstructions from the first k components."
    return Plot.of("reconstructions", figures.image_rows(images), caption, numbers)


def _training(table: Table, exact: Any, clock: Clock) -> list[Block]:
    """Return the parts on training by plain gradient descent and rotation-augmented gradients."""
    k = min(TRAINED, exact.n_components_)

    def trained(method: str, **settings: Any) -> Any:
        model = LinearAutoencoder(k, method=method, solver="gradient", random_state=0, **settings)
        with without_convergence_warnings():
            return fitted(model, table)

    models = {}
    for name, method in METHODS.items():
        with clock(f"linear: {name}, {count(k, 'component')}"):
            models[name] = trained(method)
    return [
        Prose(
            "Different weights have the same minimal loss. Plain gradient descent converges to the "
            "principal subspace with arbitrary axes; the rotation-augmented rule rotates them to "
            "the principal components, in their order (Bao et al. 2020). The matrices compare the "
            "trained latents with the components, and the certificates give the distances."
        ),
        _agreement(exact, models),
        _histories(models),
        *(Card(name, model.certificate_, unfolded=False) for name, model in models.items()),
        Prose(
            f"For comparison, the certificate of a training that was stopped after {EARLY} epochs:"
        ),
        Card("Stopped too early", trained("rag", max_iter=EARLY).certificate_),
    ]


def _agreement(exact: Any, models: dict[str, Any]) -> Plot:
    """Return a plot of squared cosines between trained latents and principal components."""
    panels = {
        name: (model.components_ @ exact.components_[: len(model.components_)].T) ** 2
        for name, model in models.items()
    }
    k = len(next(iter(panels.values())))
    numbers = {"latent": np.repeat(np.arange(k), k), "component": np.tile(np.arange(k), k)}
    numbers |= {name: values.ravel() for name, values in panels.items()}
    figure = figures.matrices(panels, xlabel="principal component", ylabel="trained latent")
    caption = (
        "Squared cosine between each trained latent's decoder column and each principal "
        "component, both numbered from 0. A diagonal that stands out from the background means "
        "that the latents are the components, in their order."
    )
    return Plot.of("alignment", figure, caption, numbers)


def _histories(models: dict[str, Any]) -> Plot:
    """Return a plot of each training's distance to a fixed point of its update, against epochs."""
    histories = {name: model.history_ for name, model in models.items()}
    lines = {name: (history.iterations, history["distance"]) for name, history in histories.items()}
    numbers = {
        "method": [name for name, history in histories.items() for _ in history.iterations],
        "epoch": np.concatenate([epochs for epochs, _ in lines.values()]),
        "distance": np.concatenate([distance for _, distance in lines.values()]),
        "loss": np.concatenate([history["loss"] for history in histories.values()]),
    }
    figure = figures.curves(
        lines, xlabel="epoch", ylabel="distance to a fixed point of the update", logarithmic=True
    )
    caption = (
        "Training stops when the distance to a fixed point of the update rule is below the "
        "tolerance. An epoch uses only the covariance matrix, so that its cost does not depend on "
        "the number of rows."
    ) + "".join(
        f" The curve of {hidden} is hidden under that of {above}."
        for hidden, above in figures.hidden_curves(lines)
    )
    return Plot.of("training", figure, caption, numbers)


# --- dropout ----------------------------------------------------------------------------------


def dropout_section(table: Table, clock: Clock) -> list[Block]:
    """Return the optimal network of dropout training at one dropout rate and at many rates."""
    width = min(HIDDEN_UNITS, len(table.columns))
    with clock(f"dropout: exact autoencoder of width {width}"):
        model = fitted(DropoutAutoencoder(width, dropout=DROPOUT), table)
    blocks: list[Block] = [
        Prose(
            f"The global minimum of training a linear autoencoder with "
            f"{count(width, 'hidden unit')}, each dropped with probability {DROPOUT:g}, follows "
            "from one singular value decomposition. Dropout subtracts the same threshold from "
            f"every singular value, which leaves a network of rank {model.rank_}, and makes all "
            "hidden units equally important (Mianjy et al. 2018)."
        ),
        _shrinkage(np.asarray(model.singular_values_), float(model.threshold_)),
        _dropout_path(table, width, clock),
    ]
    if table.image_shape is not None:
        blocks.append(_hidden_units(table, table.image_shape, np.asarray(model.left_).T))
    blocks.append(Card("The optimal dropout autoencoder", model.certificate_))
    if table.target is not None:
        blocks += _regression(table, clock)
    return blocks


def _shrinkage(values: Matrix, threshold: float) -> Plot:
    """Return a plot of the singular values and the threshold that dropout subtracts from them."""
    numbers = {
        "direction": range(len(values)),
        "singular value": values,
        "threshold": [threshold] * len(values),
    }
    caption = (
        "Singular values of the data. In the optimal network the threshold (dashed line) is "
        "subtracted from each of them; directions with a singular value below the threshold are "
        "not used."
    )
    return Plot.of("shrinkage", figures.shrinkage(values, threshold), caption, numbers)


def _dropout_path(table: Table, width: int, clock: Clock) -> Plot:
    """Return a plot of rank and error of the optimal network against the dropout rate."""
    rates = np.linspace(0.0, 0.98, 99)
    with clock(f"dropout: the optimum at {len(rates)} dropout rates"):
        path = regularization_path(LinearProblem.autoencoder(moment_of(table)), width, rates)
    figure = figures.panels(
        {
            "Rank of the optimal network": (path.dropout, path.rank),
            "Reconstruction error": (path.dropout, path.error),
        },
        xlabel="dropout rate",
    )
    columns = ("dropout", "rank", "threshold", "error", "objective")
    caption = (
        "Rank and reconstruction error of the optimal network at each dropout rate, all computed "
        "from one singular value decomposition."
    )
    numbers = {name: getattr(path, name) for name in columns}
    return Plot.of("dropout-path", figure, caption, numbers)


def _hidden_units(table: Table, shape: tuple[int, int], units: Matrix) -> Plot:
    """Return a plot of the outgoing weights of each hidden unit as images."""
    caption = (
        "Outgoing weights of each hidden unit; red is positive, white is zero, blue is negative. "
        "Unlike principal components they have no order: at the optimum all units are equally "
        "important."
    )
    figure = figures.image_grid(units.reshape(-1, *shape), signed=True)
    numbers = {"unit": range(len(units))} | by_column(table, units)
    return Plot.of("hidden-units", figure, caption, numbers, keeps_colours=True)


def _regression(table: Table, clock: Clock) -> list[Block]:
    """Return the parts on the regression of the targets with a cross-validated dropout rate."""
    with clock("dropout: exact regression"):
        model = DropoutRegressor(dropout="cv").fit(table.values, table.target)
    score = model.score(table.values, table.target)
    return [
        Prose(
            f"The regression of {', '.join(table.target_names)} on the other columns, with the "
            f"dropout rate chosen by cross-validation, explains {score:.1%} of the variance of the "
            f"{'training' if table.moment is None else 'sampled'} rows."
        ),
        Card("The optimal dropout regression", model.certificate_, unfolded=False),
    ]


# --- sparsity ---------------------------------------------------------------------------------


def sparsity_section(table: Table, clock: Clock) -> list[Block]:
    """Return the columns that explain the targets; without targets, of generated data."""
    if table.target is None:
        return _on_generated_data(table, clock)
    model = _fitted_sparse(table.values, table.target, clock)
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
    model = _fitted_sparse(problem.dictionary, problem.responses, clock)
    rows, columns = problem.dictionary.shape
    truth, found = set(problem.support.tolist()), set(model.support_.tolist())
    return [
        Prose(
            f"{problem.responses.shape[1]} responses are combinations of the same {len(truth)} of "
            f"{columns} columns with {rows} rows, plus noise of unknown variance at a "
            "signal-to-noise ratio of 20 dB. The variational autoencoder with a full posterior "
            "covariance (Wipf 2023) estimates which columns they are."
        ),
        Note(
            f"No column of {table.name} was given as a target, so this section uses generated "
            "data; use --target NAME to explain a column of your own."
        ),
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


def _fitted_sparse(dictionary: Matrix, responses: Matrix, clock: Clock) -> Any:
    sizes = f"{count(dictionary.shape[1], 'column')}, {count(responses.shape[1], 'response')}"
    with clock(f"sparsity: {sizes}"), without_convergence_warnings():
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

OTHER_COMMANDS = {
    "lucidae laboratory": "loss landscapes to turn in a browser",
    "lucidae list": "data sets, estimators, methods",
    "lucidae data fetch mnist": "downloads and verifies MNIST",
}

IN_PYTHON = """\
from lucidae import DropoutRegressor, LinearAutoencoder, SparseVAE

model = LinearAutoencoder(n_components=0.9).fit(X)
codes = model.transform(X)              # coordinates along the principal axes, in order
print(model.certificate_)               # distance to the optimum, claim by claim

for batch in stream:                    # exact for any size of the batches
    model.partial_fit(batch)

DropoutRegressor(20, dropout=0.5).fit(X, Y)     # the optimum of dropout training
SparseVAE().fit(Phi, X).support_                # the significant columns"""


def laboratory_section(_table: Table, _clock: Clock) -> list[Block]:
    """Return the laboratory behind a link."""
    return [
        Prose(
            "The laboratory is an interactive page that shows why these models have a known "
            "optimum: loss landscapes of the three families of models, which you can rotate, with "
            "sliders for penalty, dropout and noise, the critical points, and a gradient descent "
            "from any start."
        ),
        Download(
            "Save the laboratory, then open it in a browser", LABORATORY_NAME, laboratory_page()
        ),
        Prose(
            "The laboratory is stored in this report: the link saves it as a file, which works "
            "without an internet connection."
        ),
    ]


def commands_for(table: Table) -> str:
    """Return shell commands with comments, one per line, for the file from which a table was read.

    If the table was not read from a file, the commands name an example file. Names of files and
    columns are quoted as a shell needs it.
    """
    is_file = Path(table.name).suffix.lower() in FILES
    file = quote(table.name) if is_file else "my-data.csv"
    column = (*table.target_names, *table.columns[-1:])[0] if is_file else "price"
    commands = {
        f"lucidae report {file} --out my-report.html": "CSV, NPY, NPZ or Parquet",
        f"lucidae report {file} --target {quote(column)}": f"which columns explain {column}?",
        f"lucidae fit linear {file}": "saves the model and the codes",
    }
    commands |= OTHER_COMMANDS
    width = max(map(len, commands))
    return "\n".join(f"{command:{width}}   # {why}" for command, why in commands.items())


def next_steps_section(table: Table, _clock: Clock) -> list[Block]:
    """Return commands and Python code for the reader's own data."""
    return [
        Prose("The report on a file, and other commands:"),
        Code(commands_for(table)),
        Prose("The same fits in Python; all estimators follow the interface of scikit-learn:"),
        Code(IN_PYTHON),
    ]


SECTIONS: tuple[Section, ...] = (
    Section("data", "The data", data_section),
    Section("linear", "The optimal linear autoencoder", linear_section),
    Section("dropout", "The optimum of dropout training", dropout_section),
    Section("sparsity", "Optimal sparse representations", sparsity_section),
    Section("laboratory", "The laboratory", laboratory_section),
    Section("next", "What to do next", next_steps_section),
)
