"""Tables of contents without directives in the pages, which stay plain Markdown on a code host.

A page precedes the pages that ``page_children`` of conf.py lists for it, by name or as
``Title <name>``. An entry ``*`` stands for the other pages in the folder of a page ``index``, in
the order in which its text links to them; they are below it, too, if nothing is listed.
"""

import re
from pathlib import Path

SUFFIXES = (".md", ".rst")
LINK = re.compile(r"\]\(([\w./-]+?)\.md(?:#[\w-]*)?\)")


def children(page, text, folder, listed):
    """Return the names of the pages below a page, relative to the folder of all pages."""
    below = []
    for entry in listed.get(page, ["*"]):
        name = entry.rpartition("<")[2].rstrip(">")
        if entry == "*":
            below += neighbours(page, text, folder)
        elif exists(folder, name):
            below.append(entry)
        else:  # a page that is missing leaves its place to those below it
            below += children(name, "", folder, listed)
    return below


def neighbours(page, text, folder):
    """Return the other pages in the folder of a page `index`, those that it links to first."""
    if not page.endswith("/index") or not exists(folder, page):
        return []
    own = Path(page).parent
    found = {
        (own / path.stem).as_posix()
        for path in (folder / own).iterdir()
        if path.suffix in SUFFIXES and path.stem != "index"
    }
    linked = dict.fromkeys((own / name).as_posix() for name in LINK.findall(text))
    first = [name for name in linked if name in found]
    return first + sorted(found - set(first))


def exists(folder, name):
    """Tell whether a page has a source file."""
    return any((folder / f"{name}{suffix}").exists() for suffix in SUFFIXES)


def append_tree(app, page, content):
    """Append a hidden table of contents to a page that has pages below it."""
    if "toctree" in content[0] or page.startswith("auto_examples/"):
        return
    names = children(page, content[0], Path(app.srcdir), app.config.page_children)
    if names:
        lines = "\n".join(name.replace("<", "</") if "<" in name else f"/{name}" for name in names)
        content[0] += f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{lines}\n```\n"


def setup(app):
    """Register the option ``page_children`` and the event."""
    app.add_config_value("page_children", {}, "env")
    app.connect("source-read", append_tree)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
