"""Count how often brute force contradicts a certificate of the sparsity family.

Run with ``python benchmarks/soundness_sparsity.py [--count 10000]``. Every problem is random: its
shape, dictionary (Gaussian, integer, with repeated, dependent or zero columns), noise variance,
posterior, weights, intercept and precision. Half of the fits are left as they are; in the others
one fitted attribute is changed. Each certificate is compared with dense formulas in extended
precision (again in 60 digits where they disagree) and, where it claims uniqueness, with all sets of
as few columns.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lucidae import SparseVAE, certify

# Beside this file "sparsity" is the benchmark of that name, not the folder of tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sparsity"))

import brute_force

SLACK = 3.0
"""A verdict contradicts brute force if the true value is this many times beyond its threshold."""

EQUAL = 1e-6
"""Relative difference up to which the relevances of a group count as equal."""

JUDGED = (
    "stationarity",
    "predictive_variance",
    "support",
    "unique_in_general_position",
    "unique_by_coherence",
)


def dictionary(rng: Any, d: int, kappa: int) -> Any:
    kind = rng.integers(6)
    Phi = rng.standard_normal((d, kappa))
    if kind == 1:
        Phi = rng.integers(-2, 3, (d, kappa)).astype(float)
    elif kind == 2:
        Phi[:, kappa // 2 :] = Phi[:, : kappa - kappa // 2]
    elif kind == 3 and kappa > 2:
        Phi[:, 2] = Phi[:, 0] + Phi[:, 1]
    elif kind == 4:
        Phi[:, rng.integers(kappa)] = 0.0
    elif kind == 5:
        Phi *= 10.0 ** rng.uniform(-3, 3, kappa)
    return Phi


def problem(rng: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    d, kappa, n = (int(rng.integers(2, high)) for high in (14, 17, 6))
    Phi, count = dictionary(rng, d, kappa), int(rng.integers(1, min(d, kappa, 4) + 1))
    U = np.zeros((kappa, n))
    rank = int(rng.integers(1, min(count, n) + 1))
    U[rng.choice(kappa, count, replace=False)] = rng.standard_normal(
        (count, rank)
    ) @ rng.standard_normal((rank, n))
    y = Phi @ U
    size = max(float(np.mean(y**2)), 1e-12)
    exact = rng.random() < 0.4
    exact = exact and bool(y.any())  # responses that are all zero are refused
    y = y if exact else y + np.sqrt(0.1 * size) * rng.standard_normal(y.shape)
    level = size * 10.0 ** rng.uniform(-12 if exact else -4, 0)
    weights = None if rng.random() < 0.7 else rng.integers(0, 4, d).astype(float)
    if weights is not None and weights.sum() < 2:
        weights[:2] = 1.0
    used = y if weights is None else y[weights > 0]
    if not used.any():  # such responses are refused
        y = y + np.sqrt(0.1 * size) * rng.standard_normal(y.shape)
        used = y if weights is None else y[weights > 0]
    intercept = bool(rng.integers(2)) and bool(np.ptp(used, axis=0).any())
    options = {
        "noise_variance": "learn" if 2 * kappa <= d and rng.random() < 0.5 else level,
        "posterior": rng.choice(["full", "full", "diagonal"]),
        "fit_intercept": intercept,
        "groups": np.arange(kappa) // 2 if rng.random() < 0.15 else None,
        "max_iter": int(rng.choice([3, 300])),
    }
    dtype = np.float32 if rng.random() < 0.1 else np.float64
    return Phi.astype(dtype), y.astype(dtype), weights, options


def tampered(rng: Any, model: Any) -> str:
    """Change one attribute of half of the fits, by 1e-8 to 10 times its size; return its name."""
    if rng.random() < 0.5:
        return ""
    name = str(rng.choice([*CHANGED, "support_"]))
    if name == "support_":
        chosen = rng.random(model.n_features_in_) < 0.5
        model.support_ = np.flatnonzero(chosen)
        return name
    size = 10.0 ** rng.uniform(-8, 1)
    value = np.asarray(getattr(model, name))
    noisy = value * (1.0 + size * rng.standard_normal(value.shape))
    noisy = np.abs(noisy) if name in ("relevance_", "noise_variance_") else noisy
    setattr(model, name, noisy.astype(value.dtype) if value.ndim else float(noisy))
    return name


CHANGED = ("coef_", "relevance_", "noise_variance_", "energy_", "intercept_")


def truth(model: Any, X: Any, y: Any, weights: Any) -> dict[str, float]:
    """Return the true figures of the claims, by dense formulas in extended precision."""
    rows, targets = brute_force.centred(X, y, weights, model.fit_intercept)
    w = np.asarray(model.relevance_, float)
    noise, kind = float(model.noise_variance_), model.posterior
    spare = -float(model.fit_intercept)
    _, _, mean, *_ = brute_force.parts(rows, targets, w, noise)
    coef = np.asarray(model.coef_, float).T
    used = w > 0
    prior = np.sqrt(targets.shape[1] * w[used])
    distance = np.linalg.norm((coef - mean)[used], axis=1) / prior
    value = brute_force.energy(rows, targets, w, noise, spare, kind)
    size = max(abs(value), targets.shape[1] * max(len(rows) + spare, 1.0))
    return {
        "stationarity": brute_force.violation(rows, targets, w, noise, kind, model.groups),
        "posterior_mean": float(distance.max(initial=0.0)),
        "energy": abs(model.energy_ - value) / size,
    }


def contradictions(model: Any, certificate: Any, X: Any, y: Any, weights: Any) -> list[str]:
    """Return the claims whose verdict brute force contradicts."""
    found = []
    true = truth(model, X, y, weights)
    spread = _spread_in_groups(np.asarray(model.relevance_, float), model.groups)
    equal = spread < EQUAL / SLACK
    if spread > SLACK * EQUAL:  # no state of the model, whose groups have one relevance each
        true["stationarity"] = np.inf
    elif not equal:  # too close to the tolerance
        del true["stationarity"]
    for name, figure in true.items():
        claim = certificate[name]
        if claim.holds and figure > SLACK * claim.threshold:
            found.append(f"{name} holds, true figure {figure:.3g}")
        # The intercept is part of the claim about the posterior mean, and not of this figure.
        if claim.holds is False and figure < claim.threshold / SLACK and name != "posterior_mean":
            found.append(f"{name} fails, true figure {figure:.3g}")
    rows, targets = brute_force.centred(X, y, weights, model.fit_intercept)
    w, noise = np.asarray(model.relevance_, float), float(model.noise_variance_)
    if certificate["support"].holds is not None and equal:
        support = brute_force.significant(rows, targets, w, noise, model.groups)
        if certificate["support"].holds != np.array_equal(np.sort(model.support_), support):
            found.append(f"support {certificate['support'].verdict}, it should be {support}")
    if certificate["predictive_variance"].holds:
        moved, _ = brute_force.centred(X, y, None, False)
        if model.fit_intercept:
            moved = moved - np.average(moved, axis=0, weights=weights)
        seen = np.ones(len(X), dtype=bool) if weights is None else weights > 0
        expected = np.sqrt(noise + brute_force.variances(rows, w, noise, moved[seen]))
        if not np.allclose(model.predict(X[seen], return_std=True)[1], expected, rtol=1e-5):
            found.append("predictive_variance holds, and the standard deviations are wrong")
    for name in ("unique_in_general_position", "unique_by_coherence"):
        if not certificate[name].holds:
            continue
        used = set(np.asarray(certificate.evidence["used"]).tolist())
        if len(used) <= 4:
            others = brute_force.representations(rows, targets, len(used))
            if any(not set(chosen) <= used for chosen in others):
                found.append(f"{name} holds, and {others} represent the responses too")
    return found


def _spread_in_groups(relevances: Any, groups: Any) -> float:
    """Return the largest relative difference of two relevances of a group."""
    labels = np.arange(len(relevances)) if groups is None else np.asarray(groups)
    parts = [relevances[labels == name] for name in np.unique(labels)]
    return max(float(np.ptp(part) / max(part.max(), np.finfo(float).tiny)) for part in parts)


def judge(rng: Any) -> tuple[Any, str, list[str]]:
    """Return the certificate of one random fit, what was changed in it, and what contradicts it."""
    X, y, weights, options = problem(rng)
    model = SparseVAE(**options).fit(X, y, sample_weight=weights)
    mine = [claim.verdict for claim in model.certificate_]
    theirs = [claim.verdict for claim in certify(model, X, y, sample_weight=weights)]
    changed = tampered(rng, model)
    certificate = certify(model, X, y, sample_weight=weights)
    wrong = contradictions(model, certificate, X, y, weights)
    if wrong:  # extended precision may be at fault where γ is tiny
        with brute_force.in_digits(60):
            wrong = contradictions(model, certificate, X, y, weights)
    if mine != theirs:
        wrong.append(f"certificate_ {mine} and certify {theirs} differ")
    return certificate, changed, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        certificate, changed, wrong = judge(np.random.default_rng(seed))
        counts["problems"] += 1
        counts["tampered"] += bool(changed)
        counts[f"holds: {certificate.holds}"] += 1
        for name in JUDGED:
            counts[f"{name}: {certificate[name].verdict}"] += 1
        counts["contradicted"] += bool(wrong)
        for words in wrong:
            print(f"seed {seed} ({changed or 'as fitted'}): {words}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"{number:8d}  {name}")


if __name__ == "__main__":
    main()
