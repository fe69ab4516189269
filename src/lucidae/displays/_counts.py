"""Display of the eigenvalues of a covariance with the criteria for the number of components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import to_numpy
from lucidae.counting import CRITERIA, ComponentCount, component_levels, count_components
from lucidae.displays._base import Display


class _Style(NamedTuple):
    """Name of a criterion in the legend, and colour, style and offset of its lines."""

    name: str
    colour: str
    line: str
    offset: float


STYLES = {
    "mle": _Style("Minka's evidence", "tab:green", "-", -0.12),
    "parallel_analysis": _Style("parallel analysis", "tab:blue", "--", 0.0),
    "hard_threshold": _Style("hard threshold", "tab:red", ":", 0.12),
}
"""Lines of the criteria; equal numbers are drawn side by side."""


class ComponentCountDisplay(Display):
    """Scree plot: the eigenvalues of a covariance, and how many components each criterion finds.

    A vertical line for each criterion separates the components from the other eigenvalues. For
    parallel analysis and for the hard threshold, the levels that eigenvalues must exceed are drawn
    as well; Minka's evidence ("mle") has no such levels. Use `from_estimator` or `from_spectrum` to
    create one.

    Parameters
    ----------
    eigenvalues : array of shape (m,)
        All eigenvalues of the covariance, in descending order.
    counts : mapping of str to ComponentCount
        What each criterion found, by its name.
    levels : mapping of str to array
        For some criteria, the levels that the leading eigenvalues must exceed to be counted.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    line_ : matplotlib line
        The line of the eigenvalues.

    See Also
    --------
    lucidae.linear.count_components : The criteria.

    Examples
    --------
    >>> import lucidae
    >>> display = lucidae.displays.ComponentCountDisplay.from_spectrum(
    ...     [9.0, 4.0, 1.1, 1.0, 0.9], n_samples=200
    ... )
    >>> {name: count.n_components for name, count in display.counts.items()}
    {'mle': 2, 'parallel_analysis': 2, 'hard_threshold': 2}
    """

    def __init__(
        self,
        eigenvalues: Any,
        counts: Mapping[str, ComponentCount],
        levels: Mapping[str, Any] | None = None,
    ) -> None:
        self.eigenvalues = np.asarray(to_numpy(eigenvalues), dtype=float)
        unknown = sorted({*counts, *(levels or {})} - set(CRITERIA))
        if unknown:
            raise ValueError(
                f"counts or levels have the names {', '.join(map(repr, unknown))}, expected names "
                f"among {', '.join(map(repr, CRITERIA))}."
            )
        self.counts = dict(counts)
        self.levels = {name: np.asarray(values) for name, values in (levels or {}).items()}

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        max_components: int | None = None,
        ax: Any = None,
        **line: Any,
    ) -> Self:
        """Draw the eigenvalues and the criteria of a fitted estimator.

        Parameters
        ----------
        estimator : object
            A fitted `LinearAutoencoder`, or scikit-learn's ``PCA`` with all components.
        max_components : int, optional
            Number of eigenvalues to draw; by default as many as are needed to show all criteria.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot`` for the eigenvalues.

        Returns
        -------
        ComponentCountDisplay
            The display, already drawn.
        """
        check_is_fitted(estimator)
        values, n_samples, m = _all_eigenvalues(estimator)
        return cls.from_spectrum(
            values, n_samples, n_features=m, max_components=max_components, ax=ax, **line
        )

    @classmethod
    def from_spectrum(
        cls,
        eigenvalues: Any,
        n_samples: float,
        *,
        n_features: int | None = None,
        noise_variance: float | None = None,
        max_components: int | None = None,
        ax: Any = None,
        **line: Any,
    ) -> Self:
        """Draw the eigenvalues of a covariance and the criteria.

        Parameters
        ----------
        eigenvalues : array-like of shape (m,)
            All eigenvalues of the covariance, with the divisor `n_samples` − 1.
        n_samples : float
            Number of rows, or the sum of their weights.
        n_features : int, optional
            Number of features if `eigenvalues` contains fewer, because the others are zero.
        noise_variance : float, optional
            Variance of the noise if it is known, for the hard threshold.
        max_components : int, optional
            Number of eigenvalues to draw; by default as many as are needed to show all criteria.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot`` for the eigenvalues.

        Returns
        -------
        ComponentCountDisplay
            The display, already drawn.
        """
        known = {"mle": None, "parallel_analysis": None, "hard_threshold": noise_variance}
        counts = {
            name: count_components(
                eigenvalues, n_samples, name, n_features=n_features, noise_variance=noise
            )
            for name, noise in known.items()
        }
        values = np.sort(np.asarray(to_numpy(eigenvalues), dtype=float))[::-1]
        most = max(count.n_components for count in counts.values())
        shown = max_components or max(12, most + most // 2 + 3)
        values = values[: min(shown, len(values))]
        levels = {
            name: component_levels(
                eigenvalues,
                n_samples,
                name,
                n_features=n_features,
                noise_variance=known[name],
                most=len(values),
            )
            for name in ("parallel_analysis", "hard_threshold")
        }
        return cls(values, counts, levels).plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        """Draw the eigenvalues, and the levels and numbers of components of all criteria.

        `line` are keyword arguments of ``ax.plot`` for the eigenvalues.
        """
        values = np.where(self.eigenvalues > 0.0, self.eigenvalues, np.nan)
        style = {"marker": "o", "markersize": 4, "color": "black", "linewidth": 0.8}
        (self.line_,) = ax.plot(np.arange(1, len(values) + 1), values, **{**style, **line})
        for name, levels in self.levels.items():
            drawn = STYLES[name]
            below = np.where(levels > 0.0, levels, np.nan)
            ax.plot(np.arange(1, len(below) + 1), below, drawn.line, color=drawn.colour)
        for name, count in self.counts.items():
            drawn = STYLES[name]
            at = count.n_components + 0.5 + drawn.offset
            label = f"{drawn.name}: {count.n_components}"
            ax.axvline(at, linestyle=drawn.line, color=drawn.colour, linewidth=1.6, label=label)
        if np.any(np.isfinite(values)):
            ax.set_yscale("log")
        ax.set_xlim(0.3, len(values) + 0.7)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="component", ylabel="eigenvalue of the covariance")
        ax.legend(title="number of components")


def _all_eigenvalues(estimator: Any) -> tuple[Any, float, int]:
    """Return all eigenvalues of the covariance of the rows that an estimator was fitted to.

    The numbers of rows and of features are returned with them. The covariance has the divisor
    n − 1 for n rows. An estimator that does not know all eigenvalues raises a ValueError.
    """
    name, m = type(estimator).__name__, int(estimator.n_features_in_)
    if hasattr(estimator, "_state"):
        values = getattr(estimator._state, "eigenvalues", None)
        weight = float(getattr(estimator, "n_samples_seen_", 0.0))
        if values is not None and weight > 1.0:
            return values * (weight / (weight - 1.0)), weight, m
    elif hasattr(estimator, "n_samples_") and hasattr(estimator, "explained_variance_"):
        values = to_numpy(estimator.explained_variance_)
        if len(values) >= min(estimator.n_samples_ - 1, m):
            return values, float(estimator.n_samples_), m
    raise ValueError(
        f"ComponentCountDisplay was given a {name} whose fit did not compute all eigenvalues of "
        "the covariance. Fit a LinearAutoencoder with n_components=None or the name of a "
        "criterion, or use ComponentCountDisplay.from_spectrum."
    )
