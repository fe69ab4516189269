"""Check the wheel and the sdist with the oldest and the newest packages: ``dev.py versions``.

For every Python from 3.11 on that is at hand, with the lowest versions that pyproject.toml allows
and this Python has wheels of, and with the newest versions that pip finds: make an environment
outside of the tree, install the built wheel into it, and run a quick part of the tests from an
unpacked sdist. It needs only the standard library; nothing is written into the tree. PyTorch is
not installed, so that the tests that need it are skipped; the table counts them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = (
    "tests/test_moments.py",
    "tests/test_certify.py",
    "tests/test_certificate.py",
    "tests/linear/test_estimator.py",
    "tests/linear/test_estimator_contract.py",
    "tests/linear/test_objectives.py",
    "tests/dropout/test_estimators.py",
    "tests/dropout/test_contract.py",
    "tests/dropout/test_solvers.py",
    "tests/sparsity/test_estimator.py",
    "tests/sparsity/test_objectives.py",
    "tests/metrics",
    "tests/datasets/test_generators.py",
    "tests/io",
    "tests/iteration",
)
"""Tests of all subpackages that take about a minute together."""

TOOLS = ("array-api-strict", "hypothesis", "mpmath", "polars", "pyarrow", "pytest")
"""What these tests need of the extra `test`."""

TESTED = {
    "OPENBLAS_NUM_THREADS": "1",
    "SCIPY_ARRAY_API": "1",
    "MPLBACKEND": "Agg",
    "PYTHONPATH": "",
}
"""Environment of the tests."""


def main(arguments):
    """Build, check every combination and print a table; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="dev.py versions", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("oldest", "newest"), help="one of the two")
    parser.add_argument("--python", action="append", help="such as 3.12; default: all at hand")
    parser.add_argument("--folder", help="where to work; default: a temporary folder")
    parser.add_argument("--extra", default="cli", help="extra to install, '' for none")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder or tempfile.mkdtemp(prefix="lucidae-versions-"))
    folder.mkdir(parents=True, exist_ok=True)
    wheel, tree = built(folder)
    rows = []
    for python in pythons():
        for age in ("oldest", "newest"):
            wanted = chosen.python is None or version_of(python) in chosen.python
            if wanted and chosen.only in (None, age):
                rows.append(checked(folder, python, age, wheel, tree, chosen.extra))
                print("| {} | {} | {} | {} |".format(*rows[-1][:4]), flush=True)
    print("\n| Python | versions | packages | tests |\n|---|---|---|---|")
    for row in rows:
        print("| {} | {} | {} | {} |".format(*row[:4]))
    if not chosen.folder:
        shutil.rmtree(folder)
    return int(not all(row[4] for row in rows))


def pythons():
    """Return the interpreters from 3.11 on that are at hand, one of each version.

    They are looked for on the search path and among the versions of pyenv.
    """
    found = {sys.version_info[:2]: sys.executable}
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for folder in (*folders, *(Path.home() / ".pyenv" / "versions").glob("*/bin")):
        for path in sorted(folder.glob("python3.*")):
            version = re.fullmatch(r"python3\.(\d+)", path.name)
            if version and int(version[1]) >= 11 and version_of(path) == path.name[6:]:
                found.setdefault((3, int(version[1])), str(path))
    return [found[version] for version in sorted(found)]


def version_of(python):
    """Return the version of an interpreter as text; empty if it does not run."""
    code = "import sys; print(*sys.version_info[:2], sep='.')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def call(*command, **options):
    """Run a command; print its output if it fails, and return the result."""
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **options
    )
    if result.returncode:
        print(f"{' '.join(map(str, command))} failed:\n{(result.stdout + result.stderr)[-4000:]}")
    return result


def built(folder):
    """Build sdist and wheel in a copy of the tree; return the wheel and the unpacked sdist."""
    environment = folder / "build"
    if not (environment / "bin" / "python").exists():
        call(sys.executable, "-m", "venv", environment)
        call(environment / "bin" / "python", "-m", "pip", "install", "--quiet", "build")
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
    call(environment / "bin" / "python", "-m", "build", "--outdir", folder / "dist", cwd=copy)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    shutil.rmtree(folder / "sdist", ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    (tree,) = (folder / "sdist").iterdir()
    # The installed wheel is to be tested, and not the sources beside the tests.
    shutil.rmtree(tree / "src")
    return wheel, tree


def lower_bounds(extra):
    """Return the lowest versions of all dependencies and tools, as requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tools = [line for line in extras["test"] if line.partition(">=")[0] in TOOLS]
    lines = [*project["dependencies"], *extras.get(extra, []), *tools]
    return [line.replace(">=", "==") for line in lines]


def available(python, name):
    """Return the versions of a package of which this Python has wheels, as tuples of numbers.

    pip lists them if it is asked for one that does not exist.
    """
    options = ("--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:")
    command = (python, "-m", "pip", "install", *options, f"{name}==0")
    printed = subprocess.run(command, capture_output=True, text=True).stderr
    listed = re.search(r"from versions: ([^)]*)", printed)
    numbers = listed[1].split(", ") if listed else []
    return [parts(number) for number in numbers if re.fullmatch(r"[\d.]+", number)]


def parts(number):
    """Return a version such as 2.1.0 as a tuple of numbers, which can be compared."""
    return tuple(int(part) for part in number.split("."))


def raised(pins, versions_of_package):
    """Return the pins, each raised to the lowest version that `versions_of_package(name)` has.

    The oldest versions that the metadata allow may have no wheels for a Python that came later.
    """
    found = []
    for pin in pins:
        package, bound = pin.split("==")
        name = package.partition("[")[0]
        enough = [number for number in versions_of_package(name) if number >= parts(bound)]
        lowest = ".".join(map(str, min(enough))) if enough else bound
        found.append(f"{package}=={lowest}")
    return found


def checked(folder, python, age, wheel, tree, extra):
    """Test one combination; return the row of the table, and whether all went well."""
    version = version_of(python)
    environment = folder / f"{age}-{version}"
    call(python, "-m", "venv", environment)
    inner = environment / "bin" / "python"
    pins = TOOLS
    if age == "oldest":
        pins = raised(lower_bounds(extra), lambda name: available(python, name))
    given = f"{wheel}[{extra}]" if extra else str(wheel)
    wheels = ("--only-binary", ":all:")
    installed = call(inner, "-m", "pip", "install", "--quiet", *wheels, given, *pins)
    if installed.returncode:
        return version, age, "–", "the packages cannot be installed together", False
    packages = versions_of(inner)
    tests = [place for place in QUICK if (tree / place).exists()]
    result = call(
        *(inner, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", "-m", "not slow", *tests),
        cwd=tree,
        env={**os.environ, **TESTED},
    )
    summary = (result.stdout.strip().splitlines() or ["nothing was printed"])[-1].strip("= ")
    return version, age, packages, summary + skipped(result.stdout), result.returncode == 0


def skipped(printed):
    """Return how many tests were skipped because a package is missing, in words."""
    counts = Counter()
    for number, package in re.findall(r"^SKIPPED \[(\d+)\].*: (\S+) is not inst", printed, re.M):
        counts[package] += int(number)
    words = [f"{number} without {package}" for package, number in sorted(counts.items())]
    return f"; skipped: {', '.join(words)}" if words else ""


def versions_of(python):
    """Return the versions of the packages that matter, as text."""
    names = ("numpy", "scipy", "scikit-learn")
    code = f"from importlib.metadata import version as v; print(*(v(n) for n in {names!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()
    return ", ".join(f"{name} {number}" for name, number in zip(names, found, strict=False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
