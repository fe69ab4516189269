"""Base class of the displays, and displays of fitted estimators."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from lucidae.arrays import to_numpy
from lucidae.counting import CRITERIA, ComponentCount, component_levels, count_components
from lucidae.validation import check_choice, install_command

if TYPE_CHECKING:
    from lucidae.iteration import History


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
        ax = new_figure(self).subplots() if ax is None else ax
        self.ax_, self.figure_ = ax, ax.figure
        self._draw(ax, style)
        return self

    @abstractmethod
    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
        """Draw the data on the axes `ax` with keyword arguments `style` of matplotlib."""


def new_figure(display: Any, **settings: Any) -> Any:
    """Return an empty figure of matplotlib for a display."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"{type(display).__name__} needs matplotlib: {install_command('cli')}"
        ) from error
    return plt.figure(layout="constrained", **settings)


def checked_shape(values: Any, shape: tuple[int, ...], name: str, what: str) -> Any:
    """Return an array of floats; another shape raises an error that says `what` is expected."""
    checked = np.asarray(to_numpy(values), dtype=float)
    if checked.shape != shape:
        raise ValueError(f"{name} has shape {checked.shape}, expected {shape}: {what}.")
    return checked


def draw_marks(ax: Any, marks: Mapping[str, float], top: float = 1.0, **style: Any) -> None:
    """Draw a vertical line at each of at most two named places, both seen where they coincide."""
    for (text, value), (colour, line) in zip(
        marks.items(), (("tab:red", "-"), (ink(ax), ":")), strict=False
    ):
        ax.axvline(value, 0.0, top, linestyle=line, color=colour, label=text, **style)


def plain_text(name: Any) -> str:
    r"""Return a name with escaped dollar signs, between which matplotlib would read formulas."""
    return str(name).replace("$", r"\$")


def image_sheet(images: Any, columns: int, room: int = 1) -> Any:
    """Return one image of many, `columns` in a row, with `room` empty pixels above each."""
    count, height, width = images.shape
    rows = -(-count // columns)
    margins = ((0, rows * columns - count), (room, 0), (0, 1))
    parts = np.pad(images.astype(float), margins, constant_values=np.nan)
    grid = parts.reshape(rows, columns, height + room, width + 1).swapaxes(1, 2)
    return grid.reshape(rows * (height + room), -1)[:, :-1]


def ink(ax: Any) -> Any:
    """Return the colour of the text of axes, which is seen on a light and on a dark ground."""
    return ax.xaxis.label.get_color()


def fitted_attribute(estimator: Any, names: tuple[str, ...], caller: str) -> tuple[str, Any]:
    """Return name and value of the first attribute in `names` that a fitted estimator has."""
    check_is_fitted(estimator)
    for name in names:
        if getattr(estimator, name, None) is not None:
            return name, getattr(estimator, name)
    raise ValueError(
        f"{caller} was given a {type(estimator).__name__}, which has none of the attributes "
        f"{', '.join(names)}; give an estimator that has one of them."
    )


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
        drawn = self.components
        if self.image_shape is not None:  # ten images in a row, each divided by its largest entry
            scales = abs(drawn).max(axis=1, keepdims=True)
            images = (drawn / np.where(scales > 0, scales, 1.0)).reshape(-1, *self.image_shape)
            drawn = image_sheet(images, min(10, len(images)))[1:]
        limit = float(np.nanmax(abs(drawn))) or 1.0
        style = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit, "interpolation": "none"}
        if self.image_shape is None:
            style["aspect"] = "auto"
        self.image_ = ax.imshow(drawn, **{**style, **image})
        if self.image_shape is not None:
            ax.set_axis_off()
            return
        ax.set(xlabel="feature", ylabel="component")
        ax.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        label_features(ax, self.feature_names)
        self.figure_.colorbar(self.image_, ax=ax, label="loading")


MOST_LABELS = 40
"""Largest number of features whose names fit below an axis."""

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
        order = np.arange(len(self.values))  # the indices of ``components_``
        # Zeros, and what is below the rounding error of the largest value, leave a gap in the line.
        positive = self.values > np.finfo(float).eps * np.max(self.values, initial=0.0)
        logarithmic = bool(positive.sum() > 1 and not np.any(self.values < 0))
        values = np.where(positive, self.values, np.nan) if logarithmic else self.values
        (self.line_,) = ax.plot(order, values, **{"marker": "o", **line})
        if self.level is not None and self.level > 0:
            label = "noise" if self.quantity == "variance" else "threshold"
            ax.axhline(self.level, linestyle="--", color="gray", label=label)
            ax.legend()
        if logarithmic:
            ax.set_yscale("log")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="component", ylabel=self.quantity)


STYLES = {
    "mle": ("Minka's evidence", "tab:green", "-", -0.12),
    "parallel_analysis": ("parallel analysis", "tab:blue", "--", 0.0),
    "hard_threshold": ("hard threshold", "tab:red", ":", 0.12),
}
"""Name of each criterion in the legend, and colour, style and offset of its lines, by which equal
numbers are drawn side by side."""


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
        given: dict[str, Any] = {name: {"n_features": n_features} for name in CRITERIA}
        given["hard_threshold"]["noise_variance"] = noise_variance
        counts = {
            name: count_components(eigenvalues, n_samples, name, **known)
            for name, known in given.items()
        }
        values = np.sort(np.asarray(to_numpy(eigenvalues), dtype=float))[::-1]
        most = max(count.n_components for count in counts.values())
        shown = max_components or max(12, most + most // 2 + 3)
        values = values[: min(shown, len(values))]
        levels = {
            name: component_levels(eigenvalues, n_samples, name, most=len(values), **given[name])
            for name in ("parallel_analysis", "hard_threshold")
        }
        return cls(values, counts, levels).plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        values = np.where(self.eigenvalues > 0.0, self.eigenvalues, np.nan)
        style = {"marker": "o", "markersize": 4, "color": ink(ax), "linewidth": 0.8}
        (self.line_,) = ax.plot(values, **{**style, **line})  # component 0 is the first one
        for name, levels in self.levels.items():
            _, colour, dashes, _ = STYLES[name]
            ax.plot(np.where(levels > 0.0, levels, np.nan), dashes, color=colour)
        for name, count in self.counts.items():
            words, colour, dashes, offset = STYLES[name]
            at, label = count.n_components - 0.5 + offset, f"{words}: {count.n_components}"
            ax.axvline(at, linestyle=dashes, color=colour, linewidth=1.6, label=label)
        if np.any(np.isfinite(values)):
            ax.set_yscale("log")
        ax.set_xlim(-0.7, len(values) - 0.3)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(xlabel="component", ylabel="eigenvalue of the covariance")
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(self.counts)}
        ax.legend(title="number of components", frameon=False, columnspacing=1.0, **place)


def _all_eigenvalues(estimator: Any) -> tuple[Any, float, int]:
    """Return all eigenvalues of the covariance (divisor n − 1) of a fit, its rows and features."""
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


OPTIMA = {"loss": ("loss", "minimum"), "objective": ("value", "bound")}
"""Evidence of a certificate with the value and the optimum of quantities of a history."""


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
    optimum : float, optional
        Height of a dashed line: the smallest value that the quantity can take.

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

    def __init__(
        self, history: History, *, quantity: str | None = None, optimum: float | None = None
    ) -> None:
        if not len(history):
            raise ValueError(
                "The history is empty, because the fit was computed in closed form, without "
                'iterations. Fit with an iterative solver, such as solver="gradient".'
            )
        chosen = quantity or next(name for name in self.PREFERRED if name in history)
        self.history = history
        self.quantity = check_choice(chosen, "quantity", history.names)
        self.optimum = optimum

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, quantity: str | None = None, ax: Any = None, **line: Any
    ) -> Self:
        """Draw the history of a fitted estimator, and the optimum if its certificate knows it.

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
        display = cls(history, quantity=quantity)
        value, least = OPTIMA.get(display.quantity, ("", ""))
        if value and hasattr(estimator, "certificate_"):
            found = estimator.certificate_.evidence
            # Only if the history recorded what the certificate compares with the optimum. The last
            # steps of stochastic descent may come after its last record.
            last = np.ravel(history[display.quantity][-1])
            if least in found and np.allclose(last, found[value], rtol=0.01, atol=0.0):
                display.optimum = float(found[least])
        return display.plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        values = np.asarray(self.history[self.quantity], dtype=float)
        shown = values[values > 0]
        # A logarithmic axis for values of several decades; a zero leaves a gap in the line.
        logarithmic = bool(len(shown) and not np.any(values < 0) and 10 * min(shown) < max(shown))
        if logarithmic:
            values = np.where(values > 0, values, np.nan)
        iterations = self.history.iterations
        self.lines_ = ax.plot(iterations, values, **line)
        if iterations[-1] > 10:  # logarithmic from the second record on
            ax.set_xscale("symlog", linthresh=iterations[min(1, len(iterations) - 1)])
        if self.optimum is not None:
            ax.axhline(self.optimum, linestyle="--", color="gray", label="optimum")
            ax.legend()
        if logarithmic:
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
    feature_names : sequence of str, optional
        Names of the columns, as labels.

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

    def __init__(
        self, strengths: Any, *, support: Any = None, truth: Any = None, feature_names: Any = None
    ) -> None:
        self.feature_names = feature_names
        self.strengths = np.asarray(to_numpy(strengths), dtype=float)
        self.support = None if support is None else np.asarray(to_numpy(support), dtype=int)
        what = "one norm per column, that of its true coefficients"
        self.truth = (
            None if truth is None else checked_shape(truth, self.strengths.shape, "truth", what)
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
            feature_names=getattr(estimator, "feature_names_in_", None),
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
        columns = np.arange(len(self.strengths))
        style = {"basefmt": " ", "label": "estimate"}
        self.stem_ = ax.stem(columns, self.strengths, **{**style, **stem})
        rings: dict[str, Any] = {"linestyle": "", "marker": "o", "markerfacecolor": "none"}
        if self.truth is not None:
            true = np.flatnonzero(self.truth > 0)
            ax.plot(true, self.truth[true], markersize=10, color="tab:orange",
                          label="truth", **rings)  # fmt: skip
        if self.support is not None:
            ax.plot(self.support, np.zeros(len(self.support)), linestyle="", marker="^", zorder=3,
                    color="tab:green", clip_on=False, label="significant",
                    transform=ax.get_xaxis_transform())  # fmt: skip
        ax.set(xlabel="column", ylabel="norm of its coefficients")
        label_features(ax, self.feature_names)
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def label_features(ax: Any, names: Any) -> None:
    """Write the names of features below a horizontal axis, if there are any and not too many."""
    if names is not None and len(names) <= MOST_LABELS:
        slanted = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(names)), [plain_text(name) for name in names], **slanted)


def column_norms(coef: Any) -> np.ndarray[Any, Any]:
    """Return for each column the Euclidean norm of its coefficients for all outputs."""
    matrix = np.atleast_2d(np.abs(np.asarray(to_numpy(coef))).astype(float))
    return np.asarray(np.linalg.norm(matrix, axis=0))
