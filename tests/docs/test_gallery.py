"""Every example of the gallery runs, draws a figure, and computes what its text states."""

import io
import runpy
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

plt = require("matplotlib.pyplot")

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("plot_*.py"))
NEEDS_MNE = ("plot_source_localisation",)

Names = dict[str, Any]
STATEMENTS: dict[str, Callable[[Names], None]] = {}


def states(check: Callable[[Names], None]) -> Callable[[Names], None]:
    """Register what the text of the example of the same name states."""
    STATEMENTS[check.__name__] = check
    return check


@states
def plot_learning_rules(names: Names) -> None:
    subspace, alignment = names["subspace"], names["alignment"]
    assert max(subspace.values()) < 1e-3
    found = {name for name, value in alignment.items() if value < 1e-3}
    assert found == {"rotation augmented", "closed form"}
    plain = alignment["plain"], alignment["uniform ℓ₂"]
    assert max(alignment["non-uniform ℓ₂"], alignment["nested dropout"]) < min(plain)
    fits = names["autoencoders"]
    assert fits["plain"].certificate_["alignment"].holds is None
    assert fits["non-uniform ℓ₂"].certificate_["alignment"].holds is False
    ours = (fits[name].components_ for name in ("rotation augmented", "closed form"))
    assert_allclose(*ours, atol=1e-3)


@states
def plot_digits(names: Names) -> None:
    assert names["difference"] < 1e-12
    assert names["certificate"].holds
    errors = [names["errors"][size] for size in names["sizes"]]
    assert errors == sorted(errors, reverse=True)
    short = names["LinearAutoencoder"](5).fit(names["train"])
    expected = short.inverse_transform(short.transform(names["test"]))
    assert_allclose(names["reconstructions"][5], expected, atol=1e-8)  # the first five are best


@states
def plot_stream(names: Names) -> None:
    assert max(names["errors"]["LinearAutoencoder"]) < 1e-12
    assert min(names["errors"]["IncrementalPCA"]) > 1e-2
    assert names["same"] == [True, True, True]
    assert names["certified"]


@states
def plot_component_count(names: Names) -> None:
    counts = names["counts"]
    share = counts.pop("90 % of the variance")
    assert set(counts.values()) == {names["true_count"]}
    assert share > 3 * names["true_count"]


@states
def plot_missing_entries(names: Names) -> None:
    for errors in (names["subspace_errors"], names["entry_errors"]):
        ours = errors.pop("likelihood (lucidae)")
        assert all(np.all(np.less(ours, others)) for others in errors.values())
    assert np.min(names["entry_errors"]["nearest neighbours"]) > 0.5
    certificate = names["model"].certificate_
    assert certificate["likelihood"].holds
    assert certificate["identifiability"].holds
    assert certificate["missing_information"].value > 0


@states
def plot_truncated_embeddings(names: Names) -> None:
    accuracy = {name: np.array(values) for name, values in names["accuracy"].items()}
    ours = accuracy["rotated (lucidae)"]
    cut = np.array(names["sizes"]) <= 16
    assert np.all(ours[cut] > accuracy["as trained"][cut])
    assert np.all(ours[cut] > accuracy["largest variances"][cut])
    assert_allclose([values[-1] for values in accuracy.values()], ours[-1])  # nothing is cut
    assert names["certified"]


@states
def plot_failed_certificate(names: Names) -> None:
    assert names["before"].holds is False
    assert {"subspace", "alignment", "gap"} <= set(names["failed"])
    assert all(names["before"][name].advice for name in names["failed"])
    verdicts = [certificate.holds for certificate in names["certificates"]]
    assert verdicts == sorted(verdicts)  # it fails until there are enough iterations
    assert verdicts[-1]
    assert names["after"].holds


@states
def plot_regression(names: Names) -> None:
    scores = names["scores"]
    for name in ("reduced rank (lucidae)", "dropout (lucidae)"):
        assert np.all(scores[0.0][name][1:] > scores[0.0]["ridge"][1:])
        assert scores[0.9]["ridge"][0] > scores[0.9][name][0]
    assert names["path"].best == names["path"].one_se == 3
    assert names["certificate"].holds


@states
def plot_ratings(names: Names) -> None:
    errors = names["errors"]
    ours = errors.pop("lucidae")
    assert ours < min(errors.values())
    assert ours < 0.9 * min(errors["film + person"], errors["neighbours"])
    assert 0.2 < names["observed"].mean() < 0.3
    assert names["certificate"].holds


@states
def plot_loss_landscape(names: Names) -> None:
    without, *with_dropout = names["inequality"]
    assert without > 0.1
    assert max(with_dropout) < 1e-8
    for surface, walks in zip(names["surfaces"][1:], names["walks"][1:], strict=True):
        ends = np.array([walk[-1] for walk in walks])
        assert_allclose(np.abs(ends), np.abs(surface.minima[0]).mean(), atol=1e-8)
    assert names["without"]["gap"].holds is False
    assert names["without"]["equalized"].holds is False
    assert names["trained"].holds
    best, *others = names["points"]
    assert best.index == 0
    assert min(point.index for point in others) > 0


@states
def plot_source_localisation(names: Names) -> None:
    errors, found = names["errors"], names["n_found"]
    assert found["sparse_vae"] == 3 < found["gamma_map"]
    assert_allclose(errors["sparse_vae"], names["best_possible"])
    assert np.all(errors["dSPM"] > errors["sparse_vae"])
    assert names["certificate"].holds


@states
def plot_directions_of_arrival(names: Names) -> None:
    expected = {"beamforming": False, "MUSIC": False, "SparseVAE": True}
    assert names["one_recording"] == expected
    shares = {name: np.array(values) for name, values in names["shares"].items()}
    low = np.array(names["ratios"]) < 0
    assert np.all(shares["SparseVAE"][low] > shares["MUSIC"][low])
    assert np.all(shares["MUSIC"] >= shares["beamforming"])
    assert shares["MUSIC"][-1] == shares["SparseVAE"][-1] == 1.0
    assert names["certificate"].holds


@states
def plot_feature_selection(names: Names) -> None:
    assert max(names["false"]["SparseVAE"]) == 0
    assert np.mean(names["false"]["MultiTaskLassoCV"]) > 24
    assert max(names["missed"]["SparseVAE"]) == 2  # on some of the data sets
    assert min(names["missed"]["SparseVAE"]) == 0
    errors = {name: np.mean(values) for name, values in names["errors"].items()}
    assert errors["SparseVAE"] < errors["MultiTaskLassoCV"]
    assert names["certificate"].holds


@states
def plot_noise_path(names: Names) -> None:
    assert_allclose(names["first_five"], names["relevant"])
    assert names["display"].stays[:5].all()
    assert len(names["choices"]["three columns"].support_) == 3
    assert np.all(np.isin(names["choices"]["one standard error"].support_, names["relevant"]))
    assert names["certificate"].holds


@states
def plot_energy_slices(names: Names) -> None:
    assert_allclose(names["model"].support_, [2, 7, 22, 31])
    used = names["model"].energy_slice(22)
    assert used.minima("full").size == 1
    assert used.minima("diagonal").size == 2
    assert names["display"].energies.minima("full")[0] == 0.0
    assert names["model"].energy(names["swapped"]) > names["model"].energy_


@pytest.fixture
def drawing(example: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Keep figures open until the test ends, and restore the settings that an example changes."""
    mne = require("mne") if example.name in NEEDS_MNE else None
    level = mne and mne.set_log_level(return_old_level=True)
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.close("all")
    with plt.rc_context():
        yield plt
    plt.close("all")
    if mne:
        mne.set_log_level(level)


def run(example: Path) -> tuple[Names, str]:
    """Run an example, and return its variables and what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        names = runpy.run_path(str(FOLDER / example.with_suffix(".py")))
    return names, printed.getvalue()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_draws_a_figure_and_keeps_what_its_text_states(
    example: Path, drawing: Any
) -> None:
    names, printed = run(example)
    figures = [drawing.figure(number) for number in drawing.get_fignums()]
    assert figures
    assert all(any(ax.has_data() for ax in figure.axes) for figure in figures)
    assert printed.strip()
    STATEMENTS[example.name](names)


def test_the_statements_of_every_example_are_checked() -> None:
    assert sorted(STATEMENTS) == sorted(path.name for path in EXAMPLES)
    assert len(EXAMPLES) >= 14
