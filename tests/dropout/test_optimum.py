"""Every kind of rows: the fit is the optimum that NumPy finds, and verdicts agree with its loss."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from dropout.problems import dense, dropout_loss, numpy_optimum, scaled_rows
from extras import require
from known_spectra import batches_of, memory_map, rows_with
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    SecondMoment,
    certify,
    load,
    save,
)
from lucidae.dropout import rank_path

DROPOUT, WIDTH = 0.3, 2


def rows(n, m, *, sparse=False, seed=0):
    """Draw rows of six strong components; feature 3 is constant, and 4 is zero if sparse."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 6)) @ (
        rng.standard_normal((6, m)) * np.geomspace(4, 0.5, 6)[:, None]
    )
    X += 0.2 * rng.standard_normal((n, m)) + rng.standard_normal(m)
    X = X * (rng.random((n, m)) < 0.1) if sparse else X
    X[:, 3], X[:, 4] = 2.5, 0.0 if sparse else X[:, 4]
    return scipy.sparse.csr_array(X) if sparse else X


def targets(X, d=3, seed=1):
    rng = np.random.default_rng(seed)
    return X[:, :5] @ rng.standard_normal((5, d)) + rng.standard_normal((X.shape[0], d)) + 4.0


def data_sets():
    """Return rows X and Y, weights of the rows, and the accuracy that their digits allow."""
    rng = np.random.default_rng(100)
    X = rng.standard_normal((40, 6))
    Y = X @ rng.standard_normal((6, 4)) + 0.3 * rng.standard_normal((40, 4))
    counts = rng.integers(0, 3, 40).astype(float)
    few = (np.arange(40) < 3).astype(float)
    some = (np.arange(40) != 5).astype(float)
    same, sums, constant, outlier = (X.copy() for _ in range(4))
    same[:, 3], sums[:, 3], constant[:, 2], outlier[5] = X[:, 0], X[:, 0] + X[:, 1], 1 / 3, 1e9
    basis = np.linalg.qr(X - X.mean(axis=0))[0]
    wide, very_wide, near = rows(30, 1100), rows(25, 4200), rows(25, 4200)
    near[7] = near[8] + 1e-5 * near[9]
    far = scipy.sparse.csr_array(rows(25, 4200) + 1e5)
    thin, very_thin = rows(30, 1100, sparse=True), rows(25, 4200, sparse=True)
    shares = rng.integers(0, 4, 30) * 0.5
    return {
        "plain": (X, Y, None, 1e-10),
        "large units": (1e12 * X, 1e-12 * Y, None, 1e-10),
        "small units": (1e-12 * X, 1e12 * Y, None, 1e-10),
        "mixed units": (X * 10.0 ** rng.integers(-12, 13, 6), Y, None, 1e-10),
        "large mean": (X + 1e6, Y - 1e6, None, 1e-7),
        "equal columns": (same, Y, None, 1e-10),
        "column of two": (sums, Y, None, 1e-10),
        "rank one": (X[:, :1] * rng.standard_normal(6), Y, None, 1e-10),
        "nearly collinear": (X[:, :1] + 1e-6 * X, Y, None, 1e-8),
        "fewer rows": (X[:4], Y[:4], None, 1e-10),
        "two rows": (X[:2], Y[:2], None, 1e-10),
        "repeated rows": (np.repeat(X, 3, axis=0), np.repeat(Y, 3, axis=0), None, 1e-10),
        "zero weights": (X, Y, counts, 1e-10),
        "three rows count": (X, Y, few, 1e-10),
        "single precision": (X.astype(np.float32), Y.astype(np.float32), None, 1e-5),
        "equal values": (basis, basis[:, :4], None, 1e-10),
        "constant targets": (X, np.tile(Y[:1], (40, 1)), None, 1e-10),
        "zero targets": (X, Y * np.r_[1.0, 0.0, 0.0, 0.0], None, 1e-10),
        "one target": (X, Y[:, 0], None, 1e-10),
        "constant column": (constant, Y, counts, 1e-10),
        "sparse": (scipy.sparse.csr_array(X * (rng.random(X.shape) < 0.4)), Y, None, 1e-10),
        "outlier": (outlier, Y, None, 1e-7),
        "outlier of weight zero": (outlier, Y, some, 1e-10),
        "many features": (wide, targets(wide), shares, 1e-9),
        "many features, sparse": (thin, targets(thin), shares, 1e-9),
        "products": (very_wide, targets(very_wide), None, 1e-8),
        "products, sparse": (very_thin, targets(very_thin), np.arange(25) % 4 * 0.5, 1e-8),
        "products, ill-conditioned": (near, targets(near), None, 1e-8),
        "products, large mean": (far, targets(very_thin), None, 1e-6),
        "repeated, sparse": (
            scipy.sparse.vstack([very_thin, very_thin], format="csr"),
            rng.standard_normal((50, 2)),
            None,
            1e-8,
        ),
    }


DATA = data_sets()
SETTINGS = {
    "dropout": {"n_components": WIDTH, "dropout": DROPOUT},
    "wide layer": {"n_components": 7, "dropout": 0.1},
    "no intercept": {"n_components": WIDTH, "dropout": DROPOUT, "fit_intercept": False},
    "ridge": {"n_components": WIDTH, "dropout": DROPOUT, "alpha": 5.0},
    "reduced rank": {"n_components": WIDTH, "shrink": False},
    "ridge of reduced rank": {"n_components": WIDTH, "shrink": False, "alpha": 0.5},
}


def reference(X, Y, weights, settings):
    single = X.dtype == np.float32
    return numpy_optimum(
        X,
        Y,
        settings["dropout"] if settings.get("shrink", True) else 0.0,
        settings["n_components"],
        weights=weights,
        centered=settings.get("fit_intercept", True),
        alpha=settings.get("alpha", 0.0),
        resolution=2e-6 if single else 1e-13,
    )


@pytest.mark.covering
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", DATA)
def test_a_regression_is_the_optimum_of_its_rows(name, setting):
    (X, Y, weights, accuracy), settings = DATA[name], SETTINGS[setting]
    best = reference(X, Y, weights, settings)
    model = DropoutRegressor(**settings).fit(X, Y, weights)
    size = np.sqrt(best.explained)
    energy = max(best.objective, best.explained)
    assert abs(model.objective_ - best.objective) <= accuracy * energy
    assert model.rank_ == best.rank
    assert abs(model.threshold_ - best.threshold) <= accuracy * size
    count = min(len(model.singular_values_), len(best.singular_values))
    difference = model.singular_values_[:count] - best.singular_values[:count]
    assert np.abs(difference).max(initial=0.0) <= accuracy * size
    if name != "equal values" or settings["n_components"] > WIDTH:  # otherwise it is not unique
        A, _ = scaled_rows(X, Y, weights, settings.get("fit_intercept", True))
        moved = A @ (model.coef_.reshape(best.coef.shape) - best.coef).T
        assert np.linalg.norm(moved) <= 1e3 * accuracy * size
    # A ridge penalty on inputs in small units leaves next to nothing that least squares explains.
    lost = name == "small units" and "alpha" in settings
    own, again = model.certificate_, certify(model, X, Y, sample_weight=weights)
    assert [(claim.name, claim.holds) for claim in own] == [(c.name, c.holds) for c in again]
    assert own["gap"].holds or lost
    assert own.holds is None if lost else own.holds is not False


def judge(certificate, value, best):
    """Fail if the verdict on the gap contradicts the difference of the two losses."""
    gap, claim = (value - best.objective) / (best.explained or 1.0), certificate["gap"]
    assert claim.holds is not True or gap < 2e-6
    assert claim.holds is not False or abs(gap) > 5e-7
    if claim.holds is not None:
        assert claim.value == pytest.approx(gap, rel=1e-3, abs=1e-7)


def weights_of(model):
    return dense(model.left_), dense(model.right_)


def other_weights(U, V, X, Y, weights):
    """Yield weights that are as good as the optimal ones, nearly so, or saddles."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))[0]
    yield U[:, ::-1], V[:, ::-1]
    yield U * [1.0, -1.0], V * [1.0, -1.0]
    yield 100.0 * U, V / 100.0
    yield U @ turn, V @ turn
    yield 1.02 * U, V
    yield U * (1 + 1e-6 * rng.standard_normal(U.shape)), V
    yield U * (1 + 0.02 * rng.standard_normal(U.shape)), V
    yield U * [0.0, 1.0], V
    yield 0 * U, 0 * V
    refit = DropoutRegressor(WIDTH, dropout=0.8).fit(X, Y, weights)
    yield weights_of(refit)
    if dense(Y).ndim == 1:
        return
    yield weights_of(refit.set_params(dropout=DROPOUT).fit(X, rng.permutation(Y), weights))
    # The optimum for targets without one of their directions is a saddle for all of them.
    for axis in DropoutRegressor(2, shrink=False).fit(X, Y, weights).left_.T:
        yield weights_of(refit.fit(X, Y - np.outer(Y @ axis, axis), weights))


@pytest.mark.parametrize("name", DATA)
def test_weights_of_any_kind_are_judged_by_their_loss(name):
    X, Y, weights, _ = DATA[name]
    best = reference(X, Y, weights, SETTINGS["dropout"])
    model = DropoutRegressor(WIDTH, dropout=DROPOUT).fit(X, Y, weights)
    settings = {"family": "dropout", "dropout": DROPOUT, "sample_weight": weights}
    for left, right in other_weights(*weights_of(model), X, Y, weights):
        certificate = certify((left, right), X, Y, **settings)
        judge(certificate, dropout_loss(left, right, X, Y, DROPOUT, weights), best)
    if not scipy.sparse.issparse(X) and len(X) > 4:
        other = X[np.random.default_rng(0).permutation(len(X))]
        certificate = certify(model, other, Y, sample_weight=weights)
        best = reference(other, Y, weights, SETTINGS["dropout"])
        value = dropout_loss(model.left_, model.right_, other, Y, DROPOUT, weights)
        judge(certificate, value, best)


@pytest.mark.covering
@pytest.mark.parametrize("dropout", [0.0, DROPOUT])
@pytest.mark.parametrize("name", [name for name in DATA if name != "single precision"])
def test_an_autoencoder_and_a_factorization_are_optimal(name, dropout):
    X, _, weights, accuracy = DATA[name]
    best = numpy_optimum(X, X, dropout, WIDTH, weights=weights)
    model = DropoutAutoencoder(WIDTH, dropout=dropout).fit(X, sample_weight=weights)
    assert abs(model.objective_ - best.objective) <= accuracy * max(best.explained, best.objective)
    assert model.rank_ == best.rank
    value = dropout_loss(model.left_, model.right_, X, X, dropout, weights)
    for certificate in (model.certificate_, certify(model, X, sample_weight=weights)):
        assert certificate.holds is not False
        judge(certificate, value, best)
    settings = {"family": "dropout", "dropout": dropout, "sample_weight": weights}
    judged = dropout > 0 and X.shape[1] < 4000
    others = other_weights(*weights_of(model), X, dense(X), weights) if judged else ()
    for left, right in others:
        certificate = certify((left, right), X, **settings)
        judge(certificate, dropout_loss(left, right, X, X, dropout, weights), best)
    if name not in ("equal values", "mixed units", "outlier"):
        A, _ = scaled_rows(X, X, weights)
        moved = A @ (dense(model.right_) @ dense(model.left_).T - best.coef.T)
        assert np.linalg.norm(moved) <= 1e3 * accuracy * np.linalg.norm(A)
    M = dense(X)
    factors = DropoutFactorization(WIDTH, dropout=dropout).fit(M)
    unit = np.sqrt(M.shape[0]) * np.eye(M.shape[0])
    best = numpy_optimum(unit, unit @ M, dropout, WIDTH, centered=False)
    value = dropout_loss(factors.right_, factors.left_, unit, unit @ M, dropout, centered=False)
    for certificate in (factors.certificate_, certify(factors, M)):
        assert certificate.holds is not False
        judge(certificate, value, best)


@pytest.mark.parametrize("width", [1, 29, 44])
def test_an_autoencoder_of_few_rows_has_any_number_of_hidden_units(width):
    X = rows(30, 1100)
    best = numpy_optimum(X, X, 0.3, width)
    model = DropoutAutoencoder(width, dropout=0.3).fit(X)
    assert_allclose((X - X.mean(0)) @ (model.left_ @ model.right_.T - best.coef).T, 0, atol=1e-10)
    assert model.rank_ == best.rank
    assert_allclose(model.objective_, best.objective, rtol=1e-10)
    assert model.certificate_["gap"].holds


@pytest.mark.covering
@pytest.mark.parametrize("kind", [DropoutRegressor, DropoutAutoencoder])
@pytest.mark.parametrize("form", ["stream", "function", "memory map", "Dask array"])
def test_rows_in_parts_give_the_fit_of_all_rows(kind, form, tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**12)
    X, Y = (np.concatenate(20 * [part]) for part in DATA["plain"][:2])
    X, Y = X + 0.1 * np.arange(len(X))[:, None] % 1.7, Y + np.arange(len(X))[:, None] % 3
    model, expected = kind(WIDTH, dropout=DROPOUT), kind(WIDTH, dropout=DROPOUT).fit(X, Y)
    if form == "stream":
        for rows_, targets_ in zip(batches_of(X), batches_of(Y), strict=True):
            model.partial_fit(rows_, targets_)
    elif kind is DropoutRegressor and form == "function":
        model.fit_batches(lambda: zip(batches_of(X), batches_of(Y), strict=True))
    elif form == "function":
        model.fit(lambda: batches_of(X))
    elif form == "memory map":
        model.fit(memory_map(X, tmp_path), Y)
    else:
        array = require("dask.array")
        model.fit(array.from_array(X, chunks=(100, 6)), array.from_array(Y, chunks=(100, 4)))
    assert_allclose(model.left_ @ model.right_.T, expected.left_ @ expected.right_.T, atol=1e-10)
    assert_allclose(model.objective_, expected.objective_, rtol=1e-10)
    assert model.certificate_.holds
    assert certify(model, X, Y).holds


def fitted(X, Y, weights, intercept, route):
    model = DropoutRegressor(2, dropout=0.3, fit_intercept=intercept)
    if route == "stream":
        for part in (slice(0, 17), slice(17, 40)):
            model.partial_fit(X[part], Y[part], None if weights is None else weights[part])
        return model, X
    X = scipy.sparse.csr_array(X) if route == "sparse" else X
    return model.fit(X, Y, weights), X


@pytest.mark.covering
@pytest.mark.parametrize("constant", [0.0, 1 / 3, -1e3 / 7])
@pytest.mark.parametrize(("intercept", "weighted"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("route", ["rows", "sparse", "stream"])
def test_units_of_a_constant_column_change_nothing(constant, intercept, weighted, route):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 5))
    Y = X @ rng.standard_normal((5, 3)) + 0.3 * rng.standard_normal((40, 3))
    X[:, 1] = constant
    weights = rng.uniform(0.5, 2.0, 40) if weighted else None
    expected, _ = fitted(X, Y, weights, intercept, route)
    others = np.where(np.arange(5) == 1, 1.0, 1e12)
    for units in (np.full(5, 1e-12), others, 1 / others, 1e12 / others):
        found, given = fitted(X * units, Y, weights, intercept, route)
        assert_allclose(found.coef_ * units, expected.coef_, rtol=0, atol=1e-9)
        assert_allclose(found.objective_, expected.objective_, rtol=1e-9)
        assert found.certificate_.holds
        assert certify(found, given, Y, sample_weight=weights).holds
        if intercept or constant == 0.0:
            assert np.all(found.coef_[:, 1] == 0.0)


@pytest.mark.parametrize("name", ["many features", "many features, sparse", "products, sparse"])
def test_a_constant_column_of_few_rows_has_no_weight(name):
    X, Y, weights, _ = DATA[name]
    model = DropoutRegressor(2).fit(X, Y, weights)
    assert np.all(model.coef_[:, 3] == 0.0)
    equal = scipy.sparse.csr_array(np.full((20, X.shape[1]), 3.0))
    nothing = DropoutRegressor().fit(equal, np.random.default_rng(0).standard_normal(20))
    assert np.all(nothing.coef_ == 0)
    assert nothing.certificate_.holds


def test_rows_of_zero_weight_do_not_make_a_column_vary():
    X, Y, _, _ = DATA["constant column"]
    weights = np.where(np.arange(40) == 7, 0.0, 1.0)
    expected = DropoutRegressor(2).fit(np.delete(X, 7, 0), np.delete(Y, 7, 0))
    X = X.copy()
    X[7, 2] = 5.0
    for given in (X, scipy.sparse.csr_array(X)):
        found = DropoutRegressor(2).fit(given, Y, weights)
        assert_allclose(found.coef_, expected.coef_, atol=1e-12)
        assert found.certificate_.holds
    constant = np.where(np.arange(40) == 7, 9.0, 2.0)[:, None] * np.ones(3)
    assert DropoutRegressor(2).fit(X, constant, weights).certificate_.holds


@pytest.mark.parametrize("shape", [(60, 1100), (60, 30)], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_an_autoencoder_of_equal_rows_learns_nothing(shape, weighted):
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2.0, shape[0]) if weighted else None
    for scale in (1.0, 1e12, 1e-12):
        X = np.tile(scale * rng.standard_normal(shape[1]), (shape[0], 1))
        model = DropoutAutoencoder(3, dropout=0.3).fit(X, sample_weight=weights)
        assert model.rank_ == 0
        assert model.objective_ <= (1e-15 * np.linalg.norm(X[0])) ** 2
        assert model.certificate_.holds
        assert_allclose(model.inverse_transform(model.transform(X)), X, rtol=1e-14)


@pytest.mark.parametrize(("rank", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_directions_that_single_precision_does_not_resolve_count_as_constant(rank, seed):
    """They are rounding errors; the certificate is open about what they would explain."""
    rng = np.random.default_rng(seed)
    X = (rng.standard_normal((60, rank)) @ rng.standard_normal((rank, 6))).astype(np.float32)
    Y = np.float32(X @ rng.standard_normal((6, 3)) + 0.1 * rng.standard_normal((60, 3)))
    exact = DropoutRegressor(2, dropout=0.3).fit(np.float64(X)[:, :rank], np.float64(Y))
    stream = (
        DropoutRegressor(2, dropout=0.3).partial_fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:])
    )
    sparse = DropoutRegressor(2, dropout=0.3).fit(scipy.sparse.csr_array(X), Y)
    for found in (DropoutRegressor(2, dropout=0.3).fit(X, Y), stream, sparse):
        assert_allclose(found.predict(X), exact.predict(X[:, :rank]), atol=1e-4)
        assert np.abs(found.coef_).max() < 100
        for certificate in (found.certificate_, certify(found, X, Y)):
            assert certificate.holds is None
            assert certificate["gap"].holds is None
            assert "float32" in certificate["gap"].advice
    explained = DropoutRegressor(2, dropout=0.3).fit(X, X[:, :2] @ np.eye(2, 3, dtype=np.float32))
    assert explained.certificate_["gap"].holds
    found.left_ = 1.5 * found.left_
    assert certify(found, X, Y)["gap"].holds is False


def angle(weights, axes):
    """Return the sine of the largest angle of the axes to the span of the weights' columns."""
    basis, _, _ = np.linalg.svd(np.asarray(weights), full_matrices=False)
    basis = basis[:, : axes.shape[1]]
    return float(np.linalg.norm(axes - basis @ (basis.T @ axes), 2))


def dominated(ratio):
    return np.concatenate([[ratio], np.linspace(6.0, 4.0, 4), np.linspace(1.0, 0.5, 20)])


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(200, 40), (40, 200), (40, 1100), (1100, 1030)])
@pytest.mark.parametrize("ratio", [1e8, 1e14])
def test_small_components_beside_a_dominant_one_are_exact(shape, ratio):
    values = dominated(ratio)
    X, axes = rows_with(values, *shape)
    model = DropoutAutoencoder(5, dropout=1e-10).fit(X)
    inherent = np.finfo(float).eps * np.sqrt(ratio)
    assert model.rank_ == 5
    assert angle(model.left_, axes[:, :5]) <= inherent + 1e-11
    assert_allclose(model.singular_values_[:5] ** 2, values[:5], rtol=inherent + 1e-11)
    assert model.certificate_.holds, model.certificate_
    model.left_ = model.right_ = axes[:, [0, 1, 2, 3, 7]]
    assert not model.certificate_.holds


@pytest.mark.parametrize("form", ["memory map", "function", "Dask array"])
def test_small_components_of_rows_that_are_read_in_blocks_are_exact(form, tmp_path, monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**14)
    X, axes = rows_with(dominated(1e12), 900, 40)
    X, calls = X + 3.0, []

    def batches():
        calls.append(1)
        return batches_of(X)

    forms = {"memory map": lambda: memory_map(X, tmp_path), "function": lambda: batches}
    forms["Dask array"] = lambda: require("dask.array").from_array(X, chunks=(100, 40))
    model = DropoutAutoencoder(5, dropout=1e-10).fit(forms[form]())
    assert model.rank_ == 5
    assert angle(model.left_, axes[:, :5]) <= 1e-9  # 2e-5 by the second moment alone
    save(model, tmp_path / "model.npz")
    assert load(tmp_path / "model.npz").left_.tobytes() == model.left_.tobytes()
    # The sketch of the rows bounds the error of their second moment, by which the fit is judged.
    for certificate in (model.certificate_, certify(model, forms[form]())):
        assert certificate.holds is not False
        assert all(certificate[name].holds for name in ("gap", "rank"))
    model.left_ = model.right_ = np.column_stack([axes[:, :4], axes[:, 7]])
    assert not model.certificate_.holds
    if form == "function":
        calls.clear()
        assert DropoutAutoencoder(5, dropout=0.5).fit(batches).rank_ == 1
        assert len(calls) == 1  # dropout removes the components that would need a second pass
        weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
        weights[:100] = 0.0
        model = DropoutAutoencoder(5, dropout=1e-10).fit(batches, sample_weight=weights)
        repeated = np.repeat(X, weights.astype(int), axis=0)
        _, _, rows_ = np.linalg.svd(repeated - repeated.mean(axis=0), full_matrices=False)
        assert angle(model.left_, rows_[:5].T) <= 1e-9


def test_rows_that_differ_in_the_second_pass_are_refused(monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**14)
    (X, _), rng = rows_with(dominated(1e12), 900, 40), np.random.default_rng(0)
    with pytest.raises(ValueError, match="differed between two passes"):
        DropoutAutoencoder(5, dropout=1e-10).fit(
            lambda: batches_of(X + 1e3 * rng.standard_normal(40))
        )


def test_a_regression_on_blocks_uses_the_exact_small_components(monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**14)
    X, axes = rows_with(dominated(1e12), 900, 40)
    Y = X @ axes[:, 1:4] + 0.1 * np.random.default_rng(0).standard_normal((900, 3))
    exact = np.linalg.lstsq(X, Y - Y.mean(axis=0), rcond=1e-12)[0]
    model = DropoutRegressor(dropout=1e-12).fit_batches(
        lambda: zip(batches_of(X), batches_of(Y), strict=True)
    )
    assert angle(np.linalg.qr(model.coef_.T)[0], np.linalg.qr(exact)[0]) <= 1e-9
    assert_allclose(model.coef_, exact.T, atol=1e-6)  # dropout shrinks it a little
    # Of the rows that passed only the second moment is known; reading them again decides.
    assert model.certificate_.holds is None
    assert certify(model, X, Y).holds


@pytest.mark.covering
@pytest.mark.parametrize("size", [1e-5, 1e-7])
@pytest.mark.parametrize("dropout", [0.0, 1e-9, 0.3])
def test_small_singular_values_of_many_features_are_found(size, dropout):
    """The eigenvalues of the second moment are squares, in which they were lost."""
    values = np.r_[1.0, size / np.arange(1, 6)]
    X, _ = rows_with(values**2, 150, 1100)
    model = DropoutAutoencoder(4, dropout=dropout).fit(X)
    assert_allclose(model.singular_values_, values[:4], rtol=1e-3 if size < 1e-6 else 1e-6)
    for certificate in (model.certificate_, certify(model, X)):
        assert certificate["gap"].holds
        assert certificate.holds is not False


@pytest.mark.parametrize("name", ["many features", "products", "products, sparse"])
def test_rates_and_ranks_of_few_rows_are_chosen_by_refitting(name):
    X, Y, weights, _ = DATA[name]
    folds = [
        (np.arange(8, len(Y)), np.arange(8)),
        (np.arange(len(Y) - 7), np.arange(len(Y) - 7, len(Y))),
    ]
    chosen = DropoutRegressor(2, dropout="cv", alpha=2.0, cv=folds).fit(X, Y, weights)
    path = rank_path(X, Y, cv=folds, sample_weight=weights)
    for fold, (train, test) in enumerate(folds):
        part, counts = (None, None) if weights is None else (weights[train], weights[test])
        for index in (0, 40, 120):
            rate = chosen.cv_.dropout[index]
            model = DropoutRegressor(2, dropout=rate, alpha=2.0).fit(X[train], Y[train], part)
            errors = ((model.predict(X[test]) - Y[test]) ** 2).sum(axis=1)
            expected = np.average(errors, weights=counts)
            assert_allclose(chosen.cv_.errors[fold, index], expected, rtol=1e-7)
        model = DropoutRegressor(2, shrink=False).fit(X[train], Y[train], part)
        errors = ((model.predict(X[test]) - Y[test]) ** 2).sum(axis=1)
        expected = np.average(errors, weights=counts)
        assert_allclose(path.cv.errors[fold, 2], expected, rtol=1e-6)


def test_neither_squares_of_features_nor_dense_copies_of_sparse_rows_are_formed(monkeypatch):
    X, sparse = rows(30, 1100), rows(300, 4200, sparse=True)
    full = scipy.sparse.csr_array.toarray

    def refuse(*_, **__):
        raise AssertionError("a second moment of all features was formed")

    def small(self, *given, **named):
        assert self.shape != sparse.shape, "rows were made dense"
        return full(self, *given, **named)

    monkeypatch.setattr(SecondMoment, "of", refuse)
    monkeypatch.setattr(scipy.sparse.csr_array, "toarray", small)
    assert DropoutAutoencoder(3).fit(X).certificate_.holds
    assert DropoutRegressor(2, dropout="cv", cv=3).fit(X, X[:, :3]).certificate_.holds
    model = DropoutRegressor(2).fit(sparse, targets(sparse))
    assert model.certificate_.holds
    assert certify(model, sparse, targets(sparse)).holds


@pytest.mark.parametrize("name", ["many features", "products, sparse"])
def test_what_a_fit_without_the_second_moment_cannot_do_is_refused(name, tmp_path):
    X, Y, _, _ = DATA[name]
    coder, model = DropoutAutoencoder(3).fit(X), DropoutRegressor(2).fit(X, Y)
    for estimator, given in ((coder, (X,)), (model, (X, Y))):
        save(estimator, tmp_path / "model.npz")
        again = load(tmp_path / "model.npz")
        assert_allclose(again.left_, estimator.left_, rtol=0)
        assert again.certificate_.to_dict() == estimator.certificate_.to_dict()
        with pytest.raises(ValueError, match="does not store the second moment of"):
            estimator.partial_fit(*given)
    coder.left_ = 2 * coder.left_
    assert coder.certificate_["attributes"].holds is False
    assert "certify" in coder.certificate_["attributes"].advice
    assert certify(coder, X)["gap"].holds is False
    with pytest.raises(ValueError, match=r"features|inputs"):
        certify(coder, X[:, :59])
    for factor, word in ((1e160, "overflow"), (1e-170, "underflow")):
        for estimator in (DropoutRegressor(2), DropoutAutoencoder(3)):
            with pytest.raises(ValueError, match=word):
                estimator.fit(factor * X, Y)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_changed_before_the_certificate_is_read_leave_it_undecided(sparse):
    X = rows(30, 1100, sparse=sparse)
    model, kept = DropoutAutoencoder(4).fit(X), DropoutAutoencoder(4).fit(X)
    assert kept.certificate_.holds
    if sparse:
        X.data[3] += 1.0
    else:
        X[3, 5] += 1.0
    (claim,) = model.certificate_
    assert claim.holds is None
    assert "changed in place" in claim.advice
    assert kept.certificate_.holds


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(430, 500), (500, 430)])
@pytest.mark.parametrize("dropout", [0.0, 0.8])
def test_few_factors_of_a_large_matrix_are_those_of_the_full_decomposition(shape, dropout):
    rng = np.random.default_rng(0)
    P, Q = (np.linalg.qr(rng.standard_normal((n, 430)))[0] for n in shape)
    strength = dropout / (1 - dropout)
    for decay in (0.02, 1.0):  # the faint values of the second need the full decomposition
        s = np.exp(-decay * np.arange(430))
        model = DropoutFactorization(20, dropout=dropout).fit((P * s) @ Q.T)
        level = strength * s[: model.rank_].sum() / (20 + strength * model.rank_)
        expected = (P[:, : model.rank_] * (s[: model.rank_] - level)) @ Q[:, : model.rank_].T
        assert_allclose(model.left_ @ model.right_.T, expected, atol=1e-10)
        kept = 20 if dropout == 0.0 else model.rank_  # values that dropout removes may be rough
        assert_allclose(model.singular_values_[:kept], s[:kept], rtol=1e-6, atol=1e-12)
        assert model.certificate_.holds
