"""A certificate that holds is not contradicted by the true data, whatever function is broken.

`python -m certificates.fault_injection`, with `tests` on the path, injects all faults at all sizes.
"""

import pytest

from certificates.fault_injection import SHAPES, cases, run


def id_of(case):
    return str(case).replace(" ", "-")


@pytest.mark.parametrize("case", cases(SHAPES[:1]), ids=id_of)
def test_no_fault_passes(case):
    _, passed = run(case, slice(3, None, 41))
    assert passed == []


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(SHAPES), ids=id_of)
def test_no_fault_passes_at_any_size(case):
    _, passed = run(case, slice(0, None, 5 if case.shape[0] < 1000 else 50))
    assert passed == []
