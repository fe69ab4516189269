"""Experiments: recovery of sparse codes by several methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from lucidae.arrays import (
    Array,
    cholesky,
    device,
    eye_like,
    like,
    namespace,
    solve_lower,
    squared_moduli,
    squared_norm,
    to_numpy,
)
from lucidae.datasets import make_meg_leadfield, make_sparse_regression
from lucidae.iteration import BatchSolution, limited_blas
from lucidae.metrics import exact_recovery, support_recovery
from lucidae.sparsity.batch import SparseBatch, solve_batch
from lucidae.sparsity.objectives import PowerPenalty
from lucidae.sparsity.problem import covariance
from lucidae.sparsity.solve import NOISE_FREE
from lucidae_papers.cells import Arrays, Cell, Settings, settings_of, work
from lucidae_papers.declaration import Experiment, Scale, listed
from lucidae_papers.device import cores, is_accelerator, reference
from lucidae_papers.results import Curve, Curves, Results
from lucidae_papers.verdicts import LABELS, Agree, AtLeast, AtMost, Ordered, Where

CROWDED = 0.9
"""An estimate that uses more than this share of the dictionary's rows is not called sparse."""

Solved = BatchSolution[Any]


def full(Phi: Array, X: Array, noise_variance: Array, **limits: Any) -> Solved:
    """Return the minimisers of the energy of the full-covariance VAE (Wipf 2023, eq. 18).

    `Phi` are the dictionaries of several problems, and `X` their responses. Each problem is solved
    by majorise–minimise (MM). A problem without noise whose solution is not sparse is solved by
    expectation–maximisation (EM) too, and the solution of lower energy is returned: EM makes
    smaller steps and finds lower minima if nearly as many columns have coefficients as the
    dictionary has rows.
    """
    found = solve_batch(
        Phi, X, posterior="full", noise_variance=noise_variance, solver="mm", **limits
    )
    again = _not_sparse(Phi, X, noise_variance, found.value)
    if not again.size:
        return found
    xp = namespace(X)
    index = xp.asarray(again, device=device(X))
    some = [xp.take(values, index, axis=0) for values in (Phi, X, noise_variance)]
    slow = solve_batch(*some[:2], posterior="full", noise_variance=some[2], solver="em", **limits)
    return _lower(found, slow, again)


def _not_sparse(Phi: Array, X: Array, noise: Array, value: SparseBatch) -> np.ndarray[Any, Any]:
    """Return the indices of problems without noise whose estimate is not sparse.

    An estimate is not sparse if it uses more than the share `CROWDED` of the rows of the
    dictionary.
    """
    xp, rows = namespace(X), X.shape[-2]
    factor, _ = cholesky(covariance(Phi, value.relevance, noise))
    inverse = solve_lower(factor, xp.broadcast_to(eye_like(rows, X), factor.shape))
    # tr(Φ W Φᵀ Σ⁻¹) = d − γ tr Σ⁻¹ with Σ = γI + Φ W Φᵀ = LLᵀ, and tr Σ⁻¹ = ‖L⁻¹‖²_F: the number
    # of rows that the estimate explains by itself rather than as noise.
    used = rows - noise * squared_norm(inverse)
    noise_free = noise < NOISE_FREE * xp.mean(X * X, axis=(-2, -1))
    return np.flatnonzero(to_numpy(noise_free & (used > CROWDED * rows)))


def _lower(first: Solved, second: Solved, index: np.ndarray[Any, Any]) -> Solved:
    """Return `first` with those of its solutions replaced for which `second` has lower energy.

    The energy is the training loss of the VAE. `second` has solutions of the problems `index` only.
    """
    xp = namespace(first.value.energy)
    order = np.arange(len(first))
    better = to_numpy(second.value.energy) < to_numpy(first.value.energy)[index]
    order[index[better]] = len(first) + np.flatnonzero(better)
    chosen = xp.asarray(order, device=device(first.value.energy))
    value = SparseBatch(
        *(
            xp.take(xp.concat(both, axis=0), chosen, axis=0)
            for both in zip(first.value, second.value, strict=True)
        )
    )
    steps = first.n_iter.copy()
    steps[index] += second.n_iter
    status = (*first.status, *second.status)
    distance = np.concatenate([first.distance, second.distance])[order]
    tolerance = max(first.tolerance, second.tolerance)
    return BatchSolution(value, tuple(status[i] for i in order), steps, distance, tolerance)


def group_lasso(Phi: Array, X: Array, noise_variance: Array, **limits: Any) -> Solved:
    """Return the solutions of the group lasso, by reweighting, all problems at once.

    The group lasso minimises ½‖X − ΦU‖² + √γ Σⱼ‖uⱼ‖ over the code U with rows uⱼ, for responses X,
    a dictionary Φ and the noise variance γ. The point estimate with the penalty h(a) = 2√a
    minimises it: its energy is (1/γ')‖X − ΦU‖² + 2√n Σ‖uⱼ‖ in units of the root mean square s of
    the n columns of X, so that γ' = √γ s/√n.
    """
    xp = namespace(X)
    scale = xp.sqrt(xp.mean(squared_moduli(X), axis=(-2, -1)) / X.shape[-1])
    noise = xp.sqrt(noise_variance) * scale
    penalty = PowerPenalty(0.5)
    return solve_batch(Phi, X, posterior="point", noise_variance=noise, penalty=penalty, **limits)


METHODS: dict[str, Callable[..., Solved]] = {
    "full": full,
    "diagonal": partial(solve_batch, posterior="diagonal"),
    "autoencoder": partial(solve_batch, posterior="point"),
    "group lasso": group_lasso,
    # With a tiny noise variance: the smallest sum of row norms that reproduces the responses.
    "constrained group lasso": partial(solve_batch, posterior="point", penalty=PowerPenalty(0.5)),
}
"""The methods: two VAEs (Wipf 2023, eq. 18 and 50), the autoencoder with a logarithmic penalty on
row norms (eq. 48), and the group lasso with and without noise."""


ROW_NORMS = {
    "unit": "nonzero rows of unit norm",
    "jeffreys": "norms of the nonzero rows from Jeffreys' prior",
}
NO_NOISE = "none (the methods assume a noise variance γ of 1e-10)"
CRITERIA = ("rows", "frobenius", "support")
BLOCK = 10
"""On an accelerator, problems of this many numbers of active rows are solved in one call."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Settings of the experiment that counts how often each method recovers a sparse code.

    A code contains the coefficients of all responses, and r of its rows are active (not zero).
    """

    active: tuple[int, ...]  # numbers r of active rows
    trials: int  # number of random problems for each r; every method solves the same problems
    # rows and columns of the dictionary, number of responses, and rank of the code; as in
    # `lucidae.datasets.make_sparse_regression`
    d: int = 100
    kappa: int = 200
    n: int = 20
    tau: int = 3
    row_scaling: str = "unit"  # norms of the active rows: all 1, or drawn from Jeffreys' prior
    # signal-to-noise ratio of the responses in decibels; without it there is no noise, and the
    # methods assume a noise variance of 1e-10
    snr_db: float | None = None
    leadfield: bool = False  # whether the dictionary is a MEG lead field rather than Gaussian
    # criterion of success: every row within 1e-3 of the truth, or the r largest rows are the active
    # rows
    criterion: str = "rows"
    # distance to stationarity at which a problem counts as solved; the support alone needs less
    # accuracy
    tol: float = 1e-6
    # further ranks of the code at which the full-covariance VAE is tried, and at which r
    ranks: tuple[int, ...] = ()
    crowded: tuple[int, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the four methods that are compared.

        Without noise, the group lasso is the one that reproduces the responses exactly.
        """
        lasso = "constrained group lasso" if self.snr_db is None else "group lasso"
        return ("full", "diagonal", "autoencoder", lasso)

    def cells(self) -> Sequence[Cell]:
        """Return one run per method and number of active rows of the code."""
        usual = [self._cell(method, r, self.tau) for method in self.methods for r in self.active]
        further = [self._cell("full", r, tau) for tau in self.ranks for r in self.crowded]
        return usual + further

    def _cell(self, method: str, r: int, tau: int) -> Cell:
        """Return the run of a method on all problems with r active rows and a code of rank τ."""
        names = ("d", "kappa", "n", "tau", "row_scaling", "snr_db", "leadfield", "trials")
        shared = settings_of(self, *names) | {"tau": tau}
        problem = shared | {"r": r, "seed": 100_000 * r}
        limit = 600 if method == "full" else 300
        settings = {"method": method, "tol": self.tol, "max_iter": limit, "problem": problem}
        if method == "full":
            settings["solver"] = "mm, or em where it ends lower"
        expected = (80 if method == "full" else limit if "lasso" in method else 40) * 1.2e-3
        cost = self.trials * (1e-3 + expected * (self.d / 100) ** 2 * (self.kappa / 200))
        return Cell(measure, settings, cost, f"{shared} {self.active.index(r) // BLOCK}")

    def curves(self, results: Results) -> Curves:
        """Return the success rates over the numbers r of active (nonzero) rows of the code.

        Names are ``"criterion/method"``, with the criteria of success of `CRITERIA`, and
        ``"method"`` for the criterion of this experiment. A further rank τ of the code is added to
        the name, as in ``"rows/full/10"``.
        """
        found: dict[tuple[str, int], list[Arrays]] = {}
        for cell in results:
            place = cell.settings["method"], cell.settings["problem"]["tau"]
            found.setdefault(place, []).append(cell.arrays)
        curves = {}
        for (method, tau), cells in found.items():
            usual = tau == self.tau
            name, sizes = (method, self.active) if usual else (f"{method}/{tau}", self.crowded)
            for criterion in CRITERIA:
                rates = [float(np.mean(arrays[criterion])) for arrays in cells]
                curves[f"{criterion}/{name}"] = Curve(sizes, rates, "r =")
            if usual:
                curves[method.removeprefix("constrained ")] = curves[f"{self.criterion}/{method}"]
        return curves

    def facts(self) -> Mapping[str, str]:
        """Return the settings in words, for the HTML page of the results."""
        dictionary = "MEG lead field (Sarvas)" if self.leadfield else "Gaussian, unit columns"
        success = {
            "rows": "every row within 0.1 % of the truth, the support exact",
            "support": "the r largest rows are the active rows",
        }
        further = {}
        if self.ranks:
            at = f"{listed(self.ranks)}, at r = {listed(self.crowded)}"
            further = {"further ranks of the code": f"{at}, full-covariance VAE only"}
        return {
            "dictionary": f"{self.d} × {self.kappa}, {dictionary}",
            "responses": f"{self.n}, code of rank {self.tau}, {ROW_NORMS[self.row_scaling]}",
            "noise": NO_NOISE
            if self.snr_db is None
            else f"signal-to-noise ratio {self.snr_db:g} dB",
            "active rows": f"{self.active[0]} to {self.active[-1]}, {len(self.active)} values",
            "trials": f"{self.trials} random problems for each number of active rows; standard "
            f"error of a rate: at most {0.5 / self.trials**0.5:.2g}",
            "success": success[self.criterion],
            **further,
        }


ABOUT = (
    "Responses are made from a dictionary of d rows and a code with r nonzero rows; each method "
    "estimates the code from the responses. The success rate is the share of random problems that "
    "are solved."
)
"""Description that the four experiments on recovery have in common."""


def rate(method: str) -> str:
    """Return the description of a method's success rate, for the sentences that are judged."""
    return f"success rate, {LABELS[method]}"


def above(first: str, second: str, at: Where, margin: float) -> Ordered:
    """Return the verdict that the first method's success rate exceeds the second's by `margin`."""
    return Ordered((first, second), at, margin, f"{rate(first)} minus {LABELS[second]}")


def scales(
    smoke: Mapping[str, Any],
    paper: Mapping[str, Any],
    unjudged: Mapping[str, str] | None = None,
    **setting: Any,
) -> dict[str, Any]:
    """Return both scales; `unjudged` are statements that smoke scale does not judge."""
    small = Recovery((6, 12, 18, 24, 28, 32, 36), 12, d=40, kappa=80, crowded=(32, 36), **setting)
    full = Recovery(tuple(range(1, 101)), 100, crowded=(80, 90), **setting)
    return {"smoke": Scale(small, smoke, unjudged=unjudged or {}), "paper": Scale(full, paper)}


@dataclass(frozen=True, slots=True)
class Stack:
    """Problems of one size, stacked along the first axis of each array."""

    # dictionaries (p, d, κ) with κ columns, responses (p, d, n) and true codes (p, κ, n)
    dictionary: Array
    responses: Array
    coef: Array
    noise: Array  # (p,): noise variances that the methods assume


@work("sparsity.recovery/1")
def measure(group: Sequence[Settings], device: str) -> list[Arrays]:
    """Return for each run of a group which problems its method solves, by each criterion.

    A run applies one method to many random problems. All methods solve the same problems; the runs
    of one method are solved in one call.
    """
    order = sorted({settings["problem"]["r"]: settings["problem"] for settings in group}.items())
    problems = [problem for _, problem in order]
    stack = _stack(problems, device)
    found: dict[tuple[str, int], Arrays] = {}
    methods = {settings["method"]: settings for settings in group}
    for method, settings in methods.items():
        arrays = _solve(method, settings["tol"], settings["max_iter"], stack)
        for place, problem in enumerate(problems):
            part = slice(place * problem["trials"], (place + 1) * problem["trials"])
            found[method, problem["r"]] = {name: values[part] for name, values in arrays.items()}
    return [found[settings["method"], settings["problem"]["r"]] for settings in group]


def _solve(method: str, tol: float, limit: int, stack: Stack) -> dict[str, Any]:
    """Solve all problems of a stack by one method; return by which criteria each is recovered."""
    solution = METHODS[method](
        stack.dictionary, stack.responses, noise_variance=stack.noise, tol=tol, max_iter=limit
    )
    coef = solution.value.coef
    return {
        "rows": to_numpy(exact_recovery(coef, stack.coef, criterion="rows")),
        "frobenius": to_numpy(exact_recovery(coef, stack.coef)),
        "support": to_numpy(support_recovery(coef, stack.coef)) == 1.0,
        "iterations": np.asarray(solution.n_iter),
        "distance": np.asarray(solution.distance),
    }


def _stack(problems: Sequence[Mapping[str, Any]], device: str) -> Stack:
    """Return all random problems, each drawn from its own seed, as arrays on the device."""
    tasks = [(problem, trial) for problem in problems for trial in range(problem["trials"])]
    if is_accelerator(device):
        # NumPy's generators release the interpreter's lock half of the time, so a few threads help.
        with limited_blas(problems[0]["d"]), ThreadPoolExecutor(min(4, cores())) as pool:
            drawn = list(pool.map(_draw, tasks))
    else:
        drawn = [_draw(task) for task in tasks]
    ref = reference(device)
    noise = [data.noise_variance or 1e-10 for data in drawn]
    return Stack(
        like(np.stack([data.dictionary for data in drawn]), ref),
        like(np.stack([data.responses for data in drawn]), ref),
        like(np.stack([data.coef for data in drawn]), ref),
        like(np.array(noise), ref),
    )


def _draw(task: tuple[Mapping[str, Any], int]) -> Any:
    """Return one random problem; `task` has its settings and the number of the trial."""
    problem, trial = task
    dictionary = _leadfield(problem["d"], problem["kappa"]) if problem["leadfield"] else None
    return make_sparse_regression(
        problem["d"],
        problem["kappa"],
        problem["r"],
        problem["n"],
        problem["tau"],
        row_scaling=problem["row_scaling"],
        snr_db=problem["snr_db"],
        dictionary=dictionary,
        random_state=problem["seed"] + trial,
    )


@lru_cache(maxsize=2)
def _leadfield(d: int, kappa: int) -> Any:
    return make_meg_leadfield(d, kappa, random_state=0)


EQUAL_RATES = "success rates of the diagonal-covariance VAE and the autoencoder"

UNIT_ROWS = Experiment(
    name="sparse-unit",
    title="Recovery of the relevant columns: rows of unit norm",
    reference="Wipf 2023, Figure 2(a)",
    about=f"{ABOUT} The nonzero rows have unit norm, which is the case for which the theory "
    "of Wipf 2023 guarantees least.",
    claims={
        "full": "The full-covariance VAE has a higher success rate than the autoencoder.",
        "lasso": "Both VAEs and the autoencoder have higher success rates than the group lasso.",
    },
    findings={
        "rate": "The full-covariance VAE recovers nearly all codes with r = 0.6 d nonzero rows, "
        "where d is the number of rows of the dictionary.",
    },
    identities={
        "diagonal": "Without noise the diagonal-covariance VAE has the same success rate as the "
        "autoencoder: as the noise variance vanishes, their updates become equal.",
    },
    **scales(
        smoke={
            "full": (above("full", "autoencoder", at=(24, 36), margin=0.05),),
            "diagonal": (Agree("diagonal", "autoencoder", 0.1, at="everywhere", says=EQUAL_RATES),),
            "lasso": tuple(
                above(method, "group lasso", at=(18, 28), margin=0.1)
                for method in ("full", "diagonal", "autoencoder")
            ),
            "rate": (AtLeast("full", 0.9, at=24, says=rate("full")),),
        },
        paper={
            "full": (above("full", "autoencoder", at=(50, 80), margin=0.3),),
            "diagonal": (Agree("diagonal", "autoencoder", 0.05, at="mean", says=EQUAL_RATES),),
            "lasso": tuple(
                above(method, "group lasso", at=(40, 70), margin=0.1)
                for method in ("full", "diagonal", "autoencoder")
            ),
            "rate": (AtLeast("full", 0.95, at=60, says=rate("full")),),
        },
    ),
    draw="sparsity.recovery",
)


RANKS = (10, 20)


def nearly_always(bound: float, sizes: tuple[int, ...], tau: int = 0) -> tuple[AtLeast, ...]:
    """Return the verdicts that the full-covariance VAE recovers codes, by criterion and size r.

    `tau` is a further rank of the code; without it the rank is 3.
    """
    criteria = {"rows": "each row within 0.1 %", "frobenius": "Frobenius norm within 0.1 %"}
    name, rank = (f"full/{tau}", tau) if tau else ("full", 3)
    return tuple(
        AtLeast(f"{criterion}/{name}", bound, r, f"{rate('full')}, code of rank {rank}, {words}")
        for criterion, words in criteria.items()
        for r in sizes
    )


def further_ranks(bound: float, r: int) -> tuple[AtLeast, ...]:
    """Return the same verdicts at one size r for the further ranks of the code."""
    return tuple(verdict for tau in RANKS for verdict in nearly_always(bound, (r,), tau))


SCALED_ROWS = Experiment(
    name="sparse-scaled",
    title="Recovery of the relevant columns: rows of very different norms",
    reference="Wipf 2023, Figure 2(b)",
    about=f"{ABOUT} The norms of the nonzero rows differ widely, as Wipf 2023, Theorem 4.1 "
    "assumes.",
    claims={
        "perfect": "The full-covariance VAE recovers the code nearly always, up to r = d nonzero "
        "rows for a dictionary of d rows, which is the limit of any method.",
        "degrades": "The success rate of the autoencoder falls to low values if the rows of the "
        "coefficients have different norms.",
        "others": "The full-covariance VAE has the highest success rate of the four methods.",
    },
    findings={
        "most": "The full-covariance VAE recovers the code nearly always, up to r = 0.7 d nonzero "
        "rows for a dictionary of d rows.",
    },
    **scales(
        smoke={
            "perfect": nearly_always(0.9, (32, 36)) + further_ranks(0.9, 36),
            "degrades": (AtMost("autoencoder", 0.4, (12, 36), rate("autoencoder")),),
            "others": (
                above("full", "group lasso", at="mean", margin=0.2),
                above("full", "diagonal", at="mean", margin=0.2),
            ),
            "most": (AtLeast("full", 0.9, at=(6, 28), says=rate("full")),),
        },
        paper={
            "perfect": nearly_always(0.9, (80, 90, 100)) + further_ranks(0.9, 90),
            "degrades": (AtMost("autoencoder", 0.1, at=(30, 100), says=rate("autoencoder")),),
            "others": (
                above("full", "group lasso", at="mean", margin=0.3),
                above("full", "diagonal", at="mean", margin=0.3),
            ),
            "most": (AtLeast("full", 0.95, at=(1, 80), says=rate("full")),),
        },
        row_scaling="jeffreys",
        ranks=RANKS,
    ),
    draw="sparsity.recovery",
)


def falls(r: int) -> tuple[AtMost, ...]:
    """Return the verdicts that three methods solve at most half of the problems with r rows."""
    methods = ("autoencoder", "diagonal", "group lasso")
    return tuple(AtMost(method, 0.5, at=r, says=rate(method)) for method in methods)


LEADFIELD = Experiment(
    name="sparse-leadfield",
    title="Recovery of brain sources: correlated columns",
    reference="Wipf 2023, Figure 2(c)",
    about=f"{ABOUT} The dictionary is a lead field of magnetoencephalography (MEG), whose columns "
    "are strongly correlated.",
    claims={
        "others": "The success rates of the group lasso, the autoencoder and the "
        "diagonal-covariance VAE fall already at small numbers of active sources.",
        "full": "The full-covariance VAE keeps a high success rate with many active sources.",
    },
    **scales(
        smoke={
            "others": falls(18),
            "full": nearly_always(0.9, (12, 18)),
        },
        paper={
            "others": falls(20),
            "full": nearly_always(0.9, (20, 40, 60)),
        },
        leadfield=True,
    ),
    draw="sparsity.recovery",
)


NOISY = Experiment(
    name="sparse-noise",
    title="Recovery of the relevant columns from noisy responses",
    reference="Wipf 2023, Figure 2(d)",
    about=f"{ABOUT} Noise is added to the responses, with a signal-to-noise ratio of 20 dB, and "
    "recovery of the support, the set of nonzero rows, counts as success.",
    claims={
        "full": "Also with noise, the full-covariance VAE has the highest success rate of the "
        "four methods.",
        "diagonal": "With noise the diagonal-covariance VAE has a higher success rate than the "
        "autoencoder: even a diagonal posterior removes some local minima.",
        "lasso": "With noise the autoencoder has a higher success rate than the group lasso.",
    },
    findings={
        "rate": "The full-covariance VAE recovers nearly all supports (sets of nonzero rows) of "
        "size 0.6 d, where d is the number of rows of the dictionary.",
    },
    **scales(
        smoke={
            "full": (above("full", "diagonal", at=(18, 36), margin=0.03),),
            "lasso": (above("autoencoder", "group lasso", at=(18, 36), margin=0.02),),
            "rate": (AtLeast("full", 0.9, at=24, says=rate("full")),),
        },
        paper={
            "full": (above("full", "diagonal", at=(50, 80), margin=0.1),),
            "diagonal": (above("diagonal", "autoencoder", at=(50, 80), margin=0.05),),
            "lasso": (above("autoencoder", "group lasso", at=(40, 70), margin=0.05),),
            "rate": (AtLeast("full", 0.95, at=60, says=rate("full")),),
        },
        unjudged={"diagonal": "12 problems for each r do not resolve a difference of a few %."},
        snr_db=20.0,
        criterion="support",
        tol=1e-4,
    ),
    draw="sparsity.recovery",
)
