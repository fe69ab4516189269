"""The check of oldest and newest versions: what it would install, and with which interpreters."""

import sys

import versions


def test_the_oldest_versions_are_the_lower_bounds_of_the_metadata():
    pins = versions.lower_bounds("cli")
    names = {pin.partition("==")[0] for pin in pins}
    assert {"numpy", "scipy", "scikit-learn", "pandas", "pytest", "polars"} <= names
    assert all("==" in pin and ">" not in pin for pin in pins)
    assert "torch" not in names
    fewer = {pin.partition("==")[0] for pin in versions.lower_bounds("")}
    assert "pandas" not in fewer


def test_interpreters_are_those_that_run_and_are_new_enough():
    found = versions.pythons()
    assert sys.executable in found
    assert all(versions.version_of(python) >= "3.11" for python in found)
    assert len({versions.version_of(python) for python in found}) == len(found)


def test_an_interpreter_that_fails_has_no_version(tmp_path):
    script = tmp_path / "python3.12"
    script.write_text("#!/bin/sh\nexit 127\n")
    script.chmod(0o755)
    assert versions.version_of(script) == ""


def test_the_quick_tests_exist():
    assert all((versions.ROOT / place).exists() for place in versions.QUICK)


def test_versions_without_wheels_are_replaced_by_the_next_ones():
    known = {"numpy": [(1, 26, 4), (2, 0, 0), (2, 1, 0), (2, 10, 0)], "scipy": [(1, 14, 1)]}
    pins = ["numpy==2.0", "scipy==1.14.0", "pandas==2.2.2"]
    found = versions.raised(pins, lambda name: known.get(name, []))
    assert found == ["numpy==2.0.0", "scipy==1.14.1", "pandas==2.2.2"]
    assert versions.raised(["numpy==2.0.1"], known.get) == ["numpy==2.1.0"]


def test_tests_that_a_missing_package_skips_are_counted():
    printed = (
        "SKIPPED [2] tests/a.py:1: torch is not installed\n"
        "SKIPPED [3] tests/b.py:7: no such parameter or method\n"
        "SKIPPED [5] tests/c.py:2: could not: torch is not installed\n"
        "7 passed, 10 skipped in 1.00s\n"
    )
    assert versions.skipped(printed) == "; skipped: 7 without torch"
    assert versions.skipped("7 passed in 1.00s\n") == ""
