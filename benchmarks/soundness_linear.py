"""Certificates of linear autoencoders against brute force, on random problems.

    python -m benchmarks.soundness_linear --count 10000

Each problem draws data, a method and weights (exact, trained, or an exact fit under attack), and
compares every verdict with the truth: losses from the rows, a singular value decomposition of the
rows, and for small problems a search from several starts. It prints how often a certificate said
"holds" where the truth is otherwise (false pass) or "fails" where the truth holds (false failure).
A verdict closer to its threshold than a factor of 1.5 is not counted, because the two computations
may round differently; "None" contradicts nothing and is counted separately.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from lucidae import LinearAutoencoder, certify
from lucidae.linear import certify as certified
from lucidae.linear import verify
from lucidae.linear.methods import geometric_prior

# As a script, `linear` would be the benchmark of that name.
_PATH = Path(__file__).resolve().parents[1] / "tests" / "linear" / "brute_force.py"
_SPEC = importlib.util.spec_from_file_location("linear_brute_force", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
brute_force: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(brute_force)

Vector = np.ndarray[Any, Any]

METHODS, ALIGNED = brute_force.METHODS, brute_force.ALIGNED
KINDS = ("ordinary", "tie", "few rows", "decades", "collinear", "float32", "large mean")
ATTACKS = (
    "none",
    "none",
    "trained",
    "rotated",
    "permuted",
    "scaled",
    "swapped",
    "noise",
    "small noise",
    "zero",
    "other data",
)
SEARCHED = 10
"""One problem in this many is compared with a search from several starts as well."""


def rows(rng: np.random.Generator, kind: str, m: int) -> Vector:
    """Return random rows with m features, of one of the kinds in `KINDS`."""
    n = int(rng.integers(2, m)) if kind == "few rows" else int(rng.integers(m + 2, 60))
    values = np.sort(rng.gamma(1.0, 1.0, m) + 0.05)[::-1]
    if kind == "decades":
        values = np.sort(10.0 ** -rng.uniform(0, 10, m))[::-1]
    if kind == "tie":
        where = int(rng.integers(0, m - 1))
        values[where + 1] = values[where]
    noise = rng.standard_normal((n, m))
    left = np.linalg.svd(noise - noise.mean(axis=0), full_matrices=False)[0]
    left = left[:, : min(n - 1, m)]
    axes = np.linalg.qr(rng.standard_normal((m, m)))[0][:, : left.shape[1]]
    X: Vector = np.sqrt(n) * (left * np.sqrt(values[: left.shape[1]])) @ axes.T
    if kind == "collinear":
        X = X[:, :1] + 10.0 ** -rng.uniform(0, 5) * X
    if kind == "large mean":
        X = X + 10.0 ** rng.uniform(0, 6)
    return X.astype(np.float32) if kind == "float32" else X + rng.standard_normal(m)


def attacked(
    rng: np.random.Generator, attack: str, encoder: Vector, decoder: Vector, X: Vector
) -> tuple[Vector, Vector]:
    """Return optimal weights after one of the changes in `ATTACKS`, such as a rotation."""
    k, m = encoder.shape
    if attack == "rotated":
        turn = np.linalg.qr(rng.standard_normal((k, k)))[0]
        return turn @ encoder, decoder @ turn.T
    if attack == "permuted":
        order = rng.permutation(k)
        return encoder[order], decoder[:, order]
    if attack == "scaled":
        factor = 1 + 10.0 ** -rng.uniform(1, 5)
        return factor * encoder, factor * decoder
    if attack == "swapped" and k < m:
        axes = np.linalg.svd(X - X.mean(axis=0), full_matrices=True)[2]
        old, new = axes[int(rng.integers(k))], axes[int(rng.integers(k, m))]
        swap = np.eye(m) - np.outer(old, old) + np.outer(new, old)
        return encoder @ swap.T, swap @ decoder
    if attack == "zero":
        scale = np.where(np.arange(k) == rng.integers(k), 0.0, 1.0)
        return encoder * scale[:, None], decoder * scale
    if attack in ("noise", "small noise"):
        size = 10.0 ** -(rng.uniform(0, 2) if attack == "noise" else rng.uniform(2, 6))
        return tuple(
            part + size * np.abs(part).max() * rng.standard_normal(part.shape)
            for part in (encoder, decoder)
        )
    return encoder, decoder


def truth(
    method: str, encoder: Vector, decoder: Vector, X: Vector, given: dict[str, Any]
) -> dict[str, tuple[float, float, bool]]:
    """Return for each claim the true value, its threshold, and whether float64 can decide it.

    The claims are about the weights of `method` with the constants `given`, on the rows X.
    """
    X = X.astype(float)
    k, m = encoder.shape
    covariance = brute_force.second_moment(X)
    subspace, axes, singular = brute_force.distances(decoder, X)
    values = np.append(singular**2 / len(X), np.zeros(m))[: m + 1]
    rounding = 1e4 * m * np.finfo(float).eps * values[0]
    gaps = values[:-1] - values[1:]
    apart = np.minimum(gaps, np.append(np.inf, gaps[:-1]))[:k] > rounding
    size = float(m) if method == "linear_vae" else float(np.trace(covariance))
    excess = brute_force.loss(method, encoder, decoder, covariance, **given)
    excess -= closed_form(method, values, k, m, given)
    counted_alike = counted(decoder, 1e-6) == counted(units(decoder), m * np.finfo(float).eps)
    found = {"subspace": (subspace, 1e-3, bool(gaps[k - 1] > rounding) and counted_alike)}
    resolved = method != "linear_vae" or given["noise"] > 1e3 * rounding
    found["gap"] = (excess / size, 1e-6, bool(np.isfinite(excess)) and resolved)
    if method in ALIGNED:
        found["alignment"] = (float(axes.mean()), 1e-3, bool(apart.all()) and counted_alike)
    return found


def units(decoder: Vector) -> Vector:
    """Return the nonzero columns of a decoder, scaled to unit length."""
    lengths = np.linalg.norm(decoder, axis=0)
    columns: Vector = decoder[:, lengths > 0.0] / lengths[lengths > 0.0]
    return columns


def counted(columns: Vector, share: float) -> int:
    """Return the number of singular values of `columns` above a share of the largest.

    The certificate counts every direction of the columns of unit length, however short a column is;
    `brute_force` counts the singular values of the decoder that are above 1e-6 of the largest.
    """
    sizes = np.linalg.svd(columns, compute_uv=False)
    return int(np.sum(sizes > share * sizes[0])) if len(sizes) else 0


def closed_form(method: str, values: Vector, k: int, m: int, given: dict[str, Any]) -> float:
    """Return the minimal loss of a method, from the eigenvalues of the second moment.

    There are k latents and m features, and `given` are the constants of the method, such as
    penalties. Bao et al. 2020, Theorem 3; Tipping & Bishop 1999.
    """
    lead, rest = values[:k], float(np.sum(values[k:m]))
    if method in ("uniform_l2", "nonuniform_l2"):
        penalties = np.sort(given["l2"])
        shrunk = np.where(
            lead > penalties, 2 * penalties - penalties**2 / np.maximum(lead, 1e-300), lead
        )
        return float(np.sum(shrunk)) + rest
    if method == "expected_nested_dropout":
        return float(sum(p * np.sum(values[b:m]) for b, p in enumerate(given["prior"], start=1)))
    if method == "linear_vae":
        best = rest / max(m - k, 1)
        if best <= 0.0:
            return -np.inf
        return float(m * np.log(2 * np.pi) + np.sum(np.log(lead)) + (m - k) * np.log(best) + m) / 2
    return rest


def settings_of(
    rng: np.random.Generator, method: str, k: int, values: Vector
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the arguments of the estimator, and those of the brute-force loss.

    `values` are the eigenvalues of the second moment of the data, descending.
    """
    settings: dict[str, Any] = {"method": method}
    given: dict[str, Any] = {}
    if method in ("uniform_l2", "nonuniform_l2"):
        low = max(float(values[k - 1]), 1e-6 * float(values[0]))
        l2 = np.sort(rng.uniform(0.05, 0.9, k)) * low
        settings["l2"] = given["l2"] = np.full(k, l2[0]) if method == "uniform_l2" else l2
    if method == "expected_nested_dropout":
        given["prior"] = geometric_prior(k)
    return settings, given


def problem(seed: int, counts: Counter[str], contradictions: list[str]) -> None:
    """Draw one problem and compare all verdicts with the truth.

    The results are added to `counts`, and contradictions to the list `contradictions`.
    """
    rng = np.random.default_rng(seed)
    kind, method, attack = (str(rng.choice(names)) for names in (KINDS, METHODS, ATTACKS))
    m = int(rng.integers(3, 9))
    k = int(rng.integers(1, m if method == "linear_vae" else m + 1))
    X = rows(rng, kind, m)
    values = np.linalg.eigvalsh(brute_force.second_moment(X.astype(float)))[::-1]
    settings, given = settings_of(rng, method, k, values)
    solver = "gradient" if attack == "trained" else "auto"
    fitted = LinearAutoencoder(k, solver=solver, random_state=0, max_iter=300, **settings).fit(X)
    # As trained: `encoder_` lists latents of equal variance in an order that rounding decides.
    weights = fitted._state.model.outcome.weights
    encoder, decoder = weights.encoder, weights.atoms.T
    if method == "linear_vae":
        given["noise"] = float(np.mean(values[k:]))
        if given["noise"] <= 1e-9 * values[0]:
            return
        settings["noise_variance"] = given["noise"]
    encoder, decoder = attacked(rng, attack, encoder, decoder, X)
    if attack == "other data":
        X = rows(rng, kind, m)
        if method == "linear_vae":
            return
    if method in ("rag", "gha", "brockett"):
        settings["tied"] = False if method == "rag" else "auto"
    # In half of the problems the verifier does not factorise the rows. It then tests a covariance
    # by a sketch, or has only products with the rows.
    bounded = seed % 4 == 3
    certified.SMALL_ROWS = 0 if seed % 2 else 2**17
    verify.DENSE_FEATURES = 0 if bounded else 1024
    certificate = certify((encoder, decoder), X, family="linear", **settings)
    counts["problems"] += 1
    counts["with bounds"] += bounded
    words = f"{seed} {kind} {method} {attack}"
    if attack == "none" and certificate.holds is False:
        contradictions += blamed(certificate, decoder, bounded, words)
    known = truth(method, encoder, decoder, X, given)
    compare_with_truth(certificate, known, counts, contradictions, words)
    if seed % SEARCHED == 0 and m * k <= 12 and certificate.evidence["minimum"] is not None:
        compare_with_search(method, X, k, given, certificate, counts, contradictions, seed)


def blamed(certificate: Any, decoder: Vector, bounded: bool, words: str) -> list[str]:
    """Return a contradiction if claims fail at the optimum although the data give no reason."""
    failing = {claim.name for claim in certificate if claim.holds is False}
    allowed = {"eigengap"}  # the data may lack what is assumed; it is compared with the truth
    if "nonzero_latents" in failing:
        allowed |= {"nonzero_latents", "subspace", "alignment"}
    if bounded and np.linalg.matrix_rank(decoder, rtol=1e-6) < decoder.shape[1]:
        # It spans fewer than k dimensions, so its distance to every principal subspace of k
        # dimensions is positive, also where ties or penalties make this the optimum.
        allowed |= {"subspace"}
    return [f"{words}: {failing} fail at the optimum"] if failing - allowed else []


def compare_with_truth(
    certificate: Any,
    known: dict[str, tuple[float, float, bool]],
    counts: Counter[str],
    contradictions: list[str],
    words: str,
) -> None:
    """Compare the verdicts of the certificate with the true values `known`.

    The results are added to `counts`, and contradictions, which begin with `words`, to
    `contradictions`.
    """
    for name, (value, threshold, decidable) in known.items():
        claim = certificate[name]
        counts["verdicts"] += 1
        if claim.holds is None:
            counts["none"] += 1
        elif decidable and not threshold / 1.5 < value < 1.5 * threshold:
            counts["compared"] += 1
            if claim.holds is not bool(value < threshold):
                word = "false pass" if claim.holds else "false failure"
                counts[word] += 1
                contradictions.append(f"{words}: {word} of {name}, {claim.value} vs {value}")


def compare_with_search(
    method: str,
    X: Vector,
    k: int,
    given: dict[str, Any],
    certificate: Any,
    counts: Counter[str],
    contradictions: list[str],
    seed: int,
) -> None:
    """Compare the minimum that a certificate states with the best of a search from several starts.

    The weights are those of `method` with k latents and the constants `given`, on the rows X. The
    results are added to `counts`, and contradictions to `contradictions`.
    """
    X = X.astype(float)
    terms = {name: value for name, value in given.items() if name != "noise"}
    covariance = brute_force.second_moment(X)
    scale = float(np.trace(covariance))
    found = brute_force.minimum(method, covariance, k, starts=3, **terms)
    counts["searches"] += 1
    size = X.shape[1] if method == "linear_vae" else scale
    if found < certificate.evidence["minimum"] - 1e-6 * size:
        contradictions.append(f"{seed} {method}: a search found {found}, below the minimum")
        counts["below the minimum"] += 1


def main() -> int:
    """Run the problems and print the counts; the exit status is 1 if there is a contradiction."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    contradictions: list[str] = []
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(arguments.first, arguments.first + arguments.count):
            problem(seed, counts, contradictions)
    for line in contradictions[:50]:
        print(line)
    print(f"{dict(counts)} in {time.perf_counter() - start:.0f} s")
    print(f"contradictions: {len(contradictions)}")
    return int(bool(contradictions))


if __name__ == "__main__":
    raise SystemExit(main())
