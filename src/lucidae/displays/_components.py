"""Displays of the components of a fitted estimator and of their variances or singular values."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._base import Display, fitted_attribute, plain_text


class ComponentsDisplay(Display):
    """Plot of the components of a fitted estimator, as images or as a matrix of loadings.

    Use `from_estimator` to create one.

    Parameters
    ----------
    components : array of shape (n_components, n_features)
        One component per row.
    image_shape : pair of int, optional
        Height and width if the features are pixels; by default a matrix of loadings is drawn.
    feature_names : sequence of str, optional
        Names of the features, as labels of the columns of the matrix of loadings.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    image_ : matplotlib image
        The image of the components.

    Examples
    --------
    >>> import lucidae
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
                f"image_shape={tuple(image_shape)} has {math.prod(image_shape)} pixels, but "
                f"the components have {self.components.shape[1]} features: give a height and a "
                "width whose product is the number of features."
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
            Height and width if the features are pixels; by default a matrix of loadings is drawn.
        max_components : int, default=20
            Largest number of components to draw.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **image
            Keyword arguments of ``ax.imshow``.

        Returns
        -------
        ComponentsDisplay
            The display, already drawn.
        """
        name, values = fitted_attribute(estimator, ("components_", "right_"), cls.__name__)
        rows = to_numpy(values).T if name == "right_" else to_numpy(values)
        names = getattr(estimator, "feature_names_in_", None)
        display = cls(rows[:max_components], image_shape=image_shape, feature_names=names)
        return display.plot(ax=ax, **image)

    def _draw(self, ax: Any, image: dict[str, Any]) -> None:
        """Draw the components; `image` are keyword arguments of ``ax.imshow``."""
        drawn = self.components if self.image_shape is None else self._tiles()
        limit = float(np.nanmax(abs(drawn))) or 1.0
        style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "interpolation": "none"}
        if self.image_shape is None:
            style["aspect"] = "auto"
        self.image_ = ax.imshow(drawn, **{**style, **image})
        if self.image_shape is not None:
            ax.set_axis_off()
            return
        ax.set(xlabel="feature", ylabel="component")
        if self.feature_names is not None and len(self.feature_names) <= 40:
            names = [plain_text(name) for name in self.feature_names]
            ax.set_xticks(range(len(names)), names, rotation=60)
        self.figure_.colorbar(self.image_, ax=ax)

    def _tiles(self) -> np.ndarray[Any, Any]:
        """Return one image that contains the images of all components, ten in each row.

        Each component is divided by its entry of largest magnitude. The lines of pixels that
        separate the components are NaN.
        """
        height, width = self.image_shape or (1, 1)
        columns = min(10, len(self.components))
        rows = -(-len(self.components) // columns)
        sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), np.nan)
        for place, component in enumerate(self.components):
            top, left = (place // columns) * (height + 1), (place % columns) * (width + 1)
            scale = float(np.max(abs(component))) or 1.0
            sheet[top : top + height, left : left + width] = (
                component.reshape(height, width) / scale
            )
        return sheet


QUANTITIES = {"explained_variance_": "variance", "singular_values_": "singular value"}


class SpectrumDisplay(Display):
    """Plot of the variances of the components, or of the singular values, of a fitted estimator.

    Use `from_estimator` to create one.

    Parameters
    ----------
    values : array of shape (n_components,)
        Variances or singular values, in descending order.
    level : float, optional
        Height of a dashed line: the noise variance of a linear autoencoder, or the threshold that
        dropout subtracts from the singular values.
    quantity : str, default="variance"
        Name of the values, the label of the vertical axis.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    line_ : matplotlib line
        The line of the values.

    Examples
    --------
    >>> import lucidae
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
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        SpectrumDisplay
            The display, already drawn.
        """
        name, values = fitted_attribute(estimator, tuple(QUANTITIES), cls.__name__)
        source = "noise_variance_" if name == "explained_variance_" else "threshold_"
        level = getattr(estimator, source, None)
        display = cls(
            values,
            level=None if level is None else float(level),
            quantity=QUANTITIES[name],
        )
        return display.plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        """Draw the variances or singular values, and `level`, if given, as a dashed line.

        `line` are keyword arguments of ``ax.plot``.
        """
        order = np.arange(len(self.values))  # the indices of ``components_``
        (self.line_,) = ax.plot(order, self.values, **{"marker": "o", **line})
        if self.level is not None and self.level > 0:
            label = "noise" if self.quantity == "variance" else "threshold"
            ax.axhline(self.level, linestyle="--", color="gray", label=label)
            ax.legend()
        if np.all(self.values > 0):
            ax.set_yscale("log")
        ax.set(xlabel="component", ylabel=self.quantity)
