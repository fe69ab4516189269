"""A dictionary that misfits a fifth of the power: the certificate warns, "auto" finds the source.

The simulations are those of the benchmark `misfit`, with fewer sensors and a coarser grid.
"""

import numpy as np
import pytest
from benchmarks.misfit import make_head, outcome, within

STEP = 0.015


@pytest.fixture(scope="module")
def head():
    return make_head(60, STEP)


def test_a_wrong_lead_field_is_noticed_and_auto_and_the_stable_part_find_the_source(head):
    runs = [outcome(head, "bent", seed) for seed in range(5)]
    for run in runs:
        assert abs(run.misfit - 0.2) < 0.01
        assert run.warned
        assert run.n_columns > 1  # held-out sensors ask for sources that are not there
        assert run.n_auto < run.n_columns
    for name in ("auto", "stable"):
        _, near, _ = within([getattr(run, name) for run in runs], STEP)
        assert near >= 0.8


def test_a_right_lead_field_gives_no_warning(head):
    for seed in range(3):
        run = outcome(head, "bent", seed, share=1e-9)
        assert not run.warned
        assert run.n_columns == run.n_auto == 1
        assert np.linalg.norm(run.stable) == 0
