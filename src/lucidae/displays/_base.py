"""Base class of the displays, and access to what they draw."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted


class Display:
    """A plot with the attributes ``ax_`` and ``figure_``, as in scikit-learn."""

    ax_: Any
    figure_: Any

    def _draw_on(self, ax: Any) -> Any:
        """Set ``ax_`` and ``figure_`` to the given axes, or to new ones, and return the axes."""
        if ax is None:
            try:
                from matplotlib import pyplot as plt
            except ImportError as error:
                raise ImportError(
                    f'{type(self).__name__} needs matplotlib: pip install "lucidae[cli]"'
                ) from error
            ax = plt.subplots()[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax


def fitted_attribute(estimator: Any, names: tuple[str, ...], caller: str) -> tuple[str, Any]:
    """Return the name and the value of the first of `names` that a fitted estimator has."""
    check_is_fitted(estimator)
    for name in names:
        if getattr(estimator, name, None) is not None:
            return name, getattr(estimator, name)
    raise ValueError(
        f"{caller} was given a {type(estimator).__name__}, which has none of the attributes "
        f"{', '.join(names)}; give an estimator that has one of them."
    )
