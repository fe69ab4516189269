"""Output of all commands on the terminal: results, notes, certificates and progress."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lucidae.certificates.claims import Certificate
from lucidae.iteration.progress import elapsed, silenced
from lucidae_app.advice import with_options

output = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

MARKS = {
    "holds": ("✓", "green"),
    "fails": ("✗", "red"),
    "undecided": ("?", "yellow"),
    "reported": ("–", "dim"),
    "does not apply": ("–", "dim"),
}
"""Symbol and colour of a claim of a certificate, by the verdict on the claim."""


def print_line(text: str) -> None:
    """Print a line of results on standard output."""
    output.print(Text(text))


def note(sentence: str) -> None:
    """Print a sentence that is not an error on standard error, in yellow."""
    errors.print(Text(with_options(sentence), style="yellow"))


def print_written(path: Path) -> None:
    """Print the full path of a file that was written."""
    output.print(f"[green]Written:[/green] {escape(str(path.resolve()))}")


def print_certificate(certificate: Certificate) -> None:
    """Print a certificate: as a table on a terminal, otherwise as plain text."""
    if output.is_terminal:
        output.print(certificate_table(certificate), soft_wrap=False)
    else:
        output.print(Text(certificate.summary()))


def certificate_table(certificate: Certificate) -> Table:
    """Return a certificate as a table for the terminal, with one row for each claim."""
    headline = Text(certificate.summary().partition("\n")[0], style="bold")
    table = Table(title=headline, title_justify="left", box=None, header_style="dim")
    for heading in ("", "claim", "measured", "statement"):
        table.add_column(heading, no_wrap=heading != "statement")
    for claim in certificate:
        said = Text.assemble(claim.statement, " ", (f"[{claim.reference}]", "dim"))
        if claim.advice:
            said.append(f"\n{claim.advice}", "yellow")
        table.add_row(Text(*MARKS[claim.verdict]), claim.name, claim.figure, said)
    return table


@contextmanager
def printed_warnings() -> Iterator[None]:
    """Print each different warning raised in the ``with`` block once, as one line, at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for sentence in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        note(sentence)


@contextmanager
def timed(description: str) -> Iterator[None]:
    """Show a description and the elapsed time on a terminal if the ``with`` block takes long.

    Fits inside of the block show no progress of their own.
    """
    with elapsed(description), silenced():
        yield
