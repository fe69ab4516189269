"""Completed matrices for several dropout rates, and the choice of the rate by held-out entries.

`lucidae.dropout.completion.complete` solves the problem for each rate, starting from the solution
for the next larger rate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from lucidae.dropout.completion import Completion, complete
from lucidae.dropout.equalize import check_width
from lucidae.dropout.held_out import CrossValidation, checked_splits
from lucidae.dropout.observed import ObservedEntries, check_missing_values, marked
from lucidae.dropout.path import PathOfRates
from lucidae.dropout.theory import dropout_of, strength_of
from lucidae.dropout.verified_completion import ZERO
from lucidae.iteration import limited_blas
from lucidae.validation import check_integer, check_number, check_rows

__all__ = ["CompletionPath", "completion_path", "cross_validate_entries"]

Vector = np.ndarray[Any, Any]

STRENGTHS = np.geomspace(1e3, 1e-4, 29)
"""Strengths dropout/(1 − dropout) that are compared, descending: four per decade."""

PATIENCE = 3
"""Number of successive rates without a smaller held-out error after which smaller rates are not
tried: with less and less dropout the factors only follow the noise more closely."""

FOLD_TOLERANCE = 1e-4
"""Relative duality gap of the solutions that are compared on held-out entries."""

FOLD_STEPS = 100
"""Largest number of Newton steps for one solution that is compared on held-out entries."""


@dataclass(frozen=True, slots=True, eq=False)
class CompletionPath(PathOfRates):
    """Completed matrices for several dropout rates, for a fixed number r of columns of the factors.

    Parameters
    ----------
    dropout : ndarray of shape (n,)
        Dropout rates, ascending.
    rank : ndarray of int, shape (n,)
        Rank of the completed matrix X.
    threshold : ndarray of shape (n,)
        (λ/r)‖X‖∗, with the strength λ = dropout/(1 − dropout) and the nuclear norm of X. If the
        missing entries are replaced by those of X, X results from reducing all singular values
        by this threshold.
    error : ndarray of shape (n,)
        Mean squared error on the observed entries.
    objective : ndarray of shape (n,)
        The loss ‖P_Ω(M − X)‖² + (λ/r)‖X‖∗², where P_Ω selects the observed entries of M.
    gap : ndarray of shape (n,)
        Upper bound on the loss minus its minimum over all matrices, relative to ‖P_Ω M‖².

    Notes
    -----
    Notebooks show the path as a table, and `plot` draws it.
    """

    dropout: Vector
    rank: Vector
    threshold: Vector
    error: Vector
    objective: Vector
    gap: Vector

    def _repr_html_(self) -> str:
        title = f"Completed matrices for {len(self.dropout)} dropout rates"
        return self._table(title, **{"duality gap": self.gap})


def completion_path(
    X: Any,
    n_components: int | None = None,
    dropouts: Sequence[float] | Vector | None = None,
    *,
    missing_values: Any = np.nan,
    tol: float = 1e-6,
    max_iter: int = 500,
) -> CompletionPath:
    """Return rank, error and loss of the completed matrix for several dropout rates.

    The problem of the largest rate is solved first; the others start from the solution for the next
    larger rate.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features) or sparse matrix
        The matrix with missing entries.
    n_components : int or None, default=None
        Number r of columns of the factors; None means the number of features.
    dropouts : sequence of float, optional
        Rates in (0, 1); by default 29 rates for which log(dropout/(1 − dropout)) is equally spaced.
    missing_values : nan or "absent", default=nan
        What marks a missing entry, as in `DropoutFactorization`.
    tol : float, default=1e-6
        Duality gap, relative to the sum of squares of the observed entries, at which an iteration
        ends.
    max_iter : int, default=500
        Largest number of Newton steps for each rate.

    Returns
    -------
    CompletionPath
        Rank, error and loss of the completed matrix at each dropout rate.

    Examples
    --------
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0, 1.0])
    >>> M[0, 1] = np.nan
    >>> path = completion_path(M, 3, [0.1, 0.9])
    >>> path.rank
    array([3, 1])
    """
    absent = check_missing_values(missing_values)
    tol = check_number(tol, "tol", low=0.0, open_low=True)
    max_iter = check_integer(max_iter, "max_iter", low=1)
    entries = ObservedEntries.of(marked(check_rows(X, finite=False), absent=absent))
    features = entries.shape[1]
    width = features
    if n_components is not None:
        width = check_width(n_components, "n_components", features, others=" or None")
    strengths = STRENGTHS
    if dropouts is not None:
        strengths = np.sort([strength_of(rate) for rate in dropouts])[::-1]
    if np.any(strengths <= 0.0):
        raise ValueError("a dropout rate of 0 was given, expected rates in (0, 1): leave it out.")
    found: list[Completion] = []
    with limited_blas(max(entries.shape)):
        for strength in strengths:
            start = found[-1] if found else None
            solution = complete(
                entries, float(strength), width, start=start, tolerance=tol, limit=max_iter
            )
            found.append(solution.value)
    penalties = strengths / width * np.array([part.norm for part in found]) ** 2
    objective = np.array([part.value for part in found])
    return CompletionPath(
        np.array([dropout_of(float(strength)) for strength in strengths])[::-1],
        np.array([_rank(part.values) for part in found])[::-1],
        np.array([s / width * part.norm for s, part in zip(strengths, found, strict=True)])[::-1],
        ((objective - penalties) / max(entries.count, 1))[::-1],
        objective[::-1],
        np.array([part.gap for part in found])[::-1],
    )


def _rank(values: Vector) -> int:
    """Return the number of singular values that are not zero, up to rounding (`ZERO`)."""
    return int(np.count_nonzero(values > ZERO * values.max(initial=0.0)))


def cross_validate_entries(
    entries: ObservedEntries,
    width: int,
    cv: Any,
    *,
    roots: Vector | None = None,
    strengths: Vector = STRENGTHS,
    callbacks: Sequence[Callable[..., Any]] = (),
) -> CrossValidation:
    """Return the mean squared error on held-out entries for every strength of dropout.

    Every fold treats some observed entries as missing. The strengths are tried from the largest
    one on; the search ends when `PATIENCE` successive strengths have not reduced the mean error.
    """
    cv = 5 if cv is None else cv
    if isinstance(cv, Integral):
        folds = check_integer(cv, "cv", low=2, high=entries.count)
        cv = KFold(folds, shuffle=True, random_state=0)
    splits = checked_splits(cv, entries.count, None)
    scale = np.ones(entries.count) if roots is None else roots[entries.rows]
    scaled = entries.with_values(entries.values * scale)
    parts = [(scaled.taken(train), scaled.taken(np.sort(test))) for train, test in splits]
    weights = np.array([float(np.sum(scale[test] ** 2)) for _, test in splits])
    starts: list[Completion | None] = [None] * len(parts)
    errors: list[list[float]] = []
    means: list[float] = []
    for strength in strengths:
        row = []
        for number, (training, held_out) in enumerate(parts):
            found = complete(
                training,
                float(strength),
                width,
                start=starts[number],
                tolerance=FOLD_TOLERANCE,
                limit=FOLD_STEPS,
                callbacks=callbacks,
            ).value
            starts[number] = found
            missed = held_out.values - held_out.product(found.left * found.values, found.right)
            row.append(float(missed @ missed) / max(weights[number], np.finfo(float).tiny))
        errors.append(row)
        means.append(float(np.average(row, weights=weights)))
        if len(means) - 1 - int(np.argmin(means)) >= PATIENCE:
            break
    tried = strengths[: len(errors)]
    rates = np.array([dropout_of(float(strength)) for strength in tried])[::-1]
    return CrossValidation(rates, np.array(errors)[::-1].T, weights)
