"""A new estimator or kind of file is in all places that CONTRIBUTING names.

New methods of the linear family are checked by `linear/test_methods.py`, experiments by
`papers/test_declarations.py`.
"""

import json
import re
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator

import lucidae
from lucidae import LinearAutoencoder
from test_junk import ESTIMATORS
from test_nonfinite_attributes import CASES

ROOT = Path(__file__).parents[1]
CLASSES = [
    name
    for name in lucidae.__all__
    if isinstance(getattr(lucidae, name), type)
    and issubclass(getattr(lucidae, name), BaseEstimator)
]


def text(*places):
    """Return the text of all files with these patterns."""
    files = (file for place in places for file in sorted(ROOT.glob(place)))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def checked_by_scikit_learn():
    """Return the text of the test files that run scikit-learn's checks."""
    files = [file.read_text(encoding="utf-8") for file in ROOT.glob("tests/*/test_*.py")]
    return "\n".join(file for file in files if "@parametrize_with_checks(" in file)


def missing_places_of_an_estimator(name):
    if name not in {type(make()).__name__ for make in ESTIMATORS.values()}:
        yield "tests/test_junk.py: an entry of ESTIMATORS (wrong arguments, failed fits)"
    if name not in {type(estimator).__name__ for estimator, *_ in CASES.values()}:
        yield "tests/test_nonfinite_attributes.py: an entry of CASES (its certificate under attack)"
    if name not in json.loads(text("tests/data/schemas.json")):
        yield "tests/data/schemas.json: the arrays that `lucidae.save` writes"
    if name not in checked_by_scikit_learn():
        yield "tests/<family>: a test with scikit-learn's parametrize_with_checks"
    if not re.search(rf"\b{name}\b", text("docs/api/*.md")):
        yield "docs/api: the class in the page of its family"


@pytest.mark.parametrize("name", CLASSES)
def test_an_estimator_is_in_all_places_that_contributing_names(name):
    missing = list(missing_places_of_an_estimator(name))
    assert not missing, "\n".join([f"estimator {name} lacks (see CONTRIBUTING.md)", *missing])


def suffixes(folder):
    """Return the endings of all files that can be read, from the error that lists them."""
    (folder / "rows.unknown").write_text("1")
    with pytest.raises(ValueError, match="expected one of") as refused:
        LinearAutoencoder(1).fit(folder / "rows.unknown")
    return re.findall(r"\.\w+", str(refused.value).partition("expected one of")[2])


def test_a_kind_of_file_is_in_all_places_that_contributing_names(tmp_path):
    found, missing = suffixes(tmp_path), []
    assert {".npy", ".csv", ".zarr"} <= set(found)
    for suffix in found:
        if f"`{suffix}`" not in text("docs/data.md"):
            missing.append(f"docs/data.md: `{suffix}` in the table of data")
        if not re.search(rf"\{suffix}\W", text("tests/rows/*.py", "tests/linear/*.py")):
            missing.append(f"tests/rows/test_kinds.py: fits to a file with the ending {suffix}")
    assert not missing, "\n".join(["kinds of files lack (see CONTRIBUTING.md)", *missing])
