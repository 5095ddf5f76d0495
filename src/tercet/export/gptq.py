"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: transformers, vLLM, SGLang load them.

A symmetric checkpoint is written in the first layout, `gptq`, which every engine reads. It stores
zero points less one, so a zero point of 0 wraps around, and programs disagree about what it means
then: a checkpoint with zero points is written as `gptq_v2`, which stores them as they are.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoints.imports.gptq import BITS, METHOD, store_gptq
from tercet.checkpoints.imports.grouped_integers import GroupedIntegers
from tercet.errors import UnsupportedError, unknown_name
from tercet.export.fused_layers import fused_name
from tercet.export.integer_linears.client import dequantize_gptq
from tercet.export.integer_linears.fit import Arrangement, Limits, in_block
from tercet.export.integer_linears.target import IntegerLinears
from tercet.export.target import Target

_KINDS = {f"int{bits}": bits for bits in BITS}


class Gptq(IntegerLinears):
    """Integers of 2, 3, 4 and 8 bits; ternary in 2, nonary in 4, int5 and int6 in 8.

    Args:
        widths: the bits that codes may have; one for all layers where a type is asked for.
    """

    name = METHOD
    order_bits = 32

    def __init__(self, widths: tuple[int, ...] = BITS) -> None:
        self.limits = Limits(name="GPTQ", widths=widths, whole_columns=True)

    def variant(self, kind: str) -> Target:
        """The target that holds all layers in "int2", "int3", "int4" or "int8"."""
        if kind not in _KINDS:
            raise UnsupportedError(unknown_name("type of gptq", kind, _KINDS))
        return Gptq((_KINDS[kind],))

    def section(self, arrangement: Arrangement) -> dict[str, Any]:
        """The `quantization_config`; its `dynamic` names layers of another width, or of none."""
        widths = Counter(arrangement.bits.values())
        main = widths.most_common(1)[0][0] if widths else BITS[-1]
        found: dict[str, Any] = {
            "quant_method": METHOD,
            "checkpoint_format": _layout(arrangement),
            "bits": main,
            "group_size": -1 if arrangement.group is None else arrangement.group,
            "sym": arrangement.symmetric,
            "desc_act": False,
            "lm_head": False,
        }
        rules: dict[str, dict[str, int]] = {f"-:{_pattern(name)}": {} for name in arrangement.plain}
        rules |= {
            f"+:{_pattern(name)}": {"bits": bits}
            for name, bits in arrangement.bits.items()
            if bits != main
        }
        if rules:
            found["dynamic"] = rules
        if any(in_block(name) for name in arrangement.plain):
            # what transformers reads instead
            found["modules_in_block_to_quantize"] = [sorted(arrangement.bits)]
        return found

    def store(
        self, weight: GroupedIntegers, bits: int, arrangement: Arrangement
    ) -> dict[str, Tensor]:
        """qweight, qzeros, scales and g_idx."""
        return store_gptq(weight, bits, _layout(arrangement))

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]) of every packed module, by gptqmodel."""
        return dequantize_gptq(self, out)


def _layout(arrangement: Arrangement) -> str:
    return "gptq" if arrangement.symmetric else "gptq_v2"


def _pattern(module: str) -> str:
    """A regular expression of that module, and of the product that engines make it a part of."""
    parent, dot, own = module.rpartition(".")
    fused = fused_name(module)
    last = re.escape(own) if fused is None else f"(?:{own}|{fused})"
    return f"^{re.escape(parent + dot)}{last}$"


TARGET = Gptq()
