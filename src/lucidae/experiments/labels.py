"""Names of methods and optimizers, the same in figures, claims and tables."""

from __future__ import annotations

__all__ = ["NAMES", "label"]

NAMES = {
    "uniform_l2": "uniform ℓ₂",
    "nonuniform_l2": "non-uniform ℓ₂",
    "rag": "RAG",
    "nested_dropout": "nested dropout",
    "expected_nested_dropout": "expected nested dropout",
    "linear_vae": "linear VAE",
    "full": "full VAE",
    "diagonal": "diagonal VAE",
    "autoencoder": "autoencoder",
    "group lasso": "group lasso",
}
"""Name of each method in the legends of plots, by its name in the settings of a run."""


def label(method: str, optimizer: str) -> str:
    """Return the name of a method that is trained with an optimizer.

    Examples
    --------
    >>> label("rag", "nesterov")
    'RAG, Nesterov'
    """
    return f"{NAMES[method]}, {optimizer.capitalize()}"
