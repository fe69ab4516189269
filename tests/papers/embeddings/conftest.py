"""Small tensors on few cores: one thread is faster than two that wait for each other."""

import pytest

from extras import require


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    torch = require("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
