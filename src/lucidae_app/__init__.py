"""The `lucidae` command (extra `cli`), which ends without a traceback if it is interrupted.

Importing this module takes no time: everything else is imported by `main`, where Ctrl-C is handled.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["main"]

# what the extra `cli` installs
PACKAGES = ("jinja2", "matplotlib", "pandas", "rich", "skops", "typer")
MISSING = (
    "The lucidae command needs packages that are not installed. Run: "
    'pip install "lucidae[cli]", or in a clone of lucidae pip install ".[cli]"'
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the `lucidae` command and exit: with code 0 on success, 2 on an error.

    Without `arguments`, those of the shell are used.
    """
    try:
        with quiet_interruption():
            from lucidae_app.app import run
    except ModuleNotFoundError as error:
        if not is_extra(error):
            raise
        print(MISSING, file=sys.stderr)
        raise SystemExit(2) from None
    try:
        code = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:  # a second one, while the first is handled
        _end()
    finally:
        if arguments is None:
            signal.signal(signal.SIGINT, _end)  # from now on Python only shuts down
    raise SystemExit(code)


@contextmanager
def quiet_interruption() -> Iterator[None]:
    """End the process at once, without a traceback, if Ctrl-C is pressed in the ``with`` block.

    It is for code that has nothing to clean up, such as imports: an exception would pass through
    half-imported modules, and a second Ctrl-C would print a traceback while the first is handled.
    """
    before: Any = None
    with suppress(ValueError):  # handlers can be set in the main thread only
        before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _end(_number: int = 0, _frame: Any = None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would print the line again
    os.write(2, b"Interrupted.\n")
    os._exit(130)


def is_extra(error: Exception) -> bool:
    """Tell whether an error is due to a missing package of the extra `cli`."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return (missing or "").partition(".")[0] in PACKAGES
