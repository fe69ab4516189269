"""The sections of the report, in their order."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from lucidae.data.files import FILES
from lucidae.data.tables import Table
from lucidae_app.report.blocks import Block, Clock, Code, Download, Prose, Section
from lucidae_app.report.laboratory import FILE_NAME, laboratory_page
from lucidae_app.report.sections import data, dropout, linear, sparsity

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


def _laboratory(_table: Table, _clock: Clock) -> list[Block]:
    """Return the section on the laboratory, with the whole laboratory behind a link."""
    return [
        Prose(
            "The laboratory is an interactive page that shows why these models have a known "
            "optimum: loss landscapes of the three families of models, which you can rotate, with "
            "sliders for penalty, dropout and noise, the critical points, and a gradient descent "
            "from any start."
        ),
        Download("Save the laboratory, then open it in a browser", FILE_NAME, laboratory_page()),
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
    target = f"lucidae report {file} --target {quote(column)}"
    commands = {
        f"lucidae report {file} --out my-report.html": "CSV, NPY, NPZ or Parquet",
        target: f"which columns explain {column}?",
        f"lucidae fit linear {file}": "saves the model and the codes",
    }
    commands |= OTHER_COMMANDS
    width = max(map(len, commands))
    return "\n".join(f"{command:{width}}   # {why}" for command, why in commands.items())


def _next_steps(table: Table, _clock: Clock) -> list[Block]:
    """Return the parts of the last section: commands and Python code for the reader's own data."""
    return [
        Prose("The report on a file, and other commands:"),
        Code(commands_for(table)),
        Prose("The same fits in Python; all estimators follow the interface of scikit-learn:"),
        Code(IN_PYTHON),
    ]


SECTIONS: tuple[Section, ...] = (
    data.SECTION,
    linear.SECTION,
    dropout.SECTION,
    sparsity.SECTION,
    Section("laboratory", "The laboratory", _laboratory),
    Section("next", "What to do next", _next_steps),
)
