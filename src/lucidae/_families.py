"""Import of the three families of autoencoders.

Their modules register the types that files refer to by tags, and the functions that `certify` finds
by the name of the family. ``import lucidae`` alone does not import them.
"""

from importlib import import_module


def import_families() -> None:
    """Import the families of estimators, unless this has been done."""
    for name in ("linear", "dropout", "sparsity"):
        import_module(f"lucidae.{name}")
