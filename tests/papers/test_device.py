"""Names of devices, processors and versions, also where the system does not tell them."""

import os
import platform
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from extras import require
from lucidae_papers import device


def test_a_device_that_is_absent_is_refused():
    require("torch")
    with pytest.raises(ValueError, match="device='nonsense' is not available here"):
        device.reference("nonsense")


def test_an_accelerator_is_named_after_its_torch_device():
    torch = require("torch")
    assert device.reference("meta").dtype == torch.float64
    assert device.machine("meta") == "meta"


def test_the_processor_has_a_name_without_proc(monkeypatch):
    def absent(self, **options):
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", absent)
    assert device.machine("cpu") == f"{platform.machine()}, {device.cores()} cores"
    monkeypatch.setattr(Path, "read_text", lambda self, **options: "flags: none\n")
    assert device.machine("cpu").startswith(platform.machine())
    monkeypatch.setattr(Path, "read_text", lambda self, **options: "model name\t: A chip\n")
    assert device.machine("cpu") == f"A chip, {device.cores()} cores"


def test_all_cores_count_where_the_system_has_no_affinity(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert device.cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert device.cores() == 1


def test_packages_without_metadata_have_an_unknown_version(monkeypatch):
    def lost(package):
        if package == "scipy":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(device, "version", lost)
    found = device.versions()
    assert (found["scipy"], found["numpy"]) == ("unknown", "1.0")
    assert found["python"] == platform.python_version()
