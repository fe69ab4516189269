"""What the dropout estimators share: fitted arrays, state, SGD, certificate and `fit_batches`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from lucidae.arrays import (
    Array,
    beside,
    diagonal,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    to_numpy,
)
from lucidae.arrays.threads import fork_safe
from lucidae.base import CertifiedMixin, Fitted, FittedState, changed_attributes
from lucidae.certificates.claims import Certificate, Claim, undecided
from lucidae.certificates.sketch import Sketch, column_scales, sketch_pairs
from lucidae.dropout.claims import (
    CERTIFIED,
    LARGEST_GAP,
    Context,
    certificate_of,
    check_shapes,
    given_rows,
)
from lucidae.dropout.equalize import check_width
from lucidae.dropout.path import SELECTIONS
from lucidae.dropout.problem import DropoutObjective, LinearProblem, Weights, Whitened, host, whiten
from lucidae.dropout.sgd import SCHEDULES, SampleSource, descend
from lucidae.dropout.solvers import ExactSolution, assemble, leading_svd
from lucidae.dropout.theory import checked_rate, dropout_of
from lucidae.dropout.verify import Data, FittedArrays, Judged, JudgedRows, TestedMoment
from lucidae.iteration import History, Status, progress_bars
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import aligned_blocks
from lucidae.rows.operator import CHANGED_ROWS, TrainingRows
from lucidae.rows.passes import check_start, load_rows, store_features
from lucidae.validation import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_rows,
    check_seed,
    check_verbose,
    warn_user,
)

_READING = fork_safe(RLock())
"""Lock that is held while a certificate is computed: another thread that reads it must wait."""


class UnrepresentableError(ValueError, AttributeError):
    """Error for a fitted attribute that overflows or underflows its dtype.

    Like scikit-learn's NotFittedError it is an AttributeError too, so that `hasattr` and `dir` work
    after `partial_fit`, whose attributes are computed when they are first read.
    """


def representable(values: Array, ref: Array, name: str, *, factor: bool = True) -> Array:
    """Return the fitted array `values` in the dtype of `ref`; an overflow or underflow is an error.

    Underflow is an error only for an array by which rows are multiplied (`factor`).
    """
    limits, size = namespace(ref).finfo(ref.dtype), largest(values)
    vanishes = factor and 0.0 < size < float(limits.smallest_normal)
    if not size <= float(limits.max) or vanishes:
        raise UnrepresentableError(
            f"{name} has entries of the size {size:.3g}, which {ref.dtype} cannot represent. "
            "Divide X or y by a constant, so that both have entries of similar size"
            f"{', or give X as float64' if machine_epsilon(ref) > 1e-10 else ''}."
        )
    return shown(values, ref)


def shown(values: Array, ref: Array) -> Array:
    """Return a copy of `values` in the library, dtype and on the device of `ref`.

    Because it is a copy, a user who writes into an attribute does not change the fitted state.
    """
    converted = like(values, ref)
    return namespace(converted).asarray(converted, copy=True)


def weights_of(attributes: Mapping[str, Any]) -> Weights:
    """Return the weights U (``left_``) and V (``right_``) among attributes, after checking them.

    A user may have assigned them.
    """
    return Weights(
        *(check_rows(attributes[name], name=name) for name in ("left_", "right_")),
    )


def beside_rows(fitted: Array, X: Any) -> Array:
    """Return a fitted array in the library and on the device of rows X; NumPy if X is sparse."""
    return to_numpy(fitted) if scipy.sparse.issparse(X) else beside(fitted, X)


def finite_output(values: Array, name: str) -> Array:
    """Return the output `values` of an estimator; an entry that is not finite is an error.

    The inputs are finite, so that this means an overflow.
    """
    if not bool(namespace(values).all(namespace(values).isfinite(values))):
        raise ValueError(
            f"the {name} overflow {values.dtype}: X is too large for the fitted weights. Give X "
            "as float64, or in the units of the data passed to fit."
        )
    return values


SOLVERS = ("exact", "sgd")
"""The closed form, and stochastic gradient descent, which draws rows and stops at `tol`."""


class TrainedNetwork(NamedTuple):
    """Weights that a solver found, the exact optimum of the same problem, and how the solver ended.

    `n_iter` is the number of steps, `status` says why the solver stopped, and `history` contains
    the recorded losses.
    """

    weights: Weights
    optimum: ExactSolution
    n_iter: int
    status: Status
    history: History


def exact_network(optimum: ExactSolution) -> TrainedNetwork:
    """Return a closed-form optimum as a `TrainedNetwork` that converged after one step."""
    return TrainedNetwork(
        optimum.weights, optimum, 1, Status.CONVERGED, History(np.empty(0, dtype=int))
    )


@dataclass(frozen=True, slots=True)
class SgdSettings:
    """Settings of stochastic gradient descent (SGD), after they have been checked."""

    learning_rate: float | str  # as in `DropoutRegressor`
    schedule: str
    batch_size: int
    max_iter: int
    tol: float
    random_state: Any
    verbose: bool | str
    # weights from which the training starts, for the original inputs; None for random weights
    start: Weights | None

    @classmethod
    def of(cls, estimator: Any) -> SgdSettings:
        """Return the SGD settings of an estimator; an invalid setting is an error."""
        checked_rate(estimator.learning_rate)
        return cls(
            estimator.learning_rate,
            check_choice(estimator.schedule, "schedule", SCHEDULES),
            check_integer(estimator.batch_size, "batch_size", low=1),
            check_integer(estimator.max_iter, "max_iter", low=1),
            check_number(estimator.tol, "tol", low=0.0),
            check_seed(estimator.random_state),
            check_verbose(estimator.verbose),
            estimator._warm_start(),
        )


def _whitened_start(
    start: Weights | None, problem: LinearProblem, white: Whitened, width: int
) -> Weights | None:
    """Return the weights from which SGD starts, for white inputs; None means random weights.

    The weights `start` of the last fit are transformed to them. If their shapes do not fit the
    second moments of the new data (`problem`) and the number of hidden units (`width`), a warning
    is given.
    """
    if start is None:
        return None
    outputs, features = problem.cross.shape
    expected = ((outputs, width), (features, width))
    given = tuple(tuple(part.shape) for part in start)
    if given != expected:
        warn_user(
            f"warm_start=True was given, but the weights of the last fit have shapes {given[0]} "
            f"and {given[1]}, while this fit needs {expected[0]} and {expected[1]}. Training "
            "starts from random weights."
        )
        return None
    assert white.lower is not None, "SGD works on a moment or a factor of the rows"
    left, right = (like(part, problem.cross) for part in start)
    return Weights(left[None, :, :], (white.lower.mT @ right)[None, :, :])


def hidden_width(n_components: Any, default: int, others: str = " or None") -> int:
    """Return the number of hidden units, which is `default` if `n_components` is None."""
    if n_components is None:
        return default
    return check_width(n_components, "n_components", default, others=others)


@dataclass(eq=False)
class NetworkState(FittedState):
    """Fitted state of a dropout estimator with a hidden layer."""

    moment: Any  # second moment of the training rows; the targets, if any, follow the features
    strength: float  # strength λ = dropout / (1 − dropout) of dropout
    width: int  # number r of hidden units
    ref: Array  # an empty array of the library, dtype and device in which attributes are returned
    # largest loss minus its minimum that the certificate allows, divided by the part of E‖y‖² that
    # least squares explains
    tolerance: float
    # the network that SGD found, or the exact optimum; None before it has been computed
    trained: TrainedNetwork | None
    # sketch of the training rows, divided by `scales`, with which the certificate tests `moment`;
    # None if the second moment is not stored or not all rows were seen
    sketch: Sketch | None = field(default=None, kw_only=True)
    scales: Any = field(default=None, kw_only=True)
    # the training rows and their targets, until the certificate was computed; not saved
    rows: TrainingRows | None = field(default=None, kw_only=True)
    targets: TrainingRows | None = field(default=None, kw_only=True)
    # the dropout loss of weights that were trained by SGD; None for the optimum, which knows it
    objective: float | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def problem(self) -> LinearProblem:
        """The second moments of inputs and outputs on which the expected dropout loss depends."""

    @abstractmethod
    def centers(self) -> tuple[Array, Array]:
        """Return the vectors that are subtracted from inputs and outputs: their means, or zeros."""

    @abstractmethod
    def solve(self) -> TrainedNetwork:
        """Return the network at the global minimum of the expected dropout loss."""

    @property
    def penalty(self) -> float:
        """Factor of ‖coefficients‖² in the ridge penalty on the sum of squared errors."""
        return 0.0

    @property
    def context(self) -> Context:
        """What the words of the certificate depend on."""
        return Context(exact=self.tolerance <= CERTIFIED)

    @property
    def needs_rows(self) -> bool:
        """Whether the certificate needs the rows, because their second moment does not suffice."""
        return not isinstance(self.moment, SecondMoment)

    @property
    def network(self) -> TrainedNetwork:
        """The trained network; the exact optimum is computed when it is first needed."""
        if self.trained is None:
            self.trained = self.solve()
        return self.trained

    def train(self, X: Any, Y: Any, sample_weight: Array | None, settings: SgdSettings) -> None:
        """Train the network by SGD as in Mianjy et al. 2018, Algorithm 1.

        The inputs are whitened: transformed so that their second moment is the identity.
        """
        problem, strength, width = self.problem, self.strength, self.width
        white = whiten(problem)
        center, output_center = self.centers()
        cumulative = None if sample_weight is None else np.cumsum(to_numpy(sample_weight))
        noise = (self.penalty / self.moment.weight) ** 0.5
        source = SampleSource(X, Y, center, white.lift, output_center, cumulative, noise)
        solution = descend(
            source,
            white.matrix,
            [dropout_of(strength)],
            width,
            rng=check_random_state(settings.random_state),
            noise=white.floor**0.5,
            learning_rate=settings.learning_rate,
            schedule=settings.schedule,
            start=_whitened_start(settings.start, problem, white, width),
            batch_size=settings.batch_size,
            limit=settings.max_iter,
            tolerance=settings.tol,
            callbacks=progress_bars("dropout SGD", settings.verbose),
        )
        if not solution.status.ok:
            given = settings.learning_rate != "auto"
            hint = " Use learning_rate='auto', or a smaller learning rate." if given else ""
            warn_user(solution.advice + hint, ConvergenceWarning)
        runs = solution.value
        weights = white.raise_weights(Weights(runs.left[0, :, :], runs.right[0, :, :]))
        optimum = assemble(white, leading_svd(white.matrix, width + 1, strength), strength, width)
        # scikit-learn requires n_iter_ ≥ 1, also if the start was optimal.
        n_iter = max(solution.n_iter, 1)
        self.trained = TrainedNetwork(weights, optimum, n_iter, solution.status, solution.history)
        self.objective = float(DropoutObjective(problem, strength).value(weights))

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes that all dropout networks have, by name."""
        network, optimum = self.network, self.network.optimum
        # Where there is nothing to learn, training ends with tiny weights, which may become zero.
        learned = largest(optimum.singular_values) > 0
        left, right = (
            representable(part, self.ref, name, factor=learned)
            for part, name in zip(network.weights, ("left_", "right_"), strict=True)
        )
        value = optimum.value if self.objective is None else self.objective
        if not math.isfinite(value):
            raise UnrepresentableError(
                "the dropout loss overflows double precision. Divide X or y by a constant, so that "
                "both have entries of similar size."
            )
        return {
            "left_": left,
            "right_": right,
            "rank_": optimum.rank,
            "threshold_": optimum.threshold,
            "singular_values_": representable(
                optimum.singular_values, self.ref, "singular_values_"
            ),
            "objective_": value,
            "n_iter_": network.n_iter,
            "status_": network.status,
            "history_": network.history,
        }

    def refer(self, X: Any, Y: Any, sample_weight: Array | None, title: str) -> None:
        """Refer to the training rows until the certificate is read.

        If that is not possible, they are sketched, and judged at once if the certificate needs
        them.
        """
        self.rows = TrainingRows.referenced(X, sample_weight, title)
        if self.rows is not None and Y is not None:
            self.targets = TrainingRows.referenced(Y, None, title)
            self.rows = None if self.targets is None else self.rows
        if self.rows is None:
            self.sketch_rows(X, Y, sample_weight)
        if self.rows is None and self.needs_rows:
            data = given_rows(X, Y, sample_weight, centered=self.has_intercept)
            self._certificate = self.certificate_on([data], title, self.compute_attributes())

    def sketch_rows(self, X: Any, Y: Any, sample_weight: Array | None) -> None:
        """Make the sketch with which the certificate tests the moment of the rows."""
        if not isinstance(self.moment, SecondMoment):
            return
        if Y is None:
            self.sketch = Sketch.of(X, sample_weight)
        else:
            self.scales = column_scales(X, Y, centered=self.has_intercept)
            self.sketch = sketch_pairs(X, Y, sample_weight, self.scales)

    def sketch_referred(self) -> None:
        """Make the sketch of the rows that are referred to, unless there is one or they changed."""
        if self.rows is not None and self.sketch is None and self.rows_unchanged:
            targets = None if self.targets is None else self.targets.rows
            self.sketch_rows(self.rows.rows, targets, self.rows.weights)

    @property
    def has_intercept(self) -> bool:
        """Whether the means are subtracted."""
        return True

    @property
    def n_inputs(self) -> int | None:
        """Number of features, which the targets follow in the moment; None without targets."""
        return None

    def candidates(self) -> Iterator[Data]:
        """Yield the moment with the sketch that tests it, and the rows if they are referred to."""
        # Of few rows the factorisation of their moment takes as long as their own.
        few = self.rows is not None and self.rows.rows.shape[0] <= 2 * self.moment.n_features
        if self.sketch is not None and isinstance(self.moment, SecondMoment) and not few:
            covariance, scales = host(self.moment.covariance), self.scales
            yield TestedMoment(
                covariance,
                float(self.moment.weight),
                self.sketch,
                np.ones(len(covariance)) if scales is None else np.asarray(scales),
                self.n_inputs,
                self.has_intercept,
            )
        if self.rows is not None and self.rows_unchanged:
            yield JudgedRows(
                self.rows.rows,
                None if self.targets is None else self.targets.rows,
                self.rows.weights,
                self.has_intercept,
            )

    @property
    def rows_unchanged(self) -> bool:
        """Whether the rows that are referred to are those that were given to `fit`."""
        return all(part is None or part.unchanged for part in (self.rows, self.targets))

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: if only the rows, which are not saved, suffice for it.

        Rows that were seen by a sketch alone are judged again from it.
        """
        return self.needs_rows

    def settle(self) -> None:
        """Make what the certificate needs of the training rows, which are not saved."""
        self.sketch_referred()
        if self.rows is not None and self.needs_rows:
            self.certificate(self.rows.title)
        self.rows = self.targets = None

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return super().__getstate__()

    def compute_certificate(self, title: str) -> Certificate:
        """Return the certificate of the weights on the training rows; `title` is its heading.

        If rows that it needs were changed in the meantime, its only claim is undecided.
        """
        with _READING:
            if self._certificate is not None:  # by another thread
                return self._certificate
            if self.rows is not None and self.sketch is None and not self.rows_unchanged:
                claim = undecided("optimum", "the fitted weights are optimal", "", CHANGED_ROWS)
                return Certificate(title, (claim,))
            self.sketch_referred()
            found = self.certificate_on(self.candidates(), title, self.compute_attributes())
            self.rows = self.targets = None
            return found

    def certificate_on(
        self, data: Iterable[Data], title: str, attributes: Mapping[str, Any]
    ) -> Certificate:
        """Return the certificate of given attributes, judged on data."""
        return certificate_of(
            data,
            self.judged_weights(attributes),
            title=title,
            tolerance=self.tolerance,
            fitted=self.fitted_arrays(attributes),
            context=self.context,
        )

    def judged_weights(self, attributes: Mapping[str, Any]) -> Judged:
        """Return the weights among attributes, and the settings of their loss."""
        left, right = (host(part) for part in weights_of(attributes))
        precision = machine_epsilon(self.ref)
        return Judged(left, right, self.strength, self.penalty, precision=precision)

    def fitted_arrays(self, attributes: Mapping[str, Any]) -> FittedArrays:
        """Return the attributes that the certificate compares with data."""
        return FittedArrays(
            float(attributes["objective_"]),
            int(attributes["rank_"]),
            float(attributes["threshold_"]),
            host(attributes["singular_values_"]),
            precision=machine_epsilon(self.ref),
        )


class WeightsMixin(CertifiedMixin):
    """Fitted attributes and certificate of all dropout estimators."""

    left_ = Fitted()
    right_ = Fitted()
    n_components_ = Fitted()
    rank_ = Fitted()
    threshold_ = Fitted()
    singular_values_ = Fitted()
    objective_ = Fitted()
    n_iter_ = Fitted()

    @property
    def certificate_(self) -> Certificate:
        """Certificate of the weights: claims about their distance to the global minimum."""
        certificate, state = super().certificate_, self._state
        try:
            fitted = state.compute_attributes()
        except UnrepresentableError:
            return certificate
        # Records of the fit, such as ``history_``, from which nothing is computed, do not count.
        numbers = {k: v for k, v in fitted.items() if is_array(v) or isinstance(v, int | float)}
        changed = changed_attributes({name: getattr(self, name) for name in numbers}, numbers)
        if state.doubt is not None or not changed:
            return certificate
        why = f"{min(changed)} was changed after the fit: call lucidae.certify(model, X), or fit."
        statement = "the fitted attributes are those that fit computed"
        claim = Claim("attributes", statement, "", math.inf, 0.0, False, why)
        return Certificate(type(self).__name__, (claim,))

    def _attributes_now(self) -> dict[str, Any]:
        """Return the present fitted attributes by name, including values assigned by a user."""
        return {name: getattr(self, name) for name in self._state.attributes}


class NetworkMixin(WeightsMixin):
    """Fitted attributes and settings of a dropout estimator with a hidden layer."""

    status_ = Fitted()
    history_ = Fitted()

    _state: NetworkState
    solver: str
    tol: float
    warm_start: bool
    fit: Any
    _state_of_blocks: Any
    _block_moment: Any = None  # function that returns the moment of one block, as in `load_rows`

    @property
    def _trains(self) -> bool:
        """Whether the network is trained by SGD, which needs the rows themselves."""
        return check_choice(self.solver, "solver", SOLVERS) == "sgd"

    @property
    def _allowed_gap(self) -> float:
        """Largest gap that the certificate allows: for rounding errors, or where SGD stops.

        The gap is the loss minus its minimum, divided by the part of the mean squared output that
        least squares explains.
        """
        return min(max(float(self.tol), CERTIFIED), LARGEST_GAP) if self._trains else CERTIFIED

    def _certificate_on(self, data: JudgedRows) -> Certificate:
        """Return the certificate of the present attributes on given rows."""
        state, attributes = self._state, self._attributes_now()
        check_shapes(data, state.judged_weights(attributes))
        return state.certificate_on([data], type(self).__name__, attributes)

    def _keep(self, state: NetworkState) -> None:
        """Compute the fitted attributes of `state` and store it as the state of the fit."""
        _ = state.attributes
        self._state = state

    def _keep_unsolved(self, state: NetworkState) -> None:
        """Store the state of `partial_fit`, whose attributes are computed when they are first read.

        They are computed at once if the rows are so large or so small that the attributes may not
        be representable in their dtype: `partial_fit` then refuses the rows, as `fit` does. They
        are if products and quotients of a few entries may overflow: the root mean square of a
        column exceeds the fourth root of the largest number of the dtype, or is below its inverse.
        """
        moment, ref = state.moment, state.ref
        squares = np.clip(host(diagonal(moment.squares)), 0.0, None) / moment.weight
        sizes = np.hypot(np.abs(host(moment.mean)), np.sqrt(squares))
        bound = float(namespace(ref).finfo(ref.dtype).max) ** 0.25
        if np.any(sizes > bound) or np.any((sizes > 0.0) & (sizes < 1.0 / bound)):
            _ = state.attributes
        self._state = state

    def _fit_blocks(
        self, batches: Any, y: Any, sample_weight: Any, start: Any, **kind: Any
    ) -> Self:
        """Fit to rows that are loaded if they fit into one block, else to their second moment."""
        settings = SgdSettings.of(self)  # refuses wrong settings, which this solver does not use
        check_start(start)
        data = aligned_blocks(batches, y, sample_weight, **kind)
        small = None
        if start is None:
            small = load_rows(data, self._block_moment, verbose=settings.verbose)
        if small is not None:
            self.fit(small.rows, small.targets, small.weights)
            return self
        _check_streamed(self, data, start)
        store_features(self, data)
        self._keep(self._state_of_blocks(data, start, settings.verbose))
        return self

    def _warm_start(self) -> Weights | None:
        """Return the weights of the last fit if SGD is to start from them, otherwise None."""
        wanted = check_flag(self.warm_start, "warm_start") and self._trains
        return self._state.network.weights if wanted and self.__sklearn_is_fitted__() else None


def merges_moments(estimator: Any) -> bool:
    """Return True if an estimator has `partial_fit`; otherwise raise an AttributeError.

    scikit-learn calls this function to decide whether the method exists. It does for solvers that
    need second moments only. It also does for an unknown solver, so that a call of `partial_fit`
    reports the wrong name.
    """
    if isinstance(estimator.solver, str) and estimator.solver == "sgd":
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


def _check_streamed(estimator: Any, data: Any, start: SecondMoment | None) -> None:
    """Raise an error for settings that need rows in random order or folds of rows."""
    if estimator._trains:
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
