"""Noise with a covariance γR: checks of R, and rows that are whitened before anything is fitted.

With T (r, d) and TRTᴴ = I the model Φu + b1 + e becomes TΦu + bT1 + Te, whose noise is white; the
intercept is the coefficient of T1 (generalised least squares). What lies outside the range of R is
not used: there R says that there is no noise, as after an average reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from lucidae.arrays import apparent_epsilon, is_array, to_numpy
from lucidae.sparsity.problem import Rows, distinct_rows, refuse_extremes
from lucidae.validation import has_complex

ASYMMETRIC = 1e-8
"""Largest relative difference or negative eigenvalue that counts as rounding; float32 has more."""

RANK_MARGIN = 10.0
"""Factor between the expected rounding errors of eigenvalues and those that count as positive."""

TIE = 1e-4
"""Largest relative difference of rows that counts as a tie when axes are aligned with rows."""

UNIDENTIFIED = 1e-7
"""Relative norm of the whitened ones below which the intercept is outside the range of R."""


@dataclass(frozen=True, eq=False)
class NoiseCovariance:
    """A checked noise covariance R of d rows, and its whitener."""

    values: Any  # (d, d): the covariance R, or its diagonal if R is diagonal

    @classmethod
    def of(cls, noise_cov: Any, n_rows: int) -> NoiseCovariance:
        """Return `noise_cov` as a `NoiseCovariance`; raise an error if it is invalid."""
        if scipy.sparse.issparse(noise_cov):
            noise_cov = noise_cov.toarray()
        try:
            given = np.asarray(to_numpy(noise_cov) if is_array(noise_cov) else noise_cov)
        except ValueError as error:
            raise ValueError(
                "noise_cov is not an array of numbers: its rows have different lengths. Give the "
                "covariance matrix of the noise, or one variance for each row."
            ) from error
        if given.dtype.kind not in "biufc":
            raise ValueError(
                f"noise_cov has dtype {given.dtype}, expected numbers: the covariance matrix of "
                "the noise, or one variance for each row."
            )
        if given.shape not in ((n_rows,), (n_rows, n_rows)):
            _refuse_shape(given.shape, n_rows)
        given = given.astype(np.complex128 if given.dtype.kind == "c" else np.float64)
        if np.iscomplexobj(given) and not given.imag.any():
            given = given.real.copy()
        if not np.isfinite(given).all():
            raise ValueError(
                "noise_cov contains NaN or infinity. Give finite variances and covariances."
            )
        if given.ndim == 1:
            _check_variances(given)
            return cls(given.real)
        single = apparent_epsilon(given) > np.finfo(float).eps
        _check_matrix(given, ASYMMETRIC * (1e4 if single else 1.0))
        return cls(given)

    @classmethod
    def of_data(cls, noise_cov: Any, X: Any, y: Any) -> NoiseCovariance | None:
        """Return the checked noise covariance of the rows of X and y; None if it is None."""
        if noise_cov is None:
            return None
        found = cls.of(noise_cov, X.shape[0])
        return found if has_complex(X) or has_complex(y) else found.of_real_data()

    def of_real_data(self) -> NoiseCovariance:
        """Return the covariance as a real matrix; raise an error if it is not real."""
        if not np.iscomplexobj(self.values):
            return self
        if self.values.imag.any():
            raise ValueError(
                "noise_cov is complex, but X and y are real, and the noise of real data has a real "
                "covariance. Give noise_cov.real, or the complex data that it belongs to."
            )
        return NoiseCovariance(self.values.real.copy())

    @property
    def is_diagonal(self) -> bool:
        """Whether only the variances of the rows were given."""
        return bool(self.values.ndim == 1)

    @cached_property
    def variances(self) -> Any:
        """Given noise variance of each row, before the multiplication by `noise_variance_`."""
        return self.values if self.is_diagonal else np.diagonal(self.values).real.copy()

    @cached_property
    def rounding(self) -> float:
        """Eigenvalue of the correlation matrix, relative to the largest, that counts as zero.

        It follows from the precision of the given numbers, which may be float32 stored as float64.
        """
        return RANK_MARGIN * len(self.values) * apparent_epsilon(self.values)

    @cached_property
    def rank(self) -> int:
        """Rank of the noise covariance R."""
        return int((self.variances > 0).sum()) if self.is_diagonal else len(self.matrix)

    @cached_property
    def matrix(self) -> Any:
        """The whitener T of shape (r, d) for a rank r, with TRTᴴ = I.

        At full rank it is K^(−½)D^(−½) for the correlation matrix K, so that each whitened row
        belongs to one row of the data.
        """
        if self.is_diagonal:
            kept = np.flatnonzero(self.variances > 0)
            whitener = np.zeros((kept.size, self.variances.size))
            whitener[np.arange(kept.size), kept] = 1.0 / np.sqrt(self.variances[kept])
            return whitener
        correlation, scales = _correlation(self.values)
        values, vectors = np.linalg.eigh(correlation)
        # Rounding makes zero eigenvalues positive or negative, by about the same amounts.
        floor = max(self.rounding * values[-1], -RANK_MARGIN * values[0])
        rank = int((values > floor).sum())
        if rank == values.size:  # scaled rows: the units of the rows do not cost digits
            return (vectors / np.sqrt(values)) @ vectors.conj().T / scales
        # Otherwise T is VᴴR^(−½) up to a rotation, with the eigenvectors V of the r positive
        # eigenvalues; only what is orthogonal to the range in the units of the data is dropped.
        values, vectors = np.linalg.eigh(self.values)
        values, vectors = values[-rank:], vectors[:, -rank:]
        return rotation_to_rows(vectors) @ (vectors / np.sqrt(values)).conj().T

    def apply(self, values: Any) -> Any:
        """Return the whitener T times `values`, of shape (r, m) for the rank r."""
        if not self.is_diagonal:
            return self.matrix @ values
        kept = self.variances > 0
        return values[kept] / np.sqrt(self.variances[kept])[:, None]

    def log_determinant(self, weights: Any = None) -> float:
        """Return the sum of the logarithms of the positive eigenvalues of R."""
        if self.is_diagonal:
            kept = self.variances > 0
            counts = 1.0 if weights is None else weights[kept]
            return float((counts * np.log(self.variances[kept])).sum())
        return float(-2.0 * np.log(np.linalg.svd(self.matrix, compute_uv=False)).sum())


def rotation_to_rows(vectors: Any, importance: Any = None) -> Any:
    """Return the rotation U that aligns r orthonormal axes with r of the d rows, of shape (r, r).

    Pivoting selects r rows J of the axes V (d, r). With V_J = PSQᴴ and U = PQᴴ, VUᴴ is positive
    semi-definite on J, so that each rotated axis belongs to one row. Of equally good rows those
    with the larger `importance` are selected; otherwise rounding errors would decide.
    """
    rank = vectors.shape[1]
    scales = np.ones(len(vectors))
    if importance is not None:
        scales[np.argsort(importance)] += TIE * np.linspace(0.0, 1.0, scales.size)
    pivots = scipy.linalg.qr((scales[:, None] * vectors).conj().T, mode="r", pivoting=True)[1]
    chosen = np.sort(pivots[:rank])
    left, _, right = np.linalg.svd(vectors[chosen])
    return left @ right


def _refuse_shape(shape: tuple[int, ...], n_rows: int) -> None:
    """Raise an error that names the shape of `noise_cov` and those that suit `n_rows` rows."""
    message = (
        f"noise_cov has shape {shape}, expected ({n_rows}, {n_rows}), the covariance of the "
        f"noise of the {n_rows} rows of X, or ({n_rows},), their variances."
    )
    if len(shape) == 2 and shape[0] == n_rows and shape[1] > n_rows:
        message += (
            " It looks as if rows had been selected by GridSearchCV, cross_val_score or another "
            "function that splits rows; a covariance matrix cannot be split with them. Whiten X "
            "and y before and give no noise_cov, give one variance for each row, or choose the "
            "noise variance with noise_variance='cv', which divides the whitened rows."
        )
    raise ValueError(message)


def _check_variances(variances: Any) -> None:
    """Raise an error unless variances are real and not negative, and at least one is positive."""
    if np.iscomplexobj(variances) and variances.imag.any():
        raise ValueError("noise_cov contains complex variances. Give real numbers.")
    smallest = float(variances.real.min())
    if smallest < 0:
        raise ValueError(
            f"noise_cov contains the negative variance {smallest:.3g}. Give variances that are "
            "zero or positive."
        )
    if not variances.any():
        raise ValueError(
            "noise_cov is zero, which leaves no row to fit. Give at least one positive variance."
        )


def _check_matrix(matrix: Any, tolerance: float) -> None:
    """Raise an error unless a matrix is Hermitian, positive semi-definite and not zero."""
    diagonal = np.diagonal(matrix)
    if (diagonal.real < 0).any():
        raise ValueError(
            f"noise_cov is not positive semi-definite: its diagonal contains "
            f"{float(diagonal.real.min()):.3g}. Give a covariance matrix, whose diagonal are "
            "variances."
        )
    if not matrix.any():
        raise ValueError(
            "noise_cov is zero, which leaves no row to fit. Give a covariance of positive rank."
        )
    correlation, _ = _correlation(matrix, symmetric=False)
    difference = float(np.abs(correlation - correlation.conj().T).max())
    if difference > tolerance:
        raise ValueError(
            f"noise_cov is not symmetric (Hermitian if it is complex): two entries that should be "
            f"equal differ by {difference:.3g} times the standard deviations of their rows. Give "
            "a covariance matrix, such as (noise_cov + noise_cov.conj().T) / 2."
        )
    values = np.linalg.eigvalsh(_correlation(matrix)[0])
    if values[0] < -tolerance * values[-1]:
        raise ValueError(
            f"noise_cov is not positive semi-definite: the smallest eigenvalue of its correlation "
            f"matrix is {values[0]:.3g}. Give a covariance matrix."
        )


def _correlation(matrix: Any, symmetric: bool = True) -> tuple[Any, Any]:
    """Return D^(−½) A D^(−½) for a matrix A with the diagonal D, and the roots of D."""
    diagonal = np.diagonal(matrix).real
    peak = float(diagonal.max()) or 1.0
    scales = np.sqrt(np.where(diagonal > 0, diagonal, peak))
    scaled = matrix / scales / scales[:, None]
    return ((scaled + scaled.conj().T) / 2.0 if symmetric else scaled), scales


def whitened_rows(rows: Rows, noise: NoiseCovariance) -> Rows:
    """Return the rows of data after whitening by the covariance of their noise.

    They are centred before, so that no digits are lost if means are far from zero.
    """
    dictionary, responses = rows.centred()
    weights = rows.frequencies
    if weights is not None and not noise.is_diagonal:
        raise ValueError(
            "sample_weight and a noise_cov matrix were given; weights are frequencies of rows, and "
            "the covariance of repeated rows is not known. Give noise_cov as one variance for "
            "each row, or repeat the rows in X, y and noise_cov."
        )
    log_volume = noise.log_determinant(weights)
    ones = noise.apply(np.ones((rows.count, 1)))
    if noise.is_diagonal:
        kept = noise.variances > 0
        weights = None if weights is None else weights[kept]
        peak, unidentified = float(noise.variances[kept].min()) ** -0.5, UNIDENTIFIED
    else:
        peak = float(np.linalg.norm(noise.matrix, 2))
        unidentified = max(UNIDENTIFIED, noise.rounding)
    # Ones outside the range of R do not determine the intercept.
    identified = np.linalg.norm(ones) > unidentified * peak * len(ones) ** 0.5
    intercept = rows.intercept and bool(identified)
    if intercept:
        # The likelihood of what is orthogonal to the intercept: log|R| + log 1ᵀR⁻¹1 − log 1ᵀ1.
        counts = np.ones(len(ones)) if weights is None else weights
        power = float(counts @ np.abs(ones[:, 0]) ** 2)
        log_volume += float(np.log(power) - np.log(rows.total_weight))
    whitened = noise.apply(dictionary), noise.apply(responses)
    for values, name in zip(whitened, ("X", "y"), strict=True):
        refuse_extremes(values, f"{name} divided by the square root of noise_cov")
    return Rows(*whitened, weights, intercept, ones * intercept, rows.offsets, log_volume)


def prepared_rows(given: Rows, cov: NoiseCovariance | None) -> tuple[Rows, Rows]:
    """Return the distinct rows to fit with their weights, and the rows for folds."""
    split = given if cov is None else whitened_rows(given, cov)
    return distinct_rows(split), split
