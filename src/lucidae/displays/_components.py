"""The components of a fit, as images or as a matrix of loadings."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._canvas import axes_to_draw_on, fitted_attribute


class ComponentsDisplay:
    """Components side by side.

    Make one with `from_estimator`.

    Parameters
    ----------
    components : array of shape (k, m)
        One component a row.
    image_shape : pair of int, optional
        Height and width, where the features are pixels; a matrix of loadings without.
    feature_names : sequence of str, optional
        Names of the features, for the matrix.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    image_ : matplotlib image

    Examples
    --------
    >>> import lucidae, lucidae.displays
    >>> digits = lucidae.datasets.load_digits()
    >>> fitted = lucidae.LinearAutoencoder(6).fit(digits.data)
    >>> display = lucidae.displays.ComponentsDisplay.from_estimator(fitted, image_shape=(8, 8))
    >>> display.components.shape
    (6, 64)
    """

    def __init__(
        self, components: Any, *, image_shape: Any = None, feature_names: Any = None
    ) -> None:
        self.components = np.asarray(to_numpy(components), dtype=float)
        if image_shape is not None and math.prod(image_shape) != self.components.shape[1]:
            raise ValueError(
                f"image_shape={tuple(image_shape)} has {math.prod(image_shape)} pixels, the "
                f"components have {self.components.shape[1]} features."
            )
        self.image_shape = None if image_shape is None else tuple(image_shape)
        self.feature_names = feature_names

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        image_shape: Any = None,
        max_components: int = 20,
        ax: Any = None,
        **image: Any,
    ) -> Self:
        """Draw the components of a fitted estimator.

        Parameters
        ----------
        estimator : object
            A fitted `LinearAutoencoder` (its ``components_``) or dropout estimator (the incoming
            weights of its hidden units, ``right_``).
        image_shape : pair of int, optional
            Height and width, where the features are pixels.
        max_components : int, default=20
            How many to draw at most.
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **image
            Passed on to ``ax.imshow``.

        Returns
        -------
        ComponentsDisplay
        """
        name, values = fitted_attribute(estimator, ("components_", "right_"), cls.__name__)
        rows = to_numpy(values).T if name == "right_" else to_numpy(values)
        names = getattr(estimator, "feature_names_in_", None)
        display = cls(rows[:max_components], image_shape=image_shape, feature_names=names)
        return display.plot(ax=ax, **image)

    def plot(self, *, ax: Any = None, **image: Any) -> Self:
        """Draw it.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; new axes by default.
        **image
            Passed on to ``ax.imshow``.

        Returns
        -------
        ComponentsDisplay
        """
        self.ax_ = axes_to_draw_on(ax, type(self).__name__)
        self.figure_ = self.ax_.figure
        shown = self.components if self.image_shape is None else self._tiles()
        limit = float(np.nanmax(abs(shown))) or 1.0
        style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "interpolation": "none"}
        if self.image_shape is None:
            style["aspect"] = "auto"
        self.image_ = self.ax_.imshow(shown, **{**style, **image})
        if self.image_shape is not None:
            self.ax_.set_axis_off()
            return self
        self.ax_.set(xlabel="feature", ylabel="component")
        if self.feature_names is not None and len(self.feature_names) <= 40:
            self.ax_.set_xticks(range(len(self.feature_names)), self.feature_names, rotation=60)
        self.figure_.colorbar(self.image_, ax=self.ax_)
        return self

    def _tiles(self) -> np.ndarray[Any, Any]:
        """Lay the components out as one picture, ten a row, with a gap between them."""
        height, width = self.image_shape or (1, 1)
        columns = min(10, len(self.components))
        rows = -(-len(self.components) // columns)
        picture = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
        for place, component in enumerate(self.components):
            top, left = (place // columns) * (height + 1), (place % columns) * (width + 1)
            scale = float(np.max(abs(component))) or 1.0
            picture[top : top + height, left : left + width] = (
                component.reshape(height, width) / scale
            )
        return picture
