"""Claims about a fit: a theorem, a measured value and a verdict each; and `certify`.

Each family (linear, dropout, sparsity) registers the function that certifies its weights with the
decorator `certifies`. This module therefore does not import the families.
"""

from __future__ import annotations

import html
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import numpy as np

from lucidae.cards import Html, card
from lucidae.certificates.bounds import Ball
from lucidae.io import json_safe
from lucidae.iteration.progress import elapsed_on

Numbers = Sequence[float] | np.ndarray[Any, Any]

_UNJUDGED = "not judged: a value that is only reported, or a claim that does not apply"

# Of each verdict its mark, what the first line of a summary adds to the phrase of a claim, and the
# meaning of the mark.
_VERDICTS = {
    "holds": ("✓", ": yes", "holds"),
    "fails": ("✗", ": no", "fails"),
    "undecided": ("?", ": not decided", "neither confirmed nor refuted"),
    "reported": ("–", "", _UNJUDGED),
    "does not apply": ("–", ": does not apply", _UNJUDGED),
}

# Pattern by which an advice mentions columns, such as "columns 0 and 3, counted from 0".
_COLUMNS = re.compile(
    r"(?<!')\b([Cc]olumns?) (\d+(?:(?:, | and )\d+(?! other))*)(, counted from 0,?)?"
)

# Largest relative change of a fitted attribute after fit that no claim notices.
CHANGED = 1e-9

# Number of rows of large influence that an advice names.
NAMED_ROWS = 5


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
        self, figure: float | Ball, threshold: float, advice: str = "", *, least: bool = False
    ) -> Claim:
        """Return the claim with the verdict whether a figure is at most (at least) `threshold`.

        It is undecided if the figure differs from the threshold by no more than its error, fails if
        the figure is NaN or infinite, and has the advice only if it fails.
        """
        value, error = (figure.value, figure.error) if isinstance(figure, Ball) else (figure, 0.0)
        value, error = float(value), float(error)
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

    def influenced(
        self, rows: Numbers, shares: Numbers, most: float, parts: Sequence[str] = ()
    ) -> Claim:
        """Return the claim, which is not judged, with the rows that carry more than their share.

        `most` is the largest share of any row, and `parts` says what the rows have a share of.
        """
        if not len(rows):
            return replace(self, value=most)
        of = parts or [""] * len(rows)
        told = ", ".join(
            f"row {row} has {100 * share:.3g} %{part}"
            for row, share, part in list(zip(rows, shares, of, strict=True))[:NAMED_ROWS]
        )
        more = f" and {len(rows) - NAMED_ROWS} more" if len(rows) > NAMED_ROWS else ""
        advice = (
            f"Counted from 0, {told}{more}: look at such rows, and fit without them to see what "
            "they change."
        )
        headline = f"influence: {listed('row', rows[:NAMED_ROWS])}{more}"
        return replace(self, value=most, advice=advice, headline=headline)

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
    return Claim(name, statement, reference).judged(Ball(value, error), threshold, advice)


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
    return claim.judged(Ball(value, error), threshold, advice, least=True)


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


def listed(noun: str, numbers: Numbers) -> str:
    """Return numbers as text with runs abbreviated, such as “rows 3–5, 9” for 3, 4, 5 and 9."""
    runs: list[list[int]] = []
    for number in map(int, numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
    return f"{noun}{'s' * (len(numbers) != 1)} {text}"


def with_changes(found: Certificate, changed: Mapping[str, float], advice: str) -> Certificate:
    """Return a certificate whose claim `attributes` judges changes of fitted attributes."""
    if not changed:
        return found
    names = f"{', '.join(changed)} {'was' if len(changed) == 1 else 'were'} changed after fit"
    statement = "no fitted attribute was changed after fit (largest relative change)"
    text = Claim("attributes", statement, "definition of the attributes")
    judged = text.judged(max(changed.values()), CHANGED, f"{names}, {advice}")
    others = (claim for claim in found if claim.name != "attributes")
    return Certificate(found.title, (*others, judged), found.evidence)


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
        across = max((len(claim.figure) for claim in self.claims), default=0)
        lines = [self._headline()]
        for claim in self.claims:
            lines.append(
                f"{_VERDICTS[claim.verdict][0]} {claim.name:<{width}}  {claim.figure:<{across}}  "
                f"{claim.statement} [{claim.reference}]"
            )
            if claim.advice:
                lines.append(" " * (width + 4) + claim.advice)
        return "\n".join(lines + [f"({self._legend()})"] * bool(self.claims))

    def _legend(self) -> str:
        """Return the meaning of those marks (✓, ✗, ? and –) that occur in this certificate."""
        used = {claim.verdict for claim in self.claims}
        meanings = {mark: told for key, (mark, _, told) in _VERDICTS.items() if key in used}
        return ", ".join(f"{mark} {told}" for mark, told in meanings.items())

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
        texts = [claim.headline + _VERDICTS[claim.verdict][1] for claim in told]
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
        return self._html(self._headline(), folded=None)

    def _folded_html(self) -> str:
        """Return the certificate as HTML that is folded to one line if it holds."""
        mark = {True: "✓", False: "✗", None: "?"}[self.holds]
        return self._html(f"{mark} {self._headline()}", folded=self.holds is True)

    def _html(self, title: str, *, folded: bool | None) -> str:
        rows = []
        for claim in self.claims:
            verdict, mark = claim.verdict, _VERDICTS[claim.verdict][0]
            name, figure, statement, reference, advice = map(
                html.escape,
                (claim.name, claim.figure, claim.statement, claim.reference, claim.advice),
            )
            rows.append(
                f"<tr class='{verdict.replace(' ', '-')}'><td><span role='img' "
                f"aria-label='{verdict}' title='{verdict}'>{mark}</span></td>"
                f"<th scope='row'>{name}</th><td>{figure}</td><td>{statement} "
                f"<cite>{reference}</cite>{advice and f'<p>{advice}</p>'}</td></tr>"
            )
        table = Html(f"<table><tbody>{''.join(rows)}</tbody></table>")
        return card(title, table, self._legend(), kind="lucidae-certificate", folded=folded)


Certifier = Callable[..., Certificate]

# The registered functions that certify weights, by name of the family: see `certifies`.
_CERTIFIERS: dict[str, Certifier] = {}


def certifies(family: str) -> Callable[[Certifier], Certifier]:
    """Return a decorator that registers the function by which `certify` judges a family of models.

    Parameters
    ----------
    family : str
        ``"linear"`` or ``"dropout"`` for pairs of weights, ``"sparsity"`` for coefficients, or
        ``"components"`` for fitted objects of other libraries that have ``components_``.

    Returns
    -------
    callable
        Decorator that stores its function under `family` and returns it unchanged.
    """

    def register(certifier: Certifier) -> Certifier:
        _CERTIFIERS[family] = certifier
        return certifier

    return register


def certify(subject: Any, X: Any = None, y: Any = None, **settings: Any) -> Certificate:
    """Judge how close fitted weights are to the optimum that theory gives for the data.

    The result lists claims, such as "the loss is its global minimum", each with the theorem, the
    measured value and the verdict.

    Parameters
    ----------
    subject : estimator, pair of arrays, or array
        A fitted estimator of this package, or a result of `lucidae.sparsity.solve_joint`; any
        fitted object with ``components_`` and optionally ``mean_`` and ``explained_variance_``,
        such as scikit-learn's ``PCA``, ``IncrementalPCA`` and ``TruncatedSVD``; a pair of weights,
        ``(encoder, decoder)`` with ``family="linear"`` or ``(U, V)`` with ``family="dropout"``; or
        the coefficients of a sparse regression, shaped as ``coef_``.
    X : array-like, optional
        The rows of data on which the fit is judged. For the coefficients of a sparse regression,
        the dictionary: d rows, and one column per coefficient. If X is None, an estimator is judged
        on the statistics of the training rows that `fit` stored.
    y : array-like, optional
        The targets, one row per row of X. Required for coefficients; not used by the linear family.
    **settings
        For an estimator or an object with ``components_``: `sample_weight`. For a pair of weights:
        `family`, and the settings with which the weights were trained, which are arguments of
        `LinearAutoencoder` for ``family="linear"``, and `dropout`, `tied` and `matrix` for
        ``family="dropout"``. For coefficients: `noise_variance`.

    Returns
    -------
    Certificate
        The claims with their verdicts; `holds` is the overall verdict.

    Examples
    --------
    >>> import numpy as np
    >>> from lucidae import LinearAutoencoder, certify
    >>> X = np.random.default_rng(0).standard_normal((200, 4)) * [4, 3, 2, 1]
    >>> certify(LinearAutoencoder(2).fit(X), X).holds
    True
    >>> mixed = np.array([[0.6, 0.8, 0.0, 0.0], [-0.8, 0.6, 0.0, 0.0]])
    >>> certificate = certify((mixed, mixed.T), X, family="linear", method="rag")
    >>> certificate["subspace"].value < 0.01, certificate["alignment"].holds
    (True, False)
    """
    verbose = getattr(subject, "verbose", "auto")
    with nullcontext() if X is None else elapsed_on(X, "certificate", verbose):
        name = type(subject).__name__
        if hasattr(type(subject), "_certify_on"):
            check_settings(settings, _keywords(subject._certify_on), name)
            if X is None:
                others = {"y": y} | settings
                if given := " and ".join(k for k, value in others.items() if value is not None):
                    raise ValueError(
                        f"certify was called with {given} but without X: an estimator is then "
                        "certified on what fit stored of its training rows, which cannot be "
                        f"combined with other data. Give X too, or leave out {given}."
                    )
                return subject.certificate_  # type: ignore[no-any-return]
            certificate: Certificate = subject._certify_on(X, y, **settings)
            return certificate._named(getattr(subject, "feature_names_in_", None))
        for family in ("linear", "dropout", "sparsity"):  # importing one registers its certifier
            import_module(f"lucidae.{family}")
        if isinstance(subject, tuple | list) and len(subject) == 2 and "family" in settings:
            return _certify_pair(subject[0], subject[1], X, y, **settings)
        if hasattr(subject, "components_"):
            check_settings(settings, _keywords(_CERTIFIERS["components"]), name)
            return _CERTIFIERS["components"](subject, X, **settings)
        if hasattr(subject, "shape"):
            check_settings(settings, _keywords(_CERTIFIERS["sparsity"]), "coefficients")
            if X is None or y is None:
                raise ValueError(
                    "certify was called with coefficients but without the dictionary (X) or the "
                    "responses (y): give both."
                )
            return _CERTIFIERS["sparsity"](subject, X, y, **settings)
        raise ValueError(
            f"certify got an object of type {name}, expected a fitted estimator of lucidae, a "
            "fitted object with components_, a pair of weights with family='linear' or "
            "family='dropout', or an array of coefficients."
        )


def check_settings(given: Iterable[str], allowed: Iterable[str], subject: str) -> None:
    """Raise a ValueError if `certify` was called with a keyword that it does not take.

    `subject` describes what is certified.
    """
    names, unknown = list(allowed), [name for name in given if name not in set(allowed)]
    if unknown:
        known = ", ".join(names) if names else "none"
        raise ValueError(
            f"certify was called with {', '.join(unknown)}, but the keywords for {subject} are: "
            f"{known}."
        )


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of a certifying function's optional arguments, apart from X, Y and y."""
    parameters = inspect.signature(function).parameters.values()
    return [
        given.name
        for given in parameters
        if given.kind is given.KEYWORD_ONLY
        or (given.default is not given.empty and given.name not in ("X", "Y", "y"))
    ]


def _certify_pair(first: Any, second: Any, X: Any, y: Any, **settings: Any) -> Certificate:
    family = settings.pop("family")
    if not isinstance(family, str) or family not in ("linear", "dropout"):
        raise ValueError(f"family={family!r} was given, expected 'linear' or 'dropout'.")
    if family == "linear" and X is None:
        raise ValueError(
            "certify was called with weights but without data: give the rows X, or their "
            "SecondMoment."
        )
    if family == "dropout":
        check_settings(settings, ["family", *_keywords(_CERTIFIERS[family])], "a pair of weights")
    data = (X,) if family == "linear" else (X, y)
    return _CERTIFIERS[family](first, second, *data, **settings)
