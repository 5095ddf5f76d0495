"""A linear layer in training, forward and backward: linear_qat beside what a user has today.

python benchmarks/training/linear_step.py [--out FILE] [--tokens M] [--rows N] [--columns K] ...

Every mode starts from a bf16 master weight and ends with gradients of x and of it, and includes all
that it quantizes, the weight too. Modes are checked first: y and both gradients beside float32's on
the values that the mode stands for. Then all run in turns, many steps at a time, so that no mode
waits for the host and each meets the power limit that is its own; the median counts. torchao's
modes are timed where it is installed.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from tercet.harness.sandbox.try_run import Failure, try_run
from tercet.harness.timing.device_state import DeviceState, device_state, state_metrics
from tercet.kernel.select import load, using
from tercet.ops.fake_quantize import fake_quantize
from tercet.ops.linear_qat import linear_qat, transposed
from tercet.ops.linear_qat.op import OP
from tercet.records import Environment, Outcome, Record, append

SCHEME = "ternary-channel-float32"
STEPS, ROUNDS = 40, 5
WARM_SECONDS = 0.15
Layer = Callable[[Tensor], Tensor]
# |found - wanted| / |wanted| of y, of the gradient of x and of that of the weight: what 8-bit codes
# of normal numbers cost (1.2 % a rounding), with room for bf16
CLOSE, QUANTIZED = 0.03, 0.005


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to run the layer.

    Attributes:
        make: a master weight [N, K] to a function of x.
        ternary: whether the weight stands for its ternary self, or for itself.
        compiled: whether torch.compile runs on it.
        least, limit: what it may be off by: a quantized mode that is nearer was not quantized.
    """

    make: Callable[[Tensor], Layer]
    ternary: bool = True
    compiled: bool = False
    least: float = QUANTIZED
    limit: float = CLOSE


class Burst(NamedTuple):
    """Microseconds a step, and the GPU near the end of it."""

    step_us: float
    state: DeviceState | None


def unquantized(weight: Tensor) -> Layer:
    return lambda x: linear(x, weight)


def fake(weight: Tensor) -> Layer:
    """BitNet b1.58 as papers write it: the detach trick on both operands."""

    def run(x: Tensor) -> Tensor:
        scale = weight.detach().float().abs().mean(1, keepdim=True)
        held = (weight.detach() / scale).round().clamp(-1, 1) * scale
        size = x.detach().float().abs().amax(-1, keepdim=True) / 127
        seen = (x.detach() / size).round().clamp(-127, 127) * size
        w = weight + (held - weight).detach().to(weight.dtype)
        return linear(x + (seen - x).detach().to(x.dtype), w)

    return run


def tercet(gradient: str, random: bool) -> Callable[[Tensor], Layer]:
    """linear_qat, the weight quantized and transposed in every step."""

    def make(weight: Tensor) -> Layer:
        seed = torch.tensor(7, device=weight.device) if random else None

        def run(x: Tensor) -> Tensor:
            codes, scale, _ = fake_quantize(weight.detach(), scheme=SCHEME)
            turned = transposed(codes)
            return linear_qat(
                x, codes, scale, weight, codes_t=turned, weight_gradient=gradient, seed=seed
            )

        return run

    return make


def _as_module(weight: Tensor) -> torch.nn.Linear:
    rows, columns = weight.shape
    module = torch.nn.Linear(columns, rows, bias=False, device="meta")
    module.weight = torch.nn.Parameter(weight.detach())
    return module


def torchao_weight(kind: str, **options: bool) -> Callable[[Tensor], Layer]:
    """A prototype of torchao's quantized_training, put into a module by quantize_."""

    def make(weight: Tensor) -> Layer:
        from torchao.prototype import quantized_training
        from torchao.quantization import quantize_

        module = torch.nn.Sequential(_as_module(weight))
        quantize_(module, getattr(quantized_training, kind)(**options))
        return module

    return make


def torchao_float8(recipe: str) -> Callable[[Tensor], Layer]:
    """Float8Linear of torchao."""

    def make(weight: Tensor) -> Layer:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        config = Float8LinearConfig.from_recipe_name(recipe)
        return convert_to_float8_training(torch.nn.Sequential(_as_module(weight)), config=config)

    return make


MODES: Mapping[str, Mode] = {
    "bf16": Mode(make=unquantized, ternary=False, least=0.0),
    "eager fake-quant": Mode(make=fake),
    "compiled fake-quant": Mode(make=fake, compiled=True),
    "tercet, bf16 weight gradient": Mode(make=tercet("float", False)),
    "tercet, int8 weight gradient": Mode(make=tercet("int8", False)),
    "tercet, int8 weight gradient at random": Mode(make=tercet("int8", True)),
    # one scale for the whole weight: other values than a scale a row gives
    "torchao bitnet_training": Mode(
        make=torchao_weight("bitnet_training"), compiled=True, limit=0.1
    ),
    "torchao int8_mixed_precision_training": Mode(
        # as a tensor subclass, its default, it ran in bf16 under torch.compile: the bits showed it
        make=torchao_weight("int8_mixed_precision_training", module_swap=True),
        ternary=False,
        compiled=True,
    ),
    **{
        f"torchao float8 {recipe}": Mode(
            make=torchao_float8(recipe), ternary=False, compiled=True, limit=0.1
        )
        for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    },
}


def gradients(layer: Layer, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """(y, gradient of x, gradient of the weight) of a step."""
    x.grad = weight.grad = None
    y = layer(x)
    y.backward(grad)
    held = weight.grad
    if held is None and isinstance(layer, torch.nn.Module):
        parameter = next(layer.parameters())
        held, parameter.grad = parameter.grad, None
    if x.grad is None or held is None:
        raise RuntimeError("a step without gradients")
    return y.detach(), x.grad, held


def wanted(x: Tensor, weight: Tensor, grad: Tensor, ternary: bool) -> tuple[Tensor, ...]:
    """The step in float32, on the values that the weight stands for."""
    held = weight.detach().float()
    if ternary:
        codes, scale, _ = fake_quantize(held, scheme=SCHEME)
        held = codes.float() * scale
    wide, way = x.detach().float(), grad.float()
    return wide @ held.T, way @ held, way.T @ wide


def off_by(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest |found - exact| / |exact| of the three."""
    return max(
        ((one.float() - other).norm() / other.norm()).item()
        for one, other in zip(found, exact, strict=True)
    )


def timed(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Burst]]:
    """Bursts of each mode, in turns, every other round backwards.

    Each runs for WARM_SECONDS first: what is timed is a GPU that has been busy with this very work,
    at the clock that its power allows, as in training.
    """
    bursts: dict[str, list[Burst]] = {name: [] for name in steps}
    for at in range(rounds):
        for name in list(steps)[:: -1 if at % 2 else 1]:
            bursts[name].append(_burst(steps[name]))
    return bursts


def _burst(step: Callable[[], object]) -> Burst:
    begun = perf_counter()
    while perf_counter() - begun < WARM_SECONDS:
        for _ in range(8):
            step()
        torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        step()
    end.record()
    state = device_state("cuda")
    end.synchronize()
    return Burst(start.elapsed_time(end) * 1e3 / STEPS, state)


def run(options: argparse.Namespace) -> list[Record]:
    """A record of each mode."""
    m, n, k = options.tokens, options.rows, options.columns
    torch.manual_seed(options.seed)
    x = torch.randn(m, k, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(n, k, device="cuda") * 0.02).bfloat16().requires_grad_()
    grad = torch.randn(m, n, device="cuda").bfloat16()
    environment = Environment.here(torch.cuda.get_device_name())
    settings = {"sizes": f"M={m} N={n} K={k}", "dtype": "bfloat16"}
    records, errors = list[Record](), dict[str, float]()
    steps = dict[str, Callable[[], object]]()

    def refuse(name: str, outcome: Outcome, reason: str) -> None:
        records.append(
            Record(kind="training step", subject="linear_qat", outcome=outcome, reason=reason,
                   settings={**settings, "mode": name}, environment=environment)
        )  # fmt: skip

    for name in options.mode or MODES:
        mode = MODES[name]
        print(f"{name} ...", file=sys.stderr, flush=True)

        def make(mode: Mode = mode) -> tuple[Layer, float]:
            made = mode.make(weight)
            layer = torch.compile(made) if mode.compiled else made
            exact = wanted(x, weight, grad, mode.ternary)
            return layer, off_by(gradients(layer, x, weight, grad), exact)

        made = try_run(make)
        if isinstance(made, Failure):
            refuse(name, Outcome.FAILED, made.reason)
        elif not mode.least <= made[1] <= mode.limit:
            bounds = f"{mode.least} to {mode.limit}"
            refuse(name, Outcome.WRONG, f"off by {made[1]:.3g}: expected is {bounds}")
        else:
            errors[name] = made[1]
            steps[name] = lambda layer=made[0]: gradients(layer, x, weight, grad)
    bursts = timed(steps, options.rounds)
    middle = {name: median(burst.step_us for burst in own) for name, own in bursts.items()}
    base = middle.get("bf16")
    for name, own in bursts.items():
        taken = [burst.step_us for burst in own]
        ratio = {} if base is None else {"ratio_to_bf16": middle[name] / base}
        records.append(
            Record(kind="training step", subject="linear_qat", environment=environment,
                   settings={**settings, "mode": name},
                   metrics={"time_us": middle[name], "time_us_low": min(taken),
                            "time_us_high": max(taken), "relative_error": errors[name], **ratio,
                            **state_metrics(own[0].state, own[-1].state)})
        )  # fmt: skip
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=14336)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--implementation", help="of linear_qat; default: the one it chooses")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: this benchmark needs one")
    kernels = load(OP, options.implementation) if options.implementation else None
    with using(OP, kernels) if kernels is not None else nullcontext():
        records = run(options)
    if options.out is not None:
        append(options.out, records)
    for record in records:
        what = record.settings["mode"]
        if record.outcome is Outcome.OK:
            numbers = " ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
            print(f"{what}: {numbers}")
        else:
            print(f"{what}: {record.outcome.upper()} {str(record.reason)[:300]}")


if __name__ == "__main__":
    main()
