"""Blocks so small that the data of a test have many of them."""

import pytest

from lucidae.rows import blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks of 64 KiB."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**16)
