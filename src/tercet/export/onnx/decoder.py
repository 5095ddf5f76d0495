"""A decoder with a key-value cache as an ONNX graph.

    input_ids [B, T], attention_mask [B, P + T], past_key_values.I.key|value [B, H, P, D]
    -> logits [B, T, V], present.I.key|value [B, H, P + T, D]

Batch B, new positions T and past ones P are dynamic. Rows of a batch may be padded on the left or
the right: positions count the ones of attention_mask. Activations and cache are float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tercet.errors import UnsupportedError, unknown_name
from tercet.export.decoder_weights import DecoderWeights
from tercet.export.onnx.graph import CONTRIB, Graph
from tercet.export.onnx.quantized_blocks import QuantizedBlocks, quantized_blocks
from tercet.formats import PackedTensor


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Names that layers share: rotations [B, T, D/2] and, by window, masks [B, 1, T, P + T]."""

    cos: str
    sin: str
    masks: dict[int | None, str]


class OnnxDecoder:
    """Adds a whole decoder to a graph.

    Args:
        weights: of the decoder.
        graph: an empty graph.
        levels: accuracy_level of MatMulNBits by bits, see FAST_LEVELS.
    """

    def __init__(self, weights: DecoderWeights, graph: Graph, levels: Mapping[int, int]) -> None:
        self.weights = weights
        self.graph = graph
        self.levels = levels

    def build(self) -> None:
        """Inputs, layers, head and outputs."""
        graph, config = self.graph, self.weights.config
        ids = graph.input("input_ids", torch.int64, ("batch", "new"))
        mask = graph.input("attention_mask", torch.int64, ("batch", "length"))
        cache = ("batch", config.key_value_heads, "past", config.head_dim)
        for layer in range(config.layers):
            for part in ("key", "value"):
                graph.input(f"past_key_values.{layer}.{part}", torch.float32, cache)
        step = self._step(ids, mask)
        hidden, head = self._tokens(ids)
        for layer in range(config.layers):
            hidden = self._layer(layer, hidden, step)
        hidden = self._norm(self.weights.architecture.norm, hidden, config.hidden)
        if head is None:
            shape = (config.vocabulary, config.hidden)
            logits = self._linear(self.weights.architecture.head, hidden, shape)
        else:
            logits = self._product(self.weights.architecture.head, hidden, head)
        graph.op("Identity", logits, made=("logits",))
        graph.output("logits", ("batch", "new", config.vocabulary))
        cache = ("batch", config.key_value_heads, "length", config.head_dim)
        for layer in range(config.layers):
            for part in ("key", "value"):
                graph.output(f"present.{layer}.{part}", cache)
        self.weights.finish()

    def _step(self, ids: str, mask: str) -> _Step:
        graph = self.graph
        past = graph.op("Shape", "past_key_values.0.key", start=2, end=3)
        length = graph.op("Shape", mask, start=1, end=2)
        first, axis = graph.numbers(0), graph.numbers(1)
        counted = graph.op("CumSum", mask, graph.number(1))
        # padding before the first token counts from 0 too: nothing looks at it
        positions = graph.op("Max", graph.op("Sub", counted, graph.number(1)), graph.number(0))
        positions = graph.op("Slice", positions, past, length, axis)
        turned = graph.op("Unsqueeze", graph.cast(positions, torch.float32), graph.numbers(2))
        inverse = graph.weight("rotary.inverse", self.weights.inverse.view(1, 1, -1))
        angle = graph.op("Mul", turned, inverse)
        end = graph.op("Squeeze", length, first)
        keys = graph.op("Range", graph.number(0), end, graph.number(1))
        queries = graph.op("Range", graph.op("Squeeze", past, first), end, graph.number(1))
        distance = graph.op("Sub", graph.op("Unsqueeze", queries, axis), keys)
        itself = graph.op("Equal", distance, graph.number(0))
        there = graph.op("Unsqueeze", graph.cast(mask, torch.bool), graph.numbers(1, 2))
        # a position that is padding sees itself, or its softmax over nothing would give NaN
        there = graph.op("Or", there, itself)
        seen = graph.op("And", there, graph.op("GreaterOrEqual", distance, graph.number(0)))
        masks: dict[int | None, str] = {}
        for window in dict.fromkeys(self.weights.config.windows):
            near = graph.op("Less", distance, graph.number(window)) if window is not None else None
            masks[window] = seen if near is None else graph.op("And", seen, near)
        return _Step(cos=graph.op("Cos", angle), sin=graph.op("Sin", angle), masks=masks)

    def _layer(self, index: int, hidden: str, step: _Step) -> str:
        graph, config = self.graph, self.weights.config
        name = self.weights.architecture.layer.format(index)
        x = self._norm(f"{name}.input_layernorm", hidden, config.hidden)
        hidden = graph.op("Add", hidden, self._attention(f"{name}.self_attn", index, x, step))
        x = self._norm(f"{name}.post_attention_layernorm", hidden, config.hidden)
        return graph.op("Add", hidden, self._mlp(f"{name}.mlp", x))

    def _attention(self, name: str, index: int, x: str, step: _Step) -> str:
        graph, config = self.graph, self.weights.config
        queries, keys = (n * config.head_dim for n in (config.heads, config.key_value_heads))
        bias = config.qkv_bias
        query = self._linear(f"{name}.q_proj", x, (queries, config.hidden), bias)
        key = self._linear(f"{name}.k_proj", x, (keys, config.hidden), bias)
        value = self._linear(f"{name}.v_proj", x, (keys, config.hidden), bias)
        if self.weights.architecture.qk_norm:
            query = self._head_norm(f"{name}.q_norm", query, config.heads)
            key = self._head_norm(f"{name}.k_norm", key, config.key_value_heads)
        rotation = (step.cos, step.sin)
        query = graph.op("RotaryEmbedding", query, *rotation, num_heads=config.heads)
        key = graph.op("RotaryEmbedding", key, *rotation, num_heads=config.key_value_heads)
        past = [f"past_key_values.{index}.{part}" for part in ("key", "value")]
        present = [f"present.{index}.{part}" for part in ("key", "value")]
        mixed = graph.op(
            "Attention",
            *(query, key, value, step.masks[config.windows[index]], *past),
            made=(f"{name}.mixed", *present),
            q_num_heads=config.heads,
            kv_num_heads=config.key_value_heads,
        )
        return self._linear(f"{name}.o_proj", mixed, (config.hidden, queries), config.output_bias)

    def _mlp(self, name: str, x: str) -> str:
        config = self.weights.config
        wide, bias = (config.intermediate, config.hidden), config.mlp_bias
        gate = self._activation(self._linear(f"{name}.gate_proj", x, wide, bias))
        up = self._linear(f"{name}.up_proj", x, wide, bias)
        product = self.graph.op("Mul", gate, up)
        return self._linear(f"{name}.down_proj", product, (config.hidden, wide[0]), bias)

    def _activation(self, x: str) -> str:
        graph, kind = self.graph, self.weights.config.activation
        match kind:
            case "silu":
                return graph.op("Mul", x, graph.op("Sigmoid", x))
            case "gelu":
                return graph.op("Gelu", x)
            case "gelu_pytorch_tanh":
                return graph.op("Gelu", x, approximate="tanh")
            case "relu":
                return graph.op("Relu", x)
            case _:
                raise UnsupportedError(unknown_name("activation", kind, ("silu", "gelu", "relu")))

    def _norm(self, module: str, x: str, size: int) -> str:
        graph, epsilon = self.graph, self.weights.config.norm_epsilon
        name = f"{module}.weight"
        weight = graph.float32(graph.weight(name, self.weights.tensor(name, (size,))))
        return graph.op("RMSNormalization", x, weight, axis=-1, epsilon=epsilon, name=module)

    def _head_norm(self, module: str, x: str, heads: int) -> str:
        graph, size = self.graph, self.weights.config.head_dim
        split = graph.op("Reshape", x, graph.numbers(0, 0, heads, size))
        return graph.op(
            "Reshape", self._norm(module, split, size), graph.numbers(0, 0, heads * size)
        )

    def _linear(self, module: str, x: str, shape: tuple[int, int], bias: bool = False) -> str:
        """x [B, T, K] W^T + bias -> [B, T, N]."""
        graph, found = self.graph, self.weights.weight(module, shape)
        if isinstance(found, PackedTensor):
            y = self._product(module, x, self._blocks(module, found))
        else:
            y = self._product(module, x, graph.weight(f"{module}.weight", found))
        if not bias:
            return y
        name = f"{module}.bias"
        offset = graph.weight(name, self.weights.tensor(name, shape[:1]))
        return graph.op("Add", y, graph.float32(offset))

    def _product(self, module: str, x: str, weight: "str | _Blocks") -> str:
        graph = self.graph
        if isinstance(weight, str):
            turned = graph.op("Transpose", graph.float32(weight), perm=[1, 0])
            return graph.op("MatMul", x, turned, name=module)
        rows, columns = weight.held.shape
        return graph.op(
            "MatMulNBits",
            *(x, weight.codes, graph.float32(weight.scale), *weight.zero),
            name=module,
            domain=CONTRIB,
            bits=weight.held.bits,
            block_size=weight.held.block,
            N=rows,
            K=columns,
            accuracy_level=self.levels[weight.held.bits],
        )

    def _blocks(self, module: str, found: PackedTensor) -> "_Blocks":
        graph, held = self.graph, quantized_blocks(found, module)
        zero = [] if held.zero is None else [graph.weight(f"{module}.weight_zero", held.zero)]
        return _Blocks(
            held=held,
            codes=graph.weight(f"{module}.weight_packed", held.codes),
            scale=graph.weight(f"{module}.weight_scale", held.scale),
            zero=zero,
        )

    def _tokens(self, ids: str) -> "tuple[str, str | _Blocks | None]":
        """Rows [B, T, hidden] of the embedding, and its weight for a head that is tied to it."""
        graph, config = self.graph, self.weights.config
        module = self.weights.architecture.embedding
        found = self.weights.weight(module, (config.vocabulary, config.hidden))
        if isinstance(found, Tensor):
            table = graph.weight(f"{module}.weight", found)
            rows = graph.cast(graph.op("Gather", table, ids, name=module), torch.float32)
            return rows, table if config.tied else None
        weight = self._blocks(module, found)
        # the same bytes serve a tied head, which wants them cut into blocks
        flat = (weight.held.shape[0], weight.held.codes.shape[1] * weight.held.codes.shape[2])
        codes = graph.same_bytes(f"{module}.weight_rows", weight.codes, flat)
        rows = graph.op(
            "GatherBlockQuantized",
            *(codes, ids, graph.float32(weight.scale), *weight.zero),
            name=module,
            domain=CONTRIB,
            bits=weight.held.bits,
            block_size=weight.held.block,
            gather_axis=0,
            quantize_axis=1,
        )
        if config.hidden % weight.held.block:
            ends = (graph.numbers(0), graph.numbers(config.hidden), graph.numbers(2))
            rows = graph.op("Slice", rows, *ends)
        return rows, weight if config.tied else None


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """A packed weight in the graph: the names of its tensors."""

    held: QuantizedBlocks
    codes: str
    scale: str
    zero: list[str]
