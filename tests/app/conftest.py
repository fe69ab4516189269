"""Fixtures of the tests of the command line."""

import pytest

from extras import require
from lucidae_app import main


@pytest.fixture
def call_main(capsys):
    """Return a function from arguments to (exit code, standard output, standard error)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return call


@pytest.fixture
def short_page(monkeypatch):
    """Restrict the report to its first and last section; the others have tests of their own."""
    require("jinja2")
    require("matplotlib")
    from lucidae_app.report import sections

    monkeypatch.setattr(sections, "SECTIONS", (sections.SECTIONS[0], sections.SECTIONS[-1]))
