"""scikit-learn's own checks, for every posterior and solver."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from lucidae import SparseVAE

VARIANTS = [
    SparseVAE(),
    SparseVAE(posterior="diagonal"),
    SparseVAE(posterior="point"),
    SparseVAE(solver="mm"),
    SparseVAE(solver="em"),
    SparseVAE(solver="mackay"),
    SparseVAE(solver="coordinate"),
    SparseVAE(noise_variance=0.1),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(VARIANTS)
def test_scikit_learn_check(estimator, check):
    check(estimator)
