"""The package as a whole: imports, extras, README and the commands for developers."""

import datetime as dt
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import lucidae
from extras import PEERS, REQUIRED, require
from interpreters import results_of, without

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def python(*arguments, **variables):
    """Run a new interpreter and return its result."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


def test_optional_packages_are_there_when_all_are_required():
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    assert not missing or os.environ.get("LUCIDAE_REQUIRE_EXTRAS") != "1"


def test_version_is_the_one_that_the_build_reads():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", lucidae.__version__)
    assert importlib.metadata.version("lucidae") == lucidae.__version__


def test_what_is_cited_and_packaged_has_the_version_and_the_authors_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, flags=re.MULTILINE)[1] == lucidae.__version__
    released = re.search(r"^date-released: (.+)$", citation, flags=re.MULTILINE)[1]
    assert dt.date.fromisoformat(released).year >= 2026
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
    assert f'version: "{lucidae.__version__}"' in recipe
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, flags=re.MULTILINE)[1]
    assert newest == lucidae.__version__.partition(".dev")[0]
    for author in PROJECT["authors"]:
        assert f"  - name: {author['name']}\n" in citation


def test_every_python_that_is_declared_is_tested():
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    listed = ", ".join(f'"{version}"' for version in declared)
    assert f"PYTHONS = [{listed}]" in (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert f"python: [{listed}]" in (ROOT / ".github/workflows/tests.yml").read_text("utf-8")


UNDRAWN = """
import numpy, lucidae, lucidae_app
from lucidae import displays
try:
    displays.SpectrumDisplay(numpy.ones(2)).plot()
except ImportError as error:
    print(error)
"""
LOADED = "import sys; before = set(sys.modules); {}; print(*set(sys.modules) - before)"
FIRST = ("SparseVAE", "rows", "displays")
PAIR = """
import numpy as np
from lucidae import certify
print(certify((np.eye(2), np.eye(2)), np.eye(2), family="linear", method="rag")["subspace"].name)
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Return what programs print in new interpreters, in which lucidae was not imported before."""
    path = str(tmp_path_factory.mktemp("models") / "model.npz")
    X = np.random.default_rng(0).standard_normal((20, 4))
    lucidae.save(lucidae.LinearAutoencoder(2).fit(X), path)
    absent = {*REQUIRED, *PEERS, "hypothesis", "pytest"}
    programs = {
        "without extras": without(absent, UNDRAWN),
        "all names": LOADED.format("from lucidae import *"),
        "a file": f"from lucidae import load; print(load({path!r}).n_components)",
        "weights": PAIR,
    }
    programs |= {name: f"import lucidae; print(lucidae.{name}.__name__)" for name in FIRST}
    results = dict(zip(programs, results_of(programs.values()), strict=True))
    assert [result.err for result in results.values() if result.code] == []
    return {name: result.out for name, result in results.items()}


def test_package_imports_without_any_extra(processes):
    assert processes["without extras"] == (
        'SpectrumDisplay needs matplotlib: pip install "lucidae[cli]", '
        'or in a clone of lucidae pip install ".[cli]"\n'
    )


def test_import_loads_no_optional_package_and_no_data_sets(processes):
    loaded = set(processes["all names"].split())
    optional = {"matplotlib", "torch", "typer", "jinja2", "pandas", "dask", "h5py", "zarr", "mne"}
    assert not (optional | {"distributed", "sklearn.datasets"}) & loaded


def test_import_alone_loads_no_module_that_takes_time():
    result = python("-c", "import sys, lucidae; print(*sys.modules)")
    assert not {"numpy", "scipy", "sklearn", "lucidae.linear"} & set(result.stdout.split())


def test_each_name_can_be_the_first_that_is_used(processes):
    """Imports that depend on the order of others would fail."""
    for name in FIRST:
        assert processes[name].strip() in (name, f"lucidae.{name}")


def test_files_and_weights_are_read_without_importing_their_family_first(processes):
    assert (processes["a file"].strip(), processes["weights"].strip()) == ("2", "subspace")


def test_the_package_lists_its_lazy_names_and_refuses_others():
    assert {*lucidae.__all__, "linear", "dropout", "sparsity"} <= set(dir(lucidae))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        lucidae.nonsense  # noqa: B018


@pytest.mark.parametrize("first", ["test", "dev", "docs"])
def test_no_extra_of_the_tests_and_of_the_documentation_brings_torch(first):
    extras = PROJECT["optional-dependencies"]
    reached, frontier = [], [first]
    while frontier:
        reached.append(frontier.pop())
        for requirement in extras[reached[-1]]:
            nested = re.match(r"lucidae\[(.*)\]", requirement)
            frontier += nested[1].split(",") if nested else []
    assert "torch" not in reached
    assert not any(line.startswith("torch") for extra in reached for line in extras[extra])


def test_the_architecture_page_lists_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^(lucidae\S*) +\S", page.partition("```text\n")[2], flags=re.MULTILINE)
    # Packages inside of a family or an application are not listed.
    source = ROOT / "src"
    folders = [*source.glob("*/__init__.py"), *source.glob("lucidae/*/__init__.py")]
    assert listed == sorted(".".join(path.parent.relative_to(source).parts) for path in folders)


README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", README, flags=re.DOTALL)


@pytest.mark.parametrize(("code", "expected"), EXAMPLES)
def test_readme_example_runs_and_prints_what_it_says(code, expected, capsys):
    if "import torch" in code:
        require("torch")
    exec(compile(code, "README.md", "exec"), {})
    if expected:
        assert without_figures(capsys.readouterr().out) == without_figures(expected)


def without_figures(text):
    """Return the words without numbers, because rounding errors differ between machines."""
    return re.sub(r"-?\d[\d.]*(e[+-]?\d+)?", "#", text).split()
