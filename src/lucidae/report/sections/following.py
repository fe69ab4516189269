"""Last chapter: what a reader can do next."""

from __future__ import annotations

from lucidae.io.tables import Table
from lucidae.report.blocks import Block, Clock, Code, Prose, Section

ON_YOUR_DATA = """\
lucidae report my-data.csv --out my-report.html   # CSV, NPY, NPZ or Parquet
lucidae report my-data.csv --target price         # which columns explain the price?
lucidae list                                      # data sets, estimators, methods
lucidae data fetch mnist                          # verified, kept for the next time"""

IN_PYTHON = """\
from lucidae import DropoutRegressor, LinearAutoencoder, SparseVAE

model = LinearAutoencoder(n_components=0.9).fit(X)
codes = model.transform(X)              # ordered, axis-aligned
print(model.certificate_)               # how far from the optimum, and why

for batch in stream:                    # exact, whatever the size of the batches
    model.partial_fit(batch)

DropoutRegressor(20, dropout=0.5).fit(X, Y)     # what dropout training converges to
SparseVAE().fit(Phi, X).support_                # the columns that count"""


def build(_table: Table, _clock: Clock) -> list[Block]:
    """Show the commands and the lines of Python that lead on."""
    return [
        Prose("The same page on a file of yours, and what else the command knows:"),
        Code(ON_YOUR_DATA),
        Prose("The same fits in Python, wherever scikit-learn's estimators go:"),
        Code(IN_PYTHON),
    ]


SECTION = Section("next", "What to do next", build)
