"""`certify` dispatches on its subject, and refuses what it cannot judge with a reason."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SecondMoment,
    SparseVAE,
    certify,
)


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(1)
    X = random.standard_normal((60, 5)) * [5, 4, 3, 2, 1]
    return X, X @ random.standard_normal((5, 3))


def test_every_estimator_is_certified_with_and_without_data(data):
    X, Y = data
    for estimator in (DropoutRegressor(2), SparseVAE(noise_variance=1e-3)):
        model = estimator.fit(X, Y)
        assert certify(model) == model.certificate_
        assert certify(model, X, Y).holds is not False
        assert certify(model, X, Y).title.startswith(type(model).__name__)
    for estimator in (LinearAutoencoder(2), DropoutAutoencoder(2), DropoutFactorization(2)):
        model = estimator.fit(X)
        assert certify(model) == model.certificate_
        assert certify(model, X).holds
        assert certify(model, X).title.startswith(type(model).__name__)


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        (LinearAutoencoder, "components_", {}),
        (DropoutRegressor, "coef_", {}),
        (SparseVAE, "coef_", {"noise_variance": 1e-3}),
    ],
)
def test_a_subclass_that_overrides_a_fitted_attribute_is_judged_by_what_users_read(
    kind, name, settings, data
):
    class Altered(kind):
        pass

    setattr(Altered, name, property(lambda self: 1.5 * self._state.attributes[name]))
    assert kind(**settings).fit(*data).certificate_.holds is not False
    certificate = Altered(**settings).fit(*data).certificate_
    assert certificate.holds is False
    assert certificate["attributes"].holds is False


def test_weights_go_to_their_family(data):
    X, Y = data
    linear = LinearAutoencoder(2).fit(X)
    assert certify((linear.encoder_, linear.decoder_), X, family="linear", method="rag").holds
    assert certify(
        (linear.encoder_, linear.decoder_), SecondMoment.of(X), family="linear", method="rag"
    ).holds
    network = DropoutRegressor(2, dropout=0.3).fit(X, Y)
    pair = (network.left_, network.right_)
    assert certify(pair, X, Y, family="dropout", dropout=0.3)["gap"].holds
    assert not certify(pair, X, Y, family="dropout", dropout=0.6)["gap"].holds


def test_an_optimum_of_one_method_is_none_of_another(data):
    X, _ = data
    shrunk = LinearAutoencoder(2, method="nonuniform_l2", l2=[0.5, 1.0]).fit(X)
    pair = (shrunk.encoder_, shrunk.decoder_)
    settings = {"family": "linear", "method": "nonuniform_l2"}
    assert certify(pair, X, l2=[0.5, 1.0], **settings).holds
    assert not certify(pair, X, l2=[0.5, 2.0], **settings)["stationarity"].holds
    assert not certify(pair, X, family="linear", method="plain")["gap"].holds


def test_a_linear_vae_is_certified_with_its_noise(data):
    X, _ = data
    model = LinearAutoencoder(2, method="linear_vae").fit(X)
    noise = model.noise_variance_ * (len(X) - 1) / len(X)
    pair = (model.encoder_, model.decoder_)
    settings = {"family": "linear", "method": "linear_vae"}
    assert certify(pair, X, noise_variance=noise, **settings).holds
    assert not certify(pair, X, noise_variance=2 * noise, **settings)["gap"].holds
    with pytest.raises(ValueError, match="noise_variance=None"):
        certify(pair, X, **settings)


def test_coefficients_are_certified_with_their_dictionary():
    random = np.random.default_rng(0)
    dictionary = random.standard_normal((10, 20))
    coef = np.zeros((4, 20))
    coef[:, [3, 8]] = random.standard_normal((4, 2))
    certificate = certify(coef, dictionary, dictionary @ coef.T)
    assert certificate.holds is not False


@pytest.mark.parametrize(
    ("subject", "arguments", "message"),
    [
        ("text", {}, "of type str"),
        ((np.eye(2), np.eye(2)), {"family": "quadratic"}, "expected 'linear' or 'dropout'"),
        ((np.eye(2), np.eye(2)), {"family": "linear"}, "without data: give the rows X"),
        ((np.eye(2), np.eye(3)), {"family": "linear", "X": np.eye(3)}, "expected"),
        ((np.eye(2), np.eye(2)), {"family": "linear", "X": np.eye(3)}, "3 features"),
        (np.eye(2), {}, "without the dictionary"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_a_reason(subject, arguments, message):
    with pytest.raises(ValueError, match=message):
        certify(subject, **arguments)


@pytest.mark.parametrize("family", ["linear", "dropout", "sparsity", "estimator", "components"])
def test_an_unknown_keyword_is_answered_by_the_allowed_ones(data, family):
    X, Y = data
    pair, coef = (np.eye(2, 5), np.eye(5, 2)), np.zeros((3, 5))
    calls = {
        "linear": (
            lambda: certify(pair, X, family="linear", metod="rag"),
            "noise_variance, method",
        ),
        "dropout": (
            lambda: certify((np.ones((3, 2)), np.ones((5, 2))), X, Y, family="dropout", droput=0.2),
            "dropout, tied",
        ),
        "sparsity": (lambda: certify(coef, X, Y, noise=1.0), "noise_variance"),
        "estimator": (
            lambda: certify(LinearAutoencoder(2).fit(X), X, metod="rag"),
            "sample_weight",
        ),
        "components": (lambda: certify(PCA(2).fit(X), X, family="linear"), "sample_weight"),
    }
    call, allowed = calls[family]
    with pytest.raises(ValueError, match=f"(metod|droput|noise|family), but the .*{allowed}"):
        call()


@pytest.mark.parametrize("family", [None, "sparse", 1, {}, ["linear"], np.ones(5), np.array("a")])
def test_an_unknown_family_is_refused(data, family):
    with pytest.raises(ValueError, match=r"^family=.* expected 'linear' or 'dropout'"):
        certify((np.eye(2, 5), np.eye(5, 2)), data[0], family=family)


def test_coefficients_of_numbers_whose_squares_overflow_are_refused():
    for X, y in ((np.eye(3) * 1e160, np.ones(3)), (np.eye(3), np.full(3, 1e-160))):
        with pytest.raises(ValueError, match="too large or too small for float64"):
            certify(np.ones((1, 3)), X, y)
