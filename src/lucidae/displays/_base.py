"""Base class of the displays, and access to the fitted attributes that they draw."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from lucidae.validation import install_command


class Display(ABC):
    """Base class of plots with the attributes ``ax_`` and ``figure_``, as in scikit-learn."""

    ax_: Any
    figure_: Any

    def plot(self, *, ax: Any = None, **style: Any) -> Self:
        """Draw the plot on matplotlib axes, and store these as ``ax_`` and their ``figure_``.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **style
            Keyword arguments of the matplotlib function that draws the data.

        Returns
        -------
        Display
            The display itself.
        """
        if ax is None:
            try:
                from matplotlib import pyplot as plt
            except ImportError as error:
                raise ImportError(
                    f"{type(self).__name__} needs matplotlib: {install_command('cli')}"
                ) from error
            ax = plt.subplots()[1]
        self.ax_, self.figure_ = ax, ax.figure
        self._draw(ax, style)
        return self

    @abstractmethod
    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
        """Draw the data on the matplotlib axes `ax`.

        `style` are keyword arguments of the matplotlib function that draws them.
        """


def plain_text(name: Any) -> str:
    r"""Return a name with escaped dollar signs, between which matplotlib would read formulas."""
    return str(name).replace("$", r"\$")


def fitted_attribute(estimator: Any, names: tuple[str, ...], caller: str) -> tuple[str, Any]:
    """Return the name and the value of the first attribute in `names` that an estimator has.

    If the estimator is not fitted or has none of them, an error is raised, which names `caller`.
    """
    check_is_fitted(estimator)
    for name in names:
        if getattr(estimator, name, None) is not None:
            return name, getattr(estimator, name)
    raise ValueError(
        f"{caller} was given a {type(estimator).__name__}, which has none of the attributes "
        f"{', '.join(names)}; give an estimator that has one of them."
    )
