"""Faults in every function that a fit calls: no certificate holds where the data refute it.

Each fault is injected while an estimator is fitted and its certificate is read. Without the fault,
`certify` then judges the fitted attributes on the rows themselves: where it fails, the certificate
of the fit must not hold.
"""

import itertools
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from lucidae import DropoutAutoencoder, DropoutFactorization, DropoutRegressor, certify
from lucidae.dropout import network, problem, solvers, theory
from lucidae.moments import SecondMoment

SIZES = {"80 x 6": (80, 6), "400 x 60": (400, 60)}
WAYS = ("rows", "weighted", "sparse", "stream", "blocks")
MODELS = {
    "regressor": lambda: DropoutRegressor(3, dropout=0.2),
    "no intercept": lambda: DropoutRegressor(3, dropout=0.2, fit_intercept=False),
    "ridge": lambda: DropoutRegressor(3, dropout=0.2, alpha=2.0),
    "reduced rank": lambda: DropoutRegressor(2, shrink=False),
    "autoencoder": lambda: DropoutAutoencoder(3, dropout=0.2),
}


def drawn(n, m, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, m)) * np.linspace(1.0, 3.0, m) + rng.standard_normal(m)
    Y = X @ rng.standard_normal((m, 4)) / np.sqrt(m) + rng.standard_normal((n, 4)) + 1.0
    return X, Y, rng.integers(0, 4, n).astype(float)


@contextmanager
def replaced(place, name, change):
    """Replace a function, or one of a class, by `change` of it."""
    known = vars(place)[name]
    plain = known.__func__ if isinstance(known, classmethod | staticmethod) else known
    broken = change(plain)
    setattr(place, name, classmethod(broken) if isinstance(known, classmethod) else broken)
    try:
        yield
    finally:
        setattr(place, name, known)


def broken_mean(function):
    def broken(cls, X, weights=None):
        return moved(function(cls, X, weights), mean=0.2)

    return broken


def of_rows(change):
    """Return a fault in the rows and weights that a moment is computed of."""

    def changed(function):
        def broken(cls, X, weights=None):
            return function(cls, *change(X, weights))

        return broken

    return lambda: replaced(SecondMoment, "_of_rows", changed)


def scaled_columns(X, weights):
    units = np.ones(X.shape[1])
    units[: min(5, X.shape[1] // 2)] = 1.5
    return (X.multiply(units).tocsr() if scipy.sparse.issparse(X) else X * units), weights


def of_result(places, name, change):
    """Return a fault in the result of a function, in each module that calls it."""

    def changed(function):
        return lambda *args, **kwargs: change(function(*args, **kwargs))

    @contextmanager
    def everywhere():
        with ExitStack() as stack:
            for place in places:
                stack.enter_context(replaced(place, name, changed))
            yield

    return everywhere


def moved(moment, mean=0.0, square=1.0, weight=1.0):
    shift = mean * np.sqrt(np.diag(moment.squares).max() / moment.weight)
    return replace(
        moment,
        weight=moment.weight * weight,
        center=moment.center + shift,
        squares=moment.squares * square,
    )


def enlarged(white):
    return white if white.lift is None else replace(white, lift=1.05 * white.lift)


def turned(white):
    lift = white.lift if white.lift is None else white.lift[:, ::-1]
    return type(white)(white.matrix, lift, white.floor)


BOTH = (network, solvers)

FAULTS = {
    "unit of five columns": of_rows(scaled_columns),
    "dropped rows": of_rows(lambda X, w: (X[9:], None if w is None else w[9:])),
    "weights forgotten": of_rows(lambda X, w: (X, None)),
    "weights squared": of_rows(lambda X, w: (X, None if w is None else w**2)),
    "permuted columns": of_rows(lambda X, w: (X[:, np.r_[1, 0, 2 : X.shape[1]]], w)),
    "wrong mean": lambda: replaced(SecondMoment, "_of_rows", broken_mean),
    "merged weight": of_result((SecondMoment,), "merge", lambda found: moved(found, weight=1.1)),
    "merged squares": of_result((SecondMoment,), "merge", lambda found: moved(found, square=1.02)),
    "merged mean": of_result((SecondMoment,), "merge", lambda found: moved(found, mean=0.3)),
    "joint moment": of_result(
        (problem, network), "joint_moment", lambda found: moved(found, square=0.97)
    ),
    "joint mean": of_result(
        (problem, network), "joint_moment", lambda found: moved(found, mean=0.2)
    ),
    "whitening": of_result(BOTH, "whiten", turned),
    "principal axes": of_result(
        (network,), "solve_autoencoder", lambda found: replace(found, weights=found.weights[::-1])
    ),
    "singular vectors": of_result(
        (solvers,), "leading_svd", lambda found: (found[0][:, ::-1], *found[1:])
    ),
    "singular values": of_result(
        (solvers,), "leading_svd", lambda found: (found[0], 1.01 * found[1], found[2])
    ),
    "shrinkage": of_result(
        (solvers,),
        "shrink",
        lambda found: theory.Shrinkage(found.rank, 0.9 * found.threshold, 1.01 * found.values),
    ),
    "floor": of_result(
        BOTH, "whiten", lambda found: replace(found, floor=1.1 * found.floor + 0.01)
    ),
    "centers": of_result(
        (network.NetworkState,), "centers", lambda found: (found[0] + 0.1, found[1])
    ),
    "equalizer": of_result(
        (solvers,), "equalized_factors", lambda found: (1.1 * found[0], found[1])
    ),
    "unit of the whitening": of_result(BOTH, "whiten", enlarged),
}  # fmt: skip


def fitted(model, X, Y, weights, way):
    """Fit in one of several ways; return the data on which the fit is judged."""
    if way == "sparse":
        X = scipy.sparse.csr_array(X * (np.abs(X) > 1.0))
    weights = weights if way in ("weighted", "stream") else None
    step = -(-X.shape[0] // 4)
    parts = [slice(start, start + step) for start in range(0, X.shape[0], step)]
    if way == "stream":
        for part in parts:
            model.partial_fit(X[part], Y[part], weights[part])
    elif way == "blocks":
        model.fit_batches(lambda: ((X[part], Y[part]) for part in parts))
    else:
        model.fit(X, Y, weights)
    return X, Y, weights


def outcome(fault, kind, way, data):
    """Return what a fault does to a certificate; "holds" if that of the data fails."""
    model = MODELS[kind]()
    with np.errstate(all="ignore"):
        try:
            with FAULTS[fault]():
                X, Y, weights = fitted(model, *data, way)
                own = model.certificate_.holds
                _ = model.left_
        except Exception:
            return "crashed"
        truth = certify(model, X, Y, sample_weight=weights).holds
    if truth is not False:
        return "harmless"
    return "holds" if own else "noticed"


ALL = list(itertools.product(SIZES, WAYS, MODELS))


@pytest.mark.parametrize(
    ("size", "way", "kind"),
    [
        pytest.param(*case, marks=() if number % 10 == 3 else pytest.mark.slow)
        for number, case in enumerate(ALL)
    ],
)
def test_no_certificate_holds_where_the_data_refute_it(size, way, kind, monkeypatch):
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", 2**12)
    monkeypatch.setattr(network, "load_rows", lambda *_, **__: None)  # read block by block
    data = drawn(*SIZES[size])
    found = {fault: outcome(fault, kind, way, data) for fault in FAULTS}
    counts = Counter(found.values())
    print(f"\n{size:<9} {way:<9} {kind:<13} {dict(counts)}")
    assert [fault for fault, result in found.items() if result == "holds"] == []
    assert counts["noticed"] >= 4
    X, Y, weights = fitted(healthy := MODELS[kind](), *data, way)
    assert healthy.certificate_.holds is not False
    assert certify(healthy, X, Y, sample_weight=weights).holds


@pytest.mark.parametrize("way", ["rows", pytest.param("stream", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["regressor", "autoencoder"])
def test_a_unit_of_five_of_many_columns_is_noticed(kind, way):
    """At 9000 × 300, where no test reads all rows again."""
    data = drawn(9000, 300)
    assert outcome("unit of five columns", kind, way, data) == "noticed"
    model = MODELS[kind]()
    fitted(model, *data, way)
    assert model.certificate_.holds


def test_faults_of_a_factorization_are_noticed():
    X = drawn(60, 8)[0]
    for fault in ("singular vectors", "singular values", "shrinkage", "equalizer"):
        with FAULTS[fault]():
            model = DropoutFactorization(3, dropout=0.2).fit(X)
            assert model.certificate_.holds is not True, fault
            assert certify(model, X).holds is False, fault
    model = DropoutFactorization(3, dropout=0.2).fit(X)
    model.objective_ = 1.001 * model.objective_
    assert model.certificate_["attributes"].holds is False
    assert certify(model, X)["attributes"].holds is False
