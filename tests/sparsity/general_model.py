"""What is true about sparse fits with any option, by dense formulas in the plainest form.

Nothing of `lucidae` is used here. A response is Φu + e, where the coefficients u have the
covariance Γ (block-diagonal over groups), and the noise e has the covariance γR. Rows are first
projected on the range of R, and with an intercept on the vectors that are orthogonal to the column
of ones, so that the likelihood is that of all contrasts of rows. If the coefficients of the n
responses are correlated, with the covariance B, the responses are rotated to the eigenvectors of B.
"""

from dataclasses import dataclass

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

    def energy(self):
        Phi, noise, y, powers, _ = self.rotated()
        total = 0.0
        for power, response in zip(powers, y.T, strict=True):
            sigma = power * Phi @ self.prior @ Phi.conj().T + noise
            total += np.linalg.slogdet(sigma)[1]
            total += (response.conj() @ np.linalg.solve(sigma, response)).real
        return total

    def mean(self):
        """Return the posterior mean of the coefficients, of shape (κ, n)."""
        Phi, noise, y, powers, axes = self.rotated()
        found = [
            power * self.prior @ Phi.conj().T
            @ np.linalg.solve(power * Phi @ self.prior @ Phi.conj().T + noise, response)
            for power, response in zip(powers, y.T, strict=True)
        ]  # fmt: skip
        return np.array(found).T @ axes.conj().T

    def spread(self, new):
        """Return the posterior variance of the mean at new rows, already centred, for B = I."""
        Phi, noise, *_ = self.rotated()
        sigma = Phi @ self.prior @ Phi.conj().T + noise
        half = Phi @ self.prior
        covariance = self.prior - half.conj().T @ np.linalg.solve(sigma, half)
        return np.einsum("ij,jk,ik->i", new, covariance, new.conj()).real

    def products(self):
        """Return S = ΦᴴΣ⁻¹Φ and Q = ΦᴴΣ⁻¹yyᴴΣ⁻¹Φ, averaged over the rotated responses."""
        Phi, noise, y, powers, _ = self.rotated()
        S, Q = 0.0, 0.0
        for power, response in zip(powers, y.T, strict=True):
            sigma = power * Phi @ self.prior @ Phi.conj().T + noise
            inner = np.linalg.solve(sigma, Phi)
            loading = inner.conj().T @ response
            S = S + power * Phi.conj().T @ inner / len(powers)
            Q = Q + power * np.outer(loading, loading.conj()) / len(powers)
        return S, Q

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
                slack, grow = g[0, 0].real * abs(slope), slope / np.trace(s).real
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

    def noise_slopes(self):
        """Return the derivative of the energy in log γ, and in the logarithm of each variance."""
        Phi, noise, y, _, _ = self.rotated()
        inverse = np.linalg.inv(Phi @ self.prior @ Phi.conj().T + noise)
        residual = inverse @ y
        powers = (np.abs(residual) ** 2).mean(axis=1)
        if self.intercept or len(noise) < len(self.X):
            return None
        return np.diagonal(noise).real * (np.diagonal(inverse).real - powers)

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


def _block(matrix, index):
    """Return the rows and columns `index` of a matrix of mpmath."""
    return mpmath.matrix([[matrix[i, j] for j in index] for i in index])
