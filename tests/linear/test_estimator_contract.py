"""LinearAutoencoder keeps scikit-learn's contract, for every method and solver."""

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


def estimators():
    for method in METHODS:
        for solver in ("exact", "gradient", "stochastic"):
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


@parametrize_with_checks(list(estimators()), expected_failed_checks=expected_failures)
def test_contract(estimator, check):
    check(estimator)
