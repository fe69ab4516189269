"""The result of `lucidae.nn.collapse_report`: a table of the latents of a VAE, with advice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lucidae.cards import card, table
from lucidae.nn.hadamard import HadamardGap

__all__ = ["CollapseReport"]

_WORDS = {True: "justified", False: "not justified", None: "not known"}
_HEADER = ("latent", "KL", "variance", "spread", "active", "collapse")


@dataclass(frozen=True, slots=True, eq=False)
class CollapseReport:
    """Which latents of a VAE are used, and whether the collapse of the others is optimal.

    A latent collapses if its posterior becomes equal to its prior. The report is the result of
    `lucidae.nn.collapse_report`.

    Parameters
    ----------
    kl : ndarray of shape (k,)
        Mean KL divergence of each latent's marginal posterior to N(0, 1), in nats.
    variance : ndarray of shape (k,)
        Mean posterior variance of each latent.
    spread : ndarray of shape (k,)
        Variance over samples of the posterior mean of each latent.
    active : ndarray of bool, shape (k,)
        Which latents carry information about the data.
    n_active : int
        Number of active latents.
    n_directions : int
        Number of active directions in the space of the latents, see `active_directions`; it does
        not depend on a rotation of the latents.
    total_kl : float
        Mean KL divergence of the joint posterior to N(0, I), in nats; larger than the sum of `kl`
        if latents are correlated.
    n_samples : int
        Number of samples.
    gains : ndarray of shape (k,) or None
        For a linear decoder, the largest ratio vᵀC⁻¹ΣC⁻¹v / vᵀC⁻¹v over the decoder columns v that
        each latent could use, with the covariance C of the model and Σ of the data. Above 1 the
        likelihood would increase, so that the collapse of the latent is not justified. None if the
        decoder is not linear or γ is not known.
    linear_active : int or None
        Number of latents that the best linear VAE with k latents and the same noise variance γ
        would use: the number of eigenvalues of the data covariance above γ, at most k. None if γ is
        not known or there are too many features.
    noise_variance : float or None
        Noise variance γ of the decoder; None if the model has none.
    max_variance, min_spread, tolerance : float
        The settings of `collapse_report` with which the report was made.
    linear_latents : int or None, default=None
        As `linear_active`, but not limited by the number k of latents of the model; None if
        unknown.
    noise_estimated : bool, default=False
        Whether `noise_variance` is the mean squared error of the reconstructions, because the
        model does not state its noise variance.
    gap : HadamardGap, optional
        What a full posterior covariance would gain with this decoder, in nats; None if it was not
        computed.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.nn import CollapseReport
    >>> report = CollapseReport(
    ...     kl=np.array([2.0, 0.0]), variance=np.array([0.1, 1.0]), spread=np.array([0.9, 0.0]),
    ...     active=np.array([True, False]), n_active=1, n_directions=1, total_kl=2.0,
    ...     n_samples=100, gains=np.array([0.5, 0.5]), linear_active=1, noise_variance=0.1,
    ...     max_variance=0.9, min_spread=0.01, tolerance=0.05)
    >>> report.justified
    (None, True)
    >>> print(report)
    1 of 2 latents active (1 direction), total KL 2.00 nats over 100 samples, γ = 0.1
    latent    KL  variance  spread  active  collapse
         0  2.00      0.10    0.90  yes
         1  0.00      1.00    0.00  no      justified
    Active: mean posterior variance < 0.9 and variance of the mean > 0.01.
    The best linear VAE of this noise variance would use 1 latent.
    How many latents? 1: as many as the data need, according to both models.
    """

    kl: np.ndarray[Any, Any]
    variance: np.ndarray[Any, Any]
    spread: np.ndarray[Any, Any]
    active: np.ndarray[Any, Any]
    n_active: int
    n_directions: int
    total_kl: float
    n_samples: int
    gains: np.ndarray[Any, Any] | None
    linear_active: int | None
    noise_variance: float | None
    max_variance: float
    min_spread: float
    tolerance: float
    linear_latents: int | None = None
    noise_estimated: bool = False
    gap: HadamardGap | None = None

    @property
    def justified(self) -> tuple[bool | None, ...]:
        """Whether the collapse of each latent to its prior is optimal; None for active latents.

        It is also None if this is not known, because the decoder is not linear.
        """
        if self.gains is None:
            return (None,) * len(self.kl)
        fine = self.gains <= 1.0 + self.tolerance
        return tuple(None if used else bool(ok) for used, ok in zip(self.active, fine, strict=True))

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the report as a table in plain text."""
        rows = [_HEADER, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = [self.headline]
        for row in rows:
            cells = [
                cell.rjust(width) if column < 4 else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.notes])

    @property
    def headline(self) -> str:
        """One line: number of active latents, KL divergence, samples and noise variance."""
        noise = "" if self.noise_variance is None else f", γ = {self.noise_variance:.3g}"
        noise += " (estimated)" if self.noise_estimated else ""
        return (
            f"{self.n_active} of {_count(len(self.kl), 'latent')} active "
            f"({_count(self.n_directions)}), total KL {self.total_kl:.2f} nats over "
            f"{_count(self.n_samples, 'sample')}{noise}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on active latents, on the comparison with a linear VAE, and the advice.

        If the Hadamard gap of the decoder was computed, the last sentence says whether a full
        posterior covariance would help.
        """
        meaning = (
            f"Active: mean posterior variance < {self.max_variance:g} and variance of the mean > "
            f"{self.min_spread:g}."
        )
        found = meaning, self._comparison, f"How many latents? {self.advice}"
        return found if self.gap is None else (*found, self.gap.answer)

    @property
    def _comparison(self) -> str:
        """One or two sentences that compare the model with a linear VAE of equal noise variance."""
        if self._linear is None:
            unknown = "the noise variance is not known, or there are too many features"
            return f"No comparison with a linear VAE: {unknown}."
        compared = (
            f"The best linear VAE of this noise variance would use {_count(self._linear, 'latent')}"
            "."
        )
        if self.gains is None:
            compared += " Whether a collapse is justified is not known: the decoder is not linear."
        return compared

    @property
    def _linear(self) -> int | None:
        """Number of latents of the best linear VAE of this noise; None if it is not known.

        It is not limited by the number of latents of the model. Reports of earlier versions contain
        only the limited number, which is then returned.
        """
        return self.linear_active if self.linear_latents is None else self.linear_latents

    @property
    def advice(self) -> str:
        """How many latents the model needs, and why: one or two sentences.

        The number of used directions is compared with the number k of latents that the model has,
        and with the number L of eigenvalues of the data covariance above the noise variance γ, the
        number that probabilistic PCA would use at this noise (Tipping and Bishop 1999; Wipf 2023,
        Lemma 3.2).
        """
        used, total, linear = self.n_directions, len(self.kl), self._linear
        if not used:
            return self._advice_if_collapsed
        others = "" if linear is None else f" A linear VAE of this noise would use {linear}."
        if used >= total:
            enough = linear is not None and linear <= total
            return f"{total if enough else f'More than {total} may help'}: all are used.{others}"
        if used == linear:
            return f"{used}: as many as the data need, according to both models."
        if linear is not None and used < linear and False in self.justified:
            return (
                f"{min(linear, total)}: the model uses {used}, and the collapse of others is not "
                "justified. Train longer, or with a smaller noise variance at first."
            )
        left = total - used
        rest = "other direction carries" if left == 1 else f"other {left} directions carry"
        rest = f"{used} of {total}: the {rest} no information.{others}"
        if linear is not None and used < linear:
            rest += (
                " The decoder describes the data with fewer directions, or training has not found "
                "the others: compare with a run that starts with a smaller noise variance."
            )
        return rest

    @property
    def _advice_if_collapsed(self) -> str:
        """Advice in one or two sentences for a model that uses no direction of its latent space."""
        if self._linear == 0:
            return (
                "None: no direction of the data has more variance than the noise. A smaller noise "
                "variance, or a smaller weight of the KL divergence, makes latents useful."
            )
        known = "" if self._linear is None else f", a linear VAE of this noise {self._linear}"
        return (
            f"The model uses none of {len(self.kl)}{known}: all posteriors have collapsed. Start "
            "with a small weight of the KL divergence or a small noise variance, and train again."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of values that JSON can represent."""
        series = {
            name: None if values is None else [float(value) for value in values]
            for name, values in (
                ("kl", self.kl),
                ("variance", self.variance),
                ("spread", self.spread),
                ("gains", self.gains),
            )
        }
        return series | {
            "active": [bool(used) for used in self.active],
            "justified": list(self.justified),
            "n_active": self.n_active,
            "n_directions": self.n_directions,
            "total_kl": self.total_kl,
            "n_samples": self.n_samples,
            "linear_active": self.linear_active,
            "linear_latents": self.linear_latents,
            "noise_variance": self.noise_variance,
            "noise_estimated": self.noise_estimated,
            "advice": self.advice,
            "max_variance": self.max_variance,
            "min_spread": self.min_spread,
            "tolerance": self.tolerance,
            "gap": None if self.gap is None else self.gap.to_dict(),
        }

    def _repr_html_(self) -> str:
        rows = self._rows()
        columns = {name: [row[place] for row in rows] for place, name in enumerate(_HEADER)}
        classes = ["active" if used else "collapsed" for used in self.active]
        return card(self.headline, table(columns, classes=classes, most=None), *self.notes)

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table of latents, one tuple of strings per latent."""
        figures = zip(self.kl, self.variance, self.spread, self.active, self.justified, strict=True)
        return [
            (
                str(index),
                f"{kl:.2f}",
                f"{variance:.2f}",
                f"{spread:.2f}",
                "yes" if used else "no",
                "" if used else _WORDS[justified],
            )
            for index, (kl, variance, spread, used, justified) in enumerate(figures)
        ]


def _count(number: int, unit: str = "direction") -> str:
    """Return a number with its unit, such as "1 direction" or "2 directions"."""
    return f"{number} {unit}{'' if number == 1 else 's'}"
