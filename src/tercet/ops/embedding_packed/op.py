"""embedding_packed: y[.., K] = W[ids, :], W [N, K] packed; only the chosen rows are decoded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.kernel.contract import (
    Axis,
    Baseline,
    Cost,
    Implementation,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
)
from tercet.kernel.direct_call import direct_call
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define
from tercet.kernel.select import choose
from tercet.ops.embedding_packed.arguments import describe, prepared
from tercet.ops.embedding_packed.cases import CASES, inputs, shapes
from tercet.ops.embedding_packed.reference import magnitude, reference
from tercet.packed_weight.call import traits
from tercet.packed_weight.weight import SCHEMA, PreparedWeight

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_IDS = (torch.int64, torch.int32)


def embedding_packed(
    ids: Tensor, weight: PreparedWeight, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The rows of W that ids name, decoded in float32 and rounded to dtype.

    Args:
        ids: [...], int64 or int32, each in [0, N); on the weight's device.
        weight: W [N, K] from `prepare`.
        dtype: float32, float16 or bfloat16.

    Returns:
        [..., K] in dtype. Not differentiable.

    Raises:
        UnsupportedError: for an id out of range, a wrong dtype or device. On a GPU ids are not read
            back, which would wait for them: one that is out of range gives a row of NaN.
    """
    return _call(ids, *weight.parts, dtype)


def _check(ids: Tensor, codes: Tensor, dtype: torch.dtype) -> None:
    if ids.dtype not in _IDS:
        raise UnsupportedError(
            f"embedding_packed: ids are {ids.dtype}: allowed are int64 and int32"
        )
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"embedding_packed: dtype {dtype}: allowed are float32, float16 and bfloat16"
        )
    on_one_device("embedding_packed", "ids", ids, **{"the weight": codes})


def _run(ids: Tensor, *arguments: Any) -> Tensor:
    *parts, dtype = arguments
    weight = PreparedWeight.from_parts(*parts)
    _check(ids, weight.codes, dtype)
    run = choose(OP, ids.device.type, dtype, options={"layout": weight.layout}).forward
    return run(ids, weight, dtype)


def _fake(ids: Tensor, *arguments: Any) -> Tensor:
    *parts, dtype = arguments
    weight = PreparedWeight.from_parts(*parts)
    _check(ids, weight.codes, dtype)
    return ids.new_empty((*ids.shape, weight.shape[1]), dtype=dtype)


_forward = define(
    "embedding_packed",
    f"(Tensor ids, {SCHEMA}, ScalarType dtype) -> Tensor",
    run=_run,
    fake=_fake,
)
_call = direct_call(_forward)


def cost(arguments: Mapping[str, Any]) -> Cost:
    """Each chosen row's codes, scales and zero points read once, the row written once."""
    ids, rows = arguments["ids"], max(arguments["rows"], 1)
    tables = [arguments[name] for name in ("codes", "scale", "zero")]
    table = sum(part.numel() * part.element_size() for part in tables if part is not None)
    values = ids.numel() * arguments["columns"]
    return Cost(
        flops=values,
        bytes_read=ids.numel() * ids.element_size() + ids.numel() * table // rows,
        bytes_written=values * arguments["dtype"].itemsize,
    )


OP = Op(
    name="embedding_packed",
    axes=(
        Axis(name="T", meaning="tokens"),
        Axis(name="N", meaning="rows of the table: vocabulary"),
        Axis(name="K", meaning="columns of the table: hidden size"),
    ),
    tensors=(
        TensorSpec(name="ids", axes=("T",), dtypes=_IDS, chooses="N"),
        TensorSpec(name="y", axes=("T", "K"), dtypes=_DTYPES, role="output"),
    ),
    run=_forward,
    reference=reference,
    magnitude=magnitude,
    prepare=prepared,
    traits=traits,
    describe=describe,
    cost=cost,
    cases=CASES,
    tolerances=(
        Tolerance(
            dtype=torch.float32,
            relative=2e-7,
            reason="roundings of the second level and of a product",
        ),
        Tolerance(dtype=torch.float16, relative=2**-11 + 2e-7, reason="one rounding to 11 bits"),
        Tolerance(dtype=torch.bfloat16, relative=2**-8 + 2e-7, reason="one rounding to 8 bits"),
    ),
    differentiable=(),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(
                devices=("cuda",), dtypes=_DTYPES, options={"layout": ("fragments",)}
            ),
            module="tercet.ops.embedding_packed.triton",
            language="triton",
            arrange="tercet.packed_weight.call:as_fragments",
            space={"BT": (1, 2, 4, 8), "BK": (256, 512, 1024), "num_warps": (2, 4, 8)},
        ),
        Implementation(
            name="cpu",
            requirement=Requirement(
                devices=("cpu",), dtypes=_DTYPES, compiler=True, options={"layout": ("rows16",)}
            ),
            module="tercet.ops.embedding_packed.cpu",
            language="cpp",
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.embedding_packed.torch_path",
            language="torch",
            slow=True,
            capturable=False,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="T",
    baselines=(
        Baseline(
            name="eager",
            path="tercet.ops.embedding_packed.baselines:eager",
            prepare="tercet.ops.embedding_packed.baselines:prepare_eager",
            tolerance=0.01,
        ),
    ),
)
