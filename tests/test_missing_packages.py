"""A function that needs an optional package says which one to install if it is missing."""

import subprocess
import sys

import numpy as np
import pytest

from extras import require
from interpreters import without
from lucidae import LinearAutoencoder
from lucidae_papers import device


@pytest.fixture
def removed(monkeypatch):
    """Return a function that makes the import of a package fail until the end of the test."""

    def remove(package):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return remove


@pytest.mark.parametrize(
    ("suffix", "package", "words"),
    [
        (".parquet", "pyarrow", "Reading Parquet needs pyarrow: pip install pyarrow"),
        (".h5", "h5py", "Reading HDF5 needs h5py: pip install h5py"),
        (".hdf5", "h5py", "Reading HDF5 needs h5py: pip install h5py"),
        (".h5ad", "anndata", "Reading .h5ad needs anndata: pip install .*"),
        (".zarr", "zarr", "Reading Zarr needs zarr: pip install zarr"),
    ],
)
def test_readers_of_files_name_the_package_that_they_need(
    suffix, package, words, removed, tmp_path
):
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(b"content that is not read")
    removed(package)
    with pytest.raises(ValueError, match=f"^{words}$"):
        LinearAutoencoder(1).fit(file)


def test_only_text_files_need_pandas(tmp_path):
    require("pyarrow")
    frame = require("pandas").DataFrame(np.eye(3), columns=list("abc"))
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    np.save(tmp_path / "rows.npy", np.eye(3))
    np.savez(tmp_path / "rows.npz", X=np.eye(3))
    program = """
from lucidae import LinearAutoencoder
for name in ("rows.npy", "rows.npz", "rows.parquet", "rows.csv"):
    try:
        print(LinearAutoencoder(1).fit(name).n_features_in_)
    except ValueError as error:
        print(error)
"""
    command = [sys.executable, "-c", without(["pandas"], program)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    lines = ["3", "3", "3", "Reading CSV needs pandas: pip install pandas"]
    assert (result.stdout.splitlines(), result.stderr) == (lines, "")


def test_the_command_line_names_distributed(removed):
    require("typer")
    require("pandas")
    from lucidae_app.streams import cluster

    removed("distributed")
    words = r'^A Dask scheduler needs the package distributed: pip install "lucidae\[dask\]", or'
    with pytest.raises(ValueError, match=words), cluster("tcp://127.0.0.1:1"):
        pass


def test_an_accelerator_needs_torch(removed):
    removed("torch")
    with pytest.raises(ValueError, match="device='cuda' needs PyTorch, which is not installed"):
        device.reference("cuda")
    assert device.reference("cpu").shape == (0,)
