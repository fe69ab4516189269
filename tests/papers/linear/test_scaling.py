"""Epochs to a given alignment, against the training curves."""

import numpy as np

from lucidae_papers.catalogue import experiment
from lucidae_papers.linear.scaling import EpochsToAlignment
from lucidae_papers.linear.scaling import measure as count_epochs
from lucidae_papers.linear.training import Trial
from lucidae_papers.linear.training import measure as train


def test_the_epochs_are_those_at_which_the_training_reaches_the_target():
    setting = EpochsToAlignment(
        "small-gaussian", (2,), {("rag", "nesterov"): (1e-4, 1e-4)}, limit=400
    )
    (cell,) = setting.cells()
    (found,) = count_epochs([cell.settings], "cpu")
    trial = Trial("rag", "nesterov", 1e-4, "small-gaussian", 2, 400, marks=tuple(range(0, 400, 10)))
    (trained,) = train([trial.cell.settings], "cpu")
    tens = trained["epochs"] % 10 == 0
    arrived = trained["epochs"][tens][np.argmax(trained["alignment"][tens] <= 0.3)]
    assert float(found["epochs"]) == arrived


TABLE_4 = {  # Bao et al. 2020: learning rates at k = 2, 5, 10, 20; at k = 50; and at k ≥ 100
    ("nonuniform_l2", "nesterov"): (1e-3, 1e-3, 1e-3),
    ("rag", "nesterov"): (1e-4, 1e-4, 1e-4),
    ("nested_dropout", "nesterov"): (1e-3, 1e-3, 1e-3),
    ("expected_nested_dropout", "nesterov"): (1e-3, 1e-3, 1e-3),
    ("linear_vae", "nesterov"): (3e-4, 3e-4, 3e-4),
    ("nonuniform_l2", "adam"): (3e-3, 3e-3, 3e-3),
    ("nested_dropout", "adam"): (1e-2, 3e-3, 3e-3),
    ("expected_nested_dropout", "adam"): (3e-3, 3e-3, 1e-2),
    ("linear_vae", "adam"): (3e-3, 1e-3, 1e-3),
}


def test_learning_rates_are_those_of_table_4_but_for_two_runs():
    """At k = 50 two runs with Adam use the rate of smaller k; docs/theory/linear.md says so."""
    others = []
    for cell in experiment("lae-scaling").at("paper").setting.cells():
        settings = cell.settings
        k, pair = settings["k"], (settings["method"], settings["optimizer"])
        if settings["learning_rate"] != TABLE_4[pair][0 if k < 50 else 1 if k == 50 else 2]:
            others.append((*pair, k))
    assert sorted(others) == [("linear_vae", "adam", 50), ("nested_dropout", "adam", 50)]
