"""Steps that an accelerator records once and replays in one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import array_api_compat as compat

from lucidae.arrays.helpers import namespace

Work = Callable[[], Any]
Recorder = Callable[[Work, Work], Work]
"""From a rehearsal, which changes nothing, and work on fixed arrays to what does it again."""


def leaves(state: Any) -> list[Any]:
    """Return the arrays of nested tuples, in order."""
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def copied(state: Any) -> Any:
    """Return nested tuples of fresh arrays."""
    return _rebuilt(state, (namespace(x).asarray(x, copy=True) for x in leaves(state)))


def replayable(step: Callable[..., Any], example: Any) -> Callable[..., Any]:
    """Return `step`, recorded once and replayed in one launch where torch runs on CUDA.

    A step takes a state (nested tuples of arrays), then further arrays if it needs some, then
    plain settings by name, for each of which it is recorded anew; so it is for another shape. It
    must be pure, draw nothing and never wait for the device. The recorded step overwrites and
    returns one state of its own: keep states by its `keeper`. Elsewhere it is `step` itself.
    """
    return Replay(step, _cuda_graph) if _on_cuda(leaves(example)[0]) else step


def keeper(step: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return how to keep a state that a recorded step would overwrite; None for other steps."""
    return step.keep if isinstance(step, Replay) else None


class Replay:
    """A step whose recordings all work on the same arrays: its own state and its own inputs."""

    def __init__(self, step: Callable[..., Any], record: Recorder) -> None:
        self.step, self.record = step, record
        self.own: Any = None
        self.written: set[int] = set()
        self.lent = False
        self.given: tuple[Any, ...] = ()
        self.recorded: dict[tuple[Any, ...], Work] = {}

    def __call__(self, state: Any, *given: Any, **settings: Any) -> Any:
        """Bring state and inputs to where the recording expects them, and replay it."""
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
        """Tell whether a state may be brought to the arrays of the recordings.

        Not if it has another shape, nor if that would write to what a kept state shares.
        """
        if self.own is None or _shapes((state, given)) != _shapes((self.own, self.given)):
            return False
        return not self.lent or _elsewhere(self.own, state) <= self.written

    def _recording(self, settings: dict[str, Any]) -> Work:
        def rehearsal() -> Any:
            return self.step(self.own, *self.given, **settings)

        def work() -> None:
            self.written |= _overwrite(self.own, rehearsal())

        return self.record(rehearsal, work)

    def keep(self, state: Any) -> Any:
        """Return a state that no replay will overwrite, sharing what no replay writes to."""
        if state is not self.own:
            return state
        self.lent = True
        places = enumerate(leaves(state))
        return _rebuilt(state, iter([copied(x) if i in self.written else x for i, x in places]))


def _shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in leaves(state)]


def _rebuilt(state: Any, arrays: Iterator[Any]) -> Any:
    """Return nested tuples like `state` with other arrays."""
    if not isinstance(state, tuple):
        return next(arrays)
    parts = [_rebuilt(part, arrays) for part in state]
    return tuple(parts) if type(state) is tuple else type(state)(*parts)


def _elsewhere(mine: Any, given: Any) -> set[int]:
    """Return the places at which the two have different arrays."""
    pairs = zip(leaves(mine), leaves(given), strict=True)
    return {i for i, (target, source) in enumerate(pairs) if source is not target}


def _overwrite(mine: Any, given: Any) -> set[int]:
    """Copy arrays to where others are, and return the places of those that were not there yet."""
    targets, sources, places = leaves(mine), leaves(given), _elsewhere(mine, given)
    for i in places:
        targets[i][...] = sources[i]
    return places


_RECORDING = threading.Lock()
"""Held while a thread records, or sets its libraries up, which waits for the whole device."""

_STREAMS = threading.local()
"""One stream a thread: they come from a small pool, and none may be the one that records."""


@contextmanager
def own_stream(example: Any) -> Iterator[None]:
    """Work on a stream of this thread's own where torch runs on CUDA: threads then overlap."""
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
        with torch.cuda.stream(side):  # libraries set themselves up outside the recording
            rehearsal()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if own is None:
            _capture(graph, side, work)
        else:  # apart from the streams of all threads
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
    replay: Work = graph.replay
    return replay


def _capture(graph: Any, side: Any, work: Work) -> None:
    """Record on a stream; `torch.cuda.graph` would also empty the cache, which takes long."""
    import torch

    side.synchronize()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
