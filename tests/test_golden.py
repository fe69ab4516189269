"""Results and verdicts of a table of fits are those of the version that froze them."""

import json

import numpy as np
import pytest

from golden import CASES, FILE

FROZEN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_case_is_frozen():
    assert FROZEN.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_results_and_verdicts_are_the_frozen_ones(name):
    compare(json.loads(json.dumps(CASES[name]())), FROZEN[name], name)


def compare(found, frozen, place):
    """Compare nested results; numbers agree to 1e-5 of the size of their list."""
    if isinstance(frozen, dict):
        assert found.keys() == frozen.keys(), place
        for name, value in frozen.items():
            compare(found[name], value, f"{place}: {name}")
    elif isinstance(frozen, list) and frozen and all(isinstance(v, float) for v in frozen):
        size = max(map(abs, frozen))
        np.testing.assert_allclose(found, frozen, rtol=0, atol=1e-5 * size, err_msg=place)
    elif isinstance(frozen, float):
        assert found == pytest.approx(frozen, rel=1e-5), place
    else:
        assert found == frozen, place
