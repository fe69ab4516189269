"""The full-covariance VAE against gamma_map, ARDRegression, MultiTaskLasso; choice of γ.

Run with ``python benchmarks/sparsity.py [sources leadfield one_response …]``. Work and
peers are timed in turn in one process, each at its best number of BLAS threads; figures are
medians. Energies are tr(XXᵀΣ⁻¹)/n + log|Σ|, lower is better; errors are ‖U − U₀‖/‖U₀‖.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np
from mne.inverse_sparse._gamma_map import _gamma_map_opt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ARDRegression, MultiTaskLasso, MultiTaskLassoCV
from threadpoolctl import threadpool_limits

from lucidae import SparseVAE, certify
from lucidae.datasets import make_meg_leadfield, make_sparse_regression
from lucidae.sparsity import solve_batch

REPEATS = 3
THREADS = (1, 2)
Work = Callable[[], Any]


def timed(work: Work) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def best_medians(
    works: dict[str, Work], repeats: int = REPEATS, threads: Sequence[int] = THREADS
) -> dict[str, tuple[float, Any]]:
    """Return each work's median time at its best number of threads, and its last result."""
    found: dict[str, list[float]] = {name: [] for name in works}
    results: dict[str, Any] = {}
    for count in threads:
        rounds: dict[str, list[float]] = {name: [] for name in works}
        with threadpool_limits(count, user_api="blas"):
            for _ in range(repeats):
                for name, work in works.items():
                    seconds, results[name] = timed(work)
                    rounds[name].append(seconds)
        for name in works:
            found[name].append(median(rounds[name]))
    return {name: (min(times), results[name]) for name, times in found.items()}


def energy(p: Any, relevance: Any, noise: float) -> float:
    Phi, X, used = p.dictionary, p.responses, relevance > 0
    sigma = (Phi[:, used] * relevance[used]) @ Phi[:, used].T + noise * np.eye(Phi.shape[0])
    fit = np.einsum("ij,ij->", X, np.linalg.solve(sigma, X)) / X.shape[1]
    return float(fit + np.linalg.slogdet(sigma)[1])


def fitted(p: Any, noise: Any = None) -> Any:
    level = p.noise_variance if noise is None else noise
    return SparseVAE(noise_variance=level, fit_intercept=False).fit(p.dictionary, p.responses)


def gamma_map(p: Any) -> Any:
    """Return the coefficients at which gamma_map stopped on the problem `p`."""
    rows, active = _gamma_map_opt(p.responses, p.dictionary, p.noise_variance, verbose=False)
    estimate = np.zeros_like(p.coef.T)
    estimate[active] = rows
    return estimate


def lasso(p: Any, share: float = 0.1) -> Any:
    """Return the group lasso whose penalty is a share of the smallest one that makes it zero."""
    largest = np.linalg.norm(p.dictionary.T @ p.responses, axis=1).max() / p.dictionary.shape[0]
    model = MultiTaskLasso(alpha=share * largest, fit_intercept=False)
    return model.fit(p.dictionary, p.responses).coef_.T


def error(p: Any, rows: Any) -> float:
    return float(np.linalg.norm(rows - p.coef.T) / np.linalg.norm(p.coef))


def columns(p: Any, support: Any) -> tuple[int, int]:
    """Return how many true columns are not in `support`, and how many false ones are in it."""
    found, true = set(np.asarray(support).tolist()), set(p.support.tolist())
    return len(true - found), len(found - true)


def leading(p: Any, rows: Any) -> str:
    top = np.argsort(-np.linalg.norm(rows, axis=1))[: len(p.support)]
    return f"{len(set(top) & set(p.support))}/{len(p.support)}"


def sources(name: str = "Gaussian", Phi: Any = None, repeats: int = REPEATS) -> None:
    print(f"P4  204 × 4686, {name}, n = 50, 20 dB (asked: gamma_map's speed × 5, a lower energy)")
    print(f"    {'who':<14} {'time':>8} {'speed-up':>8} {'energy':>13} {'leading':>8} {'error':>6}")
    p = make_sparse_regression(204, 4686, 20, 50, 10, snr_db=20, dictionary=Phi, random_state=0)
    works = {"SparseVAE": partial(fitted, p), "gamma_map": partial(gamma_map, p)}
    results = best_medians(works, repeats)
    results |= best_medians({"MultiTaskLasso": partial(lasso, p)}, 1, (1,))
    for who, (seconds, result) in results.items():
        ours = who == "SparseVAE"
        rows = result.coef_.T if ours else result
        if ours:
            relevance = result.relevance_
        else:  # those of which the coefficients are the posterior mean
            found = certify(rows.T, p.dictionary, p.responses, noise_variance=p.noise_variance)
            relevance = np.zeros(len(rows))
            relevance[found.evidence["active"]] = found.evidence["relevance"]
        value = f"{energy(p, relevance, p.noise_variance):.6f}"
        print(
            f"    {who:<14} {seconds:7.2f}s {results['gamma_map'][0] / seconds:8.1f} "
            f"{'another' if who == 'MultiTaskLasso' else value:>13} {leading(p, rows):>8} "
            f"{error(p, rows):6.2f}",
            flush=True,
        )


def leadfield() -> None:
    # gamma_map takes half a minute here, so everything runs once at each number of threads
    sources("MEG leadfield", make_meg_leadfield(204, 4686, random_state=0), repeats=1)


def steps_to(model: Any, target: float) -> int:
    """Return the first iteration whose energy per response is no higher than `target`."""
    energies = model.history_["energy"]
    energies = energies + (model.energy_ - energies[-1])  # one response, in the units of the data
    return max(1, int(model.history_.iterations[np.argmax(energies <= target)]))


def one_response() -> None:
    print("P4  100 × 200, n = 1, 20 dB, ten problems: SparseVAE against ARDRegression")
    rows: list[tuple[float, ...]] = []
    quality: dict[str, list[tuple[float, ...]]] = {"ARDRegression": [], "SparseVAE": []}
    for seed in range(10):
        p = make_sparse_regression(100, 200, 10, 1, 1, snr_db=20, random_state=seed)
        target = p.responses[:, 0]
        peer = ARDRegression(fit_intercept=False, max_iter=1000).fit(p.dictionary, target)
        noise, kept = 1.0 / peer.alpha_, peer.lambda_ < peer.threshold_lambda
        theirs = energy(p, np.where(kept, 1.0 / peer.lambda_, 0.0), noise)
        steps = steps_to(fitted(p, noise), theirs)
        brief = SparseVAE(noise_variance=noise, fit_intercept=False, max_iter=steps)
        works = {
            "theirs": partial(peer.fit, p.dictionary, target),
            "ours": partial(fitted, p, noise),
            "as low": partial(brief.fit, p.dictionary, p.responses),
            "auto": partial(fitted, p, "auto"),
        }
        results = best_medians(works)
        lower = [
            theirs - energy(p, results[key][1].relevance_, noise) for key in ("ours", "as low")
        ]
        rows.append((*(results[name][0] for name in works), *lower))
        auto = results["auto"][1]
        for who, level, support, estimate in (
            ("ARDRegression", noise, np.flatnonzero(kept), peer.coef_[:, None]),
            ("SparseVAE", auto.noise_variance_, auto.support_, auto.coef_.T),
        ):
            figures = (level / p.noise_variance, *columns(p, support), error(p, estimate))
            quality[who].append(figures)
    theirs, ours, brief, auto, gap, _ = (median(column) for column in zip(*rows, strict=True))
    print("    at the noise variance that ARDRegression found, medians:")
    print(f"    ARDRegression {1e3 * theirs:4.0f} ms")
    print(
        f"    SparseVAE     {1e3 * brief:4.0f} ms to an energy as low: {theirs / brief:.1f} times "
        f"as fast (lower by {min(row[5] for row in rows):.1f} at least)"
    )
    print(
        f"    SparseVAE     {1e3 * ours:4.0f} ms to a KKT violation < 1e-6: {theirs / ours:.1f} "
        f"times as fast, energy lower by {gap:.1f} ({min(row[4] for row in rows):.1f} at least)"
    )
    print(f"    each finds the noise variance ({1e3 * theirs:.0f} and {1e3 * auto:.0f} ms), means:")
    for who, figures in quality.items():
        level, missed, spurious, wrong = (mean(column) for column in zip(*figures, strict=True))
        print(
            f"    {who:<13} {level:5.2f} × the true variance, {missed:4.1f} columns missed, "
            f"{spurious:5.1f} spurious, error {wrong:.3f}",
            flush=True,
        )


def features() -> None:
    print("P4  feature selection with everything chosen by five folds, 20 dB, n = 20")
    print(f"    {'shape':<11} {'who':<17} {'time':>7} {'missed':>7} {'spurious':>8} {'error':>6}")
    for shape in ((100, 200, 20, 20), (100, 1000, 10, 20)):
        p = make_sparse_regression(*shape, snr_db=20, random_state=0)
        peer = MultiTaskLassoCV(cv=5, fit_intercept=False)
        works = {
            "SparseVAE": partial(fitted, p, "cv"),
            "MultiTaskLassoCV": partial(peer.fit, p.dictionary, p.responses),
        }
        for who, (seconds, model) in best_medians(works).items():
            support = model.support_ if who == "SparseVAE" else np.flatnonzero(model.coef_.any(0))
            missed, spurious = columns(p, support)
            print(
                f"    {shape[0]:>4} × {shape[1]:<4} {who:<17} {seconds:6.2f}s {missed:7d} "
                f"{spurious:8d} {error(p, model.coef_.T):6.3f}",
                flush=True,
            )


def noise(repeats: int = 7) -> None:
    """Compare fits that choose γ with fits at the true γ and at the γ that was chosen."""
    print("P12 204 × 4686, 20 dB, γ chosen (asked: 4 times a fit at known γ, same support)")
    print(
        f"    {'dictionary':<14} {'n':>3} {'chosen':>7} {'true γ':>7} {'ratio':>6} "
        f"{'its γ':>7} {'ratio':>6} {'γ/true':>7}  support"
    )
    field = make_meg_leadfield(204, 4686, random_state=0)
    for name, Phi in (("Gaussian", None), ("MEG leadfield", field)):
        for n in (10, 50):
            p = make_sparse_regression(
                204, 4686, 20, n, 10, snr_db=20, dictionary=Phi, random_state=0
            )
            level = fitted(p, "auto").noise_variance_
            works = {
                "chosen": partial(fitted, p, "auto"),
                "true": partial(fitted, p),
                "its": partial(fitted, p, level),
            }
            found: dict[str, list[tuple[float, Any]]] = {key: [] for key in works}
            for _ in range(repeats):  # in turn, at the default number of threads
                for key, work in works.items():
                    found[key].append(timed(work))
            times = {key: median(seconds for seconds, _ in runs) for key, runs in found.items()}
            supports = {key: set(runs[-1][1].support_.tolist()) for key, runs in found.items()}
            same = [key for key in ("true", "its") if supports[key] == supports["chosen"]]
            print(
                f"    {name:<14} {n:3d} {times['chosen']:6.2f}s {times['true']:6.2f}s "
                f"{times['chosen'] / times['true']:5.1f}× {times['its']:6.2f}s "
                f"{times['chosen'] / times['its']:5.1f}× {level / p.noise_variance:7.2f}  "
                f"{len(supports['chosen'])} columns, "
                f"same as at: {', '.join(same) or 'neither'}",
                flush=True,
            )


def stacks() -> None:
    print("P5  100 problems of 100 × 200, n = 20, 20 dB (asked: 1.5 times a loop, on two cores)")
    for rows in (20, 50):
        problems = [make_sparse_regression(r=rows, snr_db=20, random_state=s) for s in range(100)]
        X = np.stack([p.dictionary for p in problems])
        y = np.stack([p.responses for p in problems])
        noise = np.array([p.noise_variance for p in problems])
        solve_batch(X[:4], y[:4], noise_variance=noise[:4], n_jobs=2)  # processes start once

        def alone(X: Any = X, y: Any = y, noise: Any = noise) -> None:
            for i in range(len(noise)):
                solve_batch(X[i : i + 1], y[i : i + 1], noise_variance=noise[i : i + 1])

        works = {
            "loop of solve_batch": alone,
            "loop of SparseVAE": lambda problems=problems: [fitted(p) for p in problems],
            "solve_batch, two processes": partial(
                solve_batch, X, y, noise_variance=noise, n_jobs=2
            ),
        }
        results = best_medians(works, threads=(1,))
        together, ended = results["solve_batch, two processes"]
        for name, (seconds, _) in results.items():
            print(f"    r = {rows}  {name:<27} {seconds:6.2f} s {seconds / together:6.2f} ×")
        print(f"            {ended.converged.mean():.0%} converged", flush=True)


WORKS = (sources, leadfield, noise, one_response, features, stacks)
SECTIONS = {work.__name__: work for work in WORKS}


def main(wanted: Sequence[str]) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in wanted or SECTIONS:
        SECTIONS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
