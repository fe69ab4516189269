"""What an autoencoder keeps of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from lucidae._arrays import Array, like
from lucidae.dropout.estimators._shared import Outcome, Results, common_results, exact_outcome
from lucidae.dropout.objectives import LinearProblem
from lucidae.dropout.solvers import assemble
from lucidae.dropout.whitening import principal_problem
from lucidae.moments import SecondMoment


@dataclass(frozen=True, slots=True, eq=False)
class Autoencoding:
    """What a fit keeps: the moment of the rows, settings, and SGD's outcome where it ran."""

    moment: SecondMoment
    strength: float
    width: int
    ref: Array
    outcome: Outcome | None = None

    @property
    def problem(self) -> LinearProblem:
        """The problem whose target is the input."""
        return LinearProblem.autoencoder(self.moment)

    def results(self) -> Results:
        """Return the fitted attributes by name."""
        problem = self.problem
        outcome = self.outcome or self._solve(problem)
        return common_results(outcome, problem, self.strength, self.ref) | {
            "mean_": like(self.moment.mean, self.ref),
            "n_components_": self.width,
        }

    def _solve(self, problem: LinearProblem) -> Outcome:
        white, triple = principal_problem(problem.inputs)
        return exact_outcome(assemble(white, triple, self.strength, self.width))
