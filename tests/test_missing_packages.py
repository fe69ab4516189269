"""A function that needs an optional package says which one to install if it is missing."""

import subprocess
import sys

import numpy as np
import pytest

from extras import require
from lucidae.data import row_blocks
from lucidae.data.kinds import named_rows
from lucidae_papers import device


@pytest.fixture
def without(monkeypatch):
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
        (".zarr", "zarr", "Reading Zarr needs zarr: pip install zarr"),
    ],
)
def test_readers_of_blocks_name_the_package_that_they_need(
    suffix, package, words, without, tmp_path
):
    file = tmp_path / f"rows{suffix}"
    file.write_bytes(b"content that is not read")
    without(package)
    with pytest.raises(ValueError, match=f"^{words}$"):
        row_blocks(file)


def test_the_reader_of_text_names_pandas(without, monkeypatch, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "lucidae.data.text", raising=False)
    monkeypatch.delattr("lucidae.data.text", raising=False)
    without("pandas")
    with pytest.raises(ValueError, match="Reading CSV needs pandas: pip install pandas"):
        row_blocks(file)


def test_the_command_line_names_distributed(without):
    require("typer")
    require("pandas")
    from lucidae_app.streams import cluster

    without("distributed")
    words = r'^A Dask scheduler needs the package distributed: pip install "lucidae\[dask\]", or'
    with pytest.raises(ValueError, match=words), cluster("tcp://127.0.0.1:1"):
        pass


def test_an_accelerator_needs_torch(without):
    without("torch")
    with pytest.raises(ValueError, match="device='cuda' needs PyTorch, which is not installed"):
        device.reference("cuda")
    assert device.reference("cpu").shape == (0,)


def test_rows_of_a_file_keep_no_names_without_pandas(without):
    rows = np.ones((2, 2))
    without("pandas")
    assert named_rows(rows, ("a", "b")) is rows


def test_an_interpreter_without_pandas_reads_npy_files(tmp_path):
    np.save(tmp_path / "rows.npy", np.eye(3))
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from lucidae import LinearAutoencoder\n"
        f"print(LinearAutoencoder(1).fit({str(tmp_path / 'rows.npy')!r}).n_features_in_)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("3\n", "")
