"""The page of instruction sets of CPUs, from the records beside this script.

`python benchmarks/cpus/instructions.py --out benchmarks/cpus/instructions.jsonl` appends records;
the last one of each setting is shown.
"""

from collections.abc import Mapping
from pathlib import Path

from tercet.records import load_latest
from tercet.records.page import fill, markdown, write_pages

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "cpus.md"
_ACTIVATIONS = ("float32", "int16", "int8")


def pages() -> Mapping[Path, str]:
    """The page with its table of instructions."""
    found = {
        tuple(record.settings[name] for name in ("isa", "bits", "activations")): record
        for record in load_latest(HERE / "instructions.jsonl")
    }
    head = ("instruction set", "bits of a code", *(f"{name} activations" for name in _ACTIVATIONS))
    rows = [head]
    for isa, bits in sorted({key[:2] for key in found}):
        cells = [found[isa, bits, name].metrics["instructions"] for name in _ACTIVATIONS]
        rows.append((f"`{isa}`", str(bits), *(f"{cell:.2f}" for cell in cells)))
    text = PAGE.read_text(encoding="utf-8")
    return {PAGE: fill(text, "instructions", markdown(rows, numbers=True))}


if __name__ == "__main__":
    write_pages(__doc__ or "", "benchmarks/cpus/tables.py", pages)
