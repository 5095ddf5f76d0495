"""The host's time for one eager call of a packed product, beside torch's own linear.

python benchmarks/kernels/host_time.py [--stub] [--inference] [--profile NAME] [--out FILE]

What Python, torch's dispatch and the launch take before the kernel runs: calls are timed without
waiting for the device, which is done after every hundredth, outside of the time. A record has the
median of all blocks of a hundred, and of the processor's time for them, which other programs on the
machine do not lengthen. "torch's linear" is `torch.nn.functional.linear` of a dense weight; it and
an operation that is registered like ours and returns an empty tensor are torch's own dispatch.

On a machine without a GPU, --stub times what leads up to the launch of the Hopper kernels for few
tokens: their libraries' functions are replaced by ones that do nothing.
"""

import argparse
import cProfile
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tercet.formats import encode, fit, parse_scheme
from tercet.ops.grouped_linear_packed import grouped_linear_packed, stack
from tercet.ops.grouped_linear_packed.op import OP as GROUPED
from tercet.ops.linear_packed import PreparedWeight, linear_packed, prepare
from tercet.ops.linear_packed.op import OP as LINEAR
from tercet.records import Environment, Record, append

CALLS, BLOCK = 2000, 100
SCHEME, EXPERTS = "ternary-channel", 8
_PROCESSORS = 132


def measure(call: Callable[[], object], synchronize: Callable[[], None]) -> dict[str, float]:
    """Microseconds of the host a call, and of its processor: medians of blocks."""
    times, processor = list[float](), list[float]()
    for at in range(-BLOCK, CALLS, BLOCK):  # the first block warms up
        synchronize()
        start, busy = time.perf_counter(), time.thread_time()
        for _ in range(BLOCK):
            call()
        if at >= 0:
            times.append((time.perf_counter() - start) / BLOCK * 1e6)
            processor.append((time.thread_time() - busy) / BLOCK * 1e6)
    return {"host_us": statistics.median(times), "processor_us": statistics.median(processor)}


def stub_launches() -> None:
    """Puts the Hopper kernels for few tokens in place of the slow path, and launches nothing."""
    warnings.simplefilter("ignore")
    library = SimpleNamespace(
        tercet_decode=lambda *_: 0, tercet_experts=lambda *_: 0, tercet_experts_wide=lambda *_: 0
    )
    torch.cuda.is_current_stream_capturing = lambda: False
    for op in (LINEAR, GROUPED):
        launch: Any = import_module(op.implementations[0].module)
        launch.library = lambda *_: library
        launch.stream = lambda: 0
        launch.multiprocessors = lambda _: _PROCESSORS
        # of weights in fragments and tensors on a CPU this is chosen, by the whole of selection
        slow: Any = import_module(op.implementations[-1].module)
        slow.forward = launch.forward


def empty_operation() -> Callable[[Tensor], Tensor]:
    """An operation that does nothing, registered as ours are."""
    library = torch.library.Library("tercet_host_time", "FRAGMENT")
    library.define("nothing(Tensor x) -> Tensor")
    library.impl("nothing", torch.empty_like, "CompositeExplicitAutograd")

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad

    torch.library.register_autograd("tercet_host_time::nothing", backward, lib=library)
    operation = torch.ops.tercet_host_time.nothing.default
    # the library unregisters what it defined once it is collected
    return lambda x, _=library: operation(x)


def calls(size: int, device: str, stub: bool) -> dict[str, Callable[[], object]]:
    """What is timed, by name: W [size, size] of one token, or of 8 rows in 8 experts."""
    dense = torch.randn(size, size)
    parsed = parse_scheme(SCHEME)
    packed = encode(dense, parsed, *fit(dense, parsed, "absmax"))

    def prepared() -> PreparedWeight:
        return prepare(packed, device).to_layout("fragments") if stub else prepare(packed, device)

    weight, experts = prepared(), stack([prepared() for _ in range(EXPERTS)])
    dense = dense.to(device, torch.bfloat16)
    x = torch.randn(1, size, device=device).bfloat16()
    rows = x.repeat(EXPERTS, 1)
    codes = torch.ones(1, size, dtype=torch.int8, device=device)
    row_codes, ones = codes.repeat(EXPERTS, 1), torch.ones(EXPERTS, device=device)
    offsets = torch.arange(EXPERTS + 1, dtype=torch.int32, device=device)
    nothing = empty_operation()
    return {
        "torch's linear": lambda: functional.linear(x, dense),
        "an operation that does nothing": lambda: nothing(x),
        "linear_packed, bfloat16": lambda: linear_packed(x, weight),
        "linear_packed, codes": lambda: linear_packed(codes, weight, x_scale=ones[:1]),
        "grouped_linear_packed, bfloat16": lambda: grouped_linear_packed(rows, offsets, experts),
        "grouped_linear_packed, codes": lambda: grouped_linear_packed(
            row_codes, offsets, experts, x_scale=ones
        ),
    }


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stub", action="store_true", help="do not launch: for CPU machines")
    parser.add_argument("--inference", action="store_true", help="in torch.inference_mode")
    parser.add_argument("--size", type=int, help="N and K; default: 4096 on a GPU, else 256")
    parser.add_argument("--profile", help="print a profile of the calls of this name instead")
    parser.add_argument("--out", type=Path, help="append the records here (JSON lines)")
    options = parser.parse_args(arguments)
    if options.stub:
        stub_launches()
    size = options.size or (4096 if options.device == "cuda" else 256)
    with torch.inference_mode(mode=options.inference):
        timed = calls(size, options.device, options.stub)
        if options.profile is not None:
            profile(timed[options.profile])
            return 0
        records = [record(name, call, size, options) for name, call in timed.items()]
    if options.out is not None:
        append(options.out, records)
    return 0


def profile(call: Callable[[], object]) -> None:
    """Prints what takes the time of so many calls."""
    call()
    statement = f"for _ in range({CALLS}): call()"
    cProfile.runctx(statement, {}, {"call": call}, sort="tottime")


def record(name: str, call: Callable[[], object], size: int, options: argparse.Namespace) -> Record:
    """Times and prints one."""
    on_gpu = options.device == "cuda"
    metrics = measure(call, torch.cuda.synchronize if on_gpu else lambda: None)
    print(f"{name}:", ", ".join(f"{key} {us:.1f}" for key, us in metrics.items()), flush=True)
    return Record(
        kind="host time",
        subject=name,
        settings={
            "device": options.device,
            "stub": options.stub,
            "inference": options.inference,
            "size": size,
        },
        metrics=metrics,
        environment=Environment.here(torch.cuda.get_device_name() if on_gpu else None),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
