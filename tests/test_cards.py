"""What notebooks show of results, and the plots of results."""

import warnings

import numpy as np
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import extras
from html_reader import Reader
from lucidae import DropoutRegressor, LinearAutoencoder, SecondMoment, SparseVAE
from lucidae.certificates import Certificate, at_most
from lucidae.datasets import load_digits
from lucidae.dropout import LinearProblem, completion_path, rank_path, regularization_path
from lucidae.iteration import BatchSolution, Below, History, Status, iterate
from lucidae.linear import count_components
from lucidae.sparsity import noise_path

SCRIPT = "<script>alert(1)</script>"
TAGS = {
    "style", "section", "h4", "details", "summary", "div", "table", "thead", "tbody", "tr", "th",
    "td", "p", "cite", "span", "svg", "polyline",
}  # fmt: skip
words = st.text(st.characters(exclude_categories=["C"]), max_size=20) | st.sampled_from(
    [SCRIPT, "\"'><img src=x onerror=y>", "</style>", "</section>", "&amp;"]
)


def random_rows(seed=0):
    return np.random.default_rng(seed).standard_normal((40, 6))


def incomplete_matrix():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 8))
    return np.where(rng.random(matrix.shape) < 0.2, np.nan, matrix)


def solution():
    return iterate(
        lambda x: x / 2, 1.0, stop=Below(abs, 1e-3), limit=50, record={SCRIPT: lambda x: x * x}
    )


def sparse_path():
    X = random_rows()
    return noise_path(X, X[:, [2]] @ np.ones((1, 3)), [1.0, 0.1, 0.01])


CLAIM = at_most("gap", "the loss is minimal", f"Somebody {SCRIPT}", 1e-9, 1e-6)

RESULTS = {
    "certificate": lambda: Certificate(SCRIPT, (CLAIM,)),
    "claim": lambda: CLAIM,
    "solution": solution,
    "solutions": lambda: BatchSolution(
        (np.zeros(3),),
        (Status.CONVERGED, Status.ITERATION_LIMIT, Status.CONVERGED),
        np.array([3, 9, 5]),
        np.array([1e-8, 0.2, 1e-9]),
        1e-6,
    ),
    "history": lambda: solution().history,
    "no history": lambda: History(np.empty(0, dtype=int)),
    "moment": lambda: SecondMoment.of(random_rows()),
    "noise path": sparse_path,
    "rank path": lambda: rank_path(random_rows(), random_rows(1)[:, :3]),
    "cross-validation": lambda: rank_path(random_rows(), random_rows(1)[:, :3]).cv,
    "dropout path": lambda: regularization_path(LinearProblem.from_matrix(random_rows()), 6),
    "completion path": lambda: completion_path(incomplete_matrix(), 4, [0.1, 0.5, 0.9]),
    "component count": lambda: count_components([9.0, 4.0, 1.1, 1.0, 0.9], 200, "mle"),
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS)
def test_every_card_is_whole_escaped_and_asks_for_nothing_from_outside(make):
    page = make()._repr_html_()
    reader = Reader(page)
    assert not reader.open
    assert reader.tags <= TAGS
    assert ("class", "lucidae-card") in [
        (name, value.split()[0]) for name, value in reader.attributes if name == "class"
    ]
    assert "http" not in page
    assert "url(" not in page
    assert len(page) < 20_000


@given(words, words, words, words)
def test_no_text_breaks_out_of_a_card(title, name, statement, reference):
    claim = at_most(name, statement, reference, 1e-9, 1e-6)
    history = History(np.arange(2), {name: np.array([3.0, 1.0])})
    certificate = Certificate(title, (claim,))
    pages = [(certificate, (title, name, statement, reference)), (history, (name,))]
    for shown, given_words in pages:
        reader = Reader(shown._repr_html_())
        assert not reader.open
        assert reader.tags <= TAGS
        allowed = {"class", "scope", "tabindex", "viewbox", "role", "aria-label", "points", "title"}
        assert {attribute for attribute, _ in reader.attributes} <= allowed
        text = "".join(reader.text)
        assert all(words in text for words in given_words)


def test_long_tables_are_abbreviated():
    problem = LinearProblem.autoencoder(SecondMoment.of(random_rows()))
    whole, part = (
        regularization_path(problem, 3, np.linspace(0, 0.9, number))._repr_html_()
        for number in (30, 31)
    )
    assert whole.count("<tr>") == part.count("<tr>") + 10
    assert "20 of 31 rows are shown." in part
    for number in ("0", "0.9"):  # the first and the last are among them
        assert f"<th scope='row'>{number}</th>" in part


def test_a_sparkline_is_a_curve_from_left_to_right_with_the_largest_value_at_the_top():
    def points(values):
        page = History(np.arange(len(values)), {"loss": np.array(values)})._repr_html_()
        found = page.split("points='")[1:]
        pairs = [point.split(",") for curve in found for point in curve.split("'")[0].split()]
        return np.array(pairs, dtype=float).T

    across, down = points([1.0, np.nan, 10.0, 100.0])
    assert_allclose(across, [1.0, 79.7, 119.0], atol=0.1)
    assert_allclose(down, [21.0, 11.0, 1.0], atol=0.1)  # equal steps: the scale is logarithmic
    assert points([np.nan, 1.0]).size == 0
    assert points(np.arange(5000.0)).shape == (2, 120)


@pytest.mark.parametrize(
    "estimator",
    [LinearAutoencoder(2), DropoutRegressor(2), SparseVAE(noise_variance=0.1)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_fitted_estimator_shows_its_certificate_below_the_diagram(estimator):
    assert "lucidae-certificate" not in estimator._repr_html_()
    X = random_rows()
    fitted = sklearn.base.clone(estimator).fit(X, X[:, :2])
    page = fitted._repr_html_()
    assert page.index("sk-container") < page.index("lucidae-certificate")
    headline = fitted.certificate_.summary().splitlines()[0]
    assert f"<summary>✓ {headline}</summary>".replace("'", "&#x27;") in page
    assert fitted._repr_mimebundle_()["text/html"].count("lucidae-certificate'") == 1
    with sklearn.config_context(display="text"):
        assert not hasattr(fitted, "_repr_html_")
        assert set(fitted._repr_mimebundle_()) == {"text/plain"}


def test_names_of_features_are_escaped_by_the_diagram():
    pandas = extras.require("pandas")
    frame = pandas.DataFrame(random_rows(), columns=[SCRIPT, *"bcdef"])
    assert SCRIPT not in LinearAutoencoder(2).fit(frame)._repr_html_()


def test_a_certificate_with_a_failed_claim_is_open():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped = LinearAutoencoder(3, solver="gradient", max_iter=1, random_state=0)
        stopped.fit(load_digits().data)
    assert stopped.certificate_.holds is False
    assert "<details open><summary>✗ LinearAutoencoder" in stopped._repr_html_()


def test_a_history_and_a_solution_draw_what_was_recorded():
    found = solution()
    for result in (found, found.history):
        assert_allclose(result.plot().lines_[0].get_ydata(), found.history["distance"])
    display = found.plot(quantity=SCRIPT, color="red")
    assert_allclose(display.lines_[0].get_ydata(), found.history[SCRIPT])
    assert display.lines_[0].get_color() == "red"
    with pytest.raises(ValueError, match="history is empty"):
        History(np.empty(0, dtype=int)).plot()


def test_a_moment_draws_the_eigenvalues_of_its_covariance():
    X = random_rows()
    expected = np.linalg.eigvalsh(np.cov(X.T, bias=True))[::-1]
    moment = SecondMoment.of(X)
    assert_allclose(moment.plot().line_.get_ydata(), expected)
    plt = extras.require("matplotlib.pyplot")
    axes = plt.subplots()[1]
    display = moment.plot(2, ax=axes)
    assert display.ax_ is axes
    assert_allclose(display.values, expected[:2])


@pytest.mark.parametrize("name", ["dropout path", "completion path"])
def test_paths_over_dropout_rates_draw_error_and_rank_of_every_positive_rate(name):
    path = RESULTS[name]()
    display = path.plot()
    positive = path.dropout > 0
    assert_array_equal(display.line_.get_xdata(), path.dropout[positive])
    assert_array_equal(display.line_.get_ydata(), path.error[positive])
    assert_array_equal(display.rank_line_.get_ydata(), path.rank[positive])
    assert display.ax_.get_xscale() == "logit"
    labels = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert "0.5" in labels
    with pytest.raises(ValueError, match="rank has shape"):
        type(display)([0.1, 0.2], [1.0, 2.0], [1])
