"""scikit-learn's own checks, on every estimator and both solvers."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor

SGD = {"solver": "sgd", "max_iter": 200, "tol": 1e-6, "batch_size": 16}

ESTIMATORS = [
    DropoutRegressor(),
    DropoutRegressor(2, dropout=0.0, fit_intercept=False),
    DropoutRegressor(dropout="cv", cv=2),
    DropoutRegressor(3, dropout=0.1, **SGD),
    DropoutAutoencoder(),
    DropoutAutoencoder(2, dropout=0.1),
    DropoutAutoencoder(2, **SGD),
    DropoutFactorization(),
    DropoutFactorization(2, dropout=0.0),
]
EQUIVALENCE = (
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
)


def expected_failures(estimator):
    """Name what cannot be met in principle."""
    if getattr(estimator, "solver", "exact") != "sgd":
        return {}
    reason = "stochastic: a row given twice is drawn by other random numbers than one of weight 2"
    return dict.fromkeys(EQUIVALENCE, reason)


# A run of 200 steps is cut short on purpose.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
