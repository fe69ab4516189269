"""Displays of components and of their spectrum."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._base import Display, fitted_attribute, plain_text


class ComponentsDisplay(Display):
    """Components of a fit, as images or as a matrix of loadings.

    Use `from_estimator` to create one.

    Parameters
    ----------
    components : array of shape (k, m)
        One component per row.
    image_shape : pair of int, optional
        Height and width if the features are pixels; by default a matrix of loadings is drawn.
    feature_names : sequence of str, optional
        Names of the features, as labels of the matrix.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    image_ : matplotlib image

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
                f"the components have {self.components.shape[1]} features."
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
            Height and width if the features are pixels.
        max_components : int, default=20
            Largest number of components to draw.
        ax : matplotlib axes, optional
            Axes to draw on; by default new ones.
        **image
            Keyword arguments of ``ax.imshow``.

        Returns
        -------
        ComponentsDisplay
        """
        name, values = fitted_attribute(estimator, ("components_", "right_"), cls.__name__)
        rows = to_numpy(values).T if name == "right_" else to_numpy(values)
        names = getattr(estimator, "feature_names_in_", None)
        display = cls(rows[:max_components], image_shape=image_shape, feature_names=names)
        return display.plot(ax=ax, **image)

    def _draw(self, ax: Any, image: dict[str, Any]) -> None:
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
        """Return one image of all components, ten per row, each scaled to its largest entry."""
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
    """Spectrum of a fit: variances of the components, or singular values.

    Use `from_estimator` to create one.

    Parameters
    ----------
    values : array of shape (k,)
        Variances or singular values, in descending order.
    level : float, optional
        Noise variance of a linear autoencoder, or the threshold that dropout subtracts.
    quantity : str, default="variance"
        Name of the values.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
    line_ : matplotlib line

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
            Axes to draw on; by default new ones.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        SpectrumDisplay
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
        order = np.arange(len(self.values))  # the indices of ``components_``
        (self.line_,) = ax.plot(order, self.values, **{"marker": "o", **line})
        if self.level is not None and self.level > 0:
            label = "noise" if self.quantity == "variance" else "threshold"
            ax.axhline(self.level, linestyle="--", color="gray", label=label)
            ax.legend()
        if np.all(self.values > 0):
            ax.set_yscale("log")
        ax.set(xlabel="component", ylabel=self.quantity)
