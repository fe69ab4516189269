"""Matrices with missing entries: DropoutFactorization against SoftImpute and alternating ridge.

    python -m benchmarks completion [--ratings FILE] [--seconds 60]
        [--write docs/benchmarks/completion.md]

All methods minimise the same loss ‖P_Ω(M − X)‖² + (λ/r)‖X‖*², where P_Ω selects the observed
entries of M. SoftImpute (Mazumder, Hastie & Tibshirani 2010) minimises ½‖P_Ω(M − X)‖² + α‖X‖*,
whose minimum is the same X if α is the threshold (λ/r)‖X‖* of the optimum, which it is given here.
Alternating least squares with the penalty λΣ‖uₖ‖²‖vₖ‖² solves for the rows of U and of V in turn.
Both are written here, since no installed package has them; they stop after the given number of
seconds of processor time. The data are a random matrix of low rank with noise, and ratings from a
file (a table with the columns user, item, rating, with one header line, such as ``ml-100k.inter``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from benchmarks._tables import duration, markdown, write_section
from lucidae import DropoutFactorization
from lucidae.dropout.completion import ObservedEntries, observed_codes

Matrix = np.ndarray[Any, Any]

CLOSE = 1e-4
"""Times are those until the loss exceeds the minimum by less than CLOSE times the minimum."""


class Problem(NamedTuple):
    """Observed entries, held-out entries, the number r of columns of the factors, dropout rate."""

    name: str
    training: ObservedEntries
    held_out: ObservedEntries
    width: int
    dropout: float

    @property
    def strength(self) -> float:
        """The strength λ = dropout/(1 − dropout)."""
        return self.dropout / (1 - self.dropout)

    def loss(self, X: tuple[Matrix, Matrix]) -> float:
        """Return the loss ‖P_Ω(M − X)‖² + (λ/r)‖X‖*² of X, which is given by its two factors.

        P_Ω selects the observed entries of the matrix M, λ is the strength of dropout, r the number
        of columns of the factors, and ‖X‖* the nuclear norm.
        """
        residual = self.training.values - self.training.product(*X)
        triangles = [np.linalg.qr(part)[1] for part in X]
        norm = np.linalg.norm(triangles[0] @ triangles[1].T, "nuc")
        return float(residual @ residual + self.strength / self.width * norm**2)

    def error(self, X: tuple[Matrix, Matrix]) -> float:
        """Return the root mean squared error on the held-out entries."""
        missed = self.held_out.values - self.held_out.product(*X)
        return float(np.sqrt(np.mean(missed**2)))


class Run(NamedTuple):
    """Losses, held-out errors and times of one method after each of its iterations."""

    losses: list[float]
    errors: list[float]
    seconds: list[float]


def followed(problem: Problem, step: Callable[[Any], Any], start: Any, limit: float) -> Run:
    """Repeat `step` from `start` for `limit` seconds of processor time; return losses and times.

    The time for the losses does not count.
    """
    run, state, spent = Run([], [], []), start, 0.0
    while spent < limit:
        begin = time.process_time()
        state = step(state)
        spent += time.process_time() - begin
        run.losses.append(problem.loss(state))
        run.errors.append(problem.error(state))
        run.seconds.append(spent)
    return run


def soft_impute(problem: Problem, threshold: float) -> Callable[[Any], Any]:
    """Return a function that makes one iteration of SoftImpute.

    It fills in the missing entries, and subtracts `threshold` from the singular values.
    """
    entries = problem.training

    def step(state: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
        filled = state[0] @ state[1].T
        filled[entries.rows, entries.columns] = entries.values
        P, values, Qt = np.linalg.svd(filled, full_matrices=False)
        kept = values > threshold
        return P[:, kept] * (values[kept] - threshold), Qt[kept].T

    return step


def stored(entries: ObservedEntries) -> Any:
    """Return a sparse matrix with the observed entries."""
    return scipy.sparse.csr_array(
        (entries.values, entries.columns, entries.starts), shape=entries.shape
    )


def alternating(problem: Problem) -> Callable[[Any], Any]:
    """Return a function that makes one iteration of alternating least squares.

    It solves for all rows of the first factor U, then for all rows of the second factor V.
    """
    entries = problem.training
    mirrored = ObservedEntries.of(scipy.sparse.csr_array(stored(entries).T))

    def step(state: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
        left = observed_codes(entries, state[1], problem.strength)
        return left, observed_codes(mirrored, left, problem.strength)

    return step


def rows_of(problem: Problem, limit: float) -> list[list[str]]:
    """Return the rows of the table for one problem, one for each method."""
    model = DropoutFactorization(
        problem.width, dropout=problem.dropout, handle_missing="complete", missing_values="absent"
    )
    begin = time.process_time()
    model.fit(stored(problem.training))
    spent = time.process_time() - begin
    best, gap = model.objective_, model.certificate_["gap"]
    ours = (model.left_, model.right_)
    n, m = problem.training.shape
    name = f"{problem.name}, rank {model.rank_} of {problem.width}"
    relative = f"gap ≤ {gap.value:.0e}"
    rows = [
        [name, "`DropoutFactorization`", relative, duration(spent), f"{problem.error(ours):.4f}"]
    ]
    rng = np.random.default_rng(0)
    none = np.zeros((n, 0)), np.zeros((m, 0))
    random = rng.standard_normal((n, problem.width)), rng.standard_normal((m, problem.width))
    runs = {
        "SoftImpute": followed(problem, soft_impute(problem, model.threshold_), none, limit),
        "alternating ridge": followed(problem, alternating(problem), random, limit),
    }
    for method, run in runs.items():
        excess = np.array(run.losses) / best - 1
        close = np.flatnonzero(excess <= CLOSE)
        when = duration(run.seconds[close[0]]) if close.size else f"> {duration(run.seconds[-1])}"
        rows.append([name, method, f"{excess[-1]:.0e}", when, f"{run.errors[-1]:.4f}"])
    return rows


def divided(name: str, ratings: Any, width: int, dropout: float) -> Problem:
    """Return a problem in which a tenth of the ratings is held out, centred by the mean rating."""
    entries = ObservedEntries.of(ratings)
    chosen = np.random.default_rng(0).random(entries.count) < 0.1
    training, held_out = (entries.taken(np.flatnonzero(part)) for part in (~chosen, chosen))
    mean = training.values.mean()
    training, held_out = (replace(part, values=part.values - mean) for part in (training, held_out))
    return Problem(name, training, held_out, width, dropout)


def synthetic(dropout: float) -> Problem:
    """Return a matrix of rank 5 with noise of standard deviation 1, of which 30 % are observed."""
    rng = np.random.default_rng(0)
    n, m = 500, 300
    M = rng.standard_normal((n, 5)) @ rng.standard_normal((5, m)) + rng.standard_normal((n, m))
    M[rng.random((n, m)) > 0.3] = np.nan
    return divided(f"500 × 300, dropout {dropout:g}", M, 50, dropout)


def rated(file: str, dropout: float) -> Problem:
    """Return the ratings in a file: user, item and rating in the first three columns."""
    table = np.loadtxt(file, skiprows=1, usecols=(0, 1, 2))
    users, items = (np.unique(table[:, k], return_inverse=True)[1] for k in (0, 1))
    ratings = scipy.sparse.csr_array((table[:, 2], (users, items)))
    return divided(f"ratings, dropout {dropout:g}", ratings, 100, dropout)


def main() -> None:
    parser = argparse.ArgumentParser(prog="completion", description=__doc__)
    parser.add_argument("--ratings", help="table of users, items and ratings")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each peer")
    parser.add_argument("--write", help="page whose section `completion` is replaced by the table")
    arguments = parser.parse_args()
    problems = [synthetic(0.4)]
    if arguments.ratings:
        problems += [rated(arguments.ratings, 0.7)]
    rows = []
    for problem in problems:
        rows += rows_of(problem, arguments.seconds)
        print(*rows[-3:], sep="\n", flush=True)
    header = ["data", "method", "loss / minimum − 1", "processor time", "held-out error"]
    text = markdown(header, rows)
    print(text)
    if arguments.write:
        write_section(arguments.write, "completion", text)


if __name__ == "__main__":
    main()
