"""A decoder as an OpenVINO model that keeps its own key-value cache.

    input_ids [B, T], attention_mask [B, P + T], position_ids [B, T], beam_idx [B] -> logits

logits [B, T, V] float32. The cache is the state of an infer request: `reset_state` empties it,
beam_idx says which row of the last step each row goes on from. These are the inputs that
openvino-genai and optimum-intel give a model.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError, unknown_name
from tercet.export.decoder_weights import DecoderWeights
from tercet.export.openvino.constants import Constants
from tercet.formats import PackedTensor

# Where the model says of how many columns OpenVINO makes int8 codes with a scale; 0 is none. In
# bfloat16, its own choice on CPUs that multiply it, 2026.4 lacks that product for u2, and fails.
QUANTIZED_INPUTS = ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"]


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What all layers share.

    Attributes:
        cos: [B, 1, T, D].
        sin: like cos.
        masks: by window, which positions each new one sees: bool [B, 1, T, P + T].
        rows: beam_idx.
        empty: an empty cache [B, H, 0, D].
    """

    cos: Any
    sin: Any
    masks: dict[int | None, Any]
    rows: Any
    empty: Any


class OpenvinoDecoder:
    """Builds the model.

    Args:
        weights: of the decoder.
        openvino: the module `openvino`.
        ops: its operator set.
    """

    def __init__(self, weights: DecoderWeights, openvino: Any, ops: Any) -> None:
        self.weights = weights
        self.openvino = openvino
        self.ops = ops
        self.constants = Constants(openvino=openvino, ops=ops)
        self._updates: list[Any] = []

    def build(self) -> Any:
        """The `openvino.Model`."""
        ops, config = self.ops, self.weights.config
        ids = self._input("input_ids", 2, "i64")
        mask = self._input("attention_mask", 2, "i64")
        positions = self._input("position_ids", 2, "i64")
        rows = self._input("beam_idx", 1, "i32")
        step = self._step(ids, mask, positions, rows)
        shape = (config.vocabulary, config.hidden)
        table = self._weight(self.weights.architecture.embedding, shape)
        hidden = ops.gather(table, ids, self._number(0))
        for layer in range(config.layers):
            hidden = self._layer(layer, hidden, step)
        hidden = self._norm(self.weights.architecture.norm, hidden, config.hidden)
        head = table if config.tied else self._weight(self.weights.architecture.head, shape)
        logits = ops.result(ops.matmul(hidden, head, False, True))
        logits.output(0).set_names({"logits"})
        self.weights.finish()
        inputs = [ids, mask, positions, rows]
        model = self.openvino.Model([logits], self._updates, inputs, "decoder")
        if self._holds_u2(model):
            model.set_rt_info("0", QUANTIZED_INPUTS)
        return model

    def _holds_u2(self, model: Any) -> bool:
        constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
        return any(node.get_element_type() == self.openvino.Type.u2 for node in constants)

    def _input(self, name: str, rank: int, kind: str) -> Any:
        made = self.ops.parameter([-1] * rank, getattr(self.openvino.Type, kind), name=name)
        made.output(0).set_names({name})
        return made

    def _number(self, value: int) -> Any:
        return self.constants.plain(torch.tensor(value))

    def _numbers(self, *values: int) -> Any:
        return self.constants.plain(torch.tensor(values))

    def _step(self, ids: Any, mask: Any, positions: Any, rows: Any) -> _Step:
        ops, config = self.ops, self.weights.config
        turned = ops.multiply(
            ops.unsqueeze(ops.convert(positions, "f32"), self._numbers(1, 3)),
            self.constants.plain(self.weights.inverse.view(1, 1, 1, -1)),
        )
        angle = ops.concat([turned, turned], -1)
        length = ops.gather(ops.shape_of(mask), self._number(1), self._number(0))
        new = ops.gather(ops.shape_of(ids), self._number(1), self._number(0))
        keys = ops.range(self._number(0), length, self._number(1), "i64")
        queries = ops.range(ops.subtract(length, new), length, self._number(1), "i64")
        distance = ops.subtract(ops.unsqueeze(queries, self._number(1)), keys)
        itself = ops.equal(distance, self._number(0))
        there = ops.unsqueeze(ops.not_equal(mask, self._number(0)), self._numbers(1, 2))
        # a position that is padding sees itself, or its softmax over nothing would give NaN
        seen = ops.logical_and(
            ops.logical_or(there, itself), ops.greater_equal(distance, self._number(0))
        )
        masks: dict[int | None, Any] = {}
        for window in dict.fromkeys(config.windows):
            near = ops.less(distance, self._number(window)) if window is not None else None
            masks[window] = seen if near is None else ops.logical_and(seen, near)
        sizes = self._numbers(config.key_value_heads, 0, config.head_dim)
        batch = ops.gather(ops.shape_of(ids), self._numbers(0), self._number(0))
        empty = ops.broadcast(self.constants.plain(torch.zeros(())), ops.concat([batch, sizes], 0))
        return _Step(cos=ops.cos(angle), sin=ops.sin(angle), masks=masks, rows=rows, empty=empty)

    def _layer(self, index: int, hidden: Any, step: _Step) -> Any:
        ops, config = self.ops, self.weights.config
        name = self.weights.architecture.layer.format(index)
        x = self._norm(f"{name}.input_layernorm", hidden, config.hidden)
        hidden = ops.add(hidden, self._attention(f"{name}.self_attn", index, x, step))
        x = self._norm(f"{name}.post_attention_layernorm", hidden, config.hidden)
        return ops.add(hidden, self._mlp(f"{name}.mlp", x))

    def _attention(self, name: str, index: int, x: Any, step: _Step) -> Any:
        ops, config = self.ops, self.weights.config
        query = self._heads(f"{name}.q_proj", f"{name}.q_norm", x, config.heads)
        key = self._heads(f"{name}.k_proj", f"{name}.k_norm", x, config.key_value_heads)
        value = self._heads(f"{name}.v_proj", None, x, config.key_value_heads)
        key = self._append_to_cache(f"{index}.key", self._apply_rope(key, step), step)
        value = self._append_to_cache(f"{index}.value", value, step)
        mixed = ops.scaled_dot_product_attention(
            self._apply_rope(query, step),
            self._repeat_heads(key),
            self._repeat_heads(value),
            step.masks[config.windows[index]],
            causal=False,
        )
        wide = config.heads * config.head_dim
        mixed = ops.transpose(mixed, self._numbers(0, 2, 1, 3))
        mixed = ops.reshape(mixed, self._numbers(0, 0, wide), True)
        return self._linear(f"{name}.o_proj", mixed, (config.hidden, wide), config.output_bias)

    def _heads(self, module: str, norm: str | None, x: Any, heads: int) -> Any:
        """A projection of x [B, T, hidden] as heads [B, heads, T, D]."""
        ops, config = self.ops, self.weights.config
        shape = (heads * config.head_dim, config.hidden)
        split = self._numbers(0, 0, heads, config.head_dim)
        y = ops.reshape(self._linear(module, x, shape, config.qkv_bias), split, True)
        if norm is not None and self.weights.architecture.qk_norm:
            y = self._norm(norm, y, config.head_dim)
        return ops.transpose(y, self._numbers(0, 2, 1, 3))

    def _apply_rope(self, x: Any, step: _Step) -> Any:
        ops = self.ops
        halves = ops.split(x, self._number(-1), 2)
        swapped = ops.concat([ops.negative(halves.output(1)), halves.output(0)], -1)
        return ops.add(ops.multiply(x, step.cos), ops.multiply(swapped, step.sin))

    def _append_to_cache(self, name: str, new: Any, step: _Step) -> Any:
        """The cache with the new positions at its end."""
        ops, config = self.ops, self.weights.config
        # the name by which openvino-genai finds what belongs together
        variable = f"past_key_values.{name}present.{name}"
        shape = [-1, config.key_value_heads, -1, config.head_dim]
        past = ops.read_value(step.empty, variable, self.openvino.Type.f32, shape)
        kept = ops.concat([ops.gather(past, step.rows, self._number(0)), new], 2)
        self._updates.append(ops.assign(kept, variable))
        return kept

    def _repeat_heads(self, kept: Any) -> Any:
        """Keys or values of each group of query heads, repeated for every head of it."""
        ops, config = self.ops, self.weights.config
        times = config.heads // config.key_value_heads
        if times == 1:
            return kept
        wide = ops.unsqueeze(kept, self._number(2))
        wide = ops.broadcast(wide, self._numbers(1, 1, times, 1, 1), broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, self._numbers(0, config.heads, -1, config.head_dim), True)

    def _mlp(self, name: str, x: Any) -> Any:
        config = self.weights.config
        wide, bias = (config.intermediate, config.hidden), config.mlp_bias
        gate = self._activation(self._linear(f"{name}.gate_proj", x, wide, bias))
        product = self.ops.multiply(gate, self._linear(f"{name}.up_proj", x, wide, bias))
        return self._linear(f"{name}.down_proj", product, (config.hidden, wide[0]), bias)

    def _activation(self, x: Any) -> Any:
        ops, kind = self.ops, self.weights.config.activation
        match kind:
            case "silu":
                return ops.swish(x)
            case "gelu":
                return ops.gelu(x, "erf")
            case "gelu_pytorch_tanh":
                return ops.gelu(x, "tanh")
            case "relu":
                return ops.relu(x)
            case _:
                raise UnsupportedError(unknown_name("activation", kind, ("silu", "gelu", "relu")))

    def _norm(self, module: str, x: Any, size: int) -> Any:
        """The steps that the plugins fuse into one RMSNorm."""
        ops = self.ops
        square = ops.power(x, self.constants.plain(torch.tensor(2.0)))
        mean = ops.reduce_mean(square, self._numbers(-1), True)
        epsilon = self.constants.plain(torch.tensor(self.weights.config.norm_epsilon))
        root = ops.sqrt(ops.add(mean, epsilon))
        scaled = ops.multiply(x, ops.divide(self.constants.plain(torch.tensor(1.0)), root))
        name = f"{module}.weight"
        return ops.multiply(scaled, self.constants.float32(self.weights.tensor(name, (size,))))

    def _linear(self, module: str, x: Any, shape: tuple[int, int], bias: bool) -> Any:
        """x [B, T, K] W^T + bias -> [B, T, N]."""
        y = self.ops.matmul(x, self._weight(module, shape), False, True, name=module)
        if not bias:
            return y
        offset = self.weights.tensor(f"{module}.bias", shape[:1])
        return self.ops.add(y, self.constants.float32(offset))

    def _weight(self, module: str, shape: tuple[int, int]) -> Any:
        found = self.weights.weight(module, shape)
        if isinstance(found, PackedTensor):
            return self.constants.dequantize(found, module)
        plain: Tensor = found
        return self.constants.float32(plain)
