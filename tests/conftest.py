"""Settings and fixtures of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from extras import require

# The backend is chosen when matplotlib is first imported.
os.environ.setdefault("MPLBACKEND", "Agg")

settings.register_profile(
    "lucidae",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "lucidae"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what the marker `covering` leaves out.

    Of all combinations of the parameters of such a test, quick runs take a few in which each value
    occurs: first the diagonal, then any with a value that did not occur yet.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("covering") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for combinations in tests.values():
        places: dict[str, dict[int, int]] = {}  # of each value among the values of its parameter
        for item in combinations:
            for name, value in item.callspec.params.items():
                of_name = places.setdefault(name, {})
                of_name.setdefault(id(value), len(of_name))
        sizes = {name: len(of_name) for name, of_name in places.items()}
        longest = range(max(sizes.values()))
        diagonal = [{(name, n % size) for name, size in sizes.items()} for n in longest]
        values = [
            {(name, places[name][id(value)]) for name, value in item.callspec.params.items()}
            for item in combinations
        ]
        seen: set[tuple[str, int]] = set()
        for n in sorted(range(len(values)), key=lambda n: values[n] not in diagonal):
            if values[n] <= seen:
                combinations[n].add_marker("slow")
            seen |= values[n]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed the generator from which ``random_state=None`` draws: a test always fails, or never."""
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    """Close the figures of matplotlib that a test leaves open: it warns of more than twenty."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def no_closed_scheduler() -> None:
    """Forget the scheduler of a Dask client that is closed.

    A client stores itself in Dask's settings, and restores what it found there when it is closed.
    If two clients are not closed in the reverse order, or if one could not be opened, the settings
    name a scheduler that is not there, and every later computation of this process fails.
    """
    distributed, dask = sys.modules.get("distributed"), sys.modules.get("dask")
    if distributed is None or dask is None or dask.config.get("scheduler", None) is None:
        return
    try:
        distributed.default_client()
    except ValueError:
        dask.config.config.pop("scheduler", None)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C interrupt the test also in background jobs, which shells start without it.

    Hypothesis measures collections of garbage by a callback, and Python discards an exception that
    is raised in one: during the test no garbage is collected.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    yield
    if enabled:
        gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.fixture(params=["numpy", "torch", "array_api_strict"])
def xp(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return an array API namespace whose default floating type is float64."""
    if request.param != "torch":
        yield require_namespace(request.param)
        return
    torch = require("torch")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield require_namespace("torch")
    torch.set_default_dtype(default)


def require_namespace(name: str) -> ModuleType:
    """Return the standard-conforming namespace of an array library."""
    if name == "array_api_strict":
        return require(name)
    return import_module(f"array_api_compat.{name}")
