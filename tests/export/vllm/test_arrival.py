"""What a layer of vLLM's makes of the tensors of a packed checkpoint."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.vllm.arrival import Arrival
from tercet.export.vllm.shard_of import shard_of
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.formats.shard import Shard
from tercet.models.input_transform import hadamard_transform

COLUMNS = 192
CPU = torch.device("cpu")


def packed(name: str, rows: int, seed: int) -> PackedTensor:
    values = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed))
    scheme = parse_scheme(name)
    return encode(values, scheme, *fit(values, scheme, "absmax"))


def whole(shape: tuple[int, int]) -> Shard:
    return shard_of(shape, shape, 0, 1, "m")


def send(arrival: Arrival, index: int, weight: PackedTensor) -> None:
    for part, tensor in weight.parts().items():
        arrival.take(index, f"weight_{part}", tensor)


def layer(formats: tuple[str, ...], rows: tuple[int, ...]) -> tuple[Arrival, list[PackedTensor]]:
    weights = [
        packed(name, count, seed)
        for seed, (name, count) in enumerate(zip(formats, rows, strict=True))
    ]
    modules = [
        (f"layer.{i}", PackedModule(format=w.scheme.name, shape=w.shape))
        for i, w in enumerate(weights)
    ]
    return Arrival(modules, [whole(w.shape) for w in weights]), weights


def inputs() -> Tensor:
    return torch.randn(5, COLUMNS, generator=torch.Generator().manual_seed(99))


@pytest.mark.parametrize(
    ("formats", "rows", "parts"),
    [
        (("ternary", "ternary", "ternary"), (48, 16, 16), 1),
        (("nonary", "nonary", "nonary"), (48, 16, 16), 1),
        # engines multiply these as one, we need not: three formats, and rows that fill no block
        (("ternary", "nonary", "int4-g32-asym"), (48, 16, 16), 3),
        (("ternary", "ternary"), (24, 16), 2),
    ],
)
def test_fused_weights_multiply_as_each_alone(
    formats: tuple[str, ...], rows: tuple[int, ...], parts: int
) -> None:
    arrival, weights = layer(formats, rows)
    for index in reversed(range(len(weights))):
        send(arrival, index, weights[index])
    product = arrival.product(CPU, sum(rows))
    x, bias = inputs(), torch.arange(sum(rows)).float()
    expected = x.double() @ torch.cat([w.dequantize(torch.float64) for w in weights]).T + bias
    assert len(product.parts) == parts
    torch.testing.assert_close(product(x, bias).double(), expected, rtol=1e-5, atol=1e-4)


def test_shards_of_two_ranks_add_up() -> None:
    weight = packed("ternary", 32, 1)
    entry = PackedModule(format="ternary-g64", shape=weight.shape)
    total = torch.zeros(5, 32)
    for rank in range(2):
        # 96 columns: half a group of 64, and no multiple of the five weights of a byte
        shard = shard_of(weight.shape, (32, 96), rank, 2, "m")
        arrival = Arrival([("m", entry)], [shard])
        send(arrival, 0, weight)
        total += arrival.product(CPU, 32)(inputs()[:, rank * 96 : (rank + 1) * 96])
    expected = inputs().double() @ weight.dequantize(torch.float64).T
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-4)


def test_a_filled_up_vocabulary_has_logits_of_zero_and_rows_by_id() -> None:
    weight = packed("int8-g64", 40, 3)
    entry = PackedModule(format="int8-g64", shape=weight.shape)
    arrival = Arrival([("head", entry)], [whole(weight.shape)])
    send(arrival, 0, weight)
    product = arrival.product(CPU, 64)
    logits = product(inputs())
    assert logits.shape == (5, 64)
    assert torch.equal(logits[:, 40:], torch.zeros(5, 24))
    assert bool((logits[:, :40] != 0).all())
    ids = torch.tensor([[3, 39], [0, 7]])
    assert torch.equal(product.rows_of(ids, torch.float32), weight.dequantize()[ids])


def test_scales_and_rotations_of_the_input_are_applied_to_the_shard() -> None:
    weight, scale = packed("nonary", 16, 4), (torch.arange(COLUMNS) % 7 + 1).half()
    entry = PackedModule(format="nonary-g64", shape=weight.shape, hadamard=32, input_scale=True)
    total = torch.zeros(5, 16)
    for rank in range(2):
        arrival = Arrival([("m", entry)], [shard_of(weight.shape, (16, 96), rank, 2, "m")])
        send(arrival, 0, weight)
        arrival.take(0, "input_scale", scale)
        total += arrival.product(CPU, 16)(inputs()[:, rank * 96 : (rank + 1) * 96])
    turned = hadamard_transform(inputs().double() * scale.double(), 32)
    expected = turned @ weight.dequantize(torch.float64).T
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-3)


def test_weights_whose_inputs_are_scaled_apart_stay_apart() -> None:
    weights = [packed("ternary", 16, seed) for seed in (1, 2)]
    scales = [torch.full((COLUMNS,), factor).half() for factor in (2.0, 0.5)]
    modules = [
        (f"layer.{i}", PackedModule(format="ternary-g64", shape=(16, COLUMNS), input_scale=True))
        for i in range(2)
    ]
    arrival = Arrival(modules, [whole(w.shape) for w in weights])
    for index in range(2):
        send(arrival, index, weights[index])
        arrival.take(index, "input_scale", scales[index])
    product = arrival.product(CPU, 32)
    expected = torch.cat(
        [
            inputs() * scale.float() @ weight.dequantize().T
            for weight, scale in zip(weights, scales, strict=True)
        ],
        1,
    )
    torch.testing.assert_close(product(inputs()), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("more", [{}, {"hadamard": 32, "activation": "int8_token"}])
def test_it_is_one_graph_for_the_compiler(more: dict[str, Any]) -> None:
    """vLLM compiles whole models and takes no break in their graph."""
    weights = [packed("ternary", 32, 1), packed("nonary", 16, 2)]
    modules = [
        (f"layer.{i}", PackedModule(format=w.scheme.name, shape=w.shape, **more))
        for i, w in enumerate(weights)
    ]
    arrival = Arrival(modules, [whole(w.shape) for w in weights])
    for index, weight in enumerate(weights):
        send(arrival, index, weight)
    product = arrival.product(CPU, 48)
    compiled = torch.compile(product, backend="eager", fullgraph=True)
    assert torch.equal(compiled(inputs(), torch.ones(48)), product(inputs(), torch.ones(48)))


def test_a_rotation_across_ranks_is_refused() -> None:
    entry = PackedModule(format="nonary-g64", shape=(16, COLUMNS), hadamard=64)
    with pytest.raises(UnsupportedError, match="m: its input is rotated in blocks of 64"):
        Arrival([("m", entry)], [shard_of(entry.shape, (16, 96), 0, 2, "m")])


def test_what_never_came_is_named() -> None:
    arrival, weights = layer(("ternary", "ternary"), (16, 16))
    send(arrival, 0, weights[0])
    arrival.take(1, "weight_packed", weights[1].codes)
    with pytest.raises(CheckpointError, match=r"hold no layer\.1\.weight_scale: "):
        arrival.product(CPU, 32)


def test_a_tensor_of_another_shape_is_refused() -> None:
    arrival, weights = layer(("ternary",), (16,))
    with pytest.raises(CheckpointError, match=r"layer\.0\.weight_packed: config.json calls for"):
        arrival.take(0, "weight_packed", weights[0].codes[:, :-1])


def test_a_flipped_byte_is_refused() -> None:
    arrival, weights = layer(("ternary",), (16,))
    broken = weights[0].codes.clone()
    broken[3, 5] = 250  # 243 and above are no five trits
    arrival.take(0, "weight_scale", weights[0].scale)
    with pytest.raises(CheckpointError, match=r"layer\.0\.packed: 1 words are none of .*damaged"):
        arrival.take(0, "weight_packed", broken)
