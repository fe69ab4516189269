"""The loss of the VAE with its encoder (Wipf 2023, eq. 5), and the optimum over the encoder.

An independent reference in NumPy: the library works with the reduced energies of eq. 18 and 50.
"""

import numpy as np


def unreduced_loss(dictionary, responses, decoder, encoder, spread, noise):
    """Return eq. 5 for decoder weights w_x (κ,), encoder W_z (κ, d) and posterior factor S (κ, κ).

    A diagonal S gives the model of eq. 50.
    """
    rows, n_responses = responses.shape
    weighted = dictionary * decoder
    means = encoder @ responses
    posterior = spread @ spread.T
    reconstruction = ((responses - weighted @ means) ** 2).sum() / noise
    uncertainty = ((weighted @ spread) ** 2).sum() / noise
    _, log_determinant = np.linalg.slogdet(posterior)
    shared = uncertainty + rows * np.log(noise) + np.trace(posterior) - log_determinant
    return reconstruction + (means**2).sum() + n_responses * shared


def optimal_encoder(dictionary, decoder, noise):
    """Return the encoder W_z that minimises eq. 5 for a given decoder (Wipf 2023, eq. 15)."""
    weighted = dictionary * decoder
    sigma = weighted @ weighted.T + noise * np.eye(len(dictionary))
    return np.linalg.solve(sigma, weighted).T


def optimal_posterior(dictionary, decoder, noise, diagonal):
    """Return the posterior covariance SSᵀ that minimises eq. 5 (Wipf 2023, appendix C.1)."""
    weighted = dictionary * decoder
    if diagonal:
        return np.diag(1.0 / (1.0 + (weighted**2).sum(axis=0) / noise))
    return np.linalg.inv(np.eye(len(decoder)) + weighted.T @ weighted / noise)
