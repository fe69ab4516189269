"""Everything that the theory pages name exists: functions, tests and experiments."""

import re
from pathlib import Path

import pytest

from dotted_names import exists, names_in
from lucidae_papers import NAMES

ROOT = Path(__file__).parents[2]
THEORY = ROOT / "docs" / "theory"
PAGES = ("linear", "dropout", "sparsity", "own_results")


def page(name):
    return (THEORY / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*PAGES, "index"])
def test_every_function_exists(name):
    paths = set(re.findall(r"`(lucidae(?:_papers)?\.[\w.]+)`", page(name)))
    assert paths or name == "index"
    assert [dotted for dotted in sorted(paths) if not exists(dotted)] == []


@pytest.mark.parametrize("name", [*PAGES, "index"])
def test_every_test_exists(name):
    text = page(name)
    for file, test in sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))):
        assert test.startswith("test_")
        assert test in names_in(ROOT / file), f"{file}::{test}"
    for file in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / file).is_file(), file
    # whatever looks like a test was read by the patterns above
    assert text.count("::test_") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", text))


@pytest.mark.parametrize("name", PAGES)
def test_every_experiment_exists(name):
    for shown in re.findall(r"^- \*\*Experiment:\*\* (.+)$", page(name), flags=re.MULTILINE):
        assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", shown)) <= set(NAMES)


def test_every_experiment_of_a_paper_is_shown_somewhere():
    shown = "".join(page(name) for name in PAGES)
    others = {"component-counts", "layers-compression"}  # not of one of the papers
    for experiment in set(NAMES) - others:
        assert experiment in shown, experiment
