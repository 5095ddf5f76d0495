"""AWQ checkpoints, as AutoAWQ writes them (version "gemm"): transformers, vLLM, SGLang load them.

Only the layout is AWQ's: which algorithm chose the codes does not matter to an engine.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoints.imports.awq import BITS, METHOD, store_awq
from tercet.checkpoints.imports.grouped_integers import GroupedIntegers
from tercet.export.integer_linears.client import dequantize_awq
from tercet.export.integer_linears.fit import Arrangement, Limits
from tercet.export.integer_linears.target import IntegerLinears

_HEAD = "lm_head"


class Awq(IntegerLinears):
    """Integers of 4 bits with zero points: int4, nonary, int3, int2 and ternary."""

    name = METHOD
    order_bits = 0

    def __init__(self) -> None:
        self.limits = Limits(name="AWQ", widths=(BITS,), whole_columns=False)

    def section(self, arrangement: Arrangement) -> dict[str, Any]:
        """The `quantization_config`."""
        return {
            "quant_method": METHOD,
            "version": "gemm",
            "bits": BITS,
            "group_size": -1 if arrangement.group is None else arrangement.group,
            "zero_point": True,
            "modules_to_not_convert": sorted({*arrangement.plain, _HEAD}),
        }

    def store(
        self, weight: GroupedIntegers, bits: int, arrangement: Arrangement
    ) -> dict[str, Tensor]:
        """qweight, qzeros and scales."""
        return store_awq(weight)

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]) of every packed module, by gptqmodel."""
        return dequantize_awq(self, out)


TARGET = Awq()
