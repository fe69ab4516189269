"""Simulated training of linear autoencoders: many runs at once, in the eigenbasis of the data.

Gradient descent, heavy ball, Nesterov's method and the update rules commute with a rotation of the
features: training on rotated features gives rotated weights. An epoch with m features and k latents
can therefore be computed in the basis of the eigenvectors of the second moment, where it costs only
O(mk²) operations. Adam rescales each coordinate and is run in the original basis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Self, cast

import numpy as np

from lucidae.arrays import Array, eye_like, like, namespace, to_numpy
from lucidae.arrays.graphs import keeper, replayable
from lucidae.iteration import Below, Callback, History, Progress, Solution, iterate, log_grid
from lucidae.linear.methods import (
    Method,
    MethodSettings,
    check_optimizer,
    geometric_prior,
    make_method,
)
from lucidae.linear.solvers import moved, shuffled
from lucidae.linear.weights import OPTIMIZERS, Adam, axis_distances, finite_or_nan, of_states
from lucidae.metrics import imbalance
from lucidae.moments import SecondMoment
from lucidae.rows.covariances import (
    Covariance,
    DenseCovariance,
    EigenbasisCovariance,
    rows_covariance,
)
from lucidae.spectrum import Spectrum
from lucidae.validation import check_choice


@dataclass(frozen=True, slots=True)
class Run:
    """Settings of one simulated training run of a linear autoencoder.

    Parameters
    ----------
    method : str
        The argument `method` of `LinearAutoencoder`, such as ``"rag"``.
    optimizer : str
        ``"gradient_descent"``, ``"heavy_ball"``, ``"nesterov"`` or ``"adam"``.
    learning_rate : float
        The step size; it is not scaled by the variance of the data.
    seed : int, default=0
        Seed of the random initial weights.
    tied : bool or "auto", default="auto"
        Whether the decoder is the encoder's transpose, as in `LinearAutoencoder`. The runs of Bao
        et al. 2020 are untied.
    """

    method: str
    optimizer: str
    learning_rate: float
    seed: int = 0
    tied: bool | str = "auto"


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that all runs of a simulation share.

    Parameters
    ----------
    spectrum : Spectrum
        All m eigenpairs of the second moment of the data. The simulation runs in the array library
        and on the device of these arrays.
    k : int
        Number of latents.
    n_epochs : int
        Largest number of epochs (passes over the data).
    penalties : array of shape (k,), optional
        ℓ₂ penalty of each latent, for the methods with penalties; 0.25 each by default.
    prior : array of shape (k,), optional
        Probabilities of the prefix lengths 1 … k of nested dropout; geometric by default.
    init_scale : float, default=1e-4
        Standard deviation of the random initial weights.
    momentum : float, default=0.9
        Momentum of heavy ball and Nesterov.
    rows : array of shape (n, m), optional
        Centred data; needed for mini-batches and for nested dropout with random masks.
    batch_size : int, optional
        Number of rows per step; an epoch is one pass over all rows. All rows by default.
    record_at : iterable of int, optional
        Numbers of the epochs to record; a logarithmic grid by default.
    callbacks : sequence of callable
        Functions that are called with a `Progress` during training, such as a progress bar.
    """

    spectrum: Spectrum
    k: int
    n_epochs: int
    penalties: Array | None = None
    prior: Array | None = None
    init_scale: float = 1e-4
    momentum: float = 0.9
    rows: Array | None = None
    batch_size: int | None = None
    record_at: Iterable[int] | None = None
    callbacks: Sequence[Callback] = ()

    @classmethod
    def of(cls, X: Any, k: int, n_epochs: int, **settings: Any) -> Self:
        """Return the plan of a simulation on a data matrix.

        Parameters
        ----------
        X : array of shape (n, m)
            The data, which are centred.
        k, n_epochs, **settings
            As in `Plan`.

        Returns
        -------
        Plan
            With all eigenpairs of the second moment, and the centred rows.

        Examples
        --------
        >>> from lucidae.datasets import load_digits
        >>> plan = Plan.of(load_digits().data, k=5, n_epochs=2000)
        >>> (trajectory,) = simulate([Run("rag", "nesterov", 0.01)], plan)
        >>> bool(trajectory.values["alignment"][-1] < 1e-3)
        True
        """
        moment = SecondMoment.of(X)
        spectrum = Spectrum(*moment.spectrum(), moment.trace)
        rows = like(X, moment.mean) - moment.mean
        return cls(spectrum, k, n_epochs, rows=rows, **settings)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The recorded trajectory of one simulated training run.

    Parameters
    ----------
    run : Run
        The settings of the run.
    epochs : ndarray of int
        Numbers of the recorded epochs; 0 is before the first step.
    values : dict of str to ndarray
        Quantities recorded at those epochs, NaN after a divergence: ``"alignment"`` (axis-alignment
        distance of the decoder), ``"subspace"`` (its subspace distance), ``"loss"`` (loss of the
        method) and ``"imbalance"`` (distance of the encoder from the transposed decoder). See
        `lucidae.metrics`.
    weights : tuple of ndarray
        The weights after the last epoch, in the original features.
    """

    run: Run
    epochs: np.ndarray[Any, Any]
    values: dict[str, np.ndarray[Any, Any]] = field(repr=False)
    weights: Any = field(repr=False, default=None)

    def plot(self, *, quantity: str = "alignment", ax: Any = None, **line: Any) -> Any:
        """Draw a recorded quantity against the epochs.

        Parameters
        ----------
        quantity : str, default="alignment"
            One of the names of `values`.
        ax, **line
            As in `lucidae.iteration.History.plot`.

        Returns
        -------
        HistoryDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        return History(self.epochs, self.values).plot(quantity=quantity, ax=ax, **line)


def simulate(runs: Sequence[Run], plan: Plan) -> list[Trajectory]:
    """Train a linear autoencoder for each run, and return the recorded trajectories.

    Runs with the same method, optimizer and value of `tied` are computed together as one batch of
    arrays; their step sizes and seeds may differ.

    Parameters
    ----------
    runs : sequence of Run
        Settings of each run: method, optimizer, step size, seed and tied weights.
    plan : Plan
        Settings that all runs share: data, number of latents, number of epochs and others.

    Returns
    -------
    list of Trajectory
        One trajectory per run, in the order of `runs`.

    Examples
    --------
    >>> from lucidae.linear import Spectrum
    >>> plan = Plan(Spectrum(np.array([3.0, 1.0]), np.eye(2), 4.0), k=1, n_epochs=200)
    >>> (trajectory,) = simulate([Run("rag", "nesterov", 0.01)], plan)
    >>> bool(trajectory.values["alignment"][-1] < 1e-3)
    True
    """
    results: dict[int, Trajectory] = {}
    for group in _groups(runs):
        ensemble = Ensemble([runs[index] for index in group], plan)
        results |= zip(group, ensemble.record(), strict=True)
    return [results[index] for index in range(len(runs))]


def epochs_to_alignment(
    runs: Sequence[Run], plan: Plan, target: float = 0.3, check_every: int = 10
) -> np.ndarray[Any, Any]:
    """Return the number of epochs after which each run is aligned with the principal axes.

    A run is aligned when the axis-alignment distance of its decoder
    (`lucidae.metrics.axis_alignment_distance`) is at most `target`. Its training then ends.

    Parameters
    ----------
    runs : sequence of Run
        Settings of each run: method, optimizer, step size, seed and tied weights.
    plan : Plan
        Settings that all runs share: data, number of latents, largest number of epochs and others.
    target : float, default=0.3
        The axis-alignment distance at which a run is aligned, between 0 and 1.
    check_every : int, default=10
        Number of epochs between two measurements of the distance; the result is a multiple of it.

    Returns
    -------
    ndarray of shape (n_runs,)
        The number of epochs of each run; NaN for runs that diverge or are not aligned after
        ``plan.n_epochs`` epochs.
    """
    epochs = np.full(len(runs), np.nan)
    for group in _groups(runs):
        ensemble = Ensemble([runs[index] for index in group], plan)
        epochs[group] = ensemble.race(target, check_every)
    return epochs


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    def kind(index: int) -> tuple[str, str, str]:
        return runs[index].method, runs[index].optimizer, str(runs[index].tied)

    return [list(group) for _, group in groupby(sorted(range(len(runs)), key=kind), key=kind)]


class Ensemble:
    """Simulated training runs with the same method, optimizer and value of `tied`."""

    def __init__(self, runs: Sequence[Run], plan: Plan) -> None:
        self.runs, self.plan = runs, plan
        values, vectors = plan.spectrum.values, plan.spectrum.vectors
        rng = np.random.default_rng(runs[0].seed)
        self.method = _method(runs[0], plan, rng)
        optimizer = OPTIMIZERS[check_choice(runs[0].optimizer, "optimizer", OPTIMIZERS)]
        check_optimizer(self.method.name, self.method.rule, runs[0].optimizer)
        rates = like(np.array([[[run.learning_rate]] for run in runs]), values)
        self.optimizer = optimizer(rates, plan.momentum)
        needs_rows = self.method.rule.needs_rows or plan.batch_size is not None
        if needs_rows and plan.rows is None:
            raise ValueError(
                "plan.rows is None, but mini-batches and nested dropout with random masks need the "
                "rows of the data: give the centred data as Plan(rows=...)."
            )
        # Products with the second moment of all rows, and the basis of the simulation.
        self.basis: Array | None = None
        self.full: Covariance
        if optimizer is not Adam and not needs_rows:
            self.basis, self.full = vectors, EigenbasisCovariance(values)
            axes = eye_like(len(values), values)
        else:
            self.full, axes = DenseCovariance((vectors * values) @ vectors.mT), vectors
        self.distances = axis_distances(axes[:, : plan.k])
        # Masks of all rows are drawn outside of the steps, which can then be recorded.
        rows, size = cast(Any, plan.rows), plan.batch_size
        self.rows = rows
        self.steps = 1 if rows is None or size is None else -(-int(rows.shape[0]) // size)
        self.masks = rng if self.method.rule.needs_rows and self.steps == 1 else None
        self.batches = None
        if self.masks is not None:
            self.full = rows_covariance(rows, 0.0 * rows[0, :], 0.0 * rows[:, 0] + 1.0)
        elif needs_rows:
            self.batches = _batches(rows, size or int(rows.shape[0]), rng)

    def start(self) -> Any:
        """Return the optimizer's state before the first step."""
        shape, ref = (self.plan.k, self.full.n_features), self.plan.spectrum.values
        rngs = [np.random.default_rng(run.seed) for run in self.runs]
        both = [like(np.stack([rng.standard_normal(shape) for rng in rngs]), ref) for _ in range(2)]
        if self.basis is not None:
            both = [layer @ self.basis for layer in both]
        return self.optimizer.start(self.method.start(*(self.plan.init_scale * b for b in both)))

    def epoch(self, state: Any, drawn: Array | None = None) -> Any:
        """Return the optimizer's state after one pass over the rows.

        `drawn` are the random numbers of the masks of all rows.
        """
        rule = cast(Any, self.method.rule)
        for _ in range(self.steps):
            if drawn is not None:
                direction = rule.sampled(state.weights, self.full, drawn)
            else:
                data = next(self.batches) if self.batches else self.full
                direction = rule.direction(state.weights, data)
            state = moved(rule, self.optimizer, state, direction)
        return state

    def train(
        self,
        check_every: int,
        record: Mapping[str, Callable[[Any], Array]],
        record_at: Iterable[int],
        callbacks: Sequence[Callback],
    ) -> Solution[Any]:
        """Train all runs for `plan.n_epochs` epochs, or until a callback stops them.

        On a CUDA device the step is recorded as a CUDA graph and run by one launch; steps on
        mini-batches differ from each other and are not recorded.
        """
        start = self.start()
        recorded = step = self.epoch if self.batches else replayable(self.epoch, start)

        def drawing(state: Any) -> Any:
            # NumPy draws the numbers in the order of the epochs: a seed gives the same trajectory
            # on every device.
            drawn = cast(Any, self.masks).random((len(self.runs), self.rows.shape[0]))
            return recorded(state, like(drawn, self.plan.spectrum.values))

        if self.masks is not None:
            step = drawing
        return iterate(
            step,
            start,
            stop=Below(lambda _: 1.0, 0.0),
            limit=self.plan.n_epochs,
            check_every=check_every,
            record=of_states(record),
            record_at=record_at,
            callbacks=callbacks,
            copy=keeper(recorded),
            size=self.full.n_features if self.basis is None else self.plan.k,
        )

    def record(self) -> list[Trajectory]:
        """Train all runs for `plan.n_epochs` epochs and return one trajectory per run."""
        plan, measures = (
            self.plan,
            self.distances
            | {
                "loss": lambda w: self.method.objective.value(w, self.full),
                "imbalance": finite_or_nan(imbalance),
            },
        )
        grid = plan.record_at or log_grid(plan.n_epochs)
        solution = self.train(max(1, plan.n_epochs), measures, tuple(grid), plan.callbacks)
        history, last = solution.history, solution.value.weights
        if self.basis is not None:
            back = self.basis.mT
            layers = {name for name in last._fields if name in ("encoder", "atoms")}
            last = last._replace(**{name: getattr(last, name) @ back for name in layers})
        return [
            Trajectory(
                run,
                history.iterations,
                {name: history[name][:, i] for name in measures},
                type(last)(*(to_numpy(values[i]) for values in last)),
            )
            for i, run in enumerate(self.runs)
        ]

    def race(self, target: float, check_every: int) -> np.ndarray[Any, Any]:
        """Return the number of epochs until each run's axis-alignment distance is at most `target`.

        The result is NaN for runs that do not reach it.
        """
        reached = np.full(len(self.runs), np.nan)

        def look(progress: Progress) -> bool:
            """Tell whether all runs are aligned or have diverged."""
            distance = to_numpy(self.distances["alignment"](progress.state.weights))
            reached[np.isnan(reached) & (distance <= target)] = progress.n_iter
            return bool(np.all(np.isfinite(reached) | np.isnan(distance)))

        self.train(check_every, {}, (), (look, *self.plan.callbacks))
        return reached


def _batches(rows: Array, size: int, rng: np.random.Generator) -> Iterator[Covariance]:
    """Yield the moments of mini-batches of rows without end."""
    xp, ones, zero = namespace(rows), 0.0 * rows[:, 0] + 1.0, 0.0 * rows[0, :]
    for index in shuffled(int(rows.shape[0]), size, rng):
        chosen = xp.asarray(index, device=rows.device)
        yield rows_covariance(xp.take(rows, chosen, axis=0), zero, ones[: len(chosen)])


def _method(run: Run, plan: Plan, rng: np.random.Generator) -> Method:
    penalties = np.full(plan.k, 0.25) if plan.penalties is None else plan.penalties
    prior = geometric_prior(plan.k) if plan.prior is None else plan.prior
    ref = plan.spectrum.values
    settings = MethodSettings(like(penalties, ref), like(prior, ref), rng, run.tied)
    return make_method(run.method, settings)
