"""How the Hopper kernels of grouped_linear_packed cut a call up, and which calls they take."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tercet.ops.grouped_linear_packed.arguments import GroupedCall
from tercet.ops.grouped_linear_packed.hopper_decode import launch as cuda
from tercet.ops.grouped_linear_packed.hopper_decode.plan import cut_for, residents
from tercet.ops.grouped_linear_packed.hopper_prefill import launch as wide
from tercet.ops.grouped_linear_packed.hopper_prefill.plan import tile_rows
from tercet.ops.grouped_linear_packed.op import OP
from tercet.ops.grouped_linear_packed.triton import token_tiles
from tercet.packed_weight.expert_weights import ExpertWeights

SHARED_BYTES = 227 * 1024
CALL = {"scheme": "ternary-channel", "layout": "fragments"}


@given(
    rows=st.integers(1, 20000),
    experts=st.integers(1, 512),
    n=st.integers(1, 20000),
    k=st.integers(1, 2**17 - 1),
    x_bytes=st.sampled_from((1, 2)),
)
def test_a_few_rows_fit_the_shared_memory(
    rows: int, experts: int, n: int, k: int, x_bytes: int
) -> None:
    cut = cut_for({"T": rows, "E": experts, "N": n, "K": k}, x_bytes, 2, 132)
    assert cut.rows in (*range(1, 9), 32, 48)
    assert cut.most_tiles == token_tiles({"T": rows, "E": experts}, cut.rows)
    if cut.rows <= 8:
        # a turn of eight units of 2 bits past the end of K; pitch and results besides
        assert cut.rows * ((k + 1024) * x_bytes + 16) + 2560 <= SHARED_BYTES
        assert cut.slice_blocks in (0, 24)
        assert cut.slots in range(132, 132 * 5 + 1, 132)
        # of what a block takes at least, as many fit as there are slots, with what each has beside
        assert (cut.shared + 1200) * (cut.slots // 132) <= 228 * 1024
        assert cut.ahead % 512 == 0
        assert cut.ahead <= -(-k // 128) * 512


def test_the_calls_of_a_mixture_of_experts_on_132_multiprocessors() -> None:
    qwen = {"E": 128, "N": 1536, "K": 2048}
    found = [cut_for(qwen | {"T": 8 * tokens}, 1, 2, 132) for tokens in (1, 16, 32, 512)]
    assert [(cut.rows, cut.slots // 132, cut.ahead) for cut in found] == [
        (8, 4, 0), (8, 4, 2048), (8, 5, 2048), (48, 0, 0)
    ]  # fmt: skip
    # a fifth block has no room beside four
    assert 5 * (found[1].shared + 1024) > 228 * 1024 - 5 * 128
    assert found[2].shared == 0
    deepseek = {"E": 256, "N": 4096, "K": 7168}
    # 102 experts' parts of 24 row-blocks do not all run at once; those of 8 experts do
    found = [cut_for(deepseek | {"T": 8 * tokens}, 1, 2, 132) for tokens in (1, 16)]
    assert [(cut.slice_blocks, cut.slots // 132, cut.ahead) for cut in found] == [
        (0, 3, 0), (24, 3, 0)
    ]  # fmt: skip
    assert cut_for(deepseek | {"T": 8}, 2, 2, 132).rows == 4
    assert cut_for(deepseek | {"T": 4096}, 1, 2, 132).rows == 32


@given(
    experts=st.integers(1, 512),
    each=st.floats(0.001, 4),
    blocks=st.integers(1, 1250),
    fit=st.integers(1, 5),
)
def test_what_runs_at_once_has_room(experts: int, each: float, blocks: int, fit: int) -> None:
    resident = residents(experts, each, blocks, fit, 132)
    used = max(1.0, experts * (1 - math.exp(-each)))  # experts that have rows, on average
    if resident == 0:
        assert used * -(-blocks // 32) > fit * 132
    else:
        assert min(4, fit) <= resident <= fit


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("hopper", {"scheme": "ternary"}, "group"),
        ("hopper", {"scheme": "int4-channel-asym"}, "zero"),
        ("hopper", {"scheme": "int8-channel"}, "element"),
        ("hopper", {"activation": "none"}, "activation"),
        ("hopper_float", {"activation": "int8"}, "activation"),
        ("hopper_float", {"scheme": "int2-channel"}, "element"),
    ],
)
def test_what_they_leave_to_triton(name: str, changed: dict[str, str], said: str) -> None:
    requirement = OP.implementation(name).requirement
    taken = CALL | {"activation": "int8" if name == "hopper" else "none"}
    sizes = {"T": 64, "E": 8, "N": 64, "K": 64}
    assert requirement.unfit(sizes, OP.traits(taken)) is None
    reason = requirement.unfit(sizes, OP.traits(taken | changed))
    assert reason is not None
    assert said in reason


def test_sums_are_products_times_a_power_of_two() -> None:
    # a 2-bit code stands at the top of a byte: 64 times itself; as floats, ternary ones twice
    assert cuda.factor(torch.int8, 2) == 1 / 64
    assert cuda.factor(torch.int8, 4) == 1 / 16
    assert cuda.factor(torch.bfloat16, 2) == 0.5
    assert cuda.factor(torch.bfloat16, 4) == 1.0


def test_experts_of_many_rows_have_tiles_that_hold_most_of_them() -> None:
    found = {each: tile_rows({"T": 128 * each, "E": 128}) for each in (5, 8, 16, 32, 64, 1000)}
    assert found == {5: 32, 8: 32, 16: 32, 32: 48, 64: 64, 1000: 128}


@pytest.mark.parametrize(
    ("changed", "dtype", "taken"),
    [
        ({}, torch.bfloat16, True),
        ({}, torch.float16, True),
        ({}, torch.float32, False),
        ({"T": 512}, torch.bfloat16, False),
        ({"N": 1540}, torch.bfloat16, False),
        ({"E": 513, "T": 5130}, torch.bfloat16, False),
    ],
)
def test_which_calls_they_take(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], dtype: torch.dtype, taken: bool
) -> None:
    monkeypatch.setattr(wide, "fits_this_gpu", lambda: True)
    sizes = {"T": 4096, "E": 128, "N": 1536, "K": 2048} | changed
    assert wide.takes(sizes, torch.empty(1, dtype=dtype)) is taken


def test_many_rows_are_launched_as_tiles_by_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[tuple[int, ...]]()

    class Library:
        def tercet_experts_wide(self, task: object, *numbers: int) -> int:
            calls.append(numbers)
            return 0

    monkeypatch.setattr(wide, "fits_this_gpu", lambda: True)
    monkeypatch.setattr(wide, "library", lambda dtype: Library())
    monkeypatch.setattr(wide, "stream", lambda: 7)
    monkeypatch.setattr(cuda, "multiprocessors", lambda device: 132)
    n, k, offsets = 32, 128, torch.tensor([0, 30, 60, 90, 128], dtype=torch.int32)
    weight = ExpertWeights(
        codes=torch.zeros(8, 1, 32, 4, dtype=torch.int32),
        scale=torch.ones(8, 1, 16),
        zero=None,
        scheme="ternary-channel",
        shape=(4, n, k),
        layout="fragments",
    )
    x, x_scale = torch.zeros(128, k, dtype=torch.int8), torch.ones(128)
    cuda.forward(
        GroupedCall.from_arguments(
            x, offsets, *weight.parts, None, None, x_scale, "int8", torch.bfloat16
        )
    )
    assert calls == [(2, 48, 132, 7)]
