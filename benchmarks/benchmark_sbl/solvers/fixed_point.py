"""The fixed-point updates of sparse Bayesian learning in a few lines of NumPy, as a reference.

With a = ‖φᵀΣ⁻¹X‖²/n and c = φᵀΣ⁻¹φ for a column φ, the relevance w of the column becomes

* MM (Wipf & Nagarajan 2010): w √(a/c), which never raises the energy;
* EM (Dempster et al. 1977): w + w²(a − c), which never raises the energy either;
* MacKay (MacKay 1992): w a/c, which often is faster, but without a guarantee.
"""

import numpy as np
from benchopt import BaseSolver
from scipy.linalg import cho_factor, cho_solve

UPDATES = {
    "mm": lambda w, a, c: w * np.sqrt(a / c),
    "em": lambda w, a, c: w + w * w * (a - c),
    "mackay": lambda w, a, c: w * a / c,
}


class Solver(BaseSolver):
    """Repeated updates of all relevances from equal ones."""

    name = "fixed-point"
    sampling_strategy = "iteration"
    requirements = ["scipy"]
    parameters = {"update": list(UPDATES)}

    def set_objective(self, dictionary, responses, noise_variance):
        """Store the problem, and the relevances that explain the power of the responses."""
        self.dictionary, self.responses = dictionary, responses
        self.noise_variance = noise_variance
        power = np.mean(responses**2) * len(dictionary)
        self.start = np.full(dictionary.shape[1], power / np.sum(dictionary**2))

    def run(self, n_iter):
        """Make `n_iter` updates."""
        update, X, n = UPDATES[self.update], self.responses, self.responses.shape[1]
        self.relevance = np.zeros(self.dictionary.shape[1])
        if n_iter == 0:
            return
        used, columns, w = np.arange(len(self.start)), self.dictionary, self.start.copy()
        for _ in range(n_iter):
            kept = w > np.finfo(float).tiny  # a relevance that is zero stays zero
            if not kept.all():
                used, columns, w = used[kept], columns[:, kept], w[kept]
            sigma = (columns * w) @ columns.T
            sigma.flat[:: len(sigma) + 1] += self.noise_variance
            weighted = cho_solve(cho_factor(sigma, lower=True), columns)
            a = np.sum((weighted.T @ X) ** 2, axis=1) / n
            w = update(w, a, np.sum(columns * weighted, axis=0))
        self.relevance[used] = w

    def get_result(self):
        """Return the relevances."""
        return {"relevance": self.relevance}
