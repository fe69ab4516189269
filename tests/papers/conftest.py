import importlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from joblib.externals.loky import get_reusable_executor


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Import the toy experiment from a folder that other processes see too."""
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copy(Path(__file__).with_name("toy.py"), folder / "toy.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "toy", raising=False)
    get_reusable_executor().shutdown(wait=True)  # processes of earlier tests do not see the folder
    yield importlib.import_module("toy")
    sys.modules.pop("toy", None)


@pytest.fixture(scope="session")
def one_thread():
    """Use one thread of torch: for small tensors on few cores it is faster than two that wait."""
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
