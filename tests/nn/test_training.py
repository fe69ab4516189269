"""`fit_vae` finds known optima, goes on where it was interrupted, and refuses what is no data."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import VAE, DiagonalGaussian, GaussianHead, fit_vae


def model(covariance="full", k=3, d=6, seed=0, noise="learn"):
    torch.manual_seed(seed)
    head = GaussianHead(d, k, covariance)
    return VAE(torch.nn.Identity(), head, torch.nn.Linear(k, d), noise_variance=noise)


def rows(n=400, d=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng) * torch.tensor([3.0, 2.0, 1.0, 0.2, 0.2, 0.2])
    return x @ torch.linalg.qr(torch.randn(d, d, generator=rng)).Q


@pytest.mark.parametrize("covariance", ["full", "decoder"])
def test_a_linear_vae_reaches_the_likelihood_of_probabilistic_pca(covariance):
    x = rows()
    solution = fit_vae(model(covariance), x, epochs=150, batch_size=100, learning_rate=0.03)
    values = np.linalg.eigvalsh(np.cov(x.double().numpy().T, bias=True))[::-1]
    noise = values[3:].mean()
    best = (6 * np.log(2 * np.pi) + np.log(values[:3]).sum() + 3 * np.log(noise) + 6) / 2
    assert best - 0.05 < solution.history["loss"][-1] < best + 0.15
    assert_allclose(solution.value.noise_variance.item(), noise, rtol=0.15)
    assert solution.history["active_directions"][-1] == 3


@pytest.mark.parametrize("covariance", ["decoder", "decoder_diagonal"])
def test_the_covariance_of_a_linear_decoder_is_that_of_the_exact_posterior(covariance):
    vae, x = model(covariance, noise=0.3), rows()[:5]
    weight = vae.decoder.weight.detach().double()
    precision = torch.eye(3) + weight.T @ weight / 0.3
    posterior = vae.encode(x)
    if covariance == "decoder_diagonal":
        assert isinstance(posterior, DiagonalGaussian)
        expected = (1 / precision.diagonal()).expand(5, 3)
        assert_allclose(posterior.variance.detach(), expected, rtol=1e-5)
    else:
        inverse = torch.linalg.inv(precision).expand(5, 3, 3)
        assert_allclose(posterior.covariance.detach(), inverse, atol=1e-5)
        vae.head.coupling.fill_(0.0)  # the diagonal one
        expected = torch.diag(1 / precision.diagonal()).expand(5, 3, 3)
        assert_allclose(vae.encode(x).covariance.detach(), expected, atol=1e-5)
    # No gradient reaches the decoder through the covariance, and the mean has one.
    posterior.kl().sum().backward()
    assert vae.decoder.weight.grad is None
    assert vae.head.mean.weight.grad is not None


def test_batch_normalisation_is_not_updated_by_the_jacobian():
    torch.manual_seed(0)
    decoder = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6))
    vae = VAE(torch.nn.Identity(), GaussianHead(6, 3, "decoder"), decoder)
    vae.encode(rows()[:20])
    assert decoder[1].num_batches_tracked == 0
    vae(rows()[:20])
    assert decoder[1].num_batches_tracked == 1
    assert decoder.training


def test_half_precision_of_layers_leaves_the_covariance_of_the_decoder():
    torch.manual_seed(0)
    vae = VAE.resnet((1, 8, 8), 3, covariance="decoder", width=4, features=8).eval()
    x = torch.rand(4, 1, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = vae.encode(x).covariance
    assert found.dtype == torch.float32
    assert_allclose(found.detach(), vae.encode(x).covariance.detach(), atol=0.02)


def test_an_interrupted_training_goes_on_with_the_same_result(tmp_path):
    x, settings = rows(), {"epochs": 6, "batch_size": 100}
    whole = fit_vae(model(), x, **settings)

    class StopError(Exception):
        pass

    broken = model()
    seen = []
    broken.register_forward_hook(lambda *_: seen.append(1))

    def stop(*_):
        if len(seen) == 24:
            raise StopError

    broken.register_forward_hook(stop)
    path = tmp_path / "training.npz"
    with pytest.raises(StopError):
        fit_vae(broken, x, checkpoint=path, **settings)
    resumed = fit_vae(model(), x, checkpoint=path, **settings)
    for name, values in whole.history.values.items():
        assert_allclose(resumed.history[name], values, rtol=1e-6)


def test_loaders_and_arrays_are_data_and_small_data_get_more_epochs():
    x = rows(60)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=25)
    settings = {"epochs": 2, "batch_size": 30}
    found = [fit_vae(model(), data, **settings).history["loss"] for data in (x, loader, x.numpy())]
    assert_allclose(found[1], found[0], rtol=1e-6)
    assert_allclose(found[2], found[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 3}, "model is of type int"),
        ({"data": torch.full((4, 6), torch.nan)}, "data"),
        ({"data": []}, "data contains no batch"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
    ],
)
def test_wrong_arguments_are_named(change, words):
    given = {"model": model(), "data": rows(40), "epochs": 1} | change
    with pytest.raises(ValueError, match=words):
        fit_vae(given.pop("model"), given.pop("data"), **given)
