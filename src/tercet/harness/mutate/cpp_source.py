"""Mutants of C++ and CUDA C++, by tokens: of the code between braces, line by line."""

import re
from collections.abc import Generator
from pathlib import Path

from tercet.harness.mutate.mutant import Mutant, tell_apart

_OPERATORS = {
    "<": ("<=", ">"), "<=": ("<",), ">": (">=", "<"), ">=": (">",), "==": ("!=",), "!=": ("==",),
    "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("/",), "<<": (">>",), ">>": ("<<",),
    "&": ("|",), "|": ("&",), "&&": ("||",), "||": ("&&",), "^": ("|",), "!": ("",),
    "+=": ("-=", "="), "-=": ("+=",), "*=": ("/=",),
}  # fmt: skip
_NAMES = {
    "min": ("max",), "max": ("min",), "fmaxf": ("fminf",), "fminf": ("fmaxf",),
    "double": ("float",), "int32_t": ("int16_t",),
    "uint8_t": ("int8_t",), "int8_t": ("uint8_t",), "true": ("false",), "false": ("true",),
}  # fmt: skip
_KINDS = {
    "<": "change a comparison", "<=": "change a comparison", ">": "change a comparison",
    ">=": "change a comparison", "==": "change a comparison", "!=": "change a comparison",
    "&&": "change a condition", "||": "change a condition", "!": "change a condition",
}  # fmt: skip
_DROPPED = re.compile(
    r"^\s*(__syncthreads|__syncwarp|__threadfence\w*|_mm\w*store\w*"
    r"|[\w\[\]\.\(\)>*+ -]+[+*|-]?=(?!=)|\w+(::\w+)*\()[^{}]*;\s*$"
)
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|0[xX][0-9a-fA-F]+[uUlL]*'
    r"|\d+\.\d*(?:[eE][+-]?\d+)?[fF]?|\d+[uUlL]*|[A-Za-z_]\w*"
    r"|->|\+\+|--|<<=|>>=|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|."
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARES = re.compile(
    r"^\s*(#|template|using|namespace|static_assert|extern|struct|class|typedef|\}|public:|enum)"
)
_FUNCTION = re.compile(r"^[A-Za-z_].*?\b(\w+)\((?!.*;\s*$)")
_UNARY_AFTER = {"(", ",", "=", "return", "[", "{", ";", "?", ":", "", "+", "*", "/", "<", ">", "-"}


def mutants_of_cpp(file: Path) -> list[Mutant]:
    """Every mutant of a file's functions, in the order of its lines."""
    text = file.read_text(encoding="utf-8")
    bare = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)
    lines, whole = bare.split("\n"), text.split("\n")
    found, seen, function = list[Mutant](), {text}, ""
    for at, line in enumerate(lines):
        if named := _FUNCTION.match(line):
            function = named.group(1)
        if not function or _DECLARES.match(line) or not line.strip():
            continue
        for kind, other in _alternatives(line, lines[at - 1] if at else ""):
            source = "\n".join((*whole[:at], other, *whole[at + 1 :]))
            if source in seen:
                continue
            seen.add(source)
            found.append(
                Mutant(
                    file=file,
                    line=at + 1,
                    function=function,
                    kind=kind,
                    before=line.strip(),
                    after=other.strip() or ";",
                    source=source,
                )
            )
    return tell_apart(found)


def _alternatives(line: str, before: str) -> Generator[tuple[str, str], None, None]:
    """What each change is, and the line with it."""
    ended = before.rstrip().endswith((";", "{", "}")) or not before.strip()
    if ended and _DROPPED.match(line) and not _is_declaration(line):
        barrier = "sync" in line or "fence" in line
        yield "remove a barrier" if barrier else "drop a statement", ""
    previous = ""
    for token in _TOKEN.finditer(line):
        text, start, end = token.group(), token.start(), token.end()
        for kind, other in _of_token(text, previous, line[end : end + 1], line[:start]):
            yield kind, line[:start] + other + line[end:]
        if text.strip():
            previous = text


def _of_token(
    text: str, previous: str, following: str, before: str
) -> Generator[tuple[str, str], None, None]:
    if text in _OPERATORS:
        spaced = before.endswith(" ") and following == " "
        # templates and pointers: `<` of vector<float>, `*` of float*; unary signs
        if text == "!" or (spaced and previous not in _UNARY_AFTER):
            for other in _OPERATORS[text]:
                yield _KINDS.get(text, "change an operator"), other
        elif text == "-" and previous in _UNARY_AFTER:
            yield "change a sign", ""
    elif text in _NAMES:
        kind = "change a dtype" if "int" in text or text == "double" else "change a constant"
        for other in _NAMES[text]:
            yield kind, other
    elif re.fullmatch(r"0[xX][0-9a-fA-F]+[uUlL]*", text):
        digits = text.rstrip("uUlL")
        yield "change a constant", hex(int(digits, 16) ^ 1) + text[len(digits) :]
    elif re.fullmatch(r"\d+[uUlL]*", text):
        digits = text.rstrip("uUlL")
        value = int(digits)
        yield "change a constant", str(value + 1) + text[len(digits) :]
        if value:
            yield "change a constant", str(value - 1) + text[len(digits) :]
    elif re.fullmatch(r"\d+\.\d*(?:[eE][+-]?\d+)?[fF]?", text):
        digits = text.rstrip("fF")
        value = float(digits)
        yield "change a constant", repr(value * 1.5 if value else 1.0) + text[len(digits) :]


def _is_declaration(line: str) -> bool:
    """`auto x = ...;`, `const int n = ...;`: what follows would not compile without it."""
    left = line.split("=")[0] if "=" in line else ""
    words = re.findall(r"[A-Za-z_][\w:]*", re.sub(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>", "", left))
    return line.strip().startswith(("return", "const ", "auto ")) or len(words) > 1
