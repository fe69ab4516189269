"""Posteriors that are optimised sample by sample, against closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import hadamard_gap
from lucidae_papers.declaration import Measured, Results
from lucidae_papers.vae.best_posteriors import best_losses
from lucidae_papers.vae.manifold_verdicts import best_rates, compared_best


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("noise", [0.5, 0.02])
def test_a_linear_decoder_reaches_its_evidence_and_its_hadamard_gap(noise):
    # The posterior of a linear decoder is Gaussian, so the best −ELBO is −log p(x).
    weight, k = normal(6, 3), 3
    x = normal(5, k, seed=1) @ weight.T + noise**0.5 * normal(5, 6, seed=2)
    found = best_losses(lambda z: z @ weight.T, x, noise, normal(5, k, seed=3), steps=400)
    covariance = noise * torch.eye(6, dtype=torch.float64) + weight @ weight.T
    evidence = torch.distributions.MultivariateNormal(torch.zeros(6).double(), covariance)
    assert_allclose(found["full"], -evidence.log_prob(x), atol=1e-3)
    gap = hadamard_gap(lambda z: z @ weight.T, codes=normal(5, k), noise_variance=noise)
    assert gap.value > 0.1
    assert_allclose(found["diagonal"] - found["full"], gap.samples, atol=1e-3)


def test_a_stack_equals_its_members_and_unused_latents_have_the_prior():
    weights = normal(2, 3, 5)
    weights[1, 2] = 0.0  # the third latent of the second decoder is not used
    noise = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    x, mean = normal(2, 4, 5, seed=1), normal(2, 4, 3, seed=2)
    both = best_losses(lambda z: z @ weights, x, noise, mean, steps=400)
    evidence = [
        torch.distributions.MultivariateNormal(
            torch.zeros(5).double(), noise[i, 0] * torch.eye(5) + weights[i].T @ weights[i]
        ).log_prob(x[i])
        for i in range(2)
    ]
    assert_allclose(both["full"], -torch.stack(evidence), atol=1e-3)


def seeds(**values):
    return {name: np.array(value) for name, value in values.items()}


def test_costs_add_up():
    diagonal = seeds(encoded=[5.0, 6.0], best_diagonal=[4.0, 5.0], best_full=[3.5, 4.0])
    full = seeds(encoded=[3.5, 4.5], best_diagonal=[4.5, 5.5], best_full=[3.0, 4.0])
    found = compared_best(diagonal, full)
    encoded = np.mean(diagonal["encoded"] - full["encoded"])
    encoders = found["encoder_diagonal"] - found["encoder_full"]
    assert_allclose(encoded, found["best_difference"] + encoders)
    # Each decoder is the better one for its own kind: the cost lies between the gains.
    assert found["gain_diagonal"] <= found["best_difference"] <= found["gain_full"]
    assert_allclose(found["gain_full"] - found["best_difference"], 0.5)
    assert found["better_diagonal"] >= 0.5
    # A full decoder that is worse for full posteriors is found out.
    worse = compared_best(diagonal, full | {"best_full": np.array([4.5, 5.0])})
    assert worse["best_difference"] < worse["gain_diagonal"]
    assert worse["better_full"] < 0.0  # by 1 for both seeds


def test_each_arm_has_its_own_best_learning_rate():
    def cell(rate, seed, full, diagonal):
        arrays = {"loss/full": np.array(full), "loss/diagonal": np.array(diagonal)}
        return Measured({"design": {"learning_rate": rate}, "seed": seed}, arrays, {})

    cells = Results(
        (
            cell(0.1, 0, 1.0, 5.0),
            cell(0.1, 1, 2.0, 6.0),
            cell(0.2, 0, np.nan, 3.0),
            cell(0.2, 1, 0.0, 4.0),
        )
    )
    diagonal, full = best_rates(cells, (0.1, 0.2))
    assert_allclose(full["rate"], 0.1)  # a run that diverged is never the best
    assert_allclose(diagonal["rate"], 0.2)
    assert_allclose(diagonal["loss"], [3.0, 4.0])
