"""The mutation tool itself: it changes what it says, and takes it back."""

import importlib
import math

import pytest

from explained_mutants import EXPLAINED
from mutants import broken, mutants
from mutation import KILLERS, ROOT, functions_of


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


def test_the_functions_of_a_module_are_its_own_and_have_a_source():
    from lucidae.dropout import theory

    names = {function.__qualname__ for function in functions_of(theory)}
    assert {"shrink", "code_map", "optimal_value"} <= names
    assert "namespace" not in names
    assert not any(name.startswith("Shrinkage") for name in names)


def test_every_formula_module_has_tests():
    for module, places in KILLERS.items():
        assert (ROOT / "src" / "lucidae" / f"{module.replace('.', '/')}.py").exists(), module
        assert all((ROOT / "tests" / place).exists() for place in places), module


@pytest.mark.parametrize("module", EXPLAINED)
def test_explained_mutants_are_mutants_of_the_present_code(module):
    listed = {place for places in EXPLAINED[module].values() for place in places}
    present = set()
    for function in functions_of(importlib.import_module(f"lucidae.{module}")):
        for words, _ in mutants(function):
            place, _, changed = words.partition(": ")
            present.add((place.partition(":")[0], changed))
    assert listed <= present
