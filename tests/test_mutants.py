"""The mutation tool itself: it changes what it says, and takes it back."""

import math
import tomllib
from pathlib import Path

import pytest

from mutants import broken, mutants

ROOT = Path(__file__).resolve().parents[1]


def clipped(value, limit=2.0):
    """A function with a comparison, a constant, a slice and a call."""
    kept = [value, limit, 3.0][:2]
    return min(kept[0] * 2 + 1, kept[1]) if value < limit else -math.sqrt(limit)


def test_mutants_differ_from_the_function_and_leave_it_as_it_was():
    healthy = [clipped(value) for value in (0.25, 1.0, 2.0, 5.0)]
    seen = {}
    for words, code in mutants(clipped):
        with broken(clipped, code):
            try:
                seen[words] = [clipped(value) for value in (0.25, 1.0, 2.0, 5.0)]
            except (AttributeError, IndexError, ValueError):
                seen[words] = None
        assert [clipped(value) for value in (0.25, 1.0, 2.0, 5.0)] == healthy
    changed = {words for words, found in seen.items() if found != healthy}
    assert len(changed) >= 10
    for part in ("Lt to LtE", "Add to Sub", "drop a minus", "min to max", "slice one shorter"):
        assert any(part in words for words in changed), part


def test_a_function_is_restored_after_an_error():
    words, code = next(iter(mutants(clipped)))
    with pytest.raises(ZeroDivisionError), broken(clipped, code):
        raise ZeroDivisionError(words)
    assert clipped(0.25) == 1.5


def shifted(value: float = 3.0) -> float:
    """A function whose only number is a default."""
    return value


def test_defaults_and_annotations_are_not_mutated():
    assert list(mutants(shifted)) == []


@pytest.mark.parametrize("names", ["source_paths", "pytest_add_cli_args_test_selection"])
def test_what_mutmut_is_told_to_run_exists(names):
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    assert [place for place in told[names] if not (ROOT / place).exists()] == []
