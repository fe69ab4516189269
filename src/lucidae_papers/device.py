"""The devices on which runs are done (NumPy on the processor, or torch) and their names."""

from __future__ import annotations

import os
import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lucidae._version import __version__
from lucidae.arrays import Array, namespace
from lucidae.validation import install_command

PACKAGES = ("numpy", "scipy", "scikit-learn", "array-api-compat")


def is_accelerator(device: str) -> bool:
    """Return True if `device` is an accelerator, which is any name except ``"cpu"`` (NumPy)."""
    return device != "cpu"


def reference(device: str) -> Array:
    """Return an empty float64 array on a device.

    ``lucidae.arrays.like(x, reference(device))`` moves an array `x` to this device.
    """
    if not is_accelerator(device):
        return namespace().empty(0)
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise ValueError(
            f"device={device!r} needs PyTorch, which is not installed: {install_command('torch')}; "
            "or use device='cpu'."
        ) from error
    try:
        return torch.empty(0, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={device!r} is not available here: {error}; use device='cpu'."
        ) from error


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Return the versions of Python, lucidae, NumPy, SciPy and so on, by package name."""
    found = {"lucidae": __version__, "python": platform.python_version()}
    for package in PACKAGES + (("torch",) if "torch" in sys.modules else ()):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def machine(device: str) -> str:
    """Return the name of the accelerator, or the name of the processor and its number of cores."""
    if is_accelerator(device):
        torch: Any = import_module("torch")
        return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else device
    return f"{_processor()}, {cores()} cores"


def _processor() -> str:
    """Return the name of the processor, as the operating system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
