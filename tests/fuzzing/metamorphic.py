"""Relations between two fits that hold whatever the data: rotation, order, scale, translation.

Each relation changes the data and says what the fitted map must become. The map of an autoencoder
is its reconstruction of the rows, that of a regressor its prediction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuzzing.oracle import NAMES, Finding

AUTOENCODERS = (
    "LinearAutoencoder(2)",
    "LinearAutoencoder()",
    "LinearAutoencoder(0.8)",
    "LinearAutoencoder(2, method='plain')",
    "LinearAutoencoder(2, method='gha')",
    "LinearAutoencoder(2, method='brockett')",
    "LinearAutoencoder(2, method='uniform_l2')",
    "LinearAutoencoder(2, method='nonuniform_l2')",
    "LinearAutoencoder(2, method='expected_nested_dropout')",
    "LinearAutoencoder(2, method='linear_vae')",
    "LinearAutoencoder(2, whiten=True)",
    "DropoutAutoencoder(2)",
    "DropoutAutoencoder(6, dropout=0.1)",
    "DropoutAutoencoder(dropout=0.0)",
)
REGRESSORS = (
    "DropoutRegressor(2)",
    "DropoutRegressor(dropout=0.2)",
    "DropoutRegressor(1, fit_intercept=False)",
    "DropoutRegressor(7, dropout=0.8)",
    "SparseVAE(noise_variance='learn')",
    "SparseVAE(noise_variance='learn', solver='mm', tol=1e-9, max_iter=100000)",
    "SparseVAE(noise_variance='learn', posterior='diagonal', tol=1e-9, max_iter=100000)",
)


@dataclass(frozen=True, slots=True)
class Data:
    """Rows and responses."""

    X: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Changed:
    """Changed data, and what becomes of the map and the spectrum.

    Parameters
    ----------
    data : Data
        The changed data.
    rows : callable
        The reconstruction of the changed rows, from the reconstruction of the original ones.
    outputs : callable
        The same for the predictions of a regressor.
    tolerance : float
        Allowed relative difference.
    """

    data: Data
    rows: Callable[[Any], Any] = field(default=lambda found: found)
    outputs: Callable[[Any], Any] = field(default=lambda found: found)
    tolerance: float = 1e-7


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation for one estimator, on the data of a seed."""

    constructor: str
    name: str
    seed: int

    @property
    def program(self) -> str:
        """The line of Python that repeats the case."""
        return (
            "from fuzzing.metamorphic import Relation, check; "
            f"check(Relation({self.constructor!r}, {self.name!r}, {self.seed}))"
        )


def cases(rng: Any) -> Iterator[Relation]:
    """Yield relations of random estimators."""
    exact = (*AUTOENCODERS, *REGRESSORS)
    for name in rng.choice(list(RELATIONS), 3, replace=False):
        yield Relation(str(rng.choice(exact)), str(name), int(rng.integers(10**6)))


def check(case: Relation) -> list[Finding]:
    """Return the relation if it is broken."""
    rng = np.random.default_rng(case.seed)
    data = drawn(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            error, allowed = violation(case, data, rng)
        except Exception as problem:
            detail = f"{case.name} of {case.constructor}: {type(problem).__name__}: {problem}"
            return [Finding(kind(case), type(problem).__name__, detail, case.program)]
    if error <= allowed:
        return []
    detail = f"{case.name}: relative difference {error:.2g}, allowed {allowed:.2g}"
    return [Finding(kind(case), case.name, detail, case.program)]


def kind(case: Relation) -> str:
    """Return the estimator and method of a case, without the rest of its settings."""
    return case.constructor


def drawn(rng: Any) -> Data:
    """Draw rows whose eigenvalues are clearly apart, and responses of low rank with noise."""
    n, d = int(rng.integers(12, 40)), int(rng.integers(3, 8))
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((n, d)) * np.geomspace(3.0, 0.3, d) @ axes.T
    X = X * 10.0 ** rng.integers(-3, 4) + rng.standard_normal(d)
    coef = rng.standard_normal((d, 2)) * (rng.random(d) < 0.6)[:, None]
    y = X @ coef + 0.1 * np.std(X) * rng.standard_normal((n, 2))
    return Data(X, y)


def make(constructor: str) -> Any:
    """Return a new estimator."""
    return eval(constructor, dict(NAMES))


def fitted(constructor: str, data: Data) -> Any:
    """Return an estimator fitted to the data."""
    model = make(constructor)
    given = (data.X, data.y) if is_regressor(constructor) else (data.X,)
    return model.fit(*given)


def is_regressor(constructor: str) -> bool:
    """Return whether an estimator takes responses."""
    return constructor.startswith(("DropoutRegressor", "SparseVAE"))


def fitted_map(model: Any, X: Any) -> Any:
    """Return the prediction or reconstruction of rows as float64."""
    if hasattr(model, "predict"):
        return np.asarray(model.predict(X), dtype=float)
    return np.asarray(model.inverse_transform(model.transform(X)), dtype=float)


def difference(found: Any, expected: Any, data: Data) -> float:
    """Return the largest difference, relative to the spread of the rows or responses."""
    known = data.y if found.shape == data.y.shape else data.X
    return float(np.abs(found - expected).max() / np.std(np.asarray(known, float), axis=0).max())


def violation(case: Relation, data: Data, rng: Any) -> tuple[float, float]:
    """Return by how much a relation is broken, and by how much it may be."""
    changed = RELATIONS[case.name](data, rng, case.constructor)
    if changed is None:
        return 0.0, 0.0
    regressor = is_regressor(case.constructor)
    before = fitted_map(fitted(case.constructor, data), data.X)
    after = fitted_map(fitted(case.constructor, changed.data), changed.data.X)
    expected = (changed.outputs if regressor else changed.rows)(before)
    # An iterative solver stops at its tolerance, wherever it comes from.
    allowed = max(changed.tolerance, 2e-4 if "SparseVAE" in case.constructor else 0.0)
    return difference(after, expected, changed.data), allowed


def rotation(data: Data, rng: Any, constructor: str) -> Changed | None:
    """Rotate the features."""
    if "SparseVAE" in constructor:
        return None  # sparsity is a property of the basis
    Q = np.linalg.qr(rng.standard_normal((data.X.shape[1],) * 2))[0]
    return Changed(Data(data.X @ Q, data.y), rows=lambda found: found @ Q)


def response_rotation(data: Data, rng: Any, constructor: str) -> Changed | None:
    """Rotate the responses."""
    if not is_regressor(constructor):
        return None
    Q = np.linalg.qr(rng.standard_normal((data.y.shape[1],) * 2))[0]
    return Changed(Data(data.X, data.y @ Q), outputs=lambda found: found @ Q)


def feature_order(data: Data, rng: Any, constructor: str) -> Changed:
    """Permute the features."""
    order = rng.permutation(data.X.shape[1])
    return Changed(Data(data.X[:, order], data.y), rows=lambda found: found[:, order])


def row_order(data: Data, rng: Any, constructor: str) -> Changed:
    """Permute the rows."""
    order = rng.permutation(len(data.X))
    return Changed(
        Data(data.X[order], data.y[order]), lambda found: found[order], lambda found: found[order]
    )


def scale(data: Data, rng: Any, constructor: str) -> Changed:
    """Multiply the rows by one number."""
    factor = 10.0 ** rng.uniform(-30, 30)
    return Changed(Data(data.X * factor, data.y), rows=lambda found: found * factor)


def response_scale(data: Data, rng: Any, constructor: str) -> Changed | None:
    """Multiply the responses by one number."""
    factor = 10.0 ** rng.uniform(-30, 30)
    return Changed(Data(data.X, data.y * factor), outputs=lambda found: found * factor)


def translation(data: Data, rng: Any, constructor: str) -> Changed | None:
    """Shift rows and responses."""
    if "fit_intercept=False" in constructor:
        return None
    step = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal(data.X.shape[1]) * np.std(data.X)
    shift = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal(data.y.shape[1]) * np.std(data.y)
    return Changed(
        Data(data.X + step, data.y + shift), lambda found: found + step, lambda found: found + shift
    )


def single_precision(data: Data, rng: Any, constructor: str) -> Changed:
    """Round the data to float32."""
    return Changed(Data(data.X.astype("f4"), data.y.astype("f4")), tolerance=2e-3)


def fortran_order(data: Data, rng: Any, constructor: str) -> Changed:
    """Store the same numbers in another order in memory."""
    return Changed(Data(np.asfortranarray(data.X), data.y[::-1][::-1]))


RELATIONS = {
    function.__name__: function
    for function in (
        rotation,
        response_rotation,
        feature_order,
        row_order,
        scale,
        response_scale,
        translation,
        single_precision,
        fortran_order,
    )
}
