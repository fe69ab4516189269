"""Display of current sources in the head, with the noise variances at which they are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.spatial import ConvexHull, QhullError

from lucidae.displays._fits import Display, ink, new_figure
from lucidae.displays._paths import NoisePathDisplay, columns_in_use

Floats = np.ndarray[Any, Any]

VIEWS = {
    "from above": ((0, 1), ("left – right (mm)", "back – front (mm)")),
    "from behind": ((0, 2), ("left – right (mm)", "bottom – top (mm)")),
    "from the right": ((1, 2), ("back – front (mm)", "bottom – top (mm)")),
}
"""Coordinates of the three projections, and the labels of their axes."""

SMALLEST = 30.0
"""Area of the smallest circle, and of the vertices of a patch, in square points."""

WIDTH_OF_AXES = 160.0
"""Approximate width of a projection in points, from which distances in mm are computed."""

HALF_OF_A_NUMBER = 6.0
"""Half the width of the number of a source in points."""

MOST_NUMBERS = 20
"""Largest number of sources that have a number in the projections: the strongest ones."""

NAMES_IN_A_ROW = 5
"""Number of names in a row of the list of names below the projections."""


HEMISPHERES = {101: "lh", 102: "rh"}
"""Identifiers of the two surfaces in files of MNE, and the names of the hemispheres."""


class SourceDisplay(Display):
    """Plot of current sources in three projections of the head.

    The sources are numbered by their strength, those of a result by the power of their fields at
    the sensors; only the first 20 have a number, and "?" marks doubtful ones. Areas and colours of
    the circles show the strengths, and lines show the orientations of the numbered sources. A patch
    (extended source) is drawn as its vertices in one colour, with one number at its centre. The
    grey outline is the convex hull of all possible
    sources. If a path (solutions for a series of noise variances) is given, a panel below shows
    which sources are found at which noise variance; otherwise the names of the sources are listed
    below. Use `from_result` or `from_stc` to create one.

    Parameters
    ----------
    positions : array of shape (n, 3)
        Positions of the sources in metres; x points to the right, y to the front, z to the top. For
        a patch, the position of its centre.
    strengths : array of shape (n,)
        Largest amplitudes of the sources over time, in `unit`. For a patch, that of each vertex;
        its number follows from the sum over its vertices.
    candidates : array of shape (m, 3), optional
        Positions of all possible sources, whose outline is drawn.
    orientations : array of shape (n, 3), optional
        Unit vectors of the currents.
    names : sequence of str, optional
        Names of the sources, which are listed below the projections if there is no path. By default
        their indices in `positions`, which are not listed.
    patches : sequence of arrays of shape (k, 3), optional
        Positions of the vertices of each source, one for a point and several for a patch. By
        default all sources are points.
    doubtful : sequence of bool, optional
        Whether each source is doubtful; the numbers of such sources are followed by "?".
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
        patches: Sequence[Any] | None = None,
        doubtful: Sequence[bool] | None = None,
        unit: str = "nA·m",
        path: NoisePathDisplay | None = None,
    ) -> None:
        self.positions = _points(positions, "positions")
        self.strengths = np.asarray(strengths, dtype=float).reshape(-1)
        count = len(self.positions)
        self.candidates = None if candidates is None else _points(candidates, "candidates")
        self.orientations = None if orientations is None else _points(orientations, "orientations")
        self.listed = names is not None
        self.names = [str(index) for index in range(count)] if names is None else list(names)
        parts = self.positions[:, None] if patches is None else patches
        self.patches = [_points(part, "an entry of patches") for part in parts]
        for name, given, wanted in (
            ("strengths", self.strengths, "one strength for"),
            ("orientations", self.orientations, "one unit vector for"),
            ("patches", self.patches, "the positions of the vertices of"),
        ):
            if given is not None and len(given) != count:
                raise ValueError(
                    f"{name} has {len(given)} entries, but positions has {count} rows; give "
                    f"{wanted} each source."
                )
        self.doubtful = [False] * count if doubtful is None else [bool(one) for one in doubtful]
        self.unit = unit
        self.path = path
        sizes = np.array([len(part) for part in self.patches], dtype=int)
        self.order_ = np.argsort(-self.strengths * sizes, kind="stable")

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
        found = result.found_sources
        display = cls(
            np.reshape([one.position for one in found], (-1, 3)),
            [1e9 * one.amplitude for one in found],
            candidates=result.forward["source_rr"],
            orientations=np.reshape([one.direction for one in found], (-1, 3)),
            names=[one.name for one in found],
            patches=[one.positions for one in found],
            doubtful=[one.doubtful for one in found],
        )
        display.order_ = np.arange(len(found))  # by the power of their fields
        if path is not False and path is not None:
            walked = result.noise_path() if path is True else path
            display.path = _path_of_sources(result, walked, max_sources)
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
        names = source_names(spaces, vertices)
        display = cls(
            np.concatenate(points)[used],
            strengths[used],
            candidates=candidates,
            names=[names[place] for place in used],
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
            ax = self.arranged(new_figure(self, figsize=(10.0, self.height)))
        axes = np.asarray(ax, dtype=object).reshape(-1)
        if axes.size != wanted:
            raise ValueError(
                f"ax has {axes.size} axes, expected {wanted}, for three "
                f"projections{' and the path of noise variances' if wanted == 4 else ''}."
            )
        self.ax_, self.figure_ = axes, axes[0].figure
        self._draw(axes, style)
        return self

    @property
    def height(self) -> float:
        """Height in inches that suits a figure of ten inches in width."""
        if self.path is None:
            rows = -(-len(self._numbered()) // NAMES_IN_A_ROW) if self.listed else 0
            return 3.6 + 0.2 * rows
        return 4.6 + 0.22 * self.path.columns.size

    def arranged(self, figure: Any) -> list[Any]:
        """Return new axes of a figure: three for the projections, side by side, one for the path.

        The axes for the path of noise variances are below the others; they are made only if the
        display has a path. Otherwise the names of the sources are listed below, if the figure has a
        layout engine, such as ``layout="constrained"``.

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
            if self.listed and self.names and figure.get_layout_engine() is not None:
                self._list_names(figure)
            return list(figure.subplots(1, 3))
        below = 1.2 + 0.22 * self.path.columns.size
        places = figure.subplot_mosaic("abc;ppp", height_ratios=(3.4, below))
        return [places[name] for name in "abcp"]

    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
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
        if self.strengths.size > MOST_NUMBERS:
            text = f"numbers: the first {MOST_NUMBERS} of {self.strengths.size}"
            place = {"xycoords": "axes fraction", "textcoords": "offset points"}
            ax[1].annotate(text, (0.5, 1.0), (0, 24), ha="center", fontsize="small", **place)
        if self.path is not None:
            self.path.plot(ax=ax[3])
            ax[3].set_ylabel(self.path.line_label if self.path.columns.size else "")
            if self.path.mesh_.colorbar is not None:
                self.path.mesh_.colorbar.set_label("share of the power")

    def _numbered(self) -> list[tuple[str, int]]:
        """Return the numbers of the sources that have one, from 1, with their indices."""
        return [
            (f"{number}{'?' * self.doubtful[source]}", int(source))
            for number, source in enumerate(self.order_[:MOST_NUMBERS], start=1)
        ]

    def _list_names(self, figure: Any) -> None:
        """List the numbers and names of the sources below the projections of a figure."""
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], linestyle="none", label=f"{number}: {self.names[source]}")
            for number, source in self._numbered()
        ]
        style = {"frameon": False, "handlelength": 0.0, "handletextpad": 0.0, "fontsize": "small"}
        figure.legend(handles=handles, loc="outside lower center", ncols=NAMES_IN_A_ROW, **style)

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
        """Draw sources, numbers and orientations in one projection; return the circles."""
        sizes = [len(part) for part in self.patches]
        vertices = 1e3 * np.concatenate([np.zeros((0, 3)), *self.patches])[:, pair]
        values = np.repeat(self.strengths, sizes)
        # Outlines in the colour of the labels, which pages replace by their own in the dark theme.
        outline = {"vmin": 0.0, "vmax": largest, "edgecolors": ink(axes)}
        shown = {"cmap": "viridis_r", **outline, **style}
        areas = np.repeat(np.where(np.array(sizes) > 1, SMALLEST, self._areas), sizes)
        points = axes.scatter(*vertices.T, s=areas, c=values, zorder=3, **shown)
        numbered = [source for _, source in self._numbered()]
        if self.orientations is not None:
            for line in self._lines(pair)[numbered]:
                axes.plot(*line[[0, -1]].T, "-", color=ink(axes), zorder=2)
        self._draw_numbers(axes, pair)
        if not values.size:
            axes.text(0.5, 0.5, "no source", ha="center", transform=axes.transAxes)
        return points

    def _lines(self, pair: list[int]) -> Floats:
        """Return points on the lines of orientation in one projection, in mm, (n, n_points, 2)."""
        if self.orientations is None:
            return np.zeros((len(self.positions), 0, 2))
        steps = np.linspace(0.0, 15.0, 9)[:, None]
        return np.asarray(
            1e3 * self.positions[:, None, pair] + steps * self.orientations[:, None, pair]
        )

    def _draw_numbers(self, axes: Any, pair: list[int]) -> None:
        """Draw the numbers of the strongest sources in one projection.

        The number of a patch is in its centre, on a white background. That of a point is beside its
        circle, away from lines, other circles and other numbers where there is room.
        """
        places = 1e3 * self.positions[:, pair]
        circles = 1e3 * np.concatenate([np.zeros((0, 3)), *self.patches])[:, pair]
        numbered = self._numbered()
        lines = self._lines(pair)[[source for _, source in numbered]].reshape(-1, 2)
        taken = np.concatenate([circles, lines])
        point = 2.0 * self._extent()[1] / WIDTH_OF_AXES  # in mm
        ends = HALF_OF_A_NUMBER * point * np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "black"}
        style = {"ha": "center", "va": "center", "textcoords": "offset points"}
        for number, source in numbered:
            if len(self.patches[source]) > 1:
                boxed = {"color": "black", "fontsize": "small", "bbox": box, "zorder": 5}
                axes.annotate(number, places[source], xytext=(0, 0), **style, **boxed)
                continue
            distance = 0.5 * np.sqrt(self._areas[source]) + 6.0
            reach = distance * point
            shift = _free_direction(places[source], reach, taken)
            taken = np.concatenate([taken, places[source] + reach * shift + ends])
            axes.annotate(number, places[source], xytext=distance * shift, zorder=4, **style)

    @property
    def _areas(self) -> Floats:
        """Areas of the circles of point sources in square points."""
        return SMALLEST + 170.0 * self.strengths / (self.strengths.max(initial=0.0) or 1.0)


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


def _free_direction(place: Floats, reach: float, taken: Floats) -> Floats:
    """Return the unit vector from `place` to the point at distance `reach` farthest from `taken`.

    Of several directions in which it is farther than `reach`, the first is chosen.
    """
    angles = np.pi * (0.23 + np.arange(12) / 6.0)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    ends = place + reach * directions
    gaps = np.linalg.norm(ends[:, None] - taken[None], axis=2).min(axis=1)
    return np.asarray(directions[np.argmax(np.minimum(gaps, 0.999 * reach))])


def _draw_outline(axes: Any, candidates: Floats | None, pair: list[int]) -> None:
    """Draw the convex hull of all possible sources in one projection; the points if it is flat."""
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


def _path_of_sources(result: Any, path: Any, max_sources: int) -> NoisePathDisplay:
    """Return the display of a path of noise variances with one line for each source or patch.

    The sources of the result come first, in the order of their numbers in the plot. Sources that
    are found only at other noise variances follow, in descending order of their largest
    contribution.
    """
    labels, own = np.asarray(result.estimate.labels), result.groups
    used = columns_in_use(path, result.estimate.selected_along(path))
    listed = np.union1d(own, labels[used.any(axis=0)]).astype(int)
    kept = np.flatnonzero(np.isin(labels, listed))
    rows = np.searchsorted(listed, labels[kept])
    shares = np.full((listed.size, len(path)), np.nan)
    for place in range(len(path)):  # all columns of a source or patch have the same contribution
        values = np.where(used[place], path.contributions[place], np.nan)[kept]
        np.fmax.at(shares[:, place], rows, values)
    peaks = np.nan_to_num(shares).max(axis=1, initial=0.0)
    others = [row for row in np.argsort(-peaks, kind="stable") if listed[row] not in own]
    chosen = [*np.searchsorted(listed, own), *others][:max_sources]
    names = [result.group_name(listed[row]) for row in chosen]
    marks = ["?" * one.doubtful for one in result.found_sources]
    names[: own.size] = [
        f"{number}{mark}: {name}"
        for number, (mark, name) in enumerate(zip(marks, names, strict=False), 1)
    ]
    return NoisePathDisplay(
        path.noise_variances,
        listed[chosen],
        shares[chosen],
        marks={"noise variance of the fit": float(result.noise_variance)},
        names=names,
        noun="source",
        omitted=listed.size - len(chosen),
    )


def source_names(spaces: Any, vertices: Any) -> list[str]:
    """Return the names of sources: hemisphere or source space, and number of the vertex.

    The names are such as "lh 258" for surfaces and "vertex 1133" for a single volume. Further
    volumes have the name of their segment, or the index of their source space, from 0.
    """
    prefixes = [_space_name(space, index, len(spaces)) for index, space in enumerate(spaces)]
    for index, prefix in enumerate(prefixes):
        if prefixes.count(prefix) > 1:  # two source spaces of one segment
            prefixes[index] = f"space {index} {prefix}"
    return [
        f"{prefix} {vertex}"
        for prefix, numbers in zip(prefixes, vertices, strict=True)
        for vertex in numbers
    ]


def _space_name(space: Any, index: int, count: int) -> str:
    """Return the name that precedes the vertex numbers of source space `index` of `count`."""
    if space.get("type") == "surf" and int(space.get("id", -1)) in HEMISPHERES:
        return HEMISPHERES[int(space["id"])]
    if count == 1:
        return "vertex"
    return str(space.get("seg_name") or f"space {index} vertex")
