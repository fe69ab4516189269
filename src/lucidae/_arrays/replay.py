"""Steps that an accelerator records once and replays in one launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import array_api_compat as compat

from lucidae._arrays.helpers import namespace

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
    if isinstance(state, tuple):
        parts = [copied(part) for part in state]
        return tuple(parts) if type(state) is tuple else type(state)(*parts)
    return namespace(state).asarray(state, copy=True)


def replayable(step: Callable[..., Any], example: Any, after: int = 0) -> Callable[..., Any]:
    """Return `step`, recorded once and replayed in one launch where torch runs on CUDA.

    A step takes a state (nested tuples of arrays), then further arrays if it needs some, then
    plain settings by name, for each of which it is recorded anew; so it is for another shape. It
    must be pure, draw nothing and never wait for the device. The recorded step overwrites and
    returns one state of its own: keep states by its `keeper`. Elsewhere it is `step` itself.

    Where shapes change now and then, recording pays only for those that stay: the first `after`
    calls of a shape are plain ones.
    """
    return Replay(step, _cuda_graph, after) if _on_cuda(leaves(example)[0]) else step


def keeper(step: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Return how to keep a state that a recorded step would overwrite; None for other steps."""
    return copied if isinstance(step, Replay) else None


class Replay:
    """A step whose recordings all work on the same arrays: its own state and its own inputs."""

    def __init__(self, step: Callable[..., Any], record: Recorder, after: int = 0) -> None:
        self.step, self.record, self.after = step, record, after
        self.shapes: list[tuple[int, ...]] = []
        self.calls = 0
        self.own: Any = None
        self.given: tuple[Any, ...] = ()
        self.recorded: dict[tuple[Any, ...], Work] = {}

    def __call__(self, state: Any, *given: Any, **settings: Any) -> Any:
        """Bring state and inputs to where the recording expects them, and replay it."""
        shapes = _shapes((state, given))
        if shapes != self.shapes:
            self.shapes, self.calls, self.own = shapes, 0, None
        self.calls += 1
        if self.calls <= self.after:
            return self.step(state, *given, **settings)
        if self.own is None:
            self.own, self.given, self.recorded = copied(state), copied(given), {}
        _overwrite(self.own, state)
        _overwrite(self.given, given)
        key = tuple(sorted(settings.items()))
        if key not in self.recorded:
            self.recorded[key] = self._recording(settings)
        self.recorded[key]()
        return self.own

    def _recording(self, settings: dict[str, Any]) -> Work:
        def rehearsal() -> Any:
            return self.step(self.own, *self.given, **settings)

        return self.record(rehearsal, lambda: _overwrite(self.own, rehearsal()))


def _shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in leaves(state)]


def _overwrite(mine: Any, given: Any) -> None:
    for target, source in zip(leaves(mine), leaves(given), strict=True):
        if source is not target:
            target[...] = source


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

    with _RECORDING:
        current = torch.cuda.current_stream()
        side = getattr(_STREAMS, "own", None) or torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):  # libraries set themselves up outside the recording
            rehearsal()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
    replay: Work = graph.replay
    return replay
