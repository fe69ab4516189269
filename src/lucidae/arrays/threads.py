"""Numbers of threads: limits for BLAS, and Python threads that share a loop over rows.

NumPy and SciPy are installed with one BLAS library each, and each library has its own pool of
threads. A thread of a pool that has finished its part waits actively for the next one, for some
hundredths of a second. Where calls of both libraries alternate, the waiting threads of one take
processor time from the other, and small problems take several times as long as with one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import pairwise
from pathlib import PurePath
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")

SPARSE_ENTRIES = 2**22
"""Smallest number of stored entries of sparse rows whose products several threads share: a product
with one vector then takes 4 ms, and starting a thread 0.1 ms."""


def fork_safe(lock: Any) -> Any:
    """Return `lock`, a lock of `threading`, which is free in every process forked from now on.

    A forked process has only the thread that called ``fork``. A lock that another thread held at
    this moment would stay locked there for ever.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


_LIMITED = fork_safe(Lock())
"""Lock that is held while a number of threads is limited to one."""

_PERMITTED: list[int] = []
"""The number of threads before the present limit; empty if there is no limit."""


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def _scipy_alone() -> ThreadpoolController | None:
    """Return a controller of the BLAS library that SciPy alone uses; None if NumPy uses it too."""
    libraries = _controller().select(user_api="blas").lib_controllers
    own = [
        library.filepath
        for library in libraries
        if {"scipy.libs", "scipy"} & set(PurePath(library.filepath).parts)
    ]
    return _controller().select(filepath=own) if own and len(libraries) > len(own) else None


@contextmanager
def one_thread(controller: ThreadpoolController | None = None) -> Iterator[None]:
    """Run a ``with`` block in which BLAS, or a `controller` of BLAS libraries, uses one thread.

    Most BLAS libraries have one number of threads for the whole process. If each Python thread
    stored and restored this number by itself, one that enters while another is inside would store
    1 as the original number, and leave the process at one thread. So the Python thread that enters
    first sets the limit and restores the number, and the others change nothing.
    """
    if not _LIMITED.acquire(blocking=False):
        yield
        return
    try:
        _PERMITTED[:] = [blas_threads()]
        with (controller or _controller()).limit(limits=1, user_api="blas"):
            yield
    finally:
        _PERMITTED.clear()
        _LIMITED.release()


def one_scipy_thread(wanted: bool = True) -> AbstractContextManager[None]:
    """Limit SciPy's BLAS library to one thread in a ``with`` block, if it is not NumPy's."""
    controller = _scipy_alone() if wanted else None
    return nullcontext() if controller is None else one_thread(controller)


def blas_threads() -> int:
    """Return the number of threads that BLAS may use, or might before `one_thread` was entered."""
    if _PERMITTED:
        return _PERMITTED[0]
    libraries = _controller().select(user_api="blas").lib_controllers
    return max(1, min((library.num_threads for library in libraries), default=1))


def in_threads(part: Callable[[int, int], Result], n_rows: int, threads: int) -> list[Result]:
    """Return ``part(first, last)`` for consecutive ranges of rows, each in another thread."""
    threads = min(threads, n_rows)
    if threads <= 1:
        return [part(0, n_rows)]
    ends = [n_rows * i // threads for i in range(threads + 1)]
    return in_each_thread(lambda pair: part(*pair), list(pairwise(ends)))


def in_each_thread(function: Callable[[Any], Result], parts: Sequence[Any]) -> list[Result]:
    """Return the results of a function for all parts, each computed in another thread."""
    if len(parts) == 1:
        return [function(parts[0])]
    with ThreadPoolExecutor(len(parts) - 1) as pool:
        others = pool.map(function, parts[1:])
        return [function(parts[0]), *others]


def row_parts(X: Any) -> list[Any]:
    """Return views of consecutive rows of a sparse matrix in CSR format, one for each thread.

    SciPy multiplies sparse matrices by one thread.
    """
    n, threads = X.shape[0], blas_threads() if X.nnz >= SPARSE_ENTRIES else 1
    if threads == 1:
        return [X]
    ends, found = [n * i // threads for i in range(threads + 1)], []
    for first, last in pairwise(ends):
        stored = slice(X.indptr[first], X.indptr[last])
        arrays = X.data[stored], X.indices[stored], X.indptr[first : last + 1] - stored.start
        found.append(type(X)(arrays, shape=(last - first, X.shape[1]), copy=False))
    return found
