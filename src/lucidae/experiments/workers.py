"""Worker processes that end when the process that started them is gone."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["end_with_parent"]

PAUSE = 0.5
"""Seconds between two tests."""

_watching = threading.Event()


def end_with_parent(parent: int) -> None:
    """Start a thread, once per process, that ends this process when its parent is gone.

    A parent that is killed cannot stop its workers, which would go on for hours.

    Parameters
    ----------
    parent : int
        Process number of the parent. Nothing happens if it is not the parent of this process, as
        in a thread of the parent itself.
    """
    if os.getppid() == parent and not _watching.is_set():
        _watching.set()
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    os._exit(1)
