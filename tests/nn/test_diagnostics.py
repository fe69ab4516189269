"""The collapse report: what it counts, what it compares with, how it reads."""

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import (
    VAE,
    CollapseReport,
    DiagonalGaussian,
    DictionaryVAE,
    FullGaussian,
    GaussianHead,
    active_directions,
    collapse_report,
)
from lucidae.nn.collapse import column_gains, free_gain
from lucidae.nn.layers import affine_matrix


class Known(torch.nn.Module):
    """An encoder whose posterior is known: the first two of four latents carry the data."""

    noise_variance = None

    def __init__(self, turn=None):
        super().__init__()
        self.turn = torch.eye(4) if turn is None else turn

    def encode(self, x):
        mean = torch.cat([x[:, :2], torch.zeros(len(x), 2)], 1) @ self.turn.T
        scale = torch.tensor([0.1, 0.3, 1.0, 1.0])
        covariance = self.turn @ torch.diag(scale**2) @ self.turn.T
        if torch.equal(self.turn, torch.eye(4)):
            return DiagonalGaussian(mean, scale.expand_as(mean))
        return FullGaussian(mean, torch.linalg.cholesky(covariance).expand(len(x), 4, 4))


def test_counts_variances_and_divergences_of_a_known_posterior():
    torch.manual_seed(0)
    x = torch.randn(500, 3)
    report = collapse_report(Known(), x)
    assert report.n_active == report.n_coordinates == 2
    assert report.active.tolist() == [True, True, False, False]
    assert_allclose(report.variance, [0.01, 0.09, 1, 1], rtol=1e-5)
    means = (x[:, :2] ** 2).mean(0).numpy()
    expected = (np.array([0.01, 0.09]) + means - 1 - np.log([0.01, 0.09])) / 2
    assert_allclose(report.kl, [*expected, 0, 0], atol=1e-5)
    assert_allclose(report.total_kl, expected.sum(), rtol=1e-5)
    assert report.justified == (None,) * 4
    assert report.gains is None
    assert "not known" in report.summary()


def test_directions_do_not_depend_on_how_the_latents_are_turned():
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(4, 4)).Q
    x = torch.randn(500, 3)
    report = collapse_report(Known(turn), x)
    assert report.n_coordinates > 2  # every coordinate carries something
    assert report.n_active == sum(report.active) == 2
    assert report.advice.startswith("2 of")
    assert "spread over" in report.summary()
    plain = collapse_report(Known(), x)
    assert_allclose(report.total_kl, plain.total_kl, rtol=1e-4)
    order = np.argsort(plain.variance)
    for name in ("variance", "kl", "spread"):
        rotated = getattr(report, name)[np.argsort(report.variance)]
        assert_allclose(rotated, getattr(plain, name)[order], rtol=1e-3, atol=1e-5)
    spread = torch.diag(torch.tensor([0.1, 0.95]))
    assert active_directions(spread, torch.tensor([[1.0, 1.0], [-1.0, -1.0]])) == 1


def test_loaders_batches_and_modes():
    torch.manual_seed(0)
    model = VAE.resnet((1, 8, 8), 3, width=8, features=8).train()
    x = torch.rand(20, 1, 8, 8)
    model.encoder.eval()  # a part that is frozen
    data = torch.utils.data.TensorDataset(x, torch.zeros(20))
    loader = torch.utils.data.DataLoader(data, batch_size=6)
    report = collapse_report(model, loader)
    assert [part.training for part in (model, model.encoder, model.decoder)] == [True, False, True]
    assert_allclose(report.kl, collapse_report(model, x).kl, atol=1e-6)
    assert report.n_samples == 20
    assert report.gains is None
    assert report.linear_latents == 0  # the noise variance is still 1
    assert "not linear" in report.summary()


def test_gains_are_the_curvature_of_the_likelihood():
    """A new column εv changes the negative log-likelihood by ½ε²(vᵀC⁻¹v − vᵀC⁻¹ΣC⁻¹v)."""
    rng = np.random.default_rng(0)
    W, root = rng.standard_normal((4, 2)), rng.standard_normal((4, 4))
    sigma, gamma, step = root @ root.T, 0.3, 1e-3

    def likelihood(columns):
        C = columns @ columns.T + gamma * np.eye(4)
        return 0.5 * (np.linalg.slogdet(C)[1] + np.trace(np.linalg.solve(C, sigma)))

    inverse = np.linalg.inv(W @ W.T + gamma * np.eye(4))
    for v in rng.standard_normal((5, 4)):
        (gain,) = column_gains(
            torch.tensor(W), gamma, torch.tensor(sigma), torch.tensor(v[:, None])
        ).numpy()
        change = likelihood(np.column_stack([W, step * v])) - likelihood(W)
        assert_allclose(change, 0.5 * step**2 * (v @ inverse @ v) * (1 - gain), rtol=1e-3)


def test_gain_of_a_free_decoder_is_the_best_over_directions_that_are_not_reached():
    rng = np.random.default_rng(0)
    W, root = rng.standard_normal((4, 2)), rng.standard_normal((4, 4))
    sigma = torch.tensor(root @ root.T)
    best = free_gain(torch.tensor(W), 0.3, sigma).item()
    outside = np.linalg.svd(W)[0][:, 2:] @ rng.standard_normal((2, 2000))
    tried = column_gains(torch.tensor(W), 0.3, sigma, torch.tensor(outside)).numpy()
    assert tried.max() <= best * (1 + 1e-9)
    assert tried.max() > 0.99 * best
    assert free_gain(torch.eye(4).double(), 0.3, sigma).item() == 0.0


@pytest.mark.parametrize(("noise", "expected"), [(0.1, False), (2.0, True)])
def test_a_collapsed_linear_model_is_justified_only_if_the_data_are_noise(noise, expected):
    torch.manual_seed(0)
    head = GaussianHead(3, 2, "diagonal")
    model = VAE(torch.nn.Identity(), head, torch.nn.Linear(2, 3), noise_variance=noise)
    with torch.no_grad():
        for layer in (head.mean, model.decoder):
            layer.weight.zero_()
    report = collapse_report(model, torch.randn(2000, 3))
    assert report.n_active == 0
    assert report.justified == (expected, expected)
    assert report.linear_latents == (0 if expected else 3)


def test_each_column_of_a_dictionary_is_judged_by_itself():
    torch.manual_seed(0)
    x = torch.randn(3000, 2).double() * torch.tensor([2.0, 0.5]).double()
    model = DictionaryVAE(torch.eye(2).double(), 1.0, covariance="diagonal")
    with torch.no_grad():
        model.weight.zero_()
    report = collapse_report(model, x)
    assert report.justified == (False, True)
    assert_allclose(report.gains, [4.0, 0.25], rtol=0.1)


def test_report_reads_as_text_html_and_json():
    torch.manual_seed(0)
    model = DictionaryVAE(torch.eye(2), 1.0)
    report = collapse_report(model, torch.randn(50, 2))
    assert "0 of 2 latents active" in str(report)
    assert "justified" in str(report)
    page = report._repr_html_()
    assert page.count("<tr") == 3
    assert "<script" not in page
    assert json.loads(json.dumps(report.to_dict()))["n_active"] == 0


def test_a_report_is_drawn_with_all_latents():
    require("matplotlib")
    torch.manual_seed(0)
    report = collapse_report(Known(), torch.randn(100, 3))
    axes = report.plot()
    heights = sorted(bar.get_height() for bar in axes.patches)
    assert_allclose(heights, np.sort(report.variance))
    assert axes.get_ylim()[1] > max(*report.spread, *report.variance)


class PlainVAE(torch.nn.Module):
    """A VAE as users write it: nothing of this package, and no noise variance."""

    def __init__(self, kind, latents=6, d=5):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.latents = kind, latents
        self.encoder = torch.nn.Linear(d, 2 * latents)
        self.decoder = torch.nn.Linear(latents, d)

    def encode(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
        if self.kind == "normal":
            return normal
        if self.kind == "independent":
            return torch.distributions.Independent(normal, 1)
        if self.kind == "multivariate":
            return torch.distributions.MultivariateNormal(
                mean, scale_tril=torch.diag_embed((log_variance / 2).exp())
            )
        return mean, log_variance

    def decode(self, z):
        return self.decoder(z)


KINDS = ["pair", "normal", "independent", "multivariate"]


def test_every_form_of_a_gaussian_posterior_gives_the_same_report():
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    reports = [collapse_report(PlainVAE(kind), x).to_dict() for kind in KINDS]
    for found in reports[1:]:
        assert found["advice"] == reports[0]["advice"]
        for name in ("kl", "variance", "spread", "total_kl", "noise_variance"):
            assert_allclose(found[name], reports[0][name], rtol=1e-5, atol=1e-6)


def test_the_noise_of_a_plain_model_is_the_error_of_its_reconstructions():
    x = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    model = PlainVAE("pair")
    report = collapse_report(model, torch.utils.data.DataLoader(x, batch_size=30))
    with torch.no_grad():
        error = (x - model.decode(model.encode(x)[0])).square().mean().item()
    assert_allclose(report.noise_variance, error, rtol=1e-5)
    assert report.noise_estimated
    assert "(estimated)" in report.headline
    stated = collapse_report(model, x, noise_variance=0.5)
    assert (stated.noise_variance, stated.noise_estimated) == (0.5, False)
    model.decode = None
    assert collapse_report(model, x).noise_variance is None


@pytest.mark.parametrize("noise", [0.02, 0.3, 3.0])
def test_the_linear_number_of_latents_is_that_of_probabilistic_pca(noise):
    """The likelihood of probabilistic PCA at fixed γ grows up to this number and not beyond."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(500, 5, generator=generator) * torch.tensor([2.0, 1.0, 0.4, 0.2, 0.05])
    report = collapse_report(PlainVAE("pair", latents=2), x, noise_variance=noise)
    values = np.linalg.eigvalsh(np.cov(x.double().numpy().T, bias=True))[::-1]

    def log_likelihood(count):
        fitted = np.where(np.arange(5) < count, np.maximum(values, noise), noise)
        return -0.5 * np.sum(np.log(fitted) + values / fitted)

    found = [log_likelihood(count) for count in range(6)]
    best = next(c for c in range(6) if np.isclose(found[c], max(found), rtol=0, atol=1e-12))
    assert report.linear_latents == best


def test_advice_says_how_many_latents_are_needed():
    def advice(used, total, linear, gains=None):
        active = np.arange(total) < used
        report = CollapseReport(
            kl=np.where(active, 1.0, 0.0),
            variance=np.where(active, 0.1, 1.0),
            spread=np.where(active, 0.9, 0.0),
            active=active,
            total_kl=float(used),
            n_samples=10,
            n_coordinates=used,
            gains=None if gains is None else np.full(total, gains),
            linear_latents=linear,
            noise_variance=None if linear is None else 0.1,
            max_variance=0.9,
            min_spread=0.01,
            tolerance=0.05,
        )
        assert report.advice in report.summary()
        assert report.to_dict()["advice"] == report.advice
        return report.advice

    assert advice(4, 8, 4).startswith("4: as many as the data need")
    assert advice(8, 8, 20).startswith("More than 8 may help: all are used. A linear decoder")
    assert advice(8, 8, 8).startswith("8: all are used.")
    assert advice(8, 8, None) == "More than 8 may help: all are used."
    assert advice(3, 8, None) == "3 of 8: the other 5 carry no information."
    assert advice(3, 4, None) == "3 of 4: the other one carries no information."
    assert "training has not found" in advice(3, 8, 5)
    assert advice(3, 8, 5, gains=4.0).startswith("5: the model uses 3")
    assert "would need 2." in advice(3, 8, 2)
    assert advice(0, 8, 0).startswith("None: no direction")
    assert advice(0, 8, 5).startswith("The model uses none of 8, a linear VAE of this noise 5")
    assert advice(0, 8, None).startswith("The model uses none of 8: all posteriors")


class Named(torch.nn.Module):
    """A VAE whose decoder has any name and may be followed by a nonlinear function."""

    def __init__(self, name, layer, then=lambda out: out):
        super().__init__()
        self.encoder = torch.nn.Linear(6, 8)
        self.add_module(name, layer)
        self.name, self.then = name, then

    def encode(self, x):
        return self.encoder(x).chunk(2, 1)

    def decode(self, z):
        return self.then(getattr(self, self.name)(z))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_what_decode_computes_decides_whether_it_is_linear(dtype, offset):
    torch.manual_seed(0)
    x = torch.randn(60, 6, dtype=dtype)
    layer = torch.nn.Linear(4, 6)
    layer.bias.data += offset
    report = collapse_report(Named("decoder", layer).to(dtype), x, noise_variance=0.1)
    other = collapse_report(Named("output", layer).to(dtype), x, noise_variance=0.1)
    assert report.gains is not None
    sigma = torch.cov(x.double().T, correction=0)
    active = torch.from_numpy(report.active)
    expected = free_gain(layer.weight.detach().double()[:, active], 0.1, sigma)
    assert_allclose(report.gains, float(expected), rtol=1e-5)
    assert other.gains is not None
    for then in (torch.sigmoid, torch.tanh, torch.relu, lambda out: out.clamp(-2, 2)):
        curved = Named("decoder", torch.nn.Linear(4, 6), then).to(dtype)
        curved = collapse_report(curved, x, noise_variance=0.1)
        assert curved.gains is None
        assert curved.justified == (None,) * 4
        assert "the decoder is not linear" in str(curved)


def test_products_of_layers_are_linear_and_faint_curvature_is_not():
    torch.manual_seed(0)
    wide = torch.nn.Sequential(
        torch.nn.Linear(4, 300), torch.nn.Linear(300, 300), torch.nn.Linear(300, 6)
    )
    codes = torch.randn(9, 4)
    product = wide[2].weight @ wide[1].weight @ wide[0].weight
    found = affine_matrix(wide, codes)
    assert_allclose(found.numpy(), product.detach().double().numpy(), atol=1e-6)
    faint = torch.nn.Linear(4, 6)
    faint.weight.data *= 1e-2  # sigmoid(faint(z)) is almost a plane for |z| < 1
    assert affine_matrix(lambda z: torch.sigmoid(faint(z)), codes) is None
    assert affine_matrix(lambda z: faint(z.bfloat16().float()), codes) is None
    assert affine_matrix(lambda z: (z, z), codes) is None
    assert affine_matrix(lambda z: z / 0.0, codes) is None
    assert affine_matrix(lambda z: (z > 0).long(), codes) is None
    assert affine_matrix(lambda z: z.sum(1), codes) is None
    state = torch.get_rng_state()
    assert affine_matrix(faint, codes) is not None
    assert torch.equal(state, torch.get_rng_state())


def test_a_decoder_that_needs_more_than_latents_is_not_called_linear():
    class Conditional(Named):
        def decode(self, z, condition):
            return self.decoder(z) * condition

    torch.manual_seed(0)
    model = Conditional("decoder", torch.nn.Linear(4, 6)).train()
    report = collapse_report(model, torch.randn(30, 6), noise_variance=0.1)
    assert report.gains is None
    assert model.training


def test_without_decode_the_layer_decides():
    torch.manual_seed(0)
    model = Known()
    x = torch.randn(30, 3)
    assert collapse_report(model, x, noise_variance=0.1).gains is None
    model.decode = torch.sigmoid
    assert collapse_report(model, x, noise_variance=0.1).gains is None
    del model.decode
    model.decoder = torch.nn.Linear(4, 3)
    assert collapse_report(model, x, noise_variance=0.1).gains is not None
