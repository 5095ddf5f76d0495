"""What a key-value cache of codes costs in quality: a model beside itself with one of numbers.

python benchmarks/decoder/kv_cache_quality.py MODEL --text FILE [--length N] [--windows W]
    [--cache KIND ...] [--device D] [--out FILE]

MODEL is uncompressed, so that nothing but the cache differs; weights and activations are float32.
Every position reads all keys and values before it from the cache, as in generation: nothing is read
in the form that it had before it was written.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tercet.checkpoints.sources.open import open_source
from tercet.compress.distill.next_token import SourceWeights
from tercet.evaluate.compare import compare
from tercet.evaluate.text import windows
from tercet.models import Decoder
from tercet.packed_weight.cached_rows import CACHED
from tercet.records import Environment, Record, append


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="as `tercet compress` takes it")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--length", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, help="default: all of the text")
    parser.add_argument("--cache", nargs="*", choices=CACHED, default=CACHED)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    source, device = open_source(options.model), torch.device(options.device)
    with TemporaryDirectory() as folder:
        source.save_companions(folder)
        ids = windows(
            options.text, Path(folder) / "tokenizer.json", options.length, options.windows
        )
    decoders = {
        kept: Decoder.from_checkpoint(SourceWeights(source), torch.float32, device, kept)
        for kept in (None, *options.cache)
    }
    named = {str(kept): decoder.logits for kept, decoder in decoders.items() if kept is not None}
    found = compare(
        ids,
        named,
        decoders[None].logits,
        lambda done, total: print(f"{done} of {total}", file=sys.stderr, flush=True),
    )
    on_gpu = device.type == "cuda"
    environment = Environment.here(torch.cuda.get_device_name(device) if on_gpu else None)
    records = [
        Record(
            kind="cache quality",
            subject=options.model,
            settings={
                "text": options.text.name,
                "window_tokens": options.length,
                "windows": len(ids),
                "kv_cache_dtype": name if name in named else None,
            },
            metrics=quality.metrics(),
            environment=environment,
        )
        for name, quality in found.items()
    ]
    for record in records:
        print(record.settings["kv_cache_dtype"], record.metrics)
    if options.out is not None:
        append(options.out, records)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
