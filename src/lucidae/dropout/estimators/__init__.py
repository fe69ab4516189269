"""Estimators that honour scikit-learn's contract."""

from lucidae.dropout.estimators._autoencoder import DropoutAutoencoder
from lucidae.dropout.estimators._factorization import DropoutFactorization
from lucidae.dropout.estimators._regressor import DropoutRegressor

__all__ = ["DropoutAutoencoder", "DropoutFactorization", "DropoutRegressor"]
