"""Measured values and claims about fits to rows with missing entries, from parameters and rows.

No code is shared with the solver. For small data the gradient of the likelihood is computed by its
definition, with the covariance matrix of the observed entries of every pattern. For larger data it
is computed from the residuals of all rows, and compared with the definition on a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from lucidae.arrays import as_double, to_numpy
from lucidae.certificates.claims import (
    Certificate,
    Claim,
    at_most,
    does_not_apply,
    reported,
    undecided,
)
from lucidae.linear.certificate import STATIONARITY, LinearFigures, claims
from lucidae.linear.observed_gaussian import ObservedGaussian
from lucidae.linear.probe import EPS, Estimate
from lucidae.linear.verified_data import DENSE_FEATURES, Data

Vector = np.ndarray[Any, Any]

DIRECT_OPERATIONS = 2e9
"""Largest product of the number of patterns and the cube of the number of features for which the
gradient is computed by its definition."""

COMPARED = 8
"""Number of rows of larger data on which the gradient is compared with its definition."""

COMPARED_FEATURES = 300
"""Largest number of observed entries of each of these rows that are used."""

BLOCK_ENTRIES = 2**21
"""Largest number of entries of matrices that are in memory at a time."""

PAIRED_FEATURES = 8192
"""Largest number of features for which all pairs observed together are determined."""

TANGENT_PARAMETERS = 1000
"""Largest number of loadings for which it is checked whether the covariances determine them."""

NEGLIGIBLE = 1e-7
"""Relative threshold below which singular values count as 0, for the derivative of covariances."""


class ObservedFigures(NamedTuple):
    """Measured values of the parameters of a fit, on rows with missing entries."""

    gradient: Estimate  # norm of the gradient of the log-likelihood per row
    log_likelihood: float  # log-likelihood of the observed entries
    # (q, 2): pairs of features that were never observed together; None if there are too many
    # features
    never: Vector | None
    parts: int  # number of groups of features between which no pair was observed together
    # number of directions in which the loadings can change without a change of any covariance of
    # features that were observed together; None if there are too many loadings
    free: int | None
    # (k,): share of the variance of each code that the missing entries leave undetermined, on
    # average over the rows
    lost: Vector
    missing: float  # share of missing entries
    patterns: int  # number of different patterns of observed entries


def data_of_gaussian(fitted: ObservedGaussian) -> Data:
    """Return the covariance WWᵀ + γI of the fitted model in the form that the verifier uses."""
    mean, W = to_numpy(fitted.mean), to_numpy(fitted.loadings)
    m, noise = len(mean), fitted.noise
    own = np.sum(W**2, axis=1) + noise
    trace, weight = float(np.sum(own)), fitted.weight
    if m <= DENSE_FEATURES:
        matrix = W @ W.T + noise * np.eye(m)
        return Data(mean, trace, lambda rows: rows @ matrix, own, matrix, weight=weight)

    def product(rows: Vector) -> Vector:
        return np.asarray((rows @ W) @ W.T + noise * rows)

    return Data(mean, trace, product, own, weight=weight)


def measure_observed(
    fitted: ObservedGaussian, X: Any, weights: Any, encoder: Vector
) -> ObservedFigures:
    """Measure how well fitted parameters agree with rows that have missing entries."""
    rows = to_numpy(as_double(X))
    mass = np.ones(len(rows)) if weights is None else to_numpy(weights)
    used = (mass > 0.0) & ~np.all(np.isnan(rows), axis=1)
    rows, mass = rows[used], mass[used]
    groups = _patterns(rows)
    seen = ~np.isnan(rows)
    model = _Parameters(to_numpy(fitted.mean), to_numpy(fitted.loadings), fitted.noise)
    found, lost = _by_residuals(model, rows, mass, encoder)
    difference = 0.0
    if len(groups) * float(rows.shape[1]) ** 3 <= DIRECT_OPERATIONS:
        found = _by_definition(model, rows, mass, groups)
    else:
        difference = _difference(model, rows)
    total = float(np.sum(mass))
    m, top = rows.shape[1], float(np.max(np.sum(model.loadings**2, axis=0), initial=0.0))
    rounding = 8 * m * EPS * math.sqrt(1.0 + top / model.noise)
    never, parts = _pairs(seen[[group[0] for group in groups]])
    free = 0 if never is not None and not len(never) else _free_directions(model, never)
    return ObservedFigures(
        Estimate(found.size(model) / total, rounding + difference),
        found.value,
        never,
        parts,
        free,
        lost,
        1.0 - float(mass @ seen.mean(axis=1)) / total,
        len(groups),
    )


class _Parameters(NamedTuple):
    """Parameters of probabilistic PCA: mean (m,), loadings (m, k) and noise variance.

    m is the number of features, and k that of latents.
    """

    mean: Vector
    loadings: Vector
    noise: float


class _Slope(NamedTuple):
    """Log-likelihood of some rows, and its derivatives by loadings, mean and noise variance."""

    value: float
    loadings: Vector
    mean: Vector
    noise: float

    @classmethod
    def zero(cls, model: _Parameters) -> _Slope:
        return cls(0.0, 0.0 * model.loadings, 0.0 * model.mean, 0.0)

    def plus(self, other: _Slope, sign: float = 1.0) -> _Slope:
        """Return the sum of two results, or their difference if `sign` is −1."""
        return _Slope(
            self.value + sign * other.value,
            self.loadings + sign * other.loadings,
            self.mean + sign * other.mean,
            self.noise + sign * other.noise,
        )

    def size(self, model: _Parameters) -> float:
        """Return the norm of the derivatives, scaled such that it does not depend on units.

        For the log-likelihood ℓ of m features, loadings W, mean μ and noise variance γ it is
        √(γ‖∂ℓ/∂(W, μ)‖² + (2/m)(γ ∂ℓ/∂γ)²).
        """
        squares = float(np.sum(self.loadings**2) + np.sum(self.mean**2))
        on_log = model.noise * self.noise
        return math.sqrt(model.noise * squares + 2 / len(model.mean) * on_log**2)


def _patterns(rows: Vector) -> list[Vector]:
    """Return, for each pattern of observed entries, the indices of the rows with this pattern."""
    groups: dict[bytes, list[int]] = {}
    for index, hidden in enumerate(np.isnan(rows)):
        groups.setdefault(hidden.tobytes(), []).append(index)
    return [np.array(group) for group in groups.values()]


def _by_definition(model: _Parameters, rows: Vector, mass: Vector, groups: list[Vector]) -> _Slope:
    """Return the log-likelihood of all rows, and its derivatives, by their definition.

    Let C be the covariance of these features, S the scatter about the mean of the rows with this
    pattern, and n their total weight. The derivative with respect to C is (C⁻¹SC⁻¹ − nC⁻¹)/2. So
    that all C have the same shape, rows and columns of the identity matrix are inserted for the
    other features.
    """
    W, m, total = model.loadings, len(model.mean), _Slope.zero(model)
    C = W @ W.T + model.noise * np.eye(m)
    for part in _batches(groups, max(1, BLOCK_ENTRIES // m**2)):
        index, owner = np.concatenate(part), np.repeat(np.arange(len(part)), [*map(len, part)])
        seen = ~np.isnan(rows[[group[0] for group in part]])
        both = seen[:, :, None] & seen[:, None, :]
        full = np.where(both, C, np.eye(m))
        inverse = np.where(both, np.linalg.inv(full), 0.0)
        rest = np.where(seen[owner], rows[index] - model.mean, 0.0)
        alone, weight = len(part) == 1, mass[index]
        solved = rest @ inverse[0] if alone else np.einsum("nij,nj->ni", inverse[owner], rest)
        count = np.bincount(owner, weight)
        curvature = np.einsum("p,pij->ij", count, inverse)
        volume = np.linalg.slogdet(full)[1] + seen.sum(axis=1) * math.log(2 * math.pi)
        misfit = float(weight @ np.sum(solved * rest, axis=1))
        on_noise = float(weight @ np.sum(solved**2, axis=1)) - float(np.trace(curvature))
        loadings = (solved * weight[:, None]).T @ (solved @ W) - curvature @ W
        value = -(misfit + float(count @ volume)) / 2
        total = total.plus(_Slope(value, loadings, weight @ solved, on_noise / 2))
    return total


def _batches(groups: list[Vector], most: int) -> Iterator[list[Vector]]:
    """Yield lists of groups of rows, with at most `most` rows in all groups of a list.

    A group with more rows is in a list of its own.
    """
    part: list[Vector] = []
    for group in groups:
        if part and sum(map(len, part)) + len(group) > most:
            yield part
            part = []
        part.append(group)
    yield part


def _blocks(rows: Vector, width: int) -> Iterator[slice]:
    size = max(1, BLOCK_ENTRIES // max(width, rows.shape[1]))
    for start in range(0, len(rows), size):
        yield slice(start, min(start + size, len(rows)))


def _by_residuals(
    model: _Parameters, rows: Vector, mass: Vector, encoder: Vector
) -> tuple[_Slope, Vector]:
    """Return log-likelihood and derivatives from residuals of all rows, and the loss of the codes.

    The loss of a code of `encoder` is its variance given the observed entries, divided by its
    variance: the share that missing entries leave undetermined. A row x with mean μ has the
    covariance C = WWᵀ + γI, with loadings W and noise variance γ, restricted to the observed
    entries. For each row, a = C⁻¹(x − μ) is computed with G = WᵀW + γI over the observed entries.
    The derivative with respect to the loadings w of feature j is the sum of aⱼ aᵀW − wᵀG⁻¹, since
    C⁻¹W = WG⁻¹.
    """
    W, noise = model.loadings, model.noise
    (m, q), k, total = W.shape, len(encoder), _Slope.zero(model)
    outer = np.einsum("ja,jb->jab", W, W).reshape(m, -1)
    mixed = np.einsum("ij,jb->jib", encoder, W).reshape(m, -1)
    left = np.zeros(k)
    for part in _blocks(rows, max(q * q, k * q)):
        seen = ~np.isnan(rows[part])
        mask, weight = seen.astype(float), mass[part]
        rest = np.where(seen, rows[part] - model.mean, 0.0)
        G = (mask @ outer).reshape(-1, q, q) + noise * np.eye(q)
        inverse = np.linalg.inv(G)
        codes = np.einsum("nab,nb->na", inverse, rest @ W)
        a = (rest - mask * (codes @ W.T)) / noise
        through = mask.T @ (inverse * weight[:, None, None]).reshape(-1, q * q)
        loadings = (a * weight[:, None]).T @ (a @ W)
        loadings -= np.einsum("jab,jb->ja", through.reshape(m, q, q), W)
        count = mask.sum(axis=1)
        traces = (count - q + noise * np.trace(inverse, axis1=1, axis2=2)) / noise
        log_det = np.linalg.slogdet(G)[1] + (count - q) * math.log(noise)
        misfit = np.sum(a * rest, axis=1)
        value = -float(weight @ (misfit + log_det + count * math.log(2 * math.pi))) / 2
        on_noise = float(weight @ (np.sum(a**2, axis=1) - traces)) / 2
        total = total.plus(_Slope(value, loadings, weight @ a, on_noise))
        hidden = 1.0 - mask
        B = (hidden @ mixed).reshape(-1, k, q)
        spread = np.einsum("nia,nab,nib->ni", B, inverse, B) + hidden @ (encoder**2).T
        left += noise * (weight @ spread)
    variances = np.sum((encoder @ W) ** 2, axis=1) + noise * np.sum(encoder**2, axis=1)
    return total, left / np.sum(mass) / np.maximum(variances, np.finfo(float).tiny)


def _difference(model: _Parameters, rows: Vector) -> float:
    """Return the largest difference per row between two computations of the likelihood's gradient.

    They are the definition and the formula with residuals (`_by_definition`, `_by_residuals`). They
    are compared on a few random rows, with at most `COMPARED_FEATURES` observed entries each.
    """
    rng, worst, one = np.random.default_rng(0), 0.0, np.ones(1)
    for row in rows[rng.choice(len(rows), min(COMPARED, len(rows)), replace=False)]:
        o = rng.permutation(np.flatnonzero(~np.isnan(row)))[:COMPARED_FEATURES]
        part, values = _Parameters(model.mean[o], model.loadings[o], model.noise), row[None, o]
        slope, _ = _by_residuals(part, values, one, part.loadings.T)
        other = _by_definition(part, values, one, [np.zeros(1, dtype=int)])
        worst = max(worst, slope.plus(other, -1.0).size(part))
    return worst


def _pairs(patterns: Vector) -> tuple[Vector | None, int]:
    """Return the pairs of features never observed together, and the number of groups of features.

    Two features are in one group if a chain of pairs that were observed together connects them.
    """
    if patterns.shape[1] > PAIRED_FEATURES:
        return None, 1
    mask = patterns.astype(np.float32)
    together = mask.T @ mask > 0.5
    parts = int(connected_components(together, directed=False, return_labels=False))
    return np.argwhere(np.triu(~together, 1)), parts


def _free_directions(model: _Parameters, never: Vector | None) -> int | None:
    """Return in how many directions loadings can change without a change of observed covariances.

    The model has the covariance C = WWᵀ + γI with loadings W and noise variance γ. Its derivative
    in the direction (A, c) of (W, γ) is AWᵀ + WAᵀ + cI. It is restricted to the pairs of features
    that were observed together; `never` are the other pairs. The rotations of the latents, which
    change no covariance at all, are not counted.
    """
    sizes = np.sum(model.loadings**2, axis=0)
    W = model.loadings[:, sizes > NEGLIGIBLE * (np.max(sizes, initial=0.0) + model.noise)]
    m, k = W.shape
    if never is None or m * k > TANGENT_PARAMETERS:
        return None
    known = np.ones((m, m), dtype=bool)
    known[never[:, 0], never[:, 1]] = False
    first, second = np.nonzero(np.triu(known))
    W, index = W / math.sqrt(max(float(np.max(sizes)), np.finfo(float).tiny)), np.arange(len(first))
    derivative = np.zeros((len(first), m, k))
    derivative[index, first] += W[second]
    derivative[index, second] += W[first]
    table = np.column_stack([derivative.reshape(len(first), m * k), first == second])
    values = np.linalg.eigvalsh(table.T @ table)
    zeros = int(np.sum(values <= NEGLIGIBLE**2 * values[-1] + 8 * m * k * EPS * values[-1]))
    return int(max(0, zeros - k * (k - 1) // 2))


_INCOMPLETE = "Entries are missing, but the theory of sampling noise holds for complete rows."
_NOT_STORED = (
    "The rows given to partial_fit were not stored: call lucidae.certify(estimator, X) with all "
    "rows X. Online EM approaches the maximum of the likelihood, but does not reach it."
)
_NO_MAXIMUM = (
    "The likelihood has no maximum: the noise variance tends to zero, because so many components "
    "explain the observed entries without noise. Choose a smaller n_components."
)


def observed_certificate(
    title: str,
    figures: LinearFigures,
    seen: ObservedFigures | None,
    fitted: ObservedGaussian,
) -> Certificate:
    """Return the certificate of a fit to rows with missing entries."""
    own = claims(replace(figures, sampling=_INCOMPLETE))
    added = (
        _likelihood_claim(seen, figures.tolerance, fitted),
        _identifiability_claim(seen),
        _missing_claim(seen),
    )
    evidence = dict(figures.evidence) | {"noise_variance": fitted.noise}
    if seen is not None:
        evidence |= {
            "log_likelihood": seen.log_likelihood,
            "missing_share": seen.missing,
            "n_patterns": seen.patterns,
            "never_observed_together": seen.never,
            "lost_code_variance": seen.lost,
        }
    return Certificate(title, (*own, *added), evidence)


def _likelihood_claim(
    seen: ObservedFigures | None, tolerance: float, fitted: ObservedGaussian
) -> Claim:
    name, reference = "likelihood", "Tipping & Bishop 1999; Rubin 1976 (missing at random)"
    statement = (
        "the parameters are a stationary point of the likelihood of the observed entries (norm of "
        "the gradient per row)"
    )
    if seen is None:
        return undecided(name, statement, reference, _NOT_STORED)
    value, error = seen.gradient
    if not fitted.bounded:
        return undecided(name, statement, reference, _NO_MAXIMUM, value)
    bound = float(np.clip(10 * tolerance, *STATIONARITY))
    advice = (
        "Train longer (increase max_iter). If X is not the data that was passed to fit, or if it "
        "was passed to partial_fit in batches, this result is expected."
    )
    value = math.inf if math.isnan(value) else value
    return at_most(name, statement, reference, value, bound, advice, error=error)


def _identifiability_claim(seen: ObservedFigures | None) -> Claim:
    name, reference = "identifiability", "derivatives of the covariances WWᵀ + γI"
    statement = (
        "the covariances of features that were observed together determine the loadings (number "
        "of directions in which the loadings can change while these covariances do not; further "
        "groups of features without a common row count as well)"
    )
    if seen is None:
        return undecided(name, statement, reference, _NOT_STORED)
    if seen.never is None:
        why = f"Pairs of features are not examined for more than {PAIRED_FEATURES} features."
        return does_not_apply(name, statement, reference, why)
    named = _named_pairs(seen.never)
    if seen.parts > 1:
        why = (
            f"The features form {seen.parts} groups, and no row has observed features of two of "
            f"them ({named}): the covariances between the groups are arbitrary. Collect "
            "rows in which features of different groups are observed, or fit each group."
        )
        return at_most(name, statement, reference, float(seen.parts - 1 + (seen.free or 0)), 0, why)
    if seen.free is None:
        why = (
            f"{named}. Whether the other covariances determine the loadings is not computed for "
            f"more than {TANGENT_PARAMETERS} loadings."
        )
        return undecided(name, statement, reference, why)
    why = (
        f"{named}, and the other covariances do not determine the loadings. Choose a smaller "
        "n_components, or collect rows in which these features are observed together."
    )
    claim = at_most(name, statement, reference, float(seen.free), 0.0, why)
    if claim.holds and len(seen.never):
        return replace(
            claim,
            advice=f"{named}: the covariance of these columns is an assumption "
            "of the model that no row confirms.",
        )
    return claim


def _named_pairs(never: Vector) -> str:
    """Return a clause that names up to three pairs of columns that were never observed together."""
    shown = ", ".join(f"{i} and {j}" for i, j in never[:3])
    more = "" if len(never) <= 3 else f" and {len(never) - 3} other pairs"
    return f"columns {shown}{more}, counted from 0, were never observed together"


def _missing_claim(seen: ObservedFigures | None) -> Claim:
    name, reference = "missing_information", "law of total variance"
    statement = (
        "largest share of the variance of a code that the missing entries leave undetermined, on "
        "average over the rows"
    )
    if seen is None:
        return does_not_apply(name, statement, reference, _NOT_STORED)
    shares = ", ".join(f"{100 * share:.2g} %" for share in seen.lost[:10])
    more = " …" if len(seen.lost) > 10 else ""
    advice = (
        f"{100 * seen.missing:.2g} % of the entries are missing, in {seen.patterns} patterns. By "
        f"component, this share of the variance is lost: {shares}{more}."
    )
    return reported(name, statement, reference, float(np.max(seen.lost)), advice)
