"""Mutants of Python: torch and Triton, by syntax tree.

What is changed is a statement, or the condition or range of a compound one. What only says how
fast a kernel runs (num_warps, eviction_policy, ...), what an error says, and widening to int64
(which shows beyond 2^31 elements, where `check --scale` judges) is left alone.
"""

import ast
import copy
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from tercet.harness.mutate.mutant import Mutant, tell_apart

_Node = TypeVar("_Node", bound=ast.AST)
_SPEED = {
    "num_warps", "num_stages", "maxnreg", "num_ctas", "eviction_policy", "cache_modifier", "fmt",
    "loop_unroll_factor", "warp_specialize", "flatten", "device", "memory_format",
}  # fmt: skip
_LEFT_ALONE = {"static_assert", "assume", "max_contiguous", "multiple_of", "static_print", "hint"}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt,), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
_FUNCTIONS = {
    "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "amax": "amin",
    "amin": "amax", "sum": "max", "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log",
    "sqrt_rn": "exp", "rsqrt": "sqrt", "sqrt": "rsqrt", "zeros": "ones", "zeros_like": "ones_like",
    "ones": "zeros", "full": "empty", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
    "sigmoid": "tanh", "argmax": "argmin", "round": "floor", "atomic_add": "atomic_max",
}  # fmt: skip
_CONVERSIONS = {"to", "float", "double", "contiguous", "half", "bfloat16", "int", "long"}
_UNWRAPPED = {"trans", "abs"}
_TRANSPOSED = {"t", "transpose", "T", "mT", "mul", "neg", "reshape"}
_NARROWER = {"float32": "float16", "float64": "float32", "int32": "int16", "uint8": "int8"}
_RANGES = {"range", "static_range"}


def mutants_of_python(file: Path) -> list[Mutant]:
    """Every mutant of the functions and constants of a file, in the order of its lines."""
    text = file.read_text(encoding="utf-8")
    tree, octets = ast.parse(text), text.encode()
    lines = octets.splitlines(keepends=True)
    starts = [sum(map(len, lines[:at])) for at in range(len(lines) + 1)]
    found = list[Mutant]()
    for site in _sites(tree):
        assert site.root.end_lineno is not None
        assert site.root.end_col_offset is not None
        start = starts[site.root.lineno - 1] + site.root.col_offset
        end = starts[site.root.end_lineno - 1] + site.root.end_col_offset
        seen = {_code(ast.unparse(site.root))}
        for kind, after in _mutations(site.root):
            put = after if isinstance(site.root, ast.stmt) else f"({after})"
            changed = _code(after)
            if changed is None or changed in seen:
                continue
            seen.add(changed)
            found.append(
                Mutant(
                    file=file,
                    line=site.root.lineno,
                    function=site.function,
                    kind=kind,
                    before=ast.unparse(site.root),
                    after=after,
                    source=(octets[:start] + put.encode() + octets[end:]).decode(),
                )
            )
    return tell_apart(found)


def _code(source: str) -> str | None:
    """What tells two statements or expressions apart; None for one that is no Python."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None


@dataclass(frozen=True)
class _Site:
    """A statement or an expression that is changed, and the text it stands for."""

    root: ast.stmt | ast.expr
    function: str


def _sites(tree: ast.Module) -> Generator[_Site, None, None]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not _is_about_speed(node):
            yield _Site(node, "")
        else:
            yield from _within(node, "")


def _within(node: ast.stmt, function: str) -> Generator[_Site, None, None]:
    match node:
        case ast.FunctionDef():
            name = f"{function}.{node.name}" if function else node.name
            for each in node.body:
                yield from _within(each, name)
        case ast.ClassDef():
            for each in node.body:
                yield from _within(each, f"{function}.{node.name}" if function else node.name)
        case ast.If() | ast.While():
            yield _Site(node.test, function)
        case ast.For():
            yield _Site(node.iter, function)
        case ast.Assign() | ast.AugAssign() | ast.Return() | ast.Expr() if function:
            if not _is_text(node) and not _is_about_speed(node):
                yield _Site(node, function)
        case ast.AnnAssign() if function and node.value is not None:
            yield _Site(node.value, function)
        case _:
            pass
    if isinstance(node, ast.If | ast.While | ast.For | ast.With):
        for each in (*node.body, *getattr(node, "orelse", ())):
            yield from _within(each, function)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_about_speed(node: ast.stmt) -> bool:
    """The list of public names, sizes that a configuration is looked up by, advice to compilers."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "sizes"):
        return True
    return isinstance(node, ast.Expr) and _name(getattr(node.value, "func", None)) in _LEFT_ALONE


def _are_launch_options(node: ast.Dict) -> bool:
    """Any gives the same numbers: a check draws them."""
    keys = {each.value for each in node.keys if isinstance(each, ast.Constant)}
    return bool(keys & {"num_warps", "num_stages"})


def _mutations(root: ast.stmt | ast.expr) -> Generator[tuple[str, str], None, None]:
    """What each change is, and the new statement or expression as source."""
    if isinstance(root, ast.AugAssign):
        yield "drop a statement", "pass"
    if isinstance(root, ast.Expr):
        yield "drop a statement", "pass"
    if isinstance(root, ast.Assign) and _is_dropped(root):
        yield "drop a statement", "pass"
    left_alone = _about_speed_or_errors(root)
    for at, node in enumerate(ast.walk(root)):
        if id(node) in left_alone:
            continue
        for kind, other in _alternatives(node):
            changed = copy.deepcopy(root)
            if node is root:
                yield kind, ast.unparse(ast.fix_missing_locations(other))
                continue
            _replace(changed, list(ast.walk(changed))[at], other)
            yield kind, ast.unparse(ast.fix_missing_locations(changed))


def _is_dropped(node: ast.Assign) -> bool:
    """What may be left out: a write to an element, and a new value made of the old one."""
    target = node.targets[0]
    if isinstance(target, ast.Subscript):
        return True
    names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
    return bool(names) and names <= read


def _about_speed_or_errors(root: ast.AST) -> set[int]:
    found = set[int]()
    for node in ast.walk(root):
        skipped: list[ast.AST] = []
        if isinstance(node, ast.keyword) and node.arg in _SPEED:
            skipped.append(node)
        if isinstance(node, ast.JoinedStr | ast.Raise):
            skipped.append(node)
        if isinstance(node, ast.Call) and _name(node.func) in _LEFT_ALONE:
            skipped.append(node)
        if isinstance(node, ast.Call) and _name(node.func) == "configuration":
            skipped += node.args
        if isinstance(node, ast.Dict) and _are_launch_options(node):
            skipped.append(node)
        for each in skipped:
            found |= {id(inner) for inner in ast.walk(each)}
    return found


def _replace(root: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(root):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                parts = cast("list[Any]", value)
                if any(part is old for part in parts):
                    setattr(parent, name, [new if part is old else part for part in parts])
                    return


def _alternatives(node: ast.AST) -> Generator[tuple[str, ast.AST], None, None]:
    match node:
        case ast.AugAssign() if type(node.op) in _OPERATORS:
            yield "change an operator", _with(node, op=_OPERATORS[type(node.op)]())
        case ast.BinOp() if not _is_string(node.left) and not _is_string(node.right):
            yield from _of_operator(node)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            # the last axis, which in a matrix is also axis 1; its number becomes 0 and 2
            pass
        case ast.UnaryOp():
            yield "change a sign", node.operand
        case ast.Compare() if len(node.ops) == 1:
            for other in _COMPARISONS.get(type(node.ops[0]), ()):
                yield "change a comparison", _with(node, ops=[other()])
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "change a condition", _with(node, op=other)
            for at in range(len(node.values)):
                kept = [value for each, value in enumerate(node.values) if each != at]
                one = kept[0] if len(kept) == 1 else _with(node, values=kept)
                yield "drop a condition", one
        case ast.IfExp():
            yield "change a condition", node.body
            yield "change a condition", node.orelse
        case ast.Constant():
            yield from _of_constant(node)
        case ast.Call():
            yield from _of_call(node)
        case ast.Attribute() if node.attr in _NARROWER and _name(node.value) in ("tl", "torch"):
            yield "change a dtype", _with(node, attr=_NARROWER[node.attr])
        case ast.Attribute() if node.attr in ("T", "mT"):
            yield "swap an axis", node.value
        case ast.Subscript(slice=ast.Tuple(elts=[first, second])):
            if ast.dump(first) != ast.dump(second) and (_is_none(first) or _is_none(second)):
                swapped = ast.Tuple([second, first], ast.Load())
                yield "swap an axis", _with(node, slice=swapped)
        case ast.Slice():
            for end in ("lower", "upper"):
                if getattr(node, end) is not None:
                    yield "shift an index", _with(node, **{end: None})
        case _:
            pass


def _of_operator(node: ast.BinOp) -> Generator[tuple[str, ast.AST], None, None]:
    if type(node.op) in _OPERATORS:
        yield "change an operator", _with(node, op=_OPERATORS[type(node.op)]())
    kind = "drop a mask" if isinstance(node.op, ast.BitAnd) else "drop a term"
    yield kind, node.left
    if isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield kind, node.right


def _of_constant(node: ast.Constant) -> Generator[tuple[str, ast.AST], None, None]:
    value = node.value
    if isinstance(value, bool):
        yield "change a constant", ast.Constant(not value)
    elif isinstance(value, int):
        yield "change a constant", ast.Constant(value + 1)
        if value:
            yield "change a constant", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield "change a constant", ast.Constant(value * 1.5 if value else 1.0)


def _of_call(node: ast.Call) -> Generator[tuple[str, ast.AST], None, None]:
    name, taken = _name(node.func), node.args
    if name in ("load", "store") and isinstance(node.func, ast.Attribute) and taken:
        mask = 1 if name == "load" else 2
        one = ast.Constant(1)
        shifted = ast.BinOp(taken[0], ast.Add(), one)
        yield "shift an index", _with(node, args=[shifted, *taken[1:]])
        if len(taken) > mask:
            yield "drop a mask", _with(node, args=taken[:mask])
        elif any(each.arg == "mask" for each in node.keywords):
            kept = [each for each in node.keywords if each.arg not in ("mask", "other")]
            yield "drop a mask", _with(node, keywords=kept)
    if name in _RANGES:
        yield from _of_range(node)
    if name in _FUNCTIONS:
        yield "change a function", _with(node, func=_renamed(node.func, _FUNCTIONS[name]))
    if isinstance(node.func, ast.Attribute) and name in _CONVERSIONS and not _widens(node):
        yield "change a dtype", node.func.value
    if isinstance(node.func, ast.Attribute) and name in _TRANSPOSED:
        yield "swap an axis", node.func.value
    if name in _UNWRAPPED and taken:
        yield "drop a term", taken[0]
    if name == "where" and len(taken) == 3:
        yield "change a condition", taken[1]
        yield "change a condition", taken[2]
    if name == "cdiv" and len(taken) == 2:
        yield "skip a tile", ast.BinOp(taken[0], ast.FloorDiv(), taken[1])


def _of_range(node: ast.Call) -> Generator[tuple[str, ast.AST], None, None]:
    taken = list(node.args)
    if not 1 <= len(taken) <= 3:
        return
    low: ast.expr = ast.Constant(0) if len(taken) == 1 else taken[0]
    high = taken[0] if len(taken) == 1 else taken[1]
    step: ast.expr = taken[2] if len(taken) == 3 else ast.Constant(1)
    rest = taken[2:]
    yield "skip a tile", _with(node, args=[low, ast.BinOp(high, ast.Sub(), step), *rest])
    yield "skip a tile", _with(node, args=[ast.BinOp(low, ast.Add(), step), high, *rest])


def _widens(node: ast.Call) -> bool:
    return any("int64" in ast.unparse(each) for each in node.args) or _name(node.func) == "long"


def _name(function: ast.AST | None) -> str:
    """The last name of what is called: `sum` of tl.sum."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _renamed(function: ast.expr, name: str) -> ast.expr:
    if isinstance(function, ast.Attribute):
        return _with(function, attr=name)
    return _with(function, id=name)


def _with(node: _Node, **fields: object) -> _Node:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
