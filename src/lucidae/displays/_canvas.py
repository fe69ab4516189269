"""What the displays share: axes to draw on, and estimators that have what is drawn."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted


def axes_to_draw_on(ax: Any, caller: str) -> Any:
    """Return `ax`, or new axes; without matplotlib, say what to install."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(f'{caller} needs matplotlib: pip install "lucidae[cli]"') from error
    return plt.subplots()[1]


def fitted_attribute(estimator: Any, names: tuple[str, ...], caller: str) -> tuple[str, Any]:
    """Return the first of `names` that a fitted estimator has, with its value."""
    check_is_fitted(estimator)
    for name in names:
        if getattr(estimator, name, None) is not None:
            return name, getattr(estimator, name)
    raise ValueError(
        f"{caller} was given a {type(estimator).__name__}, which has none of "
        f"{', '.join(names)}; fit an estimator that has."
    )
