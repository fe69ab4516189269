"""Folders and archives for the tests of the loaders."""

import gzip
import io
import tarfile


def write_folder(folder, contents, packed=False):
    """Write a folder of files, plain or gzipped, and return its path."""
    folder.mkdir()
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def write_tar(path, members):
    """Write a gzipped tar archive with members of any name and return its path."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def everything_below(folder):
    """Return the relative paths of all files in a folder and in those within."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
