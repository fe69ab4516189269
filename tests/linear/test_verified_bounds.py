"""Bounds of the verifier on eigenvalues and distances: they contain the truth, and are tight."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from known_spectra import rows_with
from linear.problems import centred_rows, orthogonal
from lucidae import SecondMoment
from lucidae.certificates import complement as krylov_bounds
from lucidae.certificates.complement import STARTS, Complement, eigenvalue_bound, start_share
from lucidae.data.kinds import aligned_blocks
from lucidae.linear import verified_data, verified_rows
from lucidae.linear.certificate import claims, measure
from lucidae.linear.methods import Options
from lucidae.linear.probe import Estimate
from lucidae.linear.verified_blocks import data_of_any
from lucidae.linear.verified_data import Data, data_of
from lucidae.linear.verified_gram import FewRows, gram_of
from lucidae.linear.verified_rows import RowsForValues
from lucidae.linear.verified_spectrum import leading_eigenpairs
from lucidae.metrics import axis_alignment_distance, subspace_distance

seeds = st.integers(0, 2**32 - 1)

# The largest eigenvalue outside of a span, by a Krylov space.

SPECTRA = {
    "flat": lambda m: np.r_[1.0, np.full(m - 1, 0.9)],
    "linear": lambda m: np.linspace(1.0, 0.0, m),
    "decaying": lambda m: 0.9 ** np.arange(m),
    "one alone": lambda m: np.r_[1.0, np.full(m - 1, 1e-3)],
    "equal": np.ones,
}


def complement(values, starts, hidden=0):
    """Return the complement of the first `hidden` axes for a diagonal second moment."""
    space = Complement(lambda rows: rows * values, np.eye(len(values))[:, :hidden], 1e-15, starts)
    space.bound = np.inf
    return space


@settings(max_examples=200)
@given(seed=seeds, m=st.integers(2, 30), rows=st.integers(1, 8), first=st.integers(1, 4))
def test_no_eigenvalue_exceeds_the_bound_for_the_true_share(seed, m, rows, first):
    """For any subspace and any matrix, if `share` is the share of the leading eigenvector."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, m))
    A = (A + A.T) / 2
    basis = orthogonal(rng, m)[: min(rows, m)]
    inner = basis @ A @ basis.T
    rest = basis @ A - inner @ basis
    values, vectors = np.linalg.eigh(A)
    first = min(first, len(basis))
    share = float(np.linalg.norm(basis[:first] @ vectors[:, -1]))
    found = eigenvalue_bound(inner, rest @ rest.T, first, share)
    assert found >= values[-1] - 1e-9 * np.abs(values).max()
    assert found >= np.linalg.eigvalsh(inner)[-1]


def test_the_bound_is_the_last_crossing_of_the_norm():
    """Beyond it, ‖E₁ᵀ(λ − T)⁻¹N‖ is below the share; just below it, it is above."""
    rng = np.random.default_rng(1)
    values = np.linspace(1.0, 0.1, 40)
    basis = np.empty((0, 40))
    block = rng.standard_normal((3, 40))
    for _ in range(4):
        block = block - block @ basis.T @ basis
        basis = np.vstack([basis, np.linalg.qr(block.T)[0].T])
        block = basis[-3:] * values
    inner = (basis * values) @ basis.T
    rest = basis * values - inner @ basis
    found = eigenvalue_bound(inner, rest @ rest.T, 3, 0.05)

    def size(at):
        return np.linalg.norm(np.linalg.solve(at * np.eye(len(inner)) - inner, rest)[:3], 2)

    assert_allclose(size(found), 0.05, rtol=1e-6)
    assert all(size(at) < 0.05 for at in found * np.linspace(1.0001, 3.0, 200))


@pytest.mark.covering
@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("starts", [1, 3, 16])
def test_the_bound_fails_as_rarely_as_stated(monkeypatch, kind, starts):
    """With a failure probability of 0.3, at most that share of starts gives a wrong bound."""
    monkeypatch.setattr(krylov_bounds, "FAILURE", 0.3)
    values, trials, wrong = SPECTRA[kind](60), 150, 0
    rng = np.random.default_rng(0)
    for _ in range(trials):
        space = complement(values, rng.standard_normal((starts, 60)))
        space.extend(2)
        wrong += space.bound < 1.0
        assert space.found <= 1.0 + 1e-12
    assert wrong <= 0.3 * trials + 3 * np.sqrt(0.21 * trials)


@pytest.mark.parametrize("kind", SPECTRA)
def test_the_bound_holds_and_gets_tight(kind):
    values = SPECTRA[kind](400)
    for hidden in (0, 5):
        space = complement(values, np.random.default_rng(3).standard_normal((16, 400)), hidden)
        top, before = values[hidden], np.inf
        for steps in (2, 3, 4, 6, 8, 12):
            space.extend(steps)
            assert top * (1 - 1e-12) <= space.bound <= before
            before = space.bound
        assert space.bound <= 1.06 * top


def test_the_length_that_random_starts_exceed():
    """P{χ² ≤ c} = 1e-9 for 16 degrees of freedom, by the series of its distribution."""
    c = start_share(16) ** 2
    terms = [(c / 2) ** j / math.factorial(j) for j in range(8)]
    assert_allclose(-math.expm1(math.log(sum(terms)) - c / 2), 1e-9, rtol=1e-5)
    assert STARTS == 16


def test_a_complete_space_has_the_largest_eigenvalue_itself():
    values = np.r_[3.0, 2.0, 1.0, 0.5]
    space = complement(values, np.random.default_rng(0).standard_normal((2, 4)), hidden=2)
    space.extend(16)
    assert space.exhausted
    assert_allclose([space.bound, space.found], 1.0, rtol=1e-12)
    empty = complement(values, np.zeros((0, 4)), hidden=4)
    assert empty.exhausted
    assert not empty.extend(3)


def test_lower_bounds_are_ritz_values_of_the_whole_space():
    rng = np.random.default_rng(0)
    values, vectors = 1.0 / np.arange(1.0, 31.0), orthogonal(rng, 30)
    matrix = (vectors * values) @ vectors.T
    rows = np.linalg.qr(vectors[:, :3] + 0.1 * rng.standard_normal((30, 3)))[0].T
    space = Complement(lambda x: x @ matrix, rows.T, 1e-15, rng.standard_normal((4, 30)))
    space.bound = np.inf
    space.extend(2)
    images = rows @ matrix
    fresh = images - (images @ rows.T) @ rows
    found = space.ritz(rows, images, fresh)
    whole = np.linalg.qr(np.concatenate([rows, space.basis, fresh]).T)[0]
    assert_allclose(found, np.linalg.eigvalsh(whole.T @ matrix @ whole)[::-1], atol=1e-12)
    assert np.all(found[:3] <= values[:3] + 1e-12)


def test_the_random_starts_depend_on_every_bit_of_the_rows(monkeypatch):
    """Neither the mean, the variances nor a projection need to change for other starts."""
    monkeypatch.setattr(verified_data, "DENSE_FEATURES", 10)
    monkeypatch.setattr(verified_data, "FEW_ROWS", 0)
    X = np.random.default_rng(0).standard_normal((50, 20)) * np.r_[1.0, np.full(19, 1e-9)]
    seen = {data_of(X).fingerprint}
    for row, column in ((0, 1), (3, 7), (49, 19)):
        other = X.copy()
        other[row, column] = np.nextafter(X[row, column], np.inf)
        seen.add(data_of(other).fingerprint)
        assert data_of(np.asfortranarray(other)).fingerprint in seen
        assert data_of(np.repeat(other, 2, axis=1)[:, ::2]).fingerprint in seen
    seen.add(data_of(X, np.r_[1.5, np.ones(49)]).fingerprint)
    seen.add(data_of(scipy.sparse.csr_array(X)).fingerprint)
    seen.add(data_of(SecondMoment.of(X)).fingerprint)
    seen.add(data_of_any(aligned_blocks(X, None, None, with_targets=False)).fingerprint)
    assert len(seen) == 8
    assert None not in seen


def test_hashed_blocks_count_in_any_order():
    X = np.random.default_rng(0).standard_normal((60, 4))
    parts, changed = [X[:20], X[20:]], [X[:20], np.nextafter(X[20:], np.inf)]
    found = [
        data_of_any(aligned_blocks(lambda order=order: iter(order), None, None, with_targets=False))
        for order in (parts, parts[::-1], changed)
    ]
    assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint


# Distances to the principal axes, from products with the second moment.


def products_only(values, vectors=None):
    """Return data whose matrix the verifier does not see."""
    vectors = np.eye(len(values)) if vectors is None else vectors
    own = np.sum(vectors**2 * values, axis=1)

    def product(rows):
        return (rows @ vectors) * values @ vectors.T

    return Data(np.zeros(len(values)), float(np.sum(values)), product, own)


def diagonal(values):
    return replace(
        products_only(np.ones(1)),
        mean=np.zeros(len(values)),
        variances=values,
        trace=float(np.sum(values)),
        product=lambda rows: rows * values,
    )


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
    right = leading_eigenpairs(diagonal(bulk), identity[:3]).subspace
    assert right.value + right.error < 1e-6
    wrong = leading_eigenpairs(diagonal(bulk), identity[[0, 1, 3]]).subspace
    assert 1e-3 < wrong.value - wrong.error <= 1 / 3 <= wrong.value + wrong.error


def test_a_gap_of_less_than_a_tenth_is_no_failure_of_an_exact_decoder():
    for gap, high in ((0.2, 1e-6), (1e-6, 1e-6), (1e-14, 1.0)):
        values = np.r_[5.0, 3.0, 3.0 - gap, np.linspace(1.0, 0.1, 1500)]
        found = leading_eigenpairs(diagonal(values), np.eye(2, len(values))).subspace
        assert found.value - found.error < 1e-6
        assert found.value + found.error <= high
    assert found.value + found.error == 1.0, "a gap below rounding errors decides nothing"


@pytest.mark.parametrize("scale", [1e-200, 1e-120, 1.0, 1e120, 1e140])
def test_the_bounds_vanish_quadratically_at_the_optimum_in_every_unit(scale):
    rng = np.random.default_rng(0)
    values, vectors = scale * np.array([4.0, 2.0, 1.0, 0.3, 0.1]), orthogonal(rng, 5)
    noise, previous = rng.standard_normal((3, 5)), None
    for size in (1e-2, 1e-3, 1e-4):
        found = leading_eigenpairs(products_only(values, vectors), vectors[:, :3].T + size * noise)
        both = np.array([found.subspace.value + found.subspace.error, found.misalignments.mean()])
        assert np.all(both < 100 * size**2)
        if previous is not None:
            assert_allclose(previous / both, 100, rtol=0.5)
        previous = both
    assert_allclose(found.values[:3], values[:3], rtol=1e-6)
    assert 0.3 <= found.outside / scale < 1.0


def test_no_variance_decides_nothing_and_no_weights_are_far_from_everything():
    nothing = leading_eigenpairs(diagonal(np.zeros(3)), np.eye(3)[:2])
    assert nothing.subspace == (0.5, 0.5)
    assert leading_eigenpairs(diagonal(np.ones(3)), np.zeros((2, 3))).subspace.value == 1.0
    not_a_number = leading_eigenpairs(diagonal(np.ones(3)), np.full((2, 3), np.nan))
    assert np.isnan(not_a_number.subspace.value)


@pytest.mark.parametrize(("factor", "apart"), [(3.0, False), (1 / 3, True)])
def test_a_component_is_identifiable_from_a_gap_of_100_rounding_errors_on(factor, apart):
    """These are m·ε·σ₁²."""
    gap = 100 / factor * 4 * np.finfo(float).eps
    values = np.array([1.0, 0.5, 0.5 - gap, 0.1])
    data = replace(diagonal(values), matrix=np.diag(values))
    found = leading_eigenpairs(data, np.eye(4)[:3])
    assert list(found.unidentifiable(3)) == ([] if apart else [2, 3])
    assert leading_eigenpairs(data, np.eye(4)[:2]).determined(2) is apart


# Few rows with many features, by a tested Gram matrix.

M = 1200  # more features than are decomposed as a matrix


def few_rows(seed, n=40, mean=1.0):
    rng = np.random.default_rng(seed)
    scales = np.exp(-np.arange(n) / rng.uniform(1, 10))
    return (rng.standard_normal((n, n)) * scales) @ rng.standard_normal((n, M)) + mean


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 20))]
)
@pytest.mark.parametrize("kind", ["optimal", "swapped", "perturbed", "random", "deficient"])
def test_bounds_contain_the_true_eigenvalues_and_angles(seed, kind):
    rng = np.random.default_rng(seed)
    X, k = few_rows(seed, mean=float(rng.choice([0.0, 1.0, 100.0]))), 4
    weights = rng.integers(1, 4, len(X)).astype(float) if seed % 2 else np.ones(len(X))
    shares = weights / weights.sum()
    centred = (X - shares @ X) * np.sqrt(shares)[:, None]
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    values, axes = singular**2, right.T
    atoms = axes[:, :k].T.copy()
    if kind == "swapped":
        atoms[k - 1] = axes[:, k + 1]
    if kind == "perturbed":
        atoms += 1e-3 * rng.standard_normal(atoms.shape) / np.sqrt(M)
    if kind == "random":
        atoms = rng.standard_normal(atoms.shape)
    if kind == "deficient":
        atoms[-1] = atoms[0]
    data = data_of(X, weights)
    assert data.few_rows is not None
    found = leading_eigenpairs(data, atoms)
    assert np.all(found.ritz <= values[:k])
    assert np.all(values[:k] <= found.upper)
    assert_allclose(found.values, values[: k + 1], atol=1e-9 * values[0])
    span = np.linalg.qr(atoms[:3].T if kind == "deficient" else atoms.T)[0]
    distance = np.sum((axes[:, :k] - span @ (span.T @ axes[:, :k])) ** 2) / k
    assert abs(found.subspace.value - distance) <= found.subspace.error + 1e-12
    assert found.outside >= np.linalg.norm(centred - (centred @ span) @ span.T, 2) ** 2 * (
        1 - 1e-12
    )
    if kind == "optimal":
        assert found.outside <= values[k] * (1 + 1e-8) + 1e-9 * values[0]
        assert found.subspace.error < 1e-12


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-4, 1.0])
def test_the_error_of_a_wrong_gram_matrix_is_bounded(size):
    rng = np.random.default_rng(1)
    X = few_rows(3)
    shares, mean = np.full(len(X), 1 / len(X)), X.mean(axis=0)
    trace = float(np.sum((X - mean) ** 2)) / len(X)
    gram = gram_of(X, shares, mean)
    span = np.linalg.qr(rng.standard_normal((M, 3)))[0].T
    for _ in range(10):
        wrong = np.outer(*rng.standard_normal((2, len(X))))
        wrong *= size * trace / np.linalg.norm(wrong)
        few = FewRows(X, shares, mean, trace, gram + (wrong + wrong.T) / 2, plain=False)
        checks = rng.standard_normal((4, len(X)))
        _, error = few._tested(few.gram, checks, gram @ checks.T)
        assert error >= np.linalg.norm((wrong + wrong.T) / 2, 2)
        # A matrix that is far from that of the rows is not used at all.
        found = few.measured(span)
        assert found.error <= 1.1e-9 * trace
        assert_allclose(found.values, np.linalg.eigvalsh(gram)[::-1], atol=1.1e-9 * trace)


# Singular values of the rows.


def turned(axes, k, sine, other):
    """Return k of the axes, of which the last is turned towards the axis `other`, as columns."""
    found = axes[:, :k].copy()
    found[:, k - 1] = np.sqrt(1.0 - sine**2) * axes[:, k - 1] + sine * axes[:, other]
    return found


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
    own = min(1.0, 4 * np.finfo(float).eps * np.sqrt(values[0]) / size)
    slack = 2 * sine * own + own**2 + 1e-13
    assert abs(found.subspace.value - sine**2 / k) <= found.subspace.error + slack


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_the_bound_outside_of_a_span_is_an_upper_bound(shape):
    values = np.append(
        np.linspace(1.2, 1.0, 3), np.linspace(0.95, 0.9, min(shape[0] - 1, shape[1]) - 3)
    )
    X, axes = rows_with(values, *shape)
    span = turned(axes, 3, 1e-4, 4)
    rows = (X - X.mean(axis=0)) / np.sqrt(len(X))
    found = RowsForValues(X).bounded(span)
    inside = np.linalg.svd(rows @ span, compute_uv=False)
    outside = np.linalg.norm(rows - rows @ span @ span.T, 2)
    assert_allclose(found.values, inside, rtol=1e-12)
    assert outside <= found.outside <= inside[-1]
    rest = rows.T @ (rows @ found.axes / found.values) - found.axes * found.values
    assert_allclose(found.residuals, np.linalg.norm(rest, axis=0), rtol=1e-8, atol=1e-14)
    assert RowsForValues(X).bounded(axes[:, [0, 1, 5]]) is None, "a larger one was missed"
    level = float(np.linalg.eigvalsh(X.T @ X)[-1])
    assert verified_rows._is_below(X.T @ X, level * (1 + 1e-9))
    assert not verified_rows._is_below(X.T @ X, level * (1 - 1e-9))


# Verdicts from figures and their errors.


def test_figures_near_their_thresholds():
    X = 2 + centred_rows([4.0, 2.5, 1.5, 0.7])
    options = Options.of(2, method="rag")
    method = options.make(2, None, options.rng())
    axes = np.linalg.eigh(np.cov(X.T))[1][:, ::-1].T[:2]
    figures = measure(
        method, method.start(axes, axes), data_of(SecondMoment.of(X)), options.training
    )

    def verdict(name, **changed):
        return {claim.name: claim.holds for claim in claims(replace(figures, **changed))}[name]

    for factor, holds in ((3.0, False), (1 / 3, True)):
        # A loss below its minimum is a contradiction.
        assert verdict("gap", gap=Estimate(-factor * 1e-6)) is holds
        assert verdict("moment", moment=Estimate(factor * 1e-6)) is holds
        assert verdict("attributes", attributes=factor * 1e-9) is holds
    assert verdict("gap", gap=Estimate(0.9e-6, 0.5e-6)) is None
    assert verdict("balance", balance=Estimate(2e-3, 5e-3)) is None
    assert verdict("gap", gap=Estimate(math.nan)) is False
