"""LinearAutoencoder keeps scikit-learn's contract, for every method and solver.

The quick test has every method with the closed form, and the other solvers with the methods whose
steps differ most; the slow one has all other pairs.
"""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lucidae import LinearAutoencoder
from lucidae.linear.methods import METHODS

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
)

SAMPLED = "mini-batches are drawn from rows, so repeating a row is not the same as weighting it"


def samples(method, solver):
    return solver == "stochastic" or (method == "nested_dropout" and solver == "gradient")


DESCENDED = ("rag", "brockett", "nested_dropout", "linear_vae")
"""Methods whose descent is in the quick test: rotated, retracted and drawn steps, and a VAE."""


def estimators(*, quick):
    for method in METHODS:
        for solver in ("exact", "gradient", "stochastic"):
            if quick is not (solver == "exact" or method in DESCENDED):
                continue
            yield LinearAutoencoder(
                1 if samples(method, solver) else None,
                method=method,
                solver=solver,
                batch_size=4,
                max_iter=5,
                random_state=0,
            )


def expected_failures(estimator):
    if estimator.solver != "stochastic":
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": SAMPLED,
        "check_sample_weight_equivalence_on_sparse_data": SAMPLED,
    }


@parametrize_with_checks(list(estimators(quick=True)), expected_failed_checks=expected_failures)
def test_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(list(estimators(quick=False)), expected_failed_checks=expected_failures)
def test_contract_of_the_other_pairs(estimator, check):
    check(estimator)
