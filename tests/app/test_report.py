"""The report: a self-contained page with escaped names and the data of every figure."""

import csv
import html
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

require("jinja2")
require("matplotlib")
require("pandas")

from lucidae import SecondMoment
from lucidae.datasets import load_digits
from lucidae_app.preparation import Preparation, Prepared, ReadOptions, Table
from lucidae_app.report import figures, style, write_report
from lucidae_app.report.page import Plot
from lucidae_app.report.sections import SECTIONS, render

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


def chapters(table, *names):
    """Return a page with some chapters of the report."""
    return render(table, [section for section in SECTIONS if section.name in names])


@pytest.fixture(scope="module")
def digits():
    bunch = load_digits()
    return Table("the digits", bunch.data, tuple(bunch.feature_names), bunch.image_shape)


@pytest.fixture(scope="module")
def digits_page(digits, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(digits, path)
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
    assert {section.name for section in SECTIONS} - {"influence"} <= anchors


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
    for words in ("Columns left out: &lt;script", "in no component: constant", "--standardize"):
        assert words in text


@pytest.mark.parametrize("shape", [(2, 1), (3, 7), (200, 45)])
def test_page_is_written_for_any_shape(shape):
    values = np.random.default_rng(1).normal(size=shape)
    names = tuple(f"c{index}" for index in range(shape[1]))
    assert "</html>" in render(random_table(values=values, columns=names), SECTIONS)


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


def code_of(page):
    return [html.unescape(text) for text in re.findall(r"<li>.*?<code>(.*?)</code>", page)]


def test_the_page_begins_with_the_answer():
    rng = np.random.default_rng(5)
    factors = rng.normal(size=(300, 2)) @ np.array([[3.0, 3, 3, 0, 0, 0], [0, 0, 0, 2, 2, -2]])
    names = ("ash", "hue", "alcohol", "mass", "size", "colour hue")
    table = Table("my wines.csv", factors + 0.1 * rng.normal(size=(300, 6)), names)
    page = chapters(table, "answer")
    main = page.partition("<main>")[2].partition("</main>")[0]
    words = [word.strip() for word in Page(main).words if word.strip()]
    assert words[2].startswith("2 components of my wines.csv stand out of noise and explain 100% ")
    rows = re.findall(r"<tr><td>(\d)</td><td>(\d+)%</td><td>(.*?)</td></tr>", page)
    assert [row[0] for row in rows] == ["0", "1"]
    for name, row in zip((*names[:3], *names[3:]), [rows[0]] * 3 + [rows[1]] * 3, strict=True):
        assert re.search(rf"{name} [+−]0.[56]", row[2])
    assert code_of(page) == [
        "lucidae fit linear 'my wines.csv' --components 2",
        "lucidae report 'my wines.csv' --target 'colour hue'",
    ]
    assert "Certificate of the components: all" in page
    assert '<details class="card" open' not in page


def test_commands_repeat_the_options_of_the_report():
    options = ReadOptions(columns=("a", "b,c"), decimal=",", missing_values=("n/k", "-9"))
    chosen = Preparation(options, ("id 1",), "drop", standardize=True)
    command = code_of(chapters(Prepared(random_table(), chosen), "answer"))[0]
    assert command.partition(" --components ")[2].partition(" ")[2] == (
        """--columns 'a,"b,c"' --keep 'id 1' --decimal , --missing-values n/k,-9 --missing drop """
        "--standardize"
    )


def test_rows_of_high_leverage_are_named_and_left_out_for_comparison():
    rng = np.random.default_rng(2)
    values = np.outer(rng.normal(size=200), [2.0, 2, 2, 0]) + 0.1 * rng.normal(size=(200, 4))
    values[17] = [300.0, -300, 0, 500]
    kept = np.arange(203) > 2  # three rows of the file were left out
    chosen = Preparation(ReadOptions(), standardize=True)
    prepared = Prepared(random_table(values=values, columns=tuple("abcd")), chosen, kept)
    page = chapters(prepared, "answer", "influence")
    assert "Look at row 20: it has a large share" in page
    assert re.search(r"<td>20</td><td>99%</td><td>[abd], [abd], [abd]<", page)
    part = page.partition('id="influence"')[2]
    (described,) = re.findall(r"<td>0</td><td>(\d+)%</td><td>(.*?)</td>", part)
    assert described[0] == "75"  # of the four columns, d is noise
    assert re.search(r"d [+−]0\.[01]\d$", described[1])
    assert "Without it, 2 components stand out of noise" in part


def test_an_outlier_is_named_that_makes_a_component_below_those_of_the_answer():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(500, 6))
    values = np.column_stack([values, rng.normal(size=500), np.ones(500)])
    values[17, 6] = 1e4
    table = random_table(values=values, columns=tuple("abcdefgh"))
    chosen = Preparation(ReadOptions(), standardize=True)
    page = chapters(Prepared(replace(table, name="t.csv"), chosen), "answer")
    assert "Look at row 17" in page
    assert "--target g " in page  # not the constant column


def test_a_number_that_rests_on_equal_noise_is_doubted():
    rng = np.random.default_rng(4)
    rates = rng.gamma(0.5, 2.0, 60) * np.exp(0.8 * rng.standard_normal((3, 60)))
    values = np.log1p(rng.poisson(rates[rng.integers(3, size=400)]))
    names = tuple(f"gene {at}" for at in range(60))
    table = replace(random_table(values=values, columns=names), name="cells.csv")
    page = chapters(Prepared(table, Preparation(ReadOptions())), "answer")
    assert "there may be fewer components" in page
    assert "lucidae report cells.csv --standardize" in page
    page = chapters(Prepared(table, Preparation(ReadOptions(), standardize=True)), "answer")
    assert "there may be fewer components" not in page


def test_with_gaps_the_page_names_one_number_and_one_share_of_components():
    rng = np.random.default_rng(32)
    values = 0.5 * rng.normal(size=(60, 3)) @ rng.normal(size=(3, 8))
    values += rng.normal(size=(60, 8)) * rng.uniform(0.3, 1.2, 8)
    values[rng.random((60, 8)) < 0.25] = np.nan
    table = random_table(values=values, columns=tuple("abcdefgh"))
    prepared = Prepared(table, Preparation(ReadOptions(), missing="em"))
    page = chapters(prepared, "answer", "components")
    (headline,) = re.findall(r"(\d) components of noise.csv stand out", page)
    assert set(re.findall(r"dashed lines mark the (\d) components", page)) == {headline}
    assert set(re.findall(r"--components (\d)", page)) == {headline}
    shares = re.findall(r"explain (\d+%)", page) + re.findall(r"k = \d: (\d+%)", page)
    assert len(shares) >= 2
    assert len(set(shares)) == 1
    assert "Missing values are filled in here" in page


def test_only_observed_values_are_called_far_from_the_median():
    rng = np.random.default_rng(2)
    values = np.outer(rng.normal(size=200), [2.0, 2, 2, 2]) + 0.1 * rng.normal(size=(200, 4))
    values[17] = [300.0, 300, 300, np.nan]
    prepared = Prepared(
        random_table(values=values, columns=tuple("abcd")), Preparation(ReadOptions(), missing="em")
    )
    assert re.search(
        r"<td>17</td><td>\d+%</td><td>[abc], [abc], [abc]<", chapters(prepared, "influence")
    )


def test_target_is_explained_by_the_columns_that_made_it():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(80, 6))
    target = values[:, [1, 4]] @ [[2.0], [-3.0]] + 0.1 * rng.normal(size=(80, 1))
    names = tuple(f"input {index}" for index in range(6))
    table = random_table(values=np.column_stack([values, target]), columns=(*names, "answer"))
    text = chapters(table.with_target(["answer"]), "sparsity")
    assert "pass a test of significance: input 1, input 4." in text
    assert "generated data" not in text


def test_dollars_and_letters_that_no_font_has_are_text_in_figures():
    names = ("price in $", "tax in $", r"\$x$", "$\\alpha$", "体重")
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
