"""Second moments that define the dropout loss, for data in memory or read in blocks of rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from lucidae.arrays import Array, as_double, namespace, scalar
from lucidae.data import in_memory
from lucidae.data.kinds import AlignedBlocks, LoadedRows, aligned_blocks
from lucidae.data.passes import fold, load_rows, read_moment
from lucidae.dropout.moments import CONDITION, joint_moment, row_root
from lucidae.dropout.objectives import LinearProblem, Weights
from lucidae.dropout.projection import has_many_features, projected_rows
from lucidae.dropout.wide import rows_problem
from lucidae.moments import SecondMoment
from lucidae.validation import check_rows, check_weights

__all__ = [
    "BlockProblem",
    "check_features",
    "check_problem",
    "check_streamed",
    "data_problem",
    "loaded_or_problem",
    "matrix_problem",
    "read_problem",
]


class BlockProblem(NamedTuple):
    """Second moments of data that were read in blocks: a problem, and that of the rows [x | y]."""

    problem: LinearProblem
    moment: SecondMoment


def read_problem(
    data: AlignedBlocks,
    *,
    centered: bool,
    start: SecondMoment | None = None,
    verbose: bool | str = "auto",
) -> BlockProblem:
    """Return the second moments of data that are read in blocks, after the rows of `start`.

    If they are ill-conditioned, the data are read again and a QR factorisation is computed block by
    block. An iterator can be read once only, so that its moment alone is used.
    """
    moment = read_moment(data, joint_moment, start=start, verbose=verbose)
    problem = LinearProblem.from_moment(moment, data.rows.n_features, centered=centered)
    variances = namespace(problem.inputs).linalg.eigvalsh(problem.inputs)
    well = scalar(variances[0]) * CONDITION >= scalar(variances[-1])
    if well or start is not None or not data.repeatable:
        return BlockProblem(problem, moment)
    factor = partial(_block_root, moment, centered)
    root = fold(data, factor, _stacked_root, verbose=verbose)
    return BlockProblem(replace(problem, root=root), moment)


def _block_root(moment: SecondMoment, centered: bool, X: Any, Y: Any, weights: Any) -> Array:
    """Return the triangular factor of the rows [x | y] of one block."""
    return row_root(X, Y, weights, moment, centered=centered)


def _stacked_root(first: Array, second: Array) -> Array:
    """Return the triangular factor R of a QR factorisation of `first` stacked on `second`."""
    xp = namespace(first)
    _, triangle = xp.linalg.qr(xp.concat([first, second], axis=0))
    return triangle


def loaded_or_problem(
    X: Any, y: Any, sample_weight: Any, *, centered: bool
) -> LoadedRows | BlockProblem:
    """Return the rows if they fit into one block, else the second moments of the data."""
    data = aligned_blocks(X, y, sample_weight, with_targets=y is not None)
    small = load_rows(data, None if y is None else joint_moment)
    if small is not None:
        return small
    if y is None:
        moment = read_moment(data)
        return BlockProblem(LinearProblem.autoencoder(moment, centered=centered), moment)
    return read_problem(data, centered=centered)


def check_streamed(estimator: Any, data: AlignedBlocks, start: SecondMoment | None) -> None:
    """Raise an error for settings that need rows in random order or folds of rows."""
    if estimator._chosen_solver.needs_rows:
        raise ValueError(
            f"solver={estimator.solver!r} draws rows in random order, but X is read in blocks: use "
            "solver='exact', or give X as an array or a memory map."
        )
    for name in ("dropout", "n_components"):
        value = getattr(estimator, name)
        if isinstance(value, str):
            raise ValueError(
                f"{name}={value!r} divides the rows into folds, but X is read in blocks: give "
                f"{name} as a number, or X as an array or a memory map."
            )
    if start is not None and start.n_features < data.rows.n_features:
        raise ValueError(
            f"start has {start.n_features} features, but X has {data.rows.n_features}: start must "
            "be the second moment of earlier rows of the same data."
        )


def data_problem(
    X: Any,
    Y: Any,
    fit_intercept: bool,
    sample_weight: Any,
    weights: Weights,
    strength: float,
    *,
    tied: bool,
) -> tuple[LinearProblem, Weights]:
    """Return second moments for predicting Y from X, or X itself if Y is None, and the weights.

    For an autoencoder with many features both are projected on a few directions.
    """
    if not (in_memory(X) and in_memory(Y) and in_memory(sample_weight)):
        found = loaded_or_problem(X, Y, sample_weight, centered=fit_intercept)
        if isinstance(found, BlockProblem):
            return found.problem, weights
        X, Y, sample_weight = found
    X = check_rows(X)
    frequencies = check_weights(sample_weight, X)
    if Y is not None:
        problem, _ = rows_problem(X, Y, frequencies, centered=fit_intercept, products=not tied)
        return problem, weights
    if not tied and has_many_features(X.shape, weights.left.shape[1]):
        check_features(X, weights.left)
        check_features(X, weights.right)
        return projected_rows(X, frequencies, weights, strength, centered=fit_intercept)[:2]
    moment = SecondMoment.of(X, frequencies)
    return LinearProblem.autoencoder(moment, centered=fit_intercept), weights


def check_features(X: Any, layer: Any) -> None:
    """Raise an error unless rows and weights have the same number of features."""
    if X.shape[1] != layer.shape[0]:
        raise ValueError(
            f"the data have {X.shape[1]} features, but the weights U or V have {layer.shape[0]} "
            "rows: give the data to which these weights belong."
        )


def check_problem(problem: LinearProblem, weights: Weights) -> None:
    """Raise an error unless the weights fit the numbers of outputs and inputs of the data."""
    given = (weights.left.shape[0], weights.right.shape[0])
    if tuple(problem.cross.shape) != given:
        raise ValueError(
            f"the data have {problem.cross.shape[0]} outputs and {problem.cross.shape[1]} inputs, "
            f"but the outgoing weights U have {given[0]} rows and the incoming weights V have "
            f"{given[1]}: give the data to which these weights belong."
        )


def matrix_problem(matrix: Any) -> LinearProblem:
    """Return the problem of factorising a checked matrix as U Vᵀ: white inputs."""
    rows = check_rows(matrix, accept_sparse=False, name="matrix")
    return LinearProblem.from_matrix(as_double(rows))
