"""From options and a source of the second moment to a fitted model."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import Array, namespace, to_numpy
from lucidae.iteration import History, Status
from lucidae.linear.data import DenseCovariance, RowsSource, Source, StreamCovariance
from lucidae.linear.methods import Method
from lucidae.linear.model import Model, TrainedWeights, build_model
from lucidae.linear.options import Options
from lucidae.linear.solvers import (
    batch_noise,
    random_start,
    solve_exact,
    solve_gradient,
    solve_stochastic,
    stiffness,
)
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.weights import VariationalWeights

DEFAULT_BATCH = 256
"""Rows per step of the stochastic solver."""


def solve(options: Options, source: Source, previous: Any = None) -> tuple[Model, Spectrum | None]:
    """Return the fitted model and as much of the spectrum as was needed on the way."""
    solver = resolve_solver(options, source)
    spectrum = _needed_spectrum(options, source, solver)
    k = resolve_components(options.n_components, source, spectrum)
    random = options.random()
    method = options.make(k, spectrum, random)
    if solver == "exact":
        if spectrum is None:
            raise ValueError(
                "solver='exact' needs all rows or all features to fit in one square matrix; "
                "use solver='stochastic'."
            )
        outcome = _exact_outcome(method, spectrum, k)
    else:
        outcome = _trained_outcome(options, source, method, k, random, previous, solver)
    return build_model(outcome, source.mean, source.weight, source.covariance), spectrum


def resolve_solver(options: Options, source: Source) -> str:
    """Return the solver that ``"auto"`` stands for: exact wherever the spectrum is in reach."""
    if options.solver != "auto":
        return options.solver
    out_of_reach = isinstance(source, RowsSource) and not source.affordable
    return "stochastic" if out_of_reach else "exact"


def _needed_spectrum(options: Options, source: Source, solver: str) -> Spectrum | None:
    """Return the eigenpairs that the solver, the penalties or the number of latents ask for."""
    wanted = options.n_components
    if solver == "exact":
        return source.spectrum(_one_more(wanted, source))
    if solver == "stochastic":
        if options.needs_spectrum and isinstance(source, RowsSource):
            return source.ritz(resolve_components(wanted, source, None))
        return None
    if options.needs_spectrum or not isinstance(wanted, int):
        return source.spectrum(None)
    return None


def _one_more(wanted: Any, source: Source) -> int | None:
    """Return k + 1, so that the gap behind the last component is known; None for all."""
    if not isinstance(wanted, int):
        return None
    return min(wanted + 1, source.covariance.n_features)


def resolve_components(wanted: Any, source: Source, spectrum: Spectrum | None) -> int:
    """Return the number of latents that `wanted` stands for on this data."""
    m = source.covariance.n_features
    if isinstance(wanted, int):
        if wanted > m:
            raise ValueError(
                f"n_components={wanted} was given, but X has {m} features: expected at most {m}."
            )
        return wanted
    if spectrum is None:
        raise ValueError(
            f"n_components={wanted!r} needs the spectrum, which the stochastic solver never "
            "computes: give an integer."
        )
    rank = max(1, spectrum.rank())
    if wanted is None:
        return rank
    share = np.cumsum(to_numpy(spectrum.values)) / max(spectrum.trace, np.finfo(float).tiny)
    return min(rank, int(np.searchsorted(share, wanted * (1 - 1e-12))) + 1)


def _exact_outcome(method: Method, spectrum: Spectrum, k: int) -> TrainedWeights:
    weights = solve_exact(method, spectrum, k)
    return TrainedWeights(weights, method, Status.CONVERGED, 1, History(np.empty(0, dtype=int)))


def _trained_outcome(
    options: Options,
    source: Source,
    method: Method,
    k: int,
    random: np.random.Generator,
    previous: Any,
    solver: str,
) -> TrainedWeights:
    covariance = source.covariance
    unit = _unit_of(method, options, covariance)
    covariance = _scaled(covariance, unit)
    m = covariance.n_features
    start = random_start(method, k, m, options.init_scale, random, source.mean)
    if previous is not None and _same_kind(previous, start):
        start = _rescaled(previous, 1.0 / unit)
    size = _batch_rows(options, method, covariance, solver)
    noise = 0.0 if size is None else batch_noise(size, covariance.rows.shape[0], options.training)
    training, stiff = options.training, stiffness(method, covariance, start, noise)
    if size is None:
        solution = solve_gradient(method, covariance, start, training, stiff)
    else:
        solution = solve_stochastic(method, covariance, start, training, size, random, stiff)
    if not solution.status.ok:
        warnings.warn(solution.advice, ConvergenceWarning, stacklevel=4)
    return TrainedWeights(
        _rescaled(solution.value, unit),
        method,
        solution.status,
        max(1, solution.n_iter),
        solution.history,
        training.rate(stiff.curvature) / unit**2,
    )


def _batch_rows(options: Options, method: Method, covariance: Any, solver: str) -> int | None:
    """Return the rows of one step; None for a step through the second moment."""
    if solver == "gradient" and not method.needs_rows:
        return None
    n_rows: int = covariance.rows.shape[0]
    # Nested dropout on the full batch is its stochastic form with one batch per pass.
    return n_rows if solver == "gradient" else min(options.batch_size or DEFAULT_BATCH, n_rows)


def _unit_of(method: Method, options: Options, covariance: Any) -> float:
    """Return the unit of length in which a linear VAE is trained.

    Its loss has a scale of its own (the noise starts at 1), so the automatic step size measures
    the data in units of their standard deviation. All else is free of units.
    """
    if method.name != "linear_vae" or options.training.learning_rate != "auto":
        return 1.0
    variance = float(covariance.trace) / covariance.n_features
    return float(np.sqrt(variance)) if variance > 0.0 else 1.0


def _scaled(covariance: Any, unit: float) -> Any:
    if unit == 1.0:
        return covariance
    if isinstance(covariance, DenseCovariance):
        return DenseCovariance(covariance.matrix / unit**2)
    return StreamCovariance(covariance.rows / unit, covariance.mean / unit, covariance.weights)


def _rescaled(weights: Any, unit: float) -> Any:
    """Return the weights of a linear VAE in other units of length; others have no units."""
    if unit == 1.0 or not isinstance(weights, VariationalWeights):
        return weights
    return VariationalWeights(
        weights.encoder / unit,
        weights.atoms * unit,
        weights.log_variances,
        weights.log_noise + 2 * math.log(unit),
    )


def _same_kind(previous: Any, start: Any) -> bool:
    return type(previous) is type(start) and all(
        _matches(old, new) for old, new in zip(previous, start, strict=True)
    )


def _matches(old: Array, new: Array) -> bool:
    return bool(old.shape == new.shape and namespace(old) is namespace(new))
