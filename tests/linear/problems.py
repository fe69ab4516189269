"""Random problems that the tests of the linear family share."""

from dataclasses import dataclass

import numpy as np

from lucidae.linear import Spectrum, TiedWeights, UntiedWeights, VariationalWeights


@dataclass(frozen=True)
class Moment:
    """The second moment of data as objectives and rules use it."""

    matrix: np.ndarray

    @property
    def trace(self):
        """Total variance."""
        return np.trace(self.matrix)

    @property
    def n_features(self):
        """Number of features."""
        return len(self.matrix)

    def apply(self, rows):
        """Return rows times Σ."""
        return rows @ self.matrix


def orthogonal(rng, m):
    """Draw a random orthogonal matrix."""
    return np.linalg.qr(rng.standard_normal((m, m)))[0]


def spectrum_from(values, seed=0):
    """Return a spectrum with these eigenvalues and random eigenvectors."""
    values = np.asarray(values, dtype=float)
    return Spectrum(values, orthogonal(np.random.default_rng(seed), len(values)), values.sum())


def covariance_from(spectrum):
    """Return Σ as a matrix."""
    return Moment((spectrum.vectors * spectrum.values) @ spectrum.vectors.T)


def centred_rows(values, n=60, seed=0):
    """Return centred rows whose second moment has exactly these eigenvalues."""
    rng = np.random.default_rng(seed)
    values = np.asarray(values, dtype=float)
    noise = rng.standard_normal((n, len(values)))
    left = np.linalg.qr(noise - noise.mean(axis=0))[0]
    return np.sqrt(n) * (left * np.sqrt(values)) @ orthogonal(rng, len(values)).T


def free(rng, shape, scale=1.0):
    """Draw weights whose layers are free of each other."""
    return UntiedWeights(scale * rng.standard_normal(shape), scale * rng.standard_normal(shape))


def tied(rng, shape, scale=1.0):
    """Draw weights that share one array."""
    return TiedWeights(scale * rng.standard_normal(shape))


def variational(rng, shape, scale=1.0):
    """Draw the weights of a linear VAE."""
    one = (*shape[:-1], 1)
    last = (*shape[:-2], 1, 1)
    return VariationalWeights(
        *(scale * rng.standard_normal(size) for size in (shape, shape, one, last))
    )


def map_fields(function, *weights):
    """Return weights whose fields are a function of the fields of given weights."""
    return type(weights[0])(*map(function, *weights))


def size(weights):
    """Return the Frobenius norm of all fields."""
    return np.sqrt(sum(np.sum(field**2) for field in weights))


def spectra(rng, m):
    """Draw a descending spectrum: clustered, ordinary or spread over decades."""
    shape = rng.choice([0.3, 1.0, 3.0])
    return np.sort(rng.gamma(1.0, 1.0, m) ** shape + 1e-3)[::-1]
