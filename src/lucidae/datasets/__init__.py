"""Datasets: tables in files, handwritten digits, and generators of the papers' synthetic data.

The papers are Bao et al. 2020, Mianjy et al. 2018 and Wipf 2023. Another generator draws snapshots
of arrays of sensors, whose sources are found by sparse regression.
"""

from lucidae.datasets._generators import (
    make_linear_network,
    make_sparse_regression,
    make_spectrum,
)
from lucidae.datasets._loaders import data_home, fetch_mnist, load_digits, load_mnist, read_table
from lucidae.datasets._sensors import make_array_snapshots, make_meg_leadfield

__all__ = [
    "data_home",
    "fetch_mnist",
    "load_digits",
    "load_mnist",
    "make_array_snapshots",
    "make_linear_network",
    "make_meg_leadfield",
    "make_sparse_regression",
    "make_spectrum",
    "read_table",
]
