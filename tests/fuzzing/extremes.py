"""Small problems at the limits of floating point, against references in 50 decimal digits.

The references follow the formulas of the papers and share no code with the package. An answer may
be wrong by what the condition number of its problem allows, or be refused; beyond that the
certificate must not hold.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

from fuzzing.oracle import Finding
from lucidae import DropoutAutoencoder, DropoutRegressor, LinearAutoencoder, SecondMoment, SparseVAE
from sparsity import brute_force

EPS = float(np.finfo(float).eps)
DIGITS = 50
KINDS = ("plain", "graded", "tied", "collinear", "large mean", "outlier", "integers", "few rows")
SCALES = (1.0, 1.0, 1e-150, 1e150, 1e-70, 1e70, 1e-12, 1e12)


@dataclass(frozen=True, slots=True)
class Extreme:
    """One problem: which family, what kind of rows, at which scale."""

    family: str
    kind: str
    scale: float
    seed: int

    @property
    def program(self) -> str:
        """The line of Python that repeats the problem."""
        given = f"{self.family!r}, {self.kind!r}, {self.scale!r}, {self.seed}"
        return f"from fuzzing.extremes import Extreme, check; check(Extreme({given}))"


def cases(rng: Any) -> Iterator[Extreme]:
    """Yield one problem of each family."""
    for family in FAMILIES:
        kind, scale = str(rng.choice(KINDS)), float(rng.choice(SCALES))
        yield Extreme(family, kind, scale, int(rng.integers(10**6)))


def check(case: Extreme) -> list[Finding]:
    """Return what differs from the reference by more than the problem allows."""
    rng = np.random.default_rng(case.seed)
    X = rows(rng, case.kind) * case.scale
    with warnings.catch_warnings(), mpmath.workdps(DIGITS):
        warnings.simplefilter("ignore")
        try:
            wrong = list(FAMILIES[case.family](X, rng))
        except ValueError as refusal:
            wrong = [] if type(refusal) is ValueError else [("LinAlgError", str(refusal))]
        except (ArithmeticError, LookupError, TypeError, AttributeError) as error:
            wrong = [(type(error).__name__, f"{type(error).__name__}: {error}")]
    where = f"{case.kind} rows at scale {case.scale:g}"
    return [
        Finding(f"extremes, {case.family}", kind, f"{detail} ({where})", case.program)
        for kind, detail in wrong
    ]


def rows(rng: Any, kind: str) -> Any:
    """Draw rows of a kind."""
    n, m = int(rng.integers(6, 14)), int(rng.integers(2, 5))
    X = rng.standard_normal((n, m))
    if kind == "graded":
        X = X * 10.0 ** -(rng.uniform(1, 6) * np.arange(m))
    elif kind == "tied":
        Q = np.linalg.qr(X - X.mean(axis=0))[0]
        X = Q * (1.0 + 10.0 ** -rng.uniform(3, 15) * np.arange(m))
    elif kind == "collinear":
        X = X[:, :1] + 10.0 ** -rng.uniform(1, 10) * X
    elif kind == "large mean":
        X = X + 10.0 ** rng.uniform(2, 14)
    elif kind == "outlier":
        X[-1, :] = 10.0 ** rng.uniform(3, 14) * (rng.random(m) < 0.6)
    elif kind == "integers":
        X = np.round(2 * X)
    elif kind == "few rows":
        X = X[:m]
    return X


def exact(values: Any) -> Any:
    """Return an array as a matrix of exact numbers."""
    return mpmath.matrix(np.asarray(values, float).tolist())


def centred(matrix: Any) -> Any:
    """Return the rows of an exact matrix less their mean."""
    means = [mpmath.fsum(matrix[:, j]) / matrix.rows for j in range(matrix.cols)]
    return mpmath.matrix(
        [[matrix[i, j] - means[j] for j in range(matrix.cols)] for i in range(matrix.rows)]
    )


def second_moment(one: Any, other: Any) -> Any:
    """Return the cross moment of two exact matrices of rows."""
    return one.T * other / one.rows


def spectrum(sigma: Any) -> tuple[list[Any], Any]:
    """Return eigenvalues in descending order, and the eigenvectors as columns."""
    values, vectors = mpmath.eigsy(sigma)
    order = sorted(range(len(values)), key=lambda i: -values[i])
    return [values[i] for i in order], mpmath.matrix(
        [[vectors[i, j] for j in order] for i in range(vectors.rows)]
    )


def linear(X: Any, rng: Any) -> Iterator[tuple[str, str]]:
    """Compare variances, directions and the loss of principal components."""
    k = int(rng.integers(1, X.shape[1] + 1))
    model = LinearAutoencoder(k).fit(X)
    centred_rows = centred(exact(X))
    values, vectors = spectrum(second_moment(centred_rows, centred_rows))
    top = values[0]
    if not top:
        return
    n, components = len(X), np.asarray(model.components_)
    found = np.asarray(model.explained_variance_)
    wrong = max(abs(mpmath.mpf(found[i]) * (n - 1) / n - values[i]) for i in range(k)) / top
    if wrong > 1e3 * EPS:
        yield "variances", f"variances are off by {float(wrong):.2g} of the largest"
    if np.any(np.diff(found) > 1e3 * EPS * found.max()):
        yield "order", "the variances are not in descending order"
    units = components[np.linalg.norm(components, axis=1) > 0]
    skew = np.abs(units @ units.T - np.eye(len(units))).max(initial=0.0)
    if skew > 1e-8:
        yield "orthogonality", f"components are orthogonal only to {skew:.2g}"
    for i in range(min(k, len(units))):
        others = [abs(values[i] - values[j]) for j in range(len(values)) if j != i]
        gap = min(others, default=top) / top
        angle = 1 - abs(
            mpmath.fdot(zip(map(mpmath.mpf, components[i]), vectors[:, i], strict=True))
        )
        if gap > 1e-9 and angle > (1e4 * EPS / float(gap)) ** 2 + 1e3 * EPS:
            yield "direction", f"component {i} is off by 1 − |cos| = {float(angle):.2g}"
    if model.certificate_.holds:
        kept = mpmath.fsum(
            (exact(row[None]) * second_moment(centred_rows, centred_rows) * exact(row[None]).T)[0]
            for row in components
        )
        excess = float((mpmath.fsum(values[:k]) - kept) / mpmath.fsum(values))
        if excess > 3e-6:
            yield "certificate", f"the certificate holds, but the loss is {excess:.2g} too large"


def moments(X: Any, rng: Any) -> Iterator[tuple[str, str]]:
    """Compare mean and covariance, entry by entry relative to the standard deviations."""
    moment = SecondMoment.of(X)
    cut = int(rng.integers(1, len(X)))
    merged = SecondMoment.of(X[:cut]).merge(SecondMoment.of(X[cut:]))
    reference = centred(exact(X))
    sigma = second_moment(reference, reference)
    sizes = [mpmath.sqrt(sigma[j, j]) for j in range(sigma.rows)]
    for name, found in (
        ("covariance", moment.covariance),
        ("merged covariance", merged.covariance),
    ):
        for i in range(sigma.rows):
            for j in range(sigma.rows):
                size = sizes[i] * sizes[j]
                # The rows themselves are rounded at the size of their largest entry.
                noise = EPS * float(abs(X[:, i]).max() * sizes[j] + abs(X[:, j]).max() * sizes[i])
                error = abs(mpmath.mpf(found[i, j]) - sigma[i, j])
                if error > 1e3 * EPS * size + (1e-300 if noise > size * EPS else 0):
                    yield name, f"entry {i}, {j} of the {name} is off by {float(error / size):.2g}"
                    return


def optimum(singular: list[Any], strength: Any, width: int) -> tuple[Any, int, Any]:
    """Return value, rank and threshold of the dropout optimum. Mianjy et al. 2018, Theorem 3.6."""
    rank = 0
    for j in range(1, min(width, len(singular)) + 1):
        mean = mpmath.fsum(singular[:j]) / j
        if singular[j - 1] > strength * j * mean / (width + strength * j):
            rank = j
    level = strength * mpmath.fsum(singular[:rank]) / (width + strength * rank) if rank else 0
    kept = [s - level for s in singular[:rank]] + [mpmath.mpf(0)] * (len(singular) - rank)
    misfit = mpmath.fsum((s - c) ** 2 for s, c in zip(singular, kept, strict=True))
    return misfit + strength / width * mpmath.fsum(kept) ** 2, rank, level


def dropout(X: Any, rng: Any) -> Iterator[tuple[str, str]]:
    """Compare value, threshold and rank of the optimum of dropout training."""
    autoencoder = bool(rng.random() < 0.3)
    width, rate = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.1, 0.5, 0.9]))
    Y = X @ rng.standard_normal((X.shape[1], 2)) + np.std(X) * rng.standard_normal((len(X), 2))
    if autoencoder:
        Y, model = X, DropoutAutoencoder(width, dropout=rate).fit(X)
    else:
        model = DropoutRegressor(width, dropout=rate).fit(X, Y)
    inputs, outputs = centred(exact(X)), centred(exact(Y))
    values, vectors = spectrum(second_moment(inputs, inputs))
    energy = mpmath.fsum(outputs[i, j] ** 2 for i in range(len(X)) for j in range(outputs.cols))
    energy = energy / len(X)
    keep = [i for i in range(len(values)) if values[i] > mpmath.mpf(10) ** -40 * values[0]]
    condition = float(mpmath.sqrt(values[0] / values[keep[-1]]))
    if not energy or condition > 1e12:
        return
    white = mpmath.matrix(
        [[vectors[i, j] / mpmath.sqrt(values[j]) for j in keep] for i in range(vectors.rows)]
    )
    M = second_moment(outputs, inputs) * white
    gram = M.T * M if M.rows >= M.cols else M * M.T
    singular = [mpmath.sqrt(max(value, 0)) for value in spectrum(gram)[0]]
    strength = mpmath.mpf(rate) / (1 - mpmath.mpf(rate))
    value, _, level = optimum(singular, strength, width)
    value += energy - mpmath.fsum(s**2 for s in singular)
    allowed = 1e-11 + 1e4 * EPS * condition
    error = abs(mpmath.mpf(float(model.objective_)) - value) / energy
    if error > allowed:
        yield (
            "objective",
            f"the objective is off by {float(error):.2g} of E‖y‖² (cond {condition:.1g})",
        )
        if model.certificate_.holds and error > 3e-6:
            yield "certificate", f"and the certificate holds, at an error of {float(error):.2g}"
    error = abs(mpmath.mpf(float(model.threshold_)) - level) / mpmath.sqrt(energy)
    if error > 1e2 * allowed and model.certificate_.holds:
        yield "threshold", f"the threshold is off by {float(error):.2g} of √E‖y‖²"


def sparse(X: Any, rng: Any) -> Iterator[tuple[str, str]]:
    """Compare energy, posterior mean and stationarity of a sparse fit."""
    U = rng.standard_normal((X.shape[1], 2)) * (rng.random(X.shape[1]) < 0.6)[:, None]
    y = X @ U + 0.1 * np.std(X) * rng.standard_normal((len(X), 2))
    level = float(np.var(y)) * 10.0 ** -rng.uniform(0, 4)
    if not 0 < level < np.inf:
        return
    posterior = str(rng.choice(["full", "diagonal"]))
    model = SparseVAE(noise_variance=level, posterior=posterior, max_iter=200).fit(X, y)
    with brute_force.in_digits(DIGITS):
        # Centred in exact arithmetic: the mean of the rows may exceed their deviations by far.
        inner, outer = rounded(centred(exact(X))), rounded(centred(exact(y)))
        w, spare = np.asarray(model.relevance_, float), -1.0
        value = brute_force.energy(inner, outer, w, level, spare, posterior)
        violated = brute_force.violation(inner, outer, w, level, posterior)
        mean = brute_force.parts(inner, outer, w, level)[2]
    size = max(abs(value), outer.size)
    if abs(model.energy_ - value) > 1e-8 * size and model.certificate_.holds:
        yield "energy", f"the energy is off by {abs(model.energy_ - value) / size:.2g}"
    claim = model.certificate_["stationarity"]
    if claim.holds and violated > 3 * claim.threshold:
        yield "stationarity", f"stationarity holds, but the violation is {violated:.2g}"
    spread = np.abs(inner @ mean).max() or 1.0
    error = np.abs(inner @ (np.asarray(model.coef_).T - mean)).max() / spread
    if error > 1e-5 and model.certificate_.holds:
        yield "posterior mean", f"the fitted values are off by {error:.2g}"


def rounded(matrix: Any) -> Any:
    """Return an exact matrix as an array of doubles."""
    return np.array([[float(matrix[i, j]) for j in range(matrix.cols)] for i in range(matrix.rows)])


FAMILIES = {"linear": linear, "moments": moments, "dropout": dropout, "sparse": sparse}
