"""Restricts the doctests to modules whose optional packages are installed."""

import os
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).parent / "src" / "lucidae"
NEEDS = {
    PACKAGE / "cli": ("pandas", "rich", "typer"),
    PACKAGE / "data" / "dask_blocks.py": ("dask",),
    PACKAGE / "data" / "text.py": ("pandas",),
    PACKAGE / "io" / "sheets.py": ("pandas",),
    PACKAGE / "io" / "tables.py": ("pandas",),
    PACKAGE / "io" / "text.py": ("pandas",),
    PACKAGE / "mne": ("mne",),
    PACKAGE / "nn": ("torch",),
    PACKAGE / "nn" / "callbacks.py": ("lightning",),
    PACKAGE / "displays": ("matplotlib",),
    PACKAGE / "experiments" / "drawings": ("jinja2", "matplotlib"),
    PACKAGE / "experiments" / "embeddings": ("torch",),
    PACKAGE / "experiments" / "notes.py": ("jinja2", "matplotlib"),
    PACKAGE / "experiments" / "page.py": ("jinja2", "matplotlib"),
    PACKAGE / "experiments" / "vae": ("torch",),
    PACKAGE / "report": ("jinja2", "matplotlib", "pandas"),
}


def pytest_ignore_collect(collection_path):
    """Skip the doctests of a module whose packages are missing, unless all are required."""
    if os.environ.get("LUCIDAE_REQUIRE_EXTRAS") == "1":
        return None
    needed = NEEDS.get(collection_path, ())
    return True if any(find_spec(name) is None for name in needed) else None
