"""What the cells measure, against other ways to the same figures."""

import numpy as np
import pytest
from sklearn.linear_model import MultiTaskLasso

import extras
from lucidae.experiments.dropout.convergence import Convergence
from lucidae.experiments.linear.landscape import Plane
from lucidae.experiments.linear.scaling import EpochsToAlignment
from lucidae.experiments.linear.scaling import measure as count_epochs
from lucidae.experiments.linear.training import Trial
from lucidae.experiments.linear.training import measure as train
from lucidae.experiments.sparsity import recovery
from lucidae.experiments.sparsity.methods import group_lasso
from lucidae.experiments.sparsity.recovery import Recovery

SMALL = Recovery((3, 9), 2, d=12, kappa=24, n=6)
NOISY = Recovery((3, 9), 2, d=12, kappa=24, n=6, snr_db=20.0, criterion="support", tol=1e-4)


def test_the_batched_group_lasso_is_scikit_learns():
    (cell,) = Recovery((4,), 3, d=15, kappa=25, n=6, snr_db=20.0).cells()[-1:]
    stack = recovery._stack([cell.settings["problem"]], "cpu")
    found = group_lasso(stack.dictionary, stack.responses, stack.noise, tol=1e-10, max_iter=5000)
    for place, noise in enumerate(stack.noise):
        alpha = np.sqrt(noise) / stack.dictionary.shape[1]  # their data term is ‖·‖²/(2d)
        lasso = MultiTaskLasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100_000)
        lasso.fit(stack.dictionary[place], stack.responses[place])
        np.testing.assert_allclose(found.value.coef[place], lasso.coef_, atol=1e-5)


@pytest.mark.parametrize("setting", [SMALL, NOISY], ids=["exact", "noisy"])
def test_cells_measured_together_are_cells_measured_alone(setting):
    group = [cell.settings for cell in setting.cells()]
    together = recovery.measure(group, "cpu")
    alone = [recovery.measure([settings], "cpu")[0] for settings in group]
    for one, other in zip(together, alone, strict=True):
        for name in ("rows", "frobenius", "support"):
            assert np.array_equal(one[name], other[name])


def test_every_method_sees_the_same_problems():
    first, *others = [
        cell.settings["problem"] for cell in SMALL.cells() if cell.settings["problem"]["r"] == 3
    ]
    assert all(problem == first for problem in others)
    assert len(others) == 3


@pytest.mark.parametrize(
    ("method", "optimizer", "batch_size"),
    [
        ("rag", "nesterov", None),
        ("linear_vae", "adam", None),
        ("nested_dropout", "nesterov", None),
        ("expected_nested_dropout", "adam", 500),
    ],
)
def test_torch_trains_as_numpy_does(method, optimizer, batch_size):
    extras.require("torch")
    trial = Trial(method, optimizer, 1e-2, "digits", 3, 12, batch_size=batch_size)
    (ours,), (theirs,) = (train([trial.cell.settings], device) for device in ("cpu", "cpu:0"))
    for name in ("alignment", "subspace", "loss"):
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-9)


def test_runs_that_differ_in_their_rate_go_together():
    trials = [Trial("rag", "nesterov", rate, "digits", 3, 20) for rate in (1e-2, 2e-2)]
    assert trials[0].cell.together == trials[1].cell.together
    both = train([trial.cell.settings for trial in trials], "cpu")
    for found, trial in zip(both, trials, strict=True):
        (alone,) = train([trial.cell.settings], "cpu")
        np.testing.assert_allclose(found["alignment"], alone["alignment"], atol=1e-10)
    stochastic = Trial("nested_dropout", "nesterov", 1e-2, "digits", 3, 20)
    assert stochastic.cell.together == ""


def test_a_race_ends_where_the_training_passes_the_mark():
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


def test_the_plane_of_the_valley_has_the_right_slope():
    plane = Plane(np.array([1.5, 1.0]), np.array([0.1, 0.2]))
    point, step = np.array([0.4, -0.7]), 1e-6
    differences = [
        (plane.loss(point + step * axis) - plane.loss(point - step * axis)) / (2 * step)
        for axis in np.eye(2)
    ]
    np.testing.assert_allclose(plane.slope(point), differences, rtol=1e-7)
    angles = np.linspace(0, 2 * np.pi, 721)
    ring = plane.loss(np.stack([np.cos(angles), np.sin(angles)], axis=-1))
    np.testing.assert_allclose(plane.slope(np.array([1.0, 0.0])), 0, atol=1e-12)
    assert np.argmin(ring) in (0, 360, 720)


def test_dropout_runs_are_shared_out_and_none_falls_below_the_optimum():
    setting = Convergence((6, 4), (2,), (0.5,), 200, 4, 6, 3)
    cells = setting.cells()
    assert len(cells) == 2
    found = [cell.work([cell.settings], "cpu")[0] for cell in cells]
    assert all(one["objective"].shape[1] == 3 for one in found)
    assert not np.array_equal(found[0]["objective"], found[1]["objective"])
    assert all(np.min(one["objective"]) >= one["optimum"] * (1 - 1e-12) for one in found)
