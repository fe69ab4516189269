#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox"]
# ///
"""Environments for contributors who use nox; ``python3 dev.py`` does the same without it."""

import nox

nox.needs_version = ">=2024.3.2"
nox.options.default_venv_backend = "uv|virtualenv"

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@nox.session
def lint(session):
    """Check the style and the types."""
    session.install("-e.[dev]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")


@nox.session(python=PYTHONS)
def tests(session):
    """Run the tests; further arguments are passed to pytest."""
    session.install("-e.[test]")
    arguments = session.posargs or ["-n", "auto", "-m", "not slow"]
    session.run("pytest", *arguments, env={"SCIPY_ARRAY_API": "1", "MPLBACKEND": "Agg"})


@nox.session(python=PYTHONS, default=False)
def oldest(session):
    """Run the quick part of the tests with the oldest packages that are allowed."""
    session.install("packaging")
    session.run("python", "dev.py", "versions", "--only", "oldest")


@nox.session(default=False)
def build(session):
    """Build the source distribution and the wheel, and check their descriptions."""
    session.install("build", "twine")
    session.run("python", "-m", "build")
    session.run("twine", "check", "--strict", "dist/*")


@nox.session(default=False)
def docs(session):
    """Build the site into build/docs, every warning an error, and check its links."""
    session.install("-e.[docs]")
    options = ["-b", "html", "-W", "--keep-going", *session.posargs]
    session.run("sphinx-build", *options, "docs", "build/docs", env={"MPLBACKEND": "Agg"})
    session.run("python", "docs/_extensions/site_links.py", "build/docs")


@nox.session(default=False)
def bench(session):
    """Run the benchmarks against other libraries."""
    session.install("-e.[test,peers]")
    session.run("python", "-m", "benchmarks", *session.posargs)


if __name__ == "__main__":
    nox.main()
