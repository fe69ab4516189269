"""The spectrum behind a fit, and how much of it is kept."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._canvas import axes_to_draw_on, fitted_attribute

QUANTITIES = {"explained_variance_": "variance", "singular_values_": "singular value"}


class SpectrumDisplay:
    """Variances of the components, or singular values of the target.

    Make one with `from_estimator`.

    Parameters
    ----------
    values : array of shape (k,)
        Variances or singular values, largest first.
    level : float, optional
        The noise variance of a linear autoencoder, or the threshold that dropout takes off.
    quantity : str, default="variance"
        What the values are.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    line_ : matplotlib line

    Examples
    --------
    >>> import lucidae, lucidae.displays
    >>> digits = lucidae.datasets.load_digits()
    >>> fitted = lucidae.LinearAutoencoder(5).fit(digits.data)
    >>> display = lucidae.displays.SpectrumDisplay.from_estimator(fitted)
    >>> display.values.shape
    (5,)
    """

    def __init__(
        self, values: Any, *, level: float | None = None, quantity: str = "variance"
    ) -> None:
        self.values = np.asarray(to_numpy(values), dtype=float)
        self.level = level
        self.quantity = quantity

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **line: Any) -> Self:
        """Draw the spectrum of a fitted `LinearAutoencoder` or dropout estimator.

        Parameters
        ----------
        estimator : object
            A fitted estimator with ``explained_variance_`` or ``singular_values_``.
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **line
            Passed on to ``ax.plot``.

        Returns
        -------
        SpectrumDisplay
        """
        name, values = fitted_attribute(estimator, tuple(QUANTITIES), cls.__name__)
        mark = "noise_variance_" if name == "explained_variance_" else "threshold_"
        level = getattr(estimator, mark, None)
        display = cls(
            values,
            level=None if level is None else float(level),
            quantity=QUANTITIES[name],
        )
        return display.plot(ax=ax, **line)

    def plot(self, *, ax: Any = None, **line: Any) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **line
            Passed on to ``ax.plot``.

        Returns
        -------
        SpectrumDisplay
        """
        self.ax_ = axes_to_draw_on(ax, type(self).__name__)
        self.figure_ = self.ax_.figure
        order = np.arange(1, len(self.values) + 1)
        (self.line_,) = self.ax_.plot(order, self.values, **{"marker": "o", **line})
        if self.level is not None and self.level > 0:
            label = "noise" if self.quantity == "variance" else "threshold"
            self.ax_.axhline(self.level, linestyle="--", color="gray", label=label)
            self.ax_.legend()
        if np.all(self.values > 0):
            self.ax_.set_yscale("log")
        self.ax_.set(xlabel="component", ylabel=self.quantity)
        return self
