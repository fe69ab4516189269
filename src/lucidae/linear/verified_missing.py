"""Measured values and claims about fits to rows with missing entries, from parameters and rows.

No code is shared with the solver. A row x has the covariance C = WWᵀ + γI with loadings W and noise
variance γ, restricted to its observed entries o. With G = W_oᵀW_o + γI (k × k), Woodbury's identity
gives a = C_oo⁻¹(x − μ)_o = ((x − μ)_o − W_o G⁻¹W_oᵀ(x − μ)_o)/γ, from which the likelihood and its
derivatives follow row by row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components

from lucidae.arrays import as_double, to_numpy
from lucidae.certificates.bounds import EPS, Ball
from lucidae.certificates.claims import Certificate, Claim
from lucidae.linear.claims import STATIONARITY, LinearFigures, claims, judge
from lucidae.linear.claims import evidence as evidence_of
from lucidae.linear.observed_gaussian import ObservedGaussian
from lucidae.linear.verify import Data, GivenRows

Vector = np.ndarray[Any, Any]


# Largest number of entries of matrices that are in memory at a time.
BLOCK_ENTRIES = 2**21

# Largest number of features for which all pairs observed together are determined.
PAIRED_FEATURES = 8192

# Share of the rows with either of two features below which they hardly count as observed together:
# their covariance then has three times the standard error of the others, or more.
FEW_ROWS = 0.1

# Number of standard errors √(γ/n) by which loadings must be linearly independent.
STANDARD_ERRORS = 3.0

# Difference of log-likelihoods from which on the data decide between two sets of parameters.
EVIDENCE = math.log(1000.0)

# Number of steps from a mirror image towards another maximum of the likelihood: so many noticed all
# 18 local maxima among 240 fits to two blocks with 2 to 4 columns in common.
ASCENT = 10

# Largest number of groups of features whose mirror images are computed.
MIRRORED = 10


class ObservedFigures(NamedTuple):
    """Measured values of the parameters of a fit, on rows with missing entries."""

    gradient: float  # norm of the gradient of the log-likelihood per row
    error: float  # bound on its rounding error
    log_likelihood: float  # log-likelihood of the observed entries
    # (q, 2): pairs of features never observed together; None if there are too many features
    never: Vector | None
    # features whose loadings the others do not determine; None if this is not known
    loose: Vector | None
    # difference of log-likelihoods to the best mirror image of the loadings of some of them
    mirror: float
    # (k,): share of the variance of each code that the missing entries leave undetermined, on
    # average over the rows
    lost: Vector
    missing: float  # share of missing entries
    patterns: int  # number of different patterns of observed entries


def data_of_gaussian(fitted: ObservedGaussian, X: Any, weights: Any) -> Data:
    """Return the covariance WWᵀ + γI of the fitted model in the form that the verifier uses.

    Rows X with missing entries, if they are known, are filled to find those of large influence.
    """
    model = _Parameters(to_numpy(fitted.mean), to_numpy(fitted.loadings), fitted.noise)
    data = Data.of_model(*model, fitted.weight)
    if X is None:
        return data
    return replace(data, filled=GivenRows(_filled(model, to_numpy(as_double(X))), weights))


def measure_observed(
    fitted: ObservedGaussian, X: Any, weights: Any, encoder: Vector
) -> ObservedFigures:
    """Measure how well fitted parameters agree with rows that have missing entries."""
    rows = to_numpy(as_double(X))
    mass = np.ones(len(rows)) if weights is None else to_numpy(weights)
    used = (mass > 0.0) & ~np.all(np.isnan(rows), axis=1)
    rows, mass = rows[used], mass[used]
    seen, total, m = ~np.isnan(rows), float(np.sum(mass)), rows.shape[1]
    model = _Parameters(to_numpy(fitted.mean), to_numpy(fitted.loadings), fitted.noise)
    found = _derivatives(model, rows, mass)
    # The relative error of G⁻¹ is its condition number times the machine epsilon.
    top = float(np.max(np.sum(model.loadings**2, axis=0), initial=0.0))
    rounding = 8 * m * EPS * (1.0 + top / model.noise)
    never, loose, mirror = _linked(model, rows, mass, found.value)
    return ObservedFigures(
        found.size(model) / total,
        rounding,
        found.value,
        never,
        loose,
        mirror,
        _lost(model, seen, mass, encoder),
        1.0 - float(mass @ seen.mean(axis=1)) / total,
        len(np.unique(np.packbits(seen, axis=1), axis=0)),
    )


class _Parameters(NamedTuple):
    """Parameters of probabilistic PCA with m features and k latents."""

    mean: Vector  # (m,)
    loadings: Vector  # (m, k)
    noise: float


class _Derivatives(NamedTuple):
    """Log-likelihood of some rows, and its derivatives by loadings, mean and noise variance."""

    value: float
    loadings: Vector
    mean: Vector
    noise: float

    def size(self, model: _Parameters) -> float:
        """Return the norm of the derivatives, scaled such that it does not depend on units.

        For the log-likelihood ℓ of m features, loadings W, mean μ and noise variance γ it is
        √(γ‖∂ℓ/∂(W, μ)‖² + (2/m)(γ ∂ℓ/∂γ)²).
        """
        squares = float(np.sum(self.loadings**2) + np.sum(self.mean**2))
        on_log = model.noise * self.noise
        return math.sqrt(model.noise * squares + 2 / len(model.mean) * on_log**2)


def _posteriors(model: _Parameters, seen: Vector, width: int) -> Iterator[tuple[slice, Vector]]:
    """Yield slices of the rows with G⁻¹ = (W_oᵀW_o + γI)⁻¹ of each row; `seen` are the entries o.

    `width` is the number of entries that the caller computes for each row.
    """
    m, k = model.loadings.shape
    outer = np.einsum("ja,jb->jab", model.loadings, model.loadings).reshape(m, -1)
    size = max(1, BLOCK_ENTRIES // max(k * k, m, width))
    for start in range(0, len(seen), size):
        part = slice(start, min(start + size, len(seen)))
        G = (seen[part].astype(float) @ outer).reshape(-1, k, k) + model.noise * np.eye(k)
        yield part, np.linalg.inv(G)


def _filled(model: _Parameters, rows: Vector) -> Vector:
    """Return rows with the expectations μ + WG⁻¹W_oᵀ(x − μ)_o in place of missing entries."""
    seen, filled = ~np.isnan(rows), rows.copy()
    for part, inverse in _posteriors(model, seen, 0):
        rest = np.where(seen[part], rows[part] - model.mean, 0.0)
        codes = np.einsum("nab,nb->na", inverse, rest @ model.loadings)
        guess = model.mean + codes @ model.loadings.T
        filled[part] = np.where(seen[part], rows[part], guess)
    return filled


def _derivatives(model: _Parameters, rows: Vector, mass: Vector) -> _Derivatives:
    """Return the log-likelihood of rows with weights `mass`, and its derivatives.

    That with respect to the loadings w of feature j is the sum of aⱼ aᵀW − wᵀG⁻¹, because
    C_oo⁻¹W_o = W_oG⁻¹; that with respect to γ is half the sum of ‖a‖² − tr C_oo⁻¹.
    """
    (W, noise), (m, k) = (model.loadings, model.noise), model.loadings.shape
    value, on_loadings, on_mean, on_noise = 0.0, np.zeros((m, k)), np.zeros(m), 0.0
    seen = ~np.isnan(rows)
    for part, inverse in _posteriors(model, seen, 0):
        mask, weight = seen[part].astype(float), mass[part]
        rest = np.where(seen[part], rows[part] - model.mean, 0.0)
        codes = np.einsum("nab,nb->na", inverse, rest @ W)
        a = (rest - mask * (codes @ W.T)) / noise
        through = mask.T @ (inverse * weight[:, None, None]).reshape(-1, k * k)
        on_loadings += (a * weight[:, None]).T @ (a @ W)
        on_loadings -= np.einsum("jab,jb->ja", through.reshape(m, k, k), W)
        count = mask.sum(axis=1)
        traces = (count - k + noise * np.trace(inverse, axis1=1, axis2=2)) / noise
        log_det = (count - k) * math.log(noise) - np.linalg.slogdet(inverse)[1]
        misfit = np.sum(a * rest, axis=1)
        value -= float(weight @ (misfit + log_det + count * math.log(2 * math.pi))) / 2
        on_noise += float(weight @ (np.sum(a**2, axis=1) - traces)) / 2
        on_mean += weight @ a
    return _Derivatives(value, on_loadings, on_mean, on_noise)


def _lost(model: _Parameters, seen: Vector, mass: Vector, encoder: Vector) -> Vector:
    """Return the variance of each code given the observed entries, divided by its variance.

    With the missing entries u of a row, the encoder E and B = E_uW_u, the covariance of the codes
    is γ(BG⁻¹Bᵀ + E_uE_uᵀ). The result (k,) is the mean over the rows.
    """
    W, noise, (k, m) = model.loadings, model.noise, encoder.shape
    mixed = np.einsum("ij,jb->jib", encoder, W).reshape(m, -1)
    left = np.zeros(k)
    for part, inverse in _posteriors(model, seen, mixed.shape[1]):
        hidden = 1.0 - seen[part]
        B = (hidden @ mixed).reshape(-1, k, W.shape[1])
        spread = np.einsum("nia,nab,nib->ni", B, inverse, B) + hidden @ (encoder**2).T
        left += noise * (mass[part] @ spread)
    variances = np.sum((encoder @ W) ** 2, axis=1) + noise * np.sum(encoder**2, axis=1)
    return np.asarray(left / np.sum(mass) / np.maximum(variances, np.finfo(float).tiny))


def _linked(
    model: _Parameters, rows: Vector, mass: Vector, value: float
) -> tuple[Vector | None, Vector | None, float]:
    """Return the pairs of features never observed together, and whose loadings are not determined.

    Loadings of features that are all observed together are determined up to a common rotation, if
    there are more of them than latents. A further feature j is determined by its covariances
    w_jᵀW_N with determined features N if the loadings W_N have rank k. If the features of a group
    are observed together only with features whose loadings have a lower rank, the group has a
    mirror image of the same likelihood: with v orthogonal to these loadings, W(I − 2vvᵀ) in place
    of the group's loadings W. If the rank is k, the fit may still be a local maximum, near the
    mirror image of the global one. The likelihood of the images, and of a maximum near them if it
    is better, is computed; `value` is that of the parameters. The last result is the smallest
    difference.
    """
    m, (W, noise) = rows.shape[1], (model.loadings, model.noise)
    if m > PAIRED_FEATURES:
        return None, None, math.inf
    seen = (~np.isnan(rows)).astype(np.float32)
    count = (seen.T @ seen).astype(float)
    never = np.argwhere(np.triu(count < 0.5, 1))
    apart = count - np.diag(np.diag(count))
    most = np.max(apart, axis=1, initial=0.0)
    known = (apart > 0.5) & (apart >= FEW_ROWS * np.minimum(most[:, None], most[None, :]))
    # 1) Begin with features that are all observed together, those with most others first.
    first: list[int] = []
    for j in np.argsort(-known.sum(axis=1), kind="stable"):
        if known[j, first].all():
            first.append(j)
    k = int(np.sum(np.sum(W**2, axis=0) > 0.0))
    if len(first) == m or k == 0:
        return never, np.empty(0, dtype=int), math.inf
    if len(first) <= k:
        return never, None, math.inf
    # 2) Add features as long as the determined ones that they were observed with have rank k.
    found = np.isin(np.arange(m), first)
    outer = np.einsum("ja,jb->jab", W[:, :k], W[:, :k]).reshape(m, -1)
    while True:
        linked = (known & found).astype(float)
        smallest = np.linalg.eigvalsh((linked @ outer).reshape(m, k, k))[:, 0]
        noticed = STANDARD_ERRORS**2 * noise * linked.sum(axis=1) / np.maximum(most, 1.0)
        new = ~found & (smallest > noticed)
        if not new.any():
            break
        found |= new
    # 3) Mirror each group of other features along the direction in which its links are weakest.
    best, mirror, rest = -math.inf, math.inf, np.setdiff1d(np.arange(m), first)
    _, group = connected_components(known[np.ix_(rest, rest)], directed=False)
    for part in (rest[group == g] for g in range(min(MIRRORED, np.max(group, initial=-1) + 1))):
        others = np.setdiff1d(np.arange(m), part)
        links = apart[np.ix_(part, others)].sum(axis=0)
        if not links.any():
            mirror = min(mirror, 0.0)
            continue
        v = np.linalg.eigh((W[others].T * links) @ W[others])[1][:, 0]
        if min(np.sum((W[part] @ v) ** 2), np.sum((W[others] @ v) ** 2)) <= EPS * noise:
            continue  # the mirror image is the same
        image = W.copy()
        image[part] -= 2 * np.outer(W[part] @ v, v)
        other = model._replace(loadings=image)
        mirror = min(mirror, value - _derivatives(other, rows, mass).value)
        # Near the image there may be a better maximum.
        best = max(best, _ascended(other, rows, mass))
    if best > value + EVIDENCE:
        mirror = value - best
    return never, np.flatnonzero(~found), mirror


def _ascended(model: _Parameters, rows: Vector, mass: Vector) -> float:
    """Return the log-likelihood after some steps of L-BFGS from given parameters."""
    shape, scale = model.loadings.shape, math.sqrt(model.noise)
    split = model.loadings.size

    def loss(point: Vector) -> tuple[float, Vector]:
        loadings, mean = scale * point[:split].reshape(shape), scale * point[split:-1]
        noise = model.noise * math.exp(point[-1])
        found = _derivatives(_Parameters(mean, loadings, noise), rows, mass)
        slope = (scale * found.loadings.ravel(), scale * found.mean, [noise * found.noise])
        return -found.value / np.sum(mass), -np.concatenate(slope) / np.sum(mass)

    start = np.concatenate([model.loadings.ravel() / scale, model.mean / scale, [0.0]])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": ASCENT})
    return -float(found.fun) * float(np.sum(mass))


_NOT_STORED = "The rows were not stored: call lucidae.certify(estimator, X) with all rows X."
_NOT_CONVERGED = (
    "The fit did not converge, so that nothing is claimed about it: increase max_iter, or choose a "
    "smaller n_components."
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
    converged: bool,
) -> Certificate:
    """Return the certificate of a fit to rows with missing entries.

    If it did not converge, claims that would hold are undecided.
    """
    figures = replace(figures, observed=True)
    evidence = evidence_of(figures) | {"noise_variance": fitted.noise}
    if seen is not None:
        evidence |= {
            "log_likelihood": seen.log_likelihood,
            "missing_share": seen.missing,
            "n_patterns": seen.patterns,
            "never_observed_together": seen.never,
            "lost_code_variance": seen.lost,
        }
    added = (
        _likelihood(seen, figures.training.tol, fitted),
        _identifiability(seen),
        _missing_information(seen),
    )
    judged = (*claims(figures), *added)
    if not converged:
        unclear: Any = {"holds": None, "undecided": True, "advice": _NOT_CONVERGED}
        judged = tuple(replace(claim, **unclear) if claim.holds else claim for claim in judged)
    return Certificate(title, judged, evidence)


def _likelihood(seen: ObservedFigures | None, tolerance: float, fitted: ObservedGaussian) -> Claim:
    text = Claim(
        "likelihood",
        "the parameters are a stationary point of the likelihood of the observed entries (norm of "
        "the gradient per row)",
        "Tipping & Bishop 1999; Rubin 1976 (missing at random)",
    )
    if seen is None:
        return replace(text, advice=_NOT_STORED, undecided=True)
    if not fitted.bounded:
        return replace(text, value=seen.gradient, advice=_NO_MAXIMUM, undecided=True)
    value = math.inf if math.isnan(seen.gradient) else seen.gradient
    bound = float(np.clip(10 * tolerance, *STATIONARITY))
    advice = (
        "Train longer (increase max_iter). If X is not the data that was passed to fit, this "
        "result is expected."
    )
    return judge(text, Ball(value, seen.error), bound, advice)


def _identifiability(seen: ObservedFigures | None) -> Claim:
    text = Claim(
        "identifiability",
        "the covariances of features that were observed together determine the loadings (number "
        "of features that are linked to the others by fewer than k independent loadings)",
        "linear algebra of WWᵀ + γI",
    )
    if seen is None:
        return replace(text, advice=_NOT_STORED, undecided=True)
    if seen.never is None:
        why = f"Pairs of features are not examined for more than {PAIRED_FEATURES} features."
        return replace(text, advice=why)
    named = ""
    if len(seen.never):
        shown = ", ".join(f"{i} and {j}" for i, j in seen.never[:3])
        more = "" if len(seen.never) <= 3 else f" and {len(seen.never) - 3} other pairs"
        named = f" (columns {shown}{more}, counted from 0, were never observed together)"
    if seen.loose is None:
        why = f"No more than k features were all observed together{named}."
        return replace(text, advice=why, undecided=True)
    mirrored, count = seen.mirror <= EVIDENCE, float(len(seen.loose))
    other = (
        "Other loadings, with other covariances between these groups of columns, have the same "
        "likelihood (mirror images)"
    )
    collect = (
        "Choose a smaller n_components, or collect rows in which columns of both groups are "
        "observed."
    )
    if not count and mirrored:
        why = f"{other} or a higher one, so that this fit may be a local maximum{named}. {collect}"
        return replace(text, value=count, threshold=0.0, advice=why, undecided=True)
    if not count:
        confirmed = f"The covariance of these columns follows from the model alone{named}."
        claim = judge(text, Ball(count), 0.0, "")
        return replace(claim, advice=confirmed) if named else claim
    columns = ", ".join(map(str, seen.loose[:10])) + (" …" if len(seen.loose) > 10 else "")
    why = (
        f"Columns {columns}, counted from 0, are linked to the others by fewer than k independent "
        f"loadings{named}. "
    )
    if mirrored:
        return judge(text, Ball(count), 0.0, f"{why}{other}. {collect}")
    why += "Whether the observed covariances determine their loadings is not known."
    return replace(text, value=count, threshold=0.0, advice=why, undecided=True)


def _missing_information(seen: ObservedFigures | None) -> Claim:
    text = Claim(
        "missing_information",
        "largest share of the variance of a code that the missing entries leave undetermined, on "
        "average over the rows",
        "law of total variance",
    )
    if seen is None:
        return replace(text, advice=_NOT_STORED)
    shares = ", ".join(f"{100 * share:.2g} %" for share in seen.lost[:10])
    more = " …" if len(seen.lost) > 10 else ""
    advice = (
        f"{100 * seen.missing:.2g} % of the entries are missing, in {seen.patterns} patterns. By "
        f"component, this share of the variance is lost: {shares}{more}."
    )
    return replace(text, value=float(np.max(seen.lost)), advice=advice)
