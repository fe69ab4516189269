"""The dropout optimum against SciPy's decompositions, and cross-validation against one fit.

Run with ``python benchmarks/dropout.py``. Work and peers are timed in turn in one process, each at
its best number of BLAS threads; figures are medians.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import svds

from benchmarks._tables import best_times
from lucidae import DropoutFactorization, DropoutRegressor

SHAPE = (2000, 1000)
WIDTH = 100


def matrices(rng: np.random.Generator) -> dict[str, np.ndarray]:
    noise = rng.standard_normal(SHAPE)
    left, right = np.linalg.qr(noise)[0], np.linalg.qr(rng.standard_normal((SHAPE[1],) * 2))[0]
    index = np.arange(SHAPE[1])
    return {
        "white noise": noise,
        "slow decay": (left * np.exp(-0.02 * index)) @ right,
        "fast decay": (left * np.exp(-0.08 * index)) @ right,
    }


def optimum() -> None:
    print(
        f"P6  DropoutFactorization, {SHAPE[0]} × {SHAPE[1]}, r = {WIDTH}, dropout 0.5 (asked ≤ 1.5)"
    )
    print(f"    {'spectrum':<12} {'ours':>8} {'full SVD':>9} {'svds':>8} {'ratio':>6}")
    for name, matrix in matrices(np.random.default_rng(0)).items():
        model = DropoutFactorization(WIDTH)
        times = best_times(
            {
                "ours": lambda model=model, matrix=matrix: model.fit(matrix),
                "full": lambda matrix=matrix: scipy.linalg.svd(matrix, full_matrices=False),
                "few": lambda matrix=matrix: svds(matrix, k=WIDTH),
            },
            repeats=3,
        )
        ours, full, few = (times[key].median for key in ("ours", "full", "few"))
        ratio = ours / min(full, few)
        print(f"    {name:<12} {ours:7.2f}s {full:8.2f}s {few:7.2f}s {ratio:6.2f}")


def cross_validation() -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((50_000, 200)), rng.standard_normal((50_000, 20))
    times = best_times(
        {
            "fit": lambda: DropoutRegressor().fit(X, Y),
            "cv": lambda: DropoutRegressor(dropout="cv").fit(X, Y),
        },
        repeats=3,
    )
    print(
        "    dropout='cv', 5 folds, 162 rates, 50 000 × 200: "
        f"{times['cv'].median / times['fit'].median:.2f} × one fit ({times['fit']})"
    )


if __name__ == "__main__":
    optimum()
    cross_validation()
