"""planted_product: a [M, K] @ b [K, M] in fp8 and bf16."""

from typing import Any

import torch
from torch import Tensor

from tercet.kernel.cases import values
from tercet.kernel.contract import (
    Axis,
    Cost,
    Implementation,
    Language,
    Op,
    Requirement,
    TensorSpec,
    Tolerance,
    Workload,
)
from tercet.kernel.model_shape import ModelShape
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient

_DTYPES = (torch.bfloat16, torch.float8_e4m3fn)


def inputs(workload: Workload, seed: int, device: str = "cpu") -> dict[str, Any]:
    """a [M, K], each row `pad` elements apart from the next; b as columns."""
    m, k = workload.sizes["M"], workload.sizes["K"]
    wide = values((m, k + workload.options.get("pad", 0)), torch.float32, seed, device=device)
    b = values((m, k), torch.float32, seed + 1, device=device)
    return {"a": wide.to(workload.dtype)[:, :k], "b": b.to(workload.dtype).t()}


def shapes(model: ModelShape) -> tuple[Workload, ...]:
    """The same calls whatever the model."""
    del model
    sizes = {"M": 128, "K": 512}
    return (
        Workload(name="bf16", sizes=sizes),
        Workload(name="fp8", sizes=sizes, dtype=torch.float8_e4m3fn),
        Workload(name="unaligned", sizes=sizes, options={"pad": 3}),
        Workload(name="too large", sizes={"M": 128, "K": 1024}),
    )


def reference(a: Tensor, b: Tensor) -> Tensor:
    """In float64."""
    return a.double() @ b.double()


def _run(a: Tensor, b: Tensor) -> Tensor:
    return choose(OP, a.device.type, a.dtype).forward(a, b)


def _fake(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], a.shape[0]), dtype=torch.float32)


def _run_gradient(grad: Tensor, a: Tensor) -> Tensor:
    return choose_gradient(OP, a.device.type, a.dtype)(grad, a)


def _fake_gradient(grad: Tensor, a: Tensor) -> Tensor:
    return a.new_empty(a.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _gradient(grad, *ctx.saved_tensors), None


_forward = define("planted_product", "(Tensor a, Tensor b) -> Tensor", run=_run, fake=_fake)
_gradient = define(
    "planted_product_gradient",
    "(Tensor grad, Tensor a) -> Tensor",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("planted_product", save=_save, backward=_backward)


def _implementation(name: str, module: str, language: Language) -> Implementation:
    return Implementation(
        name=name,
        requirement=Requirement(dtypes=_DTYPES),
        module=f"tercet.ops.planted_product.{module}",
        language=language,
    )


OP = Op(
    name="planted_product",
    axes=(Axis(name="M", meaning="rows"), Axis(name="K", meaning="what is summed over")),
    tensors=(
        TensorSpec(name="a", axes=("M", "K"), dtypes=_DTYPES),
        TensorSpec(name="b", axes=("K", "M"), dtypes=_DTYPES),
        TensorSpec(name="out", axes=("M", "M"), dtypes=(torch.float32,), role="output"),
    ),
    run=_forward,
    reference=reference,
    cost=lambda _: Cost(flops=0, bytes_read=0, bytes_written=0),
    cases=(),
    tolerances=(Tolerance(dtype=torch.float32, relative=1e-5, reason="float32 sums"),),
    differentiable=("a",),
    implementations=(
        _implementation("triton", "kernels", "triton"),
        _implementation("broken", "broken", "triton"),
        _implementation("idle", "idle", "triton"),
        _implementation("cuda", "kernels", "cuda"),
    ),
    inputs=inputs,
    shapes=shapes,
)
