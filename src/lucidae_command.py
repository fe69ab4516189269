"""Entry point of the `lucidae` command, which ends without a traceback if it is interrupted.

It is a module outside the package `lucidae`, because importing the package takes a second, in which
a user may already press Ctrl-C.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["main", "quiet_interruption"]


@contextmanager
def quiet_interruption() -> Iterator[None]:
    """End the process at once, without a traceback, if Ctrl-C is pressed in the ``with`` block.

    Use it for code that has nothing to clean up, such as imports. An exception would pass through
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
    """Print "Interrupted." and end the process with exit code 130."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would print the line again
    os.write(2, b"Interrupted.\n")
    os._exit(130)


def main() -> None:
    """Run the command line with the arguments of the shell, and exit."""
    with quiet_interruption():
        from lucidae.cli import main as run
    try:
        run()
    except KeyboardInterrupt:  # a second one, while the first is handled
        _end()
    finally:
        signal.signal(signal.SIGINT, _end)  # from now on Python only shuts down


if __name__ == "__main__":
    main()
