"""How far given weights are from what dropout converges to, claim by claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lucidae._arrays import as_double, is_array, like, to_numpy
from lucidae._validation import check_number, check_rows, check_weights
from lucidae.certificate import Certificate
from lucidae.dropout.claims import judge
from lucidae.dropout.joint import joint_moment
from lucidae.dropout.measurement import measure
from lucidae.dropout.objectives import LinearProblem, Weights
from lucidae.dropout.theory import strength_of
from lucidae.moments import SecondMoment

__all__ = ["certify_estimator", "certify_weights"]


def certify_weights(
    U: Any,
    V: Any,
    X: Any = None,
    Y: Any = None,
    *,
    dropout: float,
    tied: bool = False,
    matrix: Any = None,
    fit_intercept: bool = True,
    sample_weight: Any = None,
    tolerance: float = 1e-6,
) -> Certificate:
    """Certify the weights of a linear network x ↦ U Vᵀx that was trained with dropout.

    Parameters
    ----------
    U : array of shape (d1, r)
        Outgoing weights; of a torch model, the weight of the second linear layer.
    V : array of shape (d2, r) or None
        Incoming weights; of a torch model, the transposed weight of the first linear layer.
        None for tied weights.
    X : array-like of shape (n, d2), optional
        Inputs.
    Y : array-like of shape (n, d1) or (n,), optional
        Outputs; None for an autoencoder, whose outputs are its inputs.
    dropout : float
        Probability of dropping a hidden unit, in [0, 1).
    tied : bool, default=False
        Whether both layers share U.
    matrix : array-like of shape (d1, d2), optional
        M in place of data: white inputs with y = Mx, or the matrix that UVᵀ factorises.
    fit_intercept : bool, default=True
        Whether the network has biases, so that centred data are what counts.
    sample_weight : array-like of shape (n,), optional
        Frequencies of the rows.
    tolerance : float, default=1e-6
        Gap to the optimum, relative to E‖y‖², that counts as none.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0])
    >>> certificate = certify_weights(np.eye(2), np.eye(2), matrix=M, dropout=0.5)
    >>> certificate.holds, certificate["gap"].holds
    (False, False)
    """
    strength = strength_of(dropout)
    check_number(tolerance, "tolerance", low=0.0, open_low=True)
    left, right = _layer(U, "U"), _layer(U if V is None or tied else V, "V")
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"U has {left.shape[1]} columns and V has {right.shape[1]}: both need one column per "
            "hidden unit."
        )
    tied = tied or V is None
    problem = _problem(X, Y, matrix, left, right, fit_intercept, sample_weight)
    weights = Weights(like(left, problem.cross), like(right, problem.cross))
    figures = measure(problem, weights, strength, tied=tied, tolerance=tolerance)
    return judge(figures, tolerance, "dropout weights")


def certify_estimator(
    estimator: Any, X: Any = None, y: Any = None, *, sample_weight: Any = None
) -> Certificate:
    """Certify a fitted estimator of this family, on its own fit or on other data.

    Parameters
    ----------
    estimator : DropoutRegressor, DropoutAutoencoder or DropoutFactorization
        Fitted.
    X, y : array-like, optional
        Data to judge the weights on; None for what the fit kept.
    sample_weight : array-like, optional
        Frequencies of the rows of X.

    Returns
    -------
    Certificate

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import DropoutFactorization
    >>> M = np.arange(12.0).reshape(4, 3)
    >>> model = DropoutFactorization(2).fit(M)
    >>> certify_estimator(model).holds, certify_estimator(model, M).holds
    (True, True)
    """
    certificate: Certificate = (
        estimator.certificate_ if X is None else estimator._certify(X, y, sample_weight)
    )
    return replace(certificate, title=type(estimator).__name__)


def _layer(weights: Any, name: str) -> np.ndarray[Any, Any]:
    """Return weights as float64 on the host, detached from whatever graph made them."""
    host = to_numpy(weights) if is_array(weights) else np.asarray(weights)
    return np.asarray(check_rows(host, accept_sparse=False, name=name), dtype=np.float64)


def _problem(
    X: Any,
    Y: Any,
    matrix: Any,
    left: Any,
    right: Any,
    fit_intercept: bool,
    sample_weight: Any,
) -> LinearProblem:
    """Return the problem that the given data pose, checked against the shapes of the weights."""
    if (X is None) == (matrix is None):
        raise ValueError(
            "give either data (X, and Y unless the network is an autoencoder) or matrix=M."
        )
    if matrix is not None:
        problem = LinearProblem.from_matrix(
            as_double(check_rows(matrix, accept_sparse=False, name="matrix"))
        )
    else:
        problem = data_problem(X, Y, fit_intercept, sample_weight)
    expected = (left.shape[0], right.shape[0])
    if tuple(problem.cross.shape) != expected:
        raise ValueError(
            f"the data have {problem.cross.shape[0]} outputs and {problem.cross.shape[1]} inputs, "
            f"but U and V have {expected[0]} and {expected[1]} rows."
        )
    return problem


def data_problem(X: Any, Y: Any, fit_intercept: bool, sample_weight: Any) -> LinearProblem:
    """Return the moments of (X, Y), or of an autoencoder of X."""
    X = check_rows(X)
    if Y is None:
        moment = SecondMoment.of(X, sample_weight)
        return LinearProblem.autoencoder(moment, centered=fit_intercept)
    weights = check_weights(sample_weight, X)
    return LinearProblem.from_moment(
        joint_moment(X, Y, weights), X.shape[1], centered=fit_intercept
    )
