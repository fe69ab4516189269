"""Certificates of float32 rows whose second moment was computed in single precision."""

import numpy as np
import pytest

import lucidae
from lucidae import LinearAutoencoder, SecondMoment, certify

ROWS, FEATURES = 4100, 512


def rows_with(leading, seed=0):
    """Return float32 rows whose leading standard deviations are given; the others are 0.01."""
    rng = np.random.default_rng(seed)
    scores, _ = np.linalg.qr(rng.standard_normal((ROWS, FEATURES)))
    scores -= scores.mean(axis=0)
    axes, _ = np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))
    deviations = np.append(leading, np.full(FEATURES - len(leading), 0.01))
    return ((np.sqrt(ROWS) * scores * deviations) @ axes).astype(np.float32)


def close_rows():
    """Return rows whose two leading eigenvalues differ by about 1e-8 of the first."""
    rng = np.random.default_rng(1)
    X = np.zeros((ROWS, FEATURES), dtype=np.float32)
    signs = np.resize([1.0, 1.0, -1.0, -1.0], ROWS)
    X[:, 0], X[:, 1] = signs, np.resize([1.0, -1.0, -1.0, 1.0], ROWS)
    X[:4, 0] *= np.float32(1.0 + 1e-5)
    X[:, 2:] = 1e-3 * rng.standard_normal((ROWS, FEATURES - 2))
    return X


def covariance_error(X, moment):
    error = moment.covariance - SecondMoment.of(X.astype(np.float64)).covariance
    return np.linalg.norm(error) / moment.trace


@pytest.mark.parametrize("kind", ["normal", "binary", "signs", "shifted"])
def test_the_error_of_single_precision_is_not_underestimated(kind):
    rng = np.random.default_rng(0)
    normal = rng.standard_normal((8200, 256))
    X = {
        "normal": normal,
        "binary": normal > 2.0,
        "signs": np.sign(normal[:, :1]) * normal[:1],
        "shifted": normal + 1000.0,
    }[kind].astype(np.float32)
    moment = SecondMoment.of(X)
    assert covariance_error(X, moment) <= moment.rounding < 1e-3
    assert SecondMoment.of(X.astype(np.float64)).rounding == 0.0
    assert SecondMoment.of(X, np.ones(len(X))).rounding == 0.0


def test_the_error_survives_updates_merges_and_files(tmp_path):
    X = rows_with([2.0, 1.0])
    moment, other = SecondMoment.of(X), SecondMoment.of(X[:100])
    assert moment.rounding > other.rounding == 0.0
    for both in (moment.merge(other), other.merge(moment), moment.update(X[:9])):
        assert both.rounding == moment.rounding
    assert other.update(X).rounding > 0.0
    moment.save(tmp_path / "moment.npz")
    assert SecondMoment.load(tmp_path / "moment.npz").rounding == moment.rounding
    stored = dict(np.load(tmp_path / "moment.npz"))
    del stored["rounding"]
    np.savez(tmp_path / "earlier.npz", **stored)
    assert SecondMoment.load(tmp_path / "earlier.npz").rounding == 0.0
    model = LinearAutoencoder(2).fit(X)
    lucidae.save(model, tmp_path / "model.npz")
    assert lucidae.load(tmp_path / "model.npz").certificate_ == model.certificate_


def test_eigenvalues_that_single_precision_cannot_separate_are_not_certified():
    X = close_rows()
    values = np.linalg.eigvalsh(SecondMoment.of(X.astype(np.float64)).covariance)[::-1]
    assert 1e-10 < 1.0 - values[1] / values[0] < 1e-7
    certificate = LinearAutoencoder(2).fit(X).certificate_
    for name in ("alignment", "eigengap"):
        assert certificate[name].holds is None, certificate[name]
        assert "give float64" in certificate[name].advice
    assert certificate["subspace"].holds
    assert certificate["gap"].holds
    double = LinearAutoencoder(2).fit(X.astype(np.float64)).certificate_
    assert double["alignment"].holds
    assert double["eigengap"].holds


def test_a_subspace_that_single_precision_cannot_separate_is_not_certified():
    claim = LinearAutoencoder(1, method="plain").fit(close_rows()).certificate_["subspace"]
    assert claim.holds is None
    assert "give float64" in claim.advice


def test_a_penalty_close_to_an_eigenvalue_is_not_judged():
    X = rows_with([2.0, 1.0])
    value = np.linalg.eigvalsh(SecondMoment.of(X.astype(np.float64)).covariance)[-2]
    penalties = [0.1, value * (1 - 1e-9)]
    model = LinearAutoencoder(2, method="nonuniform_l2", l2=penalties).fit(X)
    claim = model.certificate_["nonzero_latents"]
    assert claim.holds is None
    assert "give float64" in claim.advice


def test_separated_components_are_certified_and_wrong_ones_are_not():
    X = rows_with([3.0, 2.0, 1.0, 0.5])
    model = LinearAutoencoder(4).fit(X)
    assert model._state.moment.rounding > 0.0
    assert model.certificate_.holds, model.certificate_
    assert certify(model, X.astype(np.float64)).holds
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((4, 4)))[0]
    turned = (turn @ model.encoder_, model.decoder_ @ turn.T)
    assert certify(turned, X, family="linear")["alignment"].holds is False
    wrong = (model.encoder_[:, ::-1], model.decoder_[::-1])
    certificate = certify(wrong, X, family="linear")
    assert [certificate[name].holds for name in ("subspace", "gap")] == [False, False]


@pytest.mark.parametrize("k", [39, 60])
def test_fits_of_many_features_know_the_error_of_a_moment_that_is_not_stored(k):
    X = np.random.default_rng(0).standard_normal((2500, 1100)).astype(np.float32)
    model = LinearAutoencoder(k).fit(X)
    assert model._state.sums is None, "more than 1024 features"
    assert model.certificate_["attributes"].holds is True
    assert certify(model, X)["attributes"].holds is True
    model.mean_ = model.mean_ + np.float32(1e-3)
    assert certify(model, X)["attributes"].holds is False
