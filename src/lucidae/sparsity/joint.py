"""Several dictionaries with one set of relevances, such as the frequencies of a sensor array.

Part f has a dictionary Φ_f, n_f responses X_f and a noise variance γ_f. The joint energy is Σ_f n_f
log|Σ_f| + tr(X_f X_fᴴΣ_f⁻¹) with Σ_f = Φ_f diag(w) Φ_fᴴ + γ_f I. Its derivatives in w are sums, so
that updates and Newton steps hold with sums of curvatures, alignments and Hessians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lucidae.arrays import (
    Array,
    as_double,
    device,
    is_array,
    namespace,
    of_one_kind,
    squared_norm,
    squared_norms,
    to_numpy,
)
from lucidae.cards import Html, card, facts
from lucidae.certificates.claims import Certificate
from lucidae.iteration import Solution, limited_blas
from lucidae.iteration.progress import elapsed
from lucidae.sparsity.claims import certificate_of
from lucidae.sparsity.noise import checked_levels, first_noise, learn_levels
from lucidae.sparsity.objectives import UPDATES, FullCovariance, flat_start
from lucidae.sparsity.posterior import Posterior, shared_support
from lucidae.sparsity.problem import (
    Problem,
    Rows,
    Units,
    compressed,
    refuse_extremes,
    refuse_zero_problem,
)
from lucidae.sparsity.solve import BASIN_LIMIT, FEW_RESPONSES, repeat_update
from lucidae.sparsity.verify import EnergyKind, Fit, Sample, measure
from lucidae.sparsity.working_set import ColumnPoint, SolverSettings, descend
from lucidae.validation import (
    check_argument,
    check_choice,
    check_integer,
    check_number,
    check_row_count,
    check_rows,
)

__all__ = ["SparseJoint", "joint_blocks", "solve_joint"]

FULL = FullCovariance()


class SparseJoint(NamedTuple):
    """The solution of a sparse problem whose F dictionaries share their relevances.

    Parameters
    ----------
    coef : list of F arrays of shape (n_f, κ)
        Posterior means of the coefficients of each part, which has n_f responses.
    relevance : array of shape (κ,)
        Relevances: prior variances of the coefficients of each column, the same in all parts.
    noise_variance : array of shape (F,)
        Noise variances, given or learned, in squared units of the responses.
    energy : float
        The minimised energy (loss), summed over all parts and responses.
    support : ndarray of int
        Indices of the columns whose relevance is statistically significant, in ascending order.
    certificate : Certificate
        Claims about this solution (optimality, posterior means, energy, support), each with a
        verdict. They are measured by the verifier, without code of the solver.

    Notes
    -----
    Notebooks show the certificate. ``lucidae.certify(solution, X, y)`` certifies the fields as they
    are now on given data, with the settings of `solve_joint`.
    """

    coef: list[Array]
    relevance: Array
    noise_variance: Array
    energy: float
    support: Any
    certificate: Any = None

    @property
    def certificate_(self) -> Certificate:
        """The certificate, under the name that it has in estimators."""
        if self.certificate is None:
            raise ValueError(
                "this SparseJoint has no certificate: call certify(solution, X, y), or take the "
                "value of a solution of solve_joint."
            )
        found: Certificate = self.certificate
        return found

    def _certify_on(self, X: Any, y: Any = None) -> Certificate:
        """Return a certificate of the fields as they are now, with the settings of the fit."""
        if y is None:
            raise ValueError("y is missing: to certify a SparseJoint on data, give X and y.")
        kept = {} if self.certificate is None else self.certificate.evidence
        names = ("given_noise", "tolerance", "significance")
        parts = _checked_parts(X, y)
        expected = [(int(p.responses.shape[1]), int(p.dictionary.shape[1])) for p in parts]
        if [tuple(np.shape(to_numpy(part))) for part in self.coef] != expected:
            raise ValueError(
                f"X and y have {len(parts)} parts with coefficients of shape {expected}, which "
                "does not suit the coefficients of this SparseJoint: give the data of the fit."
            )
        return _certified(self, parts, **{name: kept[name] for name in names if name in kept})

    def _repr_html_(self) -> str:
        names = {
            "parts": len(self.coef),
            "columns": int(self.relevance.shape[0]),
            "support": np.asarray(self.support),
            "noise variances": to_numpy(self.noise_variance),
            "energy": self.energy,
        }
        claims = "" if self.certificate is None else self.certificate._folded_html()
        return card("Several dictionaries with one support", facts(names), Html(claims))


def solve_joint(
    X: Sequence[Any],
    y: Sequence[Any],
    *,
    noise_variance: Any = "learn",
    solver: str = "auto",
    significance: float = 0.05,
    tol: float = 1e-6,
    max_iter: int = 1000,
    verbose: bool | str = "auto",
) -> Solution[SparseJoint]:
    """Solve a sparse regression whose dictionaries have different entries and the same support.

    The dictionaries of a sensor array at several frequencies are an example: a direction has
    another steering vector at each frequency, but the sources are the same. The posterior
    covariance is full. The model has no intercept.

    Parameters
    ----------
    X : sequence of F arrays of shape (d_f, κ)
        The dictionaries, real or complex, with the same number κ of columns; an array of shape
        (F, d, κ) is such a sequence.
    y : sequence of F arrays of shape (d_f, n_f)
        The responses of each dictionary, real or complex. If one array of X or y is complex, all of
        them are treated as complex.
    noise_variance : float, array of shape (F,) or "learn", default="learn"
        Noise variance of all parts or of each part. "learn" learns one for each part together with
        the relevances (prior variances of the coefficients), which is reliable if there are at most
        half as many columns as rows.
    solver : {"auto", "mm", "em", "mackay"}, default="auto"
        Update by which the solver begins: majorise–minimise (MM), expectation–maximisation (EM) or
        MacKay's rule. "auto" takes EM for one or two responses in all, and MacKay's rule for more.
        Newton steps then find the minimum.
    significance : float, default=0.05
        Family-wise significance level of the test that decides which columns are in the support.
    tol : float, default=1e-6
        Distance to the optimality (KKT) conditions, a dimensionless number, at which to stop.
    max_iter : int, default=1000
        Largest number of iterations.
    verbose : bool or "auto", default="auto"
        Whether to show the elapsed time of a call of more than two seconds: always, never, or, with
        ``"auto"``, if standard error is a terminal or belongs to a notebook.

    Returns
    -------
    Solution
        ``value`` is a `SparseJoint` with the solution; ``status`` says how the iteration ended, and
        ``distance`` is the distance to the optimality conditions.

    Notes
    -----
    The parts need not have the same number of rows or responses. If they have the same number of
    responses and one noise variance, `joint_blocks` gives a single dictionary with groups for which
    `lucidae.SparseVAE` minimises the same energy, at a higher cost.

    Examples
    --------
    >>> from lucidae.datasets import make_array_snapshots
    >>> data = make_array_snapshots(6, 10, frequencies=[0.8, 1.0, 1.2], random_state=0)
    >>> found = solve_joint(data.dictionary, data.responses, noise_variance=data.noise_variance)
    >>> data.angles[found.value.support]
    array([-10.,  15.])
    >>> found.value.certificate.holds
    True
    """
    parts = _checked_parts(X, y)
    check_choice(solver, "solver", ("auto", *UPDATES))
    check_number(significance, "significance", low=0.0, high=1.0, open_low=True)
    check_number(tol, "tol", low=0.0)
    check_integer(max_iter, "max_iter", low=1)
    noise = checked_levels(noise_variance, len(parts))
    shown = elapsed(
        f"solving {len(parts)} joint sparse problems", check_argument(verbose, "verbose")
    )
    with shown, limited_blas(max(len(part.weights) for part in parts)):
        problems, units = _normalised(parts)
        counts = [unit.n_responses for unit in units]
        rule = ("mackay" if sum(counts) > FEW_RESPONSES else "em") if solver == "auto" else solver
        shares = tuple(count / sum(counts) for count in counts)
        settings = SolverSettings(rule, tol, max_iter)

        def solved(levels: Sequence[float], start: Any | None) -> Solution[Any]:
            # Updates and then sweeps of Newton steps, or sweeps alone from the last solution.
            at = [p.with_noise(level) for p, level in zip(problems, levels, strict=True)]
            if start is not None:
                return descend(ColumnPoint(at, start.parameters, FULL, shares), settings)
            # A column that is zero in one part may be active in another.
            flat = np.mean([flat_start(problem) for problem in at], axis=0)
            begin = ColumnPoint(at, flat, FULL, shares)
            return repeat_update(begin, rule, settings, BASIN_LIMIT[rule])

        if noise is None:
            first = [float(first_noise(problem)) for problem in problems]
            solution = learn_levels(
                solved, lambda point: point.states, FULL, first, lambda point: point.energy,
                settings, max(len(problem.responses) for problem in problems),
            )  # fmt: skip
        else:
            given = zip(problems, noise, units, strict=True)
            solution = solved([float(p.with_noise(g, unit).noise) for p, g, unit in given], None)
        joint = solution.value
        relevance = units[0].relevance * joint.parameters
        pairs = list(zip(units, joint.states, strict=True))
        levels = [float(unit.noise * state.noise) for unit, state in pairs]
        coef = [
            Posterior.fitted(part.dictionary, part.responses, relevance, level)[1].mT
            for part, level in zip(parts, levels, strict=True)
        ]
        energy = sum(float(FULL.in_units(FULL.value(state), unit)) for unit, state in pairs)
        real = [part.responses.shape[1] * (1 + part.is_complex) for part in parts]
        support = np.flatnonzero(shared_support(joint.states, real, significance, None))
        found = SparseJoint(coef, relevance, np.asarray(levels), energy, support)
        certificate = _certified(found, parts, noise, tolerance=tol, significance=significance)
        found = found._replace(certificate=certificate)
        if is_array(X[0]) and not isinstance(X[0], np.ndarray):  # NumPy has solved the problem

            def beside(values: Any) -> Array:
                return namespace(X[0]).asarray(values, device=device(X[0]))

            found = found._replace(
                coef=[beside(coef) for coef in found.coef], relevance=beside(found.relevance),
                noise_variance=beside(found.noise_variance),
            )  # fmt: skip
        return replace(solution, value=found)


def joint_blocks(X: Sequence[Any], y: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return one dictionary, its responses and its groups that have the energy of `solve_joint`.

    The dictionary is block diagonal, with one block for each part, and the responses of the parts
    are stacked. The columns that belong to the same column of the parts form a group and share one
    relevance (prior variance). `lucidae.SparseVAE` without an intercept then minimises the joint
    energy (loss), with one noise variance for all parts.

    Parameters
    ----------
    X : sequence of F arrays of shape (d_f, κ)
        The dictionaries.
    y : sequence of F arrays of shape (d_f, n)
        The responses, equally many in all parts.

    Returns
    -------
    dictionary : ndarray of shape (Σ d_f, F κ)
        The block-diagonal dictionary.
    responses : ndarray of shape (Σ d_f, n)
        The stacked responses.
    groups : ndarray of int of shape (F κ,)
        The group of each column, the argument `groups` of `lucidae.SparseVAE`.

    Examples
    --------
    >>> X, y = [np.ones((2, 3)), np.ones((1, 3))], [np.ones((2, 4)), np.ones((1, 4))]
    >>> blocks = joint_blocks(X, y)
    >>> blocks[0].shape, blocks[1].shape, blocks[2]
    ((3, 6), (3, 4), array([0, 1, 2, 0, 1, 2]))
    """
    parts = _checked_parts(X, y)
    counts = {int(part.responses.shape[1]) for part in parts}
    if len(counts) > 1:
        raise ValueError(
            f"the arrays of y have {' and '.join(map(str, sorted(counts)))} responses (columns), "
            "expected the same number in all of them: use solve_joint, which accepts different "
            "numbers."
        )
    columns = int(parts[0].dictionary.shape[1])
    pairs = [(to_numpy(part.dictionary), to_numpy(part.responses)) for part in parts]
    rows = np.cumsum([0, *(len(responses) for _, responses in pairs)])
    kind = np.result_type(*(dictionary for dictionary, _ in pairs))
    blocks = np.zeros((int(rows[-1]), len(pairs) * columns), dtype=kind)
    for index, (dictionary, _) in enumerate(pairs):
        wide = slice(index * columns, (index + 1) * columns)
        blocks[rows[index] : rows[index + 1], wide] = dictionary
    stacked = np.concatenate([responses for _, responses in pairs], axis=0)
    return blocks, stacked, np.tile(np.arange(columns), len(pairs))


def _checked_parts(X: Any, y: Any) -> list[Rows]:
    """Return the checked dictionary and responses of each part, in double precision.

    If one is complex, all are: real and complex energies are different multiples of the
    log-likelihood and cannot be added.
    """
    if len(X) != len(y) or not len(X):
        raise ValueError(
            f"X contains {len(X)} dictionaries and y contains {len(y)} arrays of responses, "
            "expected at least one dictionary, and one array of responses for each dictionary."
        )
    arrays: list[Array] = []
    for index in range(len(X)):
        names = f"X[{index}]", f"y[{index}]"
        given = [
            as_double(
                to_numpy(
                    check_rows(part[index], accept_sparse=False, accept_complex=True, name=name)
                )
            )
            for part, name in zip((X, y), names, strict=True)
        ]
        check_row_count(*given)
        for values, name in zip(given, names, strict=True):
            refuse_extremes(values, name)
        if not given[1].any():
            refuse_zero_problem(index)
        arrays += given
    arrays = list(of_one_kind(*arrays))
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    parts = [Rows(Phi, X, np.ones(len(X)), False) for Phi, X in pairs]
    widths = {int(part.dictionary.shape[1]) for part in parts}
    if len(widths) > 1:
        raise ValueError(
            f"X has dictionaries with {' and '.join(map(str, sorted(widths)))} columns, expected "
            "the same number in all: the dictionaries share the relevances (prior variances) of "
            "their columns."
        )
    return parts


def _normalised(parts: Sequence[Rows]) -> tuple[list[Problem], list[Units]]:
    """Return the problems in common units, and the units of each part.

    A column has one relevance, so that its norm is averaged over the parts, weighted by responses.
    """
    counts = [int(part.responses.shape[1]) for part in parts]
    pairs = list(zip(parts, counts, strict=True))
    norms = np.sqrt(sum(squared_norms(part.dictionary, -2) * n for part, n in pairs) / sum(counts))
    norms = np.where(norms > 0, norms, 1.0)
    power: Any = sum(squared_norm(part.responses) for part in parts)  # none is zero
    scale = np.sqrt(power / sum(len(part.weights) * n for part, n in pairs))
    unit_relevance = (scale / norms) ** 2
    problems, units = [], []
    for part, n in pairs:
        unit, scaled = part.dictionary / norms[None, :], part.responses / scale / n**0.5
        unit, scaled, outside = compressed(unit, scaled)
        one = np.ones_like(outside)
        problems.append(Problem(unit, scaled, one, outside, one * (len(part.weights) - len(unit))))
        units.append(Units(norms, scale, unit_relevance, scale**2, float(len(part.weights)), n))
    return problems, units


def _certified(
    found: SparseJoint, parts: Sequence[Rows], given_noise: Any = None, **settings: Any
) -> Certificate:
    """Return the certificate of a solution on the given parts, with settings of `EnergyKind`."""
    samples = [Sample(to_numpy(part.dictionary), to_numpy(part.responses)) for part in parts]
    fit = Fit(
        [to_numpy(coef).T for coef in found.coef],
        to_numpy(found.relevance),
        [float(level) for level in to_numpy(found.noise_variance)],
        found.energy,
        "learn" if given_noise is None else "given",
        given_noise,
        support=to_numpy(found.support),
    )
    figures = measure(samples, fit, EnergyKind(**settings))
    return certificate_of(figures, "solve_joint, full posterior")
