"""Which columns a sparse fit uses, and which it should."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._canvas import axes_to_draw_on, fitted_attribute


class RecoveryDisplay:
    """Norm of each column's coefficients, the support, and the truth where it is known.

    Make one with `from_estimator`.

    Parameters
    ----------
    strengths : array of shape (kappa,)
        Norm of the coefficients of each column over the outputs.
    support : array of int, optional
        Columns that the estimator calls significant.
    truth : array of shape (kappa,), optional
        Norms of the true coefficients.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    stem_ : matplotlib container

    Examples
    --------
    >>> import lucidae, lucidae.displays
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
                f"the truth has shape {self.truth.shape}, expected {self.strengths.shape}: one "
                "norm for each column."
            )

    @classmethod
    def from_estimator(
        cls, estimator: Any, true_coef: Any = None, *, ax: Any = None, **stem: Any
    ) -> Self:
        """Draw the columns that a fitted estimator uses.

        Parameters
        ----------
        estimator : object
            A fitted `SparseVAE`, or any linear model with ``coef_``.
        true_coef : array of shape (n_outputs, kappa) or (kappa,), optional
            The coefficients behind the data.
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **stem
            Passed on to ``ax.stem``.

        Returns
        -------
        RecoveryDisplay
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
        """Share of the true columns among as many largest ones; None where no truth is known."""
        if self.truth is None:
            return None
        true = np.flatnonzero(self.truth > 0)
        largest = np.argsort(-self.strengths, kind="stable")[: len(true)]
        return float(np.isin(true, largest).mean()) if len(true) else None

    def plot(self, *, ax: Any = None, **stem: Any) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **stem
            Passed on to ``ax.stem``.

        Returns
        -------
        RecoveryDisplay
        """
        self.ax_ = axes_to_draw_on(ax, type(self).__name__)
        self.figure_ = self.ax_.figure
        columns = np.arange(len(self.strengths))
        style = {"basefmt": " ", "label": "estimate"}
        self.stem_ = self.ax_.stem(columns, self.strengths, **{**style, **stem})
        rings: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "none"}
        if self.truth is not None:
            true = np.flatnonzero(self.truth > 0)
            self.ax_.plot(true, self.truth[true], markersize=10, color="tab:orange",
                          label="truth", **rings)  # fmt: skip
        if self.support is not None:
            self.ax_.plot(self.support, np.zeros(len(self.support)), linestyle="", marker="^",
                          color="tab:green", clip_on=False, label="significant")  # fmt: skip
        self.ax_.set(xlabel="column", ylabel="norm of its coefficients")
        self.ax_.legend()
        return self


def column_norms(coef: Any) -> np.ndarray[Any, Any]:
    """Return the norm of each column's coefficients over the outputs.

    Examples
    --------
    >>> column_norms([[3.0, 0.0], [4.0, 1.0]])
    array([5., 1.])
    """
    matrix = np.atleast_2d(np.asarray(to_numpy(coef), dtype=float))
    return np.asarray(np.linalg.norm(matrix, axis=0))
