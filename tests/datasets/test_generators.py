"""The generators give the spectra, supports and noise levels of the papers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from lucidae import datasets

SMALL = {
    "make_spectrum": {"n_samples": 30, "n_features": 5},
    "make_linear_network": {"n_samples": 30, "n_features": 4, "n_targets": 6},
    "make_sparse_regression": {"d": 10, "kappa": 20, "r": 3, "n": 4, "snr_db": 10.0},
    "make_array_snapshots": {"angles": 19, "snr_db": 5.0},
    "make_meg_leadfield": {"n_sensors": 12, "n_sources": 9, "return_geometry": True},
}


@pytest.mark.parametrize("name", SMALL)
def test_same_seed_same_data_and_another_seed_other_data(name):
    make, settings = getattr(datasets, name), SMALL[name]
    first, second = make(**settings, random_state=3), make(**settings, random_state=3)
    other = make(**settings, random_state=np.random.RandomState(4))
    for one, two in zip(first, second, strict=True):
        assert_array_equal(one, two)
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_eigenvectors_are_uniform():
    # Under the Haar measure E[q q'] = I/size for every column; signs fixed by LAPACK would break
    # the symmetry q → −q.
    rng = np.random.RandomState(0)
    samples = (datasets.make_spectrum(1, 3, random_state=rng) for _ in range(2000))
    draws = np.stack([sample.eigenvectors[:, :2] for sample in samples])
    assert_allclose(draws.mT @ draws, np.broadcast_to(np.eye(2), (2000, 2, 2)), atol=1e-12)
    assert_allclose(draws.mean(axis=0), 0, atol=0.05)
    assert_allclose(np.einsum("nik,njk->kij", draws, draws) / 2000, [np.eye(3) / 3] * 2, atol=0.03)


def test_spectrum_is_that_of_the_paper_by_default():
    sample = datasets.make_spectrum(400, 50, random_state=0)
    assert_allclose(sample.eigenvalues, np.linspace(100, 1, 50))
    assert_allclose(sample.eigenvectors.T @ sample.eigenvectors, np.eye(50), atol=1e-12)


def test_whitened_spectrum_sample_is_standard_normal():
    sample = datasets.make_spectrum(40_000, 4, eigenvalues=[1.0, 0.0, 25.0, 4.0], random_state=1)
    assert sample.eigenvalues.tolist() == [25.0, 4.0, 1.0, 0.0]
    scores = sample.data @ sample.eigenvectors
    assert_allclose(scores.T @ scores / 40_000, np.diag([25.0, 4.0, 1.0, 0.0]), atol=0.25)


def test_linear_network_has_the_spectrum_it_says_and_no_noise():
    network = datasets.make_linear_network(200, 8, 12, decay=0.3, random_state=0)
    singular_values = np.linalg.svd(network.coef, compute_uv=False)
    assert_allclose(singular_values, np.exp(-0.3 * np.arange(8)), rtol=1e-12)
    assert_allclose(network.singular_values, singular_values, rtol=1e-12)
    assert_allclose(network.target, network.data @ network.coef.T, atol=1e-12)


def test_linear_network_takes_rank_and_noise():
    network = datasets.make_linear_network(5000, 8, 6, rank=2, noise=0.5, random_state=0)
    assert np.linalg.matrix_rank(network.coef) == 2
    assert_allclose(np.std(network.target - network.data @ network.coef.T), 0.5, rtol=0.02)
    assert_allclose(np.cov(network.data.T), np.eye(8), atol=0.08)


@given(
    st.integers(0, 2**31), st.integers(0, 12), st.integers(1, 6), st.integers(1, 4), st.booleans()
)
def test_sparse_code_has_the_support_rank_and_norms_asked_for(seed, r, n, tau, jeffreys):
    scaling = "jeffreys" if jeffreys else "unit"
    problem = datasets.make_sparse_regression(
        8, 12, r, n, tau, row_scaling=scaling, spread=0.1, random_state=seed
    )
    lengths = np.linalg.norm(problem.coef, axis=0)
    assert_array_equal(np.flatnonzero(lengths), problem.support)
    assert len(problem.support) == r
    assert_allclose(np.linalg.norm(problem.dictionary, axis=0), 1)
    assert_allclose(problem.responses, problem.dictionary @ problem.coef.T, atol=1e-12)
    assert problem.noise_variance == 0.0
    if not jeffreys:
        assert_allclose(lengths[problem.support], 1)
        assert np.linalg.matrix_rank(problem.coef, tol=1e-8) <= min(r, n, tau)
    assert ((lengths == 0) | ((lengths > 0.0999) & (lengths < 10.001))).all()


def test_jeffreys_norms_have_equal_mass_in_every_decade():
    problem = datasets.make_sparse_regression(
        5, 4000, 4000, 2, 2, row_scaling="jeffreys", random_state=0
    )
    decades = np.floor(np.log10(np.linalg.norm(problem.coef, axis=0)))
    values, counts = np.unique(decades, return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1]
    assert_allclose(counts / 4000, 0.25, atol=0.03)


@pytest.mark.parametrize("snr_db", [0.0, 20.0, -10.0])
def test_noise_has_the_variance_that_the_ratio_asks_for(snr_db):
    problem = datasets.make_sparse_regression(n=500, snr_db=snr_db, random_state=0)
    clean = problem.dictionary @ problem.coef.T
    noise = problem.responses - clean
    assert_allclose(10 * np.log10(np.mean(clean**2) / problem.noise_variance), snr_db, atol=1e-9)
    assert_allclose(np.mean(noise**2), problem.noise_variance, rtol=0.02)


def test_given_dictionary_is_used_as_it_is():
    Phi = 3.0 * np.eye(6, 9)
    problem = datasets.make_sparse_regression(r=2, dictionary=Phi, random_state=0)
    assert_array_equal(problem.dictionary, Phi)
    assert problem.coef.shape == (20, 9)
    assert not np.shares_memory(problem.dictionary, Phi)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("make_spectrum", {"n_samples": 0}, "n_samples=.* was given, expected an integer"),
        ("make_spectrum", {"n_features": 2.5}, "n_features=.* was given, expected an integer"),
        ("make_spectrum", {"n_features": True}, "n_features=.* was given, expected an integer"),
        ("make_spectrum", {"n_features": 2, "eigenvalues": [1.0]}, "eigenvalues must have shape"),
        ("make_spectrum", {"n_features": 1, "eigenvalues": [-1.0]}, "must be at least 0"),
        ("make_spectrum", {"n_features": 1, "eigenvalues": [np.nan]}, "NaN or infinite"),
        ("make_spectrum", {"n_features": 1, "eigenvalues": ["one"]}, "array of real numbers"),
        ("make_linear_network", {"rank": 81}, r"rank=\d+ was given, .* 80\]"),
        ("make_linear_network", {"decay": -0.1}, "decay=-0.1 was given"),
        ("make_linear_network", {"noise": np.inf}, "noise=.* was given, expected a"),
        ("make_sparse_regression", {"r": 201}, r"r=\d+ was given, .* 200\]"),
        ("make_sparse_regression", {"r": 2, "kappa": 1}, r"\[0, 1\], because kappa=1 is"),
        ("make_sparse_regression", {"r": -1}, "r=-1 was given, expected an integer"),
        ("make_sparse_regression", {"tau": 0}, "tau=.* was given, expected an integer"),
        ("make_sparse_regression", {"spread": 0.0}, "spread=.* was given, expected a"),
        ("make_sparse_regression", {"row_scaling": "flat"}, "row_scaling=.* expected one of"),
        ("make_sparse_regression", {"snr_db": "20"}, "snr_db=.* was given, expected a"),
        ("make_sparse_regression", {"r": 0, "snr_db": 20.0}, "the signal is zero"),
        ("make_sparse_regression", {"dictionary": [1.0, 2.0]}, "dictionary must have shape"),
        ("make_meg_leadfield", {"n_sensors": 0}, "n_sensors=.* was given, expected an integer"),
        ("make_meg_leadfield", {"n_sources": -3}, "n_sources=.* was given, expected an integer"),
        (
            "make_meg_leadfield",
            {"sources": [[0.0, 0.0, 0.0]]},
            "centre of the sphere produces no field",
        ),
        ("make_meg_leadfield", {"sources": [[0.0, 0.0, 0.2]]}, "nearer to the centre"),
        ("make_meg_leadfield", {"sensors": 7}, "must be a pair"),
        (
            "make_meg_leadfield",
            {"normalize": "False"},
            "normalize='False' was given, expected True",
        ),
        (
            "make_meg_leadfield",
            {"return_geometry": 1},
            "return_geometry=1 was given, expected True",
        ),
        (
            "make_meg_leadfield",
            {"random_state": "x"},
            "random_state='x' was given, expected an int",
        ),
        ("make_meg_leadfield", {"sources": [[1e-165, 0.0, 0.0]]}, "produces no field"),
        (
            "make_meg_leadfield",
            {"sensors": ([[0, 0, 1e200]], [[0, 0, 1]]), "n_sources": 2},
            "too large or too small for float64",
        ),
        ("make_sparse_regression", {"snr_db": -4000}, r"makes the noise variance 10\^39\d"),
        ("make_sparse_regression", {"snr_db": 4000}, r"from 1e-300 to 1e300"),
        ("make_sparse_regression", {"snr_db": 1j}, "snr_db=1j was given, expected a finite number"),
        ("make_sparse_regression", {"snr_db": np.nan}, "snr_db=nan was given"),
        ("make_sparse_regression", {"random_state": 1.5}, "random_state=1.5 was given"),
        ("make_sparse_regression", {"dictionary": np.eye(3) * 1j}, "array of real numbers"),
        ("make_sparse_regression", {"dictionary": np.eye(3).astype(str)}, "array of real numbers"),
        ("make_sparse_regression", {"dictionary": np.zeros((3, 20)), "snr_db": 1}, "signal is"),
        (
            "make_sparse_regression",
            {"dictionary": np.full((3, 20), 1e308), "r": 20, "n": 1, "random_state": 0},
            "the responses would exceed the range of float64",
        ),
        (
            "make_sparse_regression",
            {"dictionary": np.full((3, 20), 1e200), "snr_db": 0},
            "noise variance",
        ),
        ("make_linear_network", {"noise": 1e308}, "target would exceed the range of float64"),
        ("make_spectrum", {"random_state": -1}, "random_state=-1 was given"),
        ("make_spectrum", {"n_features": 2, "eigenvalues": [1j, 2]}, "array of real numbers"),
        ("load_digits", {"return_X_y": "no"}, "return_X_y='no' was given, expected True or False"),
        ("load_mnist", {"return_X_y": 0}, "return_X_y=0 was given, expected True or False"),
        ("make_meg_leadfield", {"sensors": ([[0, 0, 1]], [[0, 0, 2]])}, "length one"),
    ],
)
def test_bad_settings_are_refused_in_a_clear_sentence(name, settings, words):
    with pytest.raises(ValueError, match=words):
        getattr(datasets, name)(**settings)


def test_sparse_code_has_exactly_rank_tau():
    problem = datasets.make_sparse_regression(r=30, n=20, tau=3, random_state=0)
    assert np.linalg.matrix_rank(problem.coef) == 3
    assert problem.dictionary.shape == (100, 200)
