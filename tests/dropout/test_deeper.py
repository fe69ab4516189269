"""Linear networks with several hidden layers of dropout: Mianjy & Arora 2019."""

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose

from lucidae import DropoutFactorization


def expected_loss(layers, target, strength):
    """Return the squared error for white inputs, averaged over the masks of all hidden layers."""
    moment, product = np.eye(target.shape[1]), np.eye(target.shape[1])
    for number, layer in enumerate(layers):
        if number:  # a mask b has E[bᵢ²] = 1 + λ and E[bᵢbⱼ] = 1
            moment = moment + strength * np.diag(np.diag(moment))
        moment, product = layer @ moment @ layer.T, layer @ product
    return np.sum(target**2) - 2 * np.sum(target * product) + np.trace(moment)


def trained(target, widths, strength, starts=4):
    """Return the smallest expected loss of several descents."""
    sizes = [target.shape[1], *widths, target.shape[0]]
    shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
    cuts = np.cumsum([a * b for a, b in shapes])

    def loss(flat):
        parts = np.split(flat, cuts[:-1])
        return expected_loss(
            [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)],
            target,
            strength,
        )

    rng = np.random.default_rng(0)
    return min(scipy.optimize.minimize(loss, rng.normal(size=cuts[-1])).fun for _ in range(starts))


@pytest.mark.parametrize(("widths", "strength"), [((2, 2), 0.5), ((2, 3), 3.0), ((2, 2, 2), 1.0)])
def test_the_squared_nuclear_norm_bounds_deeper_networks_and_is_attained_at_rank_one(
    widths, strength
):
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(n, 2)))[0] for n in (2, 3))
    nu = np.prod([1 + strength / width for width in widths]) - 1
    r = min(widths)
    for second in (0.9, 0.5 * nu / (1 + nu)):  # σ₂/σ₁: rank two, and rank one
        target = left * (1.0, second) @ right.T
        bound = DropoutFactorization(r, dropout=nu * r / (1 + nu * r)).fit(target)
        found = trained(target, widths, strength)
        assert found >= bound.objective_ - 1e-6
        if bound.rank_ == 1:
            assert_allclose(found, bound.objective_, atol=1e-4)
            assert_allclose(bound.objective_, 1 - 1 / (1 + nu) + second**2)
        else:
            assert second == 0.9
