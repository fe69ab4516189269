"""The site: every page is reached, links have a target, and the code of the first pages runs."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tomllib
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


def test_pages_below_others_exist():
    listed = settings()["page_children"].values()
    entries = [entry for names in listed for entry in names if entry != "*"]
    names = [entry.rpartition("<")[2].rstrip(">") for entry in entries]
    missing = [name for name in names if not (DOCS / f"{name}.md").exists()]
    assert [name for name in missing if not name.startswith(GENERATED)] == []


def test_a_page_that_is_missing_leaves_its_place_to_the_pages_below_it(tmp_path):
    trees = extension("page_trees")
    (tmp_path / "folder").mkdir()
    for name in ("index", "leaf", "folder/index", "folder/b", "folder/a"):
        (tmp_path / f"{name}.md").write_text("# Title\n", encoding="utf-8")
    listed = {"index": ["Words <folder/index>", "absent"], "absent": ["leaf"]}
    assert trees.children("index", "", tmp_path, listed) == ["Words <folder/index>", "leaf"]
    linked = trees.children("folder/index", "see [b](b.md#part)", tmp_path, listed)
    assert linked == ["folder/b", "folder/a"]
    listed["folder/index"] = ["leaf", "*"]
    assert trees.children("folder/index", "", tmp_path, listed) == ["leaf", "folder/a", "folder/b"]


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


def test_the_documentation_is_built_without_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, reached, frontier = project["optional-dependencies"], [], ["docs"]
    while frontier:
        reached.append(frontier.pop())
        for requirement in extras[reached[-1]]:
            nested = re.match(r"lucidae\[(.*)\]", requirement)
            frontier += nested[1].split(",") if nested else []
    assert not {"torch", "lightning"} & set(reached)
    assert not any(line.startswith("torch") for extra in reached for line in extras[extra])


def test_the_link_check_finds_dead_links_and_the_network(tmp_path, capsys):
    links = extension("site_links")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.html").write_text('<h1 id="part">B</h1>', encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text('<a href="a/b.html#part">b</a><a href="https://example.org">out</a>', "utf-8")
    assert links.main([str(tmp_path)]) == 0
    page.write_text(
        '<a href="a/c.html">c</a><a href="a/b.html#whole">b</a><a href="#here">here</a>'
        '<script src="https://cdn.example.org/x.js"></script>',
        encoding="utf-8",
    )
    capsys.readouterr()
    assert links.main([str(tmp_path)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(("arguments", "quick"), [([], "0"), (["--quick", "-E"], "1")])
@pytest.mark.parametrize("code", [0, 1])
def test_the_command_builds_the_site_and_then_checks_its_links(arguments, quick, code, monkeypatch):
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    calls = []

    def remember(command, cwd, env):
        calls.append(([str(word) for word in command[2:]], env))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(dev, "provide", lambda extra: calls.append(extra))
    monkeypatch.setattr(dev.subprocess, "run", remember)
    assert dev.main(["docs", *arguments]) == code
    assert calls[0] == "docs"
    assert calls[1][0][:5] == ["sphinx", "-b", "html", "-W", "--keep-going"]
    assert calls[1][0][5:-2] == [word for word in arguments if word != "--quick"]
    assert calls[1][1]["LUCIDAE_QUICK_DOCS"] == quick
    checked = [command for command, _ in calls[2:]]
    assert checked == ([] if code else [["site_links", str(ROOT / "build" / "docs")]])


def test_figures_of_the_dark_theme_have_no_colour_of_the_light_one():
    pytest.importorskip("sphinx")
    require("matplotlib")
    from lucidae_app.report.style import LIGHT

    figures = [*(DOCS / "results").glob("*.svg"), *(DOCS / "figures").glob("*.svg")]
    darkened = extension("dark_figures").darkened
    for path in figures:
        text = darkened(path.read_text(encoding="utf-8"))
        assert not [colour for colour in LIGHT.values() if colour in text], path.name
        whites = re.findall(r'[^"]*#ffffff[^"]*', text)  # marks on the colours of a map
        assert all("stroke: #ffffff" in style for style in whites), path.name


def test_formulas_become_mathematics_or_a_warning(monkeypatch):
    pytest.importorskip("sphinx")
    from docutils import nodes

    formulas, warnings = extension("mathml"), []
    monkeypatch.setattr(formulas.LOGGER, "warning", lambda *words, location: warnings.append(words))
    for source in (r"\frac12", r"\big(\tfrac1n \sum_i x_i\big)", r"a, \dots, b"):
        assert formulas.converted(nodes.math("", source), as_block=False).startswith("<math")
    for source in (r"\hat x_i", r"\bar{\lambda}_i"):  # the subscript is not below the letter
        text = formulas.converted(nodes.math("", source), as_block=False)
        assert "<msub>" in text
        assert "under" not in text
    assert warnings == []
    assert "<code>" in formulas.converted(nodes.math("", r"\nonsense{1}"), as_block=True)
    assert len(warnings) == 1


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
