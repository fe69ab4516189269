"""What cannot be meant is refused, in one sentence that helps."""

import numpy as np
import pytest

from lucidae import SparseVAE
from lucidae.sparsity import certify_coefficients, group_lasso, solve_batch
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.penalties import ArctanPenalty, PowerPenalty

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((10, 6)), rng.standard_normal((10, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"posterior": "half"}, "posterior='half' was given, expected one of 'full'"),
        ({"solver": "magic"}, "solver='magic'"),
        ({"solver": "em", "posterior": "diagonal"}, "use solver='auto'"),
        ({"solver": "coordinate", "groups": [0, 0, 1, 1, 2, 2]}, "groups share a relevance"),
        ({"noise_variance": 0.0}, "noise_variance=0.0"),
        ({"noise_variance": -1.0}, "noise_variance=-1.0"),
        ({"noise_variance": float("nan")}, "noise_variance=nan"),
        ({"noise_variance": "guess"}, "noise_variance='guess'"),
        ({"noise_variance": None}, "noise_variance=None"),
        ({"noise_variance": "learn", "posterior": "point"}, "a point estimate has none"),
        ({"significance": 0.0}, "significance=0.0"),
        ({"significance": 2.0}, "significance=2.0"),
        ({"tol": -1e-3}, "tol=-0.001"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"max_iter": 2.5}, "max_iter=2.5"),
        ({"cv": 1, "noise_variance": "cv"}, "cv=1"),
        ({"groups": [0, 1]}, "one label per column"),
        ({"groups": [0.5] * 6}, "expected integers"),
        ({"penalty": "l0"}, "penalty='l0'"),
        ({"penalty": object()}, "supergradient"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        SparseVAE(**settings).fit(X, Y)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((np.where(X > 2, np.nan, X) * np.nan, Y), "NaN"),
        ((X, np.full_like(Y, np.inf)), "infinity"),
        ((X[:0], Y[:0]), "0 sample"),
        ((X[:, :0], Y), "0 feature"),
        ((X[0], Y), "1D array"),
        ((X, Y[:5]), "inconsistent"),
        ((X * 1e80, Y), "magnitude"),
        ((X, Y * 1e-80), "magnitude"),
    ],
)
def test_data(data, message):
    with pytest.raises(ValueError, match=message):
        SparseVAE(noise_variance=0.1).fit(*data)


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(10), np.zeros(10), np.full(10, np.nan)])
def test_weights(weights):
    with pytest.raises(ValueError, match="sample_weight"):
        SparseVAE(noise_variance=0.1).fit(X, Y, sample_weight=weights)


def test_held_out_rows_need_two_of_them():
    with pytest.raises(ValueError, match="1 distinct row"):
        SparseVAE(noise_variance="cv").fit(np.ones((3, 2)), np.ones(3))


@pytest.mark.parametrize("indices", [[6], [-1], [0.5], [], [[0]]])
def test_indices_of_the_posterior(indices):
    model = SparseVAE(noise_variance=0.1).fit(X, Y)
    with pytest.raises(ValueError, match="expected a list of integers"):
        model.posterior_covariance(indices)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X, Y), {}, r"expected .B, d, κ."),
        ((X[None], Y[None, :4]), {}, "must agree"),
        ((X[None], np.full((1, 10, 2), np.nan)), {}, "NaN"),
        ((X[None], Y[None]), {"noise_variance": -1.0}, "noise_variance=-1.0"),
        ((X[None], Y[None]), {"noise_variance": np.array([0.0])}, "above 0"),
        ((X[None], Y[None]), {"noise_variance": "cv"}, "noise_variance='cv'"),
        ((X[None], Y[None]), {"posterior": "point"}, "needs a posterior"),
        ((X[None], Y[None]), {"posterior": "half", "noise_variance": 1.0}, "posterior='half'"),
        ((X[None], Y[None]), {"solver": "coordinate", "noise_variance": 1.0}, "solver="),
    ],
)
def test_stacks(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        solve_batch(*arguments, **options)


def test_penalties_and_groups_and_relatives():
    with pytest.raises(ValueError, match="exponent"):
        PowerPenalty(0.0)
    with pytest.raises(ValueError, match="width"):
        ArctanPenalty(-1.0)
    with pytest.raises(ValueError, match="one label per column"):
        Groups.of([[0]], 1)
    with pytest.raises(ValueError, match="noise_variance"):
        group_lasso(X, Y, noise_variance=0.0)
    with pytest.raises(ValueError, match=r"expected .n, κ."):
        certify_coefficients(np.ones((2, 5)), X, Y)
