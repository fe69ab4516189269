"""Rows whose second moment has given eigenvalues, and forms in which they are read in blocks."""

import numpy as np


def rows_with(values, n, m, seed=0):
    """Return n centred rows whose second moment has the given eigenvalues, and the eigenvectors."""
    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, len(values)))
    left, _ = np.linalg.qr(left - left.mean(axis=0))
    right, _ = np.linalg.qr(rng.standard_normal((m, len(values))))
    return (left * np.sqrt(n * np.asarray(values))) @ right.T, right


def batches_of(X, size=100):
    """Return an iterator of batches of the rows of X."""
    return (X[start : start + size] for start in range(0, len(X), size))


def memory_map(X, folder):
    """Return a memory map of X, written to a file in a folder."""
    np.save(folder / "rows.npy", X)
    return np.load(folder / "rows.npy", mmap_mode="r")


def sines(components, axes):
    """Return the sine of the angle between each component (row) and its axis (column)."""
    components = np.asarray(components, dtype=float)
    along = np.sum(components.T * axes, axis=0)
    return np.linalg.norm(components.T - along * axes, axis=0)


def read_in_blocks(monkeypatch, block_bytes=2**14):
    """Let small data be read in several blocks, which are not loaded together."""
    monkeypatch.setattr("lucidae.rows.blocks.BLOCK_BYTES", block_bytes)
    monkeypatch.setattr("lucidae.linear.certify.LOADED_BYTES", min(block_bytes, 2**16))
