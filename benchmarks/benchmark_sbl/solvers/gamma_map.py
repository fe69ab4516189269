"""gamma_map of MNE-Python (Wipf & Nagarajan 2009), at a growing number of its own iterations."""

import warnings

import numpy as np
from benchopt import BaseSolver
from mne.inverse_sparse._gamma_map import _gamma_map_opt


class Solver(BaseSolver):
    """The iteration behind ``mne.inverse_sparse.gamma_map``.

    It returns coefficients and not relevances. The relevances are those of which the coefficients
    are the posterior mean; they are exact at a fixed point, and approximate before.
    """

    name = "gamma_map"
    sampling_strategy = "iteration"
    requirements = ["pip::mne"]
    parameters = {"update_mode": [1, 2]}

    def set_objective(self, dictionary, responses, noise_variance):
        """Store the problem."""
        self.dictionary, self.responses = dictionary, responses
        self.noise_variance = noise_variance

    def run(self, n_iter):
        """Make `n_iter` iterations."""
        self.coef = np.zeros((self.dictionary.shape[1], self.responses.shape[1]))
        if n_iter == 0:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that the limit was reached, as it should
            rows, active = _gamma_map_opt(
                self.responses,
                self.dictionary,
                self.noise_variance,
                maxit=n_iter,
                tol=0.0,
                update_mode=self.update_mode,
                verbose=False,
            )
        self.coef[active] = rows

    def get_result(self):
        """Return the relevances of which the coefficients are the posterior mean.

        A posterior mean U satisfies X − ΦU = γΣ⁻¹X and uⱼ = wⱼφⱼᵀΣ⁻¹X.
        """
        slopes = self.dictionary.T @ (self.responses - self.dictionary @ self.coef)
        lengths, norms = (np.linalg.norm(rows, axis=1) for rows in (slopes, self.coef))
        return {"relevance": self.noise_variance * norms / np.where(norms > 0, lengths, 1.0)}
