"""Seconds and memory of `tercet compress` on a GPU, at a published shape with drawn weights.

python benchmarks/compress/gpu.py MODEL [--to PLAN] [--layers L] [--sequences N] [--length T]
    [--folder DIR] [--out FILE] [--profile]

Weights are drawn and written in bfloat16, a file a layer, as a hub's checkpoint is; that takes no
part in the time. Then everything counts, from opening the model to the finished checkpoint: reading
and hashing it twice (the second time from the file cache, as the first on a machine that has just
downloaded it), calibration on drawn token ids, the algorithm, writing. `--layers` measures a model
of fewer layers; its record says so.
"""

import argparse
import cProfile
import json
import pstats
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Plan, load_plan, set_calibration
from tercet.compress.ptq import algorithm
from tercet.models.catalog.entry import CatalogEntry
from tercet.models.catalog.load import read
from tercet.records import Environment, Record, append


def draw_model(entry: CatalogEntry, layers: int, folder: Path, device: torch.device) -> int:
    """Writes a llama of that shape; returns how many parameters it has."""
    width = entry.head_dim or entry.hidden_size // entry.num_attention_heads
    config = LlamaConfig(
        hidden_size=entry.hidden_size,
        intermediate_size=entry.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=entry.num_attention_heads,
        num_key_value_heads=entry.num_key_value_heads,
        head_dim=width,
        vocab_size=entry.vocab_size,
        tie_word_embeddings=entry.tie_word_embeddings,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    index: dict[str, str] = {}
    total = 0
    for file, shapes in _files(entry, layers, width):
        tensors = {name: _draw(shape, device) for name, shape in shapes.items()}
        save_file(tensors, folder / file)
        index.update(dict.fromkeys(tensors, file))
        total += sum(tensor.numel() for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return total


def _files(
    entry: CatalogEntry, layers: int, width: int
) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    hidden, inside = entry.hidden_size, entry.intermediate_size
    queries, keys = (n * width for n in (entry.num_attention_heads, entry.num_key_value_heads))
    outside: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (entry.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not entry.tie_word_embeddings:
        outside["lm_head.weight"] = (entry.vocab_size, hidden)
    yield "outside.safetensors", outside
    for layer in range(layers):
        shapes = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inside, hidden),
            "mlp.up_proj": (inside, hidden),
            "mlp.down_proj": (hidden, inside),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        yield (
            f"layer-{layer}.safetensors",
            {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()},
        )


def _draw(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    values = torch.randn(shape, dtype=torch.bfloat16, device=device) * shape[1] ** -0.5
    return values.cpu()


def measure(
    source: Path, plan: Plan, out: Path, tokens: Tensor, device: torch.device
) -> dict[str, float]:
    """Seconds from opening the source to the finished checkpoint, and peaks in bytes."""
    began = time.perf_counter()
    units: list[tuple[str, float]] = []

    def unit(_: int, __: int, name: str) -> None:
        units.append((name, time.perf_counter() - began))

    result = compress(
        source, plan, out, calibration=tokens, device=device, progress=Progress(unit=unit)
    )
    seconds = time.perf_counter() - began
    for (name, start), (_, end) in zip(units, [*units[1:], ("", seconds)], strict=True):
        print(f"{end - start:7.2f} s  {name}", flush=True)
    middle = [units[i + 1][1] - units[i][1] for i in range(2, len(units) - 2)]
    return {
        "seconds": seconds,
        "before_s": units[0][1],
        "embedding_s": units[1][1] - units[0][1],
        "layer_s": sorted(middle)[len(middle) // 2] if middle else 0.0,
        "peak_bytes": float(result.peak_bytes),
        "device_peak_bytes": float(result.device_peak_bytes),
        "written_bytes": float(sum(file.stat().st_size for file in out.iterdir())),
    }


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="of the catalog, dense")
    parser.add_argument("--to", default="int4-g128", help="a plan or format")
    parser.add_argument("--layers", type=int, help="default: the model's")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--profile", action="store_true", help="print what the host's time goes to")
    parser.add_argument("--out", type=Path, help="append the record here (JSON lines)")
    options = parser.parse_args(arguments)
    entry, device = read(options.model), torch.device(options.device)
    layers = options.layers or entry.num_hidden_layers
    plan = set_calibration(
        load_plan(options.to), sequences=options.sequences, length=options.length
    )
    calibrated = any(algorithm(rule.algorithm).needs_inputs for rule in plan.rules)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        begin = time.perf_counter()
        source = folder / "source"
        source.mkdir()
        parameters = draw_model(entry, layers, source, device)
        print(f"drew {parameters:,} parameters in {time.perf_counter() - begin:.1f} s", flush=True)
        tokens = torch.randint(
            0,
            entry.vocab_size,
            (options.sequences, options.length),
            generator=torch.Generator().manual_seed(0),
        )
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        metrics = measure(source, plan, folder / "out", tokens, device)
        if options.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(options.model, plan.name, {name: round(value, 3) for name, value in metrics.items()})
    if options.out is not None:
        record = Record(
            kind="compress",
            subject=options.model,
            settings={
                "to": plan.name,
                "layers": layers,
                "sequences": options.sequences if calibrated else 0,
                "length": options.length if calibrated else 0,
                "match_teacher": plan.calibration.match_teacher,
                "device": device.type,
                "parameters": parameters,
            },
            metrics=metrics,
            environment=Environment.here(
                torch.cuda.get_device_name() if device.type == "cuda" else None
            ),
        )
        append(options.out, [record])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
