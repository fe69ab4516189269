"""The oracle of the fuzzers: what a call may do with hostile input, and what it may not.

A case is a short program in Python: statements that prepare the input, and one statement that is
watched. A call may succeed with finite results, or refuse with a `ValueError`, `TypeError` or
`NotFittedError` that says why. It may not raise anything else, print on the standard error stream,
warn of anything but convergence or data, change its input, or half-change a fitted estimator.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_is_fitted

from lucidae.certificates import Certificate

PATIENCE = 120
"""Seconds of processor time after which a call counts as one that does not end."""

REFUSALS = (
    ValueError,
    TypeError,
    NotFittedError,
    InvalidParameterError,
)
"""Exceptions that refuse input. Their subclasses, such as `LinAlgError`, are accidents."""

ACCIDENTS = re.compile(
    r"unsupported operand|has no attribute|not subscriptable|not iterable|ufunc|matmul"
    r"|could not be broadcast|not aligned|cannot reshape|must not contain infs or NaNs"
    r"|zero-size array|element with a sequence\.$|ambiguous|out of bounds|not callable"
    r"|positional argument|unexpected keyword|can't multiply sequence|bad operand"
    r"|cannot be interpreted as an integer|no loop|cannot convert float"
    r"|empty iterable|index out of|unhashable|not supported between|Cannot interpret"
    r"|only 0-dimensional|only length-1|math domain|reduction operation"
)
"""Wordings of exceptions that nobody wrote for the user of lucidae."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program whose last statement is watched."""

    subject: str  # what is called, such as "SparseVAE.fit"
    setup: tuple[str, ...]  # statements that prepare the input; nothing in them is judged
    call: str  # the statement that is judged, which assigns to ``result``
    expected: str = "any"  # or "success" or "refusal"
    after: tuple[str, ...] = ()  # statements that must succeed if the call did

    @property
    def program(self) -> str:
        """The case as one line of Python, to be repeated by hand."""
        return "; ".join((*self.setup, self.call))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the oracle forbids."""

    subject: str
    kind: str  # without figures: findings of the same subject and kind are one defect
    detail: str
    program: str  # how to repeat it

    def __str__(self) -> str:
        return f"{self.subject}: {self.detail}\n    {self.program}"


@dataclass(slots=True)
class Outcome:
    """What a watched statement did."""

    error: BaseException | None = None
    warned: list[Any] = field(default_factory=list)
    printed: str = ""


class DoesNotEndError(BaseException):
    """Raised in a call that computes for longer than `PATIENCE` seconds."""


def names_of_lucidae() -> dict[str, Any]:
    """Return the names that programs may use."""
    import lucidae.dropout
    import lucidae.linear
    import lucidae.sparsity

    names = {"np": np, "sp": scipy.sparse, "lucidae": lucidae, "nan": math.nan, "inf": math.inf}
    names |= {name: getattr(lucidae, name) for name in lucidae.__all__}
    for package, prefix in (("pandas", "pd"), ("polars", "pl"), ("torch", "torch")):
        try:
            names[prefix] = __import__(package)
        except ImportError:
            continue
    return names


NAMES = names_of_lucidae()


def runnable(source: str) -> bool:
    """Return whether the packages that a piece of a program uses are installed."""
    return all(name in NAMES for name in ("pd", "pl", "torch") if re.search(rf"\b{name}\.", source))


@contextmanager
def silenced_descriptor(descriptor: int) -> Iterator[Any]:
    """Collect what is written to a file descriptor, by libraries in C as well."""
    with tempfile.TemporaryFile() as written:
        kept = os.dup(descriptor)
        os.dup2(written.fileno(), descriptor)
        try:
            yield written
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)


@contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Raise `DoesNotEndError` in a block that computes for too long, on platforms with timers.

    Processor time is counted, so that a busy machine makes no difference.
    """
    if not hasattr(signal, "SIGPROF"):
        yield
        return

    def interrupt(_: int, frame: Any) -> None:
        # An error inside of the tracer of `dev.py coverage` would leave its lock closed for ever.
        if frame is not None and "coverage" in Path(frame.f_code.co_filename).parts:
            signal.setitimer(signal.ITIMER_PROF, 0.001)
            return
        raise DoesNotEndError(f"no end after {seconds:g} seconds")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def watch(statement: str, names: dict[str, Any]) -> Outcome:
    """Run one statement and return what it did."""
    outcome = Outcome()
    stream = sys.stderr
    with (
        silenced_descriptor(2) as written,
        warnings.catch_warnings(record=True) as caught,
        limited_time(PATIENCE),
    ):
        warnings.simplefilter("always")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")
        try:
            exec(statement, names)
        except (Exception, DoesNotEndError) as error:
            outcome.error = error
        finally:
            sys.stderr.close()
            sys.stderr = stream
        written.seek(0)
        outcome.printed = written.read().decode(errors="replace").strip()
    outcome.warned = list(caught)
    return outcome


def prepared(case: Case) -> dict[str, Any]:
    """Run the setup of a case and return its names."""
    names = dict(NAMES)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for statement in case.setup:
            exec(statement, names)
    return names


def judged(case: Case, inputs: tuple[str, ...] = ("X", "y", "w")) -> list[Finding]:
    """Run a case and return what the oracle forbids."""
    names = prepared(case)
    before = {name: fingerprint(names[name]) for name in inputs if name in names}
    model = names.get("model")
    state = snapshot(model)
    outcome = watch(case.call, names)
    found = list(misbehaviour(case, outcome))
    for name, print_before in before.items():
        if fingerprint(names[name]) != print_before:
            found.append((f"{name} changed", f"the input {name} was changed in place"))
    if outcome.error is not None:
        found += half_changed(model, state)
    else:
        found += unsound(names.get("result"))
    findings = [Finding(case.subject, kind, detail, case.program) for kind, detail in found]
    if outcome.error is None and not findings:
        findings += judged_after(case, names)
    return findings


def judged_after(case: Case, names: dict[str, Any]) -> Iterator[Finding]:
    """Yield what the statements after a successful call do that they may not."""
    for statement in case.after:
        follow_up = Case(case.subject, (*case.setup, case.call), statement, "success")
        outcome = watch(statement, names)
        found = list(misbehaviour(follow_up, outcome))
        if outcome.error is None:
            found += unsound(names.get("result"))
        for kind, detail in found:
            yield Finding(case.subject, f"after it: {kind}", detail, follow_up.program)


def misbehaviour(case: Case, outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yield what a call did that no call may do."""
    error = outcome.error
    refused = type(error) in REFUSALS or type(error).__name__ == "UnrepresentableError"
    if error is not None and not refused:
        yield f"{type(error).__name__} at {place(error)}", words(error)
    elif error is not None:
        text = str(error)
        if len(text.split()) < 4:
            yield "refusal without a sentence", words(error)
        elif ACCIDENTS.search(text):
            yield f"accidental refusal at {place(error)}", words(error)
        elif case.expected == "success":
            yield f"refused at {place(error)}", words(error)
    elif case.expected == "refusal":
        yield "accepted", "accepted without a word"
    for warning in outcome.warned:
        if not issubclass(warning.category, UserWarning):
            spot = f"{Path(warning.filename).name}:{warning.lineno}"
            yield f"{warning.category.__name__} at {spot}", f"{spot} {warning.message}"
    if outcome.printed:
        yield "printed on stderr", outcome.printed.splitlines()[0][:200]


def place(error: BaseException) -> str:
    """Return the last line of lucidae that an exception passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        frame for frame in frames if "lucidae" in frame.filename and "tests" not in frame.filename
    ]
    if not ours:
        return "the call"
    path = ours[-1].filename.replace(os.sep, "/").rpartition("lucidae/")[2]
    return f"{path}:{ours[-1].name}"


def words(error: BaseException) -> str:
    """Return an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300] + f" [{place(error)}]"


def fingerprint(value: Any) -> Any:
    """Return something that changes when an input does, and not with what it caches."""
    if scipy.sparse.issparse(value):
        fields = ("data", "indices", "indptr", "row", "col", "rows", "offsets", "coords")
        value = [getattr(value, name) for name in fields if hasattr(value, name)]
    elif hasattr(value, "to_numpy"):
        return repr(value.dtypes), repr(value.to_numpy().tolist())
    elif isinstance(value, Iterator):
        return type(value).__name__  # batches of rows, which a call may use up
    try:
        return pickle.dumps(value)
    except Exception:
        return repr(value)


def fitted_attributes(model: Any) -> dict[str, Any]:
    """Return the fitted attributes of an estimator by name; nothing if it is not fitted."""
    names = [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]
    found = {}
    for name in names:
        try:
            found[name] = getattr(model, name)
        except (NotFittedError, AttributeError):
            continue
    return found


def snapshot(model: Any) -> dict[str, Any] | None:
    """Return the parameters and fitted attributes of an estimator, None for anything else."""
    if not isinstance(model, BaseEstimator):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {**model.get_params(deep=False), **fitted_attributes(model)}


def half_changed(model: Any, before: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield how a failed call changed a fitted estimator."""
    if before is None:
        return
    after = snapshot(model) or {}
    if not is_fitted(model):
        return  # it says so itself, whatever scikit-learn's validation has left in it
    for name, value in before.items():
        if name not in after or not same(value, after[name]):
            yield f"{name} changed by a failed call", f"{name} differs after a failed call"
    for name in set(after) - set(before):
        yield f"{name} left by a failed call", f"{name} exists after a failed call"


def is_fitted(model: Any) -> bool:
    """Return whether an estimator can be used."""
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


def same(one: Any, other: Any) -> bool:
    """Return whether two attributes are equal, NaN included."""
    if one is other:
        return True
    if isinstance(one, Certificate) and isinstance(other, Certificate):
        return repr(one.to_dict()) == repr(other.to_dict())
    try:
        return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True))
    except (TypeError, ValueError):
        return fingerprint(one) == fingerprint(other)


def unsound(result: Any, name: str = "result") -> Iterator[tuple[str, str]]:
    """Yield non-finite numbers in a result, and certificates that hold nevertheless."""
    if isinstance(result, Certificate):
        yield from unsound_claims(result)
    elif isinstance(result, BaseEstimator):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attributes = fitted_attributes(result)
        certificate = attributes.pop("certificate_", None)
        wrong = [item for key, value in attributes.items() for item in unsound(value, key)]
        yield from wrong
        if wrong and certificate is not None and certificate.holds:
            yield "certificate holds on non-finite attributes", "certificate holds on NaN or inf"
        if certificate is not None:
            yield from unsound_claims(certificate, largest=1e150)
    elif isinstance(result, tuple | list):
        for number, part in enumerate(result):
            yield from unsound(part, f"{name}[{number}]" if name == "result" else name)
    elif not is_finite(result):
        yield f"{name} not finite", f"{name} is not finite"


def unsound_claims(
    certificate: Certificate, largest: float = math.inf
) -> Iterator[tuple[str, str]]:
    """Yield claims that are NaN, infinite although they hold, or finite beyond `largest`."""
    for claim in certificate:
        value = claim.value
        if value is None:
            continue
        absurd = math.isinf(value) and claim.holds
        if math.isnan(value) or absurd or largest < abs(value) < math.inf:
            yield f"claim {claim.name} is absurd", f"claim {claim.name} = {value} ({claim.verdict})"
    certificate.summary()
    certificate._repr_html_()


def is_finite(value: Any) -> bool:
    """Return whether all numbers of an array-like are finite; True for anything else."""
    if isinstance(value, str | bytes) or value is None:
        return True
    if scipy.sparse.issparse(value):
        value = value.data
    try:
        array = np.asarray(value)
    except Exception:
        return True
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())
