"""Tokens a second of the lean decoder cut over GPUs, at a published model's shape, drawn weights.

python benchmarks/decoder/tensor_parallel.py MODEL --ranks N [--body SCHEME] [--head SCHEME]
    [--activation A] [--context N] [--batch B] [--tokens N] [--prompt N] [--layers L]

What `speed.py` measures of one GPU, by the same functions; it prints what rank 0 saw. One rank is
`speed.py`'s decoder, so `--ranks 1` is what others are to be compared with. Then the scores of a
token must have the same bits on all ranks, and rank 0 says whether they have. Each rank draws whole
weights and cuts them, so it needs the memory of the whole model once.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from speed import DrawnSource, measure, measure_prompt

from tercet.models import Decoder
from tercet.models.catalog.load import read
from tercet.models.decoder.tensor_parallel.group import open_rank_group


@torch.inference_mode()
def same_bits(decoder: Decoder, batch: int) -> bool:
    """Whether the scores of a token are those of rank 0, to the bit, on every rank."""
    if decoder.group is None:
        return True
    cache = decoder.cache(batch)
    decoder.extend(torch.full((batch, 33), 7), cache)
    scores = decoder.extend(torch.full((batch, 1), 9), cache).clone()
    first = decoder.group.copy_first_(scores.clone())
    return bool(decoder.group.lowest(int(torch.equal(scores, first))))


def work(rank: int, options: argparse.Namespace, store: Path) -> None:
    """One rank: all of them do the same, and the first prints."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=options.ranks, device_id=device
    )
    assert dist.group.WORLD is not None
    entry = read(options.model)
    layers = options.layers or entry.num_hidden_layers
    source = DrawnSource(
        entry, layers, options.body, options.head, options.activation, device=str(device)
    )
    group = open_rank_group(dist.group.WORLD, device)
    decoder = Decoder.from_checkpoint(source, torch.bfloat16, device, group=group)
    torch.cuda.synchronize()
    dist.barrier()
    if options.prompt is None:
        found = measure(decoder, options.batch, options.context, options.tokens)
    else:
        found = measure_prompt(decoder, options.batch, options.prompt)
    same = same_bits(decoder, options.batch)
    if rank == 0:
        settings = {name: value for name, value in vars(options).items() if value is not None}
        rounded = {name: round(value, 2) for name, value in found.items()}
        print(json.dumps({**settings, **rounded, "same_bits": same}), flush=True)
    # captured graphs hold the communicator, which is not to be destroyed before them
    del decoder
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="of the catalog, dense")
    parser.add_argument("--ranks", type=int, default=2, help="GPUs")
    parser.add_argument("--body", default="ternary-channel", help="a scheme, or none")
    parser.add_argument("--head", default="int8-channel", help="a scheme, or none")
    parser.add_argument("--activation", choices=["int8_token", "fp8_token"])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt", type=int, help="measure a prompt of so many tokens instead")
    parser.add_argument("--layers", type=int, help="default: the model's")
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=work, args=(rank, options, Path(folder) / "store"), daemon=True)
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        # one that failed leaves the others waiting
        while any(process.exitcode is None for process in ranks):
            if any(process.exitcode for process in ranks):
                for process in ranks:
                    process.kill()
            multiprocessing.connection.wait(
                [process.sentinel for process in ranks if process.exitcode is None]
            )
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
