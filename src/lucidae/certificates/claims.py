"""Claims about a fit: a theorem, a measured value and a verdict each."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lucidae.cards import Html, card
from lucidae.io.atomic import json_safe

__all__ = [
    "Certificate",
    "Claim",
    "at_least",
    "at_most",
    "does_not_apply",
    "reported",
    "undecided",
]

_MARKS = {
    "holds": "✓",
    "fails": "✗",
    "undecided": "?",
    "reported": "–",
    "does not apply": "–",
}

# Pattern by which an advice mentions columns, such as "columns 0 and 3, counted from 0".
_COLUMNS = re.compile(
    r"(?<!')\b([Cc]olumns?) (\d+(?:(?:, | and )\d+(?! other))*)(, counted from 0,?)?"
)

# What the first line of a summary adds to the phrase of a claim.
_ANSWERS = {
    "holds": ": yes",
    "fails": ": no",
    "undecided": ": not decided",
    "reported": "",
    "does not apply": ": does not apply",
}

_LEGEND = {
    "✓": "holds",
    "✗": "fails",
    "?": "neither confirmed nor refuted",
    "–": "not judged: a value that is only reported, or a claim that does not apply",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about a fit, with its theorem, the measured value and the verdict.

    Parameters
    ----------
    name : str
        Short name, such as ``"subspace"``.
    statement : str
        What is claimed, in words.
    reference : str
        Authors, year and theorem or equation.
    value : float or None
        The measured value; None if nothing was measured.
    threshold : float or None
        The number with which `value` was compared; None if it was not compared.
    holds : bool or None
        The verdict: True if the claim holds, False if it fails. None if the claim does not apply
        (an assumption is not met), if `value` is only reported, or if the claim is undecided.
    advice : str
        Why the claim does not hold, and what to do about it; often empty if it holds.
    error : float
        Bound on the rounding error of `value`. If `value` differs from `threshold` by no more than
        this, the claim is undecided.
    undecided : bool
        True if the claim applies but could be neither confirmed nor refuted, because `value`
        differs from `threshold` by no more than `error` or could not be computed. `holds` of a
        certificate with an undecided claim is never True.
    headline : str
        What the first line of a summary says of this claim: a phrase such as "global minimum of
        the loss", to which the verdict is added, or a whole statement for a value that is not
        judged. Empty for claims that are not mentioned there.

    Examples
    --------
    >>> claim = at_most("subspace", "the decoder spans the principal subspace",
    ...                 "Bao et al. 2020, Definition 7.2", 1e-9, 1e-6)
    >>> claim.holds
    True
    """

    name: str
    statement: str
    reference: str
    value: float | None = None
    threshold: float | None = None
    holds: bool | None = None
    advice: str = ""
    error: float = 0.0
    undecided: bool = False
    headline: str = ""

    def __post_init__(self) -> None:
        # Scalars of array libraries are neither JSON nor `is True`.
        kinds = {"value": float, "threshold": float, "holds": bool, "error": float}
        for name, kind in kinds.items():
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else kind(given))

    def _repr_html_(self) -> str:
        return Certificate(self.name, (self,))._repr_html_()

    @property
    def verdict(self) -> str:
        """The verdict in words.

        One of ``"holds"``, ``"fails"``, ``"undecided"``, ``"reported"`` (a value was measured but
        is not judged) and ``"does not apply"``.
        """
        if self.holds is not None:
            return "holds" if self.holds else "fails"
        if self.undecided:
            return "undecided"
        return "does not apply" if self.value is None else "reported"

    @property
    def figure(self) -> str:
        """The measured value and its threshold as text, such as ``"0.0003 > 1e-06"``.

        The text is empty if nothing was measured.
        """
        if self.value is None:
            return ""
        if self.threshold is None:
            return f"{self.value:.3g}"
        above, below = self.value > self.threshold, self.value < self.threshold
        relation = ">" if above else "<" if below else "=" if self.value == self.threshold else "vs"
        return f"{self.value:.3g} {relation} {self.threshold:.3g}"

    def judged(
        self,
        value: float,
        threshold: float,
        advice: str = "",
        *,
        error: float = 0.0,
        least: bool = False,
    ) -> Claim:
        """Return the claim with the verdict whether `value` is at most (at least) `threshold`."""
        excess, finite = (threshold - value if least else value - threshold), math.isfinite(value)
        found: Any = {"value": value, "threshold": threshold, "error": error}
        if finite and error > 0.0 and abs(excess) <= error:
            why = (
                f"The rounding error of the measured value is up to ±{error:.1g}, so float64 does "
                "not decide whether the claim holds."
            )
            return replace(self, **found, advice=why, undecided=True)
        holds = finite and bool(excess <= 0.0)
        return replace(self, **found, holds=holds, advice="" if holds else advice)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the claim as a dict for JSON; infinities and NaN become strings."""
        return {name: json_safe(getattr(self, name)) for name in self.__dataclass_fields__}


def at_most(
    name: str,
    statement: str,
    reference: str,
    value: float,
    threshold: float,
    advice: str = "",
    *,
    error: float = 0.0,
) -> Claim:
    """Return the claim that `value` is at most `threshold`, with its verdict.

    The claim is undecided if `value` differs from `threshold` by no more than `error`, the bound on
    its rounding error. It fails if `value` is NaN or infinite. `advice` is included only if the
    claim fails.
    """
    return Claim(name, statement, reference).judged(value, threshold, advice, error=error)


def at_least(
    name: str,
    statement: str,
    reference: str,
    value: float,
    threshold: float,
    advice: str = "",
    *,
    error: float = 0.0,
) -> Claim:
    """Return the claim that `value` is at least `threshold`, with its verdict.

    The claim is undecided if `value` differs from `threshold` by no more than `error`, the bound on
    its rounding error. It fails if `value` is NaN or infinite. `advice` is included only if the
    claim fails.
    """
    claim = Claim(name, statement, reference)
    return claim.judged(value, threshold, advice, error=error, least=True)


def reported(name: str, statement: str, reference: str, value: float, advice: str = "") -> Claim:
    """Return a claim that shows a measured value and is not judged."""
    return Claim(name, statement, reference, value, advice=advice)


def does_not_apply(name: str, statement: str, reference: str, why: str) -> Claim:
    """Return a claim that is not judged because its assumptions are not met.

    `why` names the assumption; it becomes the claim's `advice`. The other arguments are fields of
    `Claim`.
    """
    return Claim(name, statement, reference, advice=why)


def undecided(
    name: str,
    statement: str,
    reference: str,
    why: str,
    value: float | None = None,
    threshold: float | None = None,
    *,
    error: float = 0.0,
) -> Claim:
    """Return a claim that applies but could be neither confirmed nor refuted.

    `why` gives the reason; it becomes the claim's `advice`. The other arguments are fields of
    `Claim`.
    """
    return Claim(name, statement, reference, value, threshold, None, why, error, undecided=True)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The claims about one fitted model, each with its verdict.

    Parameters
    ----------
    title : str
        Description of what was certified: the estimator, or the weights with their method.
    claims : tuple of Claim
        The claims, most important first.
    evidence : dict
        The numbers from which the measured values can be computed again, by name: eigenvalues,
        losses and so on. The pages under docs/certificates list them.

    Notes
    -----
    ``print`` shows the certificate as a table in plain text, and notebooks as a table in HTML. A
    fitted estimator shows it there below its own diagram.

    Examples
    --------
    >>> certificate = Certificate("a fit", (
    ...     at_most("gap", "the loss is the global minimum", "Bao et al. 2020, Theorem 3",
    ...             3e-4, 1e-6, "Train longer."),))
    >>> certificate.holds
    False
    >>> print(certificate.summary())
    a fit: the claim fails
    ✗ gap  0.0003 > 1e-06  the loss is the global minimum [Bao et al. 2020, Theorem 3]
           Train longer.
    (✗ fails)
    """

    title: str
    claims: tuple[Claim, ...]
    evidence: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def holds(self) -> bool | None:
        """Whether all claims that apply hold.

        False if a claim fails. None if no claim fails, but one is undecided or none applies. True
        otherwise.
        """
        verdicts = {claim.verdict for claim in self.claims}
        if "fails" in verdicts:
            return False
        return True if "holds" in verdicts and "undecided" not in verdicts else None

    def _named(self, names: Sequence[str] | None) -> Certificate:
        """Return the certificate with names of features, if any, in place of column numbers."""
        if names is None:
            return self

        def by_name(found: re.Match[str]) -> str:
            listed = re.sub(r"\d+", lambda number: repr(str(names[int(number[0])])), found[2])
            return f"{found[1]} {listed}"

        claims = tuple(
            replace(claim, advice=_COLUMNS.sub(by_name, claim.advice)) for claim in self.claims
        )
        return self if claims == self.claims else replace(self, claims=claims)

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, name: str) -> Claim:
        for claim in self.claims:
            if claim.name == name:
                return claim
        known = ", ".join(claim.name for claim in self.claims)
        raise KeyError(f"no claim is named {name!r}; the claims of this certificate are: {known}")

    def __contains__(self, name: object) -> bool:
        return any(claim.name == name for claim in self.claims)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Return the certificate as a plain-text table that ends with a legend of its marks."""
        width = max((len(claim.name) for claim in self.claims), default=0)
        figures = [claim.figure for claim in self.claims]
        across = max(map(len, figures), default=0)
        lines = [self._headline()]
        for claim, figure in zip(self.claims, figures, strict=True):
            lines.append(
                f"{_MARKS[claim.verdict]} {claim.name:<{width}}  {figure:<{across}}  "
                f"{claim.statement} [{claim.reference}]"
            )
            if claim.advice:
                lines.append(" " * (width + 4) + claim.advice)
        if self.claims:
            lines.append(f"({self._legend()})")
        return "\n".join(lines)

    def _legend(self) -> str:
        """Return the meaning of those marks (✓, ✗, ? and –) that occur in this certificate."""
        used = {_MARKS[claim.verdict] for claim in self.claims}
        return ", ".join(f"{mark} {words}" for mark, words in _LEGEND.items() if mark in used)

    def _headline(self) -> str:
        """Return one line: how many claims hold, and what is certified and what is not."""
        verdicts = [claim.verdict for claim in self.claims]
        failing, holding, waiting = map(verdicts.count, ("fails", "holds", "undecided"))
        judged = failing + holding
        if judged == 0:
            words = "undecided" if waiting else "no claim applies"
        elif failing:
            of = f"{failing} of {judged} claims {'fails' if failing == 1 else 'fail'}"
            words = "the claim fails" if judged == 1 else of
        else:
            short = {1: "the claim holds", 2: "both claims hold"}
            words = short.get(judged, f"all {judged} claims hold")
        if waiting and judged:
            words = words.replace("the claim", "one claim").replace("all ", "")
            words += f", {waiting} {'is' if waiting == 1 else 'are'} undecided"
        told = [claim for claim in self.claims if claim.headline]
        texts = [claim.headline + _ANSWERS[claim.verdict] for claim in told]
        # Only the first letter changes: names in a phrase keep theirs.
        sentences = [f"{text[0].upper()}{text[1:]}." for text in texts]
        return f"{self.title}: {words}" + (". " + " ".join(sentences) if sentences else "")

    def to_dict(self) -> dict[str, Any]:
        """Return title, verdict, claims and evidence as a dict that can be written as JSON.

        `evidence` contains the numbers from which the claims can be checked.
        """
        return {
            "title": self.title,
            "holds": self.holds,
            "claims": [claim.to_dict() for claim in self.claims],
            "evidence": {name: json_safe(value) for name, value in self.evidence.items()},
        }

    def _repr_html_(self) -> str:
        return card(self._headline(), *self._html_parts(), kind="lucidae-certificate")

    def _folded_html(self) -> str:
        """Return the certificate as HTML that is folded to one line if it holds."""
        mark = {True: "✓", False: "✗", None: "?"}[self.holds]
        title, parts = f"{mark} {self._headline()}", self._html_parts()
        return card(title, *parts, kind="lucidae-certificate", folded=self.holds is True)

    def _html_parts(self) -> tuple[str, ...]:
        rows = "".join(_html_row(claim) for claim in self.claims)
        return Html(f"<table><tbody>{rows}</tbody></table>"), self._legend()


def _html_row(claim: Claim) -> str:
    kind = claim.verdict.replace(" ", "-")
    advice = f"<p>{html.escape(claim.advice)}</p>" if claim.advice else ""
    return (
        f"<tr class='{kind}'><td><span role='img' aria-label='{claim.verdict}' "
        f"title='{claim.verdict}'>{_MARKS[claim.verdict]}</span></td>"
        f"<th scope='row'>{html.escape(claim.name)}</th><td>{html.escape(claim.figure)}</td>"
        f"<td>{html.escape(claim.statement)} <cite>{html.escape(claim.reference)}</cite>"
        f"{advice}</td></tr>"
    )
