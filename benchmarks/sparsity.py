"""The full-covariance VAE against gamma_map, ARDRegression and MultiTaskLasso; stacks; growth.

Run with ``python benchmarks/sparsity.py``. Work and peers are timed in turn in one process, each at
its best number of BLAS threads; figures are medians. Energies are tr(XXᵀΣ⁻¹)/n + log|Σ|, lower is
better. Growth is the slope of log time over log size, beside the one that theory gives.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from mne.inverse_sparse._gamma_map import _gamma_map_opt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ARDRegression, MultiTaskLasso
from threadpoolctl import threadpool_limits

from lucidae import SparseVAE
from lucidae.datasets import make_meg_leadfield, make_sparse_regression
from lucidae.sparsity import solve_batch
from lucidae.sparsity.theory import implied_relevance

REPEATS = 3
THREADS = (1, 2)
Work = Callable[[], Any]


def timed(work: Work) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def best_medians(works: dict[str, Work], repeats: int = REPEATS) -> dict[str, tuple[float, Any]]:
    """Return each work's median time at its best number of threads, and its last result."""
    found: dict[str, list[float]] = {name: [] for name in works}
    results: dict[str, Any] = {}
    for threads in THREADS:
        rounds: dict[str, list[float]] = {name: [] for name in works}
        with threadpool_limits(threads, user_api="blas"):
            for _ in range(repeats):
                for name, work in works.items():
                    seconds, results[name] = timed(work)
                    rounds[name].append(seconds)
        for name in works:
            found[name].append(median(rounds[name]))
    return {name: (min(times), results[name]) for name, times in found.items()}


def energy(Phi: Any, X: Any, relevance: Any, noise: float) -> float:
    used = relevance > 0
    sigma = (Phi[:, used] * relevance[used]) @ Phi[:, used].T + noise * np.eye(Phi.shape[0])
    fit = np.einsum("ij,ij->", X, np.linalg.solve(sigma, X)) / X.shape[1]
    return float(fit + np.linalg.slogdet(sigma)[1])


def fitted(problem: Any) -> Any:
    model = SparseVAE(noise_variance=problem.noise_variance, fit_intercept=False)
    return model.fit(problem.dictionary, problem.responses)


def gamma_map(problem: Any) -> Any:
    """Relevances at which gamma_map stopped, implied by the estimate that it returns."""
    rows, active = _gamma_map_opt(
        problem.responses, problem.dictionary, problem.noise_variance, verbose=False
    )
    estimate = np.zeros((problem.dictionary.shape[1], problem.responses.shape[1]))
    estimate[active] = rows
    return estimate


def lasso(problem: Any) -> Any:
    strength = np.sqrt(problem.noise_variance) / problem.dictionary.shape[0]
    model = MultiTaskLasso(alpha=strength, fit_intercept=False)
    return model.fit(problem.dictionary, problem.responses).coef_.T


def found_columns(problem: Any, rows: Any) -> str:
    top = np.argsort(-np.linalg.norm(rows, axis=1))[: len(problem.support)]
    return f"{len(set(top) & set(problem.support))}/{len(problem.support)}"


def sources() -> None:
    print("P4  204 × 4686, n = 50, 20 dB (asked: 5 times gamma_map's speed to a lower energy)")
    print(f"    {'dictionary':<10} {'who':<14} {'time':>8} {'speed-up':>8} {'energy':>12}  found")
    leadfield = make_meg_leadfield(204, 4686, random_state=0)
    for name, dictionary in (("Gaussian", None), ("leadfield", leadfield)):
        p = make_sparse_regression(
            204, 4686, 20, 50, 10, snr_db=20, dictionary=dictionary, random_state=0
        )
        works = {
            "SparseVAE": partial(fitted, p),
            "gamma_map": partial(gamma_map, p),
            "MultiTaskLasso": partial(lasso, p),
        }
        results = best_medians(works, repeats=REPEATS)
        model = results["SparseVAE"][1]
        estimates = {who: rows for who, (_, rows) in results.items() if who != "SparseVAE"}
        for who, (seconds, _) in results.items():
            rows = model.coef_.T if who == "SparseVAE" else estimates[who]
            relevance = (
                model.relevance_
                if who == "SparseVAE"
                else implied_relevance(p.dictionary, p.responses, rows, p.noise_variance)
            )
            value = energy(p.dictionary, p.responses, relevance, p.noise_variance)
            ratio = results["gamma_map"][0] / seconds
            shown = f"{value:12.4f}" if who != "MultiTaskLasso" else f"{'another':>12}"
            print(
                f"    {name:<10} {who:<14} {seconds:7.2f}s {ratio:8.1f} {shown} "
                f"{found_columns(p, rows):>6}"
            )


def one_response() -> None:
    print("P4  100 × 200, n = 1, 20 dB, at the noise variance that ARDRegression learned")
    p = make_sparse_regression(100, 200, 10, 1, 1, snr_db=20, random_state=0)
    target = p.responses[:, 0]
    peer = ARDRegression(fit_intercept=False, max_iter=1000)
    times = best_medians({"peer": lambda: peer.fit(p.dictionary, target)})
    noise = 1.0 / peer.alpha_
    model = SparseVAE(noise_variance=noise, fit_intercept=False)
    times |= best_medians({"ours": lambda: model.fit(p.dictionary, target)})
    relevance = np.where(peer.lambda_ < peer.threshold_lambda, 1.0 / peer.lambda_, 0.0)
    theirs = energy(p.dictionary, p.responses, relevance, noise)
    mine = energy(p.dictionary, p.responses, model.relevance_, noise)
    print(f"    ARDRegression {times['peer'][0]:.3f} s, energy {theirs:.4f}")
    print(
        f"    SparseVAE     {times['ours'][0]:.3f} s, energy {mine:.4f}: "
        f"{times['peer'][0] / times['ours'][0]:.1f} times as fast"
    )


def stacks() -> None:
    print("P5  100 problems of 100 × 200, n = 20, 20 dB (asked: 1.5 times a loop, on two cores)")
    problems = [make_sparse_regression(r=20, snr_db=20, random_state=s) for s in range(100)]
    Phi = np.stack([p.dictionary for p in problems])
    X = np.stack([p.responses for p in problems])
    noise = np.array([p.noise_variance for p in problems])
    solve_batch(Phi[:4], X[:4], noise_variance=noise[:4], n_jobs=2)  # processes start once
    with threadpool_limits(1, user_api="blas"):
        loop, _ = timed(
            lambda: [
                solve_batch(Phi[i : i + 1], X[i : i + 1], noise_variance=noise[i : i + 1])
                for i in range(100)
            ]
        )
        works = {"stack": None, "two processes": 2}
        for name, jobs in works.items():
            spent, ended = timed(
                lambda jobs=jobs: solve_batch(Phi, X, noise_variance=noise, n_jobs=jobs)
            )
            print(
                f"    {name:<14} {spent:6.2f} s, loop {loop:6.2f} s: {loop / spent:.2f} times as "
                f"fast; {ended.converged.mean():.0%} converged"
            )


def exponent(sizes: Sequence[int], times: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def growth() -> None:
    print("    growth of one fit (median of three), measured against theory")
    settings = {
        "κ": ([2000, 4000, 8000, 16000], lambda k: (100, k, 10, 20), "1"),
        "d": ([50, 100, 200, 400], lambda d: (d, 2000, 10, 20), "≤ 2"),
        "n": ([100, 1000, 10_000, 100_000], lambda n: (50, 100, 5, n), "0 to 1: one QR"),
    }
    for name, (sizes, shape, theory) in settings.items():
        times = []
        for size in sizes:
            p = make_sparse_regression(*shape(size), 3, snr_db=20, random_state=0)
            with threadpool_limits(1, user_api="blas"):
                times.append(median(timed(partial(fitted, p))[0] for _ in range(REPEATS)))
        print(f"    {name}: {exponent(sizes, times):5.2f}  (theory {theory})")


def main() -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    sources()
    one_response()
    stacks()
    growth()


if __name__ == "__main__":
    main()
