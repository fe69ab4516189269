"""The constructor's arguments, checked, and what they mean for data at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from lucidae.arrays import to_numpy
from lucidae.io.models import saved_as
from lucidae.linear.methods import METHODS, Method, MethodSettings, check_optimizer, make_method
from lucidae.linear.objectives import geometric_prior, uniform_prior
from lucidae.linear.optimizers import OPTIMIZERS
from lucidae.linear.penalties import best_penalties
from lucidae.linear.solvers import DescentSettings
from lucidae.linear.spectrum import Spectrum
from lucidae.validation import check_choice, check_integer, check_number

SOLVERS = ("auto", "exact", "gradient", "stochastic")
PRIORS = ("geometric", "uniform")


@saved_as("lucidae.linear.options/1", formerly="lucidae.linear.options:Options")
@dataclass(frozen=True, slots=True)
class Options:
    """Checked arguments of a `LinearAutoencoder`."""

    n_components: Any
    method: str
    solver: str
    training: DescentSettings
    l2: Any
    prior: Any
    batch_size: int | None
    tied: bool | str
    init_scale: float
    random_state: Any

    @classmethod
    def of(cls, estimator: Any) -> Options:
        """Check the arguments of `estimator` and return them."""
        method = check_choice(estimator.method, "method", METHODS)
        optimizer = check_choice(estimator.optimizer, "optimizer", OPTIMIZERS)
        check_optimizer(method, optimizer)
        size = estimator.batch_size
        tied = _check_tied(estimator.tied)
        if not isinstance(estimator.whiten, bool | np.bool_):
            raise ValueError(f"whiten={estimator.whiten!r} was given, expected True or False.")
        make_method(method, MethodSettings(np.ones(1), np.ones(1), np.random.default_rng(0), tied))
        return cls(
            _check_components(estimator.n_components),
            method,
            check_choice(estimator.solver, "solver", SOLVERS),
            _check_training(estimator, optimizer),
            _check_penalty(estimator.l2),
            _check_prior(estimator.prior),
            None if size is None else check_integer(size, "batch_size", low=1),
            tied,
            check_number(estimator.init_scale, "init_scale", low=0.0, open_low=True),
            estimator.random_state,
        )

    @property
    def route(self) -> str:
        """The solver as far as the data's route is concerned: sampled masks need the rows."""
        sampled = self.method == "nested_dropout" and self.solver == "gradient"
        return "stochastic" if sampled else self.solver

    def random(self) -> np.random.Generator:
        """Return a fresh generator for one fit."""
        return np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))

    def make(self, k: int, spectrum: Spectrum | None, random: np.random.Generator) -> Method:
        """Return the method for `k` latents; `spectrum` is needed by ``l2="auto"`` alone."""
        settings = MethodSettings(
            self.penalties(k, spectrum), self.prefix_prior(k), random, self.tied
        )
        return make_method(self.method, settings)

    @property
    def needs_spectrum(self) -> bool:
        """Whether the penalties are chosen from the eigenvalues."""
        return self.method in ("uniform_l2", "nonuniform_l2") and isinstance(self.l2, str)

    def penalties(self, k: int, spectrum: Spectrum | None) -> np.ndarray[Any, Any]:
        """Return one penalty per latent."""
        if self.method not in ("uniform_l2", "nonuniform_l2"):
            return np.zeros(k)
        if isinstance(self.l2, str):
            if spectrum is None:
                raise ValueError("l2='auto' needs the spectrum; give penalties as numbers instead.")
            return _automatic_penalties(self.method, to_numpy(spectrum.values), k)
        penalties = np.atleast_1d(np.asarray(self.l2, dtype=float))
        if self.method == "uniform_l2" and penalties.size == 1:
            return np.full(k, penalties[0])
        if penalties.shape != (k,):
            raise ValueError(
                f"l2 has {penalties.size} penalties, expected {k}: one per latent. "
                "Use l2='auto' to have them chosen."
            )
        if self.method == "uniform_l2" and np.ptp(penalties) > 0:
            raise ValueError("l2 must be one number for method='uniform_l2'.")
        return penalties

    def prefix_prior(self, k: int) -> np.ndarray[Any, Any]:
        """Return the probabilities of the prefix lengths 1 … k."""
        if isinstance(self.prior, str):
            return geometric_prior(k) if self.prior == "geometric" else uniform_prior(k)
        if self.prior.shape != (k,):
            raise ValueError(
                f"prior has {self.prior.size} probabilities, expected {k}: one per prefix length."
            )
        return np.asarray(self.prior / self.prior.sum())


def _automatic_penalties(method: str, values: Any, k: int) -> np.ndarray[Any, Any]:
    if method == "nonuniform_l2":
        return best_penalties(values, k)
    # Both eigenvalues of a scaling block, 4λ and 4(σ²−λ), are equal for the weakest latent.
    return np.full(k, max(float(values[min(k, len(values)) - 1]), 1e-12 * float(values[0])) / 2)


def _check_components(value: Any) -> Any:
    if value is None or (isinstance(value, float | np.floating) and 0.0 < value < 1.0):
        return value
    if isinstance(value, float | np.floating):
        raise ValueError(
            f"n_components={value!r} was given, expected an integer of at least 1, a share of the "
            "variance strictly between 0 and 1, or None."
        )
    return check_integer(value, "n_components", low=1)


def _check_training(estimator: Any, optimizer: str) -> DescentSettings:
    rate = estimator.learning_rate
    if not isinstance(rate, str) or rate != "auto":
        rate = check_number(rate, "learning_rate", low=0.0, open_low=True)
    momentum = check_number(estimator.momentum, "momentum", low=0.0, high=1.0)
    if momentum == 1.0:
        raise ValueError("momentum=1.0 was given, expected a number in [0, 1).")
    return DescentSettings(
        optimizer,
        rate,
        momentum,
        check_integer(estimator.max_iter, "max_iter", low=1),
        check_number(estimator.tol, "tol", low=0.0),
        bool(estimator.verbose),
    )


def _check_penalty(value: Any) -> Any:
    if isinstance(value, str):
        return check_choice(value, "l2", ("auto",))
    penalties = _numbers(value, "l2")
    if penalties.ndim > 1 or penalties.size == 0:
        raise ValueError(f"l2 has shape {penalties.shape}, expected a number or a vector.")
    if not np.all(np.isfinite(penalties)) or np.any(penalties < 0):
        raise ValueError(f"l2={value!r} was given, expected finite penalties of at least 0.")
    return penalties


def _numbers(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return np.array(to_numpy(value), dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r} was given, expected numbers.") from error


def _check_prior(value: Any) -> Any:
    if isinstance(value, str):
        return check_choice(value, "prior", PRIORS)
    prior = _numbers(value, "prior")
    if prior.ndim != 1 or not np.all(np.isfinite(prior)) or np.any(prior < 0) or prior.sum() <= 0:
        raise ValueError(
            f"prior={value!r} was given, expected 'geometric', 'uniform' or one probability of at "
            "least 0 per prefix length."
        )
    return prior


def _check_tied(value: Any) -> bool | str:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return check_choice(value, "tied", ("auto",))
