"""The guides, how-to pages, migration tables and comparison: code runs, names and links exist."""

import ast
import importlib
import inspect
import logging
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.linear_model import ARDRegression, MultiTaskLasso, MultiTaskLassoCV

import extras
from dotted_names import exists
from lucidae import LinearAutoencoder, SparseVAE

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [
    *sorted((DOCS / "guide").glob("*.md")),
    *sorted((DOCS / "howto").glob("*.md")),
    *(DOCS / f"{name}.md" for name in ("comparison", "completion", "data", "migration")),
    *(DOCS / f"{name}.md" for name in ("missing", "reduced_rank")),
]
OTHERS = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "certificates").glob("*.md"))]
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", flags=re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ROUNDING = 1e-6  # printed numbers below this are rounding errors, which differ between machines

named = partial(pytest.mark.parametrize, ids=lambda page: str(page.relative_to(DOCS)))


def packages(code):
    """Return the names of the optional packages that a block of code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    extra = {"lucidae.mne": "mne", "lucidae.nn": "torch", "lucidae.nn.callbacks": "lightning"}
    names = {extra.get(name, name).partition(".")[0] for name in names}
    return sorted(names & {*extras.REQUIRED, *extras.PEERS})


def words_and_numbers(text):
    """Return the words of a text, with # in place of numbers, and these numbers."""
    return NUMBER.sub("#", text).split(), [float(number) for number in NUMBER.findall(text)]


def assert_prints(printed, expected):
    """Compare what was printed with the page: words exactly, numbers up to one per cent."""
    (words, numbers), (page_words, page_numbers) = map(words_and_numbers, (printed, expected))
    assert words == page_words
    for number, on_page in zip(numbers, page_numbers, strict=True):
        if max(abs(number), abs(on_page)) > ROUNDING:
            assert number == pytest.approx(on_page, rel=0.01)


@pytest.fixture
def log_level_of_mne():
    """Restore the level of MNE's log, which pages about MNE change."""
    logger = logging.getLogger("mne")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.mark.usefixtures("log_level_of_mne")
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated")
@named("page", PAGES)
def test_page_runs_from_top_to_bottom_and_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "page"}
    for block in BLOCK.finditer(text):
        code, expected = block.groups()
        for package in packages(code):
            extras.require(package)
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        assert expected is not None or printed == "", f"line {line}: the output is not on the page"
        if expected is not None:
            assert_prints(printed, expected)


@named("page", sorted({*PAGES, *OTHERS}))
def test_names_of_the_package_in_the_text_exist(page):
    # The first column of the last table of the migration page has names of earlier versions.
    text, _, moved = page.read_text(encoding="utf-8").partition("## From lucidae")
    text += re.sub(r"^\|[^|]*\|", "", moved, flags=re.MULTILINE)
    for name in set(re.findall(r"\blucidae(?:_\w+)?(?:\.\w+)+", text)) - {"lucidae.html"}:
        if name.startswith("lucidae.mne"):
            extras.require("mne")
        assert exists(name), name


MIGRATION = (DOCS / "migration.md").read_text(encoding="utf-8")
ESTIMATORS = {
    PCA: LinearAutoencoder,
    IncrementalPCA: LinearAutoencoder,
    MultiTaskLasso: SparseVAE,
    MultiTaskLassoCV: SparseVAE,
    ARDRegression: SparseVAE,
}


def table(name):
    """Return the rows of the migration table of a peer: its names, ours, and the differences."""
    section = MIGRATION.partition(f"\n## From `{name}`\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")][1:]
    return {line.split("|")[1].strip(" `"): line.split("|")[2:-1] for line in lines}


def public_names(estimator):
    """Return the parameters, fitted attributes and methods of an estimator of scikit-learn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 4))
    several = estimator in (MultiTaskLasso, MultiTaskLassoCV)
    fitted = estimator().fit(X, X[:, :2] if several else X[:, 0])
    settings = r"(get|set)_(params|metadata_routing|output|\w+_request)"
    members = [
        name
        for name in dir(fitted)
        if not (name.startswith("_") or hasattr(BaseEstimator, name))
        and not re.fullmatch(settings, name)
        and (name.endswith("_") or callable(getattr(fitted, name)))
    ]
    return {*inspect.signature(estimator).parameters, *members} - {"n_features_in_"}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_names_are_in_the_table_or_the_same_here_and_there_are_no_others(estimator):
    rows, names, ours = table(estimator.__name__), public_names(estimator), ESTIMATORS[estimator]
    assert names <= {*rows, *inspect.signature(ours).parameters, *dir(ours)}
    assert {name for name in rows if "(until" not in rows[name][1]} <= names


@pytest.mark.parametrize("function", ["gamma_map", "mixed_norm"])
def test_arguments_of_mne_are_in_the_table_or_the_same_here(function):
    mne = extras.require("mne.inverse_sparse")
    parameters = inspect.signature(getattr(mne, function)).parameters
    ours = inspect.signature(importlib.import_module("lucidae.mne").sparse_vae).parameters
    assert set(parameters) <= {*table(function), *ours}


def test_our_names_in_the_tables_exist():
    for estimator, ours in ESTIMATORS.items():
        assert_known(table(estimator.__name__), {*inspect.signature(ours).parameters, *dir(ours)})
    extras.require("mne")
    known = set(inspect.signature(importlib.import_module("lucidae.mne").sparse_vae).parameters)
    for function in ("gamma_map", "mixed_norm"):
        assert_known(table(function), known)


def assert_known(rows, known):
    """Check the names in the second column: of our estimator or function, or with a dot."""
    assert rows
    for theirs, (ours, _) in rows.items():
        names = re.findall(r"`([\w.]+)(?:\(\))?`", ours)
        assert names or ours.strip() == "–", theirs
        for name in names:
            assert exists(name) if "." in name else name in known, name


def test_every_claim_of_the_linear_family_has_an_entry():
    X = np.random.default_rng(0).standard_normal((40, 6))
    gaps = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
    fits = [
        LinearAutoencoder("mle", method="nonuniform_l2").fit(X),
        LinearAutoencoder(2, handle_missing="em").fit(gaps),
    ]
    page = (DOCS / "certificates" / "linear.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"\w+", " ".join(re.findall(r"^## (.+)$", page, re.MULTILINE))))
    assert {claim.name for fit in fits for claim in fit.certificate_} <= entries
