"""Restricts the doctests to modules whose optional packages are installed."""

import os
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
PACKAGE, APP, PAPERS = SOURCE / "lucidae", SOURCE / "lucidae_app", SOURCE / "lucidae_papers"
NEEDS = {
    PACKAGE / "rows" / "dask.py": ("dask",),
    PACKAGE / "rows" / "text.py": ("pandas",),
    PACKAGE / "mne": ("mne",),
    PACKAGE / "nn": ("torch",),
    PACKAGE / "nn" / "callbacks.py": ("lightning",),
    PACKAGE / "displays": ("matplotlib",),
    APP: ("jinja2", "matplotlib", "pandas", "rich", "typer"),
    PAPERS / "commands.py": ("rich", "typer"),
    PAPERS / "drawings": ("jinja2", "matplotlib"),
    PAPERS / "embedding_runs.py": ("torch",),
    PAPERS / "compression_runs.py": ("torch",),
    PAPERS / "pages.py": ("jinja2", "matplotlib"),
    PAPERS / "vae": ("torch",),
}


def pytest_ignore_collect(collection_path):
    """Skip the doctests of a module whose packages are missing, unless all are required."""
    if os.environ.get("LUCIDAE_REQUIRE_EXTRAS") == "1":
        return None
    needed = NEEDS.get(collection_path, ())
    return True if any(find_spec(name) is None for name in needed) else None
