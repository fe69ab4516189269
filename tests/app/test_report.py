"""The report: a self-contained page with escaped names and the data of every figure."""

import csv
import io
import re
import shlex
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

require("jinja2")
require("matplotlib")
require("pandas")

from lucidae.data.tables import Table
from lucidae.datasets import load_digits
from lucidae.moments import SecondMoment
from lucidae_app.report import figures, style, write_report
from lucidae_app.report.page import Clock, Plot
from lucidae_app.report.sections import SECTIONS, commands_for, render

VOID = {"meta", "link", "br", "img", "hr", "path", "use", "image", "rect", "line"}


class Page(HTMLParser):
    """Tags, links, identifiers and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.identifiers, self.words, self.open = [], {}, [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for key in ("src", "href", "xlink:href"):
            if key in named:
                self.links[named[key]] = named.get("download")
        if "id" in named:
            self.identifiers.append(named["id"])

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def random_table(**changes):
    values = np.random.default_rng(0).normal(size=(60, 5)) * [5, 3, 2, 1, 0.5]
    return Table(**{"name": "noise.csv", "values": values, "columns": tuple("abcde")} | changes)


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return Table("the digits", bunch.data, tuple(bunch.feature_names), bunch.image_shape)


@pytest.fixture(scope="module")
def digits_page(digits, tmp_path_factory):
    seen = []
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(digits, path, progress=lambda *call: seen.append(call))
    assert [number for _, number, _ in seen] == list(range(len(seen)))
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parsed(digits_page):
    return Page(digits_page)


def test_page_is_well_formed_and_self_contained(digits_page, parsed):
    assert parsed.open == []
    assert not {"script", "iframe", "object", "embed"} & set(parsed.tags)
    assert all(link.startswith(("#", "data:")) for link in parsed.links)
    assert not re.search(r"url\(\s*['\"]?(?!#)", digits_page)
    assert "@import" not in digits_page


def test_identifiers_are_unique_and_every_anchor_leads_somewhere(parsed):
    assert len(parsed.identifiers) == len(set(parsed.identifiers))
    anchors = {link[1:] for link in parsed.links if link.startswith("#")}
    assert anchors <= set(parsed.identifiers)
    assert {section.name for section in SECTIONS} | {"timings"} <= anchors


def test_every_figure_has_its_numbers_beside_it(parsed):
    downloads = [name for name in parsed.links.values() if name and name.endswith(".csv")]
    assert len(downloads) == parsed.tags.count("figure") > 1
    assert len(set(downloads)) == len(downloads)


def rows_of(page, file):
    """Return the numbers of a figure, which the page contains as a CSV file."""
    (link,) = [link for link, name in page.links.items() if name == file]
    return list(csv.DictReader(io.StringIO(unquote(link.partition(",")[2]))))


def test_numbers_of_the_spectrum_are_those_of_the_data(digits, parsed):
    rows = rows_of(parsed, "spectrum.csv")
    variances, _ = SecondMoment.of(digits.values).spectrum(len(rows))
    assert_allclose([float(row["variance"]) for row in rows], variances, rtol=1e-6)
    assert_allclose(float(rows[-1]["cumulative share"]), 1.0, rtol=1e-9)


def test_same_data_give_the_same_figures():
    def svgs():
        blocks = SECTIONS[0].build(random_table(), Clock())
        return [block.svg for block in blocks if block.kind == "plot"]

    assert svgs() == svgs()


def test_names_from_a_file_are_escaped_and_remarks_are_made():
    hostile = '<script>alert("x")</script>'
    values = np.column_stack([random_table().values * [1e6, 1, 1, 1, 1], np.ones(60)])
    names = (hostile, *"bcde", "constant")
    table = random_table(
        name=hostile, values=values, columns=names, left_out={hostile: "it is text"}
    )
    text = render(table.with_target(["e"]), SECTIONS)
    page = Page(text)
    assert "script" not in page.tags
    assert any(hostile in word for word in page.words)
    for words in ("Columns left out: &lt;script", "One column is constant", "StandardScaler"):
        assert words in text


@pytest.mark.parametrize("shape", [(2, 1), (3, 7), (200, 45)])
def test_page_is_written_for_any_shape(shape):
    values = np.random.default_rng(1).normal(size=shape)
    names = tuple(f"c{index}" for index in range(shape[1]))
    sections = SECTIONS[:3]  # the next one uses generated data
    assert "</html>" in render(random_table(values=values, columns=names), sections)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((4, 5)), "All rows of 'noise.csv' are equal"),
        (np.zeros((2, 4001)), "'noise.csv' has 4,001 columns; the report accepts up to 4,000"),
    ],
)
def test_data_without_a_report_are_refused_and_leave_the_old_page(tmp_path, values, message):
    path = tmp_path / "page.html"
    path.write_text("old")
    table = random_table(values=values, columns=tuple(map(str, range(values.shape[1]))))
    with pytest.raises(ValueError, match=message):
        write_report(table, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_commands_at_the_end_name_the_file_of_the_report():
    table = Table("my wines.csv", np.eye(2), ("ash", "colour hue"))
    lines = commands_for(table).splitlines()
    words = shlex.split(lines[1], comments=True)
    assert words == ["lucidae", "report", "my wines.csv", "--target", "colour hue"]
    assert "'my wines.csv'" in lines[0]
    assert "--target ash " in commands_for(table.with_target(["ash"]))
    assert "my-data.csv" in commands_for(Table("the digits", np.eye(2), ("a", "b")))


def test_target_is_explained_by_the_columns_that_made_it():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(80, 6))
    target = values[:, [1, 4]] @ [[2.0], [-3.0]] + 0.1 * rng.normal(size=(80, 1))
    names = tuple(f"input {index}" for index in range(6))
    table = random_table(values=np.column_stack([values, target]), columns=(*names, "answer"))
    text = render(table.with_target(["answer"]), SECTIONS[3:4])
    assert "pass a test of significance: input 1, input 4." in text
    assert "generated data" not in text


def test_clock_adds_up_and_survives_an_error():
    clock = Clock()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), clock("task"):
            raise ZeroDivisionError
    assert list(clock.seconds) == ["task"]


def test_plot_refuses_columns_of_different_length():
    plot = Plot("name", "<svg/>", "caption", {"a": [1, 2], "b": [1]})
    with pytest.raises(ValueError, match="shorter"):
        _ = plot.link


def test_drawing_leaves_the_users_style_alone():
    mpl = require("matplotlib")
    before = dict(mpl.rcParams)
    figures.image_grid(np.ones((3, 2, 2)), ["x", "y", "z"], signed=True)
    assert dict(mpl.rcParams) == before


def test_svg_carries_no_colour_of_its_own_and_a_name():
    lines = {"one": (np.arange(3), np.ones(3)), "two": (np.arange(3), np.arange(3) + 1.0)}
    figure = figures.curves(lines, xlabel="x", ylabel="y", logarithmic=False)
    svg = style.to_svg(figure, "lines", 'a "quoted" <name>')
    assert 'aria-label="a &quot;quoted&quot; &lt;name>"' in svg
    assert "var(--blue)" in svg
    assert not any(light in svg for light in style.LIGHT.values())


@pytest.mark.parametrize("theme", [0, 1])
def test_series_keep_their_contrast_with_the_page(theme):
    background = ("#ffffff", "#14181d")[theme]
    for name in ("ink", "muted", "blue", "orange", "green", "purple", "yellow"):
        assert contrast(style.THEME[name][theme], background) >= 3.0, name


def contrast(first, second):
    """Return the contrast ratio of two colours (WCAG 2.1, relative luminance)."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_dollars_in_names_are_text_in_figures():
    names = ("price in $", "tax in $", r"\$x$", "$\\alpha$", "e")
    svg = style.to_svg(figures.loadings(np.eye(5)[:2], names), "a", "b")
    chart = figures.relevances(np.ones(5), np.array([0]), names, None)
    for text in (svg, style.to_svg(chart, "a", "b")):
        drawn = re.findall(r"<text[^>]*>([^<]*)</text>", text)
        for name in names:
            assert name in drawn


def test_formulas_in_names_are_text_in_downloads():
    plot = Plot("name", "<svg/>", "caption", {"=1+1": ["@x", "fine", "-3"], "b": [1.0, -2.0, 3.0]})
    rows = unquote(plot.link.partition(",")[2]).splitlines()
    assert rows == ["'=1+1,b", "'@x,1", "fine,-2", "-3,3"]


def test_indices_start_at_zero_everywhere(parsed):
    numbered = "components:component spectrum:component alignment:latent sample:row"
    for entry in f"{numbered} hidden-units:unit shrinkage:direction".split():
        file, _, column = entry.partition(":")
        assert rows_of(parsed, f"{file}.csv")[0][column] == "0", file


def test_a_hidden_curve_is_named():
    epochs = np.arange(1.0, 50)
    fast, slow = np.exp(-epochs), np.exp(-epochs / 3)
    lines = {"a": (epochs, slow), "b": (epochs[:40], fast[:40]), "c": (epochs, fast * 1.001)}
    assert figures.hidden_curves(lines) == [("b", "c")]
    assert figures.hidden_curves({"a": (epochs, slow), "b": (epochs, fast)}) == []


def test_wide_parts_scroll_with_a_cue(digits_page):
    assert digits_page.count('class="cue"') == digits_page.count('<figure class="plot')
    css = digits_page.partition("<style>")[2].partition("</style>")[0]
    assert ".scroll { overflow-x: auto; background:" in css
    assert re.search(r"max-width: 40rem.*\.cue \{ display: block", css, re.DOTALL)
    assert digits_page.count("<pre") == digits_page.count('<pre class="scroll"') > 0


def test_captions_do_not_name_colours_that_the_dark_theme_inverts(parsed):
    text = " ".join(parsed.words)
    assert not re.search(r"\b(dark|light|black|white|grey) (diagonal|line|pixel|cell)", text)


def test_figures_whose_captions_name_colours_keep_them_in_the_dark_theme(digits_page):
    figures_of_page = digits_page.split("<figure")[1:]
    for figure in figures_of_page:
        caption = figure.partition("<figcaption>")[2].partition("<details>")[0]
        assert ("red is positive" in caption) == ("plot colours" in figure[:40])
    assert "figure:not(.colours) svg image { filter: invert" in digits_page
