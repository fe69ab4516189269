"""The method `fit_batches` of the dropout estimators, and whether they have `partial_fit`."""

from __future__ import annotations

from typing import Any, Self

from lucidae.base import restored_on_failure
from lucidae.data import aligned_blocks, read_moment, store_features, store_targets
from lucidae.data.passes import Passes, check_start, given_moment, load_rows
from lucidae.dropout.batches import check_streamed, read_problem
from lucidae.dropout.estimators.network import SOLVERS, SgdSettings
from lucidae.dropout.held_out import SELECTIONS
from lucidae.dropout.moments import joint_moment
from lucidae.iteration.progress import timed_fit
from lucidae.moments import SecondMoment
from lucidae.rows.sources import MomentSource
from lucidae.validation import check_flag

__all__ = [
    "AutoencoderBatchesMixin",
    "RegressorBatchesMixin",
    "merges_moments",
    "merges_regression",
]


def merges_moments(estimator: Any) -> bool:
    """Return True if an estimator has `partial_fit`; otherwise raise an AttributeError.

    scikit-learn calls this function to decide whether the method exists. It does for solvers that
    need second moments only. It also does for an unknown solver, so that a call of `partial_fit`
    reports the wrong name.
    """
    if any(name == estimator.solver and solver.needs_rows for name, solver in SOLVERS.items()):
        raise AttributeError(
            f"partial_fit is not available for solver={estimator.solver!r}, which needs all rows "
            "at once: use solver='exact'."
        )
    return True


def merges_regression(estimator: Any) -> bool:
    """Return True if a `DropoutRegressor` has `partial_fit`; otherwise raise an AttributeError.

    scikit-learn calls this function to decide whether the method exists. It does not if the solver
    is SGD, or if a setting is chosen by cross-validation.
    """
    for name in ("dropout", "n_components"):
        value = getattr(estimator, name)
        if isinstance(value, str) and value in SELECTIONS:
            raise AttributeError(
                f"partial_fit is not available for {name}={value!r}: give {name} as a number."
            )
    return merges_moments(estimator)


class _BatchesMixin:
    """Base class of the mixins that fit a dropout estimator to data read in blocks of rows."""

    fit: Any
    _keep: Any
    _unsolved: Any
    _state_of_blocks: Any
    _block_moment: Any = None  # function that returns the moment of one block, as in `load_rows`

    def _fit_blocks(
        self, batches: Any, y: Any, sample_weight: Any, start: Any, **kind: Any
    ) -> Self:
        """Fit to rows that are loaded if they fit into one block, else to their second moment.

        `batches`, `y` and `sample_weight` are the arguments of `fit_batches`, `start` is the moment
        of rows that were read before, or None, and `kind` are keyword arguments of
        `lucidae.data.kinds.aligned_blocks`.
        """
        settings = SgdSettings.of(self)  # refuses wrong settings, which this solver does not use
        check_start(start)
        data = aligned_blocks(batches, y, sample_weight, **kind)
        small = None
        if start is None:
            small = load_rows(data, self._block_moment, verbose=settings.verbose)
        if small is not None:
            self.fit(small.rows, small.targets, small.weights)
            return self
        check_streamed(self, data, start)
        store_features(self, data)
        self._keep(self._state_of_blocks(data, start, settings.verbose))
        return self


class AutoencoderBatchesMixin(_BatchesMixin):
    """Give `DropoutAutoencoder` its method `fit_batches`."""

    @restored_on_failure
    @timed_fit
    def fit_batches(
        self, batches: Any, sample_weight: Any = None, *, start: SecondMoment | None = None
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is an array, a data frame or a sparse matrix of rows, the path of a file, or
            a tuple of rows, targets (which are ignored) and weights. See
            `lucidae.data.row_blocks` for the other kinds. None if `start` is the moment of all
            rows.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows that were read before, such as that of a
            `lucidae.data.ReadInterrupted`.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        if batches is None:
            SgdSettings.of(self)  # refuses wrong settings, which this solver does not use
            check_start(start)
            moment = given_moment(self, start)
            self._keep(self._unsolved(moment, moment.center[:0]))
            return self
        return self._fit_blocks(batches, None, sample_weight, start)

    def _state_of_blocks(self, data: Any, start: SecondMoment | None, verbose: bool | str) -> Any:
        moment = read_moment(data, start=start, verbose=verbose)
        state = self._unsolved(moment, data.rows.reference)
        if data.repeatable and start is None:
            state.refine_blocks(MomentSource(moment, passes=Passes(data, verbose)))
        return state


class RegressorBatchesMixin(_BatchesMixin):
    """Give `DropoutRegressor` its method `fit_batches`."""

    _block_moment = staticmethod(joint_moment)
    fit_intercept: bool
    _check_settings: Any
    _fixed_network: Any

    @restored_on_failure
    @timed_fit
    def fit_batches(
        self,
        batches: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        start: SecondMoment | None = None,
    ) -> Self:
        """Fit to data that are read in blocks of rows; the result equals `fit` on all rows.

        Not more than a few blocks are in memory at a time, besides the second moment. Data that
        fit into one block (32 MiB) are loaded.

        Parameters
        ----------
        batches : iterable of batches, path, memory map, or data of any other kind
            Each batch is a tuple of rows, targets and, optionally, weights; or of rows alone, if y
            is given. See `lucidae.data.row_blocks` for the other kinds.
        y : data of any kind, optional
            Targets, unless the batches contain them.
        sample_weight : data of any kind, optional
            Frequencies of the rows, unless the batches contain them.
        start : SecondMoment, optional
            Moment of rows [x | y] that were read before, such as that of a
            `lucidae.data.ReadInterrupted`.

        Returns
        -------
        self
            The fitted estimator itself.
        """
        self._check_settings()
        self._fit_blocks(batches, y, sample_weight, start, with_targets=True)
        store_targets(self, y)
        return self

    def _state_of_blocks(self, data: Any, start: SecondMoment | None, verbose: bool | str) -> Any:
        centered = check_flag(self.fit_intercept, "fit_intercept")
        problem, moment = read_problem(data, centered=centered, start=start, verbose=verbose)
        state = self._unsolved(self._fixed_network(moment), data.flat_targets, data.rows.reference)
        state.root = problem.root
        return state
