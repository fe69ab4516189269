"""Import of the three families of autoencoders.

Importing a family (`linear`, `dropout` or `sparsity`) registers the classes that saved files name
by a tag, and the function by which `certify` judges models of this family. ``import lucidae`` alone
does not import the families.
"""

from importlib import import_module


def import_families() -> None:
    """Import the subpackages `linear`, `dropout` and `sparsity`, which register their classes."""
    for name in ("linear", "dropout", "sparsity"):
        import_module(f"lucidae.{name}")
