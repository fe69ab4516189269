"""One self-contained HTML page with the claims, settings, figures and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lucidae.certificate import Certificate, Claim
from lucidae.experiments.engine import duration
from lucidae.experiments.verdicts import Outcome
from lucidae.io.atomic import atomic_path
from lucidae.report.blocks import Block, Card, Facts, Grid, Note, Prose
from lucidae.report.page import Chapter, fill_page

__all__ = ["write_page"]

LEAD = (
    "The figures and tables of three papers on autoencoders whose optimum is known, reproduced: "
    "what each paper claims, the setting of the experiment, and what was measured."
)

MARKS = {True: ("✓", "green", "holds"), False: ("✗", "orange", "fails"), None: ("–", "muted", "")}


@dataclass(frozen=True, slots=True)
class VerdictTable:
    """Table of claims: verdict, statement and measured figure."""

    verdicts: Certificate

    def __str__(self) -> str:
        return str(self.verdicts)

    def _repr_html_(self) -> str:
        rows = "".join(_row(claim) for claim in self.verdicts.claims)
        head = "".join(f'<th scope="col">{name}</th>' for name in ("", "claim", "measured"))
        return (
            '<div class="scroll" tabindex="0"><table class="numbers">'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )


def _row(claim: Claim) -> str:
    mark, colour, word = MARKS[claim.holds]
    measured = "" if claim.value is None else f"{claim.value:.4g}"
    return (
        f'<tr><td style="color:var(--{colour})" title="{word}">{mark}</td>'
        f'<td style="white-space:normal">{escape(claim.statement)}</td><td>{measured}</td></tr>'
    )


def write_page(outcomes: Sequence[Outcome], target: Path, seconds: float, note: str = "") -> Path:
    """Draw all outcomes and write the page atomically.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Finished experiments, at least one.
    target : path
        File of the page.
    seconds : float
        Duration of the run.
    note : str, default=""
        A line for the summary, such as `Tally.note`.

    Returns
    -------
    Path
    """
    chapters = [summary(outcomes, note), *(chapter(outcome) for outcome in outcomes)]
    title = f"The papers, reproduced at {outcomes[0].scale} scale"
    with atomic_path(target) as temporary:
        temporary.write_text(fill_page(title, LEAD, chapters, seconds), encoding="utf-8")
    return target


def summary(outcomes: Sequence[Outcome], note: str = "") -> Chapter:
    """Return the chapter with the number of claims that hold in each experiment."""
    claims = [claim for outcome in outcomes for claim in outcome.verdicts.claims]
    judged = [claim for claim in claims if claim.holds is not None]
    held = sum(claim.holds is True for claim in judged)
    rows = tuple(
        (
            outcome.experiment.name,
            outcome.experiment.reference,
            tally(outcome),
            duration(outcome.results.seconds),
        )
        for outcome in outcomes
    )
    blocks: list[Block] = [
        Facts(
            (
                (str(len(outcomes)), "experiments"),
                (f"{held} of {len(judged)}", "claims hold"),
                (duration(sum(outcome.results.seconds for outcome in outcomes)), "total work"),
            )
        ),
        Grid(("experiment", "paper", "claims", "work"), rows),
    ]
    if held < len(judged):
        blocks.insert(
            1, Note("Some claims fail; the chapters of their experiments give the figures.")
        )
    if note:
        blocks.append(Note(note))
    return Chapter("summary", "Summary", blocks)


def tally(outcome: Outcome) -> str:
    """Return the number of claims of an experiment that fail, in words."""
    judged = [claim.holds for claim in outcome.verdicts.claims if claim.holds is not None]
    return "all hold" if all(judged) else f"{judged.count(False)} of {len(judged)} FAIL"


def chapter(outcome: Outcome) -> Chapter:
    """Return the chapter of one experiment: claim, figures, verdicts and setting."""
    experiment = outcome.experiment
    machine = "; ".join(outcome.machines)
    blocks: list[Block] = [
        Prose(f"{experiment.reference}. {experiment.claim}"),
        *experiment.draw(outcome),
        Card("Verdicts", VerdictTable(outcome.verdicts)),
        Grid(("setting", ""), tuple(outcome.setting.facts().items())),
        Prose(
            f"{count(len(outcome.results.cells))}, {duration(outcome.results.seconds)} of work on "
            f"{machine}."
        ),
    ]
    return Chapter(experiment.name, experiment.title, blocks)


def count(cells: int) -> str:
    """Return a number of cells in words.

    Examples
    --------
    >>> count(1), count(2)
    ('1 cell', '2 cells')
    """
    return f"{cells} cell{'' if cells == 1 else 's'}"
