"""How many instructions a weight takes in the products of one row on Arm, from the machine code.

python benchmarks/cpus/instructions.py --out benchmarks/cpus/instructions.jsonl

`packed_product.cpp` is compiled by `aarch64-linux-gnu-g++` with the flags of a user's machine. Of
each product of integers the innermost loop that multiplies is counted, as `objdump` prints it: one
pass takes a dword of codes of sixteen rows, or several. How fast a processor runs it is not
measured.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tercet.kernel.jit import cpp
from tercet.records import Environment, Record, append

COMPILER, DUMP = "aarch64-linux-gnu-g++", "aarch64-linux-gnu-objdump"
SOURCE = cpp.INCLUDE / "packed_weight" / "cpu" / "packed_product.cpp"
# multiplications of bytes, and how many of them a dword of codes of sixteen rows takes for each
# field of codes and digit of x
PRODUCTS = {"neon": ("smlal", 8), "dotprod": ("sdot", 4)}
ACTIVATIONS = {1: "int8", 2: "int16", 3: "float32"}
_BRANCH = re.compile(r"(?:b\.\w+|cbn?z|tbn?z|b)\t(?:\w+, )?(?:#\d+, )?([0-9a-f]+) ")
_NAME = re.compile(r"(\w+)::multiply_blocks<(\d), (true|false), (\d)>")

Instruction = tuple[int, str]


def functions(library: Path) -> Iterator[tuple[str, list[Instruction]]]:
    """Names and instructions (address, text) of a library's functions."""
    command = [DUMP, "-d", "-C", "--no-show-raw-insn", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for block in text.split("\n\n"):
        head, *lines = block.strip().splitlines() or [""]
        found = [line.split("\t", 1) for line in lines if re.match(r"\s*[0-9a-f]+:\t", line)]
        yield head, [(int(at.strip().rstrip(":"), 16), rest) for at, rest in found]


def inner_loops(code: Sequence[Instruction]) -> list[list[Instruction]]:
    """The bodies of the loops that hold no other."""
    spans = set[tuple[int, int]]()
    for at, text in code:
        branch = _BRANCH.match(text + " ")
        if branch and code[0][0] <= (target := int(branch[1], 16)) <= at:
            spans.add((target, at))
    inner = [
        (first, last)
        for first, last in spans
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in spans)
    ]
    return [[each for each in code if first <= each[0] <= last] for first, last in sorted(inner)]


def count(isa: str, bits: int, digits: int, code: Sequence[Instruction]) -> dict[str, float]:
    """Instructions a weight, of all and of those that multiply and load."""
    word, of_dword = PRODUCTS[isa]
    loops = [loop for loop in inner_loops(code) if any(word in text for _, text in loop)]
    texts = [text for loop in loops for _, text in loop]
    products = sum(text.startswith(word) for text in texts)
    dwords = products / (of_dword * (8 // bits) * digits)
    weights = 16 * (32 // bits) * dwords
    return {
        "instructions": len(texts) / weights,
        "products": products / weights,
        "loads": sum(text.startswith("ld") for text in texts) / weights,
        "spills": sum("[sp" in text for text in texts) / weights,
    }


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        library = Path(folder) / "packed_product.so"
        command = [COMPILER, *cpp.FLAGS, f"-I{cpp.INCLUDE}", str(SOURCE), "-o", str(library)]
        subprocess.run(command, check=True)
        records = list[Record]()
        for head, code in functions(library):
            name = _NAME.search(head)
            if name is None or name[3] == "true" or name[1] not in PRODUCTS:
                continue
            isa, bits, digits = name[1], int(name[2]), int(name[4])
            settings = {"isa": isa, "bits": bits, "activations": ACTIVATIONS[digits]}
            metrics = count(isa, bits, digits, code)
            print(settings, {key: round(value, 3) for key, value in metrics.items()})
            records.append(
                Record(
                    kind="instructions",
                    subject="packed_product",
                    settings={**settings, "compiler": cpp.version_of(COMPILER).splitlines()[0]},
                    metrics=metrics,
                    environment=Environment.here(),
                )
            )
    if options.out is not None:
        append(options.out, records)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
