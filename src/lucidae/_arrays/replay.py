"""Steps that an accelerator records once and replays in one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat as compat

from lucidae._arrays.helpers import namespace


def leaves(state: Any) -> list[Any]:
    """Return the arrays of nested tuples, in order."""
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in leaves(part)]
    return [state]


def copied(state: Any) -> Any:
    """Return nested tuples of fresh arrays."""
    if isinstance(state, tuple):
        return type(state)(*(copied(part) for part in state))
    return namespace(state).asarray(state, copy=True)


def replayable(step: Callable[[Any], Any], example: Any) -> Callable[[Any], Any]:
    """Return `step`, recorded once and replayed in one launch where torch runs on CUDA.

    The recorded step overwrites and returns one state of its own: keep states by its `keeper`. It
    must be pure, draw nothing and never wait for the device; states are nested tuples of arrays.
    A state of another shape is recorded anew. Elsewhere it is `step` itself.
    """
    first = leaves(example)[0]
    on_cuda = compat.is_torch_array(first) and first.is_cuda
    return _Replay(step) if on_cuda else step


def keeper(step: Callable[[Any], Any]) -> Callable[[Any], Any] | None:
    """Return how to keep a state that a recorded step would overwrite; None for other steps."""
    return copied if isinstance(step, _Replay) else None


class _Replay:
    def __init__(self, step: Callable[[Any], Any]) -> None:
        self.step = step
        self.own: Any = None
        self.graph: Any = None

    def __call__(self, state: Any) -> Any:
        if state is not self.own:
            if self.own is None or leaves(state)[0].shape != leaves(self.own)[0].shape:
                self._record(state)
            self._take(state)
        self.graph.replay()
        return self.own

    def _record(self, state: Any) -> None:
        import torch

        self.own, self.graph = copied(state), None
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up outside the recording
            self.step(self.own)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._take(self.step(self.own))

    def _take(self, state: Any) -> None:
        for mine, given in zip(leaves(self.own), leaves(state), strict=True):
            if given is not mine:
                mine.copy_(given)
