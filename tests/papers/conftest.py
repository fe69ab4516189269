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
