"""Every threshold of a claim from both sides: a factor of three decides.

A threshold that is loosened or tightened tenfold fails here.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from linear.problems import centred_rows, spectrum_from, variational
from lucidae import LinearAutoencoder, SecondMoment
from lucidae.eigenvalue_bounds import STARTS, start_share
from lucidae.linear.certificate import certify_weights, claims, measure
from lucidae.linear.methods import Options
from lucidae.linear.objectives import LinearVAE, NonUniformL2
from lucidae.linear.probe import Estimate
from lucidae.linear.theory import AlignedPoint, hessian_eigenvalues
from lucidae.linear.verified_data import data_of
from lucidae.linear.verified_spectrum import leading_eigenpairs
from lucidae.rows.sources import MomentSource

VALUES = np.array([4.0, 2.5, 1.5, 0.7, 0.3, 0.1])
X = 2 + centred_rows(VALUES)
AXES = np.linalg.eigh(np.cov(X.T))[1][:, ::-1].T
MOMENT = SecondMoment.of(X)
SIDES = pytest.mark.parametrize(("factor", "holds"), [(3.0, False), (1 / 3, True)])


@pytest.fixture(scope="module")
def figures():
    options = Options.of(3, method="nonuniform_l2", l2=[0.1, 0.2, 0.3])
    spectrum = MomentSource(MOMENT).spectrum(None)
    method = options.make(3, spectrum, options.rng())
    weights = method.objective.minimizer(spectrum, 3)
    return measure(method, weights, data_of(MOMENT), options.training)


def verdict(figures, name):
    return {claim.name: claim.holds for claim in claims(figures)}[name]


@SIDES
def test_distance_of_the_subspace(factor, holds):
    """One of two axes leaves the subspace by an angle with sin² = 2d."""
    angle = math.asin(math.sqrt(2 * factor * 1e-3))
    rows = np.array([AXES[0], math.cos(angle) * AXES[1] + math.sin(angle) * AXES[4]])
    claim = certify_weights(rows, rows.T, X, method="plain")["subspace"]
    assert_allclose(claim.value, factor * 1e-3)
    assert claim.holds is holds


@SIDES
def test_distance_of_the_axes(factor, holds):
    angle = math.asin(math.sqrt(factor * 1e-3))
    turn = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    rows = np.array(turn) @ AXES[:2]
    claim = certify_weights(rows, rows.T, X, method="rag")["alignment"]
    assert_allclose(claim.value, factor * 1e-3)
    assert claim.holds is holds


@pytest.mark.parametrize("wrong", [True, False])
def test_one_wrong_latent_among_many_is_noticed(wrong):
    """600 latents have a threshold of half a latent: one wrong axis is 1/600 of the distance."""
    rows = np.random.default_rng(0).standard_normal((1300, 620)) * np.linspace(3, 1, 620)
    axes = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1].T[:600].copy()
    if wrong:
        axes[10] = axes[11]
    certificate = certify_weights(axes, axes.T, rows, method="rag")
    assert certificate["alignment"].holds is not wrong
    assert certificate["subspace"].holds is not wrong


@SIDES
def test_gap(factor, holds):
    """Weights shortened by δ cost δ²(σ₁² + σ₂²)."""
    shrunk = 1 - math.sqrt(factor * 1e-6 * VALUES.sum() / VALUES[:2].sum())
    rows = AXES[:2]
    claim = certify_weights(shrunk * rows, rows.T, X, method="plain")["gap"]
    assert_allclose(claim.value, factor * 1e-6, rtol=1e-6)
    assert claim.holds is holds


@SIDES
def test_a_negative_gap_is_a_contradiction(figures, factor, holds):
    assert verdict(replace(figures, gap=Estimate(-factor * 1e-6)), "gap") is holds


@SIDES
def test_balance(factor, holds):
    scale = (1 + factor * 1e-3) ** 0.25
    rows = AXES[:2]
    claim = certify_weights(scale * rows, rows.T / scale, X, method="rag", tied=False)["balance"]
    assert_allclose(claim.value, factor * 1e-3, rtol=1e-2)
    assert claim.holds is holds


@SIDES
@pytest.mark.parametrize(
    ("name", "field", "bound"), [("order", "rise", 1e-6), ("moment", "moment", 1e-6)]
)
def test_rise_and_moment(figures, factor, holds, name, field, bound):
    assert verdict(replace(figures, **{field: Estimate(factor * bound)}), name) is holds


@SIDES
def test_attributes(figures, factor, holds):
    assert verdict(replace(figures, attributes=factor * 1e-9), "attributes") is holds


@SIDES
@pytest.mark.parametrize(("tolerance", "bound"), [(0.0, 1e-9), (1e-5, 1e-4), (10.0, 1e-3)])
def test_stationarity_follows_the_tolerance_within_limits(figures, factor, holds, tolerance, bound):
    changed = replace(figures, stationarity=Estimate(factor * bound), tolerance=tolerance)
    assert verdict(changed, "stationarity") is holds


@SIDES
def test_identifiable(factor, holds):
    """A component is identifiable from a gap of 100 m·ε·σ₁² on."""
    gap = 100 / factor * 4 * np.finfo(float).eps
    data = data_of(MOMENT)
    values = np.array([1.0, 0.5, 0.5 - gap, 0.1])
    data = replace(data, mean=np.zeros(4), matrix=np.diag(values), trace=values.sum())
    found = leading_eigenpairs(data, np.eye(4)[:3])
    assert list(found.unidentifiable(3)) == ([] if holds else [2, 3])
    assert leading_eigenpairs(data, np.eye(4)[:2]).determined(2) is holds


def test_a_figure_inside_its_error_has_no_verdict(figures):
    changed = replace(figures, gap=Estimate(0.9e-6, 0.5e-6), balance=Estimate(2e-3, 5e-3))
    assert verdict(changed, "gap") is None
    assert verdict(changed, "balance") is None
    assert verdict(replace(figures, gap=Estimate(float("nan"))), "gap") is False


@pytest.mark.parametrize(("length", "present"), [(1e-291, False), (1e-289, True), (1e-6, True)])
def test_only_a_column_of_zeros_is_missing(length, present):
    rows = AXES[:2] * [[1.0], [length]]
    found = leading_eigenpairs(data_of(MOMENT), rows)
    assert_allclose(found.subspace.value, 0.0 if present else 0.5, atol=1e-9)
    assert_allclose(found.misalignments, [0.0, 0.0 if present else 1.0], atol=1e-9)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    ("angle", "verdict"), [(1e-10, True), (1e-14, None), (1e-16, False), (0.0, False)]
)
def test_columns_that_are_almost_parallel_span_what_float64_tells_apart(angle, verdict, dense):
    rows = np.array([AXES[0], AXES[0] + angle * AXES[1]])
    data = data_of(MOMENT)
    data = data if dense else replace(data, matrix=None)
    value, error = leading_eigenpairs(data, rows).subspace
    low, high = value - error, value + error
    found = True if high < 1e-3 else False if low > 1e-3 else None
    assert found is verdict


def test_the_length_that_random_starts_exceed():
    """P{χ² ≤ c} = 1e-9 for 16 degrees of freedom, by the series of its distribution."""
    c = start_share(16) ** 2
    terms = [(c / 2) ** j / math.factorial(j) for j in range(8)]
    assert_allclose(-math.expm1(math.log(sum(terms)) - c / 2), 1e-9, rtol=1e-5)
    assert STARTS == 16


# Other numbers that no test noticed.


def test_the_noise_variance_of_descent_has_a_lower_limit_of_a_millionth():
    weights = variational(np.random.default_rng(0), (2, 4))
    rule = LinearVAE()
    low = weights._replace(log_noise=np.full((1, 1), math.log(3e-7)))
    high = weights._replace(log_noise=np.full((1, 1), math.log(3e-6)))
    assert_allclose(np.exp(rule.retract(low).log_noise), 1e-6)
    assert_allclose(np.exp(rule.retract(high).log_noise), 3e-6)
    spectrum = spectrum_from([2.0, 1.0, 0.0, 0.0]).leading(2)
    assert_allclose(LinearVAE().curvature(spectrum), 2 * 4.0 / 1e-6 + 2)


def test_penalties_in_any_order_have_one_optimum():
    spectrum = spectrum_from(VALUES)
    ascending = np.array([0.1, 0.3, 0.6])
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]):
        objective = NonUniformL2(ascending[order])
        lengths = np.sum(objective.minimizer(spectrum, 3).atoms ** 2, axis=1)
        assert_allclose(lengths, (1 - ascending / VALUES[:3])[order])
        assert_allclose(objective.squared_lengths(VALUES[:3]), 1 - ascending / VALUES[:3])
        expected = NonUniformL2(ascending)
        assert_allclose(objective.minimum(spectrum, 3), expected.minimum(spectrum, 3))
        point = AlignedPoint.nonuniform(VALUES, ascending[order])
        best = AlignedPoint.nonuniform(VALUES, ascending)
        assert_allclose(hessian_eigenvalues(point), hessian_eigenvalues(best), atol=1e-12)
        fitted = LinearAutoencoder(3, method="nonuniform_l2", l2=ascending[order]).fit(X)
        assert fitted.certificate_.holds
        assert objective.zero_latents(VALUES).size == 0
