"""Theory of a spectrum: residual bounds, condition bounds, zero latents, identifiability."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from linear.problems import spectra
from lucidae.linear.hessian import (
    AlignedPoint,
    condition_number,
)
from lucidae.linear.objectives import NonUniformL2
from lucidae.linear.theory import (
    nested_condition_bound,
    nonuniform_condition_bound,
    predicted_epochs,
    smallest_gap,
    zero_latents,
)

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=200)
@given(seed=seeds, k=st.integers(2, 8), outside=st.integers(0, 4))
def test_the_papers_bounds_lie_below_the_true_condition_numbers(seed, k, outside):
    rng = np.random.default_rng(seed)
    values = spectra(rng, k + outside)
    penalties = np.sort(rng.uniform(0.001, 0.999, k)) * values[k - 1]
    nonuniform = condition_number(AlignedPoint.nonuniform(values, penalties))
    assert nonuniform_condition_bound(values[:k]) <= nonuniform * (1 + 1e-9)
    prior = rng.dirichlet(np.ones(k))
    nested = condition_number(AlignedPoint.nested(values, prior), effective=True)
    assert nested_condition_bound(values[:k]) <= nested * (1 + 1e-9)


def test_two_latents_die_in_the_papers_mnist_setting():
    """√λ equally spaced 0.1 … 0.9, σ₁₉² = 0.626, σ₂₀² = 0.608 (pixels in [0, 1])."""
    penalties = np.linspace(0.1, 0.9, 20) ** 2
    values = np.concatenate([np.linspace(5.117, 0.673, 18), [0.626, 0.608]])
    assert_allclose(zero_latents(values, penalties), [19, 20])
    assert_allclose(zero_latents(values, penalties[::-1]), [1, 2])
    weights = NonUniformL2(penalties).squared_lengths(values)
    assert_allclose(np.flatnonzero(weights == 0), [18, 19])


def test_a_penalty_equal_to_its_eigenvalue_kills():
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0]), [2])
    assert_allclose(zero_latents([2.0, 1.0], [0.5, 1.0 - 1e-12]), [])


def test_gaps():
    assert smallest_gap([3.0, 2.5, 1.0], 1) == 0.5
    assert smallest_gap([3.0], 1) == 3.0


def test_a_speed_that_underflows_takes_forever():
    assert predicted_epochs(0.1, 5e-324, 0.0, 1e-3) == math.inf
