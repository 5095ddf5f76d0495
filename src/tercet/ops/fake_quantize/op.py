"""fake_quantize: a weight as int8 codes, scales and its dequantized self, for training."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
from tercet.kernel.one_device import on_one_device
from tercet.kernel.register import define, differentiate
from tercet.kernel.select import choose, choose_gradient
from tercet.ops.fake_quantize.cases import CASES, inputs, shapes
from tercet.ops.fake_quantize.reference import gradient_magnitude, reference
from tercet.ops.fake_quantize.rule import LEARNED, Rule, rule_of

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class FakeQuantized(NamedTuple):
    """A weight W [N, K], quantized: value = codes * scale.

    Attributes:
        codes: [N, K] int8: the levels; for the stretched variant of an even number of levels the
            odd integers 2 level + 1.
        scale: [R, C] float32, each a number of the scheme's scale dtype (or half of one).
        fake: [N, K], the values; what a gradient goes through; None unless asked for.
    """

    codes: Tensor
    scale: Tensor
    fake: Tensor | None


def fake_quantize(
    weight: Tensor,
    step: Tensor | None = None,
    *,
    scheme: str = "ternary-channel",
    method: str = "absmean",
    seed: Tensor | None = None,
    fake_dtype: torch.dtype | None = None,
) -> FakeQuantized:
    """The codes and scales that a checkpoint of this scheme holds, and what they stand for.

    scale = 2 mean |w| / max(highest level, 2) ("absmean"; ternary: the mean, BitNet b1.58,
    arXiv:2402.17764), max |w| / highest level ("absmax"), the step (LSQ, Esser et al. 2020,
    arXiv:1902.08153), or 2 step / number of levels ("stretched", SEQ of ParetoQ, Liu et al. 2025,
    arXiv:2502.02631); rounded to the scheme's scale dtype. Then levels as `formats.encode` writes
    them, to the bit.

    Args:
        weight: W [N, K], float32, float16 or bfloat16; strides as they come.
        step: [R, C] float32, positive, for "learned" and "stretched": one for each block that
            shares a scale (tensor [1, 1], channel [N, 1], group of g [N, ceil(K / g)]).
        scheme: a name of `formats`: "ternary-channel-float32", "nonary-g128", "int4-tensor"; with
            "-hqq" (a zero point of -1/2) for the stretched variant of int2, int3 and int4.
        method: "absmean", "absmax", "learned" or "stretched".
        seed: one int64 on weight's device: rounding is stochastic, up with a probability equal to
            the fraction, by Philox; equal seeds give equal codes on every device. None: to nearest.
        fake_dtype: of the dequantized weight; None: it is not written.

    Returns:
        FakeQuantized. The gradient of `fake` goes straight through to weight ("absmean", "absmax":
        the scale is held constant, nothing is masked) or, for learned steps, to the weights inside
        the clip range and to step; see `fake_quantize_gradient`.

    Raises:
        UnsupportedError: for shapes, dtypes, schemes or devices that do not fit.
        FormatError: for no scheme.
    """
    fake, codes, scale = _forward(weight, step, seed, scheme, method, fake_dtype)
    return FakeQuantized(codes, scale, fake if fake_dtype is not None else None)


def fake_quantize_gradient(
    grad: Tensor,
    weight: Tensor,
    step: Tensor,
    codes: Tensor,
    *,
    scheme: str,
    method: str,
) -> tuple[Tensor, Tensor]:
    """The straight-through gradient of weight and the gradient of a learned step, in one pass.

    With r = w / scale and the clip range [lowest, highest] ("stretched": 99 % of the range that the
    levels divide), and n weights that share the step:

        grad_weight = grad where r is inside, else 0
        grad_step   = slope / sqrt(n highest) * sum of grad * (value - r inside, else value)

    value is what codes stand for, in units of scale; slope is d scale / d step, 1 or 2 / levels. A
    step that is not positive and finite gets, and lets through, nothing.

    For training that adds up gradients of several microbatches before this pass; autograd calls it
    by itself for the gradient of `fake`.

    Args:
        grad: [N, K], the gradient of the dequantized weight; float32, float16 or bfloat16.
        weight, step, scheme, method: as they were given; a learned method.
        codes: as they were returned.

    Returns:
        (grad_weight [N, K] in weight's dtype, grad_step like step).

    Raises:
        UnsupportedError: for a method without a step.
    """
    if method not in LEARNED:
        raise UnsupportedError(
            f"fake_quantize_gradient: method {method!r} has no step: its gradient of the weight is "
            f"that of the dequantized weight; learned are {', '.join(LEARNED)}"
        )
    return _gradient(grad, weight, step, codes, scheme, method)


def _check(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> Rule:
    rule = rule_of(scheme, method)
    if weight.dtype not in _DTYPES or weight.dim() != 2:
        raise UnsupportedError(
            f"fake_quantize: weight is {weight.dtype} {list(weight.shape)}: it may be float32, "
            "float16 or bfloat16 of [N, K]"
        )
    if fake_dtype is not None and fake_dtype not in _DTYPES:
        raise UnsupportedError(
            f"fake_quantize: fake_dtype {fake_dtype}: float32, float16, bfloat16 or None"
        )
    if (step is not None) != rule.learned:
        raise UnsupportedError(
            f"fake_quantize: method {method!r} with{'' if step is not None else 'out'} a step: "
            f"{' and '.join(LEARNED)} have one, the others none"
        )
    wanted = rule.scale_shape(weight.shape[0], weight.shape[1])
    if step is not None and (tuple(step.shape) != wanted or step.dtype != torch.float32):
        raise UnsupportedError(
            f"fake_quantize: step is {step.dtype} {list(step.shape)}: scheme {scheme!r} of a "
            f"weight {list(weight.shape)} needs float32 {list(wanted)}"
        )
    if seed is not None and (seed.dtype != torch.int64 or seed.numel() != 1):
        raise UnsupportedError(
            f"fake_quantize: seed is {seed.dtype} {list(seed.shape)}: it must be one int64"
        )
    on_one_device("fake_quantize", "weight", weight, step=step, seed=seed)
    return rule


def _run(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(weight, step, seed, scheme, method, fake_dtype)
    run = choose(OP, weight.device.type, weight.dtype).forward
    return run(weight, step, seed, scheme, method, fake_dtype)


def _fake(
    weight: Tensor,
    step: Tensor | None,
    seed: Tensor | None,
    scheme: str,
    method: str,
    fake_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    rule = _check(weight, step, seed, scheme, method, fake_dtype)
    rows, columns = weight.shape
    return (
        weight.new_empty(0)
        if fake_dtype is None
        else weight.new_empty((rows, columns), dtype=fake_dtype),
        weight.new_empty((rows, columns), dtype=torch.int8),
        weight.new_empty(rule.scale_shape(rows, columns), dtype=torch.float32),
    )


def _run_gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    run = choose_gradient(OP, weight.device.type, weight.dtype)
    return run(grad, weight, step, codes, scheme, method)


def _fake_gradient(
    grad: Tensor, weight: Tensor, step: Tensor, codes: Tensor, scheme: str, method: str
) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape), step.new_empty(step.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    weight, step, _, ctx.scheme, ctx.method, fake_dtype = inputs
    ctx.shape, ctx.dtype = weight.shape, weight.dtype
    ctx.written = fake_dtype is not None
    if step is not None:
        ctx.save_for_backward(weight, step, output[1])


def _backward(
    ctx: Any, grad: Tensor, _codes: Tensor | None, _scale: Tensor | None
) -> tuple[Tensor | None, ...]:
    if not ctx.written:
        grad = grad.new_zeros(ctx.shape)
    if not ctx.saved_tensors:
        return grad.to(ctx.dtype), *(None,) * 5
    return *_gradient(grad, *ctx.saved_tensors, ctx.scheme, ctx.method), *(None,) * 4


_forward = define(
    "fake_quantize",
    "(Tensor weight, Tensor? step, Tensor? seed, str scheme, str method, ScalarType? fake_dtype) "
    "-> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_fake,
)
_gradient = define(
    "fake_quantize_gradient",
    "(Tensor grad, Tensor weight, Tensor step, Tensor codes, str scheme, str method) "
    "-> (Tensor, Tensor)",
    run=_run_gradient,
    fake=_fake_gradient,
)
differentiate("fake_quantize", save=_save, backward=_backward)


def _sizes(arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    """Weights, bytes of one, bytes of the scales."""
    weight: Tensor = arguments["weight"]
    rule = rule_of(arguments["scheme"], arguments["method"])
    rows, columns = rule.scale_shape(weight.shape[0], weight.shape[1])
    return weight.numel(), weight.element_size(), 4 * rows * columns


def cost(arguments: Mapping[str, Any]) -> Cost:
    """weight (and step) read once; codes, scale (and fake) written once."""
    count, size, scales = _sizes(arguments)
    fake, step, seed = (arguments[name] for name in ("fake_dtype", "step", "seed"))
    return Cost(
        flops=5 * count,
        bytes_read=size * count + (0 if step is None else scales) + (0 if seed is None else 8),
        bytes_written=count * (1 + (fake.itemsize if fake is not None else 0)) + scales,
    )


def gradient_cost(arguments: Mapping[str, Any]) -> Cost:
    """Learned: grad, weight, codes, step read once, both gradients written once; else a copy."""
    count, size, scales = _sizes(arguments)
    fake = arguments["fake_dtype"]
    incoming = count * (fake.itemsize if fake is not None else 0)
    if arguments["step"] is None:
        return Cost(flops=0, bytes_read=incoming, bytes_written=size * count)
    return Cost(
        flops=8 * count,
        bytes_read=incoming + (size + 1) * count + scales,
        bytes_written=size * count + scales,
    )


OP = Op(
    name="fake_quantize",
    axes=(
        Axis(name="N", meaning="rows of W: outputs"),
        Axis(name="K", meaning="columns of W: inputs"),
        Axis(name="C", meaning="scales of a row"),
    ),
    tensors=(
        TensorSpec(name="weight", axes=("N", "K"), dtypes=_DTYPES),
        TensorSpec(name="step", axes=("N", "C"), dtypes=(torch.float32,), optional=True),
        TensorSpec(name="seed", axes=(), dtypes=(torch.int64,), optional=True),
        TensorSpec(name="fake", axes=("N", "K"), dtypes=_DTYPES, optional=True, role="output"),
        TensorSpec(name="codes", axes=("N", "K"), dtypes=(torch.int8,), role="output"),
        TensorSpec(name="scale", axes=("N", "C"), dtypes=(torch.float32,), role="saved"),
    ),
    run=_forward,
    reference=reference,
    gradient_magnitude=gradient_magnitude,
    cost=cost,
    gradient_cost=gradient_cost,
    cases=CASES,
    tolerances=(
        Tolerance(dtype=torch.float32, relative=2**-22, reason="one product; a mean of float64"),
        Tolerance(
            dtype=torch.float16, relative=2**-10, reason="one product, rounded again to 11 bits"
        ),
        Tolerance(
            dtype=torch.bfloat16, relative=2**-8, reason="one product, rounded again to 8 bits"
        ),
    ),
    differentiable=("weight", "step"),
    implementations=(
        Implementation(
            name="triton",
            requirement=Requirement(devices=("cuda",), dtypes=_DTYPES),
            module="tercet.ops.fake_quantize.triton",
            language="triton",
            space={
                "HELD": (2048, 8192, 16384, 32768),
                "TILE": (1024, 2048, 4096, 8192),
                "num_warps": (4, 8, 16, 32),
            },
            gradient_space={"TILE": (1024, 2048, 4096, 8192), "num_warps": (4, 8, 16)},
        ),
        Implementation(
            name="torch",
            requirement=Requirement(dtypes=_DTYPES),
            module="tercet.ops.fake_quantize.torch_path",
            language="torch",
            slow=True,
        ),
    ),
    inputs=inputs,
    shapes=shapes,
    independent="N",
    baselines=(Baseline(name="eager", path="tercet.ops.fake_quantize.baselines:eager"),),
)
