"""The number of principal components, chosen from the eigenvalues of the covariance.

Three criteria are implemented: the evidence of probabilistic PCA (Minka 2000), parallel analysis
against simulated Gaussian noise (Horn 1965), and the optimal hard threshold of singular values
(Gavish & Donoho 2014). All of them need all eigenvalues and the number of rows, but not the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from lucidae.arrays import to_numpy
from lucidae.cards import card, facts
from lucidae.sampling import WishartSpectra, marchenko_pastur_median
from lucidae.validation import check_choice, check_flag, check_integer, check_number, check_vector

__all__ = [
    "CRITERIA",
    "REFERENCES",
    "ComponentCount",
    "check_criterion",
    "component_levels",
    "count_components",
    "hard_threshold",
    "is_criterion",
]

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
    return _by_simulation(problem, problem.noise(size, random_state), level)


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
    null = problem.noise(SIMULATIONS, 0)
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

    def noise(self, n_simulations: int, random_state: Any) -> WishartSpectra:
        """Return simulated eigenvalues of white noise, for data of the same shape."""
        return WishartSpectra(self.size, self.larger, n_simulations, random_state)

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


def hard_threshold(ratio: float) -> float:
    """Return λ*(β), the optimal threshold of singular values (Gavish & Donoho 2014).

    Singular values of a p × q matrix with noise of variance σ², p ≤ q, are kept if they exceed
    λ*(β) σ √q, where β = p/q.
    """
    beta = check_number(ratio, "ratio", low=0.0, high=1.0, open_low=True)
    root = math.sqrt(beta**2 + 14 * beta + 1)
    return math.sqrt(2 * (beta + 1) + 8 * beta / (beta + 1 + root))
