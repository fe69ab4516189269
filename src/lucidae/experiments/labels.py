"""Names of methods and optimizers as plots, claims and tables print them."""

from __future__ import annotations

__all__ = ["NAMES", "label"]

NAMES = {
    "uniform_l2": "uniform ℓ₂",
    "nonuniform_l2": "non-uniform ℓ₂",
    "rag": "RAG",
    "nested_dropout": "nested dropout",
    "expected_nested_dropout": "expected nested dropout",
    "linear_vae": "linear VAE",
    "full": "full-covariance VAE",
    "diagonal": "diagonal-covariance VAE",
    "autoencoder": "autoencoder",
    "group lasso": "group lasso",
    "music": "MUSIC",
    "beamforming": "conventional beamforming",
    "mle": "Minka's evidence",
    "parallel_analysis": "parallel analysis",
    "hard_threshold": "hard threshold",
    "known_noise": "hard threshold, known noise",
    "horn": "Horn's procedure",
    "share": "95 % of the variance",
}
"""Name of each method in the legends of plots, by its name in the settings of a run."""


def label(method: str, optimizer: str) -> str:
    """Return the printed name of a method together with that of its optimizer.

    Examples
    --------
    >>> label("rag", "nesterov")
    'RAG, Nesterov'
    """
    return f"{NAMES[method]}, {optimizer.capitalize()}"
