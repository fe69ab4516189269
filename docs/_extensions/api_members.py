"""Members in the reference: those of lucidae; members of other libraries are named in one line."""

import inspect
import sys

OWN = "lucidae"


def home(member):
    """Return the module that defines a member of a class, or nothing if it does not say so."""
    member = getattr(member, "fget", None) or getattr(member, "func", None) or member
    return getattr(inspect.unwrap(member), "__module__", None) or ""


def skip_foreign(app, what, name, member, skip, options):  # noqa: ARG001
    """Leave out members that another library defines, and private ones."""
    if what == "class" and not home(member).startswith(OWN):
        return True
    return None


def name_foreign(app, what, name, cls, options, lines):  # noqa: ARG001
    """Name the public methods that a class has from scikit-learn."""
    if what != "class" or not inspect.isclass(cls):
        return
    foreign = sorted(
        method
        for method, value in inspect.getmembers(cls)
        if not method.startswith("_")
        and callable(value)
        and (home(value) or type(value).__module__).startswith("sklearn")
    )
    if foreign:
        names = ", ".join(f"``{method}``" for method in foreign)
        lines += ["", f"Further methods, as in every estimator of scikit-learn: {names}.", ""]


def own_signature(app, what, name, cls, options, signature, returns):  # noqa: ARG001
    """Return the signature of the constructor where a missing library hides it.

    Without torch, classes that derive from its modules seem to accept any arguments.
    """
    if what != "class" or signature != "(*args, **kwargs)" or "__init__" not in vars(cls):
        return None
    found = inspect.signature(cls.__init__)
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in list(found.parameters.values())[1:]
    ]
    return str(found.replace(parameters=parameters, return_annotation=found.empty)), returns


def anchor_at_home(app, domain, objtype, content):  # noqa: ARG001
    """Give a name that is imported from another module the anchors of that module, too.

    Pages of source code link to the names of the module that defines them, or of its package.
    """
    signature = content.parent[0]
    module, name = signature.get("module"), signature.get("fullname")
    if domain == "py" and module and objtype in ("function", "class"):
        defined = home(getattr(sys.modules.get(module), name, None))
        if defined.startswith(OWN) and defined != module:
            parts = defined.split(".")
            homes = [".".join(parts[:length]) for length in range(2, len(parts) + 1)]
            anchors = [f"{place}.{name}" for place in homes if place != module]
            signature["ids"].extend(anchors)


def setup(app):
    """Connect the events of autodoc."""
    app.connect("object-description-transform", anchor_at_home)
    app.connect("autodoc-process-signature", own_signature)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", name_foreign, priority=800)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
