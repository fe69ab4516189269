"""Count how often dense formulas contradict certificates of sparse fits with options.

Run with ``python benchmarks/soundness_options.py [--count 1000]``. Every problem is random: its
shape, columns (Gaussian, of different lengths, nearly dependent), groups with a shared relevance or
a covariance of their own, a noise covariance (full, of low rank, or diagonal), real or
complex data, independent or correlated responses, weights and intercept. Half of the fits are left
as they are; in the others one fitted attribute is changed. `soundness_sparsity.py` does the same
for fits without these options.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lucidae import SparseVAE, certify

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sparsity"))

from general_model import Model

SLACK = 3.0
"""A verdict contradicts the formulas if the true value is this many times beyond its threshold."""

CHANGED = (
    "coef_",
    "relevance_",
    "noise_variance_",
    "energy_",
    "group_covariances_",
    "response_covariance_",
)


def covariance(rng: Any, d: int) -> Any:
    """Return None, the variances, or the covariance of the noise of d rows, often of low rank."""
    kind = rng.integers(6)
    if kind < 3:
        return None
    if kind == 3:
        return rng.uniform(0.2, 5.0, d)
    rank = 2 * d if kind == 4 else max(2, d - int(rng.integers(1, 3)))
    root = rng.standard_normal((d, rank))
    return root @ root.T / rank


def problem(rng: Any) -> tuple[Any, Any, dict[str, Any], dict[str, Any]]:
    """Return X and y, options of the estimator, and further arguments of `fit`, drawn at random."""
    d, size, n = int(rng.integers(4, 11)), int(rng.integers(1, 4)), int(rng.integers(2, 7))
    kappa = size * int(rng.integers(2, 6))
    kind = complex if rng.random() < 0.3 else float

    def normal(*shape: int) -> Any:
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if kind is complex else values

    X = normal(d, kappa)
    shape = rng.integers(4)
    if shape == 1:
        X *= 10.0 ** rng.uniform(-3, 3, kappa)
    elif shape == 2 and kappa > 1:
        X[:, 1] = X[:, 0] + 10.0 ** rng.uniform(-5, 0) * X[:, 1]
    coef = np.zeros((kappa, n), kind)
    used = rng.choice(kappa, int(rng.integers(1, 4)))
    coef[used] = normal(used.size, n)
    y = X @ coef
    level = float(np.mean(np.abs(y) ** 2)) * 10.0 ** rng.uniform(-4, 0)
    y = y + np.sqrt(level) * normal(d, n)
    options: dict[str, Any] = {
        "noise_variance": level,
        "groups": np.arange(kappa) // size,
        "group_covariance": rng.choice(["spherical", "full"]),
        "fit_intercept": bool(rng.random() < 0.3),
        "max_iter": int(rng.choice([3, 500])),
    }
    given: dict[str, Any] = {}
    if kind is float and rng.random() < 0.25:
        rho = float(rng.uniform(0, 0.95))
        lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        options |= {
            "response_covariance": "learn" if rng.random() < 0.5 else rho**lags,
            "group_covariance": "spherical",
        }
        return X, y, options, given
    cov = covariance(rng, d)
    if cov is not None:
        given["noise_cov"] = cov
        options["noise_variance"] = level if rng.random() < 0.7 else 1.0
        low_rank = cov.ndim == 2 and np.linalg.matrix_rank(cov) < d
        options["fit_intercept"] = options["fit_intercept"] and not low_rank
    elif rng.random() < 0.3:
        given["sample_weight"] = rng.integers(1, 4, d)
    return X, y, options, given


def tampered(rng: Any, model: Any) -> str:
    """Change one attribute of half of the fits, by 1e-8 to 10 times its size; return its name."""
    if rng.random() < 0.5:
        return ""
    names = [name for name in CHANGED if hasattr(model, name)]
    name = str(rng.choice(names))
    size = 10.0 ** rng.uniform(-8, 1)
    value = np.asarray(getattr(model, name))
    noisy = value * (1.0 + size * rng.standard_normal(value.shape))
    noisy = np.abs(noisy) if name in ("relevance_", "noise_variance_") else noisy
    setattr(model, name, noisy if value.ndim else float(noisy))
    return name


def described(model: Any, X: Any, y: Any, given: dict[str, Any]) -> Model:
    """Return the fitted numbers as a model with dense covariances."""
    prior = np.diag(np.asarray(model.relevance_)).astype(X.dtype)
    if model.group_covariance == "full":
        for number, block in enumerate(np.asarray(model.group_covariances_)):
            inside = np.flatnonzero(model.groups == number)
            prior[np.ix_(inside, inside)] = block[: inside.size, : inside.size]
    R = given.get("noise_cov", np.ones(len(X)))
    index = np.repeat(np.arange(len(X)), given.get("sample_weight", np.ones(len(X), int)))
    R = np.diag(R[index]) if R.ndim == 1 else R
    B = getattr(model, "response_covariance_", np.eye(y.shape[1]))
    return Model(X[index], y[index], prior, model.noise_variance_, R, B, model.fit_intercept)


def contradictions(
    model: Any, certificate: Any, X: Any, y: Any, given: Any, precise: bool = False
) -> list[str]:
    """Return the claims whose verdict the dense formulas contradict, in 60 digits if `precise`."""
    truth, full = described(model, X, y, given), model.group_covariance == "full"
    spread = max(np.ptp(model.relevance_[model.groups == g]) for g in np.unique(model.groups))
    mean, coef = truth.mean(), np.asarray(model.coef_).T
    figures: dict[str, float] = {}
    blocks = [truth.prior[np.ix_(model.groups == g, model.groups == g)] for g in set(model.groups)]
    lowest = min(np.linalg.eigvalsh((b + b.conj().T) / 2)[0] / max(np.abs(b).max(), 1e-300)
                 for b in blocks)  # fmt: skip
    hermitian = max(float(np.abs(b - b.conj().T).max()) for b in blocks)
    sound = lowest > -1e-12 and hermitian < 1e-12 * np.abs(truth.prior).max()
    skewed = float(np.abs(truth.B - truth.B.T).max())
    sound = sound and skewed < 1e-12
    if sound and np.linalg.eigvalsh((truth.B + truth.B.T) / 2)[0] > 1e-9:
        value, violation = truth.energy(), truth.violation(model.groups, full)
        if precise:
            value, violation, mean = truth.precise(model.groups, full)
        figures["energy"] = abs(model.energy_ - value) / max(abs(value), y.size)
        if full or spread == 0.0:
            figures["stationarity"] = violation
        used = np.diagonal(truth.prior).real > 0
        spans = np.sqrt(y.shape[1] * np.diagonal(truth.prior).real[used])
        distances = np.linalg.norm(coef - mean, axis=1)[used] / spans
        if not full:  # otherwise relative to the largest variance along an axis of the group
            figures["posterior_mean"] = float(distances.max(initial=0.0))
    found = []
    for name, figure in figures.items():
        claim = certificate[name]
        if claim.holds and figure > SLACK * claim.threshold + 1e-7:
            found.append(f"{name} holds, true figure {figure:.3g}")
        if claim.holds is False and figure < claim.threshold / SLACK and name != "posterior_mean":
            found.append(f"{name} fails, true figure {figure:.3g}")
    if skewed > 1e-5 and certificate.holds:
        found.append(f"holds, and the response covariance is asymmetric by {skewed:.3g}")
    if not sound and lowest < -1e-5 and certificate.holds:
        found.append(f"holds, and a covariance has the relative eigenvalue {lowest:.3g}")
    return found


def judge(rng: Any) -> tuple[Any, Any, str, list[str]]:
    """Return the model, the certificate, what was changed, and what contradicts it."""
    X, y, options, given = problem(rng)
    model = SparseVAE(**options).fit(X, y, **given)
    mine = [claim.verdict for claim in model.certificate_]
    theirs = [claim.verdict for claim in certify(model, X, y, **given)]
    changed = tampered(rng, model)
    certificate = certify(model, X, y, **given)
    wrong = contradictions(model, certificate, X, y, given)
    if wrong:  # double precision may be at fault
        with contextlib.suppress(ZeroDivisionError):  # more columns in a group than dimensions
            wrong = contradictions(model, certificate, X, y, given, precise=True)
    if mine != theirs:
        wrong.append(f"certificate_ {mine} and certify {theirs} differ")
    return model, certificate, changed, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        model, certificate, changed, wrong = judge(np.random.default_rng(seed))
        counts["problems"] += 1
        counts["tampered"] += bool(changed)
        counts[f"holds: {certificate.holds}"] += 1
        counts[f"as fitted, holds: {certificate.holds}"] += not changed and model.max_iter > 3
        counts["contradicted"] += bool(wrong)
        for words in wrong:
            print(f"seed {seed} ({changed or 'as fitted'}): {words}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"{number:8d}  {name}")


if __name__ == "__main__":
    main()
