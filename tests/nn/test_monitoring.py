"""Scalars for the log of a training: what the plain functions return, and their figure."""

import math

import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import (
    DictionaryVAE,
    PrefixLoss,
    certificate_scalars,
    certify_dropout,
    certify_linear,
    collapse_report,
    collapse_scalars,
    mean_scalars,
    prefix_scalars,
    scalars_figure,
)


def data(n=200):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x * torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64)


def principal_layers(turn=None):
    """Return an encoder and a decoder at the principal components, turned if asked."""
    x = data() - data().mean(0)
    top = torch.linalg.eigh(x.T @ x / len(x)).eigenvectors.flip(1)[:, :2]
    top = top if turn is None else top @ turn
    encoder, decoder = torch.nn.Linear(4, 2).double(), torch.nn.Linear(2, 4).double()
    encoder.weight.data, decoder.weight.data = top.T.clone(), top.clone()
    return encoder, decoder


def test_a_linear_bottleneck_is_judged_by_the_principal_components():
    certificate = certify_linear(*principal_layers(), data())
    assert certificate.holds
    turned = certify_linear(
        *principal_layers(torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()), data()
    )
    assert turned["subspace"].holds
    assert turned["alignment"].holds is False
    with pytest.raises(ValueError, match="optimum of an autoencoder"):
        certify_linear(torch.nn.Linear(4, 2), torch.nn.Linear(2, 3), data())


def test_scalars_of_a_certificate_are_its_values():
    certificate = certify_linear(*principal_layers(), data())
    scalars = certificate_scalars(certificate)
    for claim in certificate.claims:
        if claim.value is not None and math.isfinite(claim.value):
            assert scalars[claim.name] == claim.value
    assert scalars["claims_failed"] == 0
    assert scalars["claims_held"] == sum(claim.holds is True for claim in certificate.claims)
    first, second = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    found = certificate_scalars(certify_dropout(first, second, data()))
    assert found["gap"] > 0
    assert found["claims_failed"] >= 1
    assert all(type(value) is float for value in found.values())


def test_scalars_of_a_collapse_report_are_its_numbers():
    report = collapse_report(DictionaryVAE(torch.eye(4).double(), 0.5), data())
    scalars = collapse_scalars(report)
    assert scalars["active"] == report.n_active
    assert scalars["total_kl"] == report.total_kl
    assert scalars["linear_latents"] == 4
    assert all(type(value) is float for value in scalars.values())


def test_scalars_of_prefixes_inside_a_network():
    one, two = PrefixLoss(torch.sum, [1, 3]), PrefixLoss(torch.mean, [2], name="other")
    network = torch.nn.ModuleDict({"a": one, "b": two})
    one(torch.ones(2, 4))
    two(torch.ones(2, 4))
    assert prefix_scalars(network) == {"prefix_1": 2.0, "prefix_3": 6.0, "other_2": 0.5}
    twice = torch.nn.ModuleDict({"a": one, "b": PrefixLoss(torch.sum, [1])})
    assert list(prefix_scalars(twice)) == ["a.prefix_1", "a.prefix_3"]
    assert mean_scalars([]) == {}
    assert_allclose(mean_scalars([{"x": 1.0}, {"x": 2.0, "y": 4.0}])["x"], 1.5)


def test_the_figure_has_a_panel_for_each_scalar_and_one_for_all_prefixes():
    require("matplotlib")
    history = [
        {"epoch": float(e), "gap": 10.0**-e, "prefix_2": 3.0 - e, "prefix_16": 1.0, "held": e}
        for e in range(3)
    ]
    figure = scalars_figure(history, "Training")
    drawn = {axes.get_title(): axes for axes in figure.axes if axes.has_data()}
    assert list(drawn) == ["gap", "prefix", "held"]
    assert drawn["gap"].get_yscale() == "log"
    assert drawn["held"].get_yscale() == "linear"
    assert [line.get_label() for line in drawn["prefix"].lines] == ["2", "16"]
    assert_allclose(drawn["gap"].lines[0].get_xdata(), [0, 1, 2])


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="expected a CollapseReport"):
        collapse_scalars({})
    with pytest.raises(ValueError, match="expected a Certificate"):
        certificate_scalars(None)
    with pytest.raises(ValueError, match=r"expected an nn\.Module"):
        prefix_scalars(3)
    with pytest.raises(ValueError, match="no scalar"):
        scalars_figure([{"epoch": 1.0}])
