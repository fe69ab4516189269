"""LinearAutoencoder keeps scikit-learn's contract, once per solver; all variants are slow."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lucidae import LinearAutoencoder
from lucidae.linear import METHODS

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning",
    "ignore::sklearn.exceptions.SkipTestWarning",
    "ignore:.*One component was fitted nevertheless:UserWarning",
)

SAMPLED = "mini-batches are drawn from rows, so repeating a row is not the same as weighting it"


def descent(method, solver):
    samples = solver == "stochastic" or method == "nested_dropout"
    return LinearAutoencoder(
        1 if samples else None,
        method=method,
        solver=solver,
        batch_size=4,
        max_iter=5,
        random_state=0,
    )


QUICK = [
    LinearAutoencoder(),
    descent("linear_vae", "gradient"),
    descent("nested_dropout", "stochastic"),
    LinearAutoencoder(handle_missing="em"),
]
OTHERS = [
    *(LinearAutoencoder(method=method) for method in METHODS if method != "rag"),
    *(descent(method, "gradient") for method in METHODS if method != "linear_vae"),
    *(descent(method, "stochastic") for method in METHODS if method != "nested_dropout"),
    LinearAutoencoder(1, method="linear_vae", whiten=True, handle_missing="em"),
    LinearAutoencoder(1, method="nonuniform_l2", handle_missing="em"),
    *map(LinearAutoencoder, ("mle", "parallel_analysis", "hard_threshold")),
    LinearAutoencoder(("hard_threshold", 1.0)),
]


def expected_failures(estimator):
    if estimator.solver != "stochastic":
        return {}
    return {
        "check_sample_weight_equivalence_on_dense_data": SAMPLED,
        "check_sample_weight_equivalence_on_sparse_data": SAMPLED,
    }


@parametrize_with_checks(QUICK, expected_failed_checks=expected_failures)
def test_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHERS, expected_failed_checks=expected_failures)
def test_contract_of_the_other_variants(estimator, check):
    check(estimator)
