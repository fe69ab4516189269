"""Products of the columns of groups with the inverse covariance of a response, by few columns.

Let Φ_g be the columns of a group, Γ_g = TTᵀ the prior covariance of its coefficients, γ the noise
variance and Σ = Σ_g Φ_gΓ_gΦ_gᵀ + γI the covariance of a response. Let A contain the r columns Φ_gT
of all groups whose covariance is not zero, and I + AᵀA/γ = LLᵀ/γ. By Woodbury's identity
γΣ⁻¹ = I − A(LLᵀ)⁻¹Aᵀ, so that products with Σ⁻¹ follow from ΦᵀA and from products that do not
depend on the covariances. The products ΦᵀΦ_g are kept for every group that was ever active. If r is
small compared to the number of rows, this takes less time than a factorisation of Σ.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from lucidae.arrays import adjoint, scalar, solve_lower, to_numpy
from lucidae.sparsity.group_blocks import Blocks, Matrices, group_blocks
from lucidae.sparsity.group_screening import GroupProducts
from lucidae.sparsity.groups import Groups
from lucidae.sparsity.problem import Problem
from lucidae.sparsity.state import State

LOUD = 1e-3
"""Noise variance, in normalised units, from which on products are computed by Woodbury's identity.

The difference I − A(LLᵀ)⁻¹Aᵀ may be of the order of the noise variance, and its rounding errors are
of the order of those of I."""

FEW_ENTRIES = 2_000_000
"""Largest number of entries of a dictionary whose products with active columns are kept."""

CROWDED = 0.5
"""Number of active columns per row from which on a factorisation of Σ takes less time."""


class ActiveColumns(NamedTuple):
    """Products with the active columns A and the factor L of γI + AᵀA, see the module's text.

    Parameters
    ----------
    whitened : ndarray of shape (r, κ)
        L⁻¹AᵀΦ for the κ columns Φ.
    targets : ndarray of shape (r, p)
        L⁻¹AᵀY for the responses Y.
    fit, log_determinant : float
        tr(YYᵀΣ⁻¹) and log|Σ| for the covariance Σ of a response.
    """

    whitened: Matrices
    targets: Matrices
    fit: float
    log_determinant: float


class ColumnProducts:
    """Products of the columns of groups with each other, which are computed when they are needed.

    Parameters
    ----------
    problem : Problem
        One normalised problem with a dense dictionary, in NumPy. Its noise variance is not used.
    groups : Groups
        The groups of columns.
    """

    def __init__(self, problem: Problem, groups: Groups) -> None:
        self.groups = groups
        self.columns, self.responses = to_numpy(problem.dictionary), to_numpy(problem.responses)
        self.loading = adjoint(adjoint(self.responses) @ self.columns)
        self.power = float(np.linalg.norm(self.responses) ** 2)
        self.own: list[Matrices] = []
        for _, members in groups.by_size():
            part = np.moveaxis(self.columns[:, members], 0, 1)
            self.own.append(adjoint(part) @ part)
        size, width = groups.members.shape[1], self.columns.shape[1]
        self.kept = np.zeros((0, size, width), dtype=self.columns.dtype)
        self.places = np.full(groups.count, -1)

    @classmethod
    def suited(cls, problem: Problem, groups: Groups) -> ColumnProducts | None:
        """Return the products of a problem, or None if the usual way is faster or more accurate."""
        small = problem.rows * problem.columns <= FEW_ENTRIES
        if not isinstance(problem.dictionary, np.ndarray) or not small:
            return None
        return cls(problem, groups)

    def at(self, problem: Problem, numbers: Matrices, roots: Matrices) -> ActiveColumns | None:
        """Return products with the active columns; None if the usual way is to be taken.

        The groups `numbers`, of shape (a,), have covariances with the roots T in `roots`, of shape
        (a, m, m), padded with zeros. The noise variance is that of `problem`.
        """
        noise, rows = scalar(problem.noise), len(self.columns)
        used = roots.any(axis=1)
        rank = int(np.count_nonzero(used))
        if noise < LOUD or rank > CROWDED * rows:
            return None
        shared = self._of_groups(numbers)
        members = self.groups.members[numbers]
        count = members.size
        place = np.arange(count).reshape(members.shape)
        spread = np.zeros((count, count), dtype=roots.dtype)
        spread[place[:, :, None], place[:, None, :]] = roots
        spread = adjoint(spread[:, used.ravel()])
        inner = spread @ shared[:, members.ravel()] @ adjoint(spread)
        inner[np.diag_indices(rank)] += noise
        lower = np.linalg.cholesky(inner)
        spread = solve_lower(lower, spread)
        whitened, targets = spread @ shared, spread @ self.loading[members.ravel()]
        fit = (self.power - float(np.linalg.norm(targets) ** 2)) / noise
        volume = 2.0 * float(np.log(np.diagonal(lower).real).sum())
        return ActiveColumns(whitened, targets, fit, volume + (rows - rank) * np.log(noise))

    def _of_groups(self, numbers: Matrices) -> Matrices:
        """Return the products of the columns of some groups with all columns.

        Each row belongs to a column of `members` of these groups; those of padding are zero.
        """
        new = numbers[self.places[numbers] < 0]
        if new.size:
            members, present = self.groups.members[new], self.groups.present[new]
            chosen = self.columns[:, members.ravel()] * present.ravel()
            found = (adjoint(chosen) @ self.columns).reshape(*members.shape, -1)
            self.places[new] = len(self.kept) + np.arange(new.size)
            self.kept = np.concatenate([self.kept, found])
        kept = self.kept[self.places[numbers]]
        return np.asarray(kept.reshape(-1, kept.shape[2]))

    def blocks(self, state: State, active: ActiveColumns) -> list[Blocks]:
        """Return the matrices S and Q (see `Blocks`) of all groups, for each size of groups.

        `active` are the products with the active columns of `state`.
        """
        noise = scalar(state.noise)
        loading = adjoint(self.loading) - adjoint(active.targets) @ active.whitened
        loading /= noise
        whole = State(*state)._replace(whitened=active.whitened, loading=adjoint(loading))
        return [
            block._replace(metric=(own - block.metric) / noise)
            for own, block in zip(self.own, group_blocks(whole, self.groups), strict=True)
        ]

    def gram(self, index: Matrices, noise: float, active: ActiveColumns) -> Matrices:
        """Return [ΦᵀΣ⁻¹Φ | ΦᵀΣ⁻¹Y] for the columns `index` and the responses Y."""
        columns, whitened = self.columns[:, index], active.whitened[:, index]
        both = adjoint(whitened) @ np.hstack([whitened, active.targets])
        plain = np.hstack([adjoint(columns) @ columns, self.loading[index]])
        return np.asarray((plain - both) / noise)


Products: TypeAlias = ColumnProducts | GroupProducts


def products_of(problem: Problem, groups: Groups) -> Products | None:
    """Return the products by which the groups of a problem are evaluated from the active ones.

    Those of small dictionaries also replace the factorisation of the covariance of a response. None
    if the usual way is faster.
    """
    return ColumnProducts.suited(problem, groups) or GroupProducts.of(problem, groups)
