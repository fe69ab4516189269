"""The methods as the tests know them: losses from their definitions, minima by search, distances.

Nothing here comes from the package: it is what its certificates are compared with. Every method of
the package has an entry of `CASES`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.optimize

VALUES = np.array([4.0, 2.5, 1.0, 0.4, 0.1])
"""Eigenvalues of the second moment in the problem with known minima, which has K latents."""
K = 2


def misfit(encoder, decoder, covariance):
    """Return the mean squared error of the reconstruction."""
    residual = np.eye(len(decoder)) - decoder @ encoder
    return np.trace(residual @ covariance @ residual.T)


def penalised(encoder, decoder, covariance, l2):
    """Return the misfit plus one penalty per latent on both layers."""
    squares = np.sum(encoder**2, axis=1) + np.sum(decoder**2, axis=0)
    return misfit(encoder, decoder, covariance) + l2 @ squares


def nested(encoder, decoder, covariance, prior):
    """Return the mean of the misfits of the first b latents."""
    parts = (misfit(encoder[:b], decoder[:, :b], covariance) for b in range(1, len(encoder) + 1))
    return sum(p * part for p, part in zip(prior, parts, strict=True))


def negative_elbo(encoder, decoder, covariance, noise):
    """Return −ELBO per row of a linear VAE, with the posterior variances at their optimum."""
    m, k = decoder.shape
    power = np.sum(decoder**2, axis=0)
    variances = noise / (power + noise)
    spread = (misfit(encoder, decoder, covariance) + variances @ power) / noise
    code = np.trace(encoder @ covariance @ encoder.T) + np.sum(variances - np.log(variances))
    return (m * np.log(2 * np.pi * noise) + spread + code - k) / 2


@dataclass(frozen=True)
class Case:
    """One method."""

    minimum: float  # the smallest loss for K latents and a second moment with eigenvalues VALUES
    loss: Callable[..., float] = misfit  # of encoder, decoder, second moment and `constants`
    arguments: dict = field(default_factory=dict)  # of LinearAutoencoder in the problem, if any
    constants: dict = field(default_factory=dict)  # of the loss in the problem, if any
    aligned: bool = True  # whether each latent finds a principal axis, not only their span
    ordered: bool = True  # whether latents in another order are noticed
    balanced: bool = True  # whether W₁W₁ᵀ = W₂ᵀW₂ at the optimum
    unit_free: bool = True  # whether rows in other units have the same components


RULE = Case(1.5)
NESTED = Case(1.75, nested, constants={"prior": np.array([0.1, 0.9])}, balanced=False)
CASES = {
    "rag": RULE,
    "gha": RULE,
    "brockett": RULE,
    "plain": Case(1.5, aligned=False, ordered=False, balanced=False),
    "uniform_l2": Case(
        2.274, penalised, {"l2": 0.2}, {"l2": np.array([0.2, 0.2])}, aligned=False, ordered=False
    ),
    "nonuniform_l2": Case(2.2615, penalised, {"l2": [0.1, 0.3]}, {"l2": np.array([0.1, 0.3])}),
    "nested_dropout": NESTED,
    "expected_nested_dropout": NESTED,
    "linear_vae": Case(
        7.206264441680468, negative_elbo, constants={"noise": 0.5}, ordered=False, balanced=False
    ),
}
METHODS = tuple(name for name in CASES if name != "nested_dropout")
"""The methods whose optima differ, or whose update rules do."""
ALIGNED = tuple(name for name in METHODS if CASES[name].aligned)


def loss(method, encoder, decoder, covariance, **constants):
    """Return the loss of a method; the posterior variances of a linear VAE are at their optimum."""
    return CASES[method].loss(encoder, decoder, covariance, **constants)


def second_moment(X):
    """Return Σ by NumPy."""
    centred = X - X.mean(axis=0)
    return centred.T @ centred / len(X)


def minimum(method, covariance, k, starts=6, **settings):
    """Return the smallest loss that a search from several starts finds."""
    m = len(covariance)

    def value(vector):
        encoder, decoder = vector[: k * m].reshape(k, m), vector[k * m : 2 * k * m].reshape(m, k)
        noise = {"noise": float(np.exp(vector[-1]))} if method == "linear_vae" else {}
        return loss(method, encoder, decoder, covariance, **settings, **noise)

    rng = np.random.default_rng(0)
    found = [
        scipy.optimize.minimize(
            value,
            0.5 * rng.standard_normal(2 * k * m + 1),
            method="L-BFGS-B",
            options={"maxiter": 3000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9},
        ).fun
        for _ in range(starts)
    ]
    return min(found)


def distances(decoder, X):
    """Return the subspace distance, the misalignment per axis and the singular values of the rows.

    The principal axes come from a singular value decomposition of the centred rows.
    """
    k = decoder.shape[1]
    _, singular, right = np.linalg.svd((X - X.mean(axis=0)).astype(float), full_matrices=True)
    axes = right[:k].T
    lengths = np.linalg.norm(decoder, axis=0)
    units = decoder[:, lengths > 1e-6 * lengths.max()]
    units = units / np.linalg.norm(units, axis=0)
    left, sizes, _ = np.linalg.svd(decoder, full_matrices=False)
    span = left[:, sizes > max(1e-6 * sizes[0], 1e-300)]
    subspace = 1 - np.sum((axes.T @ span) ** 2) / k
    return subspace, 1 - np.max((axes.T @ units) ** 2, axis=1, initial=0.0), singular
