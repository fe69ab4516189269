"""Arguments of the command line: an exit code and at most one sentence, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.oracle import Finding, limited_time, silenced_descriptor
from lucidae_app.app import run

NUMBERS = np.random.default_rng(0).normal(size=(12, 4)).round(3)
TABLES = {
    "plain.csv": "\n".join(["a,b,c,d", *(",".join(map(str, row)) for row in NUMBERS.tolist()), ""]),
    "words.csv": "name,a,b\nx,1,2\ny,3,4\nz,5,7\nw,1,1\n",
    "gaps.csv": "a,b\n1,\n,2\n3,4\n5,1\n",
    "one_row.csv": "a,b\n1,2\n",
    "one_column.csv": "a\n1\n2\n4\n",
    "header_only.csv": "a,b,c\n",
    "empty.csv": "",
    "years.csv": "country,2020,2021\nx,1,2\ny,3,4\nz,4,9\n",
    "ragged.csv": "a,b\n1,2\n3\n4,5,6\n",
    "semicolons.csv": "a;b\n1,5;2\n3;4,5\n2;2\n",
    "constant.csv": "a,b\n1,1\n1,1\n1,1\n",
    "huge.csv": "a,b\n1e308,1\n-1e308,2\n1e308,3\n",
    "infinite.csv": "a,b\ninf,1\n2,2\n3,4\n",
    "formulas.csv": "=1+1,@b,+c\n1,2,3\n4,5,7\n6,1,2\n",
    "dollars.csv": "$a$,b_{,\\frac\n1,2,3\n4,5,7\n6,1,2\n",
    "twice.csv": "a,a,b\n1,2,3\n4,5,7\n6,1,2\n",
    "quotes.csv": '"a,b","c\nd"\n1,2\n3,5\n4,4\n',
    "binary.npy": "\x00\x01not an array",
    "text.npz": "not a zip",
    "text.parquet": "PAR1",
    "page.html": "<p>page</p>",
    "no_suffix": "a,b\n1,2\n3,4\n",
}
"""Small files by name."""

VALUES = (
    "", " ", "-1", "0", "1", "2", "3", "1e400", "nan", "inf", "1.5", "0.5", "1j", "auto", "cv",
    "learn", "a", "b", "plain.csv", "missing.csv", ".", "/", "..", "out/", "é", "\u202e", "--",
    "-", "%s", "$HOME", "a,b", "[1,2]", "None", "True", "x" * 300, "10000000000000000000000",
)  # fmt: skip
OPTIONS = {
    ("fit", "linear"): ("--components", "--method", "--solver", "--whiten", "--seed", "--out"),
    ("fit", "dropout"): ("--target", "--components", "--dropout", "--solver", "--seed", "--out"),
    ("fit", "sparse"): ("--target", "--noise-variance", "--posterior", "--solver", "--out"),
    ("report",): ("--target", "--out", "--standardize"),
    ("reproduce",): ("--scale", "--device", "--jobs", "--seconds", "--notes"),
    ("list",): (),
    ("data", "where"): (),
    ("data", "fetch"): (),
    ("fit",): (),
    ("data",): (),
    ("dance",): (),
    (): ("--version", "--help", "--debug"),
}
USUAL = {
    "--components": ("1", "2", "0.9", "mle", "parallel-analysis"),
    "--method": ("rag", "linear_vae", "nonuniform_l2", "gha"),
    "--solver": ("exact", "auto", "gradient", "mm"),
    "--seed": ("0", "7"),
    "--out": ("out/", "new/folder/prefix", "result"),
    "--target": ("a", "b"),
    "--dropout": ("0.1", "0.9", "cv"),
    "--noise-variance": ("0.1", "learn", "cv", "auto"),
    "--posterior": ("full", "diagonal", "point"),
    "--scale": ("smoke",),
    "--seconds": ("0.01",),
    "--jobs": ("1",),
}
FLAGS = ("--whiten", "--standardize", "--version", "--help", "--debug")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments after ``lucidae``, run in a folder of small files."""

    arguments: tuple[str, ...]

    @property
    def program(self) -> str:
        """The line of Python that repeats the case."""
        return (
            "from fuzzing.arguments import CommandLine, check; "
            f"check(CommandLine({self.arguments!r}))"
        )

    @property
    def subject(self) -> str:
        """The command that is called."""
        return " ".join(["lucidae", *(word for word in self.arguments[:2] if word.isalpha())])


def cases(rng: Any) -> Iterator[CommandLine]:
    """Yield two command lines."""
    for _ in range(2):
        yield CommandLine(drawn(rng))


def drawn(rng: Any) -> tuple[str, ...]:
    """Draw a command, a file and options, some of them usual."""
    commands = list(OPTIONS)
    share = np.array([6, 6, 6, 1, 1, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3])
    command = commands[int(rng.choice(len(commands), p=share / share.sum()))]
    words = list(command)
    if command in (("reproduce",), ("data", "fetch")):
        # No network, and no experiment: a name that does not exist stops both.
        words.append("no-such-name")
    elif command and command[0] in ("fit", "report") and rng.random() < 0.95:
        names = list(TABLES)
        words.append("plain.csv" if rng.random() < 0.4 else str(rng.choice(names)))
    for option in OPTIONS[command]:
        if rng.random() < 0.3 or (option == "--target" and rng.random() < 0.5):
            words.append(option)
            if option not in FLAGS:
                usual = USUAL.get(option, VALUES)
                words.append(str(rng.choice(usual if rng.random() < 0.5 else VALUES)))
    if command == ("report",):
        words += ["--target", "no-such-column"]  # a page takes seconds: this one is refused
    return tuple(words)


def check(case: CommandLine) -> list[Finding]:
    """Run a command line in a folder of its own and return what it may not do."""
    with in_folder() as folder:
        before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        code, printed, error = outcome(case.arguments)
        changed = [path.name for path, data in before.items() if path.read_bytes() != data]
    wrong = list(misbehaviour(code, printed, error))
    if changed:
        wrong.append(("input changed", f"changed its input {', '.join(changed)}"))
    return [Finding(case.subject, kind, detail, case.program) for kind, detail in wrong]


@contextlib.contextmanager
def in_folder() -> Iterator[Path]:
    """Change into a new folder that holds the small files."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in TABLES.items():
            (folder / file).write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def outcome(arguments: tuple[str, ...]) -> tuple[Any, str, BaseException | None]:
    """Return the exit code, all that was printed as an error, and what was raised."""
    code, error = None, None
    with (
        silenced_descriptor(2) as written,
        silenced_descriptor(1),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as printed,
        warnings.catch_warnings(record=True) as caught,
        limited_time(120),
    ):
        warnings.simplefilter("always")
        try:
            code = run(arguments)
        except BaseException as raised:
            error = raised
        written.seek(0)
        text = printed.getvalue() + written.read().decode(errors="replace")
    lines = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    return code, "\n".join([*lines, text]).strip(), error


def misbehaviour(code: Any, printed: str, error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Yield what a command line may not do."""
    if error is not None:
        yield type(error).__name__, f"{type(error).__name__}: {error}"
        return
    if code not in (0, 1, 2):
        yield "exit code", f"exit code {code!r}"
    if "Traceback" in printed:
        yield "traceback", printed[-300:]
    unexpected = re.search(r"(\w+): (.*)\(--debug prints the traceback\)", printed)
    if unexpected:
        yield f"unexpected {unexpected[1]}", " ".join(printed.split())[:300]
    elif code == 2 and len(printed.split()) < 2:
        yield "error without a sentence", repr(printed[:200])
    if re.search(r"^(?!User|Convergence)\w+Warning: ", printed, flags=re.MULTILINE):
        yield "warning", printed.splitlines()[0][:200]
