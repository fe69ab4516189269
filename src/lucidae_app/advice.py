"""Advice of the library in the words of the command: options in place of arguments."""

from __future__ import annotations

import csv
import io
import re
from ast import literal_eval
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

from lucidae.linear.estimator import IN_BLOCKS, IN_MEMORY

GAPS = "Give --missing em, --missing drop or --missing mean."
OPTIONS: dict[str, str | Callable[[re.Match[str]], str]] = {
    re.escape(f"Remove or impute such rows first. {IN_BLOCKS}"): GAPS,
    re.escape("Remove or impute such rows first."): GAPS,
    re.escape(IN_MEMORY): GAPS,
    r"by lucidae\.datasets\.read_table\(path, missing_values=\[(.*?)(?:, …)?\]\), or "
    r"--missing-values on the command line": lambda found: (
        f"by --missing-values {quote(joined(literal_eval(f'[{found[1]}]')))}"
    ),
    r"by lucidae\.datasets\.read_table\(path, header=True\) or header=False, or by": "by",
    "or leave the column out": "or choose other columns with --columns",
    r"decimal='.' \((--decimal .)\)": r"\1",
    "leave out header and decimal": "leave out --header and --decimal",
    r"\bn_components='?([\w.]+)'?": r"--components \1",
    r"\bn_components\b": "--components",
    r"\bnoise_variance=(\S+) was given": r"--noise-variance \1 was given",
    r"\brandom_state=(\S+) was given": r"--seed \1 was given",
    r"\b(method|solver|posterior|groups|dropout)='?(.*?)'? was given": r"--\1 \2 was given",
    r"\bsolver='(\w+)'": r"--solver \1",
    r", scale the columns\.": ", scale the columns (--standardize).",
    r"\b([Rr]aise|[Ll]ower|[Ii]ncrease) (max_iter|tol)\b": r"\1 \2 (in Python)",
    r" Other methods must be registered first, by lucidae\.linear\.register_method\.": "",
}
"""Advice of the library, as patterns, and the option of the command that stands for it."""


def with_options(text: str) -> str:
    """Return a message of the library with the options of the command in its advice."""
    for said, option in OPTIONS.items():
        text = re.sub(said, option, text)
    return text


def joined(cells: Sequence[Any]) -> str:
    """Return cells as one argument, separated by commas, in quotes where CSV needs them."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow(cells)
    return stream.getvalue()
