"""How a fit went."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lucidae.displays._canvas import axes_to_draw_on, fitted_attribute
from lucidae.iteration import History
from lucidae.validation import check_choice


class HistoryDisplay:
    """A quantity along the iterations of a fit.

    Make one with `from_estimator`.

    Parameters
    ----------
    history : History
        What was recorded.
    quantity : str, optional
        Which of its quantities to draw; the loss, energy or objective by default, else the
        distance to optimality.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    lines_ : list of matplotlib lines
        One per run.

    Examples
    --------
    >>> import lucidae, lucidae.displays
    >>> digits = lucidae.datasets.load_digits()
    >>> fitted = lucidae.LinearAutoencoder(3, solver="gradient").fit(digits.data)
    >>> lucidae.displays.HistoryDisplay.from_estimator(fitted).quantity
    'loss'
    """

    PREFERRED = ("loss", "energy", "objective", "distance")

    def __init__(self, history: History, *, quantity: str | None = None) -> None:
        if not len(history):
            raise ValueError(
                "the history is empty: a closed form has no iterations. Fit with an iterative "
                'solver, such as solver="gradient".'
            )
        chosen = quantity or next(name for name in self.PREFERRED if name in history)
        self.history = history
        self.quantity = check_choice(chosen, "quantity", history.names)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, quantity: str | None = None, ax: Any = None, **line: Any
    ) -> Self:
        """Draw the history of a fitted estimator.

        Parameters
        ----------
        estimator : object
            A fitted estimator with ``history_``.
        quantity : str, optional
            Which quantity to draw.
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **line
            Passed on to ``ax.plot``.

        Returns
        -------
        HistoryDisplay
        """
        _, history = fitted_attribute(estimator, ("history_",), cls.__name__)
        return cls(history, quantity=quantity).plot(ax=ax, **line)

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
        HistoryDisplay
        """
        self.ax_ = axes_to_draw_on(ax, type(self).__name__)
        self.figure_ = self.ax_.figure
        values = np.asarray(self.history[self.quantity], dtype=float)
        self.lines_ = self.ax_.plot(self.history.iterations, values, **line)
        self.ax_.set_xscale("symlog", linthresh=1)
        if np.all(values > 0):
            self.ax_.set_yscale("log")
        self.ax_.set(xlabel="iteration", ylabel=self.quantity)
        return self
