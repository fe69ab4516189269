"""A saved estimator comes back as it was, and a file can build nothing but our own records."""

import json
import warnings

import numpy as np
import pytest

import lucidae
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
)

ESTIMATORS = [
    LinearAutoencoder(3),
    LinearAutoencoder(3, method="nonuniform_l2", l2=[0.3, 0.1, 0.2], whiten=True),
    LinearAutoencoder(2, solver="gradient", max_iter=30, random_state=0),
    LinearAutoencoder(2, method="linear_vae", solver="gradient", max_iter=30, random_state=0),
    LinearAutoencoder(
        2, method="nested_dropout", solver="stochastic", max_iter=9, random_state=np.int64(3)
    ),
    DropoutRegressor(2),
    DropoutAutoencoder(2),
    DropoutFactorization(2),
    SparseVAE(noise_variance=0.1),
    SparseVAE(posterior="diagonal"),
]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    X = random.standard_normal((40, 6))
    return X, X @ random.standard_normal((6, 3)) + random.standard_normal((40, 3)) / 10


def fitted(estimator, data):
    X, Y = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X) if hasattr(estimator, "transform") else estimator.fit(X, Y)


def output(estimator, X):
    return estimator.transform(X) if hasattr(estimator, "transform") else estimator.predict(X)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_saved_estimator_comes_back_bit_by_bit(estimator, data, tmp_path):
    model = fitted(estimator, data)
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    assert str(again) == str(model)
    assert np.array_equal(output(again, data[0]), output(model, data[0]))
    assert again.certificate_ == model.certificate_
    assert again.n_features_in_ == model.n_features_in_


def test_a_loaded_stream_goes_on(data, tmp_path):
    X, _ = data
    model = LinearAutoencoder(2).partial_fit(X[:15])
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz").partial_fit(X[15:])
    np.testing.assert_allclose(
        again.components_, LinearAutoencoder(2).fit(X).components_, atol=1e-12
    )


def test_feature_names_survive(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(4) + np.arange(4), columns=list("abcd"))
    lucidae.save(LinearAutoencoder(2).fit(frame), tmp_path / "model.npz")
    assert list(lucidae.load(tmp_path / "model.npz").feature_names_in_) == list("abcd")


def test_an_unfitted_estimator_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        lucidae.save(LinearAutoencoder(2), tmp_path / "model.npz")
    assert not (tmp_path / "model.npz").exists()


def write_header(path, tree, **arrays):
    header = {"format": 1, "version": "0", "estimator": tree}
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


@pytest.mark.parametrize(
    "tree",
    [
        {"record": "os:system", "fields": {"command": "true"}},
        {"record": "subprocess:Popen", "fields": {"args": ["true"]}},
        {"record": "lucidae._files:Path", "fields": {}},
        {"record": "lucidae._persist:importlib.import_module", "fields": {}},
        {"record": "lucidae._persist:load", "fields": {"path": "x"}},
        {"record": "lucidae.solution:State", "fields": {}},
        {"member": "lucidae.solution:Solution", "name": "value"},
        {"record": "lucidae.linear.estimators:BaseEstimator", "fields": {}},
        {"array": "absent"},
        {"nonsense": 1},
    ],
)
def test_a_file_cannot_build_anything_else(tree, tmp_path):
    write_header(tmp_path / "evil.npz", tree)
    with pytest.raises(ValueError, match="not a saved estimator"):
        lucidae.load(tmp_path / "evil.npz")


def test_a_newer_format_and_damage_are_refused(data, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, header=np.array(json.dumps({"format": 99, "estimator": None})))
    with pytest.raises(ValueError, match="update lucidae"):
        lucidae.load(path)
    lucidae.save(fitted(LinearAutoencoder(2), data), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="damaged"):
        lucidae.load(path)
    with pytest.raises(FileNotFoundError):
        lucidae.load(tmp_path / "absent.npz")
