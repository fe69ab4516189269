"""A small mutation tool: functions broken on purpose, one node of their source at a time.

A mutant replaces the code of a function in place (`__code__`), wherever the function has been
imported to, and is taken back afterwards.
"""

import ast
import inspect
import sys
import textwrap
from contextlib import contextmanager

ARITHMETIC = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.MatMult: (),
}
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
CALLS = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "sqrt": "abs"}


def mutants(function):
    """Yield (description, code) for every mutant of a function without closure.

    The description is the name of the function, the line in it, the kind of the change, and the
    changed expression.
    """
    function = inspect.unwrap(function)
    if function.__code__.co_freevars:
        return
    tree = undecorated(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    # Defaults and annotations belong to the function and not to its code, which alone is replaced.
    inside = {id(node) for part in definition.body for node in ast.walk(part)}
    nodes = list(ast.walk(definition))
    number_of = {id(node): number for number, node in enumerate(nodes)}
    above = {
        number_of[id(part)]: number
        for number, node in enumerate(nodes)
        for part in ast.iter_child_nodes(node)
    }
    for number, node in enumerate(nodes):
        for words, change in list(changes(node)) if id(node) in inside else ():
            with restored(node):
                change(node)
                ast.fix_missing_locations(node)
                code = compiled(tree, function)
                place = f"{function.__qualname__}:{getattr(node, 'lineno', 0)}"
                words = f"{place} {words}: {shown(number, nodes, above)}"
            if code is not None:
                yield words, code


@contextmanager
def restored(node):
    """Take back what a block changes in a node of the syntax tree and in its parts."""
    before = [(part, dict(vars(part))) for part in (node, *ast.iter_child_nodes(node))]
    lists = [
        (old, list(old)) for _, fields in before for old in fields.values() if type(old) is list
    ]
    yield
    for part, fields in before:
        vars(part).clear()
        vars(part).update(fields)
    for old, entries in lists:
        old[:] = entries


def undecorated(source):
    """Return the syntax tree of a module that has the function of a source, undecorated."""
    tree = ast.parse(source)
    tree.body[0].decorator_list = []
    return tree


def calls_of(action):
    """Run an action; return its result and the code of every function that it called.

    A mutant of any other function cannot change the result, so that the action need not be run
    again for it.
    """
    called = set()
    previous = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
    try:
        found = action()
    finally:
        sys.setprofile(previous)
    return found, called


def is_among(function, called):
    """Tell whether a function is among those that `calls_of` has found."""
    return inspect.unwrap(function).__code__ in called


def changes(node):
    """Yield (words, change in place) for a node of the syntax tree."""
    if isinstance(node, ast.BinOp):
        for kind in ARITHMETIC.get(type(node.op), ()):
            yield f"{type(node.op).__name__} to {kind.__name__}", replace("op", kind)
        if isinstance(node.op, ast.Mult | ast.Add):
            yield "drop the right operand", drop_right
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in COMPARISONS.get(type(node.ops[0]), ()):
            yield f"{type(node.ops[0]).__name__} to {kind.__name__}", replace_comparison(kind)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "drop a minus", lambda target: setattr(target, "op", ast.UAdd())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for value in dict.fromkeys((node.value + 1, node.value * 2)):
            if value != node.value:
                yield f"{node.value} to {value}", replace_constant(value)
    elif isinstance(node, ast.Slice) and node.upper is not None:
        yield "slice one longer", lengthen(1)
        yield "slice one shorter", lengthen(-1)
    elif isinstance(node, ast.Call) and called(node) in CALLS:
        yield f"{called(node)} to {CALLS[called(node)]}", rename_call


def shown(number, nodes, above):
    """Return the source of the smallest expression that tells where a changed node stands.

    `above` has the number of the parent of each node.
    """
    wide = (ast.BinOp, ast.Compare, ast.Call, ast.Subscript, ast.stmt)
    while not isinstance(nodes[number], wide):
        number = above[number]
    return ast.unparse(nodes[number]).partition("\n")[0]


def replace(field, kind):
    return lambda target: setattr(target, field, kind())


def replace_comparison(kind):
    return lambda target: target.ops.__setitem__(0, kind())


def replace_constant(value):
    return lambda target: setattr(target, "value", value)


def drop_right(target):
    neutral = ast.Constant(1.0 if isinstance(target.op, ast.Mult) else 0.0)
    target.right = ast.copy_location(neutral, target.right)


def lengthen(step):
    def change(target):
        shifted = ast.BinOp(target.upper, ast.Add(), ast.Constant(step))
        target.upper = ast.copy_location(shifted, target.upper)

    return change


def called(node):
    """Return the last part of the name that is called."""
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))


def rename_call(target):
    field = "attr" if isinstance(target.func, ast.Attribute) else "id"
    setattr(target.func, field, CALLS[called(target)])


def compiled(tree, function):
    """Return the code object of the broken function, None where it cannot take the place."""
    names = {}
    try:
        module = compile(tree, inspect.getsourcefile(function), "exec")
        exec(module, dict(function.__globals__), names)
    except Exception:
        return None
    broken = names[function.__name__].__code__
    same = broken.co_freevars == function.__code__.co_freevars
    return broken if same else None


@contextmanager
def broken(function, code):
    """Run a block with the code of a function replaced."""
    function = inspect.unwrap(function)
    healthy = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = healthy
