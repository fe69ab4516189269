"""The number of principal components, from the eigenvalues of the covariance, and sampling noise.

Three criteria are implemented: the evidence of probabilistic PCA (Minka 2000), parallel analysis
against simulated Gaussian noise (Horn 1965), and the optimal hard threshold of singular values
(Gavish & Donoho 2014). All of them need all eigenvalues and the number of rows, but not the rows.
Which components are separated from sampling noise is tested without a bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import bisect, brentq
from scipy.special import gammaln
from sklearn.utils import check_random_state

from lucidae.arrays import to_numpy
from lucidae.cards import card, facts
from lucidae.validation import check_choice, check_flag, check_integer, check_number, check_vector

Floats = NDArray[np.float64]

CRITERIA = ("mle", "parallel_analysis", "hard_threshold")
"""Names of the criteria for the number of components; they are also values of `n_components`."""

REFERENCES = {
    "mle": "Minka 2000",
    "parallel_analysis": "Horn 1965; Dobriban & Owen 2019",
    "hard_threshold": "Gavish & Donoho 2014",
}
"""The publications of each criterion."""

SIGNIFICANCE = 0.01
"""Level of the tests of parallel analysis: eigenvalues are compared with the 99 % quantile of those
of noise. With the 95 % quantile of Glorfeld 1995, one of 20 counts would be too large."""

SIMULATIONS = 999
"""Number of simulated spectra of parallel analysis; with it, p-values are multiples of 1/1000."""

ROUNDING = float(np.finfo(float).eps)


@dataclass(frozen=True, slots=True, eq=False)
class ComponentCount:
    """Number of components that a criterion finds, and the values by which it decided.

    Parameters
    ----------
    criterion : {"mle", "parallel_analysis", "hard_threshold"}
        The criterion.
    n_components : int
        Number of components; 0 if no eigenvalue is distinguished from noise.
    scores : ndarray
        For ``"mle"``, the logarithm of the evidence of 1, 2, … components minus its maximum. For
        ``"parallel_analysis"``, the p-values of the eigenvalues that were tested, the last of
        which is the first that is not significant. For ``"hard_threshold"``, all singular values
        divided by the threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.linear import count_components
    >>> found = count_components(np.array([9.0, 4.0, 1.1, 1.0, 0.9]), 200, "parallel_analysis")
    >>> found.n_components
    2
    >>> print(found.summary())
    Parallel analysis finds 2 components (largest p-value 0.001; the next eigenvalue has 0.81).
    """

    criterion: str
    n_components: int
    scores: Floats

    def summary(self) -> str:
        """Return one sentence with the number of components and how clear the decision was.

        Returns
        -------
        str
            For ``"mle"`` it names the second-best number and its log-evidence, for
            ``"parallel_analysis"`` p-values, and for ``"hard_threshold"`` the singular values next
            to the threshold.
        """
        return _SENTENCES[self.criterion](self)

    def _repr_html_(self) -> str:
        values = {"criterion": self.criterion, "components": self.n_components}
        return card("Number of components", facts(values), self.summary())


def _components(count: int) -> str:
    return f"{count} component{'' if count == 1 else 's'}"


def _evidence_sentence(count: ComponentCount) -> str:
    k, scores = count.n_components, count.scores
    found = f"Minka's evidence is largest for {_components(k)}"
    if k == 0:
        return "Minka's evidence is not defined, because the data have no variance."
    if len(scores) < 2:
        return f"{found}; no other number was considered."
    others = np.where(np.arange(1, len(scores) + 1) == k, -np.inf, scores)
    second = int(np.argmax(others)) + 1
    if not np.isfinite(others[second - 1]):
        return f"{found}, the rank of the data: without noise the evidence is infinite there."
    return f"{found}; for {second} its logarithm is smaller by {-others[second - 1]:.3g}."


def _parallel_sentence(count: ComponentCount) -> str:
    k, scores = count.n_components, count.scores
    last = f"largest p-value {np.max(scores[:k]):.2g}" if k and len(scores) else ""
    after = f"the next eigenvalue has {scores[k]:.2g}" if 0 < k < len(scores) else ""
    if k == 0 and len(scores):
        after = f"the largest eigenvalue has the p-value {scores[0]:.2g}"
    details = "; ".join(part for part in (last, after) if part)
    return f"Parallel analysis finds {_components(k)}{f' ({details})' if details else ''}."


def _threshold_sentence(count: ComponentCount) -> str:
    k, scores = count.n_components, count.scores
    found = f"The hard threshold finds {_components(k)}"
    if not len(scores):
        return f"{found}."
    if not np.isfinite(scores[0]):
        return f"{found}, the rank of the data: at least half of the singular values are zero."
    if k == 0:
        return f"{found} (the largest singular value is {scores[0]:.2f} times the threshold)."
    after = f", the next one {scores[k]:.2f} times" if k < len(scores) else ""
    last = f"the last singular value is {scores[k - 1]:.2f} times the threshold"
    return f"{found} ({last}{after})."


_SENTENCES: dict[str, Callable[[ComponentCount], str]] = {
    "mle": _evidence_sentence,
    "parallel_analysis": _parallel_sentence,
    "hard_threshold": _threshold_sentence,
}


def count_components(
    eigenvalues: Any,
    n_samples: float,
    criterion: str = "parallel_analysis",
    *,
    n_features: int | None = None,
    centred: bool = True,
    noise_variance: float | None = None,
    significance: float = SIGNIFICANCE,
    n_simulations: int = SIMULATIONS,
    random_state: Any = 0,
) -> ComponentCount:
    r"""Return the number of principal components that the eigenvalues of a covariance suggest.

    Parameters
    ----------
    eigenvalues : array-like of shape (m,)
        All eigenvalues of the covariance of the data in any order; the divisor is the number of
        rows minus 1, as in ``explained_variance_``.
    n_samples : float
        Number of rows, or the sum of their weights.
    criterion : {"mle", "parallel_analysis", "hard_threshold"}, default="parallel_analysis"
        The criterion; see the notes.
    n_features : int, optional
        Number of features m if `eigenvalues` contains fewer, because the others are zero. By
        default it is the number of eigenvalues.
    centred : bool, default=True
        Whether the mean was estimated from the rows, which takes one degree of freedom.
    noise_variance : float, optional
        Variance σ² of the noise in every feature if it is known; for ``"hard_threshold"`` only. By
        default it is estimated from the median of the singular values.
    significance : float, default=0.01
        Level of the tests of ``"parallel_analysis"``.
    n_simulations : int, default=999
        Number of simulated spectra of ``"parallel_analysis"``.
    random_state : int, RandomState or None, default=0
        Seed of the simulations. The default gives the same result for the same eigenvalues.

    Returns
    -------
    ComponentCount
        The number of components and the scores by which it was chosen.

    Notes
    -----
    All criteria assume signals plus white noise: independent rows, and noise of the same variance
    in every feature. Standardise features that have different units, and leave out constant ones.
    Standardised features still have unequal noise, because those with more signal have less of it.
    If the noise of the features differs or has heavy tails, the criteria find more components than
    there are signals, the hard threshold least; the experiment ``component-counts`` measures this.
    With many rows, ``"mle"`` and ``"parallel_analysis"`` then count nearly all components: these
    do stand out of sampling noise, but not all of them are signals that the features share.
    Data without noise, whose rank is below the numbers of features and of rows, have as many
    components as their rank.

    ``"mle"`` maximises Laplace's approximation to the evidence of probabilistic PCA (Minka 2000),
    the formula of scikit-learn's ``PCA(n_components="mle")``. It is computed for all numbers of
    components together with :math:`m^2` logarithms. At least one component is found.
    With fewer rows than features, where scikit-learn refuses, the formula is used as it is, for up
    to n − 2 components of n rows: the sample has no variance outside n − 1 dimensions, so that the
    evidence of n − 1 components would be infinite.

    ``"parallel_analysis"`` compares eigenvalues with those of simulated white Gaussian noise of as
    many rows (Horn 1965), one after the other, beginning with the largest. The share of the largest
    eigenvalue in the sum of all is significant if at most ``significance`` of the simulated shares
    are as large; then its component is removed, together with one feature and one row of the noise,
    and the next eigenvalue is tested on the remaining sum. In Horn's own procedure large
    eigenvalues raise the variance of the noise against which smaller ones are compared, and hide
    them; the removal avoids this (Dobriban & Owen 2019). The first test is exact: without signals
    and with Gaussian noise, a component is found with probability `significance`. The variance of
    the noise is not needed, because shares do not depend on it. Eigenvalues of noise are those of a
    bidiagonal matrix with independent entries of chi distributions (Dumitriu & Edelman 2002), and
    after the removal of a component those of the matrix without its first row and column. So
    `n_simulations` times 2 min(n, m) numbers are drawn, never a matrix of noise.

    ``"hard_threshold"`` counts the singular values of the centred rows that exceed the threshold of
    Gavish & Donoho (2014), with which the truncated singular value decomposition has the smallest
    asymptotic error of reconstruction. Signals that are detectable but would raise this error are
    not counted. For unknown noise the threshold is a multiple of the median singular value; the
    median of the Marchenko–Pastur distribution is integrated numerically. This estimate of the
    noise needs fewer signals than half of min(n, m).

    References
    ----------
    Minka (2000), Automatic choice of dimensionality for PCA. NIPS.

    Horn (1965), A rationale and test for the number of factors in factor analysis. Psychometrika.

    Glorfeld (1995), An improvement on Horn's parallel analysis methodology. Educational and
    Psychological Measurement.

    Dobriban & Owen (2019), Deterministic parallel analysis. Journal of the Royal Statistical
    Society B.

    Dumitriu & Edelman (2002), Matrix models for beta ensembles. Journal of Mathematical Physics.

    Gavish & Donoho (2014), The optimal hard threshold for singular values is 4/√3. IEEE
    Transactions on Information Theory.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.linear import count_components
    >>> eigenvalues = np.array([9.0, 4.0, 1.1, 1.0, 0.9])
    >>> for name in ("mle", "parallel_analysis", "hard_threshold"):
    ...     print(name, count_components(eigenvalues, 200, name).n_components)
    mle 2
    parallel_analysis 2
    hard_threshold 2
    """
    check_choice(criterion, "criterion", CRITERIA)
    level = check_number(
        significance, "significance", low=0.0, high=1.0, open_low=True, open_high=True
    )
    size = check_integer(n_simulations, "n_simulations", low=1)
    problem = _problem(eigenvalues, n_samples, n_features, centred)
    if noise_variance is not None:
        noise_variance = _checked_noise(noise_variance, criterion)
    if not problem.rank:
        return ComponentCount(criterion, 0, np.empty(0))
    if problem.size == 1 and noise_variance is None:
        # One eigenvalue has no others to be compared with.
        return ComponentCount(criterion, 1, np.empty(0))
    if criterion == "mle":
        return _by_evidence(problem)
    if criterion == "hard_threshold":
        return _by_threshold(problem, noise_variance)
    null = WishartSpectra(problem.size, problem.larger, size, random_state)
    return _by_simulation(problem, null, level)


def component_levels(
    eigenvalues: Any,
    n_samples: float,
    criterion: str = "parallel_analysis",
    *,
    n_features: int | None = None,
    noise_variance: float | None = None,
    most: int = 30,
) -> Floats:
    """Return the levels that eigenvalues must exceed in order to count as components."""
    check_choice(criterion, "criterion", CRITERIA[1:])
    problem = _problem(eigenvalues, n_samples, n_features, True)
    if criterion == "hard_threshold":
        noise = None if noise_variance is None else _checked_noise(noise_variance, criterion)
        square = _squared_threshold(problem, noise) / problem.degrees * problem.unit
        return np.full(min(most, problem.size), square)
    null = WishartSpectra(problem.size, problem.larger, SIMULATIONS)
    left = problem.left
    shares = [null.level(k, SIGNIFICANCE) for k in range(min(most, problem.size - 1))]
    return np.asarray(shares) * left[: len(shares)] * problem.unit


def is_criterion(value: Any) -> bool:
    """Tell whether a value of `n_components` names a criterion, alone or with a noise variance."""
    return isinstance(value, str | tuple)


def check_criterion(value: Any) -> str | tuple[str, float] | None:
    """Return a value of `n_components` if it names a criterion, otherwise None.

    Accepted are the names of `CRITERIA`, and ``("hard_threshold", noise_variance)`` as a tuple or
    a list of two entries with a positive number.
    """
    if isinstance(value, str):
        return str(value) if value in CRITERIA else None
    if not isinstance(value, tuple | list) or len(value) != 2:
        return None
    if not isinstance(value[0], str) or value[0] != "hard_threshold":
        return None
    return "hard_threshold", check_number(
        value[1], "the noise variance in n_components", low=0.0, open_low=True
    )


def count_wanted(wanted: Any, eigenvalues: Any, weight: float, variances: Any) -> ComponentCount:
    """Return the number of components that the criterion named by `n_components` finds.

    Constant features have no noise, so that those of the `variances` of all features that are zero
    up to rounding errors do not count as features.
    """
    name, noise = wanted if isinstance(wanted, tuple) else (wanted, None)
    if weight <= 1.0:  # a single row has no variance
        return ComponentCount(name, 0, np.empty(0))
    variances = np.asarray(variances)
    varying = int(np.sum(variances > len(variances) * ROUNDING * np.sum(variances)))
    values = np.sort(np.asarray(eigenvalues))[::-1][: max(1, varying)] * (weight / (weight - 1.0))
    return count_components(
        values, weight, name, n_features=max(varying, len(values)), noise_variance=noise
    )


def count_in_spectrum(wanted: Any, spectrum: Any, weight: float) -> ComponentCount:
    """Return what a criterion finds in all eigenpairs of a second moment (`lucidae.rows`)."""
    vectors, values = to_numpy(spectrum.vectors), to_numpy(spectrum.values)
    variances = np.ones(len(vectors))  # of files of earlier versions, without eigenvectors
    if vectors.shape[1]:
        variances = np.einsum("ij,ij,j->i", vectors, vectors, values)
    return count_wanted(wanted, spectrum.resolved(spectrum.n_features), weight, variances)


def _checked_noise(value: Any, criterion: str) -> float:
    if criterion != "hard_threshold":
        raise ValueError(
            f"noise_variance={value!r} was given with criterion={criterion!r}, which does not use "
            "it. Leave it out, or use criterion='hard_threshold'."
        )
    return check_number(value, "noise_variance", low=0.0, open_low=True)


@dataclass(frozen=True, slots=True, eq=False)
class ScaledSpectrum:
    """Eigenvalues of a covariance divided by the largest one, and the shape of the data."""

    # (m,): eigenvalues divided by `unit`, descending; zero if they are below their rounding error
    values: Floats
    unit: float  # the largest eigenvalue
    n_samples: float  # number of rows n
    degrees: float  # degrees of freedom: n − 1 if the mean was estimated, otherwise n

    @property
    def size(self) -> int:
        """Number of positive eigenvalues of noisy data with m features: min(m, degrees) or 1."""
        return max(1, int(min(len(self.values), self.degrees + 1e-9)))

    @property
    def rank(self) -> int:
        """Number of positive eigenvalues."""
        return int(np.sum(self.values > 0.0))

    @property
    def larger(self) -> float:
        """The larger of the numbers of features and of degrees of freedom."""
        return max(float(len(self.values)), self.degrees)

    @property
    def left(self) -> Floats:
        """For each eigenvalue, the sum of this eigenvalue and all smaller ones."""
        return np.cumsum(self.values[::-1])[::-1]


def _problem(eigenvalues: Any, n_samples: Any, n_features: Any, centred: Any) -> ScaledSpectrum:
    """Check eigenvalues and numbers of rows and features, and return the scaled eigenvalues."""
    given = np.asarray(to_numpy(eigenvalues), dtype=np.float64)
    top = float(np.max(given, initial=0.0)) if given.ndim == 1 else 0.0
    # Eigensolvers return small negative numbers for zero.
    slack = 1e3 * given.size * ROUNDING * top
    given = np.where((given < 0.0) & (given >= -slack), 0.0, given)
    values = check_vector(given, "eigenvalues", expected="numbers of at least 0 in one dimension")
    if values.ndim != 1:
        raise ValueError(
            "eigenvalues is a single number, expected a vector with all eigenvalues of the "
            "covariance, such as explained_variance_ of a fit with n_components=None."
        )
    n = check_number(n_samples, "n_samples", low=1.0, open_low=True)
    check_flag(centred, "centred")
    m = values.size
    if n_features is not None:
        m = check_integer(n_features, "n_features", low=values.size)
    values = np.append(np.sort(values)[::-1], np.zeros(m - values.size))
    unit = float(values[0]) or 1.0
    values = values / unit
    values = np.where(values > m * ROUNDING, values, 0.0)
    return ScaledSpectrum(values, unit, n, n - 1.0 if centred else n)


# Minka's evidence


def _by_evidence(problem: ScaledSpectrum) -> ComponentCount:
    rank, m = problem.rank, len(problem.values)
    if rank < min(m, problem.degrees - 1e-9):
        # Neither the features nor the rows limit the rank: there is no noise besides the signals.
        return ComponentCount("mle", rank, np.append(np.full(rank - 1, -np.inf), 0.0))
    scores = log_evidence(problem.values, problem.n_samples, rank - 1)
    best = int(np.argmax(scores)) + 1
    return ComponentCount("mle", best, scores - scores[best - 1])


def log_evidence(eigenvalues: Floats, n_samples: float, most: int) -> Floats:
    r"""Return the log-evidence of probabilistic PCA for 1 … `most` components (Minka 2000).

    Laplace's approximation for k components, m features and n rows is

    .. math::
        \log p(U) - \frac n2 \sum_{i \le k} \log λ_i - \frac{n (m - k)}2 \log v
        + \frac{d + k}2 \log 2π - \frac12 \log|A| - \frac k2 \log n,

    with the mean v of the eigenvalues λ after the first k, the volume 1/p(U) of the set of m × k
    matrices with orthonormal columns, its dimension d = mk − k(k + 1)/2, and the determinant of the
    Hessian matrix

    .. math::
        |A| = \prod_{i \le k} \prod_{j > i}
        n (\hat λ_j^{-1} - \hat λ_i^{-1}) (λ_i - λ_j),

    where :math:`\hat λ_j` is λ_j for j ≤ k and v for j > k.
    """
    m = eigenvalues.size
    k = np.arange(1, most + 1)
    top, logs = eigenvalues[:most], np.log(eigenvalues[:most])
    # Equal eigenvalues would make the evidence infinite: they are separated by rounding errors.
    floor = m * ROUNDING * float(eigenvalues[0])
    noise = np.append(np.cumsum(eigenvalues[::-1])[::-1], 0.0)[k] / (m - k)
    # (1/λ_j − 1/λ_i) = (λ_i − λ_j)/(λ_i λ_j), so that the logarithms of all differences, summed
    # over rows i and columns j of their upper triangle, give the determinants of all k.
    rows, columns, outside = np.empty(most), np.zeros(m), np.empty(most)
    for i in range(most):
        differences = np.log(np.maximum(eigenvalues[i] - eigenvalues[i + 1 :], floor))
        rows[i] = differences.sum()
        columns[i + 1 :] += differences
        outside[i] = np.log(np.maximum(top[: i + 1] - noise[i], floor)).sum()
    inside = np.cumsum(columns[:most]) - (k - 1) * np.cumsum(logs)
    outside = (m - k) * (outside - np.cumsum(logs) - k * np.log(noise))
    dimension = m * k - k * (k + 1) / 2
    determinant = np.cumsum(rows) + inside + outside + dimension * math.log(n_samples)
    halves = (m - k + 1) / 2
    prior = np.cumsum(gammaln(halves) - math.log(math.pi) * halves) - k * math.log(2.0)
    likelihood = -n_samples / 2 * (np.cumsum(logs) + (m - k) * np.log(noise))
    volume = (dimension + k) / 2 * math.log(2 * math.pi) - k / 2 * math.log(n_samples)
    return np.asarray(prior + likelihood + volume - determinant / 2)


# Parallel analysis


def _by_simulation(
    problem: ScaledSpectrum, null: WishartSpectra, significance: float
) -> ComponentCount:
    values, left, found = problem.values, problem.left, []
    for k in range(problem.size - 1):  # the last eigenvalue has none to be compared with
        if left[k] <= 0.0:
            break
        found.append(null.p_value(k, float(values[k] / left[k])))
        if found[-1] > significance:
            break
    scores = np.array(found)
    count = int(np.sum(scores <= significance))
    return ComponentCount("parallel_analysis", count, scores)


# Hard threshold


def _by_threshold(problem: ScaledSpectrum, noise_variance: float | None) -> ComponentCount:
    singular = np.sqrt(problem.values[: problem.size] * problem.degrees)
    threshold = math.sqrt(_squared_threshold(problem, noise_variance))
    count = int(np.sum(singular > threshold))
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = np.where(singular > 0.0, singular / threshold, 0.0)
    return ComponentCount("hard_threshold", count, scores)


def _squared_threshold(problem: ScaledSpectrum, noise_variance: float | None) -> float:
    """Return the square of the threshold above which singular values count as components.

    If `noise_variance` is None, the noise is estimated from the median singular value.
    """
    ratio = problem.size / problem.larger
    if noise_variance is not None:
        return hard_threshold(ratio) ** 2 * problem.larger * noise_variance / problem.unit
    median = float(np.median(np.sqrt(problem.values[: problem.size] * problem.degrees)))
    return hard_threshold(ratio) ** 2 * median**2 / marchenko_pastur_median(ratio)


def hard_threshold(beta: float) -> float:
    """Return λ*(β), the optimal threshold of singular values (Gavish & Donoho 2014).

    Singular values of a p × q matrix with noise of variance σ², p ≤ q, are kept if they exceed
    λ*(β) σ √q, where β = p/q.
    """
    root = math.sqrt(beta**2 + 14 * beta + 1)
    return math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + root))


TRACY_WIDOM = 3.2724
"""The 99.9 % quantile of the Tracy-Widom distribution of order 1 (Johnstone 2001).

In about one of a thousand samples of white Gaussian noise, the largest eigenvalue exceeds the limit
that follows from this quantile."""

TURNED = 0.5
"""Limit for the expected squared sine of the angle between a sample and a population component.

A component of the sample counts as separated from noise if the expectation is below this limit. The
value 1/2 corresponds to an angle of 45 degrees."""


def component_sampling_error(
    eigenvalues: NDArray[np.float64], n_rows: float
) -> NDArray[np.float64]:
    r"""Estimate the squared sine of the angle between each sample and population component.

    For n independent Gaussian rows whose covariance has the distinct eigenvalues λ, the squared
    sine of the angle between component i of the sample and of the population has the asymptotic
    expectation :math:`\frac1n \sum_{j \ne i} λ_i λ_j / (λ_i - λ_j)^2` (Anderson 1963).
    The eigenvalues of the sample are used in place of those of the population.
    """
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    top = values.max(initial=0.0)
    if not top:
        return np.full(values.size, np.inf)
    values = values / top
    products, gaps = np.outer(values, values), np.subtract.outer(values, values) ** 2
    np.fill_diagonal(products, 0.0)
    np.fill_diagonal(gaps, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares = products / gaps
    # Two zero eigenvalues turn freely into each other: 0 / 0 counts as infinite.
    shares[np.isnan(shares)] = np.inf
    return np.asarray(shares.sum(axis=1) / n_rows)


def separated_components(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> NDArray[np.bool_]:
    r"""Return which of the leading principal components are separated from sampling noise.

    A component is separated if it passes two tests:

    1. Its eigenvalue and all larger ones exceed what white Gaussian noise would give
       (`components_above_noise`).
    2. The expected squared sine of its angle to the component of the population
       (`component_sampling_error`) is below 1/2, which corresponds to 45 degrees.
    """
    above = components_above_noise(eigenvalues, n_rows, n_components)
    found_again = component_sampling_error(eigenvalues, n_rows)[:n_components] < TURNED
    return np.asarray(above & found_again)


def components_above_noise(
    eigenvalues: NDArray[np.float64], n_rows: float, n_components: int
) -> NDArray[np.bool_]:
    """Return which of the leading eigenvalues exceed those of white Gaussian noise.

    Each eigenvalue is divided by the mean of itself and all smaller ones, which estimates the noise
    variance (Nadler 2011). The ratio is compared with the 99.9 % quantile of the largest eigenvalue
    of white Gaussian noise with as many features as there are eigenvalues in that mean (Johnstone
    2001). An eigenvalue counts only if all larger ones do. The last of all m eigenvalues has no
    smaller one to be compared with and passes if it is positive.
    """
    above = np.zeros(n_components, dtype=bool)
    values = np.maximum(np.asarray(eigenvalues, dtype=np.float64), 0.0)
    left = values.size - np.arange(min(n_components, values.size))
    if n_rows <= 1 or not len(left):
        return above
    means = np.cumsum(values[::-1])[::-1][: len(left)] / left
    # Johnstone 2001: n λ_1 of white noise is centred at μ and spread by ξ, with the -1/2 that makes
    # the approximation second-order accurate (Ma 2012).
    rows, columns = np.sqrt(n_rows - 0.5), np.sqrt(left - 0.5)
    centre = (rows + columns) ** 2
    spread = (rows + columns) * (1 / rows + 1 / columns) ** (1 / 3)
    limits = np.where(left > 1, means * (centre + TRACY_WIDOM * spread), 0.0)
    exceeding = values[: len(left)] * n_rows > limits
    above[: len(left)] = np.logical_and.accumulate(exceeding)
    return above


class WishartSpectra:
    """Simulated eigenvalues of white Gaussian noise, as bidiagonal matrices of chi variables.

    Let q ≥ p be the larger and the smaller of the numbers of features and of degrees of freedom.
    The lower bidiagonal matrix B with the diagonal χ_q, χ_{q−1}, …, χ_{q−p+1} and the subdiagonal
    χ_{p−1}, …, χ_1, all independent, has the singular values of a q × p matrix of standard normal
    entries (Dumitriu & Edelman 2002). Without its first row and column it has those of a
    (q − 1) × (p − 1) matrix.
    """

    def __init__(
        self, smaller: int, larger: float, n_simulations: int, random_state: Any = 0
    ) -> None:
        self.size = p = smaller
        seed = check_random_state(random_state).randint(2**31 - 1)
        rng = np.random.default_rng(seed)
        shape = (n_simulations, p)
        self.diagonal = rng.chisquare(np.maximum(larger - np.arange(p), 1.0), shape).T.copy()
        below = p - 1.0 - np.arange(p - 1)
        self.below = rng.chisquare(below, (n_simulations, p - 1)).T.copy()
        sums = self.diagonal.copy()
        sums[:-1] += self.below
        self.left = np.cumsum(sums[::-1], axis=0)[::-1]
        # The leading eigenvector of the tridiagonal matrix BBᵀ decays within O(p^(1/3)) rows, like
        # Airy's function (Edelman & Persson 2005); after 12 p^(1/3) rows it is rounding error.
        self.rows = 12 + int(12 * p ** (1 / 3))

    def exceeding(self, k: int, share: float) -> int:
        """Return in how many simulations the largest eigenvalue exceeds a share of the sum."""
        level = share * self.left[k]
        # All pivots of BBᵀ − level·I are negative if and only if no eigenvalue exceeds the level.
        pivot = self.diagonal[k] - level
        above = pivot >= 0.0
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            for i in range(k + 1, min(k + self.rows, self.size)):
                crossed = self.diagonal[i - 1] * self.below[i - 1]
                pivot = self.diagonal[i] + self.below[i - 1] - level - crossed / pivot
                above |= pivot >= 0.0
        return int(np.sum(above))

    def level(self, k: int, significance: float) -> float:
        """Return the smallest significant share of the largest eigenvalue after `k` ones."""
        lowest = 1.0 / (self.size - k)
        found = bisect(
            lambda share: (self.p_value(k, share) > significance) - 0.5, lowest, 1.0, xtol=1e-15
        )
        return float(found)

    def p_value(self, k: int, share: float) -> float:
        """Return the p-value of a share of the largest eigenvalue in the sum, both after `k` ones.

        The observed `share` is counted as one of the simulated ones, which makes the test exact
        (Besag & Clifford 1989).
        """
        return (1 + self.exceeding(k, share)) / (1 + int(self.diagonal.shape[1]))


@lru_cache(maxsize=256)
def marchenko_pastur_median(beta: float) -> float:
    r"""Return the median of the Marchenko–Pastur distribution, by numerical integration.

    It is the distribution of the eigenvalues of XᵀX/q for a large q × p matrix X of independent
    noise of variance one, with β = p/q. With :math:`x = 1 + β + 2\sqrt β \cos t` its upper tail is
    :math:`\int_0^t (2/π) \sin^2 s / (1 + β + 2\sqrt β \cos s) \, ds`, whose integrand is bounded.
    """
    root = 2 * math.sqrt(beta)

    def density(angle: float) -> float:
        return 2 / math.pi * math.sin(angle) ** 2 / (1 + beta + root * math.cos(angle))

    def excess(angle: float) -> float:
        return float(quad(density, 0.0, angle, epsabs=1e-13, epsrel=1e-13)[0]) - 0.5

    # The angle of the median grows from π/2 for β → 0 to 2.31 for β = 1.
    angle = brentq(excess, 1.0, 3.0, xtol=1e-14, rtol=1e-14)
    return float(1 + beta + root * math.cos(angle))
