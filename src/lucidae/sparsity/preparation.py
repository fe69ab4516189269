"""What an estimator is given: checked settings, validated data, folds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from numbers import Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.validation import validate_data

from lucidae._arrays import Array, as_double, is_array, is_numpy, namespace, scalar, to_numpy
from lucidae._estimators import validated_rows
from lucidae._validation import (
    check_choice,
    check_integer,
    check_number,
    check_rows,
    check_weights,
)
from lucidae.solution import Solution
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.objectives import Objective
from lucidae.sparsity.penalties import as_penalty
from lucidae.sparsity.repetition import SMALLEST_LEARNED
from lucidae.sparsity.rows import Rows
from lucidae.sparsity.solvers import FEW_RESPONSES, POSTERIORS, SOLVERS, make_objective
from lucidae.sparsity.state import State

LARGEST = 1e75
"""Magnitudes beyond this, or columns whose entries all lie below its inverse, are refused."""


def checked_objective(settings: Any, n_columns: int) -> Objective:
    """Check the settings of an estimator that need no data and return its objective."""
    check_choice(settings.posterior, "posterior", POSTERIORS)
    check_choice(settings.solver, "solver", SOLVERS)
    check_number(settings.significance, "significance", low=0.0, high=1.0, open_low=True)
    check_number(settings.tol, "tol", low=0.0)
    check_integer(settings.max_iter, "max_iter", low=1)
    if settings.posterior != "full" and settings.solver not in ("auto", "mm"):
        raise ValueError(
            f"solver={settings.solver!r} lowers the full energy alone; with "
            f"posterior={settings.posterior!r} use solver='auto'."
        )
    if settings.groups is not None and settings.solver == "coordinate":
        raise ValueError(
            "solver='coordinate' moves one column at a time and groups share a relevance; "
            "use solver='auto'."
        )
    groups = None if settings.groups is None else Groups.of(settings.groups, n_columns)
    return make_objective(settings.posterior, as_penalty(settings.penalty), groups)


def noise_rule(settings: Any, n_rows: int, n_columns: int) -> str | float:
    """Return "learn", "cv", "fallback" or the noise variance that was given."""
    given = settings.noise_variance
    if isinstance(given, Real):
        return check_number(given, "noise_variance", low=0.0, open_low=True)
    rule = check_choice(given, "noise_variance", ("auto", "learn", "cv"))
    if rule == "learn" and settings.posterior == "point":
        raise ValueError(
            "noise_variance='learn' needs a posterior, and a point estimate has none: its "
            "energy falls without end as γ → 0. Use 'cv' or give a number."
        )
    if rule == "cv" and n_rows < 2:
        raise ValueError(
            f"noise_variance='cv' holds rows out, and there is {n_rows} distinct row. Give "
            "more rows or a number."
        )
    if rule != "auto":
        return rule
    if settings.posterior != "point" and n_columns <= n_rows / 2:
        return "learn"
    return "cv" if n_rows >= 2 else "fallback"


def folds(settings: Any, distinct: Rows, given: Rows) -> tuple[Rows, Iterator[tuple[Any, Any]]]:
    """Return the rows to split, and the splits.

    A number of folds divides the distinct rows, so that weighting and repeating rows agree; a
    splitter or explicit folds speak of the rows as they were given.
    """
    if settings.cv is None or isinstance(settings.cv, int | np.integer):
        few = given.responses.shape[1] <= FEW_RESPONSES
        usual = 10 if few else 5  # one response is no longer identified by four fifths of its rows
        wanted = usual if settings.cv is None else check_integer(settings.cv, "cv", low=2)
        seed = 0 if settings.random_state is None else settings.random_state
        splitter = KFold(min(wanted, distinct.count), shuffle=True, random_state=seed)
        return distinct, splitter.split(np.empty((distinct.count, 1)))
    splitter = check_cv(settings.cv)
    return given, splitter.split(to_numpy(given.dictionary), to_numpy(given.responses))


def validated_pair(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Validate the data of a fit; arrays of other libraries stay where they are."""
    if is_array(X) and not is_numpy(X):
        X = validated_rows(estimator, X, reset=True, accept_sparse=False)
        flat = y.ndim == 1
        targets = check_rows(y[:, None] if flat else y, name="y")
        if targets.shape[0] != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows and y {targets.shape[0]}: give as many.")
        y = targets[:, 0] if flat else targets
    else:
        X, y = validate_data(
            estimator, X, y, dtype=(np.float64, np.float32), multi_output=True, y_numeric=True
        )
        y = np.asarray(y, dtype=np.float64)
    refuse_extremes(X, "X")
    refuse_extremes(y if y.ndim == 2 else y[:, None], "y")
    return X, y


def read_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any
) -> tuple[Array, Array, Array | None]:
    """Return the dictionary, the responses as columns and the weights, in doubles."""
    X = as_double(validated_rows(estimator, X, reset=False, accept_sparse=False))
    given = y if is_array(y) else np.asarray(y, dtype=np.float64)
    targets = as_double(check_rows(given[:, None] if given.ndim == 1 else given, name="y"))
    if targets.shape[0] != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows and y {targets.shape[0]}: give as many.")
    outputs = estimator.coef_.shape[0] if estimator.coef_.ndim == 2 else 1
    if targets.shape[1] != outputs:
        raise ValueError(
            f"y has {targets.shape[1]} outputs, the estimator was fitted to {outputs}."
        )
    return X, targets, check_weights(sample_weight, X)


def refuse_extremes(values: Array, name: str) -> None:
    """Refuse magnitudes whose squares, or the ratios of these, leave the range of doubles."""
    xp = namespace(values)
    peaks = as_double(xp.max(xp.abs(values), axis=0))
    tiny = (peaks > 0) & (peaks < 1.0 / LARGEST)
    if bool(xp.any(peaks > LARGEST)) or bool(xp.any(tiny)):
        worst = scalar(xp.min(peaks[tiny])) if bool(xp.any(tiny)) else scalar(xp.max(peaks))
        raise ValueError(
            f"{name} has a column of magnitude {worst:.3g}; squares of such numbers leave the "
            f"range of doubles. Rescale it to lie between {1 / LARGEST:g} and {LARGEST:g}."
        )


def warn_if_collapsed(solution: Solution[State]) -> None:
    """Warn when learning took the noise variance to its floor."""
    if scalar(solution.value.noise) <= 1.01 * SMALLEST_LEARNED:
        warnings.warn(
            "The learned noise variance fell to its floor: the evidence of these data has its "
            "infimum at zero (too few rows for so many columns, or no noise at all). Use "
            "noise_variance='cv' or give a number.",
            ConvergenceWarning,
            stacklevel=5,
        )
