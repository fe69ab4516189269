"""The order in which CUDA graphs are recorded, on stand-ins for the functions of `torch.cuda`."""

import gc
import threading
from contextlib import contextmanager

import pytest

from extras import require

torch = require("torch")

from lucidae.arrays import graphs


class Device:
    """Stand-ins for streams and graphs, which note every call in `calls`."""

    def __init__(self):
        self.calls, self.current = [], self.Stream("default")

    def note(self, *words):
        self.calls.append(" ".join(words))

    def Stream(self, name="side"):
        device = self

        class Stream:
            def wait_stream(self, other):
                device.note(name, "waits for", str(other))

            def synchronize(self):
                device.note("host waits for", name)

            def __str__(self):
                return name

        return Stream()

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def current_stream(self):
        return self.current

    def CUDAGraph(self):
        device = self

        class Graph:
            def capture_begin(self, capture_error_mode):
                device.note("begin on", str(device.current), capture_error_mode)

            def capture_end(self):
                device.note("end")

            def replay(self):
                device.note("replay")

        return Graph()

    @contextmanager
    def graph(self, graph, capture_error_mode):
        self.note("torch records", capture_error_mode)
        yield


@pytest.fixture
def device(monkeypatch):
    found = Device()
    for name in ("Stream", "stream", "current_stream", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(found, name))
    monkeypatch.setattr(graphs, "_on_cuda", lambda x: True)
    monkeypatch.setattr(graphs, "_STREAMS", threading.local())
    return found


def recorded(device):
    return graphs._cuda_graph(
        lambda: device.note("rehearsal on", str(device.current)), lambda: device.note("work")
    )


def test_the_rehearsal_ends_before_the_recording_begins(device):
    replay = recorded(device)
    assert device.calls == [
        "side waits for default",
        "rehearsal on side",
        "default waits for side",
        "host waits for side",
        "begin on side thread_local",
        "work",
        "end",
        "default waits for side",
    ]
    replay()
    replay()
    assert device.calls[-2:] == ["replay", "replay"]


def test_a_recording_ends_also_where_the_work_fails(device):
    def fail():
        raise RuntimeError("not permitted while a stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        graphs._cuda_graph(lambda: None, fail)
    assert device.calls[-1] == "end"
    assert recorded(device) is not None  # the lock is free again


def test_a_thread_with_its_own_stream_rehearses_there_and_torch_records(device):
    example = torch.ones(1, dtype=torch.float64)
    with graphs.own_stream(example):
        first = device.current
        assert device.calls == ["host waits for side"]  # libraries are initialised on it
        recorded(device)
    assert str(device.current) == "default"
    assert device.calls[1:] == [
        "side waits for side",
        "rehearsal on side",
        "side waits for side",
        "torch records thread_local",
        "work",
    ]
    with graphs.own_stream(example):
        assert device.current is first  # one stream per thread, made once


def test_steps_are_recorded_on_the_device_alone(device, monkeypatch):
    def step(state):
        return state

    assert isinstance(graphs.replayable(step, (torch.ones(1),)), graphs.Replay)
    monkeypatch.undo()
    assert graphs.replayable(step, (torch.ones(1),)) is step
    assert graphs.keeper(step) is None


def test_nothing_is_collected_while_a_graph_is_recorded():
    assert gc.isenabled()
    with graphs._without_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with graphs._without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
