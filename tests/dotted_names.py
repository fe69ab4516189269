"""Whether dotted names in pages exist; those of `lucidae.nn` are read from its source."""

import ast
import importlib
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


@cache
def names_in(path):
    """Return the functions and classes of a file, the methods of its classes, and its `__all__`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            found |= set(ast.literal_eval(node.value))
    return found


def exists(dotted):
    """Tell whether a module, or a member of a module, has this name."""
    parts = dotted.split(".")
    if parts[:2] == ["lucidae", "nn"]:  # importing it needs torch, reading it does not
        module = SOURCE / Path(*parts[:3]).with_suffix(".py")
        if module.exists():
            return len(parts) == 3 or ".".join(parts[3:]) in names_in(module)
        return len(parts) == 2 or parts[2] in names_in(SOURCE / "lucidae" / "nn" / "__init__.py")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found is not None
    return False
