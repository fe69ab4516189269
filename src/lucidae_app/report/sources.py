"""The report on the sources of an evoked response: figure, time courses, table and certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lucidae.displays import SourceDisplay
from lucidae_app.report.page import (
    Block,
    Card,
    Chapter,
    Clock,
    Facts,
    Grid,
    Note,
    Plot,
    Prose,
    count,
    fill_page,
)
from lucidae_app.report.style import drawing, new_figure

LEAD = (
    "The few current sources that explain an evoked response, found by the variational autoencoder "
    "with full posterior covariance (Wipf 2023): where they are, how strong they are, at which "
    "noise variances they are found, and the theorems that apply."
)
ABOUT_CERTIFICATE = (
    "Each claim is tied to a theorem and was measured on the whitened data. The first four "
    "claims are about the sources shown here; the others are about the fit to all sources, "
    "from which those that are not significant were removed. They say how near the fit is to "
    "the optimum of its model, and whether other sources could explain the data as well; they "
    "do not include errors of the forward model."
)
LARGEST_LEGEND = 12


def sources_page(result: Any, *, name: str, clock: Clock, with_path: bool = True) -> str:
    """Return the text of the HTML page on a `SourceResult`."""
    with clock("path of noise variances"):
        path = result.noise_path() if with_path else None
    with clock("certificate"):
        card = Card("The certificate of the fit", result.certificate)
    chapters = [
        Chapter("sources", "Sources", _sources(result, path)),
        Chapter("amplitudes", "Amplitudes", _amplitudes(result)),
        Chapter("certificate", "Certificate", [Prose(ABOUT_CERTIFICATE), card]),
    ]
    return fill_page(f"Sources of {name}", LEAD, chapters, sum(clock.seconds.values()))


def _sources(result: Any, path: Any) -> list[Block]:
    """Return the parts on the sources: key numbers, a figure of the head, and a table."""
    facts = Facts(
        (
            *_counts(result),
            (f"{result.goodness_of_fit:.1f} %", "of the whitened power explained"),
            (f"{result.noise_variance:.3g}", "noise variance γ (1: as the noise covariance says)"),
            (f"{result.evoked.data.shape[0]} × {result.times.size}", "channels × samples"),
            (str(len(result.forward["source_rr"])), "possible sources"),
        )
    )
    blocks: list[Block] = [facts, _head(result, path)]
    rows = _rows(result)
    if not rows:
        note = (
            "No source is significant: none explains more of the data than noise would. Check that "
            "the noise covariance and the number of averages describe the noise, or try a smaller "
            "noise variance."
        )
        return [*blocks, Note(note)]
    header = ("number", "source", "x, y, z (mm)", "peak (nA·m)", "± (nA·m)", "at (ms)", "share (%)")
    text = (
        "Peak amplitudes with their posterior standard deviation (noise alone, not errors of the "
        "forward model), the time of the peak, and the share of the whitened power that the source "
        "explains at that time. Positions are in head coordinates. Sources are named by hemisphere "
        "or source space and by the number of their vertex, as in the source estimate of MNE."
    )
    if any(found.size > 1 for found in result.found_sources):
        text += (
            " The position of a patch is that of its central source, its amplitude is that of each "
            "of its sources, and its share is that of the whole patch. It is numbered by the sum "
            "of the amplitudes of its sources."
        )
    advice = [Note(result.advice)] if result.advice else []
    return [*blocks, *advice, Prose(text), Grid(header, rows)]


def _counts(result: Any) -> list[tuple[str, str]]:
    """Return the number of point sources and, if there are any, of patches, with their texts."""
    sizes = [found.size for found in result.found_sources]
    patches = sum(size > 1 for size in sizes)
    if not patches:
        return [(str(len(sizes)), "source" if len(sizes) == 1 else "sources")]
    points = len(sizes) - patches
    return [
        (str(points), "point source" if points == 1 else "point sources"),
        (str(patches), "patch" if patches == 1 else "patches"),
    ]


def _rows(result: Any) -> tuple[tuple[str, ...], ...]:
    """Return the table of sources as rows of text, one per point source or patch."""
    entries = [found.to_dict() for found in result.found_sources]
    return tuple(
        (
            str(number),
            entry["name"],
            ", ".join(f"{1e3 * value:.1f}" for value in entry["center"]),
            f"{1e9 * entry['amplitude']:.3g}",
            f"{1e9 * entry['standard_deviation']:.2g}",
            f"{1e3 * entry['time']:.1f}",
            f"{entry['goodness_of_fit']:.1f}",
        )
        for number, entry in enumerate(entries, start=1)
    )


def _head(result: Any, path: Any) -> Plot:
    """Return a plot of the sources in the head and of the noise variances at which they occur."""
    shown = SourceDisplay.prepared(result, path=False if path is None else path)
    with drawing():
        figure = Figure(figsize=(9.6, shown.height))
        shown.plot(ax=shown.arranged(figure))
    entries = [found.to_dict() for found in result.found_sources]
    numbers = {
        "number": list(range(1, len(entries) + 1)),
        "source": [entry["center_source"] for entry in entries],
        **{
            f"{axis} (m)": [entry["center"][place] for entry in entries]
            for place, axis in enumerate("xyz")
        },
        "amplitude (A·m)": [entry["amplitude"] for entry in entries],
        "time (s)": [entry["time"] for entry in entries],
        "name": [entry["name"] for entry in entries],
        "size": [entry["size"] for entry in entries],
    }
    caption = (
        "The sources in three projections of the head; the grey area is the outline of all "
        "possible sources, and lines are orientations."
    )
    if any(entry["size"] > 1 for entry in entries):
        caption += " A patch is drawn as its sources in one colour, with its number in the centre."
    if path is not None:
        caption += (
            f" Below, which sources are significant at {count(len(path), 'noise variance')}. "
            "Sources that stay over a wide range do not depend on the choice of the noise "
            "variance; sources that appear only below the noise variance of the fit explain noise."
        )
    return Plot.of("sources", figure, caption, numbers, keeps_colours=True)


def _amplitudes(result: Any) -> list[Block]:
    """Return a plot of the amplitudes of the sources and of the explained power over time."""
    found = result.found_sources
    fixed = result.n_orient == 1  # otherwise an amplitude has three components
    courses = [
        1e9 * (one.amplitudes[0] if fixed else np.linalg.norm(one.amplitudes, axis=0))
        for one in found
    ]
    times = 1e3 * result.times
    with drawing():
        figure, (axes, below) = new_figure(2, 1, figsize=(8.2, 4.6), sharex=True)
        for number, (one, course) in enumerate(zip(found, courses, strict=True), start=1):
            label = f"{number}: {one.name}" if number <= LARGEST_LEGEND else None
            axes.plot(times, course, label=label)
        if len(courses):
            axes.legend(title="source", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        norm = "" if fixed else ": norm of its three components"
        axes.set(ylabel="amplitude (nA·m)", title=f"Amplitude of each source{norm}")
        below.plot(times, result.goodness_of_fit_per_time)
        below.set(xlabel="time (ms)", ylabel="explained (%)", title="Explained share of the power")
    numbers = {
        "time (s)": result.times.tolist(),
        "explained (%)": result.goodness_of_fit_per_time.tolist(),
        **{f"source {n} (nA·m)": row.tolist() for n, row in enumerate(courses, start=1)},
    }
    kind = "least squares on the sources" if result.debias else "posterior means"
    caption = (
        f"Amplitudes of the sources ({kind}"
        f"{'' if fixed else '; norms of the three components, which have no sign'}), "
        "numbered as above, and the share of the power of the whitened data that they explain at "
        "each time."
    )
    if any(one.size > 1 for one in found):
        caption += " The curve of a patch is the amplitude of each of its sources."
    return [Plot.of("amplitudes", figure, caption, numbers)]
