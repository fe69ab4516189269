"""Output of all commands on the terminal: results, notes, certificates and progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from lucidae.certificates.claims import Certificate
from lucidae.iteration.progress import silenced

__all__ = [
    "MARKS",
    "errors",
    "note",
    "output",
    "print_certificate",
    "print_line",
    "print_written",
    "printed_warnings",
    "progress_bar",
    "spinner",
]

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

Update: TypeAlias = Callable[[str, int, int], None]
"""Function that updates a progress bar.

Its arguments are a description, the number of finished parts and the number of all parts."""


def print_line(text: str) -> None:
    """Print a line of results on standard output."""
    output.print(Text(text))


def note(sentence: str) -> None:
    """Print a sentence that is not an error on standard error, in yellow."""
    errors.print(Text(sentence, style="yellow"))


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


def _progress(*columns: ProgressColumn) -> Progress:
    """Return a progress display of rich with the elapsed time and the given columns, such as a bar.

    It is shown only if standard error is a terminal, and disappears when the work is finished.
    """
    description = TextColumn("{task.description}", markup=False)
    return Progress(
        *(SpinnerColumn(), description, *columns, TimeElapsedColumn()),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


@contextmanager
def progress_bar(description: str) -> Iterator[Update]:
    """Show a progress bar during the ``with`` block, and yield the function that updates it."""
    with silenced(), _progress(BarColumn(), MofNCompleteColumn()) as progress:
        task = progress.add_task(description, total=None)

        def show(description: str, completed: int, total: int) -> None:
            progress.update(task, description=description, completed=completed, total=total)

        yield show


@contextmanager
def spinner(description: str, delay: float = 2.0) -> Iterator[None]:
    """Show a description and the elapsed time if the ``with`` block takes over `delay` seconds."""
    progress = _progress()
    progress.add_task(description, total=None)
    timer = Timer(delay, progress.start)
    timer.start()
    try:
        with silenced():  # fits inside of the block draw no progress of their own
            yield
    finally:
        timer.cancel()
        timer.join()  # otherwise a display that is just starting would not be stopped
        progress.stop()
