"""Runs that share one rule, one optimizer and one basis, stepped together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lucidae._arrays import (
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
from lucidae.iterate import Below, iterate, iterate_batch, log_grid
from lucidae.linear.covariance import (
    Covariance,
    DenseCovariance,
    DiagonalCovariance,
    rows_covariance,
)
from lucidae.linear.methods import Method, Settings, check_optimizer, make_method
from lucidae.linear.objectives import geometric_prior
from lucidae.linear.optimizers import OPTIMIZERS
from lucidae.linear.runs import Plan, Run, Trajectory
from lucidae.metrics import axis_alignment_distance, imbalance, subspace_distance


class _Bundle(tuple[Any, ...]):
    """A flat state: leaves with the runs along their leading axis."""

    __slots__ = ()

    def __new__(cls, *leaves: Any) -> _Bundle:
        return super().__new__(cls, leaves)


class Crew:
    """Runs that share one rule, one optimizer and one basis."""

    def __init__(self, runs: Sequence[Run], plan: Plan) -> None:
        self.runs, self.plan = runs, plan
        self.name = runs[0].optimizer
        check_optimizer(runs[0].method, self.name)
        self.values, self.vectors = plan.spectrum.values, plan.spectrum.vectors
        random = np.random.default_rng(runs[0].seed)
        self.method = _method(runs[0], plan, random)
        self.turned = self.name != "adam" and not self._needs_rows
        self.axes = self._axes()
        self.batches = self._batches(random)
        self.full = self._full()

    @property
    def _needs_rows(self) -> bool:
        return self.method.needs_rows or self.plan.batch_size is not None

    def _axes(self) -> Array:
        basis = eye_like(len(self.values), self.values) if self.turned else self.vectors
        return basis[:, : self.plan.k]

    def _full(self) -> Covariance:
        if self.turned:
            return DiagonalCovariance(self.values)
        return DenseCovariance((self.vectors * self.values) @ self.vectors.mT)

    def _batches(self, random: np.random.Generator) -> Any:
        """Return a source of second moments, one per step."""
        if not self._needs_rows:
            return None
        rows, size = self.plan.rows, self.plan.batch_size
        if rows is None:
            raise ValueError("nested dropout and mini-batches need plan.rows, the centred data.")
        ones, zero = 0.0 * rows[:, 0] + 1.0, 0.0 * rows[0, :]
        if size is None or size >= rows.shape[0]:
            whole = rows_covariance(rows, zero, ones)
            return _forever(lambda: [whole])
        index = np.arange(rows.shape[0])
        xp = namespace(rows)

        def one_pass() -> Iterable[Covariance]:
            order = random.permutation(index)
            for start in range(0, len(order), size):
                chosen = xp.asarray(order[start : start + size], device=rows.device)
                yield rows_covariance(xp.take(rows, chosen, axis=0), zero, ones[: len(chosen)])

        return _forever(one_pass)

    def start(self) -> tuple[Any, Array]:
        """Return the optimizer's first state for all runs, and their rates."""
        shape = (self.plan.k, len(self.values))
        drawn = [np.random.default_rng(run.seed) for run in self.runs]
        encoder = like(np.stack([rng.standard_normal(shape) for rng in drawn]), self.values)
        atoms = like(np.stack([rng.standard_normal(shape) for rng in drawn]), self.values)
        if self.turned:
            encoder, atoms = encoder @ self.vectors, atoms @ self.vectors
        scale = self.plan.init_scale
        weights = self.method.start(scale * encoder, scale * atoms)
        rates = like(np.array([[[run.learning_rate]] for run in self.runs]), self.values)
        return OPTIMIZERS[self.name](rates, self.plan.momentum).start(weights), rates

    def epoch(self, state: Any, rates: Array) -> Any:
        """Return the state after one pass."""
        optimizer = OPTIMIZERS[self.name](rates, self.plan.momentum)
        for _ in range(self._steps_per_epoch):
            covariance = next(self.batches) if self.batches else self.full
            direction = self.method.rule.direction(state.weights, covariance)
            moved = optimizer.update(state, direction)
            state = moved._replace(weights=self.method.rule.retract(moved.weights))
        return state

    @property
    def _steps_per_epoch(self) -> int:
        if not self.batches or self.plan.batch_size is None or self.plan.rows is None:
            return 1
        return -(-int(self.plan.rows.shape[0]) // self.plan.batch_size)

    def record(self) -> list[Trajectory]:
        """Run every epoch and return one trajectory per run."""
        state, rates = self.start()
        grid = self.plan.record_at or log_grid(self.plan.n_epochs)
        step = self._replayable(lambda state: self.epoch(state, rates), state)
        solution = iterate(
            step,
            state,
            stop=Below(lambda _: 1.0, 0.0),
            limit=self.plan.n_epochs,
            check_every=max(1, self.plan.n_epochs),
            record={name: self._of_weights(measure) for name, measure in self._measures().items()},
            record_at=tuple(grid),
            callbacks=self.plan.callbacks,
            copy=keeper(step),
            size=len(self.values) if not self.turned else self.plan.k,
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
        """Return the epochs that each run needs to reach `target`."""
        state, rates = self.start()

        def epoch(bundle: _Bundle) -> _Bundle:
            moved = self.epoch(_rebuild(state, bundle[:-1]), bundle[-1])
            return _Bundle(*leaves(moved), bundle[-1])

        def distance(bundle: _Bundle) -> Array:
            return self._alignment(_rebuild(state, bundle[:-1]).weights)

        bundle = _Bundle(*leaves(state), rates)
        step = self._replayable(epoch, bundle)
        ended = iterate_batch(
            step,
            bundle,
            stop=Below(distance, target),
            limit=self.plan.n_epochs,
            check_every=check_every,
            callbacks=self.plan.callbacks,
            copy=keeper(step),
            size=len(self.values) if not self.turned else self.plan.k,
        )
        return np.where(ended.converged, ended.n_iter, np.nan)

    def _replayable(self, step: Callable[[Any], Any], example: Any) -> Callable[[Any], Any]:
        """Record a step for one launch per epoch; steps on batches differ from one another."""
        return step if self.batches else replayable(step, example)

    def _measures(self) -> dict[str, Callable[[Any], Array]]:
        return {
            "alignment": self._alignment,
            "subspace": lambda w: self._finite(w, lambda d: subspace_distance(d, self.axes)),
            "loss": lambda w: self.method.objective.value(w, self.full),
            "imbalance": lambda w: self._finite(w, lambda d: imbalance(_clean(w.encoder), d)),
        }

    def _alignment(self, weights: Any) -> Array:
        return self._finite(weights, lambda d: axis_alignment_distance(d, self.axes))

    @staticmethod
    def _finite(weights: Any, measure: Callable[[Array], Array]) -> Array:
        """Measure finite decoders and return NaN for the others, which the metrics refuse."""
        xp = namespace(weights.atoms)
        finite = xp.all(xp.isfinite(weights.atoms), axis=(-2, -1))
        return where_set(measure(_clean(weights.atoms).mT), ~finite, float("nan"))

    @staticmethod
    def _of_weights(measure: Callable[[Any], Array]) -> Callable[[Any], Array]:
        return lambda state: measure(state.weights)

    def _original(self, weights: Any) -> Any:
        if not self.turned:
            return weights
        back = self.vectors.mT
        both = {"encoder": weights.encoder @ back}
        if "atoms" in weights._fields:
            both["atoms"] = weights.atoms @ back
        return weights._replace(**both)


def _method(run: Run, plan: Plan, random: np.random.Generator) -> Method:
    penalties = np.full(plan.k, 0.25) if plan.penalties is None else plan.penalties
    prior = geometric_prior(plan.k) if plan.prior is None else plan.prior
    ref = plan.spectrum.values
    settings = Settings(like(penalties, ref), like(prior, ref), random, run.tied)
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
