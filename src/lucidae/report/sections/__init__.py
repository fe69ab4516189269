"""The sections of the report, in their order."""

from __future__ import annotations

from lucidae.io.tables import Table
from lucidae.report.blocks import Block, Clock, Code, Download, Prose, Section
from lucidae.report.laboratory import FILE_NAME, laboratory_page
from lucidae.report.sections import data, dropout, linear, sparsity

ON_YOUR_DATA = """\
lucidae report my-data.csv --out my-report.html   # CSV, NPY, NPZ or Parquet
lucidae report my-data.csv --target price         # which columns explain the price?
lucidae laboratory                                # loss landscapes to turn in a browser
lucidae list                                      # data sets, estimators, methods
lucidae data fetch mnist                          # downloads and verifies MNIST"""

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
            "The laboratory shows why these models have a known optimum: loss landscapes of the "
            "three families that you can turn, with sliders for penalty, dropout and noise, the "
            "critical points, and a descent from any start."
        ),
        Download("Save the laboratory, then open it in a browser", FILE_NAME, laboratory_page()),
        Prose("This page contains the laboratory; the saved file works without a network."),
    ]


def _next_steps(_table: Table, _clock: Clock) -> list[Block]:
    """Return the parts of the last section: commands and Python code for the reader's own data."""
    return [
        Prose("The report on your own file, and other commands:"),
        Code(ON_YOUR_DATA),
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
