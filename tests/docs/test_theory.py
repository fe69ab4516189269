"""The theory pages list every numbered item of the papers, and everything they name exists."""

import re
from pathlib import Path

import pytest

from dotted_names import exists, names_in
from lucidae_papers import NAMES

ROOT = Path(__file__).parents[2]
THEORY = ROOT / "docs" / "theory"
FIELDS = ("Function", "Test", "Experiment", "Slip")

ITEMS = {  # counted in the texts of the papers, appendices included
    "linear": {
        "Theorem": "1 2 3 4 5",
        "Lemma": "1 2 3 4 5 6 7 8 9 10",
        "Definition": "6.1 7.1 7.2",
        "Assumption": "1 2 3",
        "Algorithm": "1",
        "Figure": "1 2 3 4 5 6 7 8",
        "Table": "1 2 3 4",
        # without a number of a theorem, but implemented
        "Equation": "1 2 3 6 16",
        "Section": "4.3 5 6.1 6.2",
        "Appendix": "F G",
    },
    "dropout": {
        "Theorem": "2.2 2.3 2.4 3.3 3.4 3.6 4.3",
        "Lemma": "4.1 A.1 A.2 A.3 D.1 D.2 D.3",
        "Definition": "2.1 3.2 4.2",
        "Remark": "2.5 3.1 3.5 5.1 5.2",
        "Claim": "1",
        "Algorithm": "1 2 3",
        "Figure": "1 2 3",
        "Equation": "2 3 4",
    },
    "sparsity": {
        "Theorem": "4.1 4.2 4.4",
        "Lemma": "3.2 4.3 C.1 C.2 C.4 C.5 C.6 D.1 D.2",
        "Corollary": "4.5 4.6 C.3",
        "Definition": "3.1",
        "Figure": "1 2",
        "Equation": "4 5 6 8 18",
        "Section": "4.6 5.2",
        "Appendix": "A",
    },
    "own_results": {"Result": " ".join(str(number) for number in range(1, 19))},
}
HEADING = re.compile(r"^### (\w+ [\w.]+)(?: \((.+)\))?$", re.MULTILINE)


def page(name):
    return (THEORY / f"{name}.md").read_text(encoding="utf-8")


def entries(text):
    """Return the entries of a page, title to text, in their order; a title occurs once."""
    pieces = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    found = {}
    for piece in pieces:
        match = HEADING.match("### " + piece.partition("\n")[0])
        assert match is not None, f"a title is no item of the paper: {piece[:60]}"
        title = match.group(1)
        assert title not in found, f"{title} occurs twice"
        found[title] = re.split(r"^## ", piece, flags=re.MULTILINE)[0]
    return found


def fields(entry):
    """Return the lines of an entry by their names, such as "Function"."""
    return dict(re.findall(r"^- \*\*(\w+):\*\* (.+)$", entry, flags=re.MULTILINE))


def expected(name):
    return {f"{kind} {label}" for kind, labels in ITEMS[name].items() for label in labels.split()}


@pytest.mark.parametrize("name", ITEMS)
def test_every_numbered_item_has_one_entry_with_all_lines(name):
    found = entries(page(name))
    assert set(found) == expected(name)
    for title, entry in found.items():
        lines = tuple(fields(entry))
        assert lines[:2] == FIELDS[:2], title
        assert lines == tuple(field for field in FIELDS if field in lines), title
        statement = entry.partition("\n")[2].partition("- **Function")[0].strip()
        assert len(statement) > 30, f"{title} has no statement"
        if name == "own_results":
            assert "*Proof.*" in statement, title
            assert "∎" in statement, title


@pytest.mark.parametrize("name", [*ITEMS, "index"])
def test_every_function_exists(name):
    paths = set(re.findall(r"`(lucidae(?:_papers)?\.[\w.]+)`", page(name)))
    assert paths or name == "index"
    assert [dotted for dotted in sorted(paths) if not exists(dotted)] == []


@pytest.mark.parametrize("name", [*ITEMS, "index"])
def test_every_test_exists(name):
    text = page(name)
    for file, test in sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))):
        assert test.startswith("test_")
        assert test in names_in(ROOT / file), f"{file}::{test}"
    for file in re.findall(r"`(tests/[\w/]+\.py)`", text):
        assert (ROOT / file).is_file(), file
    # whatever looks like a test was read by the patterns above
    assert text.count("::test_") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", text))


@pytest.mark.parametrize("name", ITEMS)
def test_every_experiment_exists(name):
    for entry in entries(page(name)).values():
        shown = fields(entry).get("Experiment", "")
        assert set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", shown)) <= set(NAMES)


def test_every_experiment_of_a_paper_is_shown_somewhere():
    shown = "".join(page(name) for name in ITEMS)
    others = {"component-counts", "layers-compression"}  # not of one of the papers
    for experiment in set(NAMES) - others:
        assert experiment in shown, experiment
