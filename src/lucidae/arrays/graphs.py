"""Iteration steps that are recorded as CUDA graphs, so that a step needs one launch.

A step on small arrays consists of many short CUDA kernels, whose launches take longer than their
work. A CUDA graph records the kernels once, with the addresses of all arrays, and launches them
together. A replay of the graph therefore always reads and writes the same arrays. `Replay` copies
states to these arrays and stores which of them are overwritten.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import array_api_compat as compat

from lucidae.arrays import namespace
from lucidae.arrays.threads import fork_safe

Work = Callable[[], Any]
Recorder = Callable[[Work, Work], Work]
"""A function that takes `rehearsal` and `work`, and returns a function that replays `work`.

It calls `rehearsal` once, so that libraries are initialised, and then records the CUDA kernels of
`work`, which reads and writes fixed arrays."""


def leaves(state: Any) -> list[Any]:
    """Return a flat list of the arrays in `state`, an array or nested tuples of arrays."""
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def copied(state: Any) -> Any:
    """Return nested tuples with copies of the arrays."""
    return rebuilt(state, (namespace(x).asarray(x, copy=True) for x in leaves(state)))


def replayable(step: Callable[..., Any], example: Any) -> Callable[..., Any]:
    """Return `step` as a CUDA graph if `example` has torch arrays on CUDA, else `step` itself."""
    return Replay(step, _cuda_graph) if _on_cuda(leaves(example)[0]) else step


def keeper(step: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return the function that copies a state before `step` overwrites it; None if it does not."""
    return step.keep if isinstance(step, Replay) else None


class Replay:
    """A step that is recorded as a CUDA graph and then replayed."""

    def __init__(self, step: Callable[..., Any], record: Recorder) -> None:
        self.step, self.record = step, record
        self.own: Any = None
        self.written: set[int] = set()
        self.lent = False
        self.given: tuple[Any, ...] = ()
        self.replay: Work | None = None

    def __call__(self, state: Any, *given: Any) -> Any:
        """Return the state after one step, recorded now if it was not with these shapes."""
        if state is not self.own or given:  # most states are the last result, which is in place
            if not self._fits(state, given):
                self.own, self.given, self.replay = copied(state), copied(given), None
                self.written, self.lent = set(), False
            _overwrite(self.own, state)
            _overwrite(self.given, given)
        if self.replay is None:
            try:
                self.replay = self.record(self._work, self._update)
            except (
                RuntimeError
            ):  # torch cannot record one of the functions, such as a factorisation
                self.replay = self._update
        self.replay()
        return self.own

    def _fits(self, state: Any, given: Any) -> bool:
        """Tell whether a state and further inputs may be copied to the fixed arrays.

        They may not if shapes differ, or if the copy would overwrite an array that a state returned
        by `keep` shares; then new fixed arrays are made.
        """
        if self.own is None or _shapes((state, given)) != _shapes((self.own, self.given)):
            return False
        return not self.lent or _different(self.own, state) <= self.written

    def _work(self) -> Any:
        return self.step(self.own, *self.given)

    def _update(self) -> None:
        self.written |= _overwrite(self.own, self._work())

    def keep(self, state: Any) -> Any:
        """Return `state` with copies of those arrays that a replay overwrites."""
        if state is not self.own:
            return state
        self.lent = True
        arrays = leaves(state)
        copies = iter(copied(tuple(x for i, x in enumerate(arrays) if i in self.written)))
        kept = [next(copies) if i in self.written else x for i, x in enumerate(arrays)]
        return rebuilt(state, iter(kept))


def _shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in leaves(state)]


def rebuilt(state: Any, arrays: Iterator[Any]) -> Any:
    """Return nested tuples of the same structure as `state`, filled with `arrays` in order."""
    if not isinstance(state, tuple):
        return next(arrays)
    parts = [rebuilt(part, arrays) for part in state]
    return tuple(parts) if type(state) is tuple else type(state)(*parts)


def _different(mine: Any, given: Any) -> set[int]:
    """Return the positions at which the nested tuples `mine` and `given` have different arrays."""
    pairs = zip(leaves(mine), leaves(given), strict=True)
    return {i for i, (target, source) in enumerate(pairs) if source is not target}


def _overwrite(mine: Any, given: Any) -> set[int]:
    """Copy the arrays of `given` into those of `mine`; return the positions of different arrays."""
    targets, sources, positions = leaves(mine), leaves(given), _different(mine, given)
    for i in positions:
        targets[i][...] = sources[i]
    return positions


_RECORDING = fork_safe(threading.Lock())
"""Lock that is held while a CUDA graph is recorded or a CUDA library is initialised, because both
wait for the device."""

_STREAMS = threading.local()
"""The CUDA stream of each Python thread. A stream is made once per thread, because torch's pool of
streams is small."""


@contextmanager
def own_stream(example: Any) -> Iterator[None]:
    """Run a ``with`` block on a CUDA stream of this Python thread, beside those of others."""
    if not _on_cuda(example):
        yield
        return
    import torch

    if not hasattr(_STREAMS, "own"):
        with _RECORDING:
            _STREAMS.own = torch.cuda.Stream()
            with torch.cuda.stream(_STREAMS.own):
                one = torch.ones((1, 1, 1), dtype=torch.float64, device=example.device)
                torch.bmm(one, one) + one[0] @ one[0]
            _STREAMS.own.synchronize()
    with torch.cuda.stream(_STREAMS.own):
        yield


def _on_cuda(x: Any) -> bool:
    return bool(compat.is_torch_array(x) and x.is_cuda)


def _cuda_graph(rehearsal: Work, work: Work) -> Work:
    import torch

    own = getattr(_STREAMS, "own", None)
    with _RECORDING:
        current = torch.cuda.current_stream()
        side = own or torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):  # cuBLAS and others initialise outside the recording
            rehearsal()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with _without_collection():
            if own is None:
                _capture(graph, side, work)
            else:  # torch records on a stream that no thread uses
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    work()
    replay: Work = graph.replay
    return replay


@contextmanager
def _without_collection() -> Iterator[None]:
    """Switch Python's garbage collector off for a ``with`` block.

    If it deleted an earlier graph during a recording, the recording would end with an error.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _capture(graph: Any, side: Any, work: Work) -> None:
    """Record the CUDA kernels of `work` into `graph`, using the stream `side`.

    The context manager `torch.cuda.graph` would also empty the memory cache, which is slow.
    """
    import torch

    side.synchronize()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
