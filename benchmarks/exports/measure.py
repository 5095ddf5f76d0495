"""Verifies exports of packed checkpoints and appends the records; refusals are records too.

python benchmarks/exports/measure.py RECORDS DIR... [--targets NAME...] [--small]

--small adds checkpoints of a random Llama 256 wide, in formats that SmolLM2's shapes forbid.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tercet
from tercet.errors import UnsupportedError
from tercet.export.target import target_names
from tercet.recipes.export_report import dominant_format, model_name, record, refusal
from tercet.recipes.export_run import export
from tercet.records import Record, append

SMALL_FORMATS = (
    "ternary-g256",
    "ternary-tensor",
    "ternary-g64",
    "int4-g64-asym",
    "int8-channel",
    "fp8_e4m3-channel",
)


def small_checkpoints(folder: Path) -> list[Path]:
    """A random Llama with K of 256 and 512, once in each format."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    source = folder / "random-llama-256"
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    for scheme in SMALL_FORMATS:
        rules = [
            {"match": "*embed_tokens", "format": "int8-g64", "algorithm": "rtn"},
            {"match": "*.layers.*", "format": scheme, "algorithm": "rtn"},
        ]
        plan = tercet.Plan.model_validate({"name": scheme, "rules": rules})
        tercet.compress(source, plan, folder / scheme)
    return [folder / scheme for scheme in SMALL_FORMATS]


def measure(directory: Path, target: str, folder: Path) -> Record:
    """One verified export as a record, or the refusal as one."""
    out = folder / f"{directory.name}-{target}{'.gguf' if target == 'gguf' else ''}"
    try:
        return record(export(directory, target, out, verify=True, progress=print))
    except UnsupportedError as error:
        return refusal(directory, target, str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("directories", type=Path, nargs="*")
    parser.add_argument("--targets", nargs="*", default=None)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        directories = [*given.directories, *(small_checkpoints(folder) if given.small else [])]
        for directory in directories:
            for target in given.targets or target_names():
                found = measure(directory, target, folder)
                kept = dominant_format(tercet.open_packed(directory))
                print(model_name(tercet.open_packed(directory)), kept, target, found.outcome)
                append(given.records, [found])


if __name__ == "__main__":
    main()
