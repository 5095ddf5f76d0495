"""Tokens a second of a packed model in transformers on a GPU, beside the same model in bfloat16.

python benchmarks/exports/transformers_speed.py MODEL [--layers L] [--tokens N] [--out FILE]

A model of a published shape is drawn in bfloat16 and compressed by the plan `ternary-a8` (ternary
weights by rows, 8-bit inputs, 4-bit embeddings and head); both are loaded by `from_pretrained`.
`generate` decodes greedily, one sequence, with transformers' default cache and with a static one,
whose step it compiles and captures; two calls before the one that is timed compile and warm up.
Both models run in one process, one after the other.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import tercet
from tercet.models.catalog.entry import CatalogEntry
from tercet.models.catalog.load import read
from tercet.records import Environment, Record, append

PLAN = "ternary-a8"


def draw(entry: CatalogEntry, layers: int, folder: Path, device: torch.device) -> None:
    """Writes a llama of that shape."""
    config = LlamaConfig(
        hidden_size=entry.hidden_size,
        intermediate_size=entry.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=entry.num_attention_heads,
        num_key_value_heads=entry.num_key_value_heads,
        head_dim=entry.head_dim or entry.hidden_size // entry.num_attention_heads,
        vocab_size=entry.vocab_size,
        tie_word_embeddings=entry.tie_word_embeddings,
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


@torch.inference_mode()
def tokens_a_second(model: Any, cache: str | None, tokens: int) -> float:
    """Of a call of `generate` after two others, from a prompt of 16 ids."""
    ids = torch.arange(16, device=model.device)[None] + 3
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "do_sample": False,
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "pad_token_id": 0,
        "cache_implementation": cache,
    }
    for _ in range(2):
        model.generate(ids, **options)
    begin = time.perf_counter()
    model.generate(ids, **options).cpu()
    return tokens / (time.perf_counter() - begin)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="of the catalog, dense")
    parser.add_argument("--layers", type=int, help="default: the model's")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="append the record here (JSON lines)")
    options = parser.parse_args(arguments)
    entry, device = read(options.model), torch.device(options.device)
    layers = options.layers or entry.num_hidden_layers
    metrics: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        source, packed = Path(folder, "source"), Path(folder, "packed")
        draw(entry, layers, source, device)
        tercet.compress(source, PLAN, packed, device=device)
        for name, path in (("bfloat16", source), ("packed", packed)):
            torch.compiler.reset()
            model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(device)
            for kind, cache in (("dynamic", None), ("static", "static")):
                metrics[f"{name}_{kind}"] = tokens_a_second(model, cache, options.tokens)
                print(f"{name} {kind}: {metrics[f'{name}_{kind}']:.0f} tokens/s", flush=True)
            del model
            torch.cuda.empty_cache()
    if options.out is not None:
        settings = {"layers": layers, "tokens": options.tokens, "plan": PLAN}
        record = Record(
            kind="transformers_speed",
            subject=options.model,
            settings=settings,
            metrics=metrics,
            environment=Environment.here(
                torch.cuda.get_device_name() if device.type == "cuda" else None
            ),
        )
        append(options.out, [record])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
