"""Recovery cells: shared problems, groups of cells, and the group lasso of scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import MultiTaskLasso

from lucidae_papers.sparsity import recovery
from lucidae_papers.sparsity.methods import group_lasso
from lucidae_papers.sparsity.recovery import Recovery

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
