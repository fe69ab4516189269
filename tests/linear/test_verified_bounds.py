"""Bounds of the verifier on eigenvalues and distances: they contain the truth, and are tight."""

import ast
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import orthogonal
from lucidae import LinearAutoencoder, certify
from lucidae.certificates import sketch as krylov_bounds
from lucidae.certificates.bounds import Ball
from lucidae.certificates.rows import Data, GivenRows
from lucidae.certificates.sketch import Complement, Sketch, eigenvalue_bound
from lucidae.linear import verify
from lucidae.linear.verify import find_leading
from lucidae.metrics import axis_alignment_distance, subspace_distance

seeds = st.integers(0, 2**32 - 1)


def test_the_verifier_imports_no_solver_no_moments_and_no_reader():
    tree = ast.parse(Path(verify.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {name for name in modules if name.startswith("lucidae")}
    names = ("bounds", "rows", "sketch")
    # `arrays` converts between libraries, so that rows stay on their device.
    assert own <= {"lucidae.arrays", *(f"lucidae.certificates.{name}" for name in names)}


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


# Distances to the principal axes, by each way in which the rows are known.


def products_only(values, vectors=None):
    """Return data of which the verifier sees only products with the second moment."""
    vectors = np.eye(len(values)) if vectors is None else vectors
    own, trace = np.sum(vectors**2 * values, axis=1), float(np.sum(values))

    def product(rows):
        return (rows @ vectors) * values @ vectors.T

    zero = np.zeros(len(values))
    return Data(zero, Ball(zero, zero), own, product, 1e-15 * len(values) * trace)


def diagonal(values):
    return products_only(values)


def leading(data, atoms):
    return find_leading(data, atoms)[1]


def contains(ball, truth, slack=0.0):
    return bool(np.all(np.abs(ball.value - truth) <= ball.error + slack))


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
    if not np.any(atoms) or (size == 1e-6 and kind in ("zero", "twice")):
        return  # the metric counts the latter as zero or twice
    found = leading(products_only(values, vectors), atoms)
    assert contains(found.subspace, subspace_distance(atoms.T, axes), 1e-9)
    aligned = axis_alignment_distance(atoms.T, axes)
    assert contains(found.misalignments.sum() / float(k), aligned, 1e-9)
    assert contains(Ball(found.values.value[:k], found.values.error[:k]), values[:k], 1e-9)
    if outside:
        assert found.outside >= values[k] * (kind in ("near", "turned") and size == 0.0)


BULK = np.r_[10.0, 8.0, 6.1, 6.0, np.full(4196, 5.2)]


@pytest.mark.parametrize("bulk", [BULK, np.r_[BULK[:4], np.linspace(5.2, 0.1, 4196)]])
def test_a_component_outside_a_flat_bulk_is_found(bulk):
    """Fifteen power iterations reported the distance 0 for components 1, 2 and 4."""
    identity = np.eye(5, 4200)
    assert leading(diagonal(bulk), identity[:3]).subspace.high < 1e-6
    wrong = leading(diagonal(bulk), identity[[0, 1, 3]]).subspace
    assert 1e-3 < wrong.low <= 1 / 3 <= wrong.high


def test_a_gap_of_less_than_a_tenth_is_no_failure_of_an_exact_decoder():
    for gap, high in ((0.2, 1e-6), (1e-6, 1e-5), (1e-14, 1.0)):
        values = np.r_[5.0, 3.0, 3.0 - gap, np.linspace(1.0, 0.1, 1500)]
        found = leading(diagonal(values), np.eye(2, len(values))).subspace
        assert found.low < 1e-6
        assert found.high <= high + 1e-9
    assert found.high >= 1.0, "a gap below rounding errors decides nothing"


def test_the_bounds_vanish_quadratically_at_the_optimum():
    rng = np.random.default_rng(0)
    values, vectors = np.array([4.0, 2.0, 1.0, 0.3, 0.1]), orthogonal(rng, 5)
    noise = rng.standard_normal((3, 5))
    for size in (1e-2, 1e-3, 1e-4):
        found = leading(products_only(values, vectors), vectors[:, :3].T + size * noise)
        both = np.array([found.subspace.high, (found.misalignments.sum() / 3.0).high])
        assert np.all(both < 100 * size**2)
    assert_allclose(found.values.value[:3], values[:3], rtol=1e-6)
    assert 0.3 <= found.outside < 1.0


def known_as(kind, X, weights):
    """Return the data of rows in one of the ways in which the verifier may know them."""
    rows = GivenRows(X, weights)
    if kind == "triangle":
        return Data.of_rows(rows).refactored()
    if kind in ("tested", "wrong"):
        shares = rows.shares
        centred = (X - shares @ X) * np.sqrt(shares)[:, None]
        covariance = centred.T @ centred
        if kind == "wrong":
            covariance[:2] *= 1.01
            covariance[:, :2] *= 1.01
        sketch = Sketch.of(X, weights)
        return Data.of_moment(shares @ X, covariance, sketch.weight, sketch)
    return Data.of_rows(GivenRows(scipy.sparse.csr_array(X), weights) if kind == "sparse" else rows)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["optimal", "swapped", "perturbed", "random", "deficient"])
@pytest.mark.parametrize("kind", ["triangle", "tested", "wrong", "rows", "sparse"])
def test_bounds_contain_the_true_eigenvalues_and_angles(seed, how, kind):
    rng = np.random.default_rng(seed)
    n, m, k = (60, 20, 4) if seed < 2 else (30, 50, 4)
    scales = np.exp(-np.arange(m) / rng.uniform(1, 10))
    X = (rng.standard_normal((n, m)) * scales) @ orthogonal(rng, m) + rng.choice([0.0, 1.0, 100.0])
    weights = rng.integers(1, 4, n).astype(float) if seed % 2 else None
    shares = GivenRows(X, weights).shares
    centred = (X - shares @ X) * np.sqrt(shares)[:, None]
    _, singular, right = np.linalg.svd(centred, full_matrices=False)
    values, axes = singular**2, right.T
    atoms = axes[:, :k].T.copy()
    if how == "swapped":
        atoms[k - 1] = axes[:, k + 1]
    if how == "perturbed":
        atoms += 1e-3 * rng.standard_normal(atoms.shape) / np.sqrt(m)
    if how == "random":
        atoms = rng.standard_normal(atoms.shape)
    if how == "deficient":
        atoms[-1] = atoms[0]
    data = known_as(kind, X, weights)
    found = leading(data, atoms)
    assert contains(Ball(found.values.value[:k], found.values.error[:k]), values[:k], 1e-13)
    span = np.linalg.qr(atoms[:3].T if how == "deficient" else atoms.T)[0]
    distance = np.sum((axes[:, :k] - span @ (span.T @ axes[:, :k])) ** 2) / k
    assert contains(found.subspace, distance, 1e-12)
    if how == "optimal" and kind not in ("wrong", "sparse"):
        assert found.subspace.error < 1e-9


# Singular values of the rows.


def turned(axes, k, sine, other):
    """Return k of the axes, of which the last is turned towards the axis `other`, as columns."""
    found = axes[:, :k].copy()
    found[:, k - 1] = np.sqrt(1.0 - sine**2) * axes[:, k - 1] + sine * axes[:, other]
    return found


# Certificates that read the rows anew.


@pytest.mark.parametrize("kind", ["dense", "sparse", "weighted"])
def test_sums_over_blocks_do_not_depend_on_the_centre_or_the_blocks(kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 9)) * np.r_[np.ones(8), 0.0] + np.arange(9.0)
    X[rng.random((50, 9)) < 0.5] = 0.0
    X[:, 2] += 1e6  # a column without zeros, whose mean is large
    weights = rng.uniform(0.5, 2.0, 50) if kind == "weighted" else None
    p = GivenRows(X, weights).shares
    expected = ((X - p @ X) * p[:, None]).T @ (X - p @ X)
    V, given = rng.standard_normal((3, 9)), scipy.sparse.csr_array(X) if kind == "sparse" else X
    for center in (None, X.mean(axis=0), np.zeros(9), np.full(9, 7.0)):
        data = Data.of_rows(GivenRows(given, weights), center)
        assert contains(data.mean, p @ X, 1e-9)
        assert_allclose(data.variances, np.diag(expected), atol=1e-8)
        assert_allclose(data.apply(V), V @ expected, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_all_eigenvalues_of_few_rows_are_bounded_closely(dtype, weighted):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((40, 1500)) * np.linspace(3, 1, 1500) + 20).astype(dtype)
    weights = rng.integers(0, 3, 40).astype(float) if weighted else None
    rows = GivenRows(X, weights)
    away = (X.astype(float) - rows.shares @ X.astype(float)) * np.sqrt(rows.shares)[:, None]
    exact = np.linalg.svd(away, compute_uv=False) ** 2
    for unit in (1.0, 2.0**-40):
        bounds = Data.of_rows(rows).in_units(unit).eigenvalue_bounds() * unit**2
        assert np.all(bounds >= exact)
        assert_allclose(bounds, exact, atol=1e-9 * exact.sum())
    assert Data.of_rows(GivenRows(np.zeros((600, 1500)))).eigenvalue_bounds() is None


def test_few_rows_never_hide_a_component_that_is_left_out():
    X = np.random.default_rng(0).standard_normal((60, 1500))
    axes = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2]
    assert certify((axes[:4], axes[:4].T), X, family="linear", method="plain")["subspace"].holds
    wrong = axes[[0, 1, 2, 4]]
    claim = certify((wrong, wrong.T), X, family="linear", method="plain")["subspace"]
    assert claim.holds is False
    assert contains(Ball(claim.value, claim.error), 0.25)
    nothing = np.zeros((4, 1500))
    assert not certify((nothing, nothing.T), X, family="linear", method="plain").holds


@pytest.mark.parametrize("shape", [(30, 4200), (300, 4200)])
@pytest.mark.parametrize("wrong", ["rows", "center", "offset"])
def test_a_wrong_mean_of_sparse_rows_with_many_features_is_noticed(monkeypatch, shape, wrong):
    """Mutants of the statistics of sparse rows gave a wrong mean, and were certified."""
    X = scipy.sparse.random(*shape, density=0.02, random_state=0, format="csr")
    X = X + scipy.sparse.csr_array(np.ones((shape[0], 1)) @ np.eye(1, 4200) * 3)
    from lucidae.rows import operator

    original = operator.sparse_centre

    def broken(*args):
        rows, center, offset = original(*args)
        if wrong == "center":
            center = center * 1.001
        if wrong == "offset":
            offset = offset + 1e-3 * np.abs(center + offset)
        return (rows * 1.01 if wrong == "rows" else rows), center, offset

    healthy = LinearAutoencoder(2).fit(X)
    assert healthy.certificate_.holds is not False
    monkeypatch.setattr(operator, "sparse_centre", broken)
    model = LinearAutoencoder(2).fit(X)
    found = model.certificate_
    monkeypatch.undo()
    if certify(model, X).holds is False:
        assert found.holds is not True
    else:
        assert_allclose(model.mean_, healthy.mean_, rtol=1e-9)
