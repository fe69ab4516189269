"""Import of optional packages in tests: skip, or fail if all packages are required."""

import importlib
import os
from types import ModuleType

import pytest

REQUIRED = (
    "anndata",
    "array_api_strict",
    "dask",
    "distributed",
    "h5py",
    "jinja2",
    "lightning",
    "matplotlib",
    "mne",
    "mpmath",
    "pandas",
    "polars",
    "pyarrow",
    "rich",
    "skops",
    "torch",
    "typer",
    "zarr",
)
PEERS = ("benchopt", "celer", "scanpy", "skglm")  # libraries to compare with, never required


def require(name: str) -> ModuleType:
    """Import an optional package; skip the test without it, or fail where all are required."""
    package = name.partition(".")[0]
    if package not in REQUIRED + PEERS:
        raise ValueError(f"{package!r} is not listed in tests/extras.py; add it there.")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if package in REQUIRED and os.environ.get("LUCIDAE_REQUIRE_EXTRAS") == "1":
            pytest.fail(f"LUCIDAE_REQUIRE_EXTRAS=1, but {name} cannot be imported: {error}")
        pytest.skip(f"{name} is not installed", allow_module_level=True)
