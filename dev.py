"""Four commands for developers; they need only Python 3.11 or newer with pip and venv.

python3 dev.py report   install what is missing into .venv and write the report page
python3 dev.py test     the same, then run the tests
python3 dev.py lint     the same, then ruff and mypy
python3 dev.py bench    the same, then the benchmarks against other libraries

Further arguments are passed on to the tool: ``python3 dev.py test -k moments``.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "lucidae-installed.json"
LINTED = ("src", "tests", "benchmarks", "dev.py", "conftest.py")

# Each extra of pyproject.toml, and the larger ones that include its packages.
COVERED_BY = {
    "cli": ("cli", "test", "dev"),
    "test": ("test", "dev"),
    "dev": ("dev",),
    "test,peers": ("test,peers",),
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
    return run("lucidae_command", "report", *arguments)


def test(arguments):
    """Run the tests with one process per core and one BLAS thread per process."""
    return run(
        *("pytest", "-n", str(cores()), "-m", "not slow", *arguments),
        OPENBLAS_NUM_THREADS="1",
        OMP_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
        # SciPy reads it when it is imported; without it scikit-learn skips its array checks.
        SCIPY_ARRAY_API="1",
        MPLBACKEND="Agg",
    )


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
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
