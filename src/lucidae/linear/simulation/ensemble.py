"""An ensemble of simulated training runs with the same method and optimizer, computed together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    eye_like,
    keeper,
    leaves,
    like,
    namespace,
    replayable,
    to_numpy,
    where_set,
)
from lucidae.iteration import Below, iterate, iterate_batch, log_grid
from lucidae.linear.methods import Method, MethodSettings, check_optimizer, make_method
from lucidae.linear.optimizers import OPTIMIZERS
from lucidae.linear.prefixes import PrefixNumbers, geometric_prior
from lucidae.linear.simulation.runs import Plan, Run, Trajectory
from lucidae.metrics import imbalance, subspace_distance
from lucidae.metrics._linear import alignment_of
from lucidae.rows.covariances import (
    Covariance,
    DenseCovariance,
    EigenbasisCovariance,
    rows_covariance,
)
from lucidae.validation import check_choice

Step = Callable[[Any], Any]


class _Bundle(tuple[Any, ...]):
    """A flat tuple of the arrays of an optimizer's state, the step sizes and the distances.

    The leading axis of each array has one entry per run.
    """

    __slots__ = ()

    def __new__(cls, *leaves: Any) -> _Bundle:
        return super().__new__(cls, leaves)


class Ensemble:
    """Simulated training runs with the same method, optimizer and value of `tied`."""

    def __init__(self, runs: Sequence[Run], plan: Plan) -> None:
        self.runs, self.plan = runs, plan
        self.optimizer = OPTIMIZERS[check_choice(runs[0].optimizer, "optimizer", OPTIMIZERS)]
        self.values, self.vectors = plan.spectrum.values, plan.spectrum.vectors
        rng = np.random.default_rng(runs[0].seed)
        self.method = _method(runs[0], plan, rng)
        check_optimizer(self.method, runs[0].optimizer)
        self.in_eigenbasis = self.optimizer.commutes_with_rotations and not self._needs_rows
        self.full, basis = self._basis()
        self.axes = basis[:, : plan.k]
        self.whole, self.numbers = self._masked(rng)
        self.batches = None if self.numbers else self._batches(rng)

    @property
    def _needs_rows(self) -> bool:
        return self.method.rule.needs_rows or self.plan.batch_size is not None

    def _basis(self) -> tuple[Covariance, Array]:
        """Return the second moment and its eigenvectors (columns) in the basis of the simulation.

        This is the basis of the eigenvectors themselves, unless the optimizer or the use of rows
        requires the original features.
        """
        if self.in_eigenbasis:
            return EigenbasisCovariance(self.values), eye_like(len(self.values), self.values)
        return DenseCovariance((self.vectors * self.values) @ self.vectors.mT), self.vectors

    def _rows(self) -> Array:
        if self.plan.rows is None:
            raise ValueError(
                "plan.rows is None, but mini-batches and nested dropout with random masks need the "
                "rows of the data: give the centred data as Plan(rows=...)."
            )
        return self.plan.rows

    def _masked(self, rng: np.random.Generator) -> tuple[Any, PrefixNumbers | None]:
        """Return the second moment of all rows, and an object that draws numbers for random masks.

        The masks are those of nested dropout. Both results are None unless the rule draws random
        masks and an epoch is one step on all rows.
        """
        if not self.method.rule.needs_rows or self._steps_per_epoch > 1:
            return None, None
        rows = self._rows()
        numbers = self.method.rule.prefix_numbers(rng, int(rows.shape[0]))
        return rows_covariance(rows, 0.0 * rows[0, :], 0.0 * rows[:, 0] + 1.0), numbers

    def _batches(self, rng: np.random.Generator) -> Any:
        """Return an endless iterator over the second moments of the batches, one for each step.

        The result is None if a step uses only the second moment of all rows.
        """
        if not self._needs_rows:
            return None
        rows, size = self._rows(), self.plan.batch_size
        ones, zero = 0.0 * rows[:, 0] + 1.0, 0.0 * rows[0, :]
        if size is None or size >= rows.shape[0]:
            whole = rows_covariance(rows, zero, ones)
            return _forever(lambda: [whole])
        index = np.arange(rows.shape[0])
        xp = namespace(rows)

        def one_pass() -> Iterable[Covariance]:
            order = rng.permutation(index)
            for start in range(0, len(order), size):
                chosen = xp.asarray(order[start : start + size], device=rows.device)
                yield rows_covariance(xp.take(rows, chosen, axis=0), zero, ones[: len(chosen)])

        return _forever(one_pass)

    def start(self) -> tuple[Any, Array]:
        """Return the optimizer's state before the first step of all runs, and their step sizes.

        The step sizes have shape (runs, 1, 1).
        """
        shape = (self.plan.k, len(self.values))
        rngs = [np.random.default_rng(run.seed) for run in self.runs]
        encoder = like(np.stack([rng.standard_normal(shape) for rng in rngs]), self.values)
        atoms = like(np.stack([rng.standard_normal(shape) for rng in rngs]), self.values)
        if self.in_eigenbasis:
            encoder, atoms = encoder @ self.vectors, atoms @ self.vectors
        scale = self.plan.init_scale
        weights = self.method.start(scale * encoder, scale * atoms)
        rates = like(np.array([[[run.learning_rate]] for run in self.runs]), self.values)
        return self.optimizer(rates, self.plan.momentum).start(weights), rates

    def epoch(
        self, state: Any, rates: Array, drawn: Array | None = None, width: int | None = None
    ) -> Any:
        """Return the optimizer's state after one pass over the rows."""
        optimizer = self.optimizer(rates, self.plan.momentum)
        for _ in range(self._steps_per_epoch):
            direction = self._direction(state.weights, drawn, width)
            moved = optimizer.update(state, direction)
            state = moved._replace(weights=self.method.rule.retract(moved.weights))
        return state

    def _direction(self, weights: Any, drawn: Array | None, width: int | None) -> Any:
        rule: Any = self.method.rule
        if drawn is not None:
            return rule.sampled(weights, self.whole, drawn, width)
        return rule.direction(weights, next(self.batches) if self.batches else self.full)

    @property
    def _steps_per_epoch(self) -> int:
        rows, size = self.plan.rows, self.plan.batch_size
        return 1 if rows is None or size is None else -(-int(rows.shape[0]) // size)

    def record(self) -> list[Trajectory]:
        """Train all runs for `plan.n_epochs` epochs and return one trajectory per run."""
        state, rates = self.start()
        grid = self.plan.record_at or log_grid(self.plan.n_epochs)
        step, keep = self._several_epochs(
            lambda state, *masks: self.epoch(state, rates, *masks), state
        )
        solution = iterate(
            step,
            state,
            stop=Below(lambda _: 1.0, 0.0),
            limit=self.plan.n_epochs,
            check_every=max(1, self.plan.n_epochs),
            record={name: self._of_weights(measure) for name, measure in self._measures().items()},
            record_at=tuple(grid),
            callbacks=self.plan.callbacks,
            copy=keep,
            size=len(self.values) if not self.in_eigenbasis else self.plan.k,
        )
        history = solution.history
        last = self._original(solution.value.weights)
        return [
            Trajectory(
                run,
                history.iterations,
                {name: history[name][:, i] for name in self._measures()},
                type(last)(*(to_numpy(values[i]) for values in last)),
            )
            for i, run in enumerate(self.runs)
        ]

    def race(self, target: float, check_every: int) -> np.ndarray[Any, Any]:
        """Return the number of epochs until each run's axis-alignment distance is at most `target`.

        The result is NaN for runs that do not reach it. One step of the loop consists of
        `check_every` epochs and one measurement of the distance, so that a GPU needs one launch of
        a CUDA graph for it.
        """
        state, rates = self.start()
        epochs = math.gcd(check_every, self.plan.n_epochs)

        def epoch(bundle: _Bundle, *masks: Any) -> _Bundle:
            moved = self.epoch(_rebuild(state, bundle[:-2]), bundle[-2], *masks)
            return _Bundle(*leaves(moved), *bundle[-2:])

        def measured(bundle: _Bundle) -> _Bundle:
            weights = _rebuild(state, bundle[:-2]).weights
            return _Bundle(*bundle[:-1], self._alignment(weights))

        bundle = measured(_Bundle(*leaves(state), rates, rates))
        step, keep = self._several_epochs(epoch, bundle, epochs, measured)
        ended = iterate_batch(
            step,
            bundle,
            stop=Below(lambda bundle: bundle[-1], target),
            limit=self.plan.n_epochs // epochs,
            check_every=check_every // epochs,
            callbacks=self.plan.callbacks,
            copy=keep,
            size=len(self.values) if not self.in_eigenbasis else self.plan.k,
        )
        return np.where(ended.converged, epochs * ended.n_iter, np.nan)

    def _several_epochs(
        self, epoch: Callable[..., Any], example: Any, epochs: int = 1, end: Step = lambda s: s
    ) -> tuple[Step, Step | None]:
        """Return a function that computes several epochs, and a function that copies its states.

        On a CUDA device the step is recorded as a CUDA graph and run by one launch. Steps on
        mini-batches differ from each other and are not recorded. The second function is None if
        states need not be copied.
        """

        def several(state: Any, drawn: Any = None, width: int | None = None) -> Any:
            for index in range(epochs):
                state = epoch(state) if drawn is None else epoch(state, drawn[index, ...], width)
            return end(state)

        if self.batches:
            return several, None
        recorded = replayable(several, example)
        numbers = self.numbers
        if numbers is None:
            return recorded, keeper(recorded)

        def drawing(state: Any) -> Any:
            runs = leaves(state)[0].shape[0]
            drawn, width = numbers(epochs, runs)
            moved = recorded(state, like(drawn, self.values), width=width)
            numbers.prepare(epochs, runs)
            return moved

        return drawing, keeper(recorded)

    def _measures(self) -> dict[str, Callable[[Any], Array]]:
        return {
            "alignment": self._alignment,
            "subspace": lambda w: self._finite(w, lambda d: subspace_distance(d, self.axes)),
            "loss": lambda w: self.method.objective.value(w, self.full),
            "imbalance": lambda w: self._finite(w, lambda d: imbalance(_clean(w.encoder), d)),
        }

    def _alignment(self, weights: Any) -> Array:
        return self._finite(weights, lambda decoder: alignment_of(decoder, self.axes))

    @staticmethod
    def _finite(weights: Any, measure: Callable[[Array], Array]) -> Array:
        """Return the metric `measure` of the decoder of each run.

        It is NaN for a decoder that contains NaN or infinity, for which metrics would raise an
        error.
        """
        xp = namespace(weights.atoms)
        finite = xp.all(xp.isfinite(weights.atoms), axis=(-2, -1))
        return where_set(measure(_clean(weights.atoms).mT), ~finite, float("nan"))

    @staticmethod
    def _of_weights(measure: Callable[[Any], Array]) -> Callable[[Any], Array]:
        return lambda state: measure(state.weights)

    def _original(self, weights: Any) -> Any:
        if not self.in_eigenbasis:
            return weights
        back = self.vectors.mT
        both = {"encoder": weights.encoder @ back}
        if "atoms" in weights._fields:
            both["atoms"] = weights.atoms @ back
        return weights._replace(**both)


def _method(run: Run, plan: Plan, rng: np.random.Generator) -> Method:
    penalties = np.full(plan.k, 0.25) if plan.penalties is None else plan.penalties
    prior = geometric_prior(plan.k) if plan.prior is None else plan.prior
    ref = plan.spectrum.values
    settings = MethodSettings(like(penalties, ref), like(prior, ref), rng, run.tied)
    return make_method(run.method, settings)


def _clean(values: Array) -> Array:
    xp = namespace(values)
    return where_set(values, ~xp.isfinite(values), 0.0)


def _forever(one_pass: Callable[[], Iterable[Any]]) -> Any:
    while True:
        yield from one_pass()


def _rebuild(template: Any, parts: Sequence[Any]) -> Any:
    remaining = iter(parts)

    def fill(part: Any) -> Any:
        if isinstance(part, tuple):
            return type(part)(*(fill(inner) for inner in part))
        return next(remaining)

    return fill(template)
