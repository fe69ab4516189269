"""Which module may import which: packages, layers of the library, and no cycles."""

import ast
import graphlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}
FAMILIES = {"lucidae.linear", "lucidae.dropout", "lucidae.sparsity"}
EXTENSIONS = {
    "lucidae.nn",
    "lucidae.mne",
    "lucidae.scanpy",
    "lucidae.impute",
    "lucidae.legacy",
}  # they build on the families


@cache
def tree_of(module):
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module, lazy=True):
    """Return the modules of this project that a module imports, with or without lazy imports."""
    found, nodes = set(), [tree_of(module)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lucidae"):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in FILES else node.module for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("lucidae")}
        elif isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            nodes += node.orelse
        elif lazy or not isinstance(node, ast.FunctionDef | ast.Lambda):
            nodes += ast.iter_child_nodes(node)
    return found


def room_of(module):
    """Return the package or module directly below `lucidae` to which a module belongs."""
    return ".".join(module.split(".")[:2])


@cache
def rooms():
    """Return which rooms of the library import which others, counting lazy imports."""
    edges = {}
    for module in FILES:
        if module.startswith("lucidae.") and room_of(module) != "lucidae.__init__":
            others = {room_of(other) for other in imports_of(module)} - {"lucidae"}
            edges.setdefault(room_of(module), set()).update(others - {room_of(module)})
    return edges


@pytest.mark.parametrize(
    ("package", "unknown"),
    [("lucidae", ("lucidae_app", "lucidae_papers")), ("lucidae_app", ("lucidae_papers",))],
)
def test_a_package_does_not_name_those_above_it(package, unknown):
    for path in (SOURCE / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in unknown if name in text], path


def test_the_import_graph_has_no_cycle():
    edges = {}
    for module, path in FILES.items():
        edges[module] = imports_of(module, lazy=False)
        if path.name == "__init__.py":  # a package is imported before its modules, not after them
            edges[module] = {one for one in edges[module] if not one.startswith(f"{module}.")}
    graphlib.TopologicalSorter(edges).prepare()


def test_the_rooms_of_the_library_have_no_cycle_that_lazy_imports_hide():
    graphlib.TopologicalSorter(rooms()).prepare()


def test_nothing_below_the_families_imports_them_and_they_do_not_import_each_other():
    edges = rooms()
    assert edges.keys() >= FAMILIES | EXTENSIONS
    for room, others in edges.items():
        allowed = FAMILIES if room in EXTENSIONS else set()
        assert not others & (FAMILIES | EXTENSIONS) - allowed, room


def test_no_class_name_has_two_meanings():
    names = Counter(
        node.name
        for module in FILES
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []
