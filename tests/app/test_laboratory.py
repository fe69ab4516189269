"""The laboratory: its formulas in a browser are those of the package, and the page works."""

import html
import json
import re
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

require("jinja2")
require("matplotlib")
require("pandas")
require("typer")
require("rich")

from laboratory_formulas import all_comparisons
from lucidae_app.report.page import SCRIPTS, laboratory_page

FOLDER = files("lucidae_app.report").joinpath("templates", "laboratory")

LARGEST = 300_000
"""Number of bytes that the page may have."""

RECORDED = """<script>window.problems = [];
addEventListener("error", event => problems.push(event.message));
// Without a screen frames come seldom; timers follow the virtual time of the browser.
window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;</script>"""


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def need_browser():
    """Return the path of Chromium; skip the test without it, since pip cannot install it."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium was found: install Debian's package chromium, for example")
    return browser


def dumped(path, folder, *flags, seconds=120):
    """Return the document of the page at `path` as Chromium has it after its scripts have run."""
    command = [need_browser(), *FLAGS, *flags, f"--user-data-dir={folder}", "--dump-dom"]
    result = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=seconds, check=True
    )
    return result.stdout


def results_in(document):
    """Return what the script of a test wrote as JSON into the element with the name results."""
    found = re.search(r'<pre id="results">(.*?)</pre>', document, re.DOTALL)
    assert found, "the script of the test did not finish"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def comparison():
    return all_comparisons()


@pytest.fixture(scope="module")
def probe_of(request):
    folder = request.path.parent
    return lambda name: (folder / f"laboratory_{name}.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def visited(comparison, probe_of, tmp_path_factory):
    """What the page reports after a visit in Chromium: formulas, widths, controls, errors."""
    need_browser()
    folder = tmp_path_factory.mktemp("laboratory")
    page = laboratory_page().replace("<head>", f"<head>{RECORDED}")
    inner = json.dumps(page).replace("</", "<\\/")
    script = f"{probe_of('probe')}\nconst PAGE = {inner}, CALLS = {json.dumps(comparison.calls)};\n"
    ending = f"<script>{script}{probe_of('visit')}</script></body>"
    path = folder / "page.html"
    path.write_text(ending.join(page.rsplit("</body>", 1)), encoding="utf-8")
    flags = ("--window-size=1300,900", "--force-prefers-reduced-motion")
    document = dumped(path, folder / "profile", "--virtual-time-budget=60000", *flags)
    results = results_in(document)
    assert "failed" not in results, results
    return results


def test_formulas_in_the_browser_are_those_of_the_package(comparison, visited):
    comparison.judge(visited["values"])


def test_formulas_in_node_are_those_of_the_package(comparison, probe_of):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js was found")
    script = (FOLDER / "formulas.js").read_text(encoding="utf-8")
    ending = f"console.log(probe.text(probe.evaluate({json.dumps(comparison.calls)})))"
    text = f"{script}\n{probe_of('probe')}\n{ending}"
    result = subprocess.run([node, "-"], input=text, capture_output=True, text=True, check=True)
    comparison.judge(json.loads(result.stdout))


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_every_view_is_drawn_without_error_and_without_sideways_scrolling(visited, width):
    assert visited[width]["problems"] == []
    views = visited[width]["views"]
    assert len(views) == 8
    for view in views:
        assert view["overflow"] <= 0, view
        assert min(view["colours"][:2]) > 100, view
        assert min(view["colours"][2:]) > 5, view
        assert view["unlabelled"] == 0
        assert view["formula"] >= 2
        assert view["rows"] > 1
        assert view["story"] > 100
        assert view["fragment"].startswith(f"#{view['tab']}")


def test_descents_from_the_first_start_reach_the_minimum(visited):
    for view in visited["wide"]["views"]:
        assert -1e-9 <= view["gap"] < 1e-5, view


def test_reduced_motion_shows_the_end_of_the_descent_at_once(visited):
    assert visited["motion"] == {"calm": True, "time": 1}


def test_controls_change_the_landscape_and_its_numbers(visited):
    seen = visited["operated"]
    assert seen["before"]["minimum, in closed form"] == "0.5533"
    assert seen["uniform"]["facts"]["minimum, in closed form"] == "1.05"
    assert seen["uniform"]["valley"]
    assert seen["augmented"]["disabled"]
    assert_allclose(np.abs(seen["augmented"]["end"]), [1.0, 0.0], atol=1e-6)
    assert seen["first"]["step"] == "0"
    assert_allclose(seen["first"]["point"], [0.05, 0.1])


def test_keys_turn_the_surface_and_move_the_start(visited):
    seen = visited["operated"]
    assert seen["turned"] == pytest.approx(0.1)
    assert_allclose(seen["start"], [0.05, 0.1 + 2.8 / 50])


def test_address_keeps_the_state_and_ignores_what_it_cannot_read(visited):
    seen = visited["operated"]
    assert seen["uniform"]["address"] == "#linear&lambda=0.3&delta=0"
    read = seen["read"]
    assert (read["tab"], read["view"], read["dropout"]) == ("dropout", "products", 0.5)
    assert (read["rate"], read["target"]) == (0.05, 2)  # limited, and left as it was
    assert read["address"] == "#dropout&dropout=0.5&rate=0.05&view=products"


def test_page_is_small_and_loads_nothing():
    page = laboratory_page()
    assert len(page.encode()) < LARGEST
    assert "@" not in re.sub(r"@media", "", page)  # every mark of the template is filled in
    for forbidden in ("http:", "https:", "//cdn", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert forbidden not in page
    assert not re.search(r"\bsrc\s*=|url\(", page)
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]
    assert page.count("<script>") == 1


def test_every_script_of_the_folder_is_part_of_the_page():
    assert {item.name for item in FOLDER.iterdir()} == {*SCRIPTS, "page.html", "style.css"}


def test_command_writes_the_page_and_keeps_other_files(call_main, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # an earlier page is replaced
        code, out, err = call_main("laboratory")
        assert (code, err) == (0, "")
        assert str(tmp_path / "lucidae-laboratory.html") in out.replace("\n", "")
    assert (tmp_path / "lucidae-laboratory.html").read_text(encoding="utf-8") == laboratory_page()
    notes = tmp_path / "notes.html"
    notes.write_text("my notes", encoding="utf-8")
    code, out, err = call_main("laboratory", "--out", notes)
    assert (code, out) == (2, "")
    assert "is not a page of lucidae" in err
    assert notes.read_text(encoding="utf-8") == "my notes"
    assert call_main("laboratory", "--out", notes, "--force")[0] == 0
    assert call_main("laboratory", "--out", tmp_path)[0] == 2
