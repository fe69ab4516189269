"""Gaussian dictionary with unit columns, few of which explain the responses."""

from benchopt import BaseDataset

from lucidae.datasets import make_sparse_regression


class Dataset(BaseDataset):
    """Problems of Wipf 2023, Appendix A, with noise."""

    name = "Simulated"
    parameters = {
        "d": [100],
        "kappa": [200, 1000],
        "r": [10],
        "n": [20, 1],
        "snr_db": [20],
        "seed": [0],
    }
    test_parameters = {"d": [20], "kappa": [40], "r": [3], "n": [1]}

    def get_data(self):
        """Return dictionary, responses, noise variance and true columns."""
        data = make_sparse_regression(
            self.d, self.kappa, self.r, self.n, snr_db=self.snr_db, random_state=self.seed
        )
        return {
            "dictionary": data.dictionary,
            "responses": data.responses,
            "noise_variance": data.noise_variance,
            "support": data.support,
        }
