"""Runs of the experiment on truncated embeddings: what they measure, and that verdicts can fail."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require
from papers.judging import verdicts

torch = require("torch")
pytestmark = pytest.mark.usefixtures("one_thread")

from lucidae_papers.embedding_runs import (
    LOSSES,
    Classifier,
    _evaluate_pca,
    _ordered,
    _recall,
    measure,
)
from lucidae_papers.embeddings import EXPERIMENT, NAMES, TRAININGS, Truncation
from lucidae_papers.results import Measured, Results

TINY = Truncation("digits", (2, 4, 8, 16), 16, 6, 100, 1e-2, 1, 1.0)


def settings(kind, **changes):
    (cell,) = [cell for cell in TINY.cells() if cell.settings["loss"] == kind]
    return {**cell.settings, **changes}


@pytest.mark.parametrize("loss", TRAININGS)
def test_a_run_is_repeatable_and_leaves_the_generator_alone(loss):
    before = torch.get_rng_state()
    first, second = measure([settings(loss), settings(loss)], "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    expected = {loss, "pca", "ordered"} if loss == "plain" else {loss}
    assert {name.partition("/")[2] for name in first} == expected
    for name, values in first.items():
        assert values.shape == (4,)
        assert_allclose(values, second[name], rtol=0)
        assert 0 <= values.min() <= values.max() <= 1
    assert first[f"accuracy/{loss}"][-1] > 0.3  # by chance 0.1


def network():
    torch.manual_seed(0)
    model = Classifier(5, 12, 8, 3)
    return model, torch.randn(60, 5), torch.arange(60) % 3


def test_rotations_do_not_change_the_network_at_full_width():
    model, x, y = network()
    with torch.no_grad():
        logits = model.head(model(x))
        ordered = _ordered(model, x)
        assert_allclose(ordered.head(ordered(x)), logits, atol=1e-4)
        # Three classes: three directions of the embedding carry everything that they see.
        cut = ordered(x) * (torch.arange(8) < 3)
        assert_allclose(ordered.head(cut), logits, atol=1e-4)
        found = _evaluate_pca(model, (x, y), (x, y), [2, 8])
    right = (logits.argmax(1) == y).double().mean().item()
    assert_allclose(found["accuracy/pca"][-1], right)


def test_recall_is_that_of_a_search_by_brute_force():
    rng = np.random.default_rng(0)
    stored, queries = rng.standard_normal((40, 3)), rng.standard_normal((15, 3))
    classes, labels = np.arange(40) % 4, np.arange(15) % 4
    hits = 0
    for query, label in zip(queries, labels, strict=True):
        cosines = [query @ row / np.linalg.norm(row) for row in stored]
        hits += classes[int(np.argmax(cosines))] == label
    found = _recall(*(torch.tensor(part) for part in (stored, classes, queries, labels)))
    assert found == pytest.approx(hits / 15)


def test_every_loss_is_that_of_the_truncated_embeddings():
    model, x, y = network()
    cross_entropy = torch.nn.functional.cross_entropy
    z = model(x)

    def at(b):
        return cross_entropy(model.head(z * (torch.arange(8) < b)), y).item()

    assert LOSSES["plain"](model, [2, 8], 0)(z, y).item() == pytest.approx(at(8))
    both = (at(2) + at(8)) / 2
    assert LOSSES["prefix"](model, [2, 8], 0)(z, y).item() == pytest.approx(both)
    sampled = LOSSES["sampled"](model, [2, 8], 0)
    drawn = {round(sampled(z, y).item(), 5) for _ in range(20)}
    assert drawn == {round(at(2), 5), round(at(8), 5)}


def results(**levels):
    """Return results in which the accuracies and recalls of each method are the given numbers."""
    arrays = {
        f"{quantity}/{name}": np.array(levels[name])
        for name in NAMES
        for quantity in ("accuracy", "recall")
    }
    return Results(tuple(Measured(cell.settings, arrays, {}) for cell in TINY.cells()))


def test_verdicts_depend_on_the_results():
    levels = {name: [0.9] * 4 for name in NAMES}
    expect = EXPERIMENT.at("smoke").expect
    equal = verdicts(TINY, expect, results(**levels))
    assert not equal["accuracy/prefix ≥ accuracy/plain"]
    assert not equal["recall/prefix ≥ recall/plain"]
    assert equal["loss/ordered"]
    assert equal["accuracy/ordered ≥ accuracy/prefix"]
    levels["plain"] = [0.2, 0.3, 0.4, 0.9]
    better = verdicts(TINY, expect, results(**levels))
    assert better["accuracy/prefix ≥ accuracy/plain"]
    assert better["accuracy/nested ≥ accuracy/plain"]
    assert better["recall/prefix ≥ recall/plain"]
    levels["ordered"] = [0.2, 0.3, 0.4, 0.5]
    levels["sampled"] = [0.2, 0.9, 0.9, 0.9]
    worse = verdicts(TINY, expect, results(**levels))
    assert not worse["loss/ordered"]
    assert not worse["accuracy/ordered ≥ accuracy/prefix"]
    assert worse["accuracy/prefix ≥ accuracy/ordered"]
    assert not worse["accuracy/sampled ≈ accuracy/prefix"]


def test_settings_are_checked_and_can_be_stored():
    assert json.loads(json.dumps(settings("plain"))) == settings("plain")
    with pytest.raises(ValueError, match="loss='triplet'"):
        measure([settings("plain", loss="triplet")], "cpu")
    with pytest.raises(ValueError, match="data='faces'"):
        measure([settings("plain", data="faces")], "cpu")
