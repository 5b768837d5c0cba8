"""Which small changes a mutation run makes: every operator, comparison, constant, call and default, one at a time.

A change is made in the tree of a function's source and compiled from there. Messages, annotations and docstrings stay.
"""

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
DROPPED = {
    "abs",
    "any",
    "clamp",
    "detach",
    "exp",
    "expm1",
    "flip",
    "log",
    "nan_to_num",
    "sqrt",
    "square",
    "to",
    "tril",
    "unsqueeze",
}
EXCHANGED = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "amin": "amax",
    "amax": "amin",
    "any": "all",
    "all": "any",
    "sum": "mean",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}
COMMUTATIVE = {"maximum", "minimum", "max", "min"}


@dataclass(frozen=True)
class Change:
    """One mutant: where, and what became of which piece of the source."""

    module: str
    function: str
    line: int
    before: str
    after: str


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be changed into."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield ast.Compare(node.left, [COMPARE[type(op)]()], node.comparators)
        case ast.Compare(ops=ops) if len(ops) > 1:
            yield from _chains(node)
        case ast.BinOp(op=op) if type(op) in BINARY:
            yield ast.BinOp(node.left, BINARY[type(op)](), node.right)
        case ast.BoolOp(op=op):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.If(test=test) if not any(True for _ in _variants(test)):
            yield ast.If(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Call():
            yield from _calls(node)


def _chains(node: ast.Compare) -> Iterator[ast.AST]:
    """a ≤ b < c: one comparison at a time."""
    for i, op in enumerate(node.ops):
        if type(op) in COMPARE:
            ops = [COMPARE[type(op)]() if i == j else other for j, other in enumerate(node.ops)]
            yield ast.Compare(node.left, ops, node.comparators)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in DROPPED and not _is_module(node.func.value):
            yield node.func.value
        if node.func.attr in EXCHANGED:
            func = ast.Attribute(node.func.value, EXCHANGED[node.func.attr], node.func.ctx)
            yield ast.Call(func, node.args, node.keywords)
    elif isinstance(node.func, ast.Name) and node.func.id in EXCHANGED:
        yield ast.Call(ast.Name(EXCHANGED[node.func.id], ast.Load()), node.args, node.keywords)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "device"):  # one device is all there is here
            yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
    plain = len(node.args) == 2 and not any(isinstance(a, ast.Starred | ast.Constant) for a in node.args)
    if plain and name not in COMMUTATIVE:
        yield ast.Call(node.func, [node.args[1], node.args[0]], node.keywords)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "math", "np")


def _computes_nothing(parent: ast.AST, field: str, node: ast.AST) -> bool:
    """Messages, annotations, decorators and docstrings."""
    return (
        isinstance(node, ast.Raise | ast.JoinedStr)
        or field in ("annotation", "returns", "decorator_list")
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    )


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, index, node) of everything that may be changed."""
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not _computes_nothing(parent, field, node):
                yield parent, field, index, node
                yield from _places(node)


def _names(code: CodeType) -> tuple[Any, ...]:
    """By which a change of the source would be noticed; the bytes differ anyway, as a module knows its imports."""
    constants = [x for x in code.co_consts if not isinstance(x, CodeType | str)]
    return code.co_name, code.co_names, code.co_varnames, constants


def parsed(function: FunctionType) -> tuple[ast.Module, int]:
    """The tree of a function's source, without decorators, and the line where it begins."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    code = next(x for x in compile(tree, "<source>", "exec").co_consts if isinstance(x, CodeType))
    if _names(code) != _names(function.__code__):
        raise SystemExit(f"{function.__qualname__} has changed since it was imported; run again")
    return tree, first


def mutants(module: str, function: FunctionType) -> Iterator[tuple[Change, CodeType]]:
    """Every mutant of a function, as the code of a module that defines it."""
    tree, first = parsed(function)
    for number, (_, _, _, node) in enumerate(_places(tree)):
        for variant, _ in enumerate(_variants(node)):
            changed = copy.deepcopy(tree)
            parent, field, index, found = list(_places(changed))[number]
            new = ast.copy_location(list(_variants(found))[variant], found)
            if index is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[index] = new
            before, after = (ast.unparse(piece).splitlines()[0] for piece in (node, new))
            change = Change(module, function.__qualname__, first + node.lineno - 1, before, after)
            ast.fix_missing_locations(changed)
            yield change, compile(changed, f"<{change.function}:{number}.{variant}>", "exec")


def functions(module: str) -> list[FunctionType]:
    """The functions and methods that are written in a module; dataclasses make others, without a file."""
    found = importlib.import_module(f"rung.{module}")
    out: list[FunctionType] = []
    for value in vars(found).values():
        for item in vars(value).values() if inspect.isclass(value) else [value]:
            for name in ("fget", "func", "__func__"):  # of properties, cached ones and class methods
                item = getattr(item, name, item)
            written = isinstance(item, FunctionType) and item.__code__.co_filename == found.__file__
            if written and item not in out:
                out.append(item)
    return out
