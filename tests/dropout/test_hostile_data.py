"""Verdicts on hostile data against the minimum of the dropout loss by NumPy alone."""

import numpy as np
import pytest
import scipy.sparse

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify

DROPOUT, WIDTH = 0.3, 2


def dense(X):
    return np.asarray(X.toarray() if scipy.sparse.issparse(X) else X, dtype=np.float64)


def scaled_rows(X, Y, weights, centered=True):
    """Return rows of positive weight, centred twice and multiplied by the roots of their shares."""
    X, Y = dense(X), dense(Y)
    weights = np.ones(len(X)) if weights is None else weights
    X, Y, share = X[weights > 0], Y[weights > 0], weights[weights > 0] / weights.sum()
    if centered:
        X, Y = X - X[0], Y - Y[0]
        for _ in range(2):
            X, Y = X - share @ X, Y - share @ Y
    root = np.sqrt(share)[:, None]
    return X * root, Y * root


def smallest(X, Y, weights, *, resolution=1e-13, centered=True):
    """Return the minimum of the dropout loss and ‖M‖², from singular value decompositions."""
    A, B = scaled_rows(X, Y, weights, centered)
    sizes = np.sqrt((A**2).sum(axis=0))
    P, s, _ = np.linalg.svd(A[:, sizes > 0] / sizes[sizes > 0], full_matrices=False)
    P = P[:, s > resolution * s.max(initial=0.0)]
    M = P.T @ B
    s = (
        np.append(np.linalg.svd(M, compute_uv=False), np.zeros(WIDTH))
        if M.size
        else np.zeros(WIDTH)
    )
    strength = DROPOUT / (1 - DROPOUT)
    alphas = [strength * s[:k].sum() / (WIDTH + strength * k) for k in range(1, WIDTH + 1)]
    alpha = max([a for a, value in zip(alphas, s, strict=False) if value > a], default=0.0)
    least = (np.minimum(s[:WIDTH], alpha) ** 2).sum() + (s[WIDTH:] ** 2).sum()
    return least + WIDTH * alpha**2 / strength + ((B - P @ M) ** 2).sum(), (M**2).sum()


def loss(U, V, X, Y, weights, centered=True):
    A, B = scaled_rows(X, Y, weights, centered)
    U, V = dense(U), dense(V)
    hidden = A @ V
    penalty = (U**2).sum(axis=0) @ (hidden**2).sum(axis=0)
    return ((B - hidden @ U.T) ** 2).sum() + DROPOUT / (1 - DROPOUT) * penalty


def data_sets():
    """Return rows X and Y and weights of the rows, by name."""
    rng = np.random.default_rng(100)
    X = rng.standard_normal((40, 6))
    Y = X @ rng.standard_normal((6, 4)) + 0.3 * rng.standard_normal((40, 4))
    counts = rng.integers(0, 3, 40).astype(float)
    few = (np.arange(40) < 3).astype(float)
    some = (np.arange(40) != 5).astype(float)
    same, sums, constant, outlier = (X.copy() for _ in range(4))
    same[:, 3], sums[:, 3], constant[:, 2], outlier[5] = X[:, 0], X[:, 0] + X[:, 1], 1 / 3, 1e9
    basis = np.linalg.qr(X - X.mean(axis=0))[0]
    return {
        "plain": (X, Y, None),
        "large units": (1e12 * X, 1e-12 * Y, None),
        "small units": (1e-12 * X, 1e12 * Y, None),
        "mixed units": (X * 10.0 ** rng.integers(-12, 13, 6), Y, None),
        "large mean": (X + 1e6, Y - 1e6, None),
        "equal columns": (same, Y, None),
        "column of two": (sums, Y, None),
        "rank one": (X[:, :1] * rng.standard_normal(6), Y, None),
        "nearly collinear": (X[:, :1] + 1e-6 * X, Y, None),
        "fewer rows": (X[:4], Y[:4], None),
        "two rows": (X[:2], Y[:2], None),
        "repeated rows": (np.repeat(X, 3, axis=0), np.repeat(Y, 3, axis=0), None),
        "zero weights": (X, Y, counts),
        "three rows count": (X, Y, few),
        "single precision": (X.astype(np.float32), Y.astype(np.float32), None),
        "equal values": (basis, basis[:, :4], None),
        "constant targets": (X, np.tile(Y[:1], (40, 1)), None),
        "zero targets": (X, Y * np.r_[1.0, 0.0, 0.0, 0.0], None),
        "constant column": (constant, Y, counts),
        "sparse": (scipy.sparse.csr_array(X * (rng.random(X.shape) < 0.4)), Y, None),
        "outlier": (outlier, Y, None),
        "outlier of weight zero": (outlier, Y, some),
    }


DATA = data_sets()


def judge(certificate, value, least, explained):
    """Fail if the verdict on the gap contradicts the difference of the two losses."""
    gap = (value - least) / (explained or 1.0)
    holds = certificate["gap"].holds
    assert holds is not True or gap < 2e-6
    assert holds is not False or abs(gap) > 5e-7


@pytest.mark.parametrize("name", DATA)
def test_regression_and_weights_of_any_kind(name):
    X, Y, weights = DATA[name]
    single = X.dtype == np.float32
    least, explained = smallest(X, Y, weights, resolution=2e-6 if single else 1e-13)
    model = DropoutRegressor(WIDTH, dropout=DROPOUT).fit(X, Y, weights)
    value = loss(model.left_, model.right_, X, Y, weights)
    for certificate in (model.certificate_, certify(model, X, Y, sample_weight=weights)):
        assert certificate.holds is not False
        judge(certificate, value, least, explained)
    U, V = dense(model.left_), dense(model.right_)
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    noise = 1e-2 * np.abs(U).max() * rng.standard_normal(U.shape)
    for left, right in (
        (1.02 * U, V),
        (U @ turn, V @ turn),
        (U[:, ::-1], V[:, ::-1]),
        (U * np.r_[0.0, 1.0], V),
        (0 * U, 0 * V),
        (U + noise, V),
    ):
        given = {"family": "dropout", "dropout": DROPOUT, "sample_weight": weights}
        certificate = certify((left, right), X, Y, **given)
        judge(certificate, loss(left, right, X, Y, weights), least, explained)
    if not scipy.sparse.issparse(X) and len(X) > 4:
        other = X[rng.permutation(len(X))]
        certificate = certify(model, other, Y, sample_weight=weights)
        least, explained = smallest(other, Y, weights, resolution=2e-6 if single else 1e-13)
        judge(certificate, loss(U, V, other, Y, weights), least, explained)


@pytest.mark.parametrize("name", [name for name in DATA if name != "single precision"])
def test_autoencoder_and_factorization(name):
    X, _, weights = DATA[name]
    model = DropoutAutoencoder(WIDTH, dropout=DROPOUT).fit(X, sample_weight=weights)
    least, explained = smallest(X, X, weights)
    value = loss(model.left_, model.right_, X, X, weights)
    for certificate in (model.certificate_, certify(model, X, sample_weight=weights)):
        assert certificate.holds is not False
        judge(certificate, value, least, explained)
    M = dense(X)
    factors = DropoutFactorization(WIDTH, dropout=DROPOUT).fit(M)
    unit = np.sqrt(M.shape[1]) * np.eye(M.shape[1])
    least, explained = smallest(unit, unit @ M.T, None, centered=False)
    value = loss(factors.left_, factors.right_, unit, unit @ M.T, None, centered=False)
    for certificate in (factors.certificate_, certify(factors, M)):
        assert certificate.holds is not False
        judge(certificate, value, least, explained)
