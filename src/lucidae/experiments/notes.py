"""Write the pages of docs/results: for each experiment a page of Markdown and its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lucidae.certificate import Claim
from lucidae.experiments.declaration import VerdictKind
from lucidae.experiments.engine import count, duration
from lucidae.experiments.outcomes import WORDS, Judgement, Outcome
from lucidae.experiments.verdicts import measured
from lucidae.io.atomic import atomic_path
from lucidae.report.blocks import Plot
from lucidae.report.style import LIGHT

__all__ = ["write_notes"]

LARGEST_FIGURE = 1_000_000
"""Largest size of an SVG figure in bytes; larger figures are not written."""

NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_DIGITS = re.compile(r"(\.\d\d)\d+")
INTRODUCTION = """# Results

Results of `lucidae reproduce`, with their settings and machines. Each page has three kinds of
verdict: a claim of the paper was *seen* or *not seen*, a finding of our own *holds* or *does not
hold*, and a measured value that is only *reported* has no verdict.
"""


def write_notes(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write ``NAME.md`` and its figures for each experiment, and an index of the whole folder.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Finished experiments.
    folder : path
        Folder of the notes; notes of other experiments are not changed.

    Returns
    -------
    Path
        The index of the folder, ``index.md``.
    """
    for outcome in outcomes:
        figures = _figures(outcome, folder)
        _write(folder / f"{outcome.experiment.name}.md", _note(outcome, figures))
    titles = {path.stem: _title(path) for path in sorted(folder.glob("*.md"))}
    lines = [f"* [{name}]({name}.md): {title}" for name, title in titles.items() if name != "index"]
    return _write(folder / "index.md", "\n".join([INTRODUCTION, *lines, ""]))


def _figures(outcome: Outcome, folder: Path) -> list[tuple[str, str]]:
    """Write the figures of an outcome as SVG files; return (file name, caption) for each."""
    blocks = outcome.experiment.draw(outcome)
    plots = [block for block in blocks if isinstance(block, Plot)]
    written = []
    for plot in plots:
        text = standalone(plot.svg)
        if len(text) <= LARGEST_FIGURE:
            name = f"{plot.name}-{outcome.scale}.svg"
            _write(folder / name, text)
            written.append((name, plot.caption))
    return written


def standalone(svg: str) -> str:
    """Return the SVG text of a figure of the HTML page in a form that can be a file by itself.

    XML namespaces and a white background are added, and CSS variables are replaced by colours.
    Coordinates are cut to two decimals, which halves the file.

    Examples
    --------
    >>> standalone('<svg viewBox="0 0 9 9"><path fill="var(--blue)"/></svg>').count("var(")
    0
    """
    for name, colour in LIGHT.items():
        svg = svg.replace(f"var(--{name})", colour)
    svg = re.sub(r' d="[^"]*"', lambda path: _DIGITS.sub(r"\1", path[0]), svg)
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"<svg ([^>]*)>", rf"<svg {NAMESPACES} \1>{background}", svg, count=1) + "\n"


def _note(outcome: Outcome, figures: Sequence[tuple[str, str]]) -> str:
    experiment = outcome.experiment
    images = [f"![{experiment.title}]({name})\n\n{caption}\n" for name, caption in figures]
    versions = outcome.to_dict()["versions"]
    return "\n".join(
        [
            f"# {experiment.title}\n",
            f"`{experiment.name}`, {outcome.scale} scale. {experiment.reference}.\n",
            f"{experiment.about}\n",
            f"{outcome.counts}.\n",
            *(f"* {one.prose}" for one in outcome.judgements),
            "",
            *images,
            "| statement | measured | verdict |\n|---|---|---|",
            *(row for one in outcome.judgements for row in _rows(one)),
            *(_row(claim, VerdictKind.REPORTED.value) for claim in outcome.reported),
            "\n| setting | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in outcome.setting.facts().items()),
            f"| machine | {'; '.join(outcome.machines)} |",
            f"| work | {count(len(outcome.results.cells))}, {duration(outcome.results.seconds)} |",
            f"| versions | {', '.join(f'{name} {value}' for name, value in versions.items())} |",
            "",
        ]
    )


def _rows(judgement: Judgement) -> list[str]:
    kind = judgement.statement.kind.value
    if not judgement.claims:
        return [f"| {judgement.statement.words} | | {kind}: {judgement.verdict} |"]
    return [_row(claim, f"{kind}: {_verdict(judgement, claim)}") for claim in judgement.claims]


def _verdict(judgement: Judgement, claim: Claim) -> str:
    words = WORDS[judgement.statement.kind, bool(claim.holds)]
    return words if claim.holds else f"**{words}**"


def _row(claim: Claim, verdict: str) -> str:
    return f"| {claim.statement} | {measured(claim)} | {verdict} |"


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _write(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
