"""Estimators that honour scikit-learn's contract."""

from lucidae.dropout.estimators.autoencoder import DropoutAutoencoder
from lucidae.dropout.estimators.factorization import DropoutFactorization
from lucidae.dropout.estimators.regressor import DropoutRegressor

__all__ = ["DropoutAutoencoder", "DropoutFactorization", "DropoutRegressor"]
