"""The claim on sampling: noise has no components, signals have theirs."""

import numpy as np
import pytest

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout.noise import noise_level


def noise(rng, n, features, targets, scales=1.0):
    X = rng.standard_normal((n, features)) @ rng.standard_normal((features, features)) + 3.0
    return X, rng.standard_normal((n, targets)) * scales


@pytest.mark.parametrize(
    ("n", "features", "targets", "scales"),
    [
        (200, 20, 10, 1.0),
        (60, 50, 3, 1.0),
        (40, 5, 1, 1.0),
        (12, 8, 2, 1.0),
        (100, 10, 30, 1.0),
        (200, 20, 4, np.array([1e6, 1.0, 1e-3, 1.0])),
    ],
)
@pytest.mark.parametrize("samples", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_targets_of_pure_noise_have_no_component(n, features, targets, scales, samples):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(samples):
        X, Y = noise(rng, n, features, targets, scales)
        claim = DropoutRegressor(dropout=0.2).fit(X, Y).certificate_["sampling"]
        assert claim.verdict == "reported"
        found.append(claim.value)
    assert sum(value > 0 for value in found) <= 1


@pytest.mark.parametrize(("n", "features"), [(200, 50), (60, 40), (50, 5)])
def test_rows_of_pure_noise_have_no_component(n, features):
    rng = np.random.default_rng(0)
    found = [
        DropoutAutoencoder(3).fit(rng.standard_normal((n, features))).certificate_["sampling"].value
        for _ in range(50)
    ]
    assert sum(value > 0 for value in found) <= 1


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_components_far_above_the_noise_are_counted(rank):
    rng = np.random.default_rng(0)
    n, features, targets, width = 500, 8, 5, 4
    X, Y = noise(rng, n, features, targets)
    parts = [rng.standard_normal((size, rank)) for size in (features, targets)]
    P, Q = (np.linalg.qr(part)[0] for part in parts)
    Y = Y + 3.0 * np.linalg.qr(X - X.mean(0))[0] @ P @ Q.T * np.sqrt(n)
    model = DropoutRegressor(width, dropout=0.2).fit(X, Y)
    stream = DropoutRegressor(width, dropout=0.2).partial_fit(X[:200], Y[:200])
    stream.partial_fit(X[200:], Y[200:])
    for certificate in (model.certificate_, certify(model, X, Y), stream.certificate_):
        assert certificate["sampling"].value == rank
        assert f"{rank} of the {width} leading components" in certificate["sampling"].advice
        assert certificate.holds is True
    rows = rng.standard_normal((n, features))
    rows[:, :rank] *= [9.0, 6.0, 4.0][:rank]
    coder = DropoutAutoencoder(width).fit(rows)
    assert coder.certificate_["sampling"].value == rank
    assert certify(coder, rows)["sampling"].value == rank


def test_rows_given_twice_count_as_often():
    rng = np.random.default_rng(0)
    X, Y = noise(rng, 60, 4, 2)
    weights = rng.integers(1, 4, 60)
    weighted = DropoutRegressor(2).fit(X, Y, weights).certificate_
    repeated = DropoutRegressor(2).fit(np.repeat(X, weights, 0), np.repeat(Y, weights, 0))
    assert weighted["sampling"].advice == repeated.certificate_["sampling"].advice


def test_what_is_no_sample_has_no_sampling_noise():
    M = np.diag([3.0, 2.0, 1.0])
    claim = DropoutFactorization(2).fit(M).certificate_["sampling"]
    assert claim.verdict == "does not apply"
    assert "not rows" in claim.advice
    few = DropoutRegressor(2).fit(*noise(np.random.default_rng(0), 6, 5, 2))
    assert few.certificate_["sampling"].verdict == "does not apply"
    assert "too few to estimate" in few.certificate_["sampling"].advice
    assert few.certificate_.holds is True


def test_the_level_is_that_of_reduced_rank_regression():
    # For many rows the confidence limit and the margin vanish: σ(√q + √m)/√n remains.
    n, features, targets, deviation = 1e9, 10_000, 400, 2.0
    level = noise_level(deviation**2 * np.eye(targets), features, n)
    assert level == pytest.approx(deviation * (100 + 20) / np.sqrt(n), rel=0.04)
    assert level > deviation * (100 + 20) / np.sqrt(n)
    assert noise_level(np.zeros((2, 2)), 3, 10.0) == 0.0
