"""The application (extra `cli`): `lucidae report`, `lucidae laboratory`, and error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from lucidae._version import __version__
from lucidae.datasets import load_digits
from lucidae.rows.tables import Table
from lucidae_app import MISSING, is_extra
from lucidae_app.advice import with_options
from lucidae_app.console import errors, output, print_written
from lucidae_app.files import Force, check_page
from lucidae_app.fit import fit
from lucidae_app.meg import meg
from lucidae_app.preparation import Preparation, Prepared, on_table, preparation
from lucidae_app.streams import summarised_table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


INTERRUPTED = 130  # exit code after Ctrl-C, as shells define it


@app.callback(invoke_without_command=True)
def lucidae(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    _debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    """Autoencoders whose optimum is known, with a certificate for every fit."""
    if version:
        output.print(f"lucidae {__version__}")
    elif context.invoked_subcommand is None:
        output.print(Text.from_ansi(context.get_help()))


@app.command()
@on_table
def report(
    chosen: Preparation,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Data file (CSV, NPY, NPZ or Parquet), one sample per row; by default the digits "
            "of scikit-learn."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Path of the HTML page; an earlier report there is replaced.")
    ] = Path("lucidae-report.html"),
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A column to be explained by the others, by name or 0-based index; repeat the "
            "option for several."
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write a report on your data, or on scikit-learn's digits, as one self-contained HTML page."""
    from lucidae_app.report import write_report  # matplotlib takes a second to import

    check_page(out, [] if file is None else [file], force)
    if file is None:
        if chosen != preparation(standardize=chosen.standardize, targets=target):
            raise ValueError(
                f"The options{chosen.arguments} apply to a data file, but no FILE was given: name "
                "the file, or omit these options."
            )
        digits = load_digits()
        table = Table("the digits", digits.data, tuple(digits.feature_names), digits.image_shape)
        prepared = Prepared(table.with_target(target) if target else table, chosen)
    else:
        summary = None if chosen.missing != "error" else summarised_table(file, chosen)
        prepared = chosen.read(file) if summary is None else Prepared(summary, chosen)
    print_written(write_report(prepared, out))


@app.command()
def laboratory(
    out: Annotated[
        Path, typer.Option(help="Path of the HTML page; an earlier page of lucidae is replaced.")
    ] = Path("lucidae-laboratory.html"),
    force: Force = False,
) -> None:
    """Write the laboratory, loss landscapes to turn and change in a browser, as one HTML page."""
    from lucidae_app.report.page import laboratory_page, write_page  # they import matplotlib

    check_page(out, [], force, kind="page")
    print_written(write_page(out, laboratory_page()))


fit.command("meg")(meg)
app.add_typer(fit, name="fit")
for _point in entry_points(group="lucidae.commands"):  # commands of other packages
    _command = _point.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_point.name)
    else:
        app.command(_point.name)(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(arguments), prog_name="lucidae", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            errors.print_exception()
        errors.print(Text(_sentence(error), style="red"))
        return 2
    if code == INTERRUPTED:  # typer turns an interruption of a command into this code
        errors.print("Interrupted.", style="red")
    return code if isinstance(code, int) else 0


def _sentence(error: Exception) -> str:
    """Return the message of an error as one line of text, with its type if it is unexpected."""
    if is_extra(error):
        return MISSING
    # Usage errors format their own message; typer exports no base class of all of them.
    wording = getattr(error, "format_message", error.__str__)()
    if (context := getattr(error, "ctx", None)) is not None:
        wording = re.sub(r"Value error, |\.$|(?<=\?)\.", "", wording)
        if "command" in wording and "?" not in wording:  # it is missing, or there is none like it
            wording += f", expected one of {', '.join(context.command.commands)}"
        end = "" if wording.endswith("?") else "."
        wording = f"{wording}{end} See {context.command_path} --help."
    if isinstance(error, OSError) and error.strerror and error.filename:
        wording = f"{error.strerror}: {error.filename!r}"  # without the number of the error
    text = with_options(" ".join(str(wording).split()) or type(error).__name__)
    expected = isinstance(error, (ValueError, OSError)) or hasattr(error, "format_message")
    return text if expected else f"{type(error).__name__}: {text} (--debug prints the traceback)"
