"""Atomic writes and reads without pickle; a damaged file gives an error of one sentence."""

import errno
import os
import pickle
import stat
import zipfile
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lucidae.io import atomic_path, load_arrays, save_arrays, size_in_words

ARRAYS = {"number": np.array(3), "vector": np.arange(5.0), "empty": np.empty((0, 2))}


def archive() -> bytes:
    stream = BytesIO()
    np.savez(stream, **ARRAYS)
    return stream.getvalue()


def test_a_finished_block_replaces_the_file(tmp_path):
    target = tmp_path / "deep" / "note.txt"
    for text in ("first", "second"):
        with atomic_path(target) as path:
            assert path.parent == target.parent
            assert path.suffix == ".txt"
            path.write_text(text)
        assert target.read_text() == text
    assert [*target.parent.iterdir()] == [target]


def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "note.txt"
    target.write_text("old")

    def fail():
        with atomic_path(target) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_text() == "old"
    assert [*tmp_path.iterdir()] == [target]


def test_the_file_gets_the_mode_that_the_user_asks_for(tmp_path):
    plain, target = tmp_path / "plain", tmp_path / "atomic"
    plain.write_text("")
    with atomic_path(target) as path:
        path.write_text("")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_arrays_come_back_under_the_given_name(tmp_path):
    target = tmp_path / "no-suffix"
    save_arrays(target, ARRAYS)
    loaded = load_arrays(str(target), "a test file")
    assert loaded.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        assert_array_equal(loaded[name], values)
    assert [*tmp_path.iterdir()] == [target]


def test_objects_are_neither_written_nor_read(tmp_path):
    objects = np.array([{"a": 1}, None], dtype=object)
    with pytest.raises(ValueError, match="values contains Python objects"):
        save_arrays(tmp_path / "a.npz", {"values": objects})
    np.savez(tmp_path / "b.npz", values=objects)
    with pytest.raises(ValueError, match="not a test file"):
        load_arrays(tmp_path / "b.npz", "a test file")
    assert not (tmp_path / "a.npz").exists()


def encrypted() -> bytes:
    data = bytearray(archive())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        position = data.find(signature)
        while position >= 0:
            data[position + flags] |= 1
            position = data.find(signature, position + 4)
    return bytes(data)


def lone_array() -> bytes:
    stream = BytesIO()
    np.save(stream, np.arange(3.0))
    return stream.getvalue()


def foreign_archive() -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w") as bundle:
        bundle.writestr("vector.npy", b"not an array")
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        pickle.dumps([1]),
        lone_array(),
        foreign_archive(),
        encrypted(),
        archive()[:-30],
    ],
    ids=["empty", "text", "pickle", "lone array", "no arrays", "encrypted", "cut short"],
)
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.npz' is not a test file, or it is damaged"):
        load_arrays(path, "a test file")


def archive_with(path, member, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(member, content)
    return path


def test_an_array_that_claims_more_than_the_file_has_is_refused_before_it_is_read(tmp_path):
    header = BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, claim)
    path = archive_with(tmp_path / "lie.npz", "a.npy", header.getvalue() + b"0" * 64)
    with pytest.raises(ValueError, match="states that it contains 8 TB, expected at most"):
        load_arrays(path, "a test")


def test_a_compressed_bomb_is_refused(tmp_path):
    plain = BytesIO()
    np.save(plain, np.zeros(10**6))
    path = archive_with(tmp_path / "b.npz", "a.npy", plain.getvalue(), zipfile.ZIP_DEFLATED)
    with pytest.raises(
        ValueError, match="the file is compressed, but lucidae writes uncompressed files"
    ):
        load_arrays(path, "a test")


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(15, 150))]
)
def test_a_flipped_byte_is_one_error_or_none(tmp_path, seed):
    path = tmp_path / "arrays.npz"
    save_arrays(path, {"a": np.arange(6.0), "b": np.array("text")})
    rng, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    content[rng.integers(len(content))] = rng.integers(256)
    path.write_bytes(bytes(content))
    found = {}
    with suppress(ValueError):  # anything else would be a traceback for the user
        found = load_arrays(path, "a test")
    for name, values in found.items():  # a byte that does not matter, or only a name
        assert_array_equal(values, np.array("text") if values.ndim == 0 else np.arange(6.0), name)


def test_entries_that_share_their_bytes_are_refused(tmp_path):
    plain = BytesIO()
    np.save(plain, np.zeros(10**5))
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("a.npy", plain.getvalue())
        bundle.filelist.extend([bundle.filelist[0]] * 1000)
    with pytest.raises(ValueError, match="states that it contains 801 MB, expected at most"):
        load_arrays(path, "a test")


def test_links_and_modes_stay_as_with_open(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real.txt")
    with atomic_path(link) as path:
        path.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    dangling = tmp_path / "dangling.txt"
    dangling.symlink_to("elsewhere.txt")
    with atomic_path(dangling) as path:
        path.write_text("made")
    assert (tmp_path / "elsewhere.txt").read_text() == "made"


@pytest.mark.parametrize("name", ["x" * 251 + ".npz", "x." + "y" * 253, "ä" * 125 + ".npz"])
def test_names_may_be_as_long_as_the_system_allows(tmp_path, name):
    save_arrays(tmp_path / name, ARRAYS)
    assert load_arrays(tmp_path / name, "a test file").keys() == ARRAYS.keys()


def test_what_cannot_be_replaced_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    with (
        pytest.raises(IsADirectoryError, match="The path is a folder"),
        atomic_path(tmp_path / "folder"),
    ):
        pytest.fail("the block was entered")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"), atomic_path(tmp_path / "pipe"):
        pytest.fail("the block was entered")
    (tmp_path / "fixed").write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with (
        pytest.raises(PermissionError, match="is read-only"),
        atomic_path(tmp_path / "fixed"),
    ):
        pytest.fail("the block was entered")


def fill_disk():
    def savez(stream, **arrays):
        stream.write(b"0" * 1000)
        stream.flush()
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise ValueError("cannot close the archive")  # as zipfile does

    return savez


def test_full_disk_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "savez", fill_disk())
    with pytest.raises(OSError, match="The disk is too full for this file") as e:
        save_arrays(tmp_path / "full.npz", {"a": np.zeros(1000)})
    assert e.value.errno == errno.ENOSPC
    assert e.value.filename == str(tmp_path / "full.npz")
    assert not list(tmp_path.iterdir())


def test_bytes_after_an_array_are_refused(tmp_path):
    plain = BytesIO()
    np.save(plain, np.zeros(3))
    path = archive_with(tmp_path / "long.npz", "a.npy", plain.getvalue() + b"0")
    with pytest.raises(ValueError, match=r"a\.npy contains further bytes after its array"):
        load_arrays(path, "a test")


def test_arrays_of_a_later_format_are_refused(tmp_path):
    path = archive_with(tmp_path / "late.npz", "a.npy", b"\x93NUMPY\x03\x00" + b" " * 64)
    with pytest.raises(ValueError, match=r"an array of format \(3, 0\), which is not supported"):
        load_arrays(path, "a test")


def test_sizes_beyond_any_disk_have_no_digits():
    assert size_in_words(10**15) == "more than 1000 TB"
    assert size_in_words(10**15 - 10**13) == "990 TB"
