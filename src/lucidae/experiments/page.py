"""Write one self-contained HTML page with the statements, figures, verdicts and settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lucidae.experiments.declaration import VerdictKind
from lucidae.experiments.engine import count, duration
from lucidae.experiments.outcomes import MARKS, Counts, Outcome
from lucidae.experiments.verdicts import measured
from lucidae.io.atomic import atomic_path
from lucidae.report.blocks import Block, Card, Facts, Grid, Note, Prose
from lucidae.report.page import Chapter, fill_page

__all__ = ["write_page"]

LEAD = (
    "Figures and tables of three papers on autoencoders whose optimum is known, measured again: "
    "what each paper claims, whether the measurements confirm it, and the settings."
)
LEGEND = (
    "✓ means that a claim of the paper was seen, or that a finding of our own holds; ✗ that it was "
    "not seen or does not hold; – that a measured value is reported without a verdict, or that a "
    "statement cannot be judged at this scale. Claims of the papers and our own findings are "
    "counted separately."
)
COLOURS = {True: "green", False: "orange", None: "muted"}
REFUTED = {
    VerdictKind.PAPER: "Claims of the papers that our runs do not confirm at this scale",
    VerdictKind.OWN: "Findings of our own that do not hold at this scale",
}
HEADINGS = {
    VerdictKind.PAPER: "What the paper claims",
    VerdictKind.OWN: "What we found beyond the paper",
}


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """HTML table of the verdicts of one experiment: each statement with its measured values."""

    outcome: Outcome

    def __str__(self) -> str:
        return str(self.outcome.counts)

    def _repr_html_(self) -> str:
        rows = [row for kind in HEADINGS for row in self._of_kind(kind)]
        if self.outcome.reported:
            rows.append(_heading("Reported without a verdict"))
            rows += [
                _row(None, VerdictKind.REPORTED.value, claim.statement, measured(claim))
                for claim in self.outcome.reported
            ]
        names = ("", "verdict", "statement", "measured")
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        return (
            '<div class="scroll" tabindex="0"><table class="numbers">'
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        )

    def _of_kind(self, kind: VerdictKind) -> list[str]:
        judgements = self.outcome.of_kind(kind)
        rows = [_heading(HEADINGS[kind])] if judgements else []
        for one in judgements:
            rows.append(_row(one.holds, one.verdict, one.statement.words, one.why, strong=True))
            rows += [
                _row(claim.holds, "", claim.statement, measured(claim)) for claim in one.claims
            ]
        return rows


def _heading(words: str) -> str:
    return f'<tr><th colspan="4" scope="rowgroup" style="text-align:left">{words}</th></tr>'


def _row(
    holds: bool | None, verdict: str, statement: str, measured: str, strong: bool = False
) -> str:
    text = escape(statement)
    wrap = 'style="white-space:normal"'
    return (
        f'<tr><td style="color:var(--{COLOURS[holds]})">{MARKS[holds]}</td><td>{verdict}</td>'
        f"<td {wrap}>{f'<strong>{text}</strong>' if strong else text}</td>"
        f"<td {wrap}>{escape(measured)}</td></tr>"
    )


def write_page(outcomes: Sequence[Outcome], target: Path, seconds: float, note: str = "") -> Path:
    """Draw the figures of all outcomes, write the HTML page, and return its path.

    The file is replaced atomically: an interrupted call leaves the earlier page.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Finished experiments, at least one.
    target : path
        File of the page.
    seconds : float
        Duration that is printed on the page.
    note : str, default=""
        A line for the summary, such as `Tally.note`.

    Returns
    -------
    Path
        Path of the page.
    """
    chapters = [summary(outcomes, note), *(chapter(outcome) for outcome in outcomes)]
    title = f"Experiments of the papers at {outcomes[0].scale} scale"
    with atomic_path(target) as temporary:
        temporary.write_text(fill_page(title, LEAD, chapters, seconds), encoding="utf-8")
    return target


def summary(outcomes: Sequence[Outcome], note: str = "") -> Chapter:
    """Return the first chapter: how many claims and findings each experiment confirms."""
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
        blocks.append(
            Prose(
                f"{_statements(counts.unjudged)} cannot be judged at this scale; the chapters give "
                "the reasons."
            )
        )
    if note:
        blocks.append(Note(note))
    return Chapter("summary", "Summary", blocks)


def _counted(outcome: Outcome) -> tuple[str, ...]:
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


def _statements(count: int) -> str:
    return "One statement" if count == 1 else f"{count} statements"


def chapter(outcome: Outcome) -> Chapter:
    """Return the chapter of one experiment: statements with verdicts, figures and settings."""
    experiment = outcome.experiment
    machine = "; ".join(outcome.machines)
    blocks: list[Block] = [
        Prose(f"{experiment.reference}. {experiment.about}"),
        *(Prose(one.prose) for one in outcome.judgements),
        *experiment.draw(outcome),
        Card("Verdicts", VerdictTable(outcome)),
        Grid(("setting", ""), tuple(outcome.setting.facts().items())),
        Prose(
            f"{count(len(outcome.results.cells))}, {duration(outcome.results.seconds)} of work on "
            f"{machine}."
        ),
    ]
    return Chapter(experiment.name, experiment.title, blocks)
