"""Eigenpairs beside a dominant eigenvalue, as exact as by singular values of the rows."""

from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA

from known_spectra import rows_with
from lucidae import LinearAutoencoder, load, save
from lucidae.moments import SecondMoment
from lucidae.rows.deflation import (
    ALLOWED,
    ALLOWED_DOUBLE,
    CLOSE,
    COPIED_ENTRIES,
    accurate_pairs,
    refined_spectrum,
)
from lucidae.rows.sources import MomentSource, source_of
from lucidae.rows.spectrum import Spectrum

EPS = float(np.finfo(float).eps)


def angle(components, axes):
    """Return the sine of the largest angle between orthonormal rows and orthonormal columns."""
    components = np.asarray(components, dtype=float)
    return float(np.linalg.norm(axes - components.T @ (components @ axes), 2))


def spectrum_with(ratio, rank):
    """Return eigenvalues: one of size `ratio`, four between 3 and 2, and others below 1."""
    return np.concatenate([[ratio], np.linspace(3.0, 2.0, 4), np.linspace(1.0, 0.1, rank - 5)])


SHAPES = {
    "tall": (600, 40),
    "wide": (40, 600),
    "many features": (1100, 1050),
    "few rows": (60, 1500),
}


@pytest.mark.parametrize("ratio", [1e4, 1e6, 1e8, 1e10, 1e12, 1e14])
@pytest.mark.parametrize("shape", SHAPES)
def test_small_components_are_as_exact_as_those_of_a_singular_value_decomposition(shape, ratio):
    n, m = SHAPES[shape]
    if n > 1000 and ratio not in (1e8, 1e12):
        pytest.skip("two ratios suffice for the largest rows")
    values = spectrum_with(ratio, min(n, m) - 2)
    X, axes = rows_with(values, n, m)
    model = LinearAutoencoder(5).fit(X)
    # Rounding the entries of X moves the axes by ε√λ₁/√λ; nothing more may be lost.
    inherent = EPS * np.sqrt(ratio)
    assert angle(model.components_[1:], axes[:, 1:5]) <= inherent + ALLOWED
    assert_allclose(model.explained_variance_ * (n - 1) / n, values[:5], rtol=inherent + ALLOWED)
    noise = values[5:].sum() / (m - 5) * n / (n - 1)
    assert_allclose(model.noise_variance_, noise, rtol=inherent + ALLOWED)


def test_it_is_no_less_exact_than_the_full_decomposition_of_scikit_learn():
    X, axes = rows_with(spectrum_with(1e12, 38), 600, 40, seed=3)
    ours, peer = LinearAutoencoder(5).fit(X), PCA(5, svd_solver="full").fit(X)
    assert angle(ours.components_[1:], axes[:, 1:5]) <= 2 * angle(
        peer.components_[1:], axes[:, 1:5]
    )


def test_components_agree_with_those_in_fifty_digits():
    X, _ = rows_with([1e12, 1e6, 2.0, 1.0, 0.1], 12, 6, seed=5)
    with mpmath.workdps(50):
        exact = mpmath.matrix(X.tolist())
        for j in range(6):
            mean = mpmath.fsum(exact[:, j]) / 12
            for i in range(12):
                exact[i, j] -= mean
        _, sizes, right = mpmath.svd_r(exact)
        axes = np.array([[float(right[i, j]) for j in range(6)] for i in range(4)])
        expected = np.array([float(size**2 / 11) for size in sizes[:4]])
    model = LinearAutoencoder(4).fit(X)
    axes *= np.sign(np.sum(axes * model.components_, axis=1))[:, None]
    # The rows are given exactly, so that only the errors of the algorithm remain.
    assert_allclose(model.components_, axes, atol=1e-10)
    assert_allclose(model.explained_variance_, expected, rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-14.0, 0.0), min_size=3, max_size=12),
    st.integers(0, 100),
    st.sampled_from([(50, 14), (14, 50), (30, 30)]),
)
def test_every_separated_subspace_is_exact(exponents, seed, shape):
    values = np.sort(10.0 ** np.array(exponents))[::-1]
    X, axes = rows_with(values, *shape, seed=seed)
    model = LinearAutoencoder(len(values)).fit(X)
    for k in range(1, len(values)):
        upper, lower = np.sqrt(values[k - 1 : k + 1])
        if upper - lower > 0.1 * upper:
            inherent = EPS * np.sqrt(values[0]) / (upper - lower)
            found = angle(model.components_[:k], axes[:, :k])
            assert found <= 20 * inherent + 20 * ALLOWED_DOUBLE
    gram = model.components_ @ model.components_.T
    assert_allclose(gram, np.eye(len(values)), atol=1e-13)


@pytest.mark.parametrize("method", ["rag", "nonuniform_l2", "nested_dropout", "linear_vae"])
def test_all_methods_use_the_exact_eigenpairs(method):
    values = spectrum_with(1e12, 30)
    X, axes = rows_with(values, 300, 40)
    model = LinearAutoencoder(5, method=method).fit(X)
    assert angle(model.components_[1:], axes[:, 1:5]) <= 1e-10
    assert_allclose(model.noise_variance_, values[5:].sum() / 35 * 300 / 299, rtol=1e-10)


def test_a_mean_far_from_zero_costs_no_more_than_the_rounding_of_the_entries():
    values = np.concatenate([[1e8], np.linspace(3.0, 2.0, 4), np.linspace(1.0, 0.1, 30)])
    X, _ = rows_with(values, 400, 40)
    far = X + 1e6 * np.linspace(-1.0, 1.0, 40)
    peer = PCA(5, svd_solver="full").fit((far - far.mean(axis=0)).astype(float))
    model = LinearAutoencoder(5).fit(far)
    assert angle(model.components_[1:], peer.components_[1:].T) <= 1e-10


def test_weights_count_rows():
    X, _ = rows_with(spectrum_with(1e12, 38), 300, 40)
    weights = np.random.default_rng(1).integers(0, 4, 300)
    model = LinearAutoencoder(5).fit(X, sample_weight=weights)
    repeated = LinearAutoencoder(5).fit(np.repeat(X, weights, axis=0))
    assert angle(model.components_[1:], repeated.components_[1:].T) <= 1e-10
    assert_allclose(model.explained_variance_, repeated.explained_variance_, rtol=1e-10)


def test_equal_eigenvalues_determine_their_subspace():
    values = np.concatenate([[1e12, 1e12], np.full(3, 2.0), np.linspace(1.0, 0.1, 20)])
    X, axes = rows_with(values, 300, 40)
    model = LinearAutoencoder(5).fit(X)
    assert angle(model.components_[:2], axes[:, :2]) <= 1e-14
    assert angle(model.components_[2:], axes[:, 2:5]) <= 1e-10


@pytest.mark.parametrize("copies", [1, 120], ids=["double products", "single products"])
def test_float32_rows_are_exact_to_single_precision(copies):
    X, _ = rows_with(spectrum_with(1e10, 38), 500, 40)
    X = np.tile(X.astype(np.float32), (copies, 1))
    exact = PCA(5, svd_solver="full").fit(X.astype(float))
    model = LinearAutoencoder(5).fit(X)
    assert model.components_.dtype == np.float32
    assert angle(model.components_[1:], exact.components_[1:].T) <= 1e-6


@pytest.mark.parametrize("kind", ["sparse", "torch", "strict"])
def test_arrays_of_all_kinds_give_the_same(kind):
    X, axes = rows_with(spectrum_with(1e12, 38), 300, 40)
    if kind == "sparse":
        given_rows = scipy.sparse.csr_array(X)
    elif kind == "torch":
        given_rows = pytest.importorskip("torch").asarray(X)
    else:
        given_rows = pytest.importorskip("array_api_strict").asarray(X)
    model = LinearAutoencoder(5).fit(given_rows)
    assert angle(np.asarray(model.components_)[1:], axes[:, 1:5]) <= 1e-10


def test_directions_without_variance_complete_an_orthonormal_basis():
    X, axes = rows_with([1e12, 1.0], 50, 6)
    model = LinearAutoencoder(5).fit(X)
    assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-13)
    assert angle(model.components_[:2], axes) <= 1e-10
    assert_allclose(model.explained_variance_[2:], 0.0, atol=1e-18)


@pytest.mark.parametrize(("ratio", "refined"), [(1e5, False), (1e7, True)])
def test_only_inaccurate_eigenpairs_are_computed_anew(ratio, refined):
    values = spectrum_with(ratio, 30)
    source = source_of(rows_with(values, 300, 40)[0], None)
    assert (refined_spectrum(source, source.spectrum(5), 5) is not None) == refined


def test_usual_spectra_are_left_as_they_are():
    """Eigenvalues that decay slowly, close ones and equal ones cost no further solution."""
    for values in (
        1.0 / np.arange(1, 201),
        np.linspace(1.0, 0.99, 50),
        np.ones(20),
        10.0 ** np.linspace(0.0, -2.0, 50),
    ):
        assert accurate_pairs(values, len(values), EPS) == len(values)
    X = np.random.default_rng(0).standard_normal((200, 30))
    source = source_of(X, None)
    assert refined_spectrum(source, source.spectrum(10), 10) is None


@given(st.floats(1.0, 16.0))
def test_the_estimate_of_the_error_is_that_of_the_gap(decades):
    value = 10.0**-decades
    accurate = ALLOWED * value / 2 >= EPS
    assert accurate_pairs(np.array([1.0, value, value / 2]), 2, EPS) == (2 if accurate else 1)
    close = ALLOWED * CLOSE * value >= EPS
    assert accurate_pairs(np.array([1.0, value, value]), 2, EPS) == (2 if close else 1)


def test_rows_that_are_not_in_memory_or_too_large_are_left_as_they_are():
    X, _ = rows_with(spectrum_with(1e12, 38), 300, 40)
    moment = SecondMoment.of(X)
    source = MomentSource(moment)
    assert refined_spectrum(source, source.spectrum(5), 5) is None
    large = np.broadcast_to(X[:1], (COPIED_ENTRIES // 40 + 1, 40))
    source = MomentSource(moment, large)
    assert refined_spectrum(source, source.spectrum(5), 5) is None


def test_the_sum_of_other_eigenvalues_survives_a_shorter_spectrum():
    spectrum = Spectrum(np.array([1e16, 3.0, 2.0]), np.eye(5)[:, :3], 1e16, 1.0)
    assert spectrum.noise(1) == 6.0 / 4
    assert spectrum.noise(3) == 0.5
    assert spectrum.leading(1).noise(1) == 6.0 / 4
    assert spectrum.noise(5) == 0.0


def test_refined_fits_are_saved_and_files_of_the_earlier_version_are_loaded(tmp_path):
    X, _ = rows_with(spectrum_with(1e12, 38), 300, 40)
    model = LinearAutoencoder(5).fit(X)
    save(model, tmp_path / "model.npz")
    loaded = load(tmp_path / "model.npz")
    assert loaded.components_.tobytes() == model.components_.tobytes()
    assert loaded.certificate_.to_dict() == model.certificate_.to_dict()
    earlier = load(Path(__file__).parents[1] / "data" / "versions" / "linear-spectrum-1.npz")
    X = np.random.default_rng(0).standard_normal((40, 5)) * [5, 4, 3, 2, 1]
    assert_allclose(earlier.components_, LinearAutoencoder(0.9).fit(X).components_, atol=1e-12)
    assert earlier.certificate_.holds
