"""Certificates by singular values of the rows: dominant eigenvalues and flat spectra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from known_spectra import rows_with
from lucidae import LinearAutoencoder, certify
from lucidae.linear import verified_rows
from lucidae.linear.verified_data import data_of
from lucidae.linear.verified_rows import RowsForValues
from lucidae.linear.verified_spectrum import leading_eigenpairs
from lucidae.moments import SecondMoment

EPS = float(np.finfo(float).eps)


def dominated(ratio, rank=30):
    """Return one large eigenvalue, three between 6 and 4, and others below 1."""
    return np.concatenate([[ratio], np.linspace(6.0, 4.0, 3), np.linspace(1.0, 0.5, rank - 4)])


def turned(axes, k, sine, other):
    """Return k of the axes, of which the last is turned towards the axis `other`, as columns."""
    found = axes[:, :k].copy()
    found[:, k - 1] = np.sqrt(1.0 - sine**2) * axes[:, k - 1] + sine * axes[:, other]
    return found


SHAPES = {"tall": (200, 40), "wide": (40, 200), "few rows": (40, 1100), "large": (1100, 1030)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ratio", [1e8, 1e12])
def test_certificates_of_exact_fits_hold_beside_a_dominant_eigenvalue(shape, ratio):
    X, _ = rows_with(dominated(ratio), *SHAPES[shape])
    model = LinearAutoencoder(4).fit(X)
    found = model.certificate_
    assert found.holds, found
    assert found["subspace"].holds
    assert found["alignment"].holds
    assert found["eigengap"].holds
    assert certify(model, X).holds


@pytest.mark.parametrize("shape", ["tall", "wide", "few rows"])
def test_wrong_components_of_small_variance_are_refused(shape):
    """The second moment alone does not see that the last component is wrong."""
    X, axes = rows_with(dominated(1e14), *SHAPES[shape])
    wrong = turned(axes, 4, 0.2, 6)
    found = certify((wrong.T, wrong), X, family="linear", method="rag")
    assert found["subspace"].holds is False
    assert_allclose(found["subspace"].value, 0.2**2 / 4, rtol=1e-6)
    right = turned(axes, 4, 0.0, 6)
    assert certify((right.T, right), X, family="linear", method="rag")["subspace"].holds
    if SHAPES[shape][1] <= 1024:
        blind = certify((wrong.T, wrong), SecondMoment.of(X), family="linear", method="rag")
        assert blind["subspace"].holds is None


def test_a_wrong_component_of_large_rows_is_not_certified():
    X, axes = rows_with(dominated(1e12), *SHAPES["large"])
    wrong = turned(axes, 4, 0.2, 6)
    found = certify((wrong.T, wrong), X, family="linear", method="rag")
    assert found["subspace"].holds is None
    assert "Not decided" in found["subspace"].advice
    assert not found.holds


def test_rows_of_other_libraries_are_certified_by_fit():
    torch = pytest.importorskip("torch")
    X, _ = rows_with(dominated(1e14), 200, 40)
    model = LinearAutoencoder(4).fit(torch.asarray(X))
    assert model.certificate_.holds
    assert model.certificate_["subspace"].holds


def test_changed_components_are_noticed():
    X, _ = rows_with(dominated(1e12), 200, 40)
    model = LinearAutoencoder(4).fit(X)
    assert model.certificate_.holds
    model.components_ = model.components_ + 1e-6
    assert model.certificate_.holds is False
    assert model.certificate_["attributes"].holds is False


def test_rows_that_were_changed_leave_the_certificate_to_the_second_moment():
    X, _ = rows_with(dominated(1e14), 200, 40)
    model = LinearAutoencoder(4).fit(X)
    X[0, 0] += 1.0
    assert model.certificate_["subspace"].holds is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(-13.0, 0.0), min_size=3, max_size=8),
    st.integers(0, 1000),
    st.sampled_from([(30, 10), (10, 30)]),
    st.floats(0.0, 1.0),
)
def test_the_distance_of_a_turned_axis_lies_within_its_error(exponents, seed, shape, sine):
    values = np.sort(10.0 ** np.array(exponents))[::-1]
    X, axes = rows_with(values, *shape, seed=seed)
    k = len(values) - 1
    found = leading_eigenpairs(data_of(X), turned(axes, k, sine, k).T)
    # The rounding of the entries of X itself turns the axes.
    size = max(float(np.sqrt(values[k - 1]) - np.sqrt(values[k])), 1e-300)
    own = min(1.0, 4 * EPS * np.sqrt(values[0]) / size)
    slack = 2 * sine * own + own**2 + 1e-13
    assert abs(found.subspace.value - sine**2 / k) <= found.subspace.error + slack


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
def test_singular_values_are_those_of_weighted_centred_rows(shape):
    rng = np.random.default_rng(0)
    X, weights = rng.standard_normal(shape) + 5.0, rng.integers(0, 4, shape[0])
    found = RowsForValues(X, weights).in_units(2.0).decomposed(3)
    values, vectors = np.linalg.eigh(np.cov(X.T, fweights=weights, bias=True) / 4.0)
    assert_allclose(found.values**2, values[::-1], atol=1e-12)
    assert_allclose(np.abs(np.sum(found.axes * vectors[:, ::-1][:, :3], axis=0)), 1.0, rtol=1e-10)


def flat_rows(n, m, k, gap, seed=0):
    """Return rows with k eigenvalues from 1.2 on that exceed all others by `gap` at least."""
    rank = min(n - 1, m)
    values = np.append(np.linspace(1.2, 1.0, k), np.linspace(1.0 - gap, 0.9, rank - k))
    return rows_with(values, n, m, seed)


@pytest.mark.parametrize("shape", [(1300, 1100), (1100, 1300)])
def test_flat_spectra_above_1024_features_are_decided(shape):
    X, axes = flat_rows(*shape, k=3, gap=2e-4)
    found = LinearAutoencoder(3).fit(X).certificate_
    assert found.holds, found
    assert "Cholesky" in found["subspace"].reference
    wrong = turned(axes, 3, 1.0, 5)
    refused = certify((wrong.T, wrong), X, family="linear", method="rag")
    assert refused["subspace"].holds is not True
    assert not refused.holds


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_the_bound_outside_of_a_span_is_an_upper_bound(shape):
    X, axes = flat_rows(*shape, k=3, gap=0.05)
    span = turned(axes, 3, 1e-4, 4)
    rows = (X - X.mean(axis=0)) / np.sqrt(len(X))
    found = RowsForValues(X).bounded(span)
    inside = np.linalg.svd(rows @ span, compute_uv=False)
    outside = np.linalg.norm(rows - rows @ span @ span.T, 2)
    assert_allclose(found.values, inside, rtol=1e-12)
    assert outside <= found.outside <= inside[-1]
    rest = rows.T @ (rows @ found.axes / found.values) - found.axes * found.values
    assert_allclose(found.residuals, np.linalg.norm(rest, axis=0), rtol=1e-8, atol=1e-14)


def test_no_bound_is_proved_if_a_larger_singular_value_is_missed():
    X, axes = flat_rows(40, 30, k=3, gap=0.05)
    assert RowsForValues(X).bounded(axes[:, [0, 1, 5]]) is None
    level = float(np.linalg.eigvalsh(X.T @ X)[-1])
    assert verified_rows._is_below(X.T @ X, level * (1 + 1e-9))
    assert not verified_rows._is_below(X.T @ X, level * (1 - 1e-9))


def test_rows_that_are_too_large_are_not_decomposed(monkeypatch):
    X = np.zeros((20, 10))
    assert RowsForValues.of(X, None).small
    monkeypatch.setattr(verified_rows, "LARGEST_ROWS", 100)
    assert RowsForValues.of(X, None) is None
