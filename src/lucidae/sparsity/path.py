"""The whole path of noise variances γ: which columns explain the responses at which γ.

Held-out rows do not show that a dictionary is wrong in the same way for all rows, because further
columns predict these errors too. The user decides how much of the responses to trust.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from lucidae.arrays import Array, squared_norm, to_numpy
from lucidae.cards import card, table
from lucidae.iteration import limited_blas
from lucidae.iteration.progress import elapsed
from lucidae.sparsity.estimator import SparseVAE
from lucidae.sparsity.fitted import PreparedProblem
from lucidae.sparsity.noise import USED, PathTrace, contributions, entry_noise, held_out_errors
from lucidae.sparsity.objectives import GroupCovariance, State, prior_in_units
from lucidae.sparsity.posterior import significant_columns
from lucidae.sparsity.solve import is_small, solve
from lucidae.sparsity.working_set import SolverSettings
from lucidae.validation import check_choice, check_integer, check_number, check_vector

__all__ = ["NoisePath", "noise_path"]

Floats = np.ndarray[Any, Any]

STEP = 10.0**-0.25
"""Ratio of each noise variance on the default path to the one before."""

LAST = 1e-6
"""Smallest noise variance of the default path, relative to the mean square response."""

PATIENCE = 4
"""Noise variances without a better prediction of held-out rows that end the default path."""

FITTED = 0.99
"""Without folds, the default path ends where this share of the responses' power is explained."""

BISECTIONS = 12
"""Noise variances that `NoisePath.select` tries between two points for a number of columns."""

RULES = ("min", "one_se")


@dataclass(frozen=True, eq=False)
class PathInput:
    """The checked data and settings of a path."""

    X: Any  # the data as they were given
    y: Any
    sample_weight: Any
    noise_cov: Any
    template: SparseVAE  # the estimator with the settings of the path, without a noise variance
    posed: PreparedProblem

    def solved(self, noise: float, start: Array | None) -> State:
        """Return the relevances of lowest energy at one noise variance.

        A small problem is also solved from the default start, since the solution at a larger noise
        variance may lead to a poorer minimum.
        """
        model, posed, objective = self.template, self.posed, self.posed.objective
        at = posed.problem.with_noise(noise, posed.units)
        settings = SolverSettings(model.solver, model.tol, model.max_iter)
        found = solve(at, objective, settings, start).value
        if start is None or not is_small(at):
            return found
        other = solve(at, objective, settings).value
        value = objective.value
        return found if float(value(found)) <= float(value(other)) + 1e-9 else other

    def point(self, noise: float, state: State) -> dict[str, Any]:
        """Return the values of one solution by name, such as its energy and its support."""
        posed = self.posed
        total = float(squared_norm(posed.problem.responses) + posed.problem.outside)
        level = self.template.significance
        significant = significant_columns(state, posed.rows, level, posed.objective)
        powers, explained = contributions(state, posed.objective)
        return {
            "noise_variances": noise,
            "energies": float(posed.objective.in_units(posed.objective.value(state), posed.units)),
            "explained": explained,
            "supports": np.flatnonzero(significant),
            "relevances": np.asarray(prior_in_units(state, posed.units)[0]),
            "contributions": powers / total,
            "start": posed.objective.parameters(state),
        }

    def count(self, support: Floats) -> int:
        """Return the number of significant columns, or of their groups."""
        groups = self.posed.objective.groups
        return support.size if groups is None else np.unique(groups.labels[support]).size


@dataclass(frozen=True, eq=False)
class NoisePath:
    """Solutions of `SparseVAE` along a decreasing sequence of noise variances.

    Use `noise_path` to compute one. Entry i of every array belongs to noise variance i.

    Parameters
    ----------
    noise_variances : ndarray of shape (m,)
        The noise variances, in descending order.
    supports : list of ndarrays of int
        Indices of the statistically significant columns.
    relevances : ndarray of shape (m, n_features)
        The relevances: prior variances of the coefficients of each column.
    contributions : ndarray of shape (m, n_features)
        Sum of squares of what each column contributes to the fitted values, divided by the sum of
        squares of the (centred, whitened) responses. Columns of a group have that of their group.
    energies : ndarray of shape (m,)
        The energy (loss), as the attribute ``energy_`` of `SparseVAE`.
    explained : ndarray of shape (m,)
        Share of the sum of squares of the responses that the fitted values explain.
    held_out_error, held_out_standard_error : ndarray of shape (m,)
        Mean squared error of predicting held-out rows, and its standard error over the folds; NaN
        without folds.

    Notes
    -----
    Notebooks show the path as a table, and `plot` draws it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 60))
    >>> y = X[:, [3, 41]] @ rng.standard_normal((2, 8)) + 0.1 * rng.standard_normal((40, 8))
    >>> path = noise_path(X, y)
    >>> path.select(n_columns=2).support_
    array([ 3, 41])
    """

    noise_variances: Floats
    supports: list[Floats]
    relevances: Floats
    contributions: Floats
    energies: Floats
    explained: Floats
    held_out_error: Floats
    held_out_standard_error: Floats
    _data: PathInput = field(repr=False)
    _starts: list[Array] = field(repr=False)

    def __len__(self) -> int:
        return len(self.noise_variances)

    def column_name(self, column: int) -> str:
        """Return the name of a column of the dictionary, or its index if it has none."""
        names = getattr(self._data.template, "feature_names_in_", None)
        return str(column if names is None else names[column])

    def __repr__(self) -> str:
        counts = self.n_columns
        return (
            f"NoisePath({len(self)} noise variances from {self.noise_variances[0]:.3g} to "
            f"{self.noise_variances[-1]:.3g}, {counts.min()} to {counts.max()} significant columns)"
        )

    @property
    def n_columns(self) -> Floats:
        """Number of significant columns at each noise variance; of groups, if there are any."""
        return np.array([self._data.count(support) for support in self.supports])

    @property
    def strongest(self) -> Floats:
        """The column with the largest contribution at each noise variance; -1 if there is none."""
        found = np.argmax(self.contributions, axis=1)
        return np.where(self.contributions.any(axis=1), found, -1)

    @property
    def stable_part(self) -> slice:
        """The part of the path, as a slice, on which a single strongest column explains most.

        The path is divided where the strongest column changes. The part on which the explained
        share of the sum of squares of the responses grows most is returned. Errors of a wrong
        dictionary are explained last, in small shares, so that the parts in which this happens are
        not chosen. The slice is empty if no column is in use.
        """
        strongest = self.strongest
        before = np.concatenate([[0.0], self.explained[:-1]])
        best, largest, begin = slice(0, 0), -1.0, 0
        for end in range(1, len(self) + 1):
            if end < len(self) and strongest[end] == strongest[begin]:
                continue
            growth = float(self.explained[end - 1] - before[begin])
            if strongest[begin] >= 0 and growth > largest:
                best, largest = slice(begin, end), growth
            begin = end
        return best

    def prior_covariance(self, index: int, columns: Any) -> Floats:
        """Return the prior covariance of the coefficients of some columns at one noise variance.

        Parameters
        ----------
        index : int
            Number of the noise variance on the path.
        columns : array-like of int of shape (a,)
            Indices of the columns, ascending; with groups, all columns of each group.

        Returns
        -------
        ndarray of shape (a, a)
            The covariance: diagonal, or with ``group_covariance="full"`` with a block for each
            group.
        """
        columns, groups = np.asarray(columns, dtype=int), self._data.posed.objective.groups
        if groups is None or not isinstance(self._data.posed.objective, GroupCovariance):
            return np.diag(self.relevances[index, columns])
        units = to_numpy(self._data.posed.units.relevance)
        blocks, owners = to_numpy(self._starts[index]), groups.labels[columns]
        found = np.zeros((columns.size, columns.size), dtype=blocks.dtype)
        for group in np.unique(owners):
            here = np.flatnonzero(owners == group)
            block = blocks[group, : here.size, : here.size]
            found[np.ix_(here, here)] = block * units[columns[here[0]]]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the columns of a table with one row for each noise variance, by name.

        ``pandas.DataFrame(path.to_dict())`` is this table.
        """
        names = (
            "noise_variances", "n_columns", "strongest", "explained", "energies",
            "held_out_error", "held_out_standard_error",
        )  # fmt: skip
        return {name: np.array(getattr(self, name)) for name in names}

    def plot(self, *, ax: Any = None, **style: Any) -> Any:
        """Draw which columns are in use at which noise variance; see `NoisePathDisplay`.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **style
            Keyword arguments of ``ax.pcolormesh``.

        Returns
        -------
        NoisePathDisplay
            The display, already drawn; its axes are ``ax_``.
        """
        from lucidae.displays import NoisePathDisplay

        return NoisePathDisplay.from_path(self, ax=ax, **style)

    def select(
        self,
        *,
        explained: float | None = None,
        rule: str | None = None,
        n_columns: int | None = None,
    ) -> SparseVAE:
        """Return a fitted estimator at the noise variance that meets one condition.

        Parameters
        ----------
        explained : float in (0, 1), optional
            The largest noise variance at which at least this share of the power of the responses is
            explained: how much the dictionary can be trusted to explain.
        rule : {"min", "one_se"}, optional
            "min": the smallest held-out error. "one_se": the largest noise variance whose held-out
            error is within one standard error of the smallest.
        n_columns : int, optional
            The smallest noise variance of the path with this many significant columns (groups, if
            there are any). If the path has none, noise variances between its own are tried.

        Returns
        -------
        SparseVAE
            The estimator, fitted with that noise variance. Its certificate reports how stable the
            columns are along the path.
        """
        given = {"explained": explained, "rule": rule, "n_columns": n_columns}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise ValueError(
                f"select was given {', '.join(chosen) or 'no condition'}, expected exactly one of "
                "explained, rule and n_columns."
            )
        if n_columns is not None:
            return self._with_columns(check_integer(n_columns, "n_columns", low=0))
        if explained is not None:
            share = check_number(explained, "explained", low=0.0, high=1.0, open_low=True)
            enough = np.flatnonzero(self.explained >= share)
            if not enough.size:
                raise ValueError(
                    f"explained={share} was given, but the path explains at most "
                    f"{self.explained.max():.10g} of the power of the responses. Give a smaller "
                    "share, or smaller noise_variances to noise_path."
                )
        else:
            name = check_choice(rule, "rule", RULES)
            if np.isnan(self.held_out_error).any():
                raise ValueError(
                    f"rule={name!r} was given, but the path was computed without folds (cv=False). "
                    "Call noise_path with cv=None, or select by explained or n_columns."
                )
            best = int(np.argmin(self.held_out_error))
            error = np.nan_to_num(self.held_out_standard_error[best]) * (name == "one_se")
            level = self.held_out_error[best] + error
            enough = np.flatnonzero(self.held_out_error <= level)
        return self._fitted(float(self.noise_variances[enough[0]]), self._starts[enough[0]])

    def _fitted(self, noise: float, start: Array) -> SparseVAE:
        """Return the estimator fitted at a noise variance, starting from the solution `start`."""
        data = self._data
        model: SparseVAE = clone(data.template).set_params(noise_variance=noise)
        trace = PathTrace(self.noise_variances, self.contributions, self.explained)
        return model._fit_on(data.X, data.y, data.sample_weight, data.noise_cov, start, trace)

    def _with_columns(self, count: int) -> SparseVAE:
        """Return the estimator with `count` significant columns, or raise an error."""
        counts = self.n_columns
        exact = np.flatnonzero(counts == count)
        if exact.size:
            index = int(exact[-1])
            return self._fitted(float(self.noise_variances[index]), self._starts[index])
        for place in np.flatnonzero((counts[:-1] - count) * (counts[1:] - count) < 0):
            found = self._bisected(int(place), count)
            if found is not None:
                return found
        listed = ", ".join(str(number) for number in np.unique(counts))
        raise ValueError(
            f"n_columns={count} was given, but no noise variance was found at which this many "
            f"columns are significant; the path has {listed}. Give one of these numbers, or other "
            "noise_variances to noise_path."
        )

    def _bisected(self, index: int, count: int) -> SparseVAE | None:
        """Return the estimator with `count` significant columns, or None if it is not found."""
        high, low = self.noise_variances[index : index + 2]
        start, rises = self._starts[index], self.n_columns[index] < count
        for _ in range(BISECTIONS):
            noise = float(np.sqrt(high * low))
            state = self._data.solved(noise, start)
            point = self._data.point(noise, state)
            found = self._data.count(point["supports"])
            if found == count:
                return self._fitted(noise, point["start"])
            if (found < count) == rises:
                high, start = noise, point["start"]
            else:
                low = noise
        return None

    def _repr_html_(self) -> str:
        columns: dict[str, Any] = {
            "noise variance": self.noise_variances, "columns": self.n_columns,
            "strongest": [None if one < 0 else self.column_name(one) for one in self.strongest],
            "explained": self.explained,
            "held-out error": self.held_out_error, "standard error": self.held_out_standard_error,
            "energy": self.energies,
        }  # fmt: skip
        return card(repr(self), table(columns))


def noise_path(
    X: Any,
    y: Any,
    noise_variances: Any = None,
    cv: Any = None,
    *,
    sample_weight: Any = None,
    noise_cov: Any = None,
    **settings: Any,
) -> NoisePath:
    """Fit `SparseVAE` for a decreasing sequence of noise variances, each from the last solution.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        The dictionary, whose columns are the candidate regressors.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs)
        The responses.
    noise_variances : array-like of shape (m,), optional
        The noise variances, in any order; with `noise_cov`, the factors of this covariance. By
        default there are four per decade. They begin where the first column becomes active and end
        where the prediction of held-out rows no longer improves, or at 1e-6 times the mean square
        of the responses.
    cv : int, splitter, iterable or False, optional
        Folds over rows for the held-out errors, as in `SparseVAE`. False computes none.
    sample_weight, noise_cov : array-like, optional
        As in ``SparseVAE.fit``.
    **settings
        Arguments of `SparseVAE`, such as `groups`, `posterior`, `fit_intercept` or `verbose`.

    Returns
    -------
    NoisePath
        Supports, relevances (prior variances of the coefficients), energies (losses), explained
        power and held-out errors along the path, with the methods `select` and `plot`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 60))
    >>> y = X[:, [3, 41]] @ rng.standard_normal((2, 8)) + 0.1 * rng.standard_normal((40, 8))
    >>> noise_path(X, y, [1.0, 0.1, 0.01], cv=False).n_columns
    array([2, 2, 2])
    """
    if "noise_variance" in settings:
        raise ValueError(
            "noise_path was given noise_variance, which is what varies along the path: give the "
            "values as noise_variances, or leave them out."
        )
    if settings.get("response_covariance") is not None:
        raise ValueError(
            "noise_path was given response_covariance, but its solutions are those of independent "
            "outputs: leave it out, and fit SparseVAE with response_covariance at the noise "
            "variance that you choose."
        )
    model = SparseVAE(cv=None if cv is False else cv, **settings)
    data, posed = model._posed(X, y, sample_weight, noise_cov)
    rows, problem = posed.rows, posed.problem
    with elapsed("noise_path", model.verbose), limited_blas(len(data.y)):
        scale = rows.mean_square()
        highest = float(posed.units.noise * problem.noise) * entry_noise(problem, posed.objective)
        if noise_variances is None:
            highest = max(highest, scale)
            count = int(np.ceil(np.log(LAST * scale / highest) / np.log(STEP)))
            grid = highest * STEP ** np.arange(count + 1.0)
        else:
            wanted = "a list of finite numbers above 0"
            grid = check_vector(noise_variances, "noise_variances", expected=wanted)
            if grid.ndim != 1 or not (grid > 0).all():
                raise ValueError(
                    f"noise_variances={noise_variances!r} was given, expected {wanted}."
                )
            grid = np.unique(grid)[::-1]
        held_out = None
        if cv is not False:
            if len(rows.weights) < 2:
                raise ValueError(
                    "Held-out errors need at least 2 distinct rows, but there is only "
                    f"{len(rows.weights)}. Give more rows, or cv=False."
                )
            patience = PATIENCE if noise_variances is None else len(grid) + 1
            held_out = held_out_errors(model, posed, "held-out errors", grid, patience)
            grid = held_out.noise
        stop = FITTED if noise_variances is None and held_out is None else np.inf
        given = PathInput(X, y, sample_weight, noise_cov, model, posed)
        points: list[dict[str, Any]] = []
        start: Array | None = None
        for noise in grid:
            points.append(given.point(float(noise), given.solved(float(noise), start)))
            if points[-1]["explained"] >= stop:
                break
            # Nothing in use is no start: moves of single columns find those that enter first.
            powers = points[-1]["contributions"]
            start = points[-1]["start"] if powers.max() > USED * powers.sum() else None
    lists = {name: [point[name] for point in points] for name in points[0]}
    unknown = np.full(len(points), np.nan)
    return NoisePath(
        np.array(lists["noise_variances"]), lists["supports"], np.array(lists["relevances"]),
        np.array(lists["contributions"]), np.array(lists["energies"]), np.array(lists["explained"]),
        unknown if held_out is None else held_out.mean,
        unknown if held_out is None else held_out.standard_error,
        given, lists["start"],
    )  # fmt: skip
