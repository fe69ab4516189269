"""Every example of the gallery runs and draws a figure, and its certificates say what it says."""

import io
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from extras import require

plt = require("matplotlib.pyplot")

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("plot_*.py"))
NEEDS_MNE = ("plot_source_localisation",)


@pytest.fixture
def drawing(example: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keep figures open until the test ends, and restore the settings that an example changes."""
    mne = require("mne") if example.name in NEEDS_MNE else None
    level = mne and mne.set_log_level(return_old_level=True)
    monkeypatch.setattr(plt, "show", lambda: None)
    with plt.rc_context():
        yield plt
    if mne:
        mne.set_log_level(level)


def run(example: Path) -> tuple[dict[str, Any], str]:
    """Run an example, and return its variables and what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        names = runpy.run_path(str(FOLDER / example.with_suffix(".py")))
    return names, printed.getvalue()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_draws_a_figure_and_its_certificate_holds(example: Path, drawing: Any) -> None:
    names, printed = run(example)
    figures = [drawing.figure(number) for number in drawing.get_fignums()]
    assert figures
    assert all(any(ax.has_data() for ax in figure.axes) for figure in figures)
    assert printed.strip()
    assert "certificate" not in names or names["certificate"].holds
    if example.name == "plot_failed_certificate":
        assert names["before"].holds is False
        assert names["after"].holds
