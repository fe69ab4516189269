"""What a command says on a terminal: certificates, notes, files, and that it is still at work."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lucidae.certificate import Certificate, Claim

__all__ = ["note", "tell", "tell_certificate", "tell_written", "told_warnings", "waiting"]

output = Console(soft_wrap=True, highlight=False)
errors = Console(stderr=True, soft_wrap=True, highlight=False)

MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "dim")}


def tell(sentence: str) -> None:
    """Say a result."""
    output.print(Text(sentence))


def note(sentence: str) -> None:
    """Say something that a user should know but that stops nothing."""
    errors.print(Text(sentence, style="yellow"))


def tell_certificate(certificate: Certificate) -> None:
    """Print a certificate: a table that fits a terminal, its plain summary elsewhere."""
    if output.is_terminal:
        output.print(certificate_table(certificate), soft_wrap=False)
    else:
        output.print(Text(certificate.summary()))


def certificate_table(certificate: Certificate) -> Table:
    """Return a certificate as a table with its statements wrapped.

    Examples
    --------
    >>> from lucidae.certificate import at_most
    >>> claims = (at_most("gap", "the loss is the minimum", "a theorem", 0.0, 1.0),)
    >>> certificate_table(Certificate("a fit", claims)).row_count
    1
    """
    headline = Text(certificate.summary().partition("\n")[0], style="bold")
    table = Table(title=headline, title_justify="left", box=None, header_style="dim")
    for heading in ("", "claim", "measured", "statement"):
        table.add_column(heading, no_wrap=heading != "statement")
    for claim in certificate:
        table.add_row(Text(*MARKS[claim.holds]), claim.name, claim.figure, _statement(claim))
    return table


def _statement(claim: Claim) -> Text:
    advice = f"\n{claim.advice}" if claim.advice else ""
    return Text.assemble(claim.statement, " ", (f"[{claim.reference}]", "dim"), (advice, "yellow"))


def tell_written(path: Path) -> None:
    """Say where a file is."""
    output.print(f"[green]Written:[/green] {escape(str(path.resolve()))}")


@contextmanager
def told_warnings() -> Iterator[None]:
    """Say each warning that is meant for users once, in one sentence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for sentence in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        note(sentence)


@contextmanager
def waiting(title: str, patience: float = 2.0) -> Iterator[None]:
    """Show what goes on and for how long, on a terminal, once it takes `patience` seconds."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    spinner = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    spinner.add_task(title, total=None)
    timer = Timer(patience, spinner.start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a spinner that has just begun must not outlive the work
        spinner.stop()
