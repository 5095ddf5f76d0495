"""What a post-training quantization algorithm is to the rest: data in, packed weights out.

An algorithm is one file in `compress/ptq` that exports ALGORITHM; `compress.ptq` finds it by name.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

from tercet.formats import PackedTensor, Scheme


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What calibration saw of the inputs x [tokens, K] that a set of linears shares.

    Attributes:
        gram: E[x x^T] [K, K], float32.
        absmax: max |x| per column [K].
        absmean: mean |x| per column [K].
        drift: E[(t - x) x^T] [K, K] with t the uncompressed model's input in the place of x; None
            where that is not followed, or is in `outputs`.
        outputs: E[W t x^T] [N, K] by linear, where it is cheaper to know than drift.
    """

    gram: Tensor
    absmax: Tensor
    absmean: Tensor
    drift: Tensor | None = None
    outputs: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """One quantized weight, and what its layer must do to the input first.

    Attributes:
        packed: the weight in the transformed basis.
        input_scale: [K] multiplies the input, or None.
        hadamard: size of the Hadamard blocks that the input is multiplied by, or None.
        activation: "int8_token" or "fp8_token" where the input is quantized at run time, or None.
    """

    packed: PackedTensor
    input_scale: Tensor | None = None
    hadamard: int | None = None
    activation: str | None = None


def stored_input_scale(divisor: Tensor) -> tuple[Tensor, Tensor]:
    """(divisor, 1 / divisor) of a layer's input [K], consistent once the latter is in float16.

    The weights are multiplied by the first and the input by the second, as stored.
    """
    stored = (1.0 / divisor.float()).clamp(2.0**-14, 65504.0).to(torch.float16).float()
    return 1.0 / stored, stored


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm.

    Attributes:
        name: its name in plans.
        options: the pydantic model of its options; unknown keys are refused.
        needs_inputs: whether it needs Statistics; if not, it also takes embeddings.
        transforms_inputs: whether it may change a layer's input, which an embedding has not.
        quantize: (weights by name, all [N_i, K] with the same input; Statistics or None; scheme;
            options) to the quantized weights by name.
        gram_copies: how many float32 matrices [K, K] it holds at most beside the Gram matrix.
        weight_copies: how many float32 matrices as large as a weight, or as a block of its rows, it
            holds at most beside the weight.
    """

    name: str
    options: type[BaseModel]
    needs_inputs: bool
    quantize: Callable[[dict[str, Tensor], Any, Scheme, Any], dict[str, Quantized]]
    transforms_inputs: bool = False
    gram_copies: int = 6
    weight_copies: int = 20
