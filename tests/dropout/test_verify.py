"""The verifier: independence of the solver, formulas, thresholds, singular values not computed.

Figures are placed a factor of three above and below their threshold, so that a threshold that is
loosened or tightened tenfold changes a verdict.
"""

import ast
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import lucidae.dropout
from dropout.problems import (
    dense_hessian,
    pack,
    plain_value_and_gradient,
    problems,
    random_weights,
    regression_data,
    seeds,
)
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    SecondMoment,
    certify,
)
from lucidae.dropout import (
    DropoutObjective,
    LinearProblem,
    Weights,
    differences,
    projection,
    rows,
    solve,
)
from lucidae.dropout.claims import claims
from lucidae.dropout.differences import Slope
from lucidae.dropout.figures import ReportedAttributes
from lucidae.dropout.projection import Gram, possible_saving, smallest_loss, with_bounds
from lucidae.dropout.reduction import row_objective
from lucidae.dropout.rows import rows_problem
from lucidae.dropout.theory import optimal_value
from lucidae.dropout.verifier import measure, noise_level

FOLDER = Path(lucidae.dropout.__file__).parent
EPSILON = np.finfo(float).eps
M = np.diag([3.0, 2.0, 1.0])
STRENGTH, WIDTH = 0.25, 4
BEST = solve(LinearProblem.from_matrix(M), STRENGTH, 2)


VERIFIER = ("verifier", "reduction", "projection", "differences", "figures")


@pytest.mark.parametrize("module", VERIFIER)
def test_nothing_of_the_solver_is_imported(module):
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    imported = {
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lucidae")
        for alias in node.names
    }
    # complement is imported by verifiers only.
    allowed = {f"lucidae.{name}" for name in ("arrays", "certificates.complement", "sampling")}
    allowed |= {f"lucidae.dropout.{name}" for name in VERIFIER}
    names = ("LinearProblem", "RowReduction", "Weights", "WideRows")
    containers = {("lucidae.dropout.problem", name) for name in names}
    assert all(source in allowed or (source, name) in containers for source, name in imported)


@given(problems(), seeds())
def test_value_and_minimum_agree_with_the_solver(drawn, seed):
    problem, strength, width = drawn
    weights = random_weights(problem, width, np.random.default_rng(seed))
    figures = measure(problem, weights, strength)
    value = float(DropoutObjective(problem, strength).value(weights))
    size = max(abs(value), problem.energy, 1e-300)
    assert figures.value == pytest.approx(value, abs=1e-12 * size)
    optimum = solve(problem, strength, width)
    assert figures.optimum == pytest.approx(optimum.value, rel=1e-7, abs=1e-9 * problem.energy)
    best = measure(problem, optimum.weights, strength)
    assert abs(best.gap) < 1e-9
    assert best.subgradient < 1e-6


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), seeds())
def test_differences_give_the_exact_hessian(outputs, features, width, seed):
    rng = np.random.default_rng(seed)
    problem = LinearProblem.from_matrix(rng.standard_normal((outputs, features)))
    weights, strength = random_weights(problem, width, rng), 0.7
    slope = Slope(problem.cross, None, strength, False, pack(weights), (outputs, features, width))
    assert_allclose(
        slope(pack(weights)), plain_value_and_gradient(problem, strength, width)(pack(weights))[1]
    )
    objective = DropoutObjective(problem, strength)
    cut = outputs * width

    def product(flat):
        direction = Weights(flat[:cut].reshape(outputs, width), flat[cut:].reshape(-1, width))
        return pack(objective.hessian_product(weights, direction))

    size = len(pack(weights))
    expected = dense_hessian(product, size)
    assert_allclose(
        slope.curvature_along(np.eye(size)), expected, atol=1e-9 * (1 + np.abs(expected).max())
    )


@pytest.mark.parametrize("estimator", [DropoutRegressor(2), DropoutAutoencoder(2)])
def test_a_moment_of_other_rows_is_noticed(estimator, monkeypatch):
    X, Y = regression_data()
    healthy = SecondMoment.of.__func__
    monkeypatch.setattr(
        SecondMoment, "of", classmethod(lambda cls, X, w=None: healthy(cls, X[:-5], w))
    )
    estimator.fit(X, Y)
    assert estimator.certificate_["attributes"].holds is False


def figures_of(weights=BEST.weights, matrix=M, **settings):
    return measure(LinearProblem.from_matrix(matrix), weights, STRENGTH, **settings)


def judged(figures, name, tolerance=1e-6):
    return next(claim for claim in claims(figures, tolerance) if claim.name == name)


@pytest.mark.parametrize(
    "change",
    [
        lambda best, d: best._replace(singular_values=best.singular_values * (1 + d)),
        lambda best, d: best._replace(threshold=best.threshold + 3 * d),
        lambda best, d: best._replace(objective=best.objective + 14 * d),
        lambda best, d: best._replace(coef=(1 + d) * BEST.weights.left @ BEST.weights.right.T),
        lambda best, d: best._replace(settings=((0.2 * (1 + d), 0.2),)),
        lambda best, d: best._replace(rows=(best.objective + 14 * d, 0.0)),
    ],
)
def test_attributes(change):
    value = float(DropoutObjective(LinearProblem.from_matrix(M), STRENGTH).value(BEST.weights))
    exact = ReportedAttributes(value, BEST.rank, BEST.threshold, BEST.singular_values)
    assert judged(figures_of(reported=exact), "attributes").holds
    for amount, holds in ((3e-6, False), (3e-7, True)):
        claim = judged(figures_of(reported=change(exact, amount)), "attributes")
        assert claim.value == pytest.approx(amount, rel=1e-3)
        assert claim.holds is holds
    for rank in (BEST.rank - 1, BEST.rank + 1):
        assert judged(figures_of(reported=exact._replace(rank=rank)), "attributes").holds is False


def collinear(spread=1e-5):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((50, 4))
    X = Z[:, :1] + spread * Z
    return X, X @ rng.standard_normal((4, 3)) + rng.standard_normal((50, 3))


@pytest.mark.parametrize(("shift", "holds"), [(1.5e-9, False), (1.5e-10, True)])
def test_factorised_rows_agree_with_the_moment(shift, holds):
    X, Y = collinear()
    problem = rows_problem(X, Y, None, centered=True)[0]
    weights = solve(problem, STRENGTH, 2).weights
    wrong = replace(problem, root=problem.root * (1 + shift))
    assert judged(measure(wrong, weights, STRENGTH), "conditioning").holds is holds


def test_a_gap_below_minus_the_tolerance_fails():
    figures = figures_of()
    for shift, holds in ((-3e-6, False), (-3e-7, True), (3e-7, True), (3e-6, False)):
        moved = replace(figures, excess=figures.excess + shift * figures.explainable)
        assert judged(moved, "gap").holds is holds
        assert judged(moved, "gap").value == pytest.approx(shift, rel=1e-3)


def test_a_figure_within_its_error_has_no_verdict():
    figures = figures_of()
    assert judged(replace(figures, gap_error=3e-6), "gap").holds is None
    assert judged(replace(figures, gap_error=3e-6), "conditioning").holds is None
    assert judged(replace(figures, gap_error=3e-7), "conditioning").holds is True
    assert judged(replace(figures, gap_error=3e-6), "equalized").holds is None
    near = replace(figures, excess=1.1e-6 * figures.explainable, gap_error=3e-7)
    assert judged(near, "gap").holds is None
    assert "float64" in judged(near, "gap").advice


def test_the_curvature_of_a_point_that_is_not_quite_critical_is_uncertain():
    figures = replace(figures_of(), curvature=-1.3e-3)
    assert judged(replace(figures, stationarity=2.5e-5), "curvature").holds is False
    assert judged(replace(figures, stationarity=2.5e-4), "curvature").holds is None


@pytest.mark.parametrize(("off", "white"), [(3e-8, False), (3e-9, True)])
def test_inputs_are_white_up_to_a_tolerance(off, white):
    inputs = np.eye(3)
    inputs[0, 1] = inputs[1, 0] = off
    problem = LinearProblem(M, inputs, 14.0)
    assert problem.is_white is white
    assert measure(problem, BEST.weights, STRENGTH).white is white


@pytest.mark.parametrize(("factor", "count"), [(3.0, 2), (1 / 3, 1)])
def test_the_range_of_the_inputs_ends_at_the_level_of_rounding(factor, count):
    level = 10 * 2 * EPSILON
    # Of standardised inputs pivots are counted, 1 − c² for the correlation c.
    correlation = math.sqrt(1 - factor * level)
    inputs = np.array([[1.0, correlation], [correlation, 1.0]])
    weights = Weights(np.ones((1, 1)), np.ones((2, 1)))
    problem = LinearProblem(np.ones((1, 2)), inputs, 2.0)
    assert measure(problem, weights, STRENGTH).dropped == 2 - count
    root = np.array([[1.0, 1.0, 0.5], [0.0, factor * level, 0.5], [0.0, 0.0, 1.0]])
    problem = replace(LinearProblem.from_second(root.T @ root, 2), root=root)
    assert measure(problem, weights, STRENGTH).dropped == 2 - count


def test_the_curvature_is_always_measured_on_small_networks():
    for size, measured in ((10, True), (11, False)):
        # 2 · size · 20 weights: at most DENSE, or more.
        matrix = np.diag(np.arange(1.0, size + 1))
        weights = solve(LinearProblem.from_matrix(matrix), STRENGTH, 20).weights
        figures = measure(LinearProblem.from_matrix(matrix), weights, STRENGTH)
        assert (2 * size * 20 <= differences.DENSE) is measured
        assert (figures.curvature is not None) is measured
    saddle = Weights(np.zeros((11, 20)), np.zeros((11, 20)))
    lowest = measure(LinearProblem.from_matrix(matrix), saddle, STRENGTH).curvature
    assert lowest == pytest.approx(-2 * 11 / np.linalg.norm(matrix), rel=1e-3)


@pytest.mark.parametrize(("closeness", "measured"), [(9e-11, True), (1e-11, False)])
def test_weights_outside_the_range_are_noticed_where_the_range_is_clear(closeness, measured):
    # Features (x₁, x₂, x₁): the range ends at 1 − c², a null direction is (1, 0, −1).
    c = math.sqrt(1 - closeness)
    inputs = np.array([[1.0, c, 1.0], [c, 1.0, c], [1.0, c, 1.0]])
    problem = LinearProblem(np.array([[1.0, c, 1.0]]), inputs, 1.0)
    weights = Weights(np.ones((1, 1)), np.array([[0.5], [0.0], [-0.3]]))
    plain = measure(problem, weights, STRENGTH)
    found = plain.evidence
    exact = ReportedAttributes(
        plain.value, found["rank"], found["threshold"], found["singular_values"][:1]
    )
    judged_attributes = measure(problem, weights, STRENGTH, reported=exact).attributes
    assert (judged_attributes > 0.1) is measured


def test_the_remedy_for_lost_digits_is_centring_where_the_outputs_are_mostly_unexplained():
    figures = replace(figures_of(), gap_error=3e-6)
    for factor, centring in ((0.9e6, False), (1.1e6, True)):
        lost = replace(figures, energy=factor * figures.explainable)
        assert ("fit_intercept=True" in judged(lost, "conditioning").advice) is centring


def test_the_curvature_of_a_large_network_is_undecided_where_the_gap_is(monkeypatch):
    X = np.random.default_rng(0).standard_normal((40, 3)) * [1.0, 2.0, 3.0]
    monkeypatch.setattr(differences, "MOST_WEIGHTS", 5)
    monkeypatch.setattr("lucidae.dropout.verifier.decrease", lambda slope: 0.0)
    certificate = certify((np.zeros((3, 2)), None), X, family="dropout", dropout=0.5, tied=True)
    assert certificate["curvature"].undecided
    assert certificate["gap"].undecided
    assert certificate.holds is None


def test_a_certificate_that_cannot_be_drawn_says_why(monkeypatch):
    def fail(*args, **kwargs):
        raise ArithmeticError("no luck")

    monkeypatch.setattr("lucidae.dropout.claims.measure", fail)
    certificate = DropoutRegressor(2).fit(*regression_data()).certificate_
    assert certificate.holds is None
    assert "no luck" in certificate.summary()


def test_the_error_of_an_objective_may_overflow():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10, 4)) * 10.0 ** (150 - 2.0 * np.arange(4))
    Y = X @ rng.standard_normal((4, 2)) + np.std(X) * rng.standard_normal((10, 2))
    U, V = 1e3 * rng.standard_normal((2, 4)), 1e3 * rng.standard_normal((4, 4))
    value, error = row_objective(
        X * 10.0 ** (-2.0 * np.arange(4)), Y, None, Weights(U, V), 1.0, True
    )
    assert error == np.inf
    assert value > 0


def test_the_level_of_noise_is_that_of_reduced_rank_regression():
    # For many rows the confidence limit and the margin vanish: σ(√q + √m)/√n remains.
    n, features, targets, deviation = 1e9, 10_000, 400, 2.0
    level = noise_level(deviation**2 * np.eye(targets), features, n)
    assert level == pytest.approx(deviation * (100 + 20) / np.sqrt(n), rel=0.04)
    assert level > deviation * (100 + 20) / np.sqrt(n)
    assert noise_level(np.zeros((2, 2)), 3, 10.0) == 0.0


@pytest.fixture
def small_limit(monkeypatch):
    """Let problems with more than 40 rows and columns count as large."""
    monkeypatch.setattr(projection, "SMALL", 40)
    monkeypatch.setattr(projection, "FEW", 4)


def gram_of(matrix, seed=b"seed"):
    """Return the Gram matrix AᵀA of a matrix A in the form that the bounds use."""
    gram = matrix.T @ matrix
    size = len(gram)
    total = float(np.trace(gram))
    return Gram(size, len(matrix), lambda v: gram @ v, lambda: 1.0 * gram, total, seed)


def matrix_with(values, n=90, m=70, seed=0):
    """Return a matrix of shape (n, m) with the given singular values, and its right vectors."""
    rng = np.random.default_rng(seed)
    P, Q = (np.linalg.qr(rng.standard_normal((size, m)))[0] for size in (n, m))
    return (P * values) @ Q.T, Q


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 6),
    strength=st.sampled_from([0.0, 1e-3, 0.5, 4.0]),
)
def test_larger_singular_values_save_as_much_as_stated(seed, width, strength):
    """The minimum for the upper bounds, by the solver's own formula, is smaller by the saving."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.exponential(size=9))[::-1]
    upper = np.sort(values[:width] + rng.exponential(size=width) * rng.integers(0, 2, width))[::-1]
    total = float(np.sum(values**2) + np.sum(upper**2) + 1.0)
    tail = total - float(np.sum(values[:width] ** 2))
    before, after = (optimal_value(v, strength, width, total) for v in (values[:width], upper))
    found = possible_saving(values[:width], tail, upper, strength, width)
    assert found >= 0.0
    assert_allclose(found, before - after, atol=1e-9 * total)
    assert_allclose(smallest_loss(values[:width], tail, strength, width), before, rtol=1e-9)


SPECTRA = {
    "decaying": 0.8 ** np.arange(70),
    "signal and noise": np.r_[np.geomspace(9, 3, 4), np.linspace(1.0, 0.5, 66)],
    "flat": np.linspace(1.0, 0.99, 70),
    "equal": np.ones(70),
    "pairs": np.repeat(0.9 ** np.arange(35), 2),
    "low rank": np.r_[3.0, 2.0, 1.0, 0.5, 0.1, np.zeros(65)],
}


@pytest.mark.covering
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("cholesky", [True, False])
def test_no_singular_value_exceeds_its_bound(name, strength, cholesky, monkeypatch):
    """With any of the leading eigenvectors missing; with all of them the bounds are tight."""
    if not cholesky:
        monkeypatch.setattr(projection, "LARGEST_CHOLESKY", 0)
    values = SPECTRA[name]
    matrix, vectors = matrix_with(values)
    for missing in (None, 0, 2, WIDTH):
        kept = [i for i in range(WIDTH + 1) if i != missing]
        found = with_bounds(gram_of(matrix), values[kept] ** 2, vectors[:, kept], strength, WIDTH)
        assert np.all(found.upper >= values[:WIDTH] * (1 - 1e-9))
        tail = float(np.sum(values[WIDTH:] ** 2))
        given = values[kept][:WIDTH]
        known = float(np.sum(values[kept][:WIDTH] ** 2))
        true = smallest_loss(
            given, tail + float(np.sum(values[:WIDTH] ** 2)) - known, strength, WIDTH
        )
        true -= smallest_loss(values[:WIDTH], tail, strength, WIDTH)
        saving = possible_saving(
            given, float(np.sum(values**2)) - known, found.upper, strength, WIDTH
        )
        assert saving >= true - 1e-9 * np.sum(values**2)
        if missing is None and cholesky:
            assert saving <= 2e-7 * np.sum(values**2)
        if missing == 0 and name in ("decaying", "signal and noise", "low rank"):
            hidden = found.missed.T @ vectors[:, 0]
            assert np.linalg.norm(hidden) > 0.99


def with_hidden_value(monkeypatch, times=10**9):
    """Let the Lanczos iteration of the verifier miss the largest singular value `times` times."""
    real, left = projection.eigsh, [times]

    def misses(operator, k, **options):
        if left[0] == 0:
            return real(operator, k=k, **options)
        left[0] -= 1
        values, vectors = real(operator, k=k + 1, **options)
        return values[:-1], vectors[:, :-1]

    monkeypatch.setattr(projection, "eigsh", misses)


def large_rows(kind):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 5)) @ (rng.standard_normal((5, 50)) * 0.7 ** np.arange(5)[:, None])
    X = X + 0.05 * rng.standard_normal((60, 50))
    return scipy.sparse.csr_array(X) if kind == "sparse" else X


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_singular_value_that_lanczos_misses_does_not_make_wrong_weights_pass(
    kind, dropout, small_limit, monkeypatch
):
    X = large_rows(kind)
    dense = np.asarray(X.todense()) if kind == "sparse" else X
    centred = dense - dense.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    wrong = DropoutAutoencoder(WIDTH, dropout=dropout).fit(centred - np.outer(centred @ axis, axis))
    with_hidden_value(monkeypatch)
    weights = (wrong.left_, wrong.right_)
    judged = certify(weights, X, family="dropout", dropout=dropout)
    assert judged["gap"].holds is False
    assert judged.holds is False
    if kind == "dense":
        axis = np.linalg.svd(X, full_matrices=False)[2][0]
        factors = DropoutFactorization(WIDTH, dropout=dropout).fit(X - np.outer(X @ axis, axis))
        assert certify(factors, X)["gap"].holds is False


def test_a_missed_singular_value_is_searched_for_again(small_limit, monkeypatch):
    X = large_rows("dense")
    model = DropoutAutoencoder(WIDTH, dropout=0.3).fit(X)
    factors = DropoutFactorization(WIDTH, dropout=0.3).fit(X)
    for subject in (model, factors):
        with monkeypatch.context() as patch:
            with_hidden_value(patch, times=1)
            assert certify(subject, X).holds
        with monkeypatch.context() as patch:
            with_hidden_value(patch)
            found = certify(subject, X)
            assert found.holds is None
            assert "leading singular values" in found["gap"].advice


def test_bounds_that_decide_nothing_leave_the_certificate_undecided(small_limit, monkeypatch):
    """A flat spectrum, of which neither a Krylov space nor a factorisation gives a bound."""
    X = np.random.default_rng(0).standard_normal((400, 300))
    assert certify(DropoutFactorization(5, dropout=0.1).fit(X), X).holds
    monkeypatch.setattr(projection, "LARGEST_CHOLESKY", 0)
    monkeypatch.setattr(projection, "STEPS", (2, 3))
    model = DropoutFactorization(5, dropout=0.1).fit(X)
    assert model.certificate_.holds is None
    assert model.certificate_["gap"].holds is None
    assert model.certificate_["conditioning"].holds is None
    assert "separates them" in model.certificate_["gap"].advice
    model.left_ = 1.5 * model.left_
    assert certify(model, X)["gap"].holds is False


def test_equal_singular_values_are_all_found(small_limit):
    """Lanczos iteration from one vector finds one of several equal singular values first."""
    values = np.r_[np.full(6, 2.0), np.full(64, 1e-3)]
    matrix, _ = matrix_with(values)
    for dropout in (0.0, 0.3):
        assert certify(DropoutFactorization(WIDTH, dropout=dropout).fit(matrix), matrix).holds


def test_singular_values_that_are_not_found_leave_the_certificate_undecided(
    small_limit, monkeypatch
):
    monkeypatch.setattr(projection, "RESTARTS", 1)
    monkeypatch.setattr(projection, "LARGEST_GRAM", 10)
    monkeypatch.setattr(projection, "FEW", 1)
    draw = np.random.default_rng(0).standard_normal
    for model, X in (
        (DropoutAutoencoder(20), draw((300, 1100))),
        (DropoutFactorization(20), draw((300, 250))),
    ):
        model.fit(X)
        assert model.rank_ == 20
        assert model.certificate_.holds is None
        assert "certify" in model.certificate_.summary()
        with pytest.raises(ValueError, match="leading singular values"):
            certify(model, X)
        with monkeypatch.context() as patch:
            patch.setattr(projection, "RESTARTS", 200)
            assert certify(model, X)["gap"].holds


def test_rows_too_large_to_copy_are_judged_as_far_as_their_digits_allow(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((25, 4200))
    y = rng.standard_normal((25, 2))
    monkeypatch.setattr(rows, "LARGEST_COPY", 100)
    assert DropoutRegressor(2).fit(X, y).certificate_.holds
    X[7] = X[8] + 1e-5 * X[9]
    assert DropoutRegressor(2).fit(X, y).certificate_["gap"].holds is not False
    far = DropoutRegressor(2).fit(scipy.sparse.csr_array(X + 1e6), y)
    assert far.certificate_["conditioning"].holds is None
    assert not far.certificate_.holds
    model = DropoutRegressor(2).fit(X, y)
    monkeypatch.setattr("lucidae.dropout.claims.LARGEST_ROWS", 20)
    (claim,) = certify(model, X, y)
    assert claim.holds is None
    assert "25 rows" in claim.advice
