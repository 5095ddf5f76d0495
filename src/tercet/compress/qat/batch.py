"""Batch: weights whose codes a GPU makes by one launch.

One at a time, 112 weights of Llama-3.2-1B take the host 17 ms a step; small models wait for it.
"""

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor

from tercet.compress.qat.sharding.weights import local, shard_of
from tercet.compress.qat.weight import QuantizedWeight
from tercet.ops.fake_quantize import MOST_TOGETHER, fits_together, quantize_together

# codes that are there twice, the new ones and the last
_MOST_CODES = 1 << 28


def group_batches(
    modules: Iterable[QuantizedWeight],
) -> tuple[list[list[QuantizedWeight]], list[QuantizedWeight]]:
    """(batches, those that are quantized alone) of modules that were prepared."""
    open_: dict[Any, tuple[list[QuantizedWeight], int]] = {}
    batches: list[list[QuantizedWeight]] = []
    alone: list[QuantizedWeight] = []
    for module in modules:
        weight = local(module.weight)
        how = module.scheme.name, module.options.method
        if not module.products_of_codes or not fits_together(weight, *how):
            alone.append(module)
            continue
        key = (*how, weight.shape[1], weight.dtype, _bits(module), module.has_codes)
        batch, size = open_.get(key, (list[QuantizedWeight](), 0))
        size += weight.numel()
        if not batch or len(batch) == MOST_TOGETHER or size > _MOST_CODES:
            batch, size = list[QuantizedWeight](), weight.numel()
            batches.append(batch)
        batch.append(module)
        open_[key] = batch, size
    return batches, alone


def make(batch: list[QuantizedWeight], counting: bool) -> Tensor | None:
    """Makes the codes of all; how many changed, int64 [], where that is counted."""
    first = batch[0]
    counting &= first.has_codes
    made = quantize_together(
        [local(each.weight) for each in batch],
        None if first.step is None else [local(cast(Tensor, each.step)) for each in batch],
        scheme=first.scheme.name,
        method=first.options.method,
        bits=_bits(first),
        before=[each.codes for each in batch] if counting else None,
    )
    for at, each in enumerate(batch):
        each.keep(made.codes[at], made.scales[at], made.packed[at] if made.packed else None, None)
    return made.changed if counting else None


def _bits(module: QuantizedWeight) -> int:
    """Of a code as it is gathered; 0 where it is not."""
    shard = shard_of(module.weight)
    return 0 if shard is None else shard.wire.bits
