"""What is true about sparse fits with any option, by dense formulas in the plainest form.

Nothing of `lucidae` is used here. A response is Φu + e, where the coefficients u have the
covariance Γ (block-diagonal over groups), and the noise e has the covariance γR. Rows are first
projected on the range of R, and with an intercept on the vectors that are orthogonal to the column
of ones, so that the likelihood is that of all contrasts of rows. If the coefficients of the n
responses are correlated, with the covariance B, the responses are rotated to the eigenvectors of B.
"""

from dataclasses import dataclass, replace

import mpmath
import numpy as np
import scipy.stats

MIXTURE = (0.0249, 0.1048, 0.2251, 0.2904, 0.2251, 0.1048, 0.0249)
"""Weights of χ² with 0 to 6 degrees of freedom: the evidence of a group of three real columns."""


@dataclass
class Model:
    """One problem and the fitted numbers that are judged: Γ, γ, R and B."""

    X: np.ndarray
    y: np.ndarray
    prior: np.ndarray
    noise: float
    R: np.ndarray
    B: np.ndarray
    intercept: bool = False
    diagonal: bool = False

    @property
    def contrasts(self):
        """Return a matrix whose columns are an orthonormal basis of the rows that are used."""
        values, vectors = np.linalg.eigh(self.R)
        basis = vectors[:, values > 1e-10 * values[-1]]
        if not self.intercept:
            return basis
        ones = basis.conj().T @ np.ones(len(self.X))
        return basis @ np.linalg.svd(ones[:, None])[0][:, 1:]

    def rotated(self):
        """Return dictionary, noise covariance, rotated responses, and eigenvalues of B."""
        N = self.contrasts
        powers, axes = np.linalg.eigh(self.B)
        y = N.conj().T @ self.y @ axes
        return N.conj().T @ self.X, self.noise * N.conj().T @ self.R @ N, y, powers, axes

    def parts(self):
        """Yield Φ, γR, β and Y for all responses with the same eigenvalue β of B."""
        Phi, noise, y, powers, _ = self.rotated()
        if np.ptp(powers) < 1e-12 * powers[-1]:
            yield Phi, noise, powers[-1], y
            return
        for power, response in zip(powers, y.T, strict=True):
            yield Phi, noise, power, response[:, None]

    def energy(self):
        total = 0.0
        for Phi, noise, power, y in self.parts():
            sigma = power * Phi @ self.prior @ Phi.conj().T + noise
            volume = np.linalg.slogdet(sigma)[1]
            if self.diagonal:
                alone = np.diagonal(Phi.conj().T @ np.linalg.solve(noise, Phi)).real
                signals = np.diagonal(self.prior).real * alone
                volume = np.log1p(signals).sum() + np.linalg.slogdet(noise)[1]
            total += y.shape[1] * volume + (y.conj() * np.linalg.solve(sigma, y)).sum().real
        return total

    def mean(self):
        """Return the posterior mean of the coefficients, of shape (κ, n)."""
        found = [
            power * self.prior @ Phi.conj().T
            @ np.linalg.solve(power * Phi @ self.prior @ Phi.conj().T + noise, y)
            for Phi, noise, power, y in self.parts()
        ]  # fmt: skip
        return np.hstack(found) @ np.linalg.eigh(self.B)[1].conj().T

    def spread(self, new):
        """Return the posterior variance of the mean at new rows, already centred, for B = I."""
        Phi, noise, *_ = self.rotated()
        sigma = Phi @ self.prior @ Phi.conj().T + noise
        half = Phi @ self.prior
        covariance = self.prior - half.conj().T @ np.linalg.solve(sigma, half)
        return np.einsum("ij,jk,ik->i", new, covariance, new.conj()).real

    def products(self):
        """Return S = ΦᴴΣ⁻¹Φ and Q = ΦᴴΣ⁻¹yyᴴΣ⁻¹Φ, averaged over the rotated responses.

        For the diagonal posterior, S is the derivative of its volume, 1/(w + 1/(φᴴ(γR)⁻¹φ)).
        """
        S, Q, n = 0.0, 0.0, self.y.shape[1]
        for Phi, noise, power, y in self.parts():
            sigma = power * Phi @ self.prior @ Phi.conj().T + noise
            inner = np.linalg.solve(sigma, Phi)
            loading = inner.conj().T @ y
            S = S + power * y.shape[1] * Phi.conj().T @ inner / n
            Q = Q + power * loading @ loading.conj().T / n
            if self.diagonal:
                alone = np.diagonal(Phi.conj().T @ np.linalg.solve(noise, Phi)).real
                S = np.diag(alone / (1.0 + np.diagonal(self.prior).real * alone))
        return S, Q

    def majorized(self, groups, full):
        """Return the model after one majorise–minimise update of the prior.

        w √(Q/S) for relevances, and for covariances the solution of ΓSΓ = Γ'QΓ' with the old Γ'.
        """
        S, Q = self.products()
        prior = np.zeros_like(self.prior)
        for label in np.unique(groups):
            inside = np.ix_(groups == label, groups == label)
            s, q, g = S[inside], Q[inside], self.prior[inside]
            if full:
                root = _root(s)
                outer = np.linalg.pinv(root)
                prior[inside] = outer @ _root(root @ g @ q @ g @ root) @ outer
            elif np.trace(s).real > 0:
                prior[inside] = g * np.sqrt(np.trace(q).real / np.trace(s).real)
        return replace(self, prior=prior)

    def violation(self, groups, full):
        """Return the distance to the optimality conditions of relevances or covariances."""
        S, Q = self.products()
        worst = 0.0
        for label in np.unique(groups):
            inside = np.flatnonzero(groups == label)
            s, q, g = (part[np.ix_(inside, inside)] for part in (S, Q, self.prior))
            if full:
                values, vectors = np.linalg.eigh(g)
                root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.conj().T
                slack = np.abs(np.linalg.eigvalsh(root @ (q - s) @ root)).max()
                grow = self.growth(inside)
            else:
                slope = np.trace(q - s).real
                slack, total = g[0, 0].real * abs(slope), np.trace(s).real
                grow = slope / total if total > 0 else 0.0
            worst = max(worst, slack, grow)
        return worst

    def growth(self, inside):
        """Return the largest relative growth of the power in a direction that a group can take."""
        Phi, noise, y, *_ = self.rotated()
        root = np.linalg.cholesky(Phi @ self.prior @ Phi.conj().T + noise)
        columns, responses = np.linalg.solve(root, Phi[:, inside]), np.linalg.solve(root, y)
        lengths = np.linalg.norm(columns, axis=0)
        if not lengths.any():
            return -1.0
        left, sizes, _ = np.linalg.svd(columns[:, lengths > 0] / lengths[lengths > 0])
        left = left[:, : sizes.size][:, sizes > 1e-12 * sizes[0]]
        return np.linalg.norm(left.conj().T @ responses, ord=2) ** 2 / y.shape[1] - 1.0

    def precise(self, groups, full, digits=60):
        """Return energy, violation and posterior mean; for full groups, S must be invertible."""
        Phi, noise, y, powers, axes = self.rotated()
        means = []
        with mpmath.workdps(digits):
            columns, prior = mpmath.matrix(Phi.tolist()), mpmath.matrix(self.prior.tolist())
            level, energy = mpmath.matrix(noise.tolist()), mpmath.mpf(0)
            S = mpmath.zeros(len(self.prior))
            Q = mpmath.zeros(len(self.prior))
            for power, response in zip(powers.tolist(), y.T.tolist(), strict=True):
                sigma = power * columns * prior * columns.H + level
                inverse, x = sigma**-1, mpmath.matrix(response)
                inner = inverse * columns
                loading = inner.H * x
                energy += mpmath.re(mpmath.log(mpmath.det(sigma)) + (x.H * inverse * x)[0])
                means.append([complex(value) for value in power * prior * loading])
                S += power * columns.H * inner / len(powers)
                Q += power * loading * loading.H / len(powers)
            worst = mpmath.mpf(0)
            for label in np.unique(groups):
                inside = [int(index) for index in np.flatnonzero(groups == label)]
                s, q, g = (_block(part, inside) for part in (S, Q, prior))
                if full:  # the eigenvalues of Γ^½(Q − S)Γ^½ are those of (Q − S)Γ
                    slack = max(abs(value) for value in mpmath.eig((q - s) * g, right=False))
                    ratios = mpmath.eig(s**-1 * q, right=False)
                    grow = max(mpmath.re(value) for value in ratios) - 1
                else:
                    slope = sum(mpmath.re(q[j, j] - s[j, j]) for j in range(len(inside)))
                    slack = mpmath.re(g[0, 0]) * abs(slope)
                    grow = slope / sum(mpmath.re(s[j, j]) for j in range(len(inside)))
                worst = max(worst, slack, grow)
            return float(energy), float(worst), np.array(means).T @ axes.conj().T

    def evidence(self, inside):
        """Return twice the log-likelihood that is lost without some columns, for real data."""
        prior = self.prior.copy()
        prior[inside], prior[:, inside] = 0.0, 0.0
        without = Model(self.X, self.y, prior, self.noise, self.R, self.B, self.intercept)
        parts = 2.0 if np.iscomplexobj(self.X) or np.iscomplexobj(self.y) else 1.0
        return parts * (without.energy() - self.energy())

    def support(self, groups, full, level=0.05):
        """Return the columns of the groups whose evidence is significant."""
        labels, found = np.unique(groups), []
        for label in labels:
            inside = np.flatnonzero(groups == label)
            if not self.prior[np.ix_(inside, inside)].any():
                continue
            evidence = self.evidence(inside)
            if full:
                tail = sum(w * scipy.stats.chi2.sf(evidence, k) for k, w in enumerate(MIXTURE) if k)
            else:
                tail = scipy.stats.chi2.sf(evidence, 1)
            if tail < level / labels.size:
                found.extend(inside)
        return np.array(sorted(found), dtype=int)


def described(fit, X, y, sample_weight=None, noise_cov=None):
    """Return the model of a fitted estimator, its group labels, and whether these have covariances.

    Rows are repeated by their weights.
    """
    X, y = (np.asarray(part) for part in (X, y))
    y = y[:, None] if y.ndim == 1 else y
    groups, full = fit.groups, fit.group_covariance == "full"
    labels = np.asarray(groups) if np.ndim(groups) else np.arange(X.shape[1]) // (groups or 1)
    prior = np.diag(np.asarray(fit.relevance_, float)).astype(np.result_type(X, y))
    for number, label in enumerate(np.unique(labels) if full else ()):
        inside = labels == label
        size = np.count_nonzero(inside)
        prior[np.ix_(inside, inside)] = fit.group_covariances_[number][:size, :size]
    R = np.ones(len(X)) if noise_cov is None else np.asarray(noise_cov)
    index = np.repeat(np.arange(len(X)), 1 if sample_weight is None else sample_weight)
    R = np.diag(R[index]) if R.ndim == 1 else R
    B = getattr(fit, "response_covariance_", np.eye(y.shape[1]))
    diagonal = fit.posterior == "diagonal"
    model = Model(X[index], y[index], prior, fit.noise_variance_, R, B, fit.fit_intercept, diagonal)
    return model, labels, full


def _root(matrix):
    """Return the Hermitian square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.conj().T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.conj().T


def _block(matrix, index):
    """Return the rows and columns `index` of a matrix of mpmath."""
    return mpmath.matrix([[matrix[i, j] for j in index] for i in index])
