"""What the dropout estimators share: fitted arrays, state, SGD, certificate and `fit_batches`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import (
    Array,
    beside,
    diagonal,
    eye_like,
    is_array,
    largest,
    like,
    machine_epsilon,
    namespace,
    squared_norm,
    to_numpy,
)
from lucidae.arrays.threads import fork_safe
from lucidae.base import (
    CertifiedMixin,
    Fitted,
    FittedState,
    changed_attributes,
    reference_array,
)
from lucidae.certificates.claims import Certificate, undecided, with_changes
from lucidae.certificates.sketch import Sketch, sketch_pairs
from lucidae.dropout.claims import LARGEST_GAP, certificate_of, given_rows, judged_rows, tested_rows
from lucidae.dropout.path import SELECTIONS, CrossValidation
from lucidae.dropout.problem import (
    DropoutObjective,
    LinearProblem,
    Passed,
    PassedLeaf,
    Weights,
    Whitened,
    checked_targets,
    host,
    is_ill_conditioned,
    joint_moment,
    read_passed,
    row_root,
    sketch_scales,
    whiten,
)
from lucidae.dropout.sgd import SCHEDULES, SampleSource, descend
from lucidae.dropout.solvers import ExactSolution, assemble, solve_autoencoder
from lucidae.dropout.theory import checked_rate, dropout_of
from lucidae.dropout.verify import CERTIFIED, Judged, JudgedRows
from lucidae.iteration import History, Status, progress_bars
from lucidae.moments import SecondMoment
from lucidae.rows.kinds import AlignedBlocks, aligned_blocks, check_batch
from lucidae.rows.operator import CHANGED_ROWS, BlockRows, MomentRows, TrainingRows, stacked
from lucidae.rows.passes import Passes, check_start, fold, load_rows, store_features
from lucidae.validation import (
    check_argument,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_rows,
    check_weights,
    warn_user,
)

Matrix = np.ndarray[Any, Any]

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
    converted = like(values, ref)
    # A copy, so that a user who writes into an attribute does not change the fitted state.
    return namespace(converted).asarray(converted, copy=True)


def beside_rows(fitted: Array, X: Any) -> Array:
    """Return a fitted array in the library and on the device of rows X; NumPy if X is sparse."""
    return to_numpy(fitted) if scipy.sparse.issparse(X) else beside(fitted, X)


def finite_output(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that maps finite rows X; output that is not finite, an overflow, raises."""

    @wraps(method)
    def checked(self: Any, X: Any, *arguments: Any, **settings: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            found = method(self, X, *arguments, **settings)
        for values in found if isinstance(found, tuple) else (found,):
            if not bool(namespace(values).all(namespace(values).isfinite(values))):
                raise ValueError(
                    f"the output overflows {values.dtype}: X is too large for the fitted weights. "
                    "Give X as float64, or in the units of the data passed to fit."
                )
        return found

    return checked


SOLVERS = ("exact", "sgd")
"""The closed form, and stochastic gradient descent, which draws rows and stops at `tol`."""


NO_STEPS = History(np.empty(0, dtype=int))


class TrainedNetwork(NamedTuple):
    """Weights that a solver found, the exact optimum of the same problem, and how the solver ended.

    `n_iter` is the number of steps, `status` says why the solver stopped, and `history` contains
    the recorded losses.
    """

    weights: Weights
    optimum: ExactSolution
    n_iter: int = 1
    status: Status = Status.CONVERGED
    history: History = NO_STEPS


def sgd_settings(estimator: Any, **given: Any) -> dict[str, Any]:
    """Return the SGD settings of an estimator, as arguments of `descend`; a wrong one is an error.

    `given` are values of `tol` and `max_iter` in place of those of the estimator.
    """
    checked_rate(estimator.learning_rate)
    check_flag(estimator.warm_start, "warm_start")
    check_argument(estimator.verbose, "verbose")
    return {
        "learning_rate": estimator.learning_rate,
        "schedule": check_choice(estimator.schedule, "schedule", SCHEDULES),
        "batch_size": check_integer(estimator.batch_size, "batch_size", low=1),
        "limit": check_integer(given.get("max_iter", estimator.max_iter), "max_iter", low=1),
        "tolerance": check_number(given.get("tol", estimator.tol), "tol", low=0.0),
        "rng": check_argument(estimator.random_state, "random_state"),
    }


def train(
    estimator: Any,
    settings: dict[str, Any],
    source: Any,
    white: Whitened,
    strength: float,
    width: int,
) -> tuple[TrainedNetwork, float]:
    """Return a network trained on white examples of `source`, and its dropout loss.

    With ``warm_start`` it starts from the weights of the last fit. If their shapes do not fit, a
    warning is given, and training starts from random weights.
    """
    M, start = white.matrix, None
    if estimator.warm_start and estimator.__sklearn_is_fitted__():
        left, right = estimator._state.network.weights
        lift: Any = white.lift
        size = M.shape[1] if lift is None else lift.shape[0]
        given, expected = (left.shape, right.shape), ((M.shape[0], width), (size, width))
        if given == expected:  # in white coordinates V = BV', with the whitening matrix B
            if lift is not None:
                right = np.linalg.lstsq(host(lift), host(right))[0]
            start = Weights(*(like(part, M)[None, :, :] for part in (left, right)))
        else:
            warn_user(
                f"warm_start=True was given, but the weights of the last fit have shapes "
                f"{tuple(given[0])} and {tuple(given[1])}, while this fit needs {expected[0]} and "
                f"{expected[1]}. Training starts from random weights."
            )
    solution = descend(
        source,
        M,
        [dropout_of(strength)],
        width,
        noise=white.floor**0.5,
        start=start,
        callbacks=progress_bars("dropout SGD", estimator.verbose),
        **settings | {"rng": check_random_state(settings["rng"])},
    )
    if not solution.status.ok:
        given_rate = settings["learning_rate"] != "auto"
        hint = " Use learning_rate='auto', or a smaller learning rate." if given_rate else ""
        warn_user(solution.advice + hint, ConvergenceWarning)
    left, right = solution.value.left[0, :, :], solution.value.right[0, :, :]
    problem = LinearProblem(M, None, white.floor + float(squared_norm(M)))
    value = float(DropoutObjective(problem, strength).value(Weights(left, right)))
    weights = Weights(left, right if white.lift is None else white.lift @ right)
    optimum = assemble(white, strength, width)
    # scikit-learn requires n_iter_ ≥ 1, also if the start was optimal.
    ended = max(solution.n_iter, 1), solution.status, solution.history
    return TrainedNetwork(weights, optimum, *ended), value


def allowed_gap(tol: float, iterates: bool) -> float:
    """Return the largest gap that the certificate allows: for rounding, or where a solver stops.

    The gap is the loss minus its minimum, divided by the part of the mean squared output that
    least squares explains.
    """
    return min(max(float(tol), CERTIFIED), LARGEST_GAP) if iterates else CERTIFIED


@dataclass(eq=False, kw_only=True)
class WeightsState(FittedState):
    """Fitted weights, and the training rows until their certificate was computed."""

    strength: float  # strength λ = dropout / (1 − dropout) of dropout
    ref: Array  # an empty array of the library, dtype and device in which attributes are returned
    # largest loss minus its minimum that the certificate allows, divided by the part of E‖y‖² that
    # least squares explains, or by the sum of squares of the (observed) entries of a matrix
    tolerance: float = CERTIFIED
    dropout: float = 0.0  # probability of dropping a hidden unit
    # weights that SGD or an iteration found, or the exact optimum; None before it was computed
    trained: TrainedNetwork | None = None
    # the dropout loss of these weights; None for the exact optimum, which knows it
    objective: float | None = None
    # errors on held-out rows or entries by which a setting was chosen; None if all were given
    cv: CrossValidation | None = None
    # the training rows and their targets, until the certificate was computed; not saved
    rows: TrainingRows | None = None
    targets: TrainingRows | None = None

    @property
    def network(self) -> TrainedNetwork:
        """The weights; the exact optimum is computed when it is first needed."""
        if self.trained is None:
            self.solve()
        assert self.trained is not None
        return self.trained

    def solve(self) -> None:
        """Compute the exact optimum, unless the weights are known when the state is made."""

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``rank_``) by name."""
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
            "n_components_": int(right.shape[1]),
            "n_iter_": network.n_iter,
            "status_": network.status,
            "history_": network.history,
        }

    @property
    def keeps_certificate(self) -> bool:
        """Whether the certificate is saved: it is, because the training rows are not."""
        return True

    @property
    def rows_unchanged(self) -> bool:
        """Whether the rows that are referred to are those that were given to `fit`."""
        return all(part is None or part.unchanged for part in (self.rows, self.targets))

    def settle(self) -> None:
        """Compute the certificate from the training rows, which are not saved."""
        if self.rows is not None:
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
            data = self.judged_rows()
            if data is None and self.rows is not None:
                claim = undecided("optimum", "the fitted weights are optimal", "", CHANGED_ROWS)
                return Certificate(title, (claim,))
            found = self.judged_on(data, self.compute_attributes(), title)
            self.rows = self.targets = None
            return found

    def judged_rows(self) -> Any:
        """Return what the certificate needs of the rows; None if they were changed."""
        if self.rows is None:
            raise ValueError(
                "no certificate was computed by fit: call lucidae.certify(estimator, X)."
            )
        return self.rows.given if self.rows_unchanged else None

    def judged_on(self, data: Any, attributes: Mapping[str, Any], title: str) -> Certificate:
        """Return the certificate of given attributes, which a user may have assigned, on data."""
        left, right = (
            host(check_rows(attributes[name], name=name)) for name in ("left_", "right_")
        )
        precision, tolerance = machine_epsilon(self.ref), self.tolerance
        judged = Judged(left, right, self.strength, precision=precision, tolerance=tolerance)
        shown = {k: host(v) if is_array(v) else v for k, v in attributes.items()}
        return self.judge(data, judged, shown, title)

    @abstractmethod
    def judge(self, data: Any, judged: Judged, shown: dict[str, Any], title: str) -> Certificate:
        """Return the certificate of weights and of the attributes that are shown, on data."""


@dataclass(eq=False, kw_only=True)
class NetworkState(WeightsState):
    """Fitted state of a dropout estimator with a hidden layer."""

    moment: Any  # second moment, or mean, of the training rows; the targets follow the features
    width: int  # number r of hidden units
    n_features: int | None = None  # number of features of a regression; None if y is x itself
    centered: bool = True  # whether the means are subtracted, so that there is an intercept
    flat: bool = False  # whether y was one-dimensional
    root: Array | None = None  # triangular factor of rows whose moment is ill-conditioned
    # whether the network is that of dropout; otherwise it is the least-squares map of rank at most
    # `width`, and `dropout` is zero
    shrink: bool = True
    # ridge penalty: alpha times the squared norm of the coefficients is added to the sum of squared
    # errors over the rows
    alpha: float = 0.0
    # sketch of the training rows, divided by `scales`, with which the certificate tests `moment`;
    # None if the second moment is not stored or not all rows were seen
    sketch: Sketch | None = None
    scales: Any = None

    @property
    def problem(self) -> LinearProblem:
        """The second moments of inputs and outputs, without the ridge penalty."""
        if self.n_features is None:
            return LinearProblem.autoencoder(self.moment)
        return LinearProblem.from_moment(
            self.moment,
            self.n_features,
            centered=self.centered,
            root=self.root,
            precision=machine_epsilon(self.ref),
        )

    def solve(self, problem: Any = None) -> None:
        """Compute the network at the global minimum of its loss, from its problem or from rows."""
        if self.n_features is None:
            rows = MomentRows(self.moment) if problem is None else problem
            optimum = solve_autoencoder(rows, self.strength, self.width)
        else:
            white = whiten(problem or self.problem, self.alpha / self.moment.weight)
            optimum = assemble(white, self.strength, self.width, shrinks=self.shrink)
        self.trained = TrainedNetwork(optimum.weights, optimum)

    def read_again(self, data: AlignedBlocks, verbose: bool | str) -> None:
        """Find in the rows themselves, which can be read several times, what their moment hides."""
        if self.n_features is None:
            self.solve(BlockRows(Passes(data, verbose), self.moment))
        elif is_ill_conditioned(self.problem):
            factor = partial(row_root, moment=self.moment, centered=self.centered)
            self.root = fold(data, factor, stacked, verbose=verbose)

    def centers(self) -> tuple[Array, Array]:
        """Return the vectors that are subtracted from inputs and outputs: their means, or zeros."""
        mean = self.moment.mean if self.centered else 0.0 * self.moment.mean
        return mean[: self.n_features], mean[self.n_features or 0 :]

    def train(
        self, estimator: Any, settings: dict[str, Any], rows: tuple[Any, Any, Any], problem: Any
    ) -> None:
        """Train the network on rows (X, Y, weights) as in Mianjy et al. 2018, Algorithm 1.

        The inputs are whitened: transformed so that their second moment is the identity.
        """
        X, Y, weights = rows
        penalty = self.alpha / self.moment.weight
        white = whiten(problem, penalty)
        cumulative = None if weights is None else np.cumsum(to_numpy(weights))
        center, output_center = self.centers()
        white = replace(white, lift=white.lift @ eye_like(white.matrix.shape[1], white.matrix))
        source = SampleSource(X, Y, center, white.lift, output_center, cumulative, penalty**0.5)
        self.trained, self.objective = train(
            estimator, settings, source, white, self.strength, self.width
        )

    def compute_attributes(self) -> dict[str, Any]:
        """Return the fitted attributes (such as ``left_`` and ``coef_``) by name."""
        shared = super().compute_attributes()
        center, output_center = self.centers()
        if self.n_features is None:
            return shared | {"mean_": representable(center, self.ref, "mean_", factor=False)}
        left, right = (like(shared[name], center) for name in ("left_", "right_"))
        coef = representable(left @ right.mT, self.ref, "coef_")
        intercept = output_center - like(coef, center) @ center
        intercept = representable(intercept, self.ref, "intercept_", factor=False)
        return shared | {
            "dropout_": self.dropout,
            "cv_": self.cv,
            "cv_results_": None if self.cv is None else self.cv.results(),
            "coef_": coef[0, :] if self.flat else coef,
            "intercept_": float(intercept[0]) if self.flat else intercept,
        }

    def refer(self, X: Any, Y: Any, sample_weight: Array | None, title: str) -> None:
        """Refer to the training rows until the certificate is read.

        If that is not possible, they are sketched, and judged at once if their second moment does
        not suffice.
        """
        self.rows = TrainingRows.referenced(X, sample_weight, title)
        if self.rows is not None and Y is not None:
            self.targets = TrainingRows.referenced(Y, None, title)
            self.rows = None if self.targets is None else self.rows
        if self.rows is None:
            self.sketch_rows(X, Y, sample_weight)
            if self.sketch is None or self.root is not None:
                data = given_rows(X, Y, sample_weight, centered=self.centered)
                self._certificate = self.judged_on(data, self.compute_attributes(), title)

    def sketch_rows(
        self, X: Any, Y: Any, sample_weight: Array | None, before: Sketch | None = None
    ) -> None:
        """Make the sketch with which the certificate tests the moment of the rows.

        `before` is the sketch of earlier rows. The rows are divided by `scales`.
        """
        if isinstance(self.moment, SecondMoment):
            if self.scales is None:
                self.scales = sketch_scales(X, Y, centered=self.centered)
            self.sketch = sketch_pairs(X, Y, sample_weight, self.scales, before)

    def sketch_referred(self) -> None:
        """Make the sketch of the rows that are referred to, unless there is one or they changed."""
        if self.rows is not None and self.sketch is None and self.rows_unchanged:
            self.sketch_rows(self.rows.rows, self.targets and self.targets.rows, self.rows.weights)

    def judged_rows(self) -> JudgedRows | None:
        """Return the moment with the sketch that tests it, and the rows if they are referred to."""
        self.sketch_referred()
        passed = None if self.sketch is None else Passed(self.moment, self.sketch, self.scales)
        if self.rows is not None and self.rows_unchanged:
            targets, weights = self.targets and self.targets.rows, self.rows.weights
            return judged_rows(self.rows.rows, targets, weights, self.centered, passed)
        return passed and tested_rows(passed, None, self.n_features, self.centered)

    def judge(
        self, data: JudgedRows | None, judged: Judged, shown: dict[str, Any], title: str
    ) -> Certificate:
        """Return the certificate of weights and of the attributes that are shown, on data."""
        judged = judged._replace(alpha=self.alpha, shrink=self.shrink)
        width = self.moment.n_features - (self.n_features or 0)
        if self.n_features is None:
            shape, shown["mean_"] = (width,), host(shown["mean_"])
            if shown["mean_"].shape != shape:
                raise ValueError(
                    f"mean_ has shape {shown['mean_'].shape}, expected {shape}: one entry per "
                    "feature."
                )
        else:
            shown["coef_"] = host(shown["coef_"]).reshape(width, self.n_features)
            shown["intercept_"] = np.broadcast_to(np.ravel(shown["intercept_"]), width)
        return certificate_of(data, judged, title=title, attributes=shown)


class NetworkMixin(CertifiedMixin):
    """Fitted attributes, settings and certificate of all dropout estimators."""

    left_ = Fitted()
    right_ = Fitted()
    n_components_ = Fitted()
    rank_ = Fitted()
    threshold_ = Fitted()
    singular_values_ = Fitted()
    objective_ = Fitted()
    n_iter_ = Fitted()
    status_ = Fitted()
    history_ = Fitted()

    _state: Any
    solver: str
    tol: Any
    warm_start: bool = False
    verbose: bool | str = "auto"
    fit: Any
    _unsolved: Any

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
        if state.doubt is not None:
            return certificate
        advice = "and the other claims are about the fit: call lucidae.certify(model, X), or fit."
        return with_changes(certificate, changed, advice)

    @property
    def _trains(self) -> bool:
        """Whether the network is trained by SGD, which needs the rows themselves."""
        return check_choice(self.solver, "solver", SOLVERS) == "sgd"

    def _certify_on(self, X: Any, y: Any, sample_weight: Any = None) -> Certificate:
        """Return the certificate of the fitted weights on given data, for `lucidae.certify`."""
        check_is_fitted(self)
        state, name = self._state, type(self).__name__
        if state.n_features is not None and y is None:
            raise ValueError(f"X was given without y: a {name} is certified on X and y, give both.")
        Y = None if state.n_features is None else y
        return self._certificate_on(given_rows(X, Y, sample_weight, centered=state.centered))

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _certificate_on(self, data: Any) -> Certificate:
        """Return the certificate of the present attributes, also assigned ones, on given data."""
        state = self._state
        attributes = {name: getattr(self, name) for name in state.attributes}
        found: Certificate = state.judged_on(data, attributes, type(self).__name__)
        return found

    def _add_batch(self, X: Any, y: Any, sample_weight: Any, *, with_targets: bool) -> Self:
        """Update the fit with a batch of rows, for `partial_fit`.

        The attributes are computed when they are first read. They are computed at once if the rows
        are so large or so small that the attributes may not be representable in their dtype:
        `partial_fit` then refuses the rows, as `fit` does. They are if products and quotients of a
        few entries may overflow: the root mean square of a column exceeds the fourth root of the
        largest number of the dtype, or is below its inverse.
        """
        sgd_settings(self)  # refuses wrong settings, which this solver does not use
        check_batch(X)
        X = check_rows(X, estimator=self, reset=not self.__sklearn_is_fitted__())
        Y, flat = checked_targets(X, y) if with_targets else (None, False)
        weights = check_weights(sample_weight, X)
        state = self._unsolved(joint_moment(X, Y, weights), reference_array(X))
        state.flat = flat
        before: Sketch | None = Sketch.empty(state.moment.n_features)
        if self.__sklearn_is_fitted__():
            seen = self._state
            if state.moment.n_features != seen.moment.n_features:
                raise ValueError(
                    f"y has {state.moment.n_features - X.shape[1]} targets, expected "
                    f"{seen.moment.n_features - X.shape[1]} as in earlier batches."
                )
            seen.sketch_referred()
            state.moment, state.ref = seen.moment.merge(state.moment), seen.ref
            state.flat, state.doubt = state.flat and seen.flat, seen.doubt
            before, state.scales = seen.sketch, seen.scales
        if before is not None:  # otherwise not all rows were seen
            state.sketch_rows(X, Y, weights, before)
        moment, ref = state.moment, state.ref
        squares = np.clip(host(diagonal(moment.squares)), 0.0, None) / moment.weight
        sizes = np.hypot(np.abs(host(moment.mean)), np.sqrt(squares))
        bound = float(namespace(ref).finfo(ref.dtype).max) ** 0.25
        if np.any(sizes > bound) or np.any((sizes > 0.0) & (sizes < 1.0 / bound)):
            _ = state.attributes
        self._state = state
        return self

    def _fit_blocks(
        self, batches: Any, y: Any, sample_weight: Any, start: Any, **kind: Any
    ) -> Self:
        """Fit to rows that are loaded if they fit into one block, else to their second moment."""
        sgd_settings(self)  # refuses wrong settings, which this solver does not use
        check_start(start)
        data = aligned_blocks(batches, y, sample_weight, **kind)
        small = None
        if start is None:
            small = load_rows(data, PassedLeaf(), verbose=self.verbose)
        if small is not None:
            self.fit(small.rows, small.targets, small.weights)
            return self
        why = needs_all_rows(self)
        if why:
            raise ValueError(f"X is read in blocks, but {why}, or X as an array or a memory map.")
        if start is not None and start.n_features < data.rows.n_features:
            raise ValueError(
                f"start has {start.n_features} features, but X has {data.rows.n_features}: start "
                "must be the second moment of earlier rows of the same data."
            )
        store_features(self, data)
        passed = read_passed(data, start, verbose=self.verbose)
        state = self._unsolved(passed.moment, data.rows.reference)
        state.flat, state.sketch, state.scales = data.flat_targets, passed.sketch, passed.scales
        if start is None and data.repeatable:
            state.read_again(data, self.verbose)
        _ = state.attributes
        self._state = state
        return self


def needs_all_rows(estimator: Any) -> str:
    """Return why the settings of an estimator need all rows at once; an empty text if not."""
    for name in ("dropout", "n_components"):
        value = getattr(estimator, name)
        if isinstance(value, str) and value in SELECTIONS:
            return f"{name}={value!r} divides the rows into folds: give {name} as a number"
    if isinstance(estimator.solver, str) and estimator.solver == "sgd":
        return "solver='sgd' draws rows in random order: give solver='exact'"
    return ""


def merges_moments(estimator: Any) -> bool:
    """Return True if an estimator has `partial_fit`; otherwise raise an AttributeError.

    scikit-learn calls this function to decide whether the method exists. It does not if the solver
    is SGD, or if a setting is chosen by cross-validation. It does for an unknown solver, so that a
    call of `partial_fit` reports the wrong name.
    """
    why = needs_all_rows(estimator)
    if why:
        raise AttributeError(f"partial_fit is not available: {why}.")
    return True
