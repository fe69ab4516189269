"""torch is optional: everything else works without it, and lucidae.nn says what to install."""

import subprocess
import sys

from extras import require

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import lucidae
try:
    import lucidae.nn
except ImportError as error:
    print(error)
"""


def test_without_torch_the_package_imports_and_the_room_says_what_to_install():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == (
        'lucidae.nn needs PyTorch, which is not installed: pip install "lucidae[torch]", '
        'or in a clone of lucidae pip install ".[torch]".'
    )


def test_every_public_name_is_there_and_documented():
    require("torch")
    import lucidae.nn

    for name in lucidae.nn.__all__:
        assert "Examples" in getattr(lucidae.nn, name).__doc__, name
