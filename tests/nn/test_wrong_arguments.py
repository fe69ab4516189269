"""Arguments of the wrong kind, shape, type or device raise a ValueError with a sentence."""

import copy

import numpy as np
import pytest

from extras import require

torch = require("torch")

from lucidae.nn import (
    VAE,
    DictionaryVAE,
    DropoutPenalty,
    GaussianHead,
    NestedDropout,
    NoiseVariance,
    PrefixLoss,
    ResidualBlock,
    ResNetDecoder,
    ResNetEncoder,
    RotationAugmented,
    active_directions,
    certify_dropout,
    certify_linear,
    collapse_report,
    equalize_layers,
    order_dimensions,
    prefix_losses,
)

OBJECTS = {
    "text": "x",
    "list": [1, 2],
    "module": torch.nn.Sequential(torch.nn.Linear(4, 3)),
    "class": torch.nn.Linear,
    "numpy": np.ones((5, 4), dtype=np.float32),
}
TENSORS = {
    "no axis": torch.tensor(1.0),
    "no row": torch.ones(0, 4),
    "complex": torch.ones(5, 4, dtype=torch.complex64),
    "no data": torch.ones(5, 4, device="meta"),
    "seven features": torch.ones(5, 7),
}
NON_FINITE = {"NaN": torch.full((5, 4), torch.nan), "infinity": torch.full((5, 4), torch.inf)}
NO_LAYERS = OBJECTS | {
    "none": None,
    "convolution": torch.nn.Conv2d(1, 1, 1),
    "tensor": torch.ones(2),
}
NO_TENSORS = OBJECTS | {"none": None} | TENSORS
NO_NUMBERS = {
    "none": None,
    "text": "x",
    "NaN": float("nan"),
    "negative": -1.0,
    "tensor": torch.ones(2),
}
NO_SIZES = {"none": None, "text": "x", "float": 2.5, "negative": -1, "tensor": torch.ones(2)}


def without(name, junk):
    """Return the junk without one entry, which is allowed here."""
    return {other: value for other, value in junk.items() if other != name}


def linear(inputs, outputs):
    torch.manual_seed(0)
    return torch.nn.Linear(inputs, outputs)


def pair():
    return linear(4, 3), linear(3, 4)


def rows(n=5):
    torch.manual_seed(1)
    return torch.randn(n, 4)


def vae(decoder=None):
    return VAE(linear(4, 6), GaussianHead(6, 2), decoder or linear(2, 4))


def rotated(encoder):
    layers = pair()
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    return RotationAugmented(optimizer, encoder, layers[1])


def dictionary():
    return DictionaryVAE(torch.eye(4), 0.1)


CALLS = {
    "penalty, first layer": (lambda x: DropoutPenalty()(x, pair()[1], rows()), NO_LAYERS),
    "penalty, second layer": (lambda x: DropoutPenalty()(pair()[0], x, rows()), NO_LAYERS),
    "penalty, inputs": (lambda x: DropoutPenalty()(*pair(), x), without("none", NO_TENSORS)),
    "equalize, first layer": (lambda x: equalize_layers(x, pair()[1]), NO_LAYERS),
    "equalize, second layer": (lambda x: equalize_layers(pair()[0], x), NO_LAYERS),
    "certify, layer": (lambda x: certify_dropout(x, pair()[1], rows()), NO_LAYERS),
    "certify, data": (lambda x: certify_dropout(*pair(), x), NO_TENSORS | NON_FINITE),
    "certify, target": (
        lambda x: certify_dropout(*pair(), rows(), x),
        without("none", NO_TENSORS | NON_FINITE),
    ),
    "certify, tolerance": (lambda x: certify_dropout(*pair(), rows(), tolerance=x), NO_NUMBERS),
    "order, encoder": (lambda x: order_dimensions(x, pair()[1], rows()), NO_LAYERS),
    "order, data": (lambda x: order_dimensions(*pair(), x), NO_TENSORS | NON_FINITE),
    "collapse, model": (lambda x: collapse_report(x, rows()), NO_LAYERS),
    "collapse, data": (
        lambda x: collapse_report(vae(), x),
        without("seven features", NO_TENSORS | NON_FINITE),
    ),
    "collapse, variance": (lambda x: collapse_report(vae(), rows(), max_variance=x), NO_NUMBERS),
    "collapse, spread": (lambda x: collapse_report(vae(), rows(), min_spread=x), NO_NUMBERS),
    "directions, covariance": (
        lambda x: active_directions(x, rows()),
        NO_TENSORS | {"NaN": torch.full((4, 4), torch.nan)},
    ),
    "directions, mean": (lambda x: active_directions(torch.eye(4), x), NO_TENSORS | NON_FINITE),
    "nested, dim": (NestedDropout, NO_SIZES),
    "nested, axis": (lambda x: NestedDropout(4, axis=x), without("negative", NO_SIZES)),
    "nested, prior": (lambda x: NestedDropout(4, x), OBJECTS | without("no data", TENSORS)),
    "nested, codes": (lambda x: NestedDropout(4)(x), NO_TENSORS),
    "prefixes, codes": (lambda x: prefix_losses(x, linear(4, 6), torch.ones(5, 6)), NO_TENSORS),
    "prefixes, decoder": (
        lambda x: prefix_losses(rows(), x, rows()),
        {"none": None, "text": "x", "class": torch.nn.Linear, "sizes": linear(3, 4)},
    ),
    "prefixes, target": (lambda x: prefix_losses(rows(), linear(4, 4), x), NO_TENSORS),
    "prefixes, lengths": (
        lambda x: prefix_losses(rows(), linear(4, 4), rows(), prefixes=x),
        {"text": "x", "number": 3, "too long": [5], "zero": [0], "none": [None], "empty": []},
    ),
    "prefixes, loss": (
        lambda x: prefix_losses(rows(), linear(4, 4), rows(), loss=x),
        {"text": "x", "class": torch.nn.MSELoss, "mean": torch.nn.MSELoss()},
    ),
    "prefix loss, embedding": (
        lambda x: PrefixLoss(torch.sum, 4)(x),
        without("seven features", NO_TENSORS),
    ),
    "prefix loss, lengths": (
        lambda x: PrefixLoss(torch.sum, x),
        without("list", OBJECTS) | without("tensor", NO_SIZES) | {"too small": [0], "empty": []},
    ),
    "prefix loss, prior": (
        lambda x: PrefixLoss(torch.sum, 4, prior=x),
        OBJECTS | without("no data", TENSORS),
    ),
    "prefix loss, weights": (
        lambda x: PrefixLoss(torch.sum, 4, weights=x),
        OBJECTS | without("no data", TENSORS) | {"NaN": [1.0, 1.0, 1.0, float("nan")]},
    ),
    "linear, layer": (lambda x: certify_linear(x, pair()[1], rows()), NO_LAYERS),
    "linear, data": (lambda x: certify_linear(*pair(), x), NO_TENSORS | NON_FINITE),
    "head, features": (lambda x: GaussianHead(4, 2)(x), NO_TENSORS),
    "head, size": (lambda x: GaussianHead(x, 2), NO_SIZES),
    "VAE, encoder": (
        lambda x: VAE(x, GaussianHead(6, 2), linear(2, 4)),
        {"none": None, "text": "x", "class": torch.nn.Linear},
    ),
    "VAE, batch": (lambda x: vae()(x), without("seven features", NO_TENSORS)),
    "VAE, latents": (lambda x: vae().decode(x), NO_TENSORS),
    "VAE, samples": (lambda x: vae().sample(x), NO_SIZES),
    "VAE, decoder of another shape": (
        lambda x: vae(decoder=x)(rows()),
        {"one output": linear(2, 1), "three outputs": linear(2, 3)},
    ),
    "noise variance": (NoiseVariance, NO_NUMBERS),
    "image shape": (lambda x: VAE.resnet(x, 2), NO_SIZES | {"two sizes": (8, 8)}),
    "width": (lambda x: VAE.resnet((1, 8, 8), 2, width=x), NO_SIZES | {"zero": 0}),
    "stages": (lambda x: VAE.resnet((1, 8, 8), 2, width=4, stages=x), NO_SIZES),
    "blocks": (lambda x: VAE.resnet((1, 8, 8), 2, width=4, blocks=x), NO_SIZES),
    "channels": (ResidualBlock, NO_SIZES),
    "block, images": (lambda x: ResidualBlock(4)(x), NO_TENSORS),
    "encoder, images": (lambda x: ResNetEncoder((1, 8, 8), width=4)(x), NO_TENSORS),
    "decoder, latents": (lambda x: ResNetDecoder((1, 8, 8), 4, width=4)(x), NO_TENSORS),
    "dictionary": (
        lambda x: DictionaryVAE(x, 0.1),
        {"none": None, "text": "x", "module": linear(2, 2), "one axis": torch.ones(7)}
        | without("seven features", TENSORS)
        | NON_FINITE,
    ),
    "dictionary, batch": (lambda x: dictionary()(x), NO_TENSORS),
    "dictionary, encode": (lambda x: dictionary().encode(x), NO_TENSORS),
    "dictionary, decode": (lambda x: dictionary().decode(x), NO_TENSORS),
    "dictionary, energy": (lambda x: dictionary().energy(x), NO_TENSORS | NON_FINITE),
    "rotation, encoder": (rotated, NO_LAYERS),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_raises_a_value_error_with_a_sentence(call):
    act, wrong = CALLS[call]
    for name, given in wrong.items():
        with pytest.raises(ValueError, match=r"expected|Give|Remove|diverged|no data") as raised:
            act(copy.deepcopy(given) if isinstance(given, torch.nn.Module) else given)
        assert str(raised.value).rstrip()[-1] in ".)", (call, name, str(raised.value))


def test_a_layer_without_sizes_is_refused():
    with pytest.raises(ValueError, match="LazyLinear"):
        equalize_layers(torch.nn.LazyLinear(3), linear(3, 4))


def test_the_message_names_argument_and_type():
    with pytest.raises(ValueError, match=r"linear1 is of type Sequential, expected an nn\.Linear"):
        DropoutPenalty()(torch.nn.Sequential(linear(4, 3)), linear(3, 4))
    with pytest.raises(ValueError, match="model is of type Sequential, expected an nn"):
        collapse_report(torch.nn.Sequential(linear(4, 3)), rows())
    with pytest.raises(ValueError, match="'meta' and the module on 'cpu'"):
        DropoutPenalty()(*pair(), torch.ones(5, 4, device="meta"))


def test_an_encoder_that_returns_no_posterior_is_refused():
    class Plain(torch.nn.Module):
        def encode(self, x):
            return x

    with pytest.raises(ValueError, match="returned an object of type Tensor without variance"):
        collapse_report(Plain(), rows())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float16, torch.bool])
def test_other_types_of_data_are_converted(dtype):
    data = (10 * rows(20)).to(dtype)
    same = data.float()
    model = vae()
    assert collapse_report(model, data).to_dict() == collapse_report(model, same).to_dict()
    assert dictionary()(data).loss == dictionary()(same).loss
    layers = pair()
    assert torch.equal(DropoutPenalty()(*layers, data), DropoutPenalty()(*layers, same))
    found, expected = (prefix_losses(x, linear(4, 4), x) for x in (data, same))
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)


def test_layers_and_losses_pass_nan_on():
    """As those of torch do: looking for NaN in every batch would wait for the accelerator."""
    assert torch.isnan(DropoutPenalty()(*pair(), NON_FINITE["NaN"]))
    assert torch.isnan(dictionary()(NON_FINITE["NaN"]).loss)
