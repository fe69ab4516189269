"""Run all benchmarks, or those that are named: ``python -m benchmarks [linear sparsity …]``.

Options after the names are passed on: ``python -m benchmarks shapes --small``. Without names, those
benchmarks are left out that another one includes, and those that take hours.
"""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent

INCLUDED = {"streams": "peers"}
"""Benchmarks whose rows are part of the table of another one."""

LONG = ("meg", "meg_checks", "meg_real", "meg_zoo")
"""Benchmarks that take hours or need files, and are run only if they are named."""


def names() -> list[str]:
    """Return the names of all benchmarks, which are the modules of this folder."""
    return sorted(path.stem for path in HERE.glob("[a-z]*.py"))


def divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of benchmarks and the options that follow them."""
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return arguments[:count], arguments[count:]


def main(arguments: list[str]) -> int:
    wanted, options = divided(arguments)
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; expected some of {', '.join(names())}")
        return 2
    if options and len(wanted) != 1:
        print(f"options ({' '.join(options)}) were given, expected one benchmark before them")
        return 2
    for name in wanted or [name for name in names() if name not in (*INCLUDED, *LONG)]:
        print(f"\n== {name}", flush=True)
        sys.argv = [name, *options]
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
