"""Each setting has another value inside, and its own one again afterwards."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from tercet.harness.check.run import cases_of, check
from tercet.harness.sandbox.candidate import candidate_from
from tercet.harness.sandbox.other_settings import other_settings
from tercet.harness.sandbox.state import changes, settings
from tercet.ops.discover import find

# what a caller hardly sets, and what other calls are judged under
LEFT = {
    "default dtype", "grad mode", "inference mode", "autocast", "autocast's dtype",
    "number of threads", "default device", "torch's modes", "random state",
    "numpy's random state", "Python's random state", "number of threads between operations",
    "environment variables", "current folder", "locale", "threads that still run",
    "module search path", "standard streams", "rounding of floats", "nice value",
    "resource limits", "kernels of torch's attention",
    "torch.backends.cudnn.allow_tf32", "random state of the GPU", "current GPU", "current stream",
}  # fmt: skip
# back to what they are by default, whatever they were
FAULTS = {
    "garbage collection": "gc.disable()\n    gc.enable()",
    "subnormal numbers": "torch.set_flush_denormal(True)\n    torch.set_flush_denormal(False)",
    "float32 matmul precision": "torch.set_float32_matmul_precision('highest')",
    "deterministic algorithms": "torch.use_deterministic_algorithms(False)",
    "torch.backends.cudnn.benchmark": "torch.backends.cudnn.benchmark = False",
    "numpy's handling of errors": "numpy.seterr(divide='warn')",
    "signal handlers": "signal.signal(signal.SIGINT, signal.default_int_handler)",
    "umask": "os.umask(0o022)",
    "blocked signals": "signal.pthread_sigmask(signal.SIG_SETMASK, ())",
    "thread switch interval": "sys.setswitchinterval(0.005)",
    "logging": "logging.disable(logging.NOTSET)",
}
if hasattr(os, "sched_getaffinity") and len(CORES := os.sched_getaffinity(0)) > 1:
    FAULTS["CPU affinity"] = f"os.sched_setaffinity(0, {CORES})"


def test_all_have_another_value_and_their_own_again() -> None:
    import_module("torch._dynamo")
    before = settings()
    with other_settings():
        inside = settings()
    plain = {name for name, value in before.items() if not isinstance(value, dict)} - LEFT
    if len(before.get("CPU affinity", ())) < 2:
        plain.discard("CPU affinity")
    assert plain <= set(changes(before, inside))
    assert changes(before, settings()) == []


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("way", ["forward", "gradient"])
def test_a_setting_that_is_set_back_to_the_default(tmp_path: Path, name: str, way: str) -> None:
    path, op = tmp_path / "candidate.py", find("rms_norm")
    other = "gradient" if way == "forward" else "forward"
    path.write_text(
        "import gc, logging, numpy, os, signal, sys, torch\n"
        "from tercet.ops.rms_norm import torch_path\n"
        f"{other} = torch_path.{other}\n"
        f"def {way}(*arguments):\n"
        f"    {FAULTS[name]}\n"
        f"    return torch_path.{way}(*arguments)\n"
    )
    report = check(
        op, candidate=candidate_from(path), device="cpu", isolated=False, integration=False,
        cases=cases_of(op, ["3-17-float32"]), drawn=0,
    )  # fmt: skip
    words = [each.message for each in report.faults if each.check == "state"]
    assert any("with other settings" in each and name in each for each in words), report.faults
