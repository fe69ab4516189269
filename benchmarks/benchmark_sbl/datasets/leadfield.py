"""MEG lead field of a spherical head, whose columns are strongly correlated."""

from benchopt import BaseDataset

from lucidae.datasets import make_meg_leadfield, make_sparse_regression


class Dataset(BaseDataset):
    """Fields of few current dipoles in a spherical head (Sarvas 1987), with noise."""

    name = "Leadfield"
    parameters = {
        "n_sensors": [102],
        "n_sources": [500],
        "r": [5],
        "n": [50],
        "snr_db": [20],
        "seed": [0],
    }
    test_parameters = {
        "n_sensors": [30],
        "n_sources": [60],
        "r": [2],
        "n": [5],
    }

    def get_data(self):
        """Return dictionary, responses, noise variance and true columns."""
        field = make_meg_leadfield(self.n_sensors, self.n_sources, random_state=self.seed)
        data = make_sparse_regression(
            r=self.r, n=self.n, snr_db=self.snr_db, dictionary=field, random_state=self.seed
        )
        return {
            "dictionary": data.dictionary,
            "responses": data.responses,
            "noise_variance": data.noise_variance,
            "support": data.support,
        }
