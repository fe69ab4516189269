"""The objective: the energy of sparse Bayesian learning at a given noise variance."""

import numpy as np
from benchmark_utils.energy import energy, selected, support_f1
from benchopt import BaseObjective


class Objective(BaseObjective):
    """Energy tr(XXᵀΣ⁻¹)/n + log|Σ| with Σ = Φ diag(w) Φᵀ + γI, over relevances w ≥ 0.

    Φ is the dictionary, X are n responses and γ is the noise variance. The energy is not convex;
    a solver may end in a poorer minimum than another one.
    """

    name = "Sparse Bayesian learning"
    min_benchopt_version = "1.6"
    requirements = ["scipy"]
    parameters = {"noise_factor": [1]}

    def set_data(self, dictionary, responses, noise_variance, support=None):
        """Store the data; γ is the noise variance of the data set times `noise_factor`."""
        self.dictionary, self.responses, self.support = dictionary, responses, support
        self.noise_variance = self.noise_factor * noise_variance

    def get_objective(self):
        """Return what solvers are given."""
        return {
            "dictionary": self.dictionary,
            "responses": self.responses,
            "noise_variance": self.noise_variance,
        }

    def evaluate_result(self, relevance):
        """Return the energy and, where the true columns are known, the F1 score of the support."""
        figures = {
            "value": energy(self.dictionary, self.responses, relevance, self.noise_variance),
        }
        found = selected(self.dictionary, relevance, self.noise_variance)
        figures["n_columns"] = len(found)
        if self.support is not None:
            figures["support_f1"] = support_f1(found, self.support)
        return figures

    def get_one_result(self):
        """Return a result of the right form: no column is used."""
        return {"relevance": np.zeros(self.dictionary.shape[1])}
