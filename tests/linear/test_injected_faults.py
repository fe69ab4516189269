"""Faults in the second moment of a fit: no certificate holds where that of the true data fails.

`certificates.fault_injection` damages what every function returns; here the sums themselves see
other rows than the user gave.
"""

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from extras import require
from lucidae import LinearAutoencoder, SecondMoment, certify
from lucidae.linear import missing
from lucidae.linear.state import LinearState


def table(n, m):
    """Return rows with separated variances, a mean and integer weights."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    X = rng.standard_normal((n, m)) * np.geomspace(5, 0.5, m) @ basis.T + rng.standard_normal(m)
    return X, rng.integers(1, 4, n).astype(float)


def times(X, factors):
    if scipy.sparse.issparse(X):
        return (X @ scipy.sparse.diags_array(factors)).tocsr().astype(X.dtype)
    return (X * factors).astype(X.dtype)


def shifted(X):
    moved = X.toarray() if scipy.sparse.issparse(X) else X.copy()
    moved[:, 0] += 0.01
    return scipy.sparse.csr_array(moved) if scipy.sparse.issparse(X) else moved


FAULTS = {
    "unit": lambda X, w: (times(X, np.where(np.arange(X.shape[1]) < 5, 30.0, 1.0)), w),
    "mean": lambda X, w: (shifted(X), w),
    "dropped": lambda X, w: (
        X[: -(-9 * X.shape[0] // 10)],
        w if w is None else w[: len(w) * 9 // 10 + 1],
    ),
    "weights": lambda X, w: (X, np.linspace(1, 2, X.shape[0]) if w is None else w**2),
    "permuted": lambda X, w: (X[:, np.roll(np.arange(X.shape[1]), 1)], w),
    "reversed": lambda X, w: (X[:, ::-1], w),
}


def broken(fault, original):
    """Return a method that makes a moment of rows, with other rows than it was given."""

    def made(X, weights, *before):
        X, weights = FAULTS[fault](X, weights)
        return original(X, None if weights is None else weights[: X.shape[0]], *before)

    return made


def fitted(way, X, weights):
    model = LinearAutoencoder(3)
    if way == "batches":
        for part in np.array_split(X, 3):
            model.partial_fit(part)
        return model
    if way == "dask":
        return model.fit(require("dask.array").from_array(X, chunks=(-(-len(X) // 3), -1)))
    given = {
        "sparse": lambda: scipy.sparse.csr_array(X),
        "float32": lambda: X.astype(np.float32),
        "blocks": lambda: lambda: iter(np.array_split(X, 3)),
        "iterator": lambda: iter(np.array_split(X, 3)),
    }.get(way, lambda: X)()
    return model.fit(given, sample_weight=weights if way == "weighted" else None)


WAYS = ("dense", "weighted", "sparse", "float32", "batches", "blocks", "iterator", "dask")
SMALL = [(80, 6), (400, 60)]
LARGE = [(9000, 300), (21_000, 100)]
SHAPES = SMALL + [pytest.param(shape, marks=pytest.mark.slow) for shape in LARGE]


def judge(monkeypatch, fault, way, shape):
    """Return the verdict after a fault, and that of the same model on the true data."""
    X, weights = table(*shape)
    with monkeypatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(SecondMoment, "_of_rows", broken(fault, SecondMoment._of_rows))
        # Data in blocks are loaded if they are small.
        patch.setattr("lucidae.linear.estimator.loaded_rows", lambda *_, **__: None)
        model = fitted(way, X, weights)
        found = model.certificate_.holds
    settings = {"sample_weight": weights} if way == "weighted" else {}
    true = X.astype(np.float32) if way == "float32" else X
    return found, certify(model, true, **settings).holds


@pytest.mark.covering
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_in_the_second_moment_is_certified(monkeypatch, fault, way, shape):
    found, true = judge(monkeypatch, fault, way, shape)
    assert true is not None
    assert found is not True or true is True


@pytest.mark.parametrize("way", ["dense", "batches", "iterator"])
def test_five_columns_in_a_wrong_unit_are_noticed(monkeypatch, way):
    """9000 × 300: the covariance of the solver was certified at a subspace distance of 1."""
    assert judge(monkeypatch, "unit", way, (9000, 300)) == (False, False)


def test_the_same_faults_without_a_fault_hold():
    X, weights = table(400, 60)
    for way in WAYS:
        assert fitted(way, X, weights).certificate_.holds, way


@pytest.mark.parametrize("mean", [10.0, 1e3, 1e6])
def test_sparse_columns_with_a_large_mean_are_certified(mean):
    X = scipy.sparse.random(5000, 40, density=0.1, random_state=0).toarray() * np.linspace(3, 1, 40)
    X[:, 0] = mean + np.random.default_rng(0).standard_normal(5000)
    rows = scipy.sparse.csr_array(X)
    assert LinearAutoencoder(3).fit(rows).certificate_.holds
    stream = LinearAutoencoder(3).partial_fit(rows[:2000]).partial_fit(rows[2000:])
    assert stream.certificate_.holds


def test_a_moment_that_was_saved_is_tested_by_the_sketch_that_was_saved(tmp_path):
    import lucidae

    X, _ = table(3000, 60)
    model = LinearAutoencoder(3)
    for part in np.array_split(X, 4):
        model.partial_fit(part)
    lucidae.save(model, tmp_path / "model.npz")
    again = lucidae.load(tmp_path / "model.npz")
    again._state.sums = SecondMoment.of(1.01 * X)
    again._state.changed()
    assert again.certificate_["moment"].holds is False
    again = lucidae.load(tmp_path / "model.npz").partial_fit(X[:50])
    assert again.certificate_["moment"].holds


@pytest.mark.parametrize("handle_missing", ["error", "em"])
def test_the_attributes_that_users_read_are_judged(monkeypatch, handle_missing):
    """The model was judged, but not what `compute_attributes` makes of it."""
    X, weights = table(80, 6)
    if handle_missing == "em":
        X[::7, 2] = np.nan
    original = LinearState.compute_attributes
    names = set(original(LinearAutoencoder(3, handle_missing=handle_missing).fit(X)._state))
    for name in names - {"n_iter_", "status_", "history_"}:

        def faulty(state, name=name):
            found = original(state)
            found[name] = found[name] + 1 if name == "n_components_" else 1.01 * found[name]
            return found

        with monkeypatch.context() as patch:
            patch.setattr(LinearState, "compute_attributes", faulty)
            model = LinearAutoencoder(3, handle_missing=handle_missing)
            claim = model.fit(X, sample_weight=weights).certificate_["attributes"]
        assert claim.holds is False, name
        assert claim.advice.startswith(name)


def test_the_number_of_rows_of_a_fit_with_missing_entries_is_judged(monkeypatch):
    X, _ = table(80, 6)
    X[::7, 2] = np.nan
    original = missing.fit_observed

    def faulty(*given):
        found = original(*given)
        gaussian = dataclasses.replace(found.gaussian, weight=found.gaussian.weight + 16)
        return found._replace(gaussian=gaussian)

    monkeypatch.setattr("lucidae.linear.state.fit_observed", faulty)
    model = LinearAutoencoder(2, handle_missing="em").fit(X)
    assert model.certificate_["attributes"].holds is False
    monkeypatch.undo()
    assert LinearAutoencoder(2, handle_missing="em").fit(X).certificate_.holds
