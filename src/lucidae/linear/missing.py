"""Maximum likelihood of probabilistic PCA for rows with missing entries.

A row x of m features has the distribution N(μ, C) with C = WWᵀ + γI, loadings W (m × k) and noise
variance γ. Of a row, only the entries o are observed, whose distribution is N(μ_o, C_oo). The
likelihood of all observed entries is maximised over W, μ and γ. Rows are grouped by the pattern of
their observed entries. With the k × k matrix G = W_oᵀW_o + γI of a pattern, the latents z of a row
have the posterior mean G⁻¹W_oᵀ(x_o − μ_o) and the posterior covariance γG⁻¹; no m × m matrix is
factorised.

The gradient of the log-likelihood follows from these moments (Fisher's identity), and one step of
expectation maximisation (EM; Tipping & Bishop 1999, Ilin & Raiko 2010) is a preconditioned gradient
step: the gradient for the loadings and the mean of each feature is divided by the complete-data
information, the matrix of second derivatives that the likelihood would have if the latents were
observed. The solver is a quasi-Newton acceleration of EM (Jamshidian & Jennrich 1997): L-BFGS with
this preconditioner as initial inverse Hessian. A step is accepted only if the likelihood increases;
if no such step is found, an EM step is taken, which never lowers the likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from lucidae.arrays import (
    Array,
    as_double,
    device,
    eigh_descending,
    like,
    namespace,
    scalar,
    svd_thin,
    to_numpy,
    where_set,
    zeros_like_shape,
)
from lucidae.arrays.krylov import krylov_eigenpairs
from lucidae.counting import ComponentCount, count_wanted, is_criterion
from lucidae.iteration import Below, History, Solution, iterate, log_grid
from lucidae.iteration.progress import progress_bars
from lucidae.linear.methods import check_features
from lucidae.linear.observed_gaussian import (
    SMALLEST_NOISE,
    ObservedGaussian,
    ObservedRows,
    Statistics,
)
from lucidae.linear.optimizers import DescentSettings
from lucidae.moments import SMALLEST_SCATTER
from lucidae.validation import warn_user

Vector = np.ndarray[Any, Any]

PAIRWISE_FEATURES = 1024
"""Largest number of features for which the first loadings are eigenvectors of the covariance of
pairs of features. With more features, missing entries are replaced by the mean instead."""

MEMORY = 20
"""Number of earlier steps from which L-BFGS estimates the curvature."""

HALVINGS = 12
"""Number of times that a step is halved until the likelihood increases."""

DECREASE = 1e-4
"""Share of the decrease predicted by the gradient that a step must reach (Armijo)."""

PATIENCE = 200
"""Number of steps without a smaller gradient after which the solver ends as stalled."""

PATH_TOLERANCE = 1e-3
"""Tolerance of the fits by which the number of latents is found. The standard error of parameters
estimated from n rows is 1/√n in the same units, so that this is accurate up to a million rows."""
PATH_STEPS = 500
"""Largest number of steps of each of these fits. They need 10 to 100, unless so many latents are
fitted that the noise variance tends to zero."""


def unmasked(X: Any) -> Any:
    """Return `X`; masked entries of a NumPy array become NaN."""
    if not isinstance(X, np.ma.MaskedArray) or not np.ma.is_masked(X):
        return X
    double = X.dtype if X.dtype in (np.float32, np.float64) else np.dtype(float)
    return np.ma.filled(X.astype(double), np.nan)


def observed_part(X: Array, weights: Array | None, names: Any = None) -> tuple[Array, Array | None]:
    """Return the rows of X (n, m) that have an observed entry and a positive weight, with weights.

    A feature without an observed entry raises a ValueError, and so do fewer than two rows; `names`
    are the names of the features for the message, or None. If all observed entries of each feature
    are equal, they also replace the missing ones.
    """
    xp = namespace(X)
    if weights is None:
        weights = xp.ones(X.shape[0], dtype=xp.float64, device=device(X))
    seen = ~to_numpy(xp.isnan(X))
    used = seen.any(axis=1) & (to_numpy(weights) > 0.0)
    never = np.flatnonzero(~seen[used].any(axis=0))
    if used.sum() < 2:
        raise ValueError(
            f"X has {used.sum()} rows with an observed entry and a positive weight, expected at "
            "least 2: n_samples is too small."
        )
    if len(never):
        listed = [str(j) if names is None else repr(str(names[j])) for j in never[:10]]
        more = f" and {len(never) - 10} more" if len(never) > 10 else ""
        one = len(never) == 1
        raise ValueError(
            f"feature{'' if one else 's'} {', '.join(listed)}{more} of X {'has' if one else 'have'}"
            " no observed entry, so that nothing can be estimated about "
            f"{'it' if one else 'them'}. Remove {'this column' if one else 'these columns'}."
        )
    X, weights = _chosen(X, weights, used)
    with np.errstate(over="ignore", invalid="ignore"):
        center = weights @ where_set(as_double(X), xp.isnan(X), 0.0) / (weights @ _seen(X))
        filled = xp.where(xp.isnan(X), like(center, X), X)
        apart = as_double(filled) - center
        scatter = scalar(xp.sum(apart * apart))
    if not math.isfinite(scatter):
        raise ValueError(
            "the squares of X overflow double precision. Divide X by a constant first."
        )
    peak = max(scalar(xp.max(xp.abs(apart))), 0.0)
    if peak > 0.0 and scatter < SMALLEST_SCATTER:
        raise ValueError(
            "the squares of the deviations of X from its mean underflow double precision. Multiply "
            "X by a constant first."
        )
    rounding = 8 * np.finfo(float).eps * scalar(xp.max(xp.abs(center)))
    return (filled if peak <= rounding else X), weights


def comparable(previous: ObservedGaussian, X: Array) -> ObservedGaussian | None:
    """Return the earlier fit `previous` if a warm start on rows X can begin from it.

    If the numbers of features differ, a warning is given and None is returned.
    """
    if previous.mean.shape[0] == X.shape[1]:
        return previous
    warn_user(
        f"warm_start=True was given, but the last fit has {previous.mean.shape[0]} features and X "
        f"has {X.shape[1]}: the fit starts anew."
    )
    return None


def _seen(X: Array) -> Array:
    """Return an array of the shape of X: 1.0 for observed entries and 0.0 for missing ones."""
    xp = namespace(X)
    return xp.astype(~xp.isnan(X), xp.float64)


class _Point(NamedTuple):
    """State of the solver: parameters θ, the loss and its derivatives at θ, and earlier steps.

    θ (`theta`) contains the loadings and the mean of each feature, and the logarithm of the noise
    variance. `loss` is the negative log-likelihood per row, `gradient` its gradient, and `distance`
    the scaled norm of the gradient, by which the solver stops. `statistics` are the expected
    sufficient statistics at θ, and `pairs` contains the last changes of θ and of the gradient, for
    L-BFGS.
    """

    theta: Array
    loss: float
    gradient: Array
    distance: float
    statistics: Statistics
    pairs: tuple[tuple[Array, Array], ...]


def _unpacked(theta: Array, k: int) -> tuple[Array, float]:
    """Return loadings and mean as one array (m, k + 1), and the noise variance, from θ.

    θ (`theta`) is the vector of all parameters, for m features and k latents; the mean is the last
    column of the array.
    """
    beta = namespace(theta).reshape(theta[:-1], (-1, k + 1))
    return beta, max(math.exp(min(scalar(theta[-1]), 700.0)), SMALLEST_NOISE)


def _packed(beta: Array, noise: float) -> Array:
    """Return the vector θ of all parameters: the inverse of `_unpacked`."""
    xp = namespace(beta)
    last = zeros_like_shape((1,), beta) + math.log(noise)
    return xp.concat([xp.reshape(beta, (-1,)), last])


@dataclass(frozen=True, slots=True)
class _ObservedLikelihood:
    """Negative log-likelihood of given rows under probabilistic PCA with k latents.

    It has methods for its value and gradient, and for one step of the solver.
    """

    rows: ObservedRows
    k: int

    def at(self, theta: Array, pairs: tuple[tuple[Array, Array], ...] = ()) -> _Point:
        """Return the solver's state (loss, gradient and more) at the parameters `theta`."""
        xp = namespace(theta)
        beta, noise = _unpacked(theta, self.k)
        found, n = self.rows.statistics(beta, noise), self.rows.weight
        slope = found.cross - (found.information @ beta[:, :, None])[:, :, 0]
        on_noise = (found.entries - found.rest / noise) / (2 * n)
        on_beta = -slope / (noise * n)
        size = noise * scalar(xp.sum(on_beta * on_beta)) + 2 / beta.shape[0] * on_noise**2
        if noise <= SMALLEST_NOISE and on_noise > 0.0:
            size = 0.0  # the likelihood has no maximum: the noise variance tends to zero
        last = zeros_like_shape((1,), beta) + on_noise
        gradient = xp.concat([xp.reshape(on_beta, (-1,)), last])
        return _Point(theta, -found.value / n, gradient, math.sqrt(size), found, pairs)

    def step(self, point: _Point) -> _Point:
        """Return the solver's state after one quasi-Newton step; the likelihood never decreases.

        If no quasi-Newton step increases the likelihood, an EM step is tried. If that fails too,
        the given state itself is returned.
        """
        direction = self._direction(point)
        slope = scalar(namespace(direction).sum(direction * point.gradient))
        rounding = 8 * np.finfo(float).eps * (abs(point.loss) + self.rows.mask.shape[1])
        # A large change of the noise could end at loadings of zero, which is a saddle point.
        length = 1.0 / max(1.0, abs(scalar(direction[-1])))
        for _ in range(HALVINGS if slope < 0.0 else 0):
            trial = self.at(point.theta + length * direction)
            enough = trial.loss <= point.loss + DECREASE * length * slope
            nearer = trial.loss <= point.loss + rounding and trial.distance < point.distance
            if enough or nearer:
                return self._remembered(point, trial)
            length /= 2
        trial = self.at(_packed(*point.statistics.maximized()))
        return trial if trial.loss < point.loss else point

    def _direction(self, point: _Point) -> Array:
        """Return −Hg for the gradient g, where H approximates the inverse Hessian (L-BFGS)."""
        xp = namespace(point.theta)
        g, used = point.gradient, []
        for change, turn in reversed(point.pairs):
            scale = 1.0 / scalar(xp.sum(change * turn))
            alpha = scale * scalar(xp.sum(change * g))
            g = g - alpha * turn
            used.append((change, turn, scale, alpha))
        g = self._em_step(point, g)
        for change, turn, scale, alpha in reversed(used):
            g = g + (alpha - scale * scalar(xp.sum(turn * g))) * change
        return -g

    def _em_step(self, point: _Point, gradient: Array) -> Array:
        """Return the step of expectation maximisation (EM) at `point`, for the given gradient.

        It is the gradient divided by the complete-data information: the second derivatives that the
        likelihood would have if the latents were observed. If the noise variance is small, EM
        hardly changes the loadings W and the mean μ within the span of W. The step of
        parameter-expanded EM (Liu, Rubin & Wu 1998), which also estimates mean and covariance of
        the latents, is therefore added: W sym(WᵀG)/2 for the gradient G of W, where
        sym(A) = (A + Aᵀ)/2, and WWᵀg for the gradient g of μ.
        """
        xp, found = namespace(gradient), point.statistics
        beta, noise = _unpacked(point.theta, self.k)
        W, on_beta = beta[:, :-1], xp.reshape(gradient[:-1], (-1, self.k + 1))
        factor = noise * self.rows.weight
        moved = factor * found.divided(on_beta)
        inside = W.mT @ on_beta
        turned = (inside[:, :-1] + inside[:, :-1].mT) / 4
        moved = moved + W @ xp.concat([turned, inside[:, -1:]], axis=1)
        on_noise = gradient[-1:] * (2.0 * self.rows.weight / found.entries)
        return xp.concat([xp.reshape(moved, (-1,)), on_noise])

    def _remembered(self, point: _Point, trial: _Point) -> _Point:
        """Return the state `trial`, with the change from `point` to it stored for L-BFGS.

        The changes of parameters and gradient are appended to its field `pairs`.
        """
        xp = namespace(point.theta)
        change, turn = trial.theta - point.theta, trial.gradient - point.gradient
        sizes = (scalar(xp.sum(a * b)) for a, b in ((change, turn), (change, change), (turn, turn)))
        inner, first, second = sizes
        if not inner > 1e-12 * math.sqrt(first * second):
            return trial._replace(pairs=point.pairs)
        return trial._replace(pairs=(*point.pairs, (change, turn))[-MEMORY:])


class ObservedFit(NamedTuple):
    """Result of maximum likelihood from rows with missing entries."""

    gaussian: ObservedGaussian
    n_components: int  # what `n_components` means for these rows
    criterion: ComponentCount | None  # result of the criterion that `n_components` names
    # How the iteration ended: that for the number of latents, if it did not converge, or the last.
    ended: Solution[_Point]
    history: History  # of the last iteration

    def warn(self) -> None:
        """Warn if the solver did not converge, or if the likelihood has no maximum."""
        if not self.ended.status.ok:
            warn_user(self.ended.advice, ConvergenceWarning)
        elif not self.gaussian.bounded:
            warn_user(
                "The likelihood of the observed entries has no maximum: so many components explain "
                "these entries without noise. The noise variance was set to a tiny number; choose "
                "a smaller n_components to estimate it.",
                ConvergenceWarning,
            )


def fit_observed(
    X: Array,
    weights: Array | None,
    wanted: Any,
    training: DescentSettings,
    previous: ObservedGaussian | None = None,
) -> ObservedFit:
    """Return the maximum-likelihood parameters of rows X (n, m) with missing entries.

    `wanted` is the argument `n_components`. None stands for all components that differ from noise:
    at most n − 1, and fewer than features vary if some are constant. For a share of the variance
    and for a criterion, k is the smallest number for which the fit with k latents says that k
    components suffice.
    """
    rows = ObservedRows.of(X, weights)
    n, m = int(X.shape[0]), int(X.shape[1])
    # With as many latents as features vary, the noise variance would tend to zero.
    varying = int(np.sum(rows.varying))
    most = max(1, varying - 1)
    # The last component of features that all vary is the direction of the noise.
    every = m if varying == m else most
    path: dict[int, tuple[int, Solution[_Point]]] = {}
    counts: dict[int, ComponentCount] = {}
    if isinstance(wanted, int):
        check_features(wanted, m)
        k = wanted
    elif wanted is None:
        k = min(every, n - 1)
    else:
        # Find k by fits that start from each other, between the bounds known so far.
        limit, tol = min(training.max_iter, PATH_STEPS), max(training.tol, PATH_TOLERANCE)
        rough = replace(training, max_iter=limit, tol=tol)
        low, high, k = 1, most, 1
        if not is_criterion(wanted):
            # Of many features, as many eigenvalues as are quickly found.
            values, _, trace = _start_eigenpairs(rows, most if m <= PAIRWISE_FEATURES else 50)
            k = min(most, _reaching(wanted, to_numpy(values), trace))
        while k not in path:
            solution = _maximized(rows, k, rough, previous)
            beta, noise = _unpacked(solution.value.theta, k)
            previous = gaussian(beta, noise, rows)
            if is_criterion(wanted):
                counts[k] = _count(wanted, rows, beta, noise)
                needed = max(1, counts[k].n_components)
            else:
                spectrum = previous.spectrum(m)
                needed = _reaching(wanted, to_numpy(spectrum.values), spectrum.trace)
            needed = needed if previous.bounded else min(needed, k)
            path[k] = min(needed, every), solution
            low, high = (k + 1, high) if needed > k else (low, k)
            k = min(max(needed, low), high)
        k = max(k, path[k][0])
    final = _maximized(rows, min(k, most), training, previous)
    found = gaussian(*_unpacked(final.value.theta, min(k, most)), rows)
    failed = [solution for _, solution in path.values() if not solution.status.ok]
    ended = failed[0] if failed and final.status.ok else final
    return ObservedFit(found, k, counts.get(min(k, most)), ended, final.history)


def _reaching(share: float, values: Vector, trace: float) -> int:
    """Return how many of the largest eigenvalues have this share of the trace."""
    shares = np.cumsum(np.maximum(values, 0.0)) / trace
    return int(np.searchsorted(shares, share * (1 - 1e-12))) + 1


def _count(wanted: Any, rows: ObservedRows, beta: Array, noise: float) -> ComponentCount:
    """Return what a criterion finds by the eigenvalues of `ObservedRows.scored_covariance`.

    The number of rows is that of complete rows with the same sampling error, `ObservedRows.pairs`.
    """
    covariance = rows.scored_covariance(beta, noise)
    values, _ = eigh_descending(covariance)
    m = values.shape[0]
    size = min(m, max(1, int(rows.pairs) - 1))
    # Of fewer rows than features, only so many eigenvalues are positive. The estimate need not be
    # positive definite, but the noise is: zero would stand for data without noise.
    spread = np.maximum(to_numpy(values)[:size], 1e-3 * noise) * rows.unit**2
    return count_wanted(wanted, spread, rows.pairs, np.diag(to_numpy(covariance)))


def _maximized(
    rows: ObservedRows, k: int, training: DescentSettings, previous: ObservedGaussian | None
) -> Solution[_Point]:
    """Maximise the likelihood of the rows with k latents, from an earlier fit if there is one."""
    problem = _ObservedLikelihood(rows, k)
    return iterate(
        problem.step,
        problem.at(_packed(*first_parameters(rows, k, previous))),
        stop=Below(lambda point: point.distance, training.tol, patience=PATIENCE),
        limit=training.max_iter,
        record={"loss": lambda point: point.loss + _scale_term(rows)},
        record_at=log_grid(training.max_iter),
        callbacks=progress_bars(f"training {k} components", training.verbose),
        size=rows.mask.shape[1],
    )


def _scale_term(rows: ObservedRows) -> float:
    """Return the increase of the log-likelihood per row if the data are divided by `rows.unit`."""
    return rows.entries * math.log(rows.unit) / rows.weight


def gaussian(beta: Array, noise: float, rows: ObservedRows) -> ObservedGaussian:
    """Return the Gaussian model of the original data, from parameters of the scaled data.

    For m features and k latents, `beta` (m, k + 1) contains the loadings and, as its last column,
    the mean of the scaled data; `noise` is their noise variance.
    """
    k, unit = beta.shape[1] - 1, rows.unit
    left, lengths, _ = svd_thin(beta[:, :k])
    mean = rows.center + unit * beta[:, k]
    bounded = noise > 10 * SMALLEST_NOISE
    return ObservedGaussian(mean, unit * left * lengths, unit**2 * noise, rows.weight, bounded)


def first_parameters(
    rows: ObservedRows, k: int, previous: ObservedGaussian | None = None
) -> tuple[Array, float]:
    """Return the parameters from which the solver starts: loadings with mean, and noise variance.

    They come from an earlier fit (`previous`), if it is given; its loadings are extended or
    truncated to k columns. Otherwise they come from the leading eigenpairs of a covariance matrix,
    each entry of which is estimated from the rows in which both features are observed.
    """
    xp = namespace(rows.rows)
    values, vectors, trace = _start_eigenpairs(rows, k)
    m = vectors.shape[0]
    noise = max((trace - scalar(xp.sum(values))) / (m - k), 0.01 * trace / m)
    lengths = values - noise
    W = vectors * xp.sqrt(where_set(lengths, lengths < noise / 4, noise / 4))
    mean = 0.0 * rows.center
    if previous is not None:
        W, mean, noise = _continued(rows, W, previous)
    return xp.concat([W, mean[:, None]], axis=1), noise


def _start_eigenpairs(rows: ObservedRows, k: int) -> tuple[Array, Array, float]:
    """Return k eigenvalues and eigenvectors of an estimated covariance, and its trace.

    With more than `PAIRWISE_FEATURES` features, missing entries count as zero, and each feature is
    rescaled by the share of its observed entries instead.
    """
    xp, m = namespace(rows.rows), rows.mask.shape[1]
    together = (rows.counts[:, None] * rows.mask).mT
    own = xp.sum(together, axis=1)
    variances = xp.sum(rows.rows * rows.rows, axis=0) / own
    trace = scalar(xp.sum(variances))
    if m <= PAIRWISE_FEATURES:
        number = together @ rows.mask
        products = rows.rows.mT @ rows.rows
        values, vectors = eigh_descending(products / where_set(number, number <= 0.0, 1.0))
        return values[:k], vectors[:, :k], trace
    # A feature that is observed in a share p of the rows is divided by √p, which makes the
    # diagonal unbiased.
    scaled = rows.rows / xp.sqrt(own)
    pairs = krylov_eigenpairs(lambda block: (block @ scaled.mT) @ scaled, k, own)
    assert pairs is not None, "without a limit of passes, the iteration goes on until it converges"
    return *pairs, trace


def _continued(
    rows: ObservedRows, W: Array, previous: ObservedGaussian
) -> tuple[Array, Array, float]:
    """Return loadings (m, k), mean and noise variance of an earlier fit, for the scaled `rows`.

    If it has fewer than k latents, columns of `W` (m, k), made orthogonal to its loadings, are
    added.
    """
    xp, (m, k) = namespace(W), W.shape
    every = like(previous.loadings, W) / rows.unit
    kept = min(k, every.shape[1])
    known, dropped = every[:, :kept], every[:, kept:]
    lost = scalar(xp.sum(dropped * dropped)) / (m - k)  # becomes noise
    noise = max(previous.noise / rows.unit**2 + lost, 100 * SMALLEST_NOISE)
    extra = k - kept
    if extra > 0:
        basis, _ = xp.linalg.qr(known)
        left, _, _ = svd_thin(W - basis @ (basis.mT @ W))
        known = xp.concat([known, math.sqrt(noise) * left[:, :extra]], axis=1)
    return known, (like(previous.mean, W) - rows.center) / rows.unit, noise


def _chosen(X: Array, weights: Array, mask: Vector) -> tuple[Array, Array]:
    """Return the rows of X (n, m), and their weights, where the NumPy array `mask` is true."""
    xp = namespace(X)
    index = xp.asarray(np.flatnonzero(mask), device=device(X))
    return xp.take(X, index, axis=0), xp.take(weights, index)
