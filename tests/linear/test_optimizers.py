"""Optimizers: the largest stable step of each, and automatic steps."""

import numpy as np
import pytest

from lucidae.linear.optimizers import OPTIMIZERS, DescentSettings


@pytest.mark.parametrize("optimizer", ["gradient_descent", "heavy_ball", "nesterov"])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_the_largest_stable_product_is_where_a_parabola_starts_to_diverge(optimizer, momentum):
    limit = OPTIMIZERS[optimizer].largest_stable_product(momentum)
    for factor, stable in ((0.99, True), (1.01, False)):
        rule = OPTIMIZERS[optimizer](factor * limit, momentum)
        state = rule.start(_Line(np.array([1.0])))
        for _ in range(4000):
            state = rule.update(state, state.weights)
            if abs(state.weights[0][0]) > 1e6:
                break
        assert (abs(state.weights[0][0]) < 1e3) == stable


class _Line(tuple):
    """A weight on the line f(w) = w²/2, whose gradient is itself."""

    def __new__(cls, *fields):
        return super().__new__(cls, fields)


def test_a_given_step_is_taken_as_it_is():
    assert DescentSettings(learning_rate=0.3).rate(1e9) == 0.3
    assert DescentSettings("adam").rate(1e9) == DescentSettings("adam").rate(1.0)
