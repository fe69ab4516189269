"""SparseVAE of lucidae: fixed-point updates, then exact coordinate moves and Newton steps."""

import warnings

import numpy as np
from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning

from lucidae import SparseVAE


class Solver(BaseSolver):
    """The estimator with a given noise variance and a growing limit of iterations."""

    name = "SparseVAE"
    sampling_strategy = "iteration"
    parameters = {"solver": ["auto"]}

    def set_objective(self, dictionary, responses, noise_variance):
        """Store the problem."""
        self.dictionary, self.responses = dictionary, responses
        self.noise_variance = noise_variance

    def run(self, n_iter):
        """Fit with at most `n_iter` iterations; 0 is the model without columns."""
        self.relevance = np.zeros(self.dictionary.shape[1])
        if n_iter == 0:
            return
        model = SparseVAE(
            noise_variance=self.noise_variance,
            solver=self.solver,
            fit_intercept=False,
            max_iter=n_iter,
            tol=1e-10,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.relevance = model.fit(self.dictionary, self.responses).relevance_

    def get_result(self):
        """Return the relevances."""
        return {"relevance": self.relevance}
