"""Losses of linear autoencoders from rows, their minima by multi-start search, and true distances.

Nothing here comes from the package: it is what its certificates are compared with.
"""

import numpy as np
import scipy.optimize

METHODS = (
    "rag",
    "gha",
    "brockett",
    "plain",
    "uniform_l2",
    "nonuniform_l2",
    "expected_nested_dropout",
    "linear_vae",
)
ALIGNED = tuple(method for method in METHODS if method not in ("plain", "uniform_l2"))
"""Methods whose latents find the principal axes, and not only the subspace."""


def second_moment(X):
    """Return Σ by NumPy."""
    centred = X - X.mean(axis=0)
    return centred.T @ centred / len(X)


def loss(method, encoder, decoder, covariance, *, l2=None, prior=None, noise=None):
    """Return the loss of a method; the posterior variances of a linear VAE are at their optimum."""
    m, k = decoder.shape

    def misfit(b):
        residual = np.eye(m) - decoder[:, :b] @ encoder[:b]
        return np.trace(residual @ covariance @ residual.T)

    if method == "expected_nested_dropout":
        return sum(p * misfit(b) for b, p in enumerate(prior, start=1))
    if method in ("uniform_l2", "nonuniform_l2"):
        return misfit(k) + l2 @ (np.sum(encoder**2, axis=1) + np.sum(decoder**2, axis=0))
    if method == "linear_vae":
        power = np.sum(decoder**2, axis=0)
        variances = noise / (power + noise)
        spread = (misfit(k) + variances @ power) / noise
        code = np.trace(encoder @ covariance @ encoder.T) + np.sum(variances - np.log(variances))
        return (m * np.log(2 * np.pi * noise) + spread + code - k) / 2
    return misfit(k)


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
