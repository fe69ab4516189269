"""The scikit-learn estimators of the dropout family."""

from lucidae.dropout.estimators.autoencoder import DropoutAutoencoder
from lucidae.dropout.estimators.factorization import DropoutFactorization
from lucidae.dropout.estimators.regressor import DropoutRegressor

__all__ = ["DropoutAutoencoder", "DropoutFactorization", "DropoutRegressor"]
