"""Fixtures of the tests of the sparse family."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def torch_solves_its_tensors() -> Iterator[None]:
    """Let torch solve the problems of its tensors on the CPU, as it does on a GPU.

    Elsewhere NumPy solves them, which is faster, so that the code for a GPU would not be tested.
    """
    with patch("lucidae.sparsity.estimator.is_host_tensor", return_value=False):
        yield
