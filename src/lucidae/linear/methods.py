"""The table of methods: from a public name to its rule, its optimum and its curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.arrays import Array, largest, scalar, to_numpy, where_set, zeros_like_shape
from lucidae.io.models import saved_as
from lucidae.linear.objectives import (
    ExpectedNestedDropout,
    LinearVAE,
    NonUniformL2,
    Objective,
    Reconstruction,
)
from lucidae.linear.rules import (
    NOISE_FLOOR,
    BrockettRule,
    GeneralizedHebbianRule,
    GradientRule,
    NestedDropoutRule,
    RotationAugmentedRule,
    Rule,
    VariationalRule,
)
from lucidae.linear.spectrum import Spectrum
from lucidae.linear.weights import TiedWeights, UntiedWeights, VariationalWeights, frobenius
from lucidae.validation import check_choice

SILENT = 1e-8
"""Norm of weights that do nothing."""


@saved_as("lucidae.linear.method/1", formerly="lucidae.linear.methods:Method")
@dataclass(frozen=True, slots=True)
class Method:
    """One way of training a linear autoencoder.

    Parameters
    ----------
    name : str
        The public name.
    rule : Rule
        The direction that is followed.
    objective : Objective
        The loss whose global minimum is the method's optimum; for the rules that have none, the
        reconstruction loss, which their fixed points minimise.
    tied : bool
        Whether both layers share one array.
    """

    name: str
    rule: Rule
    objective: Objective
    tied: bool = False

    @property
    def aligns(self) -> bool:
        """Whether the theory promises individual, axis-aligned components.

        A prefix length of probability 0 leaves the latents on both sides of it free to mix.
        """
        if isinstance(self.objective, ExpectedNestedDropout):
            return bool(np.all(to_numpy(self.objective.prior) > 0))
        return self.name not in ("plain", "uniform_l2")

    @property
    def orders(self) -> bool:
        """Whether the theory promises components in order."""
        return self.aligns and self.name != "linear_vae"

    @property
    def needs_rows(self) -> bool:
        """Whether a step needs rows rather than their second moment."""
        return self.name == "nested_dropout"

    def expected(self) -> Method:
        """Return descent on the expected loss, of which a sampling rule is a noisy form."""
        return Method(self.name, GradientRule(self.objective), self.objective, self.tied)

    def start(self, encoder: Array, atoms: Array) -> Any:
        """Return first weights of the right kind from random rows."""
        if self.name == "linear_vae":
            k = encoder.shape[-2]
            zero = zeros_like_shape((*encoder.shape[:-2], k, 1), encoder)
            return VariationalWeights(encoder, atoms, zero, zero[..., :1, :])
        weights = TiedWeights(encoder) if self.tied else UntiedWeights(encoder, atoms)
        return self.rule.retract(weights)

    def curvature(self, spectrum: Spectrum) -> float:
        """Return a bound on the curvature near the optimum, from the leading eigenvalues.

        At a balanced optimum the reconstruction loss curves with 4σ₁², a penalty adds up to 4λ,
        Sanger's rule contracts with 2σ₁² and BrockettRule's with 4d₁σ₁². The ELBO curves with about
        σ₁⁴/s² in the encoder, 1/s² in the decoder and m/2 in the noise.
        """
        top = scalar(spectrum.values[0])
        if self.name == "gha":
            return 2 * top
        if isinstance(self.rule, BrockettRule):
            return 4 * top * float(np.max(self.rule.ranks))
        if isinstance(self.objective, NonUniformL2):
            return 4 * top + 4 * largest(self.objective.penalties)
        if isinstance(self.objective, LinearVAE):
            noise = self.objective.noise or spectrum.noise(spectrum.values.shape[0])
            floor = max(noise, NOISE_FLOOR)
            return 2 * max(top * (top / floor), 1.0 / floor) + spectrum.n_features / 2
        return 4 * top

    def scale(self, spectrum: Spectrum) -> float:
        """Return the size that a direction is compared with in the stopping rule.

        It is the curvature, but for the ELBO, whose stiffest curvature would hide the slow
        directions: there it is the number of features, the size of the loss itself.
        """
        if isinstance(self.objective, LinearVAE):
            return float(spectrum.n_features)
        return self.curvature(spectrum)


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """What a method is made of: penalties (k,), prefix prior (k,), a random source, tying."""

    penalties: Array
    prior: Array
    random: np.random.Generator
    tied: bool | str = "auto"

    def ties(self, default: bool) -> bool:
        """Return whether to tie; the methods differ in what "auto" means."""
        return default if self.tied == "auto" else bool(self.tied)


def _descent(name: str, objective: Objective, settings: MethodSettings) -> Method:
    return Method(name, GradientRule(objective), objective, settings.ties(False))


def _rag(settings: MethodSettings) -> Method:
    return Method("rag", RotationAugmentedRule(), Reconstruction(), settings.ties(True))


def _gha(settings: MethodSettings) -> Method:
    return Method("gha", GeneralizedHebbianRule(), Reconstruction(), settings.ties(True))


def _brockett(settings: MethodSettings) -> Method:
    ranks = brockett_ranks(len(settings.prior))
    return Method("brockett", BrockettRule(ranks), Reconstruction(), settings.ties(True))


def _plain(settings: MethodSettings) -> Method:
    return _descent("plain", Reconstruction(), settings)


def _uniform_l2(settings: MethodSettings) -> Method:
    return _descent("uniform_l2", NonUniformL2(settings.penalties), settings)


def _nonuniform_l2(settings: MethodSettings) -> Method:
    return _descent("nonuniform_l2", NonUniformL2(settings.penalties), settings)


def _nested_dropout(settings: MethodSettings) -> Method:
    rule = NestedDropoutRule(settings.prior, settings.random)
    expected = ExpectedNestedDropout(settings.prior)
    return Method("nested_dropout", rule, expected, settings.ties(False))


def _expected_nested_dropout(settings: MethodSettings) -> Method:
    expected = ExpectedNestedDropout(settings.prior)
    return _descent("expected_nested_dropout", expected, settings)


def _linear_vae(settings: MethodSettings) -> Method:
    objective = LinearVAE()
    return Method("linear_vae", VariationalRule(objective), objective, settings.ties(False))


METHODS: dict[str, Callable[[MethodSettings], Method]] = {
    "rag": _rag,
    "gha": _gha,
    "brockett": _brockett,
    "plain": _plain,
    "uniform_l2": _uniform_l2,
    "nonuniform_l2": _nonuniform_l2,
    "nested_dropout": _nested_dropout,
    "expected_nested_dropout": _expected_nested_dropout,
    "linear_vae": _linear_vae,
}


def make_method(name: str, settings: MethodSettings) -> Method:
    """Return the method `name`, refusing a tying that contradicts it."""
    method = METHODS[check_choice(name, "method", METHODS)](settings)
    if name in ("gha", "brockett") and not method.tied:
        raise ValueError(
            f"tied=False was given with method={name!r}, whose rule has one set of weights. "
            "Leave tied='auto'."
        )
    if name == "linear_vae" and method.tied:
        raise ValueError(
            "tied=True was given with method='linear_vae', whose encoder and decoder differ at "
            "the optimum. Leave tied='auto'."
        )
    return method


def check_optimizer(method: str, optimizer: str) -> None:
    """Refuse Adam for the rules, and say why."""
    if optimizer == "adam" and method in ("rag", "gha", "brockett"):
        raise ValueError(
            f"optimizer='adam' was given with method={method!r}. Adam rescales every coordinate "
            "by itself, which is no rotation of the latents: the rule loses what makes it work. "
            "Use 'nesterov', 'heavy_ball' or 'gradient_descent'."
        )


def brockett_ranks(k: int) -> np.ndarray[Any, Any]:
    """Return d = 1, …, 1/k: equally spaced, descending, positive."""
    return np.arange(k, 0, -1, dtype=float) / k


def relative_direction(method: Method, weights: Any, covariance: Any, scale: Any) -> Array:
    """Return ‖direction‖ / (scale · ‖weights‖): 0 at a fixed point, of order 1 at a start.

    UntiedWeights below `SILENT` are compared with it, so that all latents may die.
    """
    size = frobenius(weights)
    size = where_set(size, size < SILENT, SILENT)
    return frobenius(method.rule.direction(weights, covariance)) / (scale * size)
