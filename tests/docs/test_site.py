"""The site: every page is reached, links have a target, and the code of the first pages runs."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from extras import require

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)
GENERATED = ("auto_examples/",)
"""Pages that only the build writes."""


def extension(name):
    """Import a module of docs/_extensions."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_extensions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings():
    """Return the names that docs/conf.py defines."""
    require("matplotlib")
    before = list(sys.path)
    try:
        return runpy.run_path(str(DOCS / "conf.py"))
    finally:
        sys.path[:] = before


def without_code(text):
    """Return Markdown without its blocks and spans of code."""
    text = re.sub(r"^(`{3,}|:{3,}\{raw\}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def reached(page, children):
    """Yield a page and all pages below it."""
    yield page
    for name in children(page):
        yield from reached(name, children)


def test_every_page_is_in_a_table_of_contents_exactly_once():
    trees, listed = extension("page_trees"), settings()["page_children"]

    def children(page):
        source = DOCS / f"{page}.md"
        text = source.read_text(encoding="utf-8") if source.exists() else ""
        entries = trees.children(page, text, DOCS, listed)
        return [entry.rpartition("<")[2].rstrip(">") for entry in entries]

    found = [name for name in reached("index", children) if not name.startswith(GENERATED)]
    assert sorted(found) == sorted(p.relative_to(DOCS).with_suffix("").as_posix() for p in PAGES)


def test_pages_are_short_and_guides_have_figures():
    """Words of Markdown files, code included; results, benchmarks and reference are not counted."""
    words = {}
    for path in PAGES:
        page = path.relative_to(DOCS).as_posix()
        if page.split("/")[0] in ("results", "benchmarks", "api"):
            continue
        text = path.read_text(encoding="utf-8")
        words[page] = len(text.split())
        folder = page.split("/")[0]
        limit = {"guide": 1500, "howto": 500, "theory": 6000}.get(folder, 2500)
        assert words[page] <= limit, page
        if folder in ("guide", "howto") and not page.endswith("index.md"):
            assert "![" in text, page
    assert sum(words.values()) <= 45_000


def slugs(path):
    """Return the anchors that a code host gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    words = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in words}


@pytest.mark.parametrize("path", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda path: path.name)
def test_local_links_have_a_target(path):
    text = without_code(path.read_text(encoding="utf-8"))
    dead = []
    for address in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", address):
            continue
        name, _, anchor = address.partition("#")
        target = (path.parent / name).resolve() if name else path
        included = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
        source = ROOT / included[target.name] if target.name in included else target
        if not target.exists() or (anchor and anchor not in slugs(source)):
            dead.append(address)
    assert dead == []


def blocks(page):
    """Return the blocks of code of a page, as (language, text), in their order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(python|bash|text)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def without_figures(text):
    """Return the words without numbers, because rounding errors differ between machines."""
    return re.sub(r"-?\d[\d.]*(e[+-]?\d+)?", "#", text).split()


def test_the_snippets_of_the_landing_page_run():
    snippets = [code for language, code in blocks("index.md") if language == "python"]
    assert len(snippets) == 3
    for code in snippets:
        names = {}
        exec(compile(code, "docs/index.md", "exec"), names)
        assert names["model"].certificate_.holds


def test_getting_started_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    for package in ("matplotlib", "pandas", "rich", "typer", "jinja2"):
        require(package)
    from lucidae_app import main

    monkeypatch.chdir(tmp_path)
    names, compared = {}, 0
    for language, text in blocks("getting_started.md"):
        if language == "bash":
            for line in text.splitlines():
                program, *arguments = line.split()
                assert program == "lucidae"
                with pytest.raises(SystemExit) as end:
                    main(arguments)
                assert end.value.code == 0
            assert (tmp_path / "lucidae-report.html").exists()
        elif language == "python":
            capsys.readouterr()
            exec(compile(text, "docs/getting_started.md", "exec"), names)
        else:
            assert without_figures(capsys.readouterr().out) == without_figures(text)
            compared += 1
    assert compared == 4


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("sphinx_gallery")
    pytest.importorskip("pydata_sphinx_theme")
    site = tmp_path / "site"
    built = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    environment = {**os.environ, "LUCIDAE_QUICK_DOCS": "1", "MPLBACKEND": "Agg"}
    result = subprocess.run([*built, str(DOCS), str(site)], capture_output=True, env=environment)
    assert result.returncode == 0, result.stderr.decode()[-4000:]
    assert list(extension("site_links").problems(site)) == []
