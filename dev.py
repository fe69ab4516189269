"""Commands for developers; they need only Python 3.11 or newer with pip and venv.

python3 dev.py report    install what is missing into .venv and write the report page
python3 dev.py test      the same, then run the tests
python3 dev.py lint      the same, then ruff and mypy
python3 dev.py bench     the same, then the benchmarks against other libraries
python3 dev.py fuzz      the same, then the fuzzers, for ten minutes or `--minutes N`
python3 dev.py coverage  the same, then the tests with the branch coverage of src; in
                         pieces: `--folder F tests/linear`, `--folder F tests/dropout`, …
python3 dev.py mutate    the same, then mutation testing of the formula modules
python3 dev.py docs      the same, then the site in build/docs; `--quick` does not run the gallery
python3 dev.py versions  test the wheel with the oldest and the newest packages

Further arguments are passed on to the tool: ``python3 dev.py test -k moments``.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "lucidae-installed.json"
LINTED = ("src", "tests", "benchmarks", "docs", "examples", "dev.py", "conftest.py")

# Each extra of pyproject.toml, and the larger ones that include its packages.
COVERED_BY = {
    "cli": ("cli", "test", "dev"),
    "test": ("test", "dev"),
    "dev": ("dev",),
    "test,peers": ("test,peers",),
    "docs": ("docs",),
}


def main(arguments):
    """Run one command and return its exit code."""
    if sys.version_info < (3, 11):
        return fail(f"lucidae needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    if not arguments or arguments[0] not in COMMANDS:
        print(__doc__)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    extra, command = COMMANDS[arguments[0]]
    try:
        if extra:
            provide(extra)
    except subprocess.CalledProcessError as error:
        return fail(f"'{' '.join(map(str, error.cmd))}' failed; see the lines above.")
    return command(arguments[1:])


def fail(sentence):
    """Print one sentence on standard error and return the exit code of an error."""
    print(sentence, file=sys.stderr)
    return 2


def provide(extra):
    """Install the package with one extra into .venv, unless it is up to date."""
    fingerprint = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    installed = read_stamp()
    if any(installed.get(name) == fingerprint for name in COVERED_BY[extra]):
        return
    if not PYTHON.exists():
        print("Creating .venv ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    if subprocess.run([PYTHON, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode:
        subprocess.run([PYTHON, "-m", "ensurepip"], check=True)
    print(f"Installing lucidae[{extra}] into .venv (minutes the first time) ...", flush=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [PYTHON, "-m", "pip", "install", *quiet, "--editable", f".[{extra}]"], check=True, cwd=ROOT
    )
    STAMP.write_text(json.dumps(installed | {extra: fingerprint}, indent=1), encoding="utf-8")


def read_stamp():
    """Return the fingerprint of each installed extra; nothing if .venv is missing."""
    if not PYTHON.exists() or not STAMP.exists():
        return {}
    try:
        return dict(json.loads(STAMP.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return {}


def run(*command, **variables):
    """Run a module with the Python of .venv in the project's folder; return its exit code."""
    environment = {**os.environ, **variables}
    try:
        return subprocess.run([PYTHON, "-m", *command], cwd=ROOT, env=environment).returncode
    except KeyboardInterrupt:
        return 130


def report(arguments):
    """Write the report page."""
    return run("lucidae_app", "report", *arguments)


TESTED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # SciPy reads it when it is imported; without it scikit-learn skips its array checks.
    "SCIPY_ARRAY_API": "1",
    "MPLBACKEND": "Agg",
    # Otherwise each of the processes compiles all modules again, at every run.
    "PYTHONDONTWRITEBYTECODE": "",
}
"""Environment of all tests: one BLAS thread per process, no windows, and compiled modules kept."""


def test(arguments):
    """Run the tests with one BLAS thread per process.

    One process more than there are cores uses the time in which tests wait for other processes.
    """
    return run("pytest", "-n", str(cores() + 1), "-m", "not slow", *arguments, **TESTED)


def fuzz(arguments):
    """Run the fuzzers of tests/fuzzing."""
    return run("fuzzing", *arguments, **TESTED, PYTHONPATH=paths("tests", "."))


def coverage(arguments):
    """Run the tests and print the branch coverage of each file with what it lacks.

    With ``--folder F`` as the first argument, what is measured is kept in this folder and added to
    what earlier calls have measured there, so that a slow machine can run the tests in pieces.
    """
    wanted = ["pytest", "-n", str(cores()), "-m", "not slow", "--cov", "--cov-branch"]
    wanted += ["--cov-report", "term-missing:skip-covered"]
    with tempfile.TemporaryDirectory() as folder:
        if len(arguments) > 1 and arguments[0] == "--folder":
            folder, arguments = Path(arguments[1]).resolve(), arguments[2:]
            folder.mkdir(parents=True, exist_ok=True)
            wanted.append("--cov-append")
        place = str(Path(folder) / "coverage")
        return run(*wanted, *arguments, **TESTED, COVERAGE_FILE=place)


def mutate(arguments):
    """Break the formula modules, one expression at a time, and list what no test notices."""
    return run("mutmut", "run", *arguments, **TESTED)


def versions(arguments):
    """Check the wheel in environments of its own."""
    script = str(ROOT / "tests" / "versions.py")
    return subprocess.run([sys.executable, script, *arguments], cwd=ROOT).returncode


def docs(arguments):
    """Build the site into build/docs, every warning an error, and check its links.

    Further arguments are passed to Sphinx, except ``--quick``.
    """
    quick = "--quick" in arguments
    options = [word for word in arguments if word != "--quick"]
    site = ROOT / "build" / "docs"
    built = ["sphinx", "-b", "html", "-W", "--keep-going", *options, "docs", str(site)]
    code = run(*built, **TESTED, LUCIDAE_QUICK_DOCS=str(int(quick)))
    return code or run("site_links", str(site), PYTHONPATH=paths("docs/_extensions"))


def paths(*places):
    """Return folders of the project as a search path for modules."""
    return os.pathsep.join(str(ROOT / place) for place in places)


def lint(arguments):
    """Run ruff and mypy, all of them even if the first one fails."""
    places = [place for place in LINTED if (ROOT / place).exists()]
    codes = [
        run("ruff", "check", *arguments, *places),
        run("ruff", "format", "--check", *places),
        run("mypy"),
    ]
    return max(codes)


def bench(arguments):
    """Run the benchmarks."""
    return run("benchmarks", *arguments)


def cores():
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


COMMANDS = {
    "report": ("cli", report),
    "test": ("test", test),
    "lint": ("dev", lint),
    "bench": ("test,peers", bench),
    "fuzz": ("test", fuzz),
    "coverage": ("dev", coverage),
    "mutate": ("dev", mutate),
    "docs": ("docs", docs),
    "versions": ("", versions),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
