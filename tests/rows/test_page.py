"""The examples of docs/data.md run and print what the page says."""

import re
from pathlib import Path

import pytest

from extras import require

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(("code", "expected"), EXAMPLES)
def test_example_prints_what_the_page_says(code, expected, capsys):
    for package in ("dask.array", "pandas", "pyarrow"):
        require(package)
    exec(compile(code, "docs/data.md", "exec"), {})
    assert capsys.readouterr().out == expected


def test_every_example_has_its_output():
    assert len(EXAMPLES) == PAGE.count("```python") >= 5
