"""Shapes: calls in published models, cut to memory and raised beyond int32."""

from dataclasses import replace

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.harness.workloads.shapes import (
    beyond_int32,
    call_bytes,
    fit_memory,
    needed_bytes,
    shapes,
    workloads_of,
)
from tercet.kernel.contract import Workload, outputs_of
from tercet.ops.discover import find


def test_linear_packed_on_one_of_eight_gpus() -> None:
    found = {w.name: w.sizes for w in workloads_of(find("linear_packed"), "llama-3-70b", 8)}
    assert found["llama-3-70b q|k|v M=1"] == {"M": 1, "N": (8 + 2) * 128, "K": 8192}
    assert found["llama-3-70b down M=16384"] == {"M": 16384, "N": 8192, "K": 3584}
    assert found["llama-3-70b head M=16"] == {"M": 16, "N": 16032, "K": 8192}


def test_latent_attention_and_experts() -> None:
    op = find("linear_packed")
    found = {w.name: w.sizes for w in workloads_of(op, "deepseek-v3", tokens=4096)}
    assert found["deepseek-v3 q|kv down M=1"]["N"] == 1536 + 512 + 64
    assert found["deepseek-v3 kv up M=1"] == {"M": 1, "N": 128 * 256, "K": 512}
    assert found["deepseek-v3 expert down M=128"] == {"M": 128, "N": 7168, "K": 2048}
    dense = {w.name for w in workloads_of(op, "qwen3-30b-a3b")}
    assert not any("gate|up" in name and "expert" not in name for name in dense)


@pytest.mark.parametrize("name", ["linear_packed", "embedding_packed", "rms_norm"])
def test_names_are_unique_and_inputs_fit_them(name: str) -> None:
    op = find(name)
    calls = workloads_of(op, "smollm2-135m", tensor_parallel=3, tokens=16)
    assert len({call.name for call in calls}) == len(calls) > 1
    assert op.inputs is not None
    arguments = op.inputs(calls[0], 5, "cpu")
    again = op.inputs(calls[0], 5, "cpu")
    first = next(v for v in arguments.values() if isinstance(v, torch.Tensor))
    assert torch.equal(first, next(v for v in again.values() if isinstance(v, torch.Tensor)))
    found, expected = op.run(*op.prepare(arguments).values()), op.reference(**arguments)
    for mine, theirs in zip(outputs_of(found), outputs_of(expected), strict=True):
        if not theirs.numel():
            continue
        assert (mine.double() - theirs).abs().max() <= 2**-7 * theirs.abs().max()


def test_described_shapes_count_bytes() -> None:
    (norm, added) = shapes(find("rms_norm"), ("llama-3-8b",))
    x = 16384 * 4096 * 2
    # x, residual, y, total with their gradients; the weight with its own; rstd
    assert norm.size_bytes == added.size_bytes
    assert abs(norm.size_bytes - (8 * x + 2 * 4096 * 2 + 16384 * 4)) <= 2 * 4096 * 2
    assert norm.elements == 16384 * 4096


def test_fit_memory_cuts_to_the_largest_that_fits() -> None:
    op = find("rms_norm")
    call = Workload(name="norm", sizes={"M": 100_000, "N": 8192})
    whole = needed_bytes(op, call)
    assert fit_memory(op, call, whole) == (call, None)
    cut, note = fit_memory(op, call, whole // 3)
    assert note is not None
    assert f"M 100000 cut to {cut.sizes['M']}" in note
    assert needed_bytes(op, cut) <= whole // 3
    more = Workload(name="norm", sizes={"M": cut.sizes["M"] + 1, "N": 8192})
    assert needed_bytes(op, more) > whole // 3
    assert call_bytes(op, cut) < call_bytes(op, call) / 2
    with pytest.raises(UnsupportedError, match="not even one row"):
        fit_memory(op, call, 1000)


def test_fit_memory_halves_what_has_no_independent_axis() -> None:
    op = replace(find("rms_norm"), independent=None)
    call = Workload(name="norm", sizes={"M": 4096, "N": 100})
    cut, note = fit_memory(op, call, needed_bytes(op, call) // 3)
    assert cut.sizes == {"M": 1024, "N": 100}
    assert note is not None
    assert "M 4096 cut to 1024" in note
    with pytest.raises(UnsupportedError, match="not even one row"):
        fit_memory(op, call, 10)
    with pytest.raises(UnsupportedError, match="no independent axis"):
        beyond_int32(op, call)


def test_beyond_int32_raises_the_independent_axis_only() -> None:
    op = find("rms_norm")
    raised = beyond_int32(op, Workload(name="norm", sizes={"M": 16, "N": 8192}))
    rows, columns = raised.sizes["M"], raised.sizes["N"]
    assert columns == 8192
    assert rows * columns > 2**31 >= (rows - 1) * columns
