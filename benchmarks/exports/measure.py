"""Verifies exports of packed checkpoints and appends the records; refusals are records too.

python benchmarks/exports/measure.py RECORDS DIR... [--targets NAME...] [--small]

--small adds checkpoints of random models 256 wide: formats that SmolLM2's shapes forbid, inputs
that are quantized, and other architectures.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tercet
from tercet.errors import UnsupportedError
from tercet.export.target import target_names
from tercet.records import Record, append
from tercet.workflows.export.report import dominant_format, model_name, record, refusal
from tercet.workflows.export.run import export

SMALL: tuple[tuple[str, str, str | None], ...] = (
    ("llama", "ternary-g256", None),
    ("llama", "ternary-tensor", None),
    ("llama", "ternary-g64", None),
    ("llama", "nonary-g64", None),
    ("llama", "int2-g64", None),
    ("llama", "int4-g64-asym", None),
    ("llama", "int8-channel", None),
    ("llama", "fp8_e4m3-channel", None),
    ("llama", "mxfp4", None),
    ("llama", "nvfp4", None),
    ("llama", "int8-channel", "int8_token"),
    ("llama", "fp8_e4m3-channel", "fp8_token"),
    ("qwen2", "nonary-g64", None),
    ("qwen3", "ternary-g64", None),
)
"""Architecture, format, and how the inputs of linear layers are quantized."""
KINDS = {"gguf": {"ternary-g256": ("TQ2_0",), "ternary-tensor": ("TQ2_0",)}}
"""Types beside the densest that a target is asked for, by format."""


def small_checkpoints(folder: Path) -> Iterator[Path]:
    """Random models with K of 256 and 512."""
    for kind, scheme, activation in SMALL:
        torch.manual_seed(7)
        config = AutoConfig.for_model(
            kind,
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            initializer_range=0.1,
            tie_word_embeddings=True,
        )
        source = folder / f"random-{kind}-256"
        if not source.exists():
            AutoModelForCausalLM.from_config(config).save_pretrained(source)
        options = {} if activation is None else {"activation": activation}
        rules = [
            {"match": "*embed_tokens", "format": "int8-g64", "algorithm": "rtn"},
            {"match": "*.layers.*", "format": scheme, "algorithm": "rtn", "options": options},
        ]
        plan = tercet.Plan.model_validate({"name": scheme, "rules": rules})
        out = folder / f"{kind}-{scheme}-{activation}"
        tercet.compress(source, plan, out)
        yield out


def measure(directory: Path, target: str, kind: str | None, folder: Path) -> Record:
    """One verified export as a record, or the refusal as one."""
    out = folder / f"{directory.name}-{target}-{kind}{'.gguf' if target == 'gguf' else ''}"
    try:
        return record(export(directory, target, out, verify=True, kind=kind, progress=print))
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
        directories = [*given.directories, *(small_checkpoints(folder) if given.small else ())]
        for directory in directories:
            checkpoint = tercet.open_packed(directory)
            model, kept = model_name(checkpoint), dominant_format(checkpoint)
            for target in given.targets or target_names():
                for kind in (None, *KINDS.get(target, {}).get(kept, ())):
                    found = measure(directory, target, kind, folder)
                    print(model, kept, target, kind or "", found.outcome, found.reason or "")
                    append(given.records, [found])


if __name__ == "__main__":
    main()
