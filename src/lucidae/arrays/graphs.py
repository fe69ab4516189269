"""Steps that are recorded as CUDA graphs and replayed with one launch.

A small step consists of many short kernels, whose launches take longer than their work. A CUDA
graph records them once, with the addresses of all arrays, and launches them together. A replay
therefore always reads and writes the same arrays; `Replay` copies states to them and knows which of
them it overwrites.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import array_api_compat as compat

from lucidae.arrays.helpers import namespace

Work = Callable[[], Any]
Recorder = Callable[[Work, Work], Work]
"""Record `work` on fixed arrays and return its replay; `rehearsal` runs first to warm up."""


def leaves(state: Any) -> list[Any]:
    """Return the arrays of nested tuples, in order."""
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def copied(state: Any) -> Any:
    """Return nested tuples with copies of all arrays."""
    return _rebuilt(state, (namespace(x).asarray(x, copy=True) for x in leaves(state)))


def replayable(step: Callable[..., Any], example: Any) -> Callable[..., Any]:
    """Return `step` as a recorded step if `example` is a torch array on CUDA, else `step` itself.

    A step takes a state (nested tuples of arrays), further arrays if it needs some, and settings by
    name. It is recorded again for other settings and other shapes. It must be pure, draw no random
    numbers and not wait for the device. The recorded step overwrites and returns a state of its
    own; states that are needed later must be copied by its `keeper`.
    """
    return Replay(step, _cuda_graph) if _on_cuda(leaves(example)[0]) else step


def keeper(step: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return the function that copies a state of a recorded step; None for other steps."""
    return step.keep if isinstance(step, Replay) else None


class Replay:
    """A step whose recordings all use the same arrays: its own state and its own inputs.

    Attributes
    ----------
    own : nested tuples of arrays
        The state that every replay reads and then overwrites with its result.
    written : set of int
        Positions of the arrays of `own` that a replay overwrites. A step returns unchanged data as
        the same array; such arrays are not copied, and not written by the recording.
    lent : bool
        Whether `keep` has returned a state that shares the arrays of `own` that are not written.
    given : tuple of arrays
        Copies of the further inputs, at the addresses that the recordings read.
    recorded : dict
        From the settings to the function that replays their recording.
    """

    def __init__(self, step: Callable[..., Any], record: Recorder) -> None:
        self.step, self.record = step, record
        self.own: Any = None
        self.written: set[int] = set()
        self.lent = False
        self.given: tuple[Any, ...] = ()
        self.recorded: dict[tuple[Any, ...], Work] = {}

    def __call__(self, state: Any, *given: Any, **settings: Any) -> Any:
        """Copy state and inputs to the arrays of the recording, and replay it."""
        if not self._fits(state, given):
            self.own, self.given, self.recorded = copied(state), copied(given), {}
            self.written, self.lent = set(), False
        _overwrite(self.own, state)
        _overwrite(self.given, given)
        key = tuple(sorted(settings.items()))
        if key not in self.recorded:
            self.recorded[key] = self._recording(settings)
        self.recorded[key]()
        return self.own

    def _fits(self, state: Any, given: Any) -> bool:
        """Tell whether a state may be copied to the arrays of the recordings.

        It may not if its shapes differ, or if the copy would overwrite an array that is not in
        `written` after `keep` has returned a state that shares it. New arrays are made then.
        """
        if self.own is None or _shapes((state, given)) != _shapes((self.own, self.given)):
            return False
        return not self.lent or _different(self.own, state) <= self.written

    def _recording(self, settings: dict[str, Any]) -> Work:
        def rehearsal() -> Any:
            return self.step(self.own, *self.given, **settings)

        def work() -> None:
            self.written |= _overwrite(self.own, rehearsal())

        return self.record(rehearsal, work)

    def keep(self, state: Any) -> Any:
        """Return a state that no replay overwrites; it shares the arrays that no replay writes."""
        if state is not self.own:
            return state
        self.lent = True
        arrays = enumerate(leaves(state))
        return _rebuilt(state, iter([copied(x) if i in self.written else x for i, x in arrays]))


def _shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in leaves(state)]


def _rebuilt(state: Any, arrays: Iterator[Any]) -> Any:
    """Return nested tuples like `state` with the given arrays."""
    if not isinstance(state, tuple):
        return next(arrays)
    parts = [_rebuilt(part, arrays) for part in state]
    return tuple(parts) if type(state) is tuple else type(state)(*parts)


def _different(mine: Any, given: Any) -> set[int]:
    """Return the positions at which the two have different arrays."""
    pairs = zip(leaves(mine), leaves(given), strict=True)
    return {i for i, (target, source) in enumerate(pairs) if source is not target}


def _overwrite(mine: Any, given: Any) -> set[int]:
    """Copy the arrays of `given` into those of `mine`; return the positions of the copied ones."""
    targets, sources, positions = leaves(mine), leaves(given), _different(mine, given)
    for i in positions:
        targets[i][...] = sources[i]
    return positions


_RECORDING = threading.Lock()
"""Lock for recordings and for the initialisation of libraries, which synchronise the device."""

_STREAMS = threading.local()
"""One stream per thread; torch's pool of streams is small, and a recording needs one of its own."""


@contextmanager
def own_stream(example: Any) -> Iterator[None]:
    """Use a CUDA stream of this thread's own, so that the work of several threads can overlap."""
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
        if own is None:
            _capture(graph, side, work)
        else:  # torch records on a stream that no thread uses
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
    replay: Work = graph.replay
    return replay


def _capture(graph: Any, side: Any, work: Work) -> None:
    """Record on a stream; `torch.cuda.graph` would also empty the memory cache, which is slow."""
    import torch

    side.synchronize()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
