"""How a collapse report is told: as text, as HTML, as JSON-safe values."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CollapseReport"]

_WORDS = {True: "justified", False: "not justified", None: "not known"}
_HEADER = ("latent", "KL", "variance", "spread", "active", "collapse")


@dataclass(frozen=True, slots=True, eq=False)
class CollapseReport:
    """What `lucidae.nn.collapse_report` found.

    Parameters
    ----------
    kl : ndarray of shape (k,)
        Mean KL divergence of each latent's marginal posterior to N(0, 1), in nats.
    variance : ndarray of shape (k,)
        Mean posterior variance of each latent.
    spread : ndarray of shape (k,)
        Variance over samples of each posterior mean.
    active : ndarray of bool, shape (k,)
        Which latents tell something about the data.
    n_active : int
        Number of active latents.
    n_directions : int
        Number of active directions, whatever rotation a full covariance has left the latents in.
    total_kl : float
        Mean KL divergence of the joint posterior; above the sum of `kl` where latents depend on
        each other.
    n_samples : int
        Samples that were seen.
    gains : ndarray of shape (k,) or None
        For a linear decoder, the largest ratio by which a direction open to the latent would pay;
        above 1 its collapse is not justified.
    linear_active : int or None
        Latents that the best linear VAE of the same noise variance would use: the eigenvalues of
        the data covariance above it.
    noise_variance : float or None
        γ.
    max_variance, min_spread, tolerance : float
        The thresholds.

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

    @property
    def justified(self) -> tuple[bool | None, ...]:
        """For each collapsed latent whether that is best; None for active or unknown ones."""
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
        """One line: how many latents are active, and what they cost."""
        noise = "" if self.noise_variance is None else f", γ = {self.noise_variance:.3g}"
        return (
            f"{self.n_active} of {len(self.kl)} latents active ({_count(self.n_directions)}), "
            f"total KL {self.total_kl:.2f} nats over {self.n_samples} samples{noise}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the words in the table mean, and how a linear model compares."""
        meaning = (
            f"Active: mean posterior variance < {self.max_variance:g} and variance of the mean > "
            f"{self.min_spread:g}."
        )
        if self.linear_active is None:
            return (meaning, "No comparison with a linear VAE: the noise variance is not known.")
        unit = "latent" if self.linear_active == 1 else "latents"
        compared = (
            f"The best linear VAE of this noise variance would use {self.linear_active} {unit}."
        )
        if self.gains is None:
            compared += " The decoder is not linear: whether a collapse is justified is not known."
        return meaning, compared

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-safe values."""
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
            "noise_variance": self.noise_variance,
            "max_variance": self.max_variance,
            "min_spread": self.min_spread,
            "tolerance": self.tolerance,
        }

    def _repr_html_(self) -> str:
        header = "".join(f"<th scope='col'>{name}</th>" for name in _HEADER)
        rows = "".join(
            f"<tr class='{'active' if used else 'collapsed'}'>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for used, row in zip(self.active, self._rows(), strict=True)
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"{_STYLE}<section class='lucidae-collapse'><h4>{html.escape(self.headline)}</h4>"
            f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table>{notes}</section>"
        )

    def _rows(self) -> list[tuple[str, ...]]:
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


def _count(directions: int) -> str:
    return f"{directions} direction{'' if directions == 1 else 's'}"


_STYLE = """<style>
.lucidae-collapse{font:14px/1.45 system-ui,sans-serif;border:1px solid #8886;border-radius:8px;
padding:.6em 1em;max-width:60em;max-height:40em;overflow:auto}
.lucidae-collapse h4{margin:.2em 0 .5em;font-size:1.05em}
.lucidae-collapse table{border-collapse:collapse}
.lucidae-collapse td,.lucidae-collapse th{padding:.15em .8em;text-align:right;
border-top:1px solid #8883;font-variant-numeric:tabular-nums}
.lucidae-collapse .collapsed{opacity:.6}
.lucidae-collapse p{margin:.4em 0 0;opacity:.8}
</style>"""
