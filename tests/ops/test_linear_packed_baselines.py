"""What linear_packed is compared with: torch's products are right, peers get our very weight."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tercet.errors import UnsupportedError
from tercet.harness.bench import direction as bench_direction
from tercet.harness.timing import ceilings
from tercet.kernel.contract import Workload
from tercet.ops.linear_packed import baselines
from tercet.ops.linear_packed.cases import inputs, random_weight
from tercet.ops.linear_packed.op import OP
from tercet.packed_weight.peers.peer import peer_of

SCHEMES = {
    "ternary-channel": 2,
    "ternary-g128": 2,
    "nonary-channel": 4,
    "int3-g64": 4,
    "int4-g128": 4,
    "int8-channel": 8,
    "fp8_e4m3-channel": 8,
}


def _arguments(scheme: str, m: int = 5, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    sizes = {"M": m, "N": 48, "K": 256}
    return inputs(Workload(name="w", sizes=sizes, dtype=dtype, options={"scheme": scheme}), 1)


def _coded(arguments: dict[str, Any]) -> dict[str, Any]:
    x = arguments["x"].float()
    scale = x.abs().amax(-1) / 127
    codes = (x / scale[:, None]).round().to(torch.int8)
    return {**arguments, "x": codes, "x_scale": scale, "activation": "int8", "out_dtype": None}


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_torch_products_are_near_the_reference(scheme: str) -> None:
    arguments = _arguments(scheme)
    expected = OP.reference(**arguments)
    dense = baselines.eager(**baselines.prepare_eager(arguments))
    assert dense.dtype == torch.bfloat16
    assert _off(dense, expected) < 3e-3
    assert _off(baselines.fp8(**baselines.prepare_fp8(arguments)), expected) < 0.06


def test_the_uncompressed_weight_is_as_large_but_of_many_values() -> None:
    arguments = _arguments("ternary-channel")
    packed = baselines.prepare_eager(arguments)["weight"].double()
    weight = baselines.prepare_uncompressed(arguments)["weight"].double()
    assert weight.shape == packed.shape
    assert float(weight.square().mean() / packed.square().mean()) == pytest.approx(1, abs=0.05)
    assert len(weight.unique()) > 20 * len(packed.unique())


def test_codes_are_dense_again_for_torch() -> None:
    arguments = _arguments("ternary-channel")
    coded = _coded(arguments)
    x = coded["x"].double() * coded["x_scale"][:, None]
    expected = x @ arguments["weight"].dequantize(torch.float64).T
    dense = baselines.eager(**baselines.prepare_eager(coded))
    assert dense.dtype == torch.bfloat16
    assert _off(dense, expected) < 5e-3


def test_eager_adds_bias_and_residual() -> None:
    arguments = _arguments("int8-channel", dtype=torch.float32)
    bias, residual = torch.randn(48), torch.randn(5, 48)
    given = {**arguments, "bias": bias, "residual": residual}
    expected = OP.reference(**arguments) + bias + residual
    assert _off(baselines.eager(**baselines.prepare_eager(given)), expected) < 1e-6


@pytest.mark.parametrize(("scheme", "bits"), SCHEMES.items())
def test_a_peer_gets_the_very_weight(scheme: str, bits: int) -> None:
    arguments = _arguments(scheme)
    peer = peer_of(arguments)
    levels = peer.levels
    if levels.dtype == torch.uint8:
        levels = levels.view(torch.float8_e4m3fn)
    group = peer.group or 256
    dense = levels.float() * peer.scale.float().repeat_interleave(group, 1)
    assert torch.equal(dense, arguments["weight"].dequantize())
    assert peer.bits == bits
    assert peer.dtype == torch.bfloat16
    if levels.dtype == torch.int8:
        assert int(levels.abs().max()) <= 2 ** (bits - 1)


def test_a_peer_is_told_what_x_is() -> None:
    arguments = _arguments("ternary-channel")
    assert (peer_of(arguments).activation, peer_of(arguments).x_scale) == ("none", None)
    assert peer_of({**arguments, "activation": "int8"}).activation == "int8"
    coded = _coded(arguments)
    peer = peer_of(coded)
    assert peer.activation == "int8"
    assert peer.x is coded["x"]
    assert peer.x_scale is coded["x_scale"]
    assert peer.dtype == torch.bfloat16


@pytest.mark.parametrize("scheme", ["int4-asym", "int8-tensor", "mxfp4", "nvfp4", "int4-b16x32"])
def test_what_no_peer_has_is_refused(scheme: str) -> None:
    weight = random_weight(scheme, 48, 256, seed=1)
    with pytest.raises(UnsupportedError, match="peers are given"):
        peer_of({"x": torch.zeros(1, 256), "weight": weight, "bias": None})


def test_the_read_only_buffer_is_as_large_as_the_packed_weight() -> None:
    words = baselines.prepare_read_only(_arguments("nonary-channel"))["words"]
    assert words.numel() * 4 == 48 * 256 * 4 // 8 + 48 * 2
    assert int(words.min()) >= 0
    # the kernel's "never" is 2^31 - 1, which no xor of smaller powers reaches
    assert int(words.max()) < 1 << 30


@pytest.fixture
def grid(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/kernels/linear_packed.py")


def test_the_decode_part_is_every_shape_at_up_to_64_tokens(grid: ModuleType) -> None:
    (part,), options = grid.parsed(["decode"])
    workloads = tuple(part.workloads())
    assert len(workloads) == 9 * 7
    assert {workload.sizes["M"] for workload in workloads} == {1, 2, 4, 8, 16, 32, 64}
    assert {str(workload.options["scheme"]) for workload in workloads} == {"ternary-channel"}
    assert all(workload.options["codes"] is True for workload in workloads)
    assert len({workload.name for workload in workloads}) == len(workloads)
    assert "read only" in part.peers
    assert options.limit < 180


def test_an_option_replaces_one_side_of_the_grid(grid: ModuleType) -> None:
    words = "prefill --tokens 8 --shape 96x64 --scheme int4-g128 --activation fp8 --baseline eager"
    (part,), _ = grid.parsed(words.split())
    (workload,) = part.workloads()
    assert dict(workload.sizes) == {"M": 8, "N": 96, "K": 64}
    assert dict(workload.options) == {"scheme": "int4-g128", "activation": "fp8_e4m3"}
    assert part.peers == ["eager"]


def test_shares_are_all_of_the_grid_and_no_call_twice(grid: ModuleType) -> None:
    parts = list(grid.PARTS.values())

    def names(share: tuple[int, int]) -> list[str]:
        return [call.name for _, calls in grid.calls_of(parts, share) for call in calls]

    everything = names((1, 1))
    assert len(set(everything)) == len(everything)
    assert set(everything) == {call.name for part in parts for call in part.workloads()}
    halves = (names((1, 2)), names((2, 2)))
    assert sorted((*halves[0], *halves[1])) == sorted(everything)
    # a weight is drawn, and its peers' kernels are compiled, in one place
    weights = [{name.rpartition(" ")[0] for name in half} for half in halves]
    assert not weights[0] & weights[1]


@pytest.mark.parametrize("words", ["--share 0/2", "--share 3/2", "nothing"])
def test_what_is_no_part_or_share_is_refused(
    grid: ModuleType, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        grid.parsed(words.split())
    said = capsys.readouterr().err
    assert "write I/N, with I from 1 to N" in said or "no part 'nothing': there are" in said


def test_calls_of_many_tokens_are_timed_alone(grid: ModuleType) -> None:
    parts, options = grid.parsed(["choice", "--device", "cpu", "--implementation", "torch"])
    kinds = grid._alike(parts[0], tuple(parts[0].workloads()), options)
    assert {many: {call.sizes["M"] for call in calls} for _, many, calls in kinds} == {
        False: {1, 16, 64},
        True: {1024},
    }
    assert all(names == ["torch"] for names, _, _ in kinds)


def test_every_peer_of_a_part_is_a_baseline_of_the_op(grid: ModuleType) -> None:
    known = {baseline.name for baseline in OP.baselines}
    for part in grid.PARTS.values():
        assert set(part.peers) <= known
        assert set(part.activations) <= set(grid.ACTIVATIONS)


def test_the_script_times_a_workload(
    grid: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(ceilings._COPY_BYTES, "cpu", 1 << 20)
    monkeypatch.setitem(ceilings._SIDE, "cpu", 64)
    monkeypatch.setattr(bench_direction, "cache_bytes", lambda device: 16 << 10)
    out = tmp_path / "records.jsonl"
    words = "decode --shape 64x256 --tokens 3 --activation none --device cpu --seconds 0.02"
    words += f" --implementation torch --baseline eager --out {out}"
    assert grid.run(*grid.parsed(words.split()))
    printed = capsys.readouterr().out
    assert "ternary-channel none 64x256 M=3: eager" in printed
    assert "torch" in printed
    assert len(out.read_text().splitlines()) == 2


def test_a_workload_of_floats_is_no_call_of_int8s_implementations() -> None:
    """A workload that names no activation has none, as a call has."""
    sizes = {"M": 64, "N": 4096, "K": 4096}
    options = {"scheme": "ternary-channel"}
    floats = Workload(name="w", sizes=sizes, dtype=torch.bfloat16, options=options)
    traits = OP.context(floats, "cuda").options
    assert traits["activation"] == "none"
    refused = {
        each.name: each.requirement.unfit(sizes, traits)
        for each in OP.implementations
        if each.name.startswith("hopper_prefill")
    }
    assert refused["hopper_prefill_float"] is None
    assert refused["hopper_prefill"] is not None
    assert refused["hopper_prefill_fp8"] is not None
