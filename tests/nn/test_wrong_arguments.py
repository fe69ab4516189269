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
    GeometricSchedule,
    NestedDropout,
    NoiseVariance,
    PrefixLoss,
    ResidualBlock,
    ResNetDecoder,
    ResNetEncoder,
    RotationAugmented,
    active_directions,
    certificate_scalars,
    certify_dropout,
    certify_linear,
    collapse_report,
    collapse_scalars,
    equalize_layers,
    hadamard_gap,
    order_dimensions,
    prefix_losses,
    prefix_scalars,
    scalars_figure,
)
from lucidae.nn.callbacks import CertificateMonitor, CollapseMonitor, PrefixMonitor

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


def rotated(encoder, optimizer=torch.optim.SGD, decoder=None, **settings):
    layers = encoder, decoder or pair()[1]
    modules = [layer for layer in (*pair(), *layers) if isinstance(layer, torch.nn.Module)]
    weights = [weight for module in modules for weight in module.parameters()]
    return RotationAugmented(optimizer(weights, lr=0.1), *layers, **settings)


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
    "nested, prior": (
        lambda x: NestedDropout(4, x),
        OBJECTS
        | without("no data", TENSORS)
        | {"name": "gaussian", "three": [0.2, 0.3, 0.5]}
        | {"negative": [1.5, -0.5, 0.0, 0.0], "sum": [0.5, 0.6, 0.0, 0.0]},
    ),
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
        without("list", OBJECTS)
        | without("tensor", NO_SIZES)
        | {"too small": [0, 2], "empty": [], "twice": [2, 2], "longest": "8"},
    ),
    "prefix loss, prior": (
        lambda x: PrefixLoss(torch.sum, 4, prior=x),
        OBJECTS | without("no data", TENSORS),
    ),
    "prefix loss, weights": (
        lambda x: PrefixLoss(torch.sum, 4, weights=x),
        OBJECTS
        | without("no data", TENSORS)
        | {"NaN": [1.0, 1.0, 1.0, float("nan")], "negative": [1.0, -1.0, 1.0, 1.0]},
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
    "noise variance": (NoiseVariance, NO_NUMBERS | {"rule": "guess", "zero": 0.0}),
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
    "rotation, tied": (lambda x: rotated(pair()[0], tied=x), {"text": "yes"}),
    "rotation, strength": (lambda x: rotated(pair()[0], strength=x), NO_NUMBERS),
    "head, latents": (lambda x: GaussianHead(3, x), NO_SIZES | {"zero": 0}),
    "head, covariance": (lambda x: GaussianHead(3, 3, x), {"text": "round", "none": None}),
    "head, rank": (lambda x: GaussianHead(3, 3, "low_rank", rank=x), {"too large": 4, "zero": 0}),
    "head, floor": (lambda x: GaussianHead(3, 3, floor=x), NO_NUMBERS | {"zero": 0.0}),
    "nested, draw": (lambda x: NestedDropout(3, draw=x), {"text": "pixel", "none": None}),
    "nested, prefix": (lambda x: NestedDropout(3)(torch.ones(2, 3), prefix=x), {"too long": 4}),
    "prefix loss, loss": (lambda x: PrefixLoss(x, 4), {"text": "sum"}),
    "prefix loss, samples": (
        lambda x: PrefixLoss(torch.sum, 4, prior="uniform", samples=x),
        NO_SIZES | {"zero": 0},
    ),
    "prefix loss, samples without prior": (
        lambda x: PrefixLoss(torch.sum, 4, samples=x),
        {"two": 2},
    ),
    "prefix loss, embeddings": (
        lambda x: PrefixLoss(torch.sum, 4, embeddings=x),
        {"zero": 0, "no names": []},
    ),
    "prefix loss, truncate": (lambda x: PrefixLoss(torch.sum, 4, truncate=x), {"text": "cut"}),
    "prefix loss, seed": (lambda x: PrefixLoss(torch.sum, 4, seed=x), {"negative": -1}),
    "schedule, start": (lambda x: GeometricSchedule(x, 1.0, 3), NO_NUMBERS | {"zero": 0.0}),
    "schedule, steps": (lambda x: GeometricSchedule(1.0, 1.0, x), NO_SIZES | {"zero": 0}),
    "penalty, dropout": (DropoutPenalty, NO_NUMBERS | {"one": 1.0}),
    "penalty, reduction": (lambda x: DropoutPenalty(0.5, reduction=x), {"text": "none"}),
    "collapse, tolerance": (lambda x: collapse_report(vae(), rows(), tolerance=x), NO_NUMBERS),
    "collapse, noise": (
        lambda x: collapse_report(vae(), rows(), noise_variance=x),
        without("none", NO_NUMBERS) | {"zero": 0.0},
    ),
    "gap, codes": (
        lambda x: hadamard_gap(linear(4, 6), codes=x, noise_variance=0.1),
        without("seven features", without("none", NO_TENSORS)) | NON_FINITE,
    ),
    "gap, noise": (
        lambda x: hadamard_gap(linear(4, 6), codes=rows(), noise_variance=x),
        without("none", NO_NUMBERS) | {"zero": 0.0},
    ),
    "gap, jacobian": (
        lambda x: hadamard_gap(linear(4, 6), codes=rows(), noise_variance=0.1, jacobian=x),
        {"text": "hutch"},
    ),
    "gap, model": (
        lambda x: hadamard_gap(x, codes=rows(), noise_variance=0.1),
        {"number": 3, "one number": lambda z: z.sum(), "infinite": lambda z: z / 0.0},
    ),
    "gap, inputs": (
        lambda x: hadamard_gap(vae(), x),
        {"none": None, "list": [1.0], "one axis": torch.ones(4)},
    ),
    "collapse monitor, epochs": (lambda x: CollapseMonitor(rows(), every_n_epochs=x), {"zero": 0}),
    "collapse monitor, module": (CollapseMonitor(rows()).measure, {"number": 3}),
    "certificate monitor, family": (
        lambda x: CertificateMonitor("a", "b", rows(), family=x),
        {"text": "sparse"},
    ),
    "prefix monitor, module": (PrefixMonitor().measure, {"number": 3}),
    "scalars, report": (collapse_scalars, {"dict": {}}),
    "scalars, certificate": (certificate_scalars, {"none": None}),
    "scalars, module": (prefix_scalars, {"number": 3}),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_raises_a_value_error_with_a_sentence(call):
    act, wrong = CALLS[call]
    for name, given in wrong.items():
        with pytest.raises(ValueError, match=r"expected|Give|Remove|diverged|no data") as raised:
            act(copy.deepcopy(given) if isinstance(given, torch.nn.Module) else given)
        assert str(raised.value).rstrip()[-1] in ".)", (call, name, str(raised.value))


class Encoding(torch.nn.Module):
    """A model whose `encode` returns anything."""

    def __init__(self, returned):
        super().__init__()
        self.encode = returned


def frozen(which):
    layers = pair()
    layers[which].requires_grad_(False)
    return rotated(*layers[:1], decoder=layers[1])


TWO = torch.ones(3, 2)
SENTENCES = {
    "LazyLinear": lambda: equalize_layers(torch.nn.LazyLinear(3), linear(3, 4)),
    r"linear1 is of type Sequential, expected an nn\.Linear": lambda: DropoutPenalty()(
        torch.nn.Sequential(linear(4, 3)), linear(3, 4)
    ),
    "model is of type Sequential, expected an nn": lambda: collapse_report(
        torch.nn.Sequential(linear(4, 3)), rows()
    ),
    "'meta' and the module on 'cpu'": lambda: DropoutPenalty()(
        *pair(), torch.ones(5, 4, device="meta")
    ),
    "returned an object of type Tensor without variance": lambda: collapse_report(
        Encoding(lambda x: x), rows()
    ),
    "a pair": lambda: collapse_report(Encoding(lambda x: (x, x, x)), rows()),
    "a pair|uneven": lambda: collapse_report(Encoding(lambda x: (x, x[:, :1])), rows()),
    "loader contains one sample": lambda: collapse_report(dictionary(), rows(1)),
    "no batch": lambda: collapse_report(dictionary(), []),
    "same hidden units": lambda: equalize_layers(linear(2, 3), linear(2, 3)),
    "same hidden units|order": lambda: order_dimensions(linear(3, 2), linear(4, 3), TWO),
    "give linear2 a bias": lambda: equalize_layers(linear(1, 3), torch.nn.Linear(3, 3, bias=False)),
    "give the target": lambda: certify_dropout(linear(4, 3), linear(3, 5), rows()),
    "at least two": lambda: order_dimensions(*pair(), rows(1)),
    "a bias in both layers": lambda: order_dimensions(
        linear(4, 2), torch.nn.Linear(2, 4, bias=False), rows(), center=True
    ),
    "optimum of an autoencoder": lambda: certify_linear(linear(4, 2), linear(2, 3), rows()),
    "3 latents": lambda: NestedDropout(3)(torch.ones(2, 4)),
    r"returned shape \(80,\) for 20 rows .* \(20, 4\)": lambda: prefix_losses(
        rows(), torch.nn.Sequential(linear(4, 4), torch.nn.Flatten(0)), rows()
    ),
    "reduction='none'": lambda: prefix_losses(TWO, lambda z: z, TWO, loss=torch.nn.MSELoss()),
    "lengths of the prefixes": lambda: PrefixLoss(torch.sum),
    r"shape \(3,\)": lambda: PrefixLoss(torch.sum, [1, 2], prior=[0.2, 0.3, 0.5]),
    "longest prefix": lambda: PrefixLoss(torch.sum, [5])(rows()),
    "are missing in the call": lambda: PrefixLoss(torch.dist, 4, embeddings=2)(rows()),
    "equal numbers": lambda: PrefixLoss(torch.dist, 4, embeddings=2)(rows(), torch.ones(5, 6)),
    "one number": lambda: PrefixLoss(lambda e: e.sum(1), 4)(rows()),
    "GaussianHead": lambda: VAE(None, linear(2, 2), None),
    "only covariance='low_rank' has a rank": lambda: GaussianHead(3, 3, "full", rank=2),
    "x has shape": lambda: VAE.resnet((1, 8, 8), 2, width=4)(torch.rand(2, 1, 7, 8)),
    "no attribute noise_variance": lambda: hadamard_gap(linear(4, 6), codes=rows()),
    "without the methods encode and decode": lambda: hadamard_gap(
        linear(4, 6), rows(), noise_variance=0.1
    ),
    "family='linear', expected none": lambda: CertificateMonitor(
        "a", "b", rows(), rows(), family="linear"
    ),
    "outside of a training": lambda: CollapseMonitor().measure(vae()),
    "no scalar": lambda: scalars_figure([{"epoch": 1.0}]),
    "gradient of a loss": lambda: RotationAugmented(
        torch.optim.LBFGS(pair()[0].parameters()), *pair()
    ),
    r"torch\.optim": lambda: RotationAugmented("sgd", *pair()),
    "not a parameter": lambda: RotationAugmented(
        torch.optim.SGD(linear(2, 2).parameters()), *pair()
    ),
    "transposed": lambda: rotated(pair()[0], decoder=linear(3, 9), tied=True),
    r"encoder\.weight does not require a gradient": lambda: frozen(0),
    r"decoder\.weight does not require a gradient": lambda: frozen(1),
} | {
    f"no longer a rotation|{kind}": lambda kind=kind: rotated(pair()[0], getattr(torch.optim, kind))
    for kind in ("Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Rprop")
}


@pytest.mark.parametrize("words", SENTENCES)
def test_the_message_says_what_is_wrong(words):
    with pytest.raises(ValueError, match=words.partition("|")[0]):
        SENTENCES[words]()


def test_settings_of_two_layers_and_diverged_ones():
    encoder, decoder = pair()
    groups = [{"params": [encoder.weight], "lr": 0.1}, {"params": [decoder.weight]}]
    with pytest.raises(ValueError, match="different settings"):
        RotationAugmented(torch.optim.SGD(groups, lr=0.2), encoder, decoder, tied=True)
    decoder.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match="diverged"):
        order_dimensions(encoder, decoder, rows())


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
