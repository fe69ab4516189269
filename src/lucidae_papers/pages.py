"""Pages on finished experiments: one self-contained HTML page, and notes in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lucidae_app.report.page import Block, Chapter, Facts, Grid, Note, Prose, fill_page
from lucidae_app.report.style import LIGHT
from lucidae_papers.declaration import VerdictKind
from lucidae_papers.drawings import plots
from lucidae_papers.engine import count, duration, write
from lucidae_papers.verdicts import MARKS, REPORTED, Counts, Outcome, measured, verdict_words

LEAD = (
    "Figures and tables of three papers on autoencoders whose optimum is known, measured again: "
    "what each paper claims, whether the measurements confirm it, and the settings."
)
LEGEND = (
    "✓ means that a claim of the paper was seen, or that a finding or an identity holds; "
    "✗ that it was not seen or does not hold; – that a claim was seen in part, that a value is "
    "reported without a verdict, or that a statement is not judged. Claims of the "
    "papers, our own findings and identities are counted separately."
)
REFUTED = {
    VerdictKind.PAPER: "Claims of the papers that our runs do not confirm at this scale",
    VerdictKind.OWN: "Findings of our own that do not hold at this scale",
    VerdictKind.IDENTITY: "Identities that the code violates",
}


def rows_of(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table of verdicts: mark, verdict, measured value and statement."""
    for one in outcome.judgements:
        kind = one.statement.kind
        if not one.claims:
            yield MARKS[None], f"{kind.value}: {one.verdict}", "", one.statement.words
        for claim in one.claims:
            words = f"{kind.value}: {verdict_words(kind, claim.holds)}"
            yield MARKS[claim.holds], words, measured(claim), claim.statement
    for claim in outcome.reported:
        yield MARKS[None], REPORTED, measured(claim), claim.statement


def write_page(outcomes: Sequence[Outcome], target: Path, seconds: float, note: str = "") -> Path:
    """Draw the figures of all outcomes, write the HTML page, and return its path.

    The file is replaced atomically: an interrupted call leaves the earlier page.
    """
    chapters = [summary(outcomes, note), *(chapter(outcome) for outcome in outcomes)]
    title = f"Experiments of the papers at {outcomes[0].scale} scale"
    write(target, fill_page(title, LEAD, chapters, seconds))
    return target


def summary(outcomes: Sequence[Outcome], note: str = "") -> Chapter:
    """Return the first chapter: how many claims and findings each of the `outcomes` confirms.

    If `note` is not empty, it is added as the last line.
    """
    counts = Counts.of(outcomes)
    rows = tuple(_counted(outcome) for outcome in outcomes)
    names = ("experiment", "paper", "its claims", "our findings", "work")
    blocks: list[Block] = [
        Facts(
            (
                (str(len(outcomes)), "experiments"),
                (f"{counts.seen} of {counts.claims}", "claims of the papers seen"),
                (f"{counts.held} of {counts.findings}", "findings of our own hold"),
                (str(counts.reported), "values only reported"),
                (duration(sum(outcome.results.seconds for outcome in outcomes)), "total work"),
            )
        ),
        Prose(LEGEND),
        *_refuted(outcomes),
        Grid(names, rows),
    ]
    if counts.unjudged:
        words = f"{counts.unjudged} statements are" if counts.unjudged > 1 else "One statement is"
        blocks.append(Prose(f"{words} not judged; the chapters give the reasons."))
    if note:
        blocks.append(Note(note))
    return Chapter("summary", "Summary", blocks)


def _counted(outcome: Outcome) -> tuple[str, ...]:
    """Return the row of an experiment in the table of the summary."""
    counts = outcome.counts
    paper = f"{counts.seen} of {counts.claims} seen" if counts.claims else "–"
    ours = f"{counts.held} of {counts.findings} hold" if counts.findings else "–"
    work = duration(outcome.results.seconds)
    return outcome.experiment.name, outcome.experiment.reference, paper, ours, work


def _refuted(outcomes: Sequence[Outcome]) -> list[Block]:
    """Return blocks that list the refuted claims of the papers, then the refuted own findings."""
    blocks: list[Block] = []
    for kind, words in REFUTED.items():
        found: list[Block] = [
            Prose(f"{MARKS[False]} {outcome.experiment.name}: {one.statement.words}")
            for outcome in outcomes
            for one in outcome.of_kind(kind)
            if one.holds is False
        ]
        note = Note(f"{words}; the chapters give the measured values:")
        blocks += [note, *found] if found else []
    return blocks


def chapter(outcome: Outcome) -> Chapter:
    """Return the chapter of one experiment: statements with verdicts, figures and settings."""
    experiment = outcome.experiment
    machine = "; ".join(outcome.machines)
    blocks: list[Block] = [
        Prose(f"{experiment.reference}. {experiment.about}"),
        *(Prose(one.prose) for one in outcome.judgements),
        *plots(outcome),
        Grid(("", "verdict", "measured", "statement"), tuple(rows_of(outcome))),
        Grid(("setting", ""), tuple(outcome.setting.facts().items())),
        Prose(
            f"{count(len(outcome.results.cells))}, {duration(outcome.results.seconds)} of work on "
            f"{machine}."
        ),
    ]
    return Chapter(experiment.name, experiment.title, blocks)


LARGEST_FIGURE = 1_000_000
"""Largest size of an SVG figure in bytes; larger figures are not written."""

NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_DIGITS = re.compile(r"(\.\d\d)\d+")
INTRODUCTION = """# Results

Results of `lucidae reproduce`, with their settings and machines. Each page has three kinds of
verdict: a claim of the paper was *seen*, *partly seen* or *not seen*, a finding of our own *holds*
or *does not hold*, and a measured value that is only *reported* has no verdict. An *identity*
follows from the formulas: it tests the code and is no evidence. `lucidae reproduce NAME --set k=5`
or `--data rows.npy` draws a figure with other settings or data
([command line](../command_line.md#experiments)).
"""


def write_notes(outcomes: Sequence[Outcome], folder: Path) -> Path:
    """Write ``NAME.md`` and its figures for each experiment, and an index of the whole folder."""
    for outcome in outcomes:
        figures = _figures(outcome, folder)
        write(folder / f"{outcome.experiment.name}.md", _note(outcome, figures))
    titles = {path.stem: _title(path) for path in sorted(folder.glob("*.md"))}
    lines = [f"* [{name}]({name}.md): {title}" for name, title in titles.items() if name != "index"]
    index = folder / "index.md"
    write(index, "\n".join([INTRODUCTION, *lines, ""]))
    return index


def _figures(outcome: Outcome, folder: Path) -> list[tuple[str, str]]:
    """Write the figures of an outcome as SVG files; return (file name, caption) for each."""
    written = []
    for plot in plots(outcome):
        text = standalone(plot.svg)
        if len(text) <= LARGEST_FIGURE:
            name = f"{plot.name}-{outcome.scale}.svg"
            write(folder / name, text)
            written.append((name, plot.caption))
    return written


def standalone(svg: str) -> str:
    """Return the SVG text of a figure of the HTML page in a form that can be a file by itself.

    XML namespaces and a white background are added, and CSS variables are replaced by colours.
    Coordinates are cut to two decimals, which halves the file.
    """
    for name, colour in LIGHT.items():
        svg = svg.replace(f"var(--{name})", colour)
    svg = re.sub(r' d="[^"]*"', lambda path: _DIGITS.sub(r"\1", path[0]), svg)
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return re.sub(r"<svg ([^>]*)>", rf"<svg {NAMESPACES} \1>{background}", svg, count=1) + "\n"


def _note(outcome: Outcome, figures: Sequence[tuple[str, str]]) -> str:
    """Return the Markdown page on an experiment; `figures` are pairs (file name, caption)."""
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
            *(_markdown_row(*row) for row in rows_of(outcome)),
            "\n| setting | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in outcome.setting.facts().items()),
            f"| machine | {'; '.join(outcome.machines)} |",
            f"| work | {count(len(outcome.results.cells))}, {duration(outcome.results.seconds)} |",
            f"| versions | {', '.join(f'{name} {value}' for name, value in versions.items())} |",
            f"| measured | {_dates(outcome)} |",
            "",
        ]
    )


def _dates(outcome: Outcome) -> str:
    """Return the first and the last day on which a run was done, if they are known."""
    days = sorted({str(cell.about.get("finished", ""))[:10] for cell in outcome.results} - {""})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not known"


def _markdown_row(mark: str, verdict: str, value: str, statement: str) -> str:
    """Return a row of the Markdown table of verdicts; what does not hold is bold."""
    kind, _, words = verdict.partition(": ")
    bold = value and words and mark != MARKS[True]
    shown = f"{kind}: **{words}**" if bold else verdict
    cells = (statement, value, shown)
    return "|".join(["", *(f" {cell} " if cell else " " for cell in cells), ""])


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
