"""ARDRegression of scikit-learn, for one response, with its noise variance held fixed."""

import warnings

import numpy as np
from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ARDRegression

STRENGTH = 1e12
"""Weight of the prior that holds the noise precision at 1/γ."""


class Solver(BaseSolver):
    """Automatic relevance determination (MacKay 1992) for one response.

    ARDRegression learns the noise precision under a Gamma prior; here the prior is so narrow that
    the precision stays at 1/γ. The prior of the relevances is flat, as in the objective.
    """

    name = "ARDRegression"
    sampling_strategy = "iteration"
    requirements = ["scikit-learn"]

    def skip(self, dictionary, responses, noise_variance):  # noqa: ARG002
        """Skip problems with several responses, which ARDRegression cannot solve jointly."""
        if responses.shape[1] > 1:
            return True, f"ARDRegression takes one response, and there are {responses.shape[1]}"
        return False, None

    def set_objective(self, dictionary, responses, noise_variance):
        """Store the problem."""
        self.dictionary, self.response = dictionary, responses[:, 0]
        self.noise_variance = noise_variance

    def run(self, n_iter):
        """Fit with at most `n_iter` iterations."""
        self.relevance = np.zeros(self.dictionary.shape[1])
        if n_iter == 0:
            return
        # Columns whose prior power is below 1e-8 of the power of the response are dropped.
        smallest = 1e-8 * np.mean(self.response**2) * len(self.response)
        model = ARDRegression(
            max_iter=n_iter,
            tol=0.0,
            alpha_1=STRENGTH,
            alpha_2=STRENGTH * self.noise_variance,
            lambda_1=0.0,
            lambda_2=1e-16 * smallest,
            threshold_lambda=1.0 / smallest,
            fit_intercept=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(self.dictionary, self.response)
        kept = model.lambda_ < model.threshold_lambda
        self.relevance[kept] = 1.0 / model.lambda_[kept]

    def get_result(self):
        """Return the relevances."""
        return {"relevance": self.relevance}
