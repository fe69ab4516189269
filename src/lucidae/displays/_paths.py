"""Displays of paths: over noise variances, over ranks and over dropout rates."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from lucidae.arrays import to_numpy
from lucidae.displays._fits import Display, checked_shape, draw_marks, ink, plain_text

RATES = (1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
"""Dropout rates that are labelled on an axis of dropout rates."""


def columns_in_use(path: Any, supports: Any) -> np.ndarray[Any, Any]:
    """Return which columns are in the support at each noise variance of a path, as its rows."""
    used = np.zeros(path.contributions.shape, dtype=bool)
    for place, support in enumerate(supports):
        used[place, support] = True
    return used


class NoisePathDisplay(Display):
    """Plot of the columns of a dictionary that are significant at each of several noise variances.

    Each line of the plot is a column; the one that becomes significant at the largest noise
    variance is at the top. The cells of a line show the contribution of the column, by colour, at
    the noise variances at which it is significant. A star marks a column that becomes significant
    and then, at some smaller noise variance, is not. Use `from_path` or ``NoisePath.plot`` to
    create one.

    Parameters
    ----------
    noise_variances : array of shape (m,)
        The noise variances, in descending order.
    columns : array of int of shape (k,)
        The columns that are drawn.
    contributions : array of shape (k, m)
        Share of the power of the responses that each column contributes; NaN where it is not
        significant.
    marks : dict of str to float, optional
        Up to two noise variances to mark by lines. The keys are their texts in the legend.
    names : sequence of str, optional
        Names of the columns; their indices by default.
    noun : str, default="column"
        What a line of the plot is called in its texts.
    omitted : int, default=0
        Number of further columns that are significant somewhere, but are not drawn.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    mesh_ : matplotlib collection
        The cells.

    Examples
    --------
    >>> import lucidae
    >>> data = lucidae.datasets.make_sparse_regression(d=20, kappa=30, r=2, random_state=0)
    >>> path = lucidae.sparsity.noise_path(data.dictionary, data.responses, [1.0, 0.1], cv=False)
    >>> display = lucidae.displays.NoisePathDisplay.from_path(path)
    >>> bool(display.stays.all())
    True
    """

    def __init__(
        self,
        noise_variances: Any,
        columns: Any,
        contributions: Any,
        *,
        marks: dict[str, float] | None = None,
        names: Any = None,
        noun: str = "column",
        omitted: int = 0,
    ) -> None:
        self.noise_variances = np.asarray(to_numpy(noise_variances), dtype=float)
        self.columns = np.asarray(columns, dtype=int)
        self.contributions = checked_shape(
            contributions,
            (self.columns.size, self.noise_variances.size),
            "contributions",
            "one row per column of the dictionary, with one entry per noise variance",
        )
        self.marks = dict(marks or {})
        self.names = [str(column) for column in self.columns] if names is None else list(names)
        self.noun = noun
        self.omitted = omitted

    @classmethod
    def from_path(cls, path: Any, *, max_columns: int = 30, ax: Any = None, **style: Any) -> Self:
        """Draw the significant columns on a path that `lucidae.sparsity.noise_path` has computed.

        Parameters
        ----------
        path : NoisePath
            The path.
        max_columns : int, default=30
            Largest number of columns to draw; those with the largest contributions are taken.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **style
            Keyword arguments of ``ax.pcolormesh``.

        Returns
        -------
        NoisePathDisplay
            The display, already drawn.
        """
        used = columns_in_use(path, path.supports)
        peaks = np.where(used, path.contributions, 0.0).max(axis=0)
        chosen = np.flatnonzero(used.any(axis=0))
        omitted = max(chosen.size - max_columns, 0)
        chosen = chosen[np.argsort(-peaks[chosen], kind="stable")][:max_columns]
        entry = np.argmax(used[:, chosen], axis=0)
        chosen = chosen[np.lexsort((-peaks[chosen], entry))]
        values = np.where(used[:, chosen], path.contributions[:, chosen], np.nan).T
        marks = {}
        if not np.isnan(path.held_out_error).any():
            best = int(np.argmin(path.held_out_error))
            marks["smallest held-out error"] = float(path.noise_variances[best])
        part = path.stable_part
        if part.stop > part.start:
            marks["end of the stable part"] = float(path.noise_variances[part.stop - 1])
        names = [plain_text(path.column_name(column)) for column in chosen]
        display = cls(
            path.noise_variances, chosen, values, names=names, marks=marks, omitted=omitted
        )
        return display.plot(ax=ax, **style)

    @property
    def line_label(self) -> str:
        """What a line is called, and how many of how many lines are drawn unless all are."""
        count = self.columns.size
        return self.noun + (f" ({count} of {count + self.omitted})" if self.omitted else "")

    @property
    def stays(self) -> np.ndarray[Any, Any]:
        """Whether each column, once it is significant, is so at all smaller noise variances."""
        used = ~np.isnan(self.contributions)
        first = np.argmax(used, axis=1)
        after = np.arange(used.shape[1]) >= first[:, None]
        return np.asarray(used.any(axis=1) & (used == after).all(axis=1))

    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
        noise, count = self.noise_variances, self.columns.size
        if not count:
            text = f"no {self.noun} is significant"
            ax.text(0.5, 0.75, text, ha="center", va="center", transform=ax.transAxes)
        # Each cell reaches half-way to its neighbours on the logarithmic axis.
        middles = np.sqrt(noise[1:] * noise[:-1]) if noise.size > 1 else noise[:0]
        step = noise[0] / middles[0] if middles.size else 1.5
        last = noise[-1] / middles[-1] if middles.size else 1.0 / 1.5
        edges = np.concatenate([[noise[0] * step], middles, [noise[-1] * last]])
        limits = {"vmin": 0.0} if count else {"vmin": 0.0, "vmax": 1.0}  # no cell has a value
        shown = {"cmap": "viridis_r", **limits, **style}
        cells = np.ma.masked_invalid(self.contributions.reshape(count, noise.size))
        self.mesh_ = ax.pcolormesh(edges, np.arange(count + 1.0), cells, **shown)
        ax.set_xscale("log")
        ax.set_xlim(edges[0], edges[-1])  # decreasing, as the path is walked
        ax.set_ylim(max(count, 1), 0)
        labels = [
            f"{name}{'' if stays else ' *'}"
            for name, stays in zip(self.names, self.stays, strict=True)
        ]
        ax.set_yticks(np.arange(count) + 0.5, labels)
        # Below the text if there is no column.
        draw_marks(ax, self.marks, top=1.0 if count else 0.5, linewidth=2)
        if self.marks:
            ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        if count:
            ax.figure.colorbar(self.mesh_, ax=ax, label="share of the power of the responses")
        label = f"significant {self.line_label}" if count else ""
        star = "" if self.stays.all() else f" (*: intermittent {self.noun})"
        ax.set(xlabel=f"noise variance{star}", ylabel=label)


class RankPathDisplay(Display):
    """Plot of the errors of reduced-rank regression on training and held-out rows by rank.

    Errors on held-out rows have bars of one standard error. The rank of the smallest error, and the
    smallest rank within one standard error of it, are marked. Use `from_path` or ``RankPath.plot``
    to create one.

    Parameters
    ----------
    rank : array of int of shape (n,)
        The ranks.
    error : array of shape (n,)
        Mean squared error on the training rows.
    held_out_error, standard_error : arrays of shape (n,)
        Mean squared error on held-out rows and its standard error; NaN if they are not known.
    marks : dict of str to int, optional
        Up to two ranks to mark by lines. The keys are their texts in the legend.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the plot and their figure.
    lines_ : list of matplotlib artists
        The curves of the errors.

    Examples
    --------
    >>> import lucidae
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 4))
    >>> path = lucidae.dropout.rank_path(X, X[:, :3] + rng.standard_normal((60, 3)))
    >>> display = lucidae.displays.RankPathDisplay.from_path(path)
    >>> len(display.lines_)
    2
    """

    def __init__(
        self,
        rank: Any,
        error: Any,
        held_out_error: Any,
        standard_error: Any,
        *,
        marks: dict[str, int] | None = None,
    ) -> None:
        self.rank = np.asarray(rank, dtype=int)
        given = {"error": error, "held_out_error": held_out_error, "standard_error": standard_error}
        self.error, self.held_out_error, self.standard_error = (
            checked_shape(values, self.rank.shape, name, "one entry per rank")
            for name, values in given.items()
        )
        self.marks = dict(marks or {})

    @classmethod
    def from_path(cls, path: Any, *, ax: Any = None, **style: Any) -> Self:
        """Draw the errors on a path of ranks that `lucidae.dropout.rank_path` has computed.

        Parameters
        ----------
        path : RankPath
            The path.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **style
            Keyword arguments of ``ax.errorbar``.

        Returns
        -------
        RankPathDisplay
            The display, already drawn.
        """
        marks = {}
        if path.cv is not None:
            marks["smallest held-out error"] = path.best
        if not np.isnan(path.standard_error).any():
            marks["within one standard error"] = path.one_se
        display = cls(path.rank, path.error, path.held_out_error, path.standard_error, marks=marks)
        return display.plot(ax=ax, **style)

    def _draw(self, ax: Any, style: dict[str, Any]) -> None:
        held_out, spread = self.held_out_error, self.standard_error
        grey = {"color": "tab:gray", "label": "training rows"}
        self.lines_ = list(ax.plot(self.rank, self.error, "o--", **grey))
        if not np.isnan(held_out).all():
            shown = {"fmt": "o-", "capsize": 3, "color": "tab:blue", **style}
            bars = None if np.isnan(spread).any() else spread
            self.lines_.append(
                ax.errorbar(self.rank, held_out, yerr=bars, label="held-out rows", **shown)
            )
        draw_marks(ax, self.marks, linewidth=1.5, zorder=0)
        ax.set_ylim(bottom=0.0)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(frameon=False)
        ax.set(xlabel="rank of the coefficients", ylabel="mean squared error, summed over targets")


class DropoutPathDisplay(Display):
    """Plot of the error and the rank of the optimum against the dropout rate.

    The horizontal axis is log(dropout/(1 − dropout)), on which both small rates and rates close to
    1 can be seen; a rate of 0 is not drawn, because its logarithm is infinite. Use `from_path`,
    ``RegularizationPath.plot`` or ``CompletionPath.plot`` to create one.

    Parameters
    ----------
    dropout : array of shape (n,)
        The dropout rates.
    error : array of shape (n,)
        Mean squared error of the optimum, predicting without dropout.
    rank : array of int of shape (n,)
        Rank of the optimum.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes of the errors and their figure.
    rank_ax_ : matplotlib axes
        Axes of the ranks, which share the axis of the rates.
    line_, rank_line_ : matplotlib lines
        The lines of the errors and of the ranks.

    Examples
    --------
    >>> import lucidae
    >>> import numpy as np
    >>> M = np.diag([3.0, 2.0, 1.0])
    >>> M[0, 1] = np.nan
    >>> path = lucidae.dropout.completion_path(M, 3, [0.1, 0.6, 0.9])
    >>> lucidae.displays.DropoutPathDisplay.from_path(path).rank
    array([3, 2, 1])
    """

    def __init__(self, dropout: Any, error: Any, rank: Any) -> None:
        self.dropout = np.asarray(to_numpy(dropout), dtype=float)
        shape, what = self.dropout.shape, "one entry per dropout rate"
        self.error = checked_shape(error, shape, "error", what)
        self.rank = checked_shape(rank, shape, "rank", what).astype(int)

    @classmethod
    def from_path(cls, path: Any, *, ax: Any = None, **line: Any) -> Self:
        """Draw the error and the rank of the optimum against the dropout rates of a path.

        Parameters
        ----------
        path : RegularizationPath or CompletionPath
            What `lucidae.dropout.regularization_path` or `lucidae.dropout.completion_path` returns.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot`` for the error.

        Returns
        -------
        DropoutPathDisplay
            The display, already drawn.
        """
        return cls(path.dropout, path.error, path.rank).plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        inside = self.dropout > 0.0
        rates, blue, grey = self.dropout[inside], "tab:blue", "tab:gray"
        style = {"color": blue, "linewidth": 2.0, **line}
        self.rank_ax_ = ax.twinx()
        (self.line_,) = ax.plot(rates, self.error[inside], label="error", **style)
        (self.rank_line_,) = self.rank_ax_.plot(
            rates, self.rank[inside], color=grey, drawstyle="steps-mid", linestyle="--"
        )
        self.rank_line_.set_label("rank (right)")
        ax.set_xscale("logit")
        low, high = (rates.min(), rates.max()) if rates.size else (0.1, 0.9)
        ticks = [rate for rate in RATES if 0.9 * low <= rate and 0.9 * (1 - high) <= 1 - rate]
        if len(ticks) < 3 and rates.size <= 8:
            ticks = sorted(rates)
        ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
        ax.set_xticks([], minor=True)
        ax.set_ylim(bottom=0.0)
        self.rank_ax_.set_ylim(bottom=0.0)
        self.rank_ax_.yaxis.get_major_locator().set_params(integer=True)
        self.rank_ax_.set_ylabel("rank of the optimum")
        ax.set(xlabel="dropout rate", ylabel="mean squared error without dropout")
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}
        ax.legend(handles=[self.line_, self.rank_line_], frameon=False, **place)


class EnergySliceDisplay(Display):
    """Plot of the energies (losses) of the three posteriors along one relevance.

    Each energy is drawn relative to its smallest local minimum, which a dot marks like all others;
    the vertical line is the fitted relevance. Use `from_estimator` or ``EnergySlice.plot``.

    Parameters
    ----------
    energies : EnergySlice
        What `SparseVAE.energy_slice` returns.

    Attributes
    ----------
    ax_, figure_ : matplotlib axes and figure
        Axes and figure of the plot.
    lines_ : dict of str to matplotlib line
        The lines of the energies, by the name of the posterior.

    Examples
    --------
    >>> import lucidae
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((20, 30))
    >>> y = X[:, [4]] @ rng.standard_normal((1, 5)) + 0.1 * rng.standard_normal((20, 5))
    >>> model = lucidae.SparseVAE(noise_variance=0.01).fit(X, y)
    >>> display = lucidae.displays.EnergySliceDisplay.from_estimator(model, 4)
    >>> sorted(display.lines_)
    ['diagonal', 'full', 'point']
    """

    def __init__(self, energies: Any) -> None:
        self.energies = energies

    @classmethod
    def from_estimator(
        cls, estimator: Any, j: int, X: Any = None, y: Any = None, *, ax: Any = None, **line: Any
    ) -> Self:
        """Draw the energies along the relevance of one column of a fitted `SparseVAE`.

        Parameters
        ----------
        estimator : SparseVAE
            The fitted estimator.
        j : int
            Index of the column.
        X, y : optional
            The data of the fit, if the estimator does not have them any more.
        ax : matplotlib axes, optional
            Axes to draw on; by default a new figure is made.
        **line
            Keyword arguments of ``ax.plot``.

        Returns
        -------
        EnergySliceDisplay
            The display, already drawn.
        """
        return cls(estimator.energy_slice(j, X, y)).plot(ax=ax, **line)

    def _draw(self, ax: Any, line: dict[str, Any]) -> None:
        names = {"full": "full posterior", "diagonal": "diagonal posterior", "point": "autoencoder"}
        colors = {"full": "tab:blue", "diagonal": "tab:orange", "point": "tab:gray"}
        dashes = {"full": "-", "diagonal": "--", "point": "-."}  # seen where they coincide
        relevance, full, self.lines_ = self.energies.relevance, self.energies.full, {}
        axis = np.maximum(relevance, relevance[1])  # a minimum at zero is drawn at the left edge
        for name, label in names.items():
            values, minima = getattr(self.energies, name), self.energies.minima(name)
            places = np.searchsorted(relevance, minima)
            lowest = values[places].min() if places.size else np.nanmin(values)
            shape = {"color": colors[name], "linestyle": dashes[name], "linewidth": 2.0}
            style = {**shape, "label": label, **line}
            (self.lines_[name],) = ax.plot(axis[1:], values[1:] - lowest, **style)
            ax.plot(axis[places], values[places] - lowest, "o", color=style["color"])
        if self.energies.fitted > 0.0:
            ax.axvline(self.energies.fitted, color=ink(ax), linestyle=":", linewidth=1.2)
        # The energy of the full posterior at zero, or where it has grown, sets the height.
        top = float(max(full[0], full[2 * len(full) // 3]) - full.min()) or 1.0
        ax.set_xscale("log")
        ax.set_xlim(axis[1], axis[-1])
        below = min(np.nanmin(drawn.get_ydata()) for drawn in self.lines_.values())
        ax.set_ylim(max(below - 0.05 * top, -0.25 * top), 1.25 * top)
        ax.set(
            xlabel=f"relevance (prior variance) of column {self.energies.column}",
            ylabel="energy above its smallest minimum",
        )
        ax.legend(frameon=False, loc="best")
