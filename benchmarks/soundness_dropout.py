"""Compare certificates of the dropout family with brute force on random problems.

    python -m benchmarks.soundness_dropout --count 10000

Each problem is drawn at random: shape, rank, ties, scale, collinearity, dropout rate, width, and
weights that are optimal, perturbed, rotated, a saddle, unequalized, or fitted to other data. One
problem in nine has tied weights and correlated inputs, for which no closed form is known. The
truth is the smallest of the losses that L-BFGS reaches from several starts, one of them the
certified weights themselves. Three contradictions are counted: a gap that holds although L-BFGS
finds a smaller loss, a gap that fails although no start improves it, and a bound that L-BFGS
falls below.
"""

from __future__ import annotations

import argparse
import collections
import time

import numpy as np
from scipy.optimize import minimize

from lucidae.dropout import certify_weights, solve
from lucidae.dropout.problem import LinearProblem, Weights, rows_problem

TOLERANCE = 1e-6
KINDS = ("optimal", "near", "far", "rotated", "saddle", "unequal", "scaled", "other data", "tied")


def white(X, Y):
    """Return the problem with white inputs for rows X and Y, and the loss of least squares.

    The result is the matrix M of the problem, the whitening matrix, its inverse, and the loss.
    """
    X, Y = X - X.mean(0), Y - Y.mean(0)
    P, s, Wt = np.linalg.svd(X / np.sqrt(len(X)), full_matrices=False)
    keep = s > 1e-13 * max(s[0], 1e-300)
    P, s, Wt = P[:, keep], s[keep], Wt[keep]
    M = (P.T @ Y / np.sqrt(len(X))).T
    floor = max((Y**2).sum() / len(X) - (M**2).sum(), 0.0)
    return M, Wt.T / s, Wt.T * s, floor


def loss_and_slope(flat, M, strength, width):
    """Return the dropout loss ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² and its gradient.

    `flat` has the entries of U and V, whose `width` columns are uᵢ and vᵢ; λ is `strength`.
    """
    cut = M.shape[0] * width
    U, V = flat[:cut].reshape(-1, width), flat[cut:].reshape(-1, width)
    E, u, v = U @ V.T - M, (U * U).sum(0), (V * V).sum(0)
    slopes = 2 * (E @ V + strength * U * v), 2 * (E.T @ U + strength * V * u)
    return (E * E).sum() + strength * u @ v, np.concatenate([part.ravel() for part in slopes])


def descended(M, strength, width, start):
    """Return the loss ‖M − UVᵀ‖² + λΣ‖uᵢ‖²‖vᵢ‖² that L-BFGS reaches from the weights `start`.

    λ is `strength`, and U and V have `width` columns.
    """
    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 0.0, "gtol": 1e-10, "maxcor": 20}
    both = minimize(
        loss_and_slope, start, (M, strength, width), "L-BFGS-B", jac=True, options=options
    )
    return float(both.fun)


def draw_data(rng):
    """Return rows (X, Y) of a random kind."""
    features, outputs = rng.integers(1, 6, size=2)
    n = int(rng.integers(2, 40))
    X = rng.standard_normal((n, features)) * 10.0 ** rng.integers(-3, 4)
    kind = rng.integers(6)
    if kind == 0:
        X = X @ rng.standard_normal((features, features))
    elif kind == 1 and features > 1:
        X[:, -1] = X[:, 0]
    elif kind == 2:
        X = X[:, :1] + 10.0 ** -rng.uniform(1, 9) * X
    elif kind == 3:
        X = np.round(X / np.abs(X).max() * 2)
    elif kind == 4:
        X = X * 10.0 ** rng.uniform(-4, 4, size=features)
    rank = int(rng.integers(1, 1 + min(features, outputs)))
    B = rng.standard_normal((features, rank)) @ rng.standard_normal((rank, outputs))
    size = np.sqrt(((X - X.mean(0)) @ B).var(0).sum()) or 1.0
    Y = X @ B + rng.choice([0.0, 1e-3, 0.3, 2.0]) * size * rng.standard_normal((n, outputs))
    dtype = rng.choice([np.float64, np.float64, np.float32])
    return X.astype(dtype), Y.astype(dtype)


def draw_weights(rng, kind, X, Y, strength, width):
    """Return weights of a kind of `KINDS`, such as optimal or perturbed, for the rows X and Y.

    `strength` is the strength of dropout and `width` the number of hidden units.
    """
    problem = rows_problem(X, Y, None, centered=True)[0]
    U, V = solve(problem, strength, width).weights
    if kind == "near":
        step = 10.0 ** -rng.uniform(2, 9)
        U = U * (1 + step * rng.standard_normal(U.shape))
    elif kind == "far":
        U, V = (part * (1 + rng.standard_normal(part.shape)) for part in (U, V))
    elif kind == "rotated":
        Q = np.linalg.qr(rng.standard_normal((width, width)))[0]
        U, V = U @ Q, V @ Q
    elif kind == "unequal":
        left, s, right = np.linalg.svd(U @ V.T, full_matrices=False)
        U, V = np.zeros_like(U), np.zeros_like(V)
        count = min(width, len(s))
        U[:, :count], V[:, :count] = left[:, :count] * s[:count], right[:count].T
    elif kind == "scaled":
        U = U * (1 + rng.choice([1e-4, 0.1, 1.0]))
    elif kind == "saddle":
        M, lift, _, _ = white(np.float64(X), np.float64(Y))
        left, s, right = np.linalg.svd(M, full_matrices=False)
        s[rng.integers(len(s))] = 0.0
        flat = LinearProblem.from_matrix((left * s) @ right)
        U, V = solve(flat, strength, width).weights
        V = lift @ V
    elif kind == "other data":
        other = rows_problem(X, rng.permutation(Y), None, centered=True)[0]
        U, V = solve(other, strength, width).weights
    return Weights(U, V)


def tied_loss_and_slope(flat, C, strength, width):
    """Return the tied loss tr C − 2tr UᵀCU + tr UᵀU UᵀCU + λΣ‖uᵢ‖² uᵢᵀCuᵢ and its gradient.

    C is the second moment of the inputs, `flat` has the entries of the weights U, whose `width`
    columns are uᵢ, and λ is `strength`.
    """
    U = flat.reshape(-1, width)
    CU, lengths = C @ U, (U * U).sum(0)
    spread, gram = (U * CU).sum(0), U.T @ U
    value = np.trace(C) - 2 * spread.sum() + (gram * (U.T @ CU)).sum() + strength * lengths @ spread
    slope = -4 * CU + 2 * (U @ (U.T @ CU) + CU @ gram)
    return value, (slope + 2 * strength * (U * spread + CU * lengths)).ravel()


def judge_tied(rng):
    """Draw an autoencoder with tied weights and correlated inputs; return the verdict on its gap.

    As for `judge`, the kind of weights, the verdict and the kind of contradiction are returned.
    """
    X, _ = draw_data(rng)
    X = np.float64(X)
    width = int(rng.integers(1, 5))
    dropout = float(rng.choice([0.0, 0.2, 0.5]))
    settings = dropout / (1 - dropout), width
    C = np.cov(X.T, bias=True).reshape(X.shape[1], -1)
    unit = C / (np.trace(C) or 1.0)
    options = {"maxiter": 3000, "maxfun": 6000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 20}
    runs = [
        minimize(
            tied_loss_and_slope,
            # Large weights may end in a valley where one unit does not take part.
            10.0 ** -(number % 3) * rng.standard_normal(len(C) * width),
            (unit, *settings),
            "L-BFGS-B",
            jac=True,
            options=options,
        )
        for number in range(6)
    ]
    best = min(runs, key=lambda run: run.fun)
    point = best.x * rng.choice([0.0, 1.0, 1.0, 1.0001, 1.1])
    gap = tied_loss_and_slope(point, unit, *settings)[0] - best.fun
    weights = point.reshape(-1, width)
    claim = certify_weights(weights, None, X, dropout=dropout)["gap"]
    contradiction = ""
    if claim.holds and gap > 2 * TOLERANCE + claim.error:
        contradiction = "false pass"
    elif claim.holds is False and gap < TOLERANCE - claim.error:
        contradiction = "false failure"
    return "tied", claim.holds, contradiction


def judge(rng):
    """Draw a problem; return the kind of weights, the verdict on the gap, and the contradiction."""
    if rng.integers(len(KINDS)) == 0:
        return judge_tied(rng)
    X, Y = draw_data(rng)
    width = int(rng.integers(1, 6))
    dropout = float(rng.choice([0.0, 0.01, 0.2, 0.5, 0.9]))
    strength = dropout / (1 - dropout)
    kind = str(rng.choice(KINDS[:-1]))
    weights = draw_weights(rng, kind, X, Y, strength, width)
    certificate = certify_weights(*weights, X, Y, dropout=dropout)
    claim, bound = certificate["gap"], certificate.evidence["bound"]
    rows = np.float64(X), np.float64(Y)
    M, _, lower, floor = white(*rows)
    explained = float((M**2).sum()) or 1.0
    start = np.concatenate([weights.left.ravel(), (lower.T @ weights.right).ravel()])
    value = loss_and_slope(start, M, strength, width)[0]
    # L-BFGS stops at an absolute norm of the gradient, so M is scaled to norm one.
    size = np.linalg.norm(M) or 1.0
    start, unit = start / size**0.5, M / size
    starts = [start + 1e-3 * rng.standard_normal(start.shape)]
    starts += [0.5 * rng.standard_normal(start.shape) for _ in range(3)]
    best = min(value, *(size**2 * descended(unit, strength, width, one) for one in starts))
    gap = (value - best) / explained
    contradiction = ""
    if claim.holds and gap > 2 * TOLERANCE + claim.error:
        contradiction = "false pass"
    elif claim.holds is False and gap < TOLERANCE - claim.error:
        contradiction = "false failure"
    elif best + floor < bound - (TOLERANCE + certificate["conditioning"].value) * (
        explained + floor
    ):
        contradiction = "below the bound"
    return kind, claim.holds, contradiction


def main() -> None:
    """Run the comparison and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    begin, found = time.perf_counter(), collections.Counter()
    for number in range(settings.count):
        kind, holds, contradiction = judge(np.random.default_rng([settings.seed, number]))
        found[kind, holds] += 1
        if contradiction:
            found["contradicted", contradiction] += 1
            print(f"problem {number} ({kind}): {contradiction}")
    print(f"{settings.count} problems in {time.perf_counter() - begin:.0f} s")
    for kind in KINDS:
        counts = {verdict: found[kind, verdict] for verdict in (True, False, None)}
        print(f"  {kind:<11} holds {counts[True]}, fails {counts[False]}, none {counts[None]}")
    wrong = {name: count for (kind, name), count in found.items() if kind == "contradicted"}
    print("  contradicted:", wrong or "never")


if __name__ == "__main__":
    main()
