"""Epochs to a given alignment, against the training curves."""

import numpy as np

from lucidae.experiments.linear.scaling import EpochsToAlignment
from lucidae.experiments.linear.scaling import measure as count_epochs
from lucidae.experiments.linear.training import Trial
from lucidae.experiments.linear.training import measure as train


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
