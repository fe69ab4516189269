"""The command line application (extra `cli`): its commands and one-line error messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.text import Text

from lucidae._version import __version__
from lucidae_app import MISSING, is_extra
from lucidae_app.console import errors, output
from lucidae_app.fit import fit
from lucidae_app.meg import meg
from lucidae_app.report_commands import laboratory, report

__all__ = ["run"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
app.command("report")(report)
app.command("laboratory")(laboratory)
fit.command("meg")(meg)
app.add_typer(fit, name="fit")
for _point in entry_points(group="lucidae.commands"):  # commands of other packages
    _command = _point.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_point.name)
    else:
        app.command(_point.name)(_command)


INTERRUPTED = 130
"""Exit code of a command interrupted by Ctrl-C, as shells define it."""


@dataclass(slots=True)
class CommandState:
    """Options given before the name of a command, as ``--debug`` in ``lucidae --debug fit``."""

    debug: bool = False


@app.callback(invoke_without_command=True)
def lucidae(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error.")
    ] = False,
) -> None:
    """Autoencoders whose optimum is known, with a certificate for every fit."""
    context.obj.debug = debug
    if version:
        output.print(f"lucidae {__version__}")
    elif context.invoked_subcommand is None:
        output.print(Text.from_ansi(context.get_help()))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    settings = CommandState(debug="--debug" in arguments)
    command = typer.main.get_command(app)
    try:
        code = command.main(
            list(arguments), prog_name="lucidae", standalone_mode=False, obj=settings
        )
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if settings.debug:
            errors.print_exception()
        errors.print(Text(_sentence(error), style="red"))
        return 2
    if code == INTERRUPTED:  # typer turns an interruption of a command into this code
        errors.print("Interrupted.", style="red")
    return code if isinstance(code, int) else 0


def _sentence(error: Exception) -> str:
    """Return the message of an error as one line of text.

    The type of the error is added if it is neither a ValueError, an OSError nor a usage error.
    """
    if is_extra(error):
        return MISSING
    # Usage errors format their own message; typer exports no base class of all of them.
    wording = getattr(error, "format_message", error.__str__)()
    if isinstance(error, OSError) and error.strerror and error.filename:
        wording = f"{error.strerror}: {error.filename!r}"  # without the number of the error
    text = " ".join(str(wording).split()) or type(error).__name__
    if "handle_missing" in text:
        from lucidae.linear.missing import without_setting

        text = without_setting(text)
    expected = isinstance(error, (ValueError, OSError)) or hasattr(error, "format_message")
    return text if expected else f"{type(error).__name__}: {text} (--debug prints the traceback)"
