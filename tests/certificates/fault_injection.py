"""Faults in the functions that a fit calls, one at a time, and whether a certificate notices them.

`python -m certificates.fault_injection` with `tests` on the path runs all faults and prints counts.
A fault damages what one function of lucidae returns, during the fit and while the certificate is
read. It *passes* if this certificate holds although that of the same model on the true data, by
untouched code, fails. Functions that check or read the data are left out: what they return is the
data.
"""

import argparse
import contextlib
import copy
import dataclasses
import functools
import signal
import sys
import types
import warnings
from collections import Counter

import numpy as np
import scipy.sparse

import lucidae
from lucidae import (
    DropoutAutoencoder,
    DropoutFactorization,
    DropoutRegressor,
    LinearAutoencoder,
    SparseVAE,
    certify,
)

READERS = (
    *(
        f"lucidae.rows.{name}"
        for name in ("blocks", "dask", "files", "kinds", "passes", "tables", "text")
    ),
    "lucidae.validation",
    "lucidae.io",
    "lucidae.cards",
    "lucidae.certificates",
    "lucidae.iteration.progress",
    "lucidae.arrays.threads",
)
"""Modules whose functions return data, or nothing that a result depends on."""

READING = {
    "SparseData.of",
    "_complete",
    "_rows",
    "_validated",
    "as_double",
    "as_float",
    "as_plain",
    "checked_noise",
    "checked_targets",
    "dense_if_small",
    "like",
    "loaded_rows",
    "numeric_frame",
    "reference_array",
    "rows_of",
    "to_numpy",
}
"""Functions of other modules, and methods, that return the data as they were given."""

SECONDS = {80: 2, 400: 5}
"""Seconds after which a fit counts as too slow, by the number of rows; otherwise 30."""


class TooSlowError(Exception):
    """A fault made a fit too slow."""


def rows(n, m, seed=0):
    """Return rows with separated variances and a mean, and two targets that depend on them."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((m, m)))
    X = rng.standard_normal((n, m)) * np.geomspace(5, 0.5, m) @ basis.T + rng.standard_normal(m)
    noise = rng.standard_normal((n, 3)) * 0.3
    return X, X[:, :4] @ rng.standard_normal((4, 3)) + noise + 2.0


@dataclasses.dataclass(frozen=True)
class Case:
    """An estimator and the way in which it gets its data."""

    estimator: object
    way: str
    shape: tuple

    @property
    def supervised(self):
        return isinstance(self.estimator, DropoutRegressor | SparseVAE)

    @functools.cached_property
    def data(self):
        X, Y = rows(*self.shape)
        weights = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
        return X, Y, weights

    def fit(self):
        X, Y, weights = self.data
        model = copy.deepcopy(self.estimator)
        targets = (Y,) if self.supervised else ()
        if self.way == "weighted":
            return model.fit(X, *targets, sample_weight=weights)
        if self.way == "sparse":
            return model.fit(scipy.sparse.csr_matrix(X), *targets)
        if self.way == "batches":
            for start in range(0, len(X), -(-len(X) // 3)):
                part = slice(start, start + -(-len(X) // 3))
                model.partial_fit(X[part], *(target[part] for target in targets))
            return model
        if self.way == "blocks":
            return model.fit(*(functools.partial(np.array_split, a, 3) for a in (X, *targets)))
        return model.fit(X, *targets)

    def judged(self, model):
        """Return the certificate of the fitted model on the true data."""
        X, Y, weights = self.data
        settings = {"sample_weight": weights} if self.way == "weighted" else {}
        return certify(model, X, *((Y,) if self.supervised else ()), **settings)

    def __str__(self):
        n, m = self.shape
        return f"{type(self.estimator).__name__} {self.way} {n}x{m}"


def cases(shapes):
    """Return all cases of the given shapes."""
    ways = {
        LinearAutoencoder(3): ("dense", "weighted", "sparse", "batches", "blocks"),
        LinearAutoencoder(3, method="nonuniform_l2", l2=[0.1, 0.2, 0.3]): ("dense", "batches"),
        DropoutAutoencoder(3): ("dense", "weighted", "sparse", "batches", "blocks"),
        DropoutRegressor(2): ("dense", "weighted", "sparse", "batches", "blocks"),
        DropoutFactorization(3): ("dense",),
        SparseVAE(noise_variance=0.1): ("dense", "weighted", "sparse"),
    }
    return [Case(e, way, shape) for shape in shapes for e in ways for way in ways[e]]


def functions_of(case):
    """Return the functions of lucidae that a fit calls and the number of parts of their results."""
    codes = Counter()

    def note(frame, event, value):
        if event == "return":
            codes[frame.f_code] = max(codes[frame.f_code], damaged(value, "scaled", -1)[1])

    sys.setprofile(note)
    try:
        model = case.fit()
        for name in dir(model):
            if name.endswith("_") and not name.startswith("_") and name != "certificate_":
                getattr(model, name, None)
    finally:
        sys.setprofile(None)
    parts = {place: codes[plain(vars(place[0])[place[1]]).__code__] for place in places()}
    return {place: min(count, PARTS) for place, count in parts.items() if count}


@functools.cache
def places():
    """Return all functions and methods of the library that are not reading data."""
    found = []
    for module in [m for name, m in sorted(sys.modules.items()) if name.startswith("lucidae.")]:
        if module.__name__.startswith(READERS):
            continue
        owners = [module]
        owners += [c for c in vars(module).values() if isinstance(c, type)]
        for owner in owners:
            home = owner.__name__ if owner is module else owner.__module__
            if home != module.__name__:
                continue
            for name, value in vars(owner).items():
                function = plain(value)
                if function is None or name in READING or name.startswith("__"):
                    continue
                if f"{owner.__name__}.{name}" in READING:
                    continue
                if function.__module__ == module.__name__:
                    found.append((owner, name))
    return found


def plain(value):
    """Return the Python function behind a function, method or property; None if there is none."""
    for inner in ("__func__", "fget", "func", "__wrapped__"):
        value = getattr(value, inner, value)
    return value if isinstance(value, types.FunctionType) else None


# What may happen to an array: a unit, a sign, an order, a share, a mean.
DAMAGES = {
    "scaled": lambda a: a * 1.05,
    "unit": lambda a: np.concatenate([a[..., :1] * 30.0, a[..., 1:]], axis=-1),
    "negated": lambda a: -a,
    "rolled": lambda a: np.roll(a, 1, axis=-1),
    "reversed": lambda a: a[::-1].copy(),
    "shifted": lambda a: a + 0.1 * (np.max(np.abs(a)) if a.size else 0.0),
    "zero": lambda a: np.concatenate([a[..., :1] * 0.0, a[..., 1:]], axis=-1),
    "half": lambda a: np.concatenate([a[: len(a) // 2], a[len(a) // 2 :] * 0.0]),
}


def damaged(value, damage, part, depth=0):
    """Return `value` with its part number `part` damaged, and how many parts it has."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc" and value.ndim:
        return (DAMAGES[damage](value).astype(value.dtype) if part == 0 else value), 1
    if scipy.sparse.issparse(value):
        found = value.copy()
        if part == 0:
            found.data = DAMAGES[damage](found.data)
        return found, 1
    if isinstance(value, float):
        change = {"scaled": 1.05, "negated": -1.0, "zero": 0.0}.get(damage, 1.2)
        return (value * change if part == 0 else value), 1
    if isinstance(value, int) and not isinstance(value, bool):
        return (max(value - 1, 1) if part == 0 else value), 1
    if depth < 2:
        if isinstance(value, tuple):
            parts, items = 0, list(value)
            for i, item in enumerate(items):
                items[i], count = damaged(item, damage, part - parts, depth + 1)
                parts += count
            return (type(value)(*items) if hasattr(value, "_fields") else tuple(items)), parts
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts, changes = 0, {}
            for field in dataclasses.fields(value):
                if not hasattr(value, field.name) or not field.init:
                    continue
                item = getattr(value, field.name)
                changed, count = damaged(item, damage, part - parts, depth + 1)
                if changed is not item:
                    changes[field.name] = changed
                parts += count
            return (dataclasses.replace(value, **changes) if changes else value), parts
    return value, 0


@contextlib.contextmanager
def broken(owner, name, damage, part):
    """Replace one function everywhere in the library by one whose result is damaged."""
    original = vars(owner)[name]
    function = plain(original)

    def faulty(*args, **kwargs):
        return damaged(function(*args, **kwargs), damage, part)[0]

    functools.update_wrapper(faulty, function)
    if isinstance(owner, type):
        kinds = (classmethod, staticmethod, property, functools.cached_property)
        kind = next((k for k in kinds if isinstance(original, k)), None)
        replacement = faulty if kind is None else kind(faulty)
        if kind is functools.cached_property:
            replacement.__set_name__(owner, name)
        changes = [(owner, name, original)]
    else:
        replacement = faulty
        library = [m for n, m in sys.modules.items() if n.startswith("lucidae")]
        changes = [(m, k, v) for m in library for k, v in vars(m).items() if v is original]
    for place, key, _ in changes:
        setattr(place, key, replacement)
    try:
        yield
    finally:
        for place, key, value in changes:
            setattr(place, key, value)


@contextlib.contextmanager
def limited(seconds):
    def stop(*_):
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(case, owner, name, damage, part):
    """Return what becomes of one fault: raised, noticed, undecided, harmless or passed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with (
                np.errstate(all="ignore"),
                limited(SECONDS.get(case.shape[0], 30)),
                broken(owner, name, damage, part),
            ):
                model = case.fit()
                holds = model.certificate_.holds
        except TooSlowError:
            return "slow"
        except Exception:
            return "raised"
        if holds is not True:
            return "noticed" if holds is False else "undecided"
        with np.errstate(all="ignore"):
            return "passed" if case.judged(model).holds is False else "harmless"


def faults(case):
    """Return all faults of a case: (owner, name, damage, part)."""
    return [
        (owner, name, damage, part)
        for (owner, name), parts in functions_of(case).items()
        for part in range(parts)
        for damage in DAMAGES
    ]


PARTS = 6
"""Parts of a result, such as fields, that are damaged one at a time."""


def run(case, chosen=slice(None)):
    """Inject faults; return how many ended in which way, and those that passed."""
    counts, passed = Counter(), []
    for owner, name, damage, part in faults(case)[chosen]:
        result = outcome(case, owner, name, damage, part)
        counts[result] += 1
        if result == "passed":
            place = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__qualname__
            passed.append(f"{place}.{name} {damage} {part}")
    return counts, passed


SHAPES = ((80, 6), (400, 60), (9000, 300), (21_000, 100))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="first shapes only")
    parser.add_argument("--every", type=int, default=1, help="one fault in so many")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    given = parser.parse_args()
    total = Counter()
    for case in cases(SHAPES[: given.shapes]):
        if given.only in str(case):
            counts, passed = run(case, slice(0, None, given.every))
            total += counts
            print(case, dict(counts), *passed, sep="\n    ", flush=True)
    print("all", dict(total), "lucidae", lucidae.__version__)


if __name__ == "__main__":
    main()
