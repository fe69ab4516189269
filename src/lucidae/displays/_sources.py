"""Display of current sources in the head, with the noise variances at which they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.spatial import ConvexHull, QhullError

from lucidae.displays._base import Display
from lucidae.displays._path import NoisePathDisplay
from lucidae.validation import install_command

Floats = np.ndarray[Any, Any]

VIEWS = {
    "from above": ((0, 1), ("left – right (mm)", "back – front (mm)")),
    "from behind": ((0, 2), ("left – right (mm)", "bottom – top (mm)")),
    "from the right": ((1, 2), ("back – front (mm)", "bottom – top (mm)")),
}
"""Coordinates of the three projections, and the labels of their axes."""


class SourceDisplay(Display):
    """Plot of current sources in three projections of the head.

    The sources are numbered by their strength; the strongest is number 1. Areas and colours of the
    circles show the strengths, and lines show the orientations. The grey outline is the convex hull
    of all possible sources. If a path (solutions for a series of noise variances) is given, a panel
    below shows which sources are found at which noise variance. Use `from_result` or `from_stc` to
    create one.

    Parameters
    ----------
    positions : array of shape (n, 3)
        Positions of the sources in metres; x points to the right, y to the front, z to the top.
    strengths : array of shape (n,)
        Largest amplitudes of the sources over time, in `unit`.
    candidates : array of shape (m, 3), optional
        Positions of all possible sources, whose outline is drawn.
    orientations : array of shape (n, 3), optional
        Unit vectors of the currents.
    names : sequence of str, optional
        Names of the sources in the plot of the path; by default their indices in `positions`.
    unit : str, default="nA·m"
        Unit of the strengths.
    path : NoisePathDisplay, optional
        The path of noise variances, with one line per source.

    Attributes
    ----------
    ax_ : ndarray of matplotlib axes
        The axes of the three projections and, if `path` is given, those of the path.
    figure_ : matplotlib figure
        Their figure.
    order_ : ndarray of int
        Indices of the sources in the order of their numbers in the plot.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae.displays import SourceDisplay
    >>> points = np.random.default_rng(0).uniform(-0.07, 0.07, size=(200, 3))
    >>> display = SourceDisplay(points[:2], [5.0, 20.0], candidates=points).plot()
    >>> display.order_.tolist()
    [1, 0]
    >>> [axes.get_title() for axes in display.ax_]
    ['from above', 'from behind', 'from the right']
    """

    def __init__(
        self,
        positions: Any,
        strengths: Any,
        *,
        candidates: Any = None,
        orientations: Any = None,
        names: Sequence[str] | None = None,
        unit: str = "nA·m",
        path: NoisePathDisplay | None = None,
    ) -> None:
        self.positions = _points(positions, "positions")
        self.strengths = np.asarray(strengths, dtype=float).reshape(-1)
        count = len(self.positions)
        if self.strengths.size != count:
            raise ValueError(
                f"strengths has {self.strengths.size} entries, but positions has {count} rows; "
                "give one strength for each source."
            )
        self.candidates = None if candidates is None else _points(candidates, "candidates")
        self.orientations = None if orientations is None else _points(orientations, "orientations")
        if self.orientations is not None and len(self.orientations) != count:
            raise ValueError(
                f"orientations has {len(self.orientations)} rows, but positions has {count}; give "
                "one unit vector for each source."
            )
        self.names = [str(index) for index in range(count)] if names is None else list(names)
        self.unit = unit
        self.path = path
        self.order_ = np.argsort(-self.strengths, kind="stable")

    @classmethod
    def from_result(
        cls, result: Any, *, path: Any = True, max_sources: int = 30, ax: Any = None, **style: Any
    ) -> Self:
        """Draw a result of `lucidae.mne.sparse_vae`.

        Parameters
        ----------
        result : SourceResult
            What ``sparse_vae(..., return_result=True)`` returns.
        path : bool or NoisePath, default=True
            Whether to draw the path of noise variances, or a path that ``result.noise_path`` has
            returned. The path takes many fits; False leaves it out.
        max_sources : int, default=30
            Largest number of sources in the plot of the path.
        ax : sequence of matplotlib axes, optional
            Three axes, or four with a path; by default a new figure is made.
        **style
            Keyword arguments of ``ax.scatter``.

        Returns
        -------
        SourceDisplay
            The display, already drawn.
        """
        return cls.prepared(result, path=path, max_sources=max_sources).plot(ax=ax, **style)

    @classmethod
    def prepared(cls, result: Any, *, path: Any = True, max_sources: int = 30) -> Self:
        """Return the display of a result before it is drawn.

        Parameters
        ----------
        result : SourceResult
            What ``sparse_vae(..., return_result=True)`` returns.
        path : bool or NoisePath, default=True
            Whether to draw the path of noise variances, or the path itself.
        max_sources : int, default=30
            Largest number of sources in the plot of the path.

        Returns
        -------
        SourceDisplay
            The display, not yet drawn; its method `plot` draws it.
        """
        _check_result(result)
        moments = np.einsum("not,noi->nti", result.amplitudes, result.orientations)
        sizes = np.linalg.norm(moments, axis=2)
        peaks = np.argmax(sizes, axis=1) if sizes.size else np.zeros(0, dtype=int)
        rows = np.arange(len(sizes))
        strengths = sizes[rows, peaks]
        directions = moments[rows, peaks] / np.where(strengths > 0, strengths, 1.0)[:, None]
        display = cls(
            result.positions,
            1e9 * strengths,
            candidates=result.forward["source_rr"],
            orientations=directions,
            names=[f"source {source}" for source in result.sources],
        )
        if path is not False and path is not None:
            walked = result.noise_path() if path is True else path
            display.path = _path_of_sources(result, walked, display.order_, max_sources)
        return display

    @classmethod
    def from_stc(cls, stc: Any, src: Any, *, ax: Any = None, **style: Any) -> Self:
        """Draw a sparse source estimate of MNE.

        Parameters
        ----------
        stc : SourceEstimate, VolSourceEstimate, MixedSourceEstimate or a vector variant
            The source estimate; sources with zero amplitude are not drawn.
        src : SourceSpaces or Forward
            The source space of the estimate; positions are drawn in its coordinates.
        ax : sequence of matplotlib axes, optional
            Three axes; by default a new figure is made.
        **style
            Keyword arguments of ``ax.scatter``.

        Returns
        -------
        SourceDisplay
            The display, already drawn.
        """
        spaces = src["src"] if isinstance(src, dict) else src
        vertices = stc.vertices if isinstance(stc.vertices, list) else [stc.vertices]
        if len(vertices) != len(spaces):
            raise ValueError(
                f"The source estimate has {len(vertices)} source spaces, but src has "
                f"{len(spaces)}; give the source space that the estimate was computed for."
            )
        points = [space["rr"][used] for space, used in zip(spaces, vertices, strict=True)]
        candidates = np.concatenate([space["rr"][space["vertno"]] for space in spaces])
        data = np.asarray(stc.data)
        sizes = np.abs(data) if data.ndim == 2 else np.linalg.norm(data, axis=1)
        strengths = 1e9 * sizes.max(axis=1, initial=0.0)
        used = np.flatnonzero(strengths > 0)
        names = [f"vertex {number}" for number in np.concatenate(vertices)[used]]
        display = cls(
            np.concatenate(points)[used], strengths[used], candidates=candidates, names=names
        )
        return display.plot(ax=ax, **style)

    def plot(self, *, ax: Any = None, **style: Any) -> Self:
        """Draw the three projections of the head and, if given, the path of noise variances.

        Parameters
        ----------
        ax : sequence of matplotlib axes, optional
            Three axes, or four with a path; by default a new figure is made.
        **style
            Keyword arguments of ``ax.scatter``.

        Returns
        -------
        SourceDisplay
            The display itself.
        """
        wanted = 3 if self.path is None else 4
        if ax is None:
            ax = self._new_axes()
        axes = np.asarray(ax, dtype=object).reshape(-1)
        if axes.size != wanted:
            raise ValueError(
                f"ax has {axes.size} axes, expected {wanted}, for three "
                f"projections{' and the path of noise variances' if wanted == 4 else ''}."
            )
        self.ax_, self.figure_ = axes, axes[0].figure
        self._draw(axes, style)
        return self

    def _new_axes(self) -> list[Any]:
        """Return the axes of a new figure of matplotlib."""
        try:
            from matplotlib import pyplot as plt
        except ImportError as error:
            raise ImportError(
                f"SourceDisplay needs matplotlib: {install_command('cli')}"
            ) from error
        figure = plt.figure(figsize=(10.0, self.height), layout="constrained")
        return self.arranged(figure)

    @property
    def height(self) -> float:
        """Height in inches that suits a figure of ten inches in width."""
        return 3.6 if self.path is None else 4.6 + 0.22 * self.path.columns.size

    def arranged(self, figure: Any) -> list[Any]:
        """Return new axes of a figure: three for the projections, side by side, one for the path.

        The axes for the path of noise variances are below the others; they are made only if the
        display has a path.

        Parameters
        ----------
        figure : matplotlib figure
            An empty figure.

        Returns
        -------
        list of matplotlib axes
            Three axes, or four with a path, which `plot` accepts.
        """
        if self.path is None:
            return list(figure.subplots(1, 3))
        below = 1.2 + 0.22 * self.path.columns.size
        places = figure.subplot_mosaic("abc;ppp", height_ratios=(3.4, below))
        return [places[name] for name in "abcp"]

    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
        """Draw the sources in three projections and, on a fourth axes, the path of noise variances.

        `style` are keyword arguments of ``ax.scatter``.
        """
        largest = float(self.strengths.max(initial=0.0)) or 1.0
        points = None
        middle, reach = self._extent()
        for axes, (title, (pair, labels)) in zip(ax[:3], VIEWS.items(), strict=True):
            chosen = list(pair)
            _draw_outline(axes, self.candidates, chosen)
            points = self._draw_sources(axes, chosen, largest, style)
            axes.set(title=title, xlabel=labels[0], ylabel=labels[1], aspect="equal")
            limits = [(middle[place] - reach, middle[place] + reach) for place in pair]
            axes.set(xlim=limits[0], ylim=limits[1])  # one scale in all projections
            axes.grid(False)
        if points is not None and self.strengths.size:
            ax[0].figure.colorbar(points, ax=list(ax[:3]), label=f"amplitude ({self.unit})")
        if self.path is not None:
            self.path.plot(ax=ax[3])
            ax[3].set_ylabel("source (* intermittent)")
            if self.path.mesh_.colorbar is not None:
                self.path.mesh_.colorbar.set_label("share of the power")

    def _extent(self) -> tuple[Floats, float]:
        """Return the centre and half the side (mm) of a cube that contains all drawn points."""
        drawn = self.positions if self.candidates is None else self.candidates
        drawn = 1e3 * np.concatenate([drawn, self.positions])
        if not len(drawn):
            return np.zeros(3), 100.0
        low, high = drawn.min(axis=0), drawn.max(axis=0)
        return (low + high) / 2.0, max(0.58 * float(np.max(high - low)), 10.0)

    def _draw_sources(
        self, axes: Any, pair: list[int], largest: float, style: dict[str, Any]
    ) -> Any:
        """Draw the sources with their numbers and orientations in one projection.

        `pair` are the two coordinates that are drawn, `largest` is the largest strength, which has
        the largest circle, and `style` are keyword arguments of ``ax.scatter``. The circles are
        returned, for the colour bar.
        """
        places, values = 1e3 * self.positions[:, pair], self.strengths
        # Outlines in the colour of the labels, which pages replace by their own in the dark theme.
        ink = axes.xaxis.label.get_color()
        shown = {"cmap": "viridis_r", "vmin": 0.0, "vmax": largest, "edgecolors": ink, **style}
        points = axes.scatter(
            *places.T, s=30.0 + 170.0 * values / largest, c=values, zorder=3, **shown
        )
        for number, source in enumerate(self.order_, start=1):
            axes.annotate(
                str(number), places[source], xytext=(7, 6), textcoords="offset points", zorder=4
            )
            if self.orientations is not None:
                tip = places[source] + 15.0 * self.orientations[source][pair]
                axes.plot(*np.array([places[source], tip]).T, "-", color=ink, zorder=2)
        if not values.size:
            axes.text(0.5, 0.5, "no source", ha="center", transform=axes.transAxes)
        return points


def _check_result(result: Any) -> None:
    """Raise an error if `result` does not have the attributes of a `SourceResult`."""
    expected = "expected a SourceResult, which sparse_vae(..., return_result=True) returns"
    if isinstance(result, list | tuple):
        raise ValueError(
            f"result is a {type(result).__name__} of {len(result)} results, {expected} for one "
            "evoked: give one of its elements, such as result[0]."
        )
    if not all(hasattr(result, name) for name in ("amplitudes", "positions", "noise_path")):
        hint = "; SourceDisplay.from_stc draws source estimates" * hasattr(result, "vertices")
        raise ValueError(f"result is of type {type(result).__name__}, {expected}{hint}.")


def _points(values: Any, name: str) -> Floats:
    """Return points as an array (n, 3); another shape raises an error that contains `name`."""
    points = np.asarray(values, dtype=float)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(
            f"{name} has shape {points.shape}, expected (n, 3): three coordinates in each row."
        )
    return points


def _draw_outline(axes: Any, candidates: Floats | None, pair: list[int]) -> None:
    """Draw the convex hull of all possible sources in one projection; the points if it is flat.

    `candidates` are their positions in metres, and `pair` are the two coordinates that are drawn.
    """
    if candidates is None:
        return
    flat = 1e3 * candidates[:, pair]
    try:
        corners = flat[ConvexHull(flat).vertices]
    except (QhullError, ValueError):  # too few points, or all of them on a line
        axes.plot(*flat.T, ".", color="0.8", zorder=1)
        return
    # Transparent, so that it suits light and dark pages.
    axes.fill(*corners.T, facecolor=(0.5, 0.5, 0.5, 0.12), edgecolor="0.5", zorder=0)


def _path_of_sources(result: Any, path: Any, order: Floats, max_sources: int) -> NoisePathDisplay:
    """Return the display of a path of noise variances with one line for each source.

    The sources of the result come first, in the order of their numbers in the plot. Sources that
    are found only at other noise variances follow, in descending order of their largest
    contribution. At most `max_sources` sources are drawn.
    """
    # Which sources each column of the fit acts on; the columns of a source have one contribution.
    pairs = result.expansion.tocoo()
    owners, columns = pairs.row // result.n_orient, pairs.col
    used = np.zeros(path.contributions.shape, dtype=bool)
    for place, selected in enumerate(result.estimate.selected_along(path)):
        used[place, selected] = True
    listed = np.union1d(result.sources, owners[np.asarray(used.any(axis=0))[columns]]).astype(int)
    kept = np.isin(owners, listed)
    rows, columns = np.searchsorted(listed, owners[kept]), columns[kept]
    shares = np.full((listed.size, len(path)), np.nan)
    for place in range(len(path)):
        values = np.where(used[place], path.contributions[place], np.nan)[columns]
        np.fmax.at(shares[:, place], rows, values)
    own = [int(np.searchsorted(listed, source)) for source in result.sources[order]]
    peaks = np.nan_to_num(shares).max(axis=1, initial=0.0)
    others = [int(row) for row in np.argsort(-peaks, kind="stable") if row not in own]
    chosen = [*own, *others][:max_sources]
    names = [f"{number}: source {listed[row]}" for number, row in enumerate(own, start=1)]
    names += [f"source {listed[row]}" for row in others]
    marks = {"noise variance of the fit": float(result.noise_variance)}
    return NoisePathDisplay(
        path.noise_variances,
        listed[chosen],
        shares[chosen],
        marks=marks,
        names=names[: len(chosen)],
    )
