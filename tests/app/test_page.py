"""The page on the command line: every command and option that it names exists."""

import re
import shlex
from pathlib import Path

import pytest

from extras import require

typer = require("typer")

from lucidae_app.app import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
BLOCK = re.search(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)[1]
LINES = [line for line in BLOCK.splitlines() if line and not line.startswith("#")]
TABLE = re.findall(r"^\| `(lucidae [^`]*)`", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("line", [*LINES, *TABLE])
def test_every_command_of_the_page_can_be_parsed(line):
    program, *words = shlex.split(line)
    assert program == "lucidae"
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)  # an unknown option raises an error


def test_the_page_names_every_command():
    named = {line.split()[1] for line in LINES}
    command = typer.main.get_command(app)
    assert named == set(command.commands)
    fits = {line.split()[2] for line in LINES if line.split()[1] == "fit"}
    assert fits == set(command.commands["fit"].commands)
