"""torch is optional: everything else works without it, and lucidae.nn says what to install."""

import subprocess
import sys

from extras import require
from interpreters import without


def test_without_torch_the_package_imports_and_the_room_says_what_to_install():
    program = """
import lucidae
try:
    import lucidae.nn
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", without(["torch"], program)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == (
        'lucidae.nn needs PyTorch, which is not installed: pip install "lucidae[torch]", '
        'or in a clone of lucidae pip install ".[torch]".'
    )


def test_every_public_name_is_there_and_documented():
    require("torch")
    import lucidae.nn

    for name in lucidae.nn.__all__:
        assert "Examples" in getattr(lucidae.nn, name).__doc__, name
