"""Certificates of fits to rows with missing entries, from parameters and rows alone.

No code is shared with the solver. A row x has the covariance C = WWᵀ + γI with loadings W (m × k)
and noise variance γ, restricted to its observed entries o. With G = W_oᵀW_o + γI (k × k),
Woodbury's identity gives a = C_oo⁻¹(x − μ)_o = ((x − μ)_o − W_o G⁻¹W_oᵀ(x − μ)_o)/γ, from which the
likelihood and its derivatives follow row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from lucidae.arrays import as_double, to_numpy
from lucidae.certificates.bounds import TINY, Ball, gamma
from lucidae.certificates.rows import Data, GivenRows
from lucidae.linear.verify import DENSE_FEATURES

__all__ = ["ObservedFigures", "Parameters", "data_of_parameters", "observed_figures"]

Vector = np.ndarray[Any, Any]

# Largest number of entries of matrices that are in memory at a time.
BLOCK_ENTRIES = 2**21

# Largest number of features for which all pairs observed together are determined.
PAIRED_FEATURES = 8192

# Share of the rows with either of two features below which they hardly count as observed together:
# their covariance then has three times the standard error of the others, or more.
FEW_ROWS = 0.1

# Ratio of noise to mean variance below which the noise tends to zero: there is no maximum.
NO_NOISE = 1e-11


class Parameters(NamedTuple):
    """Parameters of probabilistic PCA with m features and k latents, as arrays of NumPy."""

    mean: Vector  # (m,)
    loadings: Vector  # (m, k)
    noise: float

    @property
    def variances(self) -> Vector:
        """Variance of each feature, (m,)."""
        return np.asarray(np.sum(self.loadings**2, axis=1) + self.noise)


def data_of_parameters(model: Parameters, weight: float, X: Any, weights: Any) -> Data:
    """Return the covariance WWᵀ + γI in the form that the verifier uses.

    Rows X with missing entries, if they are known, are filled with the expectations
    μ + WG⁻¹W_oᵀ(x − μ)_o to find those of large influence.
    """
    m, trace = len(model.mean), float(np.sum(model.variances))

    def product(vectors: Vector) -> Vector:
        return np.asarray((vectors @ model.loadings) @ model.loadings.T + model.noise * vectors)

    filled = None
    if X is not None:
        rows = to_numpy(as_double(X)).copy()
        for part, mask, rest, inverse in _posteriors(model, rows, 0):
            codes = np.einsum("nab,nb->na", inverse, rest @ model.loadings)
            guess = model.mean + codes @ model.loadings.T
            rows[part] = np.where(mask > 0.0, rows[part], guess)
        filled = GivenRows(rows, weights)
    return Data(
        model.mean,
        Ball(0.0 * model.mean, 0.0 * model.mean),
        model.variances,
        product,
        gamma(m) * trace,
        weight,
        product(np.eye(m)) if m <= DENSE_FEATURES else None,
        filled=filled,
        origin="given",
    )


def _posteriors(
    model: Parameters, rows: Vector, width: int
) -> Iterator[tuple[slice, Vector, Vector, Vector]]:
    """Yield slices of the rows, the mask of their observed entries, (x − μ)_o and G⁻¹.

    `width` is the number of entries that the caller computes for each row.
    """
    m, k = model.loadings.shape
    outer = np.einsum("ja,jb->jab", model.loadings, model.loadings).reshape(m, -1)
    size = max(1, BLOCK_ENTRIES // max(k * k, m, width))
    for start in range(0, len(rows), size):
        part = slice(start, min(start + size, len(rows)))
        seen = ~np.isnan(rows[part])
        rest = np.where(seen, rows[part] - model.mean, 0.0)
        G = (seen.astype(float) @ outer).reshape(-1, k, k) + model.noise * np.eye(k)
        yield part, seen.astype(float), rest, np.linalg.inv(G)


def likelihood_of(model: Parameters, rows: Vector, mass: Vector) -> tuple[float, float]:
    """Return the log-likelihood ℓ of rows with weights `mass`, and the size of its gradient.

    ∂ℓ/∂w for the loadings w of feature j is the sum of aⱼaᵀW − wᵀG⁻¹, because C_oo⁻¹W_o = W_oG⁻¹;
    ∂ℓ/∂γ is half the sum of ‖a‖² − tr C_oo⁻¹. The size √(γ‖∂ℓ/∂(W, μ)‖² + (2/m)(γ ∂ℓ/∂γ)²) does not
    depend on units.
    """
    (W, noise), (m, k) = (model.loadings, model.noise), model.loadings.shape
    value, on_loadings, on_mean, on_noise = 0.0, np.zeros((m, k)), np.zeros(m), 0.0
    for part, mask, rest, inverse in _posteriors(model, rows, 0):
        weight = mass[part]
        codes = np.einsum("nab,nb->na", inverse, rest @ W)
        a = (rest - mask * (codes @ W.T)) / noise
        through = mask.T @ (inverse * weight[:, None, None]).reshape(-1, k * k)
        on_loadings += (a * weight[:, None]).T @ (a @ W)
        on_loadings -= np.einsum("jab,jb->ja", through.reshape(m, k, k), W)
        count = mask.sum(axis=1)
        traces = (count - k + noise * np.trace(inverse, axis1=1, axis2=2)) / noise
        log_det = (count - k) * math.log(noise) - np.linalg.slogdet(inverse)[1]
        misfit = np.sum(a * rest, axis=1)
        value -= float(weight @ (misfit + log_det + count * math.log(2 * math.pi))) / 2
        on_noise += float(weight @ (np.sum(a**2, axis=1) - traces)) / 2
        on_mean += weight @ a
    squares = float(np.sum(on_loadings**2) + np.sum(on_mean**2))
    return value, math.sqrt(noise * squares + 2 / m * (noise * on_noise) ** 2)


def _lost(model: Parameters, rows: Vector, mass: Vector, encoder: Vector) -> Vector:
    """Return the variance of each code given the observed entries, divided by its variance, (k,).

    With the missing entries u of a row, the encoder E and B = E_uW_u, the covariance of the codes
    is γ(BG⁻¹Bᵀ + E_uE_uᵀ). The result is the mean over the rows.
    """
    W, noise, (k, m) = model.loadings, model.noise, encoder.shape
    mixed = np.einsum("ij,jb->jib", encoder, W).reshape(m, -1)
    left = np.zeros(k)
    for part, mask, _, inverse in _posteriors(model, rows, mixed.shape[1]):
        B = ((1.0 - mask) @ mixed).reshape(-1, k, W.shape[1])
        spread = np.einsum("nia,nab,nib->ni", B, inverse, B) + (1.0 - mask) @ (encoder**2).T
        left += noise * (mass[part] @ spread)
    variances = np.sum((encoder @ W) ** 2, axis=1) + noise * np.sum(encoder**2, axis=1)
    return np.asarray(left / np.sum(mass) / np.maximum(variances, TINY))


class ObservedFigures(NamedTuple):
    """What the rows with missing entries say of the parameters; None if they were not stored."""

    gradient: Ball | None  # norm of the gradient of the log-likelihood per row
    noiseless: bool  # whether the noise tends to zero, so that the likelihood has no maximum
    pairs: Vector | None  # (p, 2): features that were hardly ever observed together, if examined
    apart: bool  # whether groups of features were never observed together
    lost: Vector | None  # (k,): share of the variance of each code that is undetermined
    evidence: dict[str, Any]
    converged: bool


def observed_figures(
    model: Parameters, encoder: Vector, X: Any, weights: Any, converged: bool
) -> ObservedFigures:
    """Measure parameters on rows X with missing entries, or None if they were not stored."""
    evidence: dict[str, Any] = {"noise_variance": model.noise}
    noiseless = model.noise <= NO_NOISE * float(np.mean(model.variances))
    if X is None:
        return ObservedFigures(None, noiseless, None, False, None, evidence, converged)
    rows = to_numpy(as_double(X))
    mass = np.ones(len(rows)) if weights is None else to_numpy(weights)
    used = (mass > 0.0) & ~np.all(np.isnan(rows), axis=1)
    rows, mass = rows[used], mass[used]
    seen, total = ~np.isnan(rows), float(np.sum(mass))
    value, size = likelihood_of(model, rows, mass)
    # The relative error of G⁻¹ is its condition number times the machine epsilon.
    top = float(np.max(np.sum(model.loadings**2, axis=0), initial=0.0))
    error = gamma(8 * len(model.mean)) * (1.0 + top / model.noise)
    gradient = Ball(math.inf if math.isnan(size) else size / total, error)
    pairs = never = None
    apart = False
    if rows.shape[1] <= PAIRED_FEATURES:
        together = seen.astype(np.float32)
        count = (together.T @ together).astype(float)
        most = np.max(count - np.diag(np.diag(count)), axis=1)
        hardly = (count < 0.5) | (count < FEW_ROWS * np.minimum.outer(most, most))
        pairs = np.argwhere(np.triu(hardly, 1))
        never = pairs[count[tuple(pairs.T)] < 0.5]
        apart = connected_components(count > 0.5, directed=False)[0] > 1
    lost = _lost(model, rows, mass, encoder)
    evidence |= {
        "log_likelihood": value,
        "missing_share": 1.0 - float(mass @ seen.mean(axis=1)) / total,
        "n_patterns": len(np.unique(np.packbits(seen, axis=1), axis=0)),
        "never_observed_together": never,
        "lost_code_variance": lost,
    }
    return ObservedFigures(gradient, noiseless, pairs, apart, lost, evidence, converged)
