"""The `lucidae` command; if packages of the extra `cli` are missing, it says what to install."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lucidae.validation import install_command
from lucidae_command import quiet_interruption

__all__ = ["main"]

MISSING = (
    f"The lucidae command needs packages that are not installed. Run: {install_command('cli')}"
)
PACKAGES = ("jinja2", "matplotlib", "pandas", "rich", "typer")
"""Import names of the packages that the extra `cli` installs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `lucidae` command and exit: with code 0 on success, 2 on an error."""
    try:
        with quiet_interruption():
            from lucidae.cli.app import run
    except ModuleNotFoundError as error:
        if not is_extra(error):
            raise
        print(MISSING, file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(run(sys.argv[1:] if arguments is None else list(arguments)))


def is_extra(error: Exception) -> bool:
    """Tell whether an error is due to a missing package of the optional dependencies `cli`."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return (missing or "").partition(".")[0] in PACKAGES
