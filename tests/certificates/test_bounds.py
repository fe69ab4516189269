"""Balls contain the exact value, and enclosures the exact eigenvalues, singular values and axes."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lucidae.certificates.bounds import (
    Ball,
    enclose_eigenvalues,
    enclose_singular_values,
    triangle,
    turn,
)

numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
radii = st.floats(0, 1)
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def contains(ball, exact):
    if not math.isfinite(ball.error):
        return True
    return abs(Fraction(float(ball.value)) - exact) <= Fraction(float(ball.error))


@given(numbers, radii, numbers, radii, st.sampled_from("+-*/"), st.floats(-1, 1), st.floats(-1, 1))
def test_a_result_contains_that_of_all_numbers_in_its_operands(a, ra, b, rb, sign, s, t):
    left, right = Fraction(a) + Fraction(s) * Fraction(ra), Fraction(b) + Fraction(t) * Fraction(rb)
    result = OPERATIONS[sign](Ball(a, ra), Ball(b, rb))
    if sign == "/" and abs(b) <= rb:
        assert result.error == math.inf
    else:
        assert contains(result, OPERATIONS[sign](left, right))


@given(st.floats(0, 1e6), radii, st.floats(-1, 1))
def test_a_root_contains_that_of_all_numbers_in_its_operand(a, radius, s):
    exact = Fraction(a) + Fraction(s) * Fraction(radius)
    if exact >= 0:
        root = Ball(a, radius).sqrt()
        with mpmath.workdps(60):
            true = mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator)
            assert abs(mpmath.mpf(float(root.value)) - true) <= mpmath.mpf(float(root.error))


@pytest.mark.parametrize("seed", range(5))
def test_a_product_of_matrices_contains_the_exact_one(seed):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((4, 300)) * 1e3, rng.standard_normal((300, 3))
    dA, dB = rng.uniform(0, 1e-6, A.shape), rng.uniform(0, 1e-6, B.shape)
    found = Ball(A, dA) @ Ball(B, dB)
    signs = rng.choice([-1, 1], A.shape), rng.choice([-1, 1], B.shape)
    rows, columns = A + signs[0] * dA, (B + signs[1] * dB).T
    slack = Fraction(1e-9)  # these sums were rounded
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            exact = sum(Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True))
            away = abs(Fraction(found.value[i, j]) - exact)
            assert away <= Fraction(found.error[i, j]) + slack
    assert np.all((Ball(A) @ Ball(B)).error < 1e-7)


def test_a_verdict_is_none_where_both_are_possible():
    assert Ball(1.0, 0.1).verdict(2.0) is True
    assert Ball(1.0, 0.1).verdict(0.5) is False
    assert Ball(1.0, 0.1).verdict(1.05) is None
    assert Ball(math.nan, 0.0).verdict(1.0) is False
    assert Ball.between(1.0, 3.0) == Ball(2.0, 1.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([0.0, 1e-8, 1e-3]))
def test_eigenvalues_and_axes_of_a_disturbed_matrix_are_enclosed(seed, m, error):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    values = np.sort(rng.uniform(0, 1, m))[::-1]
    noise = rng.standard_normal((m, m))
    noise = (noise + noise.T) / np.linalg.norm(noise + noise.T, 2)
    found = enclose_eigenvalues(basis * values @ basis.T + error * noise, error, m)
    assert np.all(np.abs(found.values - values) <= found.error)
    sines = np.sqrt(np.maximum(1 - np.sum(found.axes * basis, axis=0) ** 2, 0.0))
    apart = np.abs(np.subtract.outer(found.values, found.values)) + np.diag(np.full(m, np.inf))
    assert np.all(sines <= turn(found.error, np.min(apart, axis=1)) + 1e-7)


def test_a_bound_on_an_angle_is_attained_up_to_the_uncertainty_of_the_gap():
    error, gap = 1e-3, 0.1
    # The axis of diag(gap, 0) + error·[[0, 1], [1, 0]] is turned by about error/gap.
    _, axes = np.linalg.eigh([[gap, error], [error, 0.0]])
    assert abs(axes[0, 0]) <= turn(error, gap) <= 1.05 * abs(axes[0, 0])
    assert turn(1.0, 0.5) == 1.0


@pytest.mark.parametrize("n", [5, 3000])
def test_the_triangle_has_the_singular_values_of_the_rows(n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 12)) * np.logspace(0, -12, 12)
    factor, error = triangle(X)
    found = enclose_singular_values(factor, error)
    # From rows in another precision: the small ones have digits that XᵀX would not have.
    expected = np.linalg.svd(X, compute_uv=False)
    assert np.all(np.abs(found.values - expected) <= found.error)
    assert found.error < 1e-9 * expected[0]
