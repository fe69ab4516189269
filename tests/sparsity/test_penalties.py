"""Concave penalties of the point estimate, by value and supergradient."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from lucidae.sparsity.penalties import ArctanPenalty, LogPenalty, PowerPenalty


@pytest.mark.parametrize("penalty", [LogPenalty(), PowerPenalty(0.3), ArctanPenalty(0.1)])
def test_supergradient_is_the_derivative_and_bounds_a_concave_function(penalty):
    at = np.array([0.05, 0.3, 2.0])
    step = 1e-6 * at
    slope = (penalty.value(at + step) - penalty.value(at - step)) / (2 * step)
    assert_allclose(penalty.supergradient(at), slope, rtol=1e-6)
    elsewhere = np.linspace(0.01, 4, 50)[:, None]
    tangent = penalty.value(at) + penalty.supergradient(at) * (elsewhere - at)
    assert (penalty.value(elsewhere) <= tangent + 1e-12).all()


def test_parameters_outside_their_range_are_refused():
    with pytest.raises(ValueError, match="exponent"):
        PowerPenalty(0.0)
    with pytest.raises(ValueError, match="width"):
        ArctanPenalty(-1.0)
