"""grouped_linear_packed: routing, stacking, what it equals, bad input, what it is compared with."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from tercet.errors import UnsupportedError
from tercet.formats import encode, parse_scheme
from tercet.harness.workloads.shapes import workloads_of
from tercet.kernel.contract import Workload
from tercet.kernel.interpreter.corrections import interpreting
from tercet.ops.grouped_linear_packed import (
    ExpertWeights,
    baselines,
    cpu,
    grouped_linear_packed,
    prepare,
    sort_by_expert,
    stack,
)
from tercet.ops.grouped_linear_packed import triton as in_triton
from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.cases import inputs, random_offsets, random_weights
from tercet.ops.grouped_linear_packed.op import OP
from tercet.ops.grouped_linear_packed.routing import sums_by_expert
from tercet.ops.linear_packed import linear_packed
from tercet.packed_weight.cpu.product import isas
from tercet.packed_weight.peers.peer import peer_of
from tercet.packed_weight.weight import decode_blocks


def _stacked(scheme: str, experts: int, n: int, k: int) -> ExpertWeights:
    return stack([prepare(each) for each in random_weights(scheme, (0, experts, n, k), 1)])


def _offsets(*bounds: int) -> torch.Tensor:
    return torch.tensor(bounds, dtype=torch.int32)


def test_golden_values() -> None:
    """Expert 1 is empty; scales of 0.5; the second row is weighted by 2."""
    scheme, levels = parse_scheme("ternary-channel"), torch.tensor([[1.0, -1.0, 0.0, 1.0]])
    scale = torch.full((1, 1), 0.5, dtype=torch.float16)
    signs = (levels, levels, -levels)
    weights = [prepare(encode(each * 0.5, scheme, scale, None)) for each in signs]
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [8.0, 0.0, 0.0, 0.0]])
    bias, probability = torch.tensor([[0.0], [100.0], [1.0]]), torch.tensor([1.0, 2.0])
    y = grouped_linear_packed(x, _offsets(0, 1, 1, 2), stack(weights), bias, row_weight=probability)
    assert torch.equal(y, torch.tensor([[1.5], [-6.0]]))


@pytest.mark.parametrize("scheme", ["ternary", "int4-asym", "nvfp4"])
def test_each_expert_is_linear_packed_to_the_bit(scheme: str) -> None:
    weight, x, bias = _stacked(scheme, 4, 33, 68), torch.randn(9, 68), torch.randn(4, 33)
    y = grouped_linear_packed(x, _offsets(0, 2, 2, 8, 9), weight, bias, activation="int8")
    for expert, rows in ((0, slice(0, 2)), (2, slice(2, 8)), (3, slice(8, 9))):
        alone = linear_packed(x[rows], weight.expert(expert), bias[expert], activation="int8")
        assert torch.equal(y[rows], alone)


def test_a_layer_of_experts_from_router_to_result() -> None:
    tokens, top_k, experts = 7, 3, 5
    packed = random_weights("nonary", (0, experts, 20, 64), 2)
    x, scores = torch.randn(tokens, 64), torch.randn(tokens, experts)
    probability, chosen = scores.softmax(-1).topk(top_k)
    order, offsets = sort_by_expert(chosen, experts)
    y = grouped_linear_packed(
        x[order // top_k],
        offsets,
        stack([prepare(each) for each in packed]),
        row_weight=probability.flatten()[order],
    )
    found = torch.empty_like(y).index_copy_(0, order, y).view(tokens, top_k, 20).sum(1)
    dense = torch.stack([x @ each.dequantize().T for each in packed], 1)
    picked = dense.gather(1, chosen[..., None].expand(-1, -1, 20))
    torch.testing.assert_close(found, (picked * probability[..., None]).sum(1))


def test_rows_are_sorted_by_expert_and_stay_in_order() -> None:
    order, offsets = sort_by_expert(torch.tensor([[3, 0], [0, 3], [3, 1]]), 5)
    assert order.tolist() == [1, 2, 5, 0, 3, 4]
    assert offsets.tolist() == [0, 2, 3, 3, 6, 6]
    assert offsets.dtype == torch.int32
    order, offsets = sort_by_expert(torch.empty((0, 2), dtype=torch.int32), 2)
    assert (order.numel(), offsets.tolist()) == (0, [0, 0, 0])


def test_sums_by_expert() -> None:
    found = sums_by_expert(torch.arange(8.0).view(4, 2), _offsets(0, 0, 3, 4, 4))
    assert found.tolist() == [[0, 0], [6, 9], [6, 7], [0, 0]]


def test_gradients_of_input_bias_and_probability() -> None:
    packed, offsets = random_weights("nonary", (0, 3, 20, 64), 3), _offsets(0, 4, 4, 6)
    x, bias = torch.randn(6, 64, requires_grad=True), torch.randn(3, 20, requires_grad=True)
    probability, way = torch.rand(6, requires_grad=True), torch.randn(6, 20)
    weight = stack([prepare(each) for each in packed])
    y = grouped_linear_packed(x, offsets, weight, bias, row_weight=probability)
    expert = torch.tensor([0, 0, 0, 0, 2, 2])
    dense = torch.stack([each.dequantize() for each in packed])[expert]
    right = (torch.einsum("tk,tnk->tn", x, dense) + bias[expert]) * probability[:, None]
    leaves = (x, bias, probability)
    found, expected = (torch.autograd.grad(each, leaves, way) for each in (y, right))
    for mine, theirs in zip(found, expected, strict=True):
        # a sum of products near 50 may cancel: its rounding stays
        torch.testing.assert_close(mine, theirs, rtol=1.3e-6, atol=5e-5)


@pytest.mark.parametrize("isa", isas())
def test_each_instruction_set_matches_the_reference(isa: str) -> None:
    for case in OP.cases[::3]:
        arguments = case.make(0)
        found = cpu.for_isa(isa)(GroupedCall.from_arguments(*OP.prepare(arguments).values()))
        limit = OP.tolerance(found.dtype).relative * OP.magnitude(**arguments)
        limit = limit + torch.finfo(found.dtype).smallest_normal
        expected = OP.reference(**arguments)
        no_number = found.isnan() & expected.isnan()
        assert (no_number | ((found.double() - expected).abs() <= limit)).all(), case.name


@pytest.mark.parametrize(("rows", "experts"), [(0, 3), (1, 128), (8, 128), (128, 128), (100, 7)])
def test_the_grid_holds_every_tile(rows: int, experts: int) -> None:
    sizes = {"T": rows, "E": experts}
    for most in (16, 64):
        bound = in_triton.token_tiles(sizes, most)
        assert bound <= rows / most + min(experts, rows)
        needed = list[int]()
        for seed in range(50):
            counts = random_offsets(rows, experts, seed, "one" if seed == 0 else "ragged").diff()
            needed.append(int(((counts + most - 1) // most).sum()))
        # the worst: all but one of the experts that can have rows have one
        least = min(experts, rows)
        if rows:
            needed.append(least - 1 + -(-(rows - least + 1) // most))
        assert max(needed) <= bound


def test_a_tile_ends_where_its_expert_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tile's program, other experts' rows keep what was there: theirs would hide it."""
    if not interpreting():
        pytest.skip("the grid is cut to one program by hand, which is interpreted")
    weight, x = _stacked("ternary", 2, 33, 64).to_layout("fragments"), torch.randn(8, 64)

    def poisoned(shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        return torch.full(shape, torch.nan, **options)

    for offsets, mine in ((_offsets(0, 3, 8), slice(0, 3)), (_offsets(0, 0, 8), slice(0, 8))):
        with monkeypatch.context() as patch:
            patch.setattr(in_triton, "token_tiles", lambda sizes, most: 1)
            patch.setattr(torch, "empty", poisoned)
            y = in_triton.forward(
                GroupedCall.from_arguments(
                    x, offsets, *weight.parts, None, None, None, "none", torch.float32
                )
            )
        expert = int(offsets[1] == 0)
        right = x[mine] @ decode_blocks(weight.expert(expert), slice(None))[:33].T
        torch.testing.assert_close(y[mine], right)
        assert y[mine.stop :].isnan().all()


def test_a_stack_keeps_every_expert_and_moves_whole() -> None:
    weights = [prepare(each) for each in random_weights("int4-asym", (0, 3, 20, 64), 1)]
    whole = stack(weights)
    assert whole.shape == (3, 20, 64)
    assert whole.size_bytes == sum(each.size_bytes for each in weights)
    there = whole.to_layout("fragments")
    assert there.codes.shape == (6, 2, 32, 4)
    for at, each in enumerate(weights):
        assert torch.equal(whole.expert(at).codes, each.codes)
        assert torch.equal(there.expert(at).codes, each.to_layout("fragments").codes)
        assert torch.equal(there.to_layout("rows16").expert(at).codes, each.codes)
    assert whole.to("meta").scale.device.type == "meta"


def test_refuses_to_stack_what_differs() -> None:
    def weight(scheme: str, n: int, k: int) -> Any:
        return prepare(random_weights(scheme, (0, 1, n, k), 1)[0])

    with pytest.raises(
        UnsupportedError, match=r"expert 1, int4-g64 \[20, 64\].*expert 0, int4-g64 \[16"
    ):
        stack([weight("int4", 16, 64), weight("int4", 20, 64)])
    with pytest.raises(UnsupportedError, match=r"nonary.* with expert 0, int4.*all must agree"):
        stack([weight("int4", 16, 64), weight("nonary", 16, 64)])
    with pytest.raises(UnsupportedError, match="at least one expert, got none"):
        stack([])


def test_bad_input_is_named() -> None:
    weight, x, offsets = _stacked("int4", 3, 20, 64), torch.ones(4, 64), _offsets(0, 1, 2, 4)
    with pytest.raises(UnsupportedError, match=r"x has shape \[4, 63\].*must be \[T, 64\]"):
        grouped_linear_packed(torch.ones(4, 63), offsets, weight)
    with pytest.raises(UnsupportedError, match=r"must be int32 \[experts \+ 1\]; `sort_by_expert`"):
        grouped_linear_packed(x, offsets.long(), weight)
    with pytest.raises(UnsupportedError, match="of 2 experts, the weight has 6 blocks"):
        grouped_linear_packed(x, offsets[1:], weight)
    for wrong in ((0, 1, 2, 3), (0, 3, 2, 4), (1, 1, 2, 4)):
        with pytest.raises(UnsupportedError, match="for 4 rows of x: they must rise from 0"):
            grouped_linear_packed(x, _offsets(*wrong), weight)
    with pytest.raises(UnsupportedError, match=r"bias is torch.float32 \[20\]: it must be"):
        grouped_linear_packed(x, offsets, weight, torch.ones(20))
    with pytest.raises(UnsupportedError, match=r"row_weight is torch.float16 \[4\]: it must be"):
        grouped_linear_packed(x, offsets, weight, row_weight=torch.ones(4).half())
    with pytest.raises(UnsupportedError, match="'int8', x_scale missing: codes come with their"):
        grouped_linear_packed(x.to(torch.int8), offsets, weight)
    with pytest.raises(UnsupportedError, match="x is on meta, the weight on cpu"):
        grouped_linear_packed(x.to("meta"), offsets, weight)


def test_calls_of_a_mixture_of_experts() -> None:
    found = {w.name: w for w in workloads_of(OP, "qwen3-30b-a3b", tensor_parallel=2)}
    up = found["qwen3-30b-a3b experts gate|up 16 tokens"]
    assert up.sizes == {"T": 128, "E": 128, "N": 768, "K": 2048}
    down = found["qwen3-30b-a3b experts down 1 tokens"]
    assert down.sizes == {"T": 8, "E": 128, "N": 2048, "K": 384}
    assert (up.options["row_weight"], down.options["row_weight"]) == (False, True)
    assert workloads_of(OP, "llama-3-8b") == ()


def _arguments(scheme: str = "ternary-channel", **options: Any) -> dict[str, Any]:
    sizes = {"T": 12, "E": 8, "N": 48, "K": 256}
    options = {"scheme": scheme, "top_k": 2, **options}
    return inputs(Workload(name="w", sizes=sizes, options=options), 1)


def test_drawn_rows_go_to_different_experts() -> None:
    counts = _arguments()["offsets"].diff()
    assert int(counts.sum()) == 12
    assert int(counts.max()) <= 6


def test_cost_counts_the_experts_that_have_rows() -> None:
    prepared = OP.prepare(_arguments())
    used = int((prepared["offsets"].diff() > 0).sum())
    assert used < 8
    each = 3 * 2 * 32 * 4 * 4 + 3 * 16 * 2
    spent = OP.cost(prepared)
    assert spent.bytes_read == used * each + 12 * 256 * 2 + 9 * 4
    assert spent.bytes_written == 12 * 48 * 2
    assert spent.flops == 2 * 12 * 48 * 256


@pytest.mark.parametrize(
    "options", [{}, {"row_weight": True}, {"activation": "int8", "codes": True}]
)
def test_torch_and_the_loop_are_near_the_reference(options: dict[str, Any]) -> None:
    arguments = _arguments(**options)
    expected = OP.reference(**arguments)
    for run, made in (("eager", "prepare_eager"), ("loop", "prepare_loop")):
        found = getattr(baselines, run)(**getattr(baselines, made)(arguments))
        assert found.dtype == torch.bfloat16
        assert float((found - expected).norm() / expected.norm()) < 5e-3


@pytest.mark.parametrize(("scheme", "bits"), [("ternary-channel", 2), ("int4-g128", 4)])
def test_a_peer_gets_the_very_weights(scheme: str, bits: int) -> None:
    arguments = _arguments(scheme)
    peer = peer_of(arguments)
    scale = peer.scale.float().repeat_interleave(peer.group or 256, 2)
    dense = torch.stack([each.dequantize() for each in arguments["weight"]])
    assert torch.equal(peer.levels.float() * scale, dense)
    assert peer.bits == bits
    words = baselines.prepare_read_only(arguments)["words"]
    used = int((arguments["offsets"].diff() > 0).sum())
    groups = 256 // (peer.group or 256)
    assert words.numel() * 4 == used * (48 * 256 * bits // 8 + 48 * groups * 2)


def test_what_no_peer_has_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="peers are given symmetric weights"):
        peer_of(_arguments("int4-asym"))
    with pytest.raises(UnsupportedError, match="Humming multiplies no row weights in"):
        baselines.prepare_humming(_arguments(row_weight=True))


def test_compiles_whole() -> None:
    weight, offsets = _stacked("nonary", 3, 20, 64), _offsets(0, 1, 1, 3)
    compiled = torch.compile(
        lambda x: functional.relu(grouped_linear_packed(x, offsets, weight)),
        backend="aot_eager",
        fullgraph=True,
    )
    x = torch.randn(3, 64)
    assert torch.equal(compiled(x), grouped_linear_packed(x, offsets, weight).relu())
