"""What the chapters share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.exceptions import ConvergenceWarning


def count(number: int, thing: str) -> str:
    """Return a number with its noun: one component, 3 components."""
    return f"one {thing}" if number == 1 else f"{number} {thing}s"


@contextmanager
def quietly() -> Iterator[None]:
    """Hold back warnings of unfinished training: the certificate says so where a reader looks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
