"""Bounds on distances and eigenvalues where not all eigenvalues are computed."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import centred_rows, orthogonal
from lucidae import SecondMoment
from lucidae.linear import verified_data
from lucidae.linear.certificate import certify_weights
from lucidae.linear.verified_data import Data, data_of
from lucidae.linear.verified_spectrum import leading_eigenpairs
from lucidae.metrics import axis_alignment_distance, subspace_distance

seeds = st.integers(0, 2**32 - 1)


def products_only(values, vectors):
    """Return data whose matrix the verifier does not see."""
    matrix = (vectors * values) @ vectors.T
    trace, own = float(np.sum(values)), np.diag(matrix)
    return Data(np.zeros(len(values)), trace, lambda rows: rows @ matrix, own)


def diagonal_data(values):
    trace = float(np.sum(values))
    return Data(np.zeros(len(values)), trace, lambda rows: rows * values, values)


@settings(max_examples=200)
@given(
    seed=seeds,
    k=st.integers(1, 4),
    outside=st.integers(0, 30),
    size=st.sampled_from([0.0, 1e-6, 1e-3, 1e-2, 0.1, 1.0]),
    kind=st.sampled_from(["near", "zero", "twice", "turned", "lower"]),
)
def test_the_true_figures_lie_inside_their_bounds(seed, k, outside, size, kind):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.gamma(1.0, 1.0, k + outside) ** rng.choice([0.5, 3.0]))[::-1]
    vectors = orthogonal(rng, k + outside)
    axes = vectors[:, :k]
    atoms = np.array(axes.T) * rng.uniform(0.2, 2.0, (k, 1))
    if kind == "zero":
        atoms[rng.integers(k)] = 0.0
    if kind == "twice":
        atoms[-1] = atoms[0]
    if kind == "turned":
        atoms = orthogonal(rng, k) @ atoms
    if kind == "lower":
        atoms[-1] = vectors[:, -1]
    atoms = atoms + size * rng.standard_normal(atoms.shape)
    if not np.any(atoms):
        return
    found = leading_eigenpairs(products_only(values, vectors), atoms)
    value, error = found.subspace
    assert abs(subspace_distance(atoms.T, axes) - value) <= error + 1e-9
    aligned = axis_alignment_distance(atoms.T, axes)
    assert found.unaligned - 1e-9 <= aligned <= np.mean(found.misalignments) + 1e-9
    assert np.all(found.ritz <= values[:k] + 1e-9)
    assert np.all(values[:k] <= found.upper + 1e-9)
    if outside:
        assert found.outside >= values[k] * (kind in ("near", "turned") and size == 0.0)


BULK = np.r_[10.0, 8.0, 6.1, 6.0, np.full(4196, 5.2)]


@pytest.mark.parametrize("bulk", [BULK, np.r_[BULK[:4], np.linspace(5.2, 0.1, 4196)]])
def test_a_component_outside_a_flat_bulk_is_found(bulk):
    """Fifteen power iterations reported the distance 0 for components 1, 2 and 4."""
    identity = np.eye(5, 4200)
    data = diagonal_data(bulk)
    right = leading_eigenpairs(data, identity[:3]).subspace
    assert right.value + right.error < 1e-6
    wrong = leading_eigenpairs(data, identity[[0, 1, 3]]).subspace
    assert 1e-3 < wrong.value - wrong.error <= 1 / 3 <= wrong.value + wrong.error


def test_a_gap_of_less_than_a_tenth_is_no_failure_of_an_exact_decoder():
    values = np.r_[5.0, 3.0, 2.8, np.linspace(1.0, 0.1, 1500)]
    found = leading_eigenpairs(diagonal_data(values), np.eye(2, len(values))).subspace
    assert found.value + found.error < 1e-6
    for gap, high in ((1e-6, 1e-6), (1e-14, 1.0)):
        close = np.r_[5.0, 3.0, 3.0 - gap, np.linspace(1.0, 0.1, 1500)]
        found = leading_eigenpairs(diagonal_data(close), np.eye(2, len(close))).subspace
        assert found.value - found.error < 1e-6
        assert found.value + found.error <= high
    assert found.value + found.error == 1.0, "a gap below rounding errors decides nothing"


def test_the_bounds_vanish_quadratically_at_the_optimum():
    rng = np.random.default_rng(0)
    values, vectors = np.array([4.0, 2.0, 1.0, 0.3, 0.1]), orthogonal(rng, 5)
    noise = rng.standard_normal((3, 5))
    previous = None
    for size in (1e-2, 1e-3, 1e-4):
        atoms = vectors[:, :3].T + size * noise
        found = leading_eigenpairs(products_only(values, vectors), atoms)
        both = np.array([found.subspace.value + found.subspace.error, found.misalignments.mean()])
        assert np.all(both < 100 * size**2)
        if previous is not None:
            assert_allclose(previous / both, 100, rtol=0.5)
        previous = both
    assert_allclose(found.values[:3], values[:3], rtol=1e-6)
    assert 0.3 <= found.outside < 1.0


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1e120, 1e140])
def test_the_bounds_do_not_depend_on_the_scale_of_the_data(scale):
    rng = np.random.default_rng(0)
    values, vectors = np.array([4.0, 2.0, 1.0, 0.3]), orthogonal(rng, 4)
    atoms = vectors[:, :2].T + 0.01 * rng.standard_normal((2, 4))
    expected = leading_eigenpairs(products_only(values, vectors), atoms)
    found = leading_eigenpairs(products_only(scale * values, vectors), atoms)
    assert_allclose(found.subspace, expected.subspace, rtol=1e-6)
    assert_allclose(found.misalignments, expected.misalignments, rtol=1e-6)
    assert_allclose(found.values, scale * expected.values, rtol=1e-6)


def test_no_variance_decides_nothing_and_no_weights_are_far_from_everything():
    nothing = leading_eigenpairs(diagonal_data(np.zeros(3)), np.eye(3)[:2])
    assert nothing.subspace == (0.5, 0.5)
    silent = leading_eigenpairs(diagonal_data(np.ones(3)), np.zeros((2, 3)))
    assert silent.subspace.value == 1.0
    assert np.isnan(
        leading_eigenpairs(diagonal_data(np.ones(3)), np.full((2, 3), np.nan)).subspace
    )[0]


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_products_with_rows_are_those_of_the_moment(monkeypatch, kind, weighted):
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 3)
    monkeypatch.setattr(verified_data, "BLOCK_ROWS", 7)
    rng = np.random.default_rng(0)
    X = 3 + centred_rows([4.0, 2.0, 1.0, 0.5, 0.1], n=40)
    X[rng.random(X.shape) < 0.2] = 0.0
    weights = rng.uniform(0.5, 2.0, len(X)) if weighted else None
    data, moment = data_of(kind(X), weights), SecondMoment.of(X, weights)
    assert data.matrix is None
    rows = rng.standard_normal((2, 5))
    assert_allclose(data.apply(rows), rows @ moment.covariance, rtol=1e-12)
    assert_allclose(data_of(moment).apply(rows), rows @ moment.covariance, rtol=1e-12)
    assert_allclose(data.trace, moment.trace, rtol=1e-12)
    assert_allclose(data.mean, moment.mean, rtol=1e-12)


def test_products_with_rows_of_another_library(monkeypatch, xp):
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 3)
    X = 3 + centred_rows([4.0, 2.0, 1.0, 0.5, 0.1], n=40)
    data, moment = data_of(xp.asarray(X)), SecondMoment.of(X)
    rows = np.random.default_rng(0).standard_normal((2, 5))
    assert_allclose(data.apply(rows), rows @ moment.covariance, rtol=1e-12)
    assert_allclose(data_of(SecondMoment.of(xp.asarray(X))).apply(rows), data.apply(rows))


@pytest.mark.parametrize("few", [0, 1024])
@pytest.mark.parametrize("attack", ["zero", "swapped", "twice"])
def test_a_wrong_latent_is_not_left_out_where_only_bounds_are_known(monkeypatch, attack, few):
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 3)
    monkeypatch.setattr(verified_data, "FEW_ROWS", few)
    X = centred_rows([4.0, 2.0, 1.0, 0.5, 0.1], n=40)
    axes = np.linalg.svd(X)[2]
    rows = {"zero": axes[:2] * [[1.0], [0.0]], "swapped": axes[[0, 4]], "twice": axes[[0, 0]]}[
        attack
    ]
    certificate = certify_weights(rows, rows.T, X, method="rag")
    assert certificate["alignment"].holds is not True
    assert certificate["subspace"].holds is False
    right = certify_weights(axes[:2], axes[:2].T, X, method="rag")
    assert right["alignment"].holds
    assert right.holds


@pytest.mark.parametrize("few", [0, 1024])
@pytest.mark.parametrize("method", ["rag", "plain", "nonuniform_l2", "expected_nested_dropout"])
def test_weights_of_zeros_are_not_at_the_minimum_where_only_bounds_are_known(
    monkeypatch, method, few
):
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 3)
    monkeypatch.setattr(verified_data, "FEW_ROWS", few)
    X = centred_rows([4.0, 2.0, 1.0, 0.5, 0.1], n=40)
    rows, l2 = np.zeros((2, 5)), [0.1, 0.2]
    certificate = certify_weights(rows, rows.T, X, method=method, l2=l2)
    assert certificate["gap"].holds is not True
    assert certificate.holds is False
