"""Displays of the history of a fit, and of the columns that a sparse fit selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._base import Display, fitted_attribute
from lucidae.validation import check_choice

if TYPE_CHECKING:
    from lucidae.iteration import History


class HistoryDisplay(Display):
    """Plot of a quantity, such as the loss, against the iterations of a fit.

    Use `from_estimator` to create one.

    Parameters
    ----------
    history : History
        The quantities recorded during the fit.
    quantity : str, optional
        Name of the quantity to draw. By default it is the loss, the energy or the objective if one
        of them was recorded, otherwise the distance to optimality.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    lines_ : list of matplotlib lines
        One line for each run that the history contains.

    Examples
    --------
    >>> import lucidae
    >>> digits = lucidae.datasets.load_digits()
    >>> fitted = lucidae.LinearAutoencoder(3, solver="gradient").fit(digits.data)
    >>> lucidae.displays.HistoryDisplay.from_estimator(fitted).quantity
    'loss'
    """

    PREFERRED = ("loss", "energy", "objective", "distance")

    def __init__(self, history: History, *, quantity: str | None = None) -> None:
        if not len(history):
            raise ValueError(
                "The history is empty, because the fit was computed in closed form, without "
                'iterations. Fit with an iterative solver, such as solver="gradient".'
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
            Name of the quantity to draw. By default it is the loss, the energy or the objective if
            one of them was recorded, otherwise the distance to optimality.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        HistoryDisplay
            The display, already drawn.
        """
        _, history = fitted_attribute(estimator, ("history_",), cls.__name__)
        return cls(history, quantity=quantity).plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        """Draw the recorded quantity against the iterations.

        `line` are keyword arguments of ``ax.plot``.
        """
        values = np.asarray(self.history[self.quantity], dtype=float)
        self.lines_ = ax.plot(self.history.iterations, values, **line)
        ax.set_xscale("symlog", linthresh=1)
        if np.all(values > 0):
            ax.set_yscale("log")
        ax.set(xlabel="iteration", ylabel=self.quantity)


class RecoveryDisplay(Display):
    """Plot of the norms of the coefficients, with significant columns and true norms marked.

    Use `from_estimator` to create one.

    Parameters
    ----------
    strengths : array of shape (n_columns,)
        For each column, the norm of the vector of its coefficients for all outputs.
    support : array of int, optional
        Indices of the significant columns.
    truth : array of shape (n_columns,), optional
        For each column, the norm of the coefficients from which the data were generated.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    stem_ : matplotlib container
        The stems of the norms.

    Examples
    --------
    >>> import lucidae
    >>> data = lucidae.datasets.make_sparse_regression(d=20, kappa=30, r=3, random_state=0)
    >>> fitted = lucidae.SparseVAE(noise_variance=1e-6).fit(data.dictionary, data.responses)
    >>> display = lucidae.displays.RecoveryDisplay.from_estimator(fitted, data.coef)
    >>> display.recovered
    1.0
    """

    def __init__(self, strengths: Any, *, support: Any = None, truth: Any = None) -> None:
        self.strengths = np.asarray(to_numpy(strengths), dtype=float)
        self.support = None if support is None else np.asarray(to_numpy(support), dtype=int)
        self.truth = None if truth is None else np.asarray(to_numpy(truth), dtype=float)
        if self.truth is not None and self.truth.shape != self.strengths.shape:
            raise ValueError(
                f"truth has shape {self.truth.shape}, expected {self.strengths.shape}: one norm "
                "per column, that of its true coefficients."
            )

    @classmethod
    def from_estimator(
        cls, estimator: Any, true_coef: Any = None, *, ax: Any = None, **stem: Any
    ) -> Self:
        """Draw the norms of the coefficients of a fitted estimator.

        Parameters
        ----------
        estimator : object
            A fitted `SparseVAE`, or any linear model with ``coef_``.
        true_coef : array of shape (n_outputs, n_columns) or (n_columns,), optional
            The coefficients from which the data were generated.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **stem
            Keyword arguments of ``ax.stem``.

        Returns
        -------
        RecoveryDisplay
            The display, already drawn.
        """
        _, coef = fitted_attribute(estimator, ("coef_",), cls.__name__)
        display = cls(
            column_norms(coef),
            support=getattr(estimator, "support_", None),
            truth=None if true_coef is None else column_norms(true_coef),
        )
        return display.plot(ax=ax, **stem)

    @property
    def recovered(self) -> float | None:
        """Share of the r true columns that are among the r columns with the largest norms.

        None if the true coefficients are not known or all zero.
        """
        if self.truth is None:
            return None
        true = np.flatnonzero(self.truth > 0)
        largest = np.argsort(-self.strengths, kind="stable")[: len(true)]
        return float(np.isin(true, largest).mean()) if len(true) else None

    def _draw(self, ax: Any, stem: dict[str, Any]) -> None:
        """Draw the norms of the coefficients, with significant columns and true norms marked.

        `stem` are keyword arguments of ``ax.stem``.
        """
        columns = np.arange(len(self.strengths))
        style = {"basefmt": " ", "label": "estimate"}
        self.stem_ = ax.stem(columns, self.strengths, **{**style, **stem})
        rings: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "none"}
        if self.truth is not None:
            true = np.flatnonzero(self.truth > 0)
            ax.plot(true, self.truth[true], markersize=10, color="tab:orange",
                          label="truth", **rings)  # fmt: skip
        if self.support is not None:
            ax.plot(self.support, np.zeros(len(self.support)), linestyle="", marker="^",
                          color="tab:green", clip_on=False, label="significant")  # fmt: skip
        ax.set(xlabel="column", ylabel="norm of its coefficients")
        ax.legend()


def column_norms(coef: Any) -> np.ndarray[Any, Any]:
    """Return, for each column, the Euclidean norm of its coefficients for all outputs.

    `coef` has shape (n_outputs, n_columns) or (n_columns,).
    """
    matrix = np.atleast_2d(np.abs(np.asarray(to_numpy(coef))).astype(float))
    return np.asarray(np.linalg.norm(matrix, axis=0))
