"""GPTQ, AWQ and bitnet checkpoints, in their published layouts, come in as they are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

import tercet
import tercet.checkpoints.imports
from tercet.checkpoints.imports.convert_modules import pack_integers
from tercet.checkpoints.imports.importer import find_importer, importers
from tercet.cli.main import app
from tercet.errors import CheckpointError, UnsupportedError
from tercet.workflows.import_checkpoint import import_checkpoint

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
SHAPES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
Tensors = dict[str, Tensor]


def random(*shape: int, low: int = 0, high: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(low, high, shape, generator=generator)


def words(values: Tensor, bits: int) -> Tensor:
    """[C, R] of `bits` bits to int32 [C * bits / 32, R]: one string of bits along C."""
    string = (values[:, None] >> torch.arange(bits)[None, :, None]) & 1
    chunks = string.reshape(-1, 32, values.shape[1]).long() << torch.arange(32)[None, :, None]
    whole = chunks.sum(1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int()


def gptq(q: Tensor, zero: Tensor, scale: Tensor, bits: int, offset: int = 1) -> Tensors:
    """q [N, K], zero and scale [N, G] as AutoGPTQ stores them."""
    stored = (zero - offset) & (1 << bits) - 1
    columns = q.shape[1]
    return {
        "qweight": words(q.T, bits),
        "qzeros": words(stored, bits).T.contiguous(),
        "scales": scale.T.contiguous(),
        "g_idx": (torch.arange(columns) // (columns // zero.shape[1])).int(),
    }


def awq(q: Tensor, zero: Tensor, scale: Tensor) -> Tensors:
    """The same as AutoAWQ (GEMM) stores them."""

    def packed(values: Tensor) -> Tensor:
        ordered = values.reshape(-1, 8, values.shape[1])[:, list(AWQ_ORDER)]
        return words(ordered.reshape(values.shape), 4).T.contiguous()

    return {"qweight": packed(q), "qzeros": packed(zero), "scales": scale.T.contiguous()}


def bitnet(values: Tensor, scale: Tensor) -> Tensors:
    """values [N, K] of -1, 0 and 1 as transformers stores them."""
    quarters = (values + 1).reshape(4, -1, values.shape[1])
    packed = sum(quarters[i] << 2 * i for i in range(4))
    return {"weight": torch.as_tensor(packed).byte(), "weight_scale": scale.clone()}


def model(folder: Path, section: dict[str, Any], linear: Callable[[str], Tensors]) -> Path:
    """A Llama of one layer whose linear layers hold what `linear` makes of their names."""
    folder.mkdir()
    tensors = {
        "model.embed_tokens.weight": torch.randn(96, 64).half(),
        "model.norm.weight": torch.ones(64).half(),
        "model.layers.0.input_layernorm.weight": torch.ones(64).half(),
        "model.layers.0.post_attention_layernorm.weight": torch.ones(64).half(),
    }
    for name in SHAPES:
        parts = linear(name)
        tensors |= {f"model.layers.0.{name}.{part}": t for part, t in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": section}))
    return folder


class Weights:
    """Random integers with zero points and scales, by the name of a layer."""

    def __init__(self, bits: int, group: int | None, span: int | None = None) -> None:
        self.bits, self.group, self.span = bits, group, span

    def __call__(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = SHAPES[name]
        groups = columns // (self.group or columns)
        middle = 1 << self.bits - 1
        scale = random(rows, groups, low=1, high=500).half() / 1024
        if self.span is not None:  # symmetric, with values from -span to span only
            q = random(rows, columns, low=middle - self.span, high=middle + self.span + 1)
            return q, torch.full((rows, groups), middle), scale
        q = random(rows, columns, high=1 << self.bits)
        return q, random(rows, groups, low=0, high=1 << self.bits, seed=5), scale

    def values(self, name: str) -> Tensor:
        """W [N, K] in float32."""
        q, zero, scale = self(name)
        width = q.shape[1] // zero.shape[1]
        return (q - zero.repeat_interleave(width, 1)) * scale.float().repeat_interleave(width, 1)


def test_the_layouts_are_the_published_ones() -> None:
    eight, one = torch.arange(8)[:, None], torch.ones(8, 1).long()
    assert words(eight, 4).tolist() == [[0x76543210]]
    assert awq(eight, one, one.half())["qweight"].tolist() == [[0x75316420]]
    # the eleventh value of 3 bits lies across two words
    q = torch.zeros(1, 32).long()
    q[0, 10] = 0b101
    assert words(q.T, 3)[:, 0].tolist() == [1 << 30, 1, 0]


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2"])
@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (Weights(4, 32), "int4-g32-asym"),
        (Weights(2, 32), "int2-g32-asym"),
        (Weights(8, 32), "int8-g32-asym"),
        (Weights(3, 32), "int3-g32-asym"),
        (Weights(4, None), "int4-channel-asym"),
        (Weights(4, 32, span=7), "int4-g32"),
        (Weights(4, 32, span=4), "nonary-g32"),
        (Weights(2, 32, span=1), "ternary-g32"),
    ],
)
def test_gptq_keeps_every_value(
    weights: Weights, expected: str, layout: str, tmp_path: Path
) -> None:
    section = {
        "quant_method": "gptq",
        "bits": weights.bits,
        "group_size": weights.group or -1,
        "desc_act": False,
        "checkpoint_format": layout,
    }
    offset = 1 if layout == "gptq" else 0
    source = model(
        tmp_path / "in", section, lambda name: gptq(*weights(name), weights.bits, offset)
    )
    check(source, tmp_path / "out", weights.values, expected)


@pytest.mark.parametrize("group", [32, None])
def test_awq_keeps_every_value(group: int | None, tmp_path: Path) -> None:
    weights = Weights(4, group)
    section = {"quant_method": "awq", "bits": 4, "group_size": group or -1, "version": "gemm"}
    source = model(tmp_path / "in", section, lambda name: awq(*weights(name)))
    expected = "int4-channel-asym" if group is None else "int4-g32-asym"
    check(source, tmp_path / "out", weights.values, expected)


def ternary(name: str) -> Tensor:
    return random(*SHAPES[name], low=-1, high=2)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [
        ("autobitlinear", torch.bfloat16, "ternary-tensor-bfloat16"),
        ("autobitlinear", torch.float32, "ternary-tensor-float32"),
        ("bitlinear", torch.bfloat16, "ternary-tensor-float32"),
    ],
)
def test_bitnet_keeps_every_value(
    kind: str, dtype: torch.dtype, expected: str, tmp_path: Path
) -> None:
    scale = torch.tensor([0.7]).to(dtype)
    section = {"quant_method": "bitnet", "linear_class": kind, "quantization_mode": "offline"}
    source = model(tmp_path / "in", section, lambda name: bitnet(ternary(name), scale))

    def values(name: str) -> Tensor:
        whole = ternary(name).float()
        return whole * scale.float() if kind == "autobitlinear" else whole / scale.float()

    check(source, tmp_path / "out", values, expected)
    modules = tercet.open_packed(tmp_path / "out").modules.values()
    assert {module.activation for module in modules} == {"int8_token"}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, None])
def test_zero_points_beside_plain_values_are_plain(
    bits: int, group: int | None, tmp_path: Path
) -> None:
    """compressed-tensors packs them beside packed values alone."""
    weights, middle = Weights(bits, group), 1 << bits - 1
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    of_weights = {"num_bits": bits, "type": "int", "symmetric": False, **strategy}
    config = {"targets": ["Linear"], "weights": of_weights, "format": "int-quantized"}
    section = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": config},
        "ignore": ["lm_head"],
    }

    def linear(name: str) -> dict[str, Tensor]:
        q, zero, scale = weights(name)
        return {
            "weight": (q - middle).to(torch.int8),
            "weight_scale": scale,
            "weight_zero_point": (zero - middle).to(torch.int8),
        }

    expected = f"int{bits}-{f'g{group}' if group else 'channel'}-asym"
    check(model(tmp_path / "in", section, linear), tmp_path / "out", weights.values, expected)


def check(source: Path, out: Path, values: Callable[[str], Tensor], expected: str) -> None:
    """Imported by the command: bit-equal, of the expected format, whole, and it runs."""
    done = CliRunner().invoke(app, ["import", str(source), "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = tercet.open_packed(out)
    assert {m.removeprefix("model.layers.0.") for m in found.modules} == set(SHAPES)
    for name in SHAPES:
        module = f"model.layers.0.{name}"
        assert found.modules[module].format == expected
        assert torch.equal(found.read_packed(module).dequantize(), values(name)), name
    plain = load_file(source / "model.safetensors")
    assert set(found.names()) == {name for name in plain if "proj" not in name}
    assert all(torch.equal(found.tensor(name), plain[name]) for name in found.names())
    assert found.manifest is not None
    assert "quant_method" in found.config["quantization_config"]
    assert tercet.load(out).logits(torch.tensor([[3, 4, 5]])).isfinite().all()


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
BITNET = {"quant_method": "bitnet", "linear_class": "autobitlinear"}


def four_bits(name: str) -> Tensors:
    return gptq(*Weights(4, 32)(name), 4)


def test_columns_in_the_order_of_activations_are_refused(tmp_path: Path) -> None:
    def shuffled(name: str) -> Tensors:
        parts = four_bits(name)
        order = torch.randperm(len(parts["g_idx"]), generator=torch.Generator().manual_seed(2))
        return {**parts, "g_idx": parts["g_idx"][order]}

    source = model(tmp_path / "in", GPTQ, shuffled)
    with pytest.raises(UnsupportedError, match=r"proj: column \d+ is in group \d, .*\(desc_act\)"):
        import_checkpoint(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_last_group_that_is_shorter_is_refused(tmp_path: Path) -> None:
    """Without g_idx two groups of 64 columns look like two of 48."""

    def linear(name: str) -> Tensors:
        rows = SHAPES[name][0]
        q, zero = random(rows, 96, high=16), random(rows, 2, high=16)
        parts = gptq(q, zero, torch.ones(rows, 2).half(), 4)
        return {part: tensor for part, tensor in parts.items() if part != "g_idx"}

    section = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False}
    source = model(tmp_path / "in", section, linear)
    with pytest.raises(UnsupportedError, match="96 columns in groups of 64, the last one shorter"):
        import_checkpoint(source, tmp_path / "out")


def test_desc_act_with_static_groups_is_read(tmp_path: Path) -> None:
    source = model(tmp_path / "in", GPTQ, four_bits)
    check(source, tmp_path / "out", Weights(4, 32).values, "int4-g32-asym")


def negative(name: str) -> Tensors:
    parts = four_bits(name)
    return {**parts, "scales": -parts["scales"]}


def without_zeros(name: str) -> Tensors:
    return {part: tensor for part, tensor in four_bits(name).items() if part != "qzeros"}


def cut_short(name: str) -> Tensors:
    parts = four_bits(name)
    return {**parts, "qweight": parts["qweight"][:, :-8].contiguous()}


def unscaled(name: str) -> Tensors:
    parts = awq(*Weights(4, 32)(name))
    return {**parts, "scales": parts["scales"][:, :-8].contiguous()}


def fourth_code(name: str) -> Tensors:
    parts = bitnet(ternary(name), torch.ones(1))
    parts["weight"][1, 2] |= 0b1100
    return parts


def biased(name: str) -> Tensors:
    return {**bitnet(ternary(name), torch.ones(1)), "bias": torch.zeros(SHAPES[name][0])}


@pytest.mark.parametrize(
    ("section", "linear", "error", "message"),
    [
        (GPTQ, negative, UnsupportedError, r"proj\.scale: \d+ values not finite or negative"),
        (GPTQ, without_zeros, CheckpointError, "proj: qzeros is missing: copy"),
        (GPTQ, cut_short, CheckpointError, r"proj: qweight \[\d+, \d+\] beside scales"),
        ({**GPTQ, "checkpoint_format": "marlin"}, four_bits, UnsupportedError, "'marlin': gptq"),
        (AWQ, unscaled, CheckpointError, "are not of one weight: copy"),
        ({**AWQ, "version": "gemv"}, four_bits, UnsupportedError, "'gemv' with 4 bits"),
        (BITNET, fourth_code, CheckpointError, r"proj: the weight at \[\d+, 2\] is 2"),
        (BITNET, biased, UnsupportedError, "has a bias, which AutoBitLinear multiplies"),
        ({**BITNET, "use_rms_norm": True}, fourth_code, UnsupportedError, "norm inside"),
        ({**BITNET, "quantization_mode": "online"}, fourth_code, UnsupportedError, "compress it"),
        ({"quant_method": "awq"}, fourth_code, CheckpointError, r"no tensor ends in '\.qweight'"),
    ],
)
def test_what_no_scheme_holds_is_refused(
    section: dict[str, Any],
    linear: Callable[[str], Tensors],
    error: type[Exception],
    message: str,
    tmp_path: Path,
) -> None:
    source = model(tmp_path / "in", section, linear)
    with pytest.raises(error, match=message):
        import_checkpoint(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_file_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    source = model(tmp_path / "in", GPTQ, four_bits)
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*truncated"):
        import_checkpoint(source, tmp_path / "out")


def test_integers_beyond_every_element_are_never_clamped() -> None:
    values = torch.tensor([[-128, 127]])
    found = pack_integers(values, torch.ones(1, 1), None, None, "m")
    assert found.scheme.name == "int8-channel-float32"
    assert found.dequantize().tolist() == [[-128.0, 127.0]]


ONE_MORE = """
from tercet.checkpoints.imports.importer import Importer

IMPORTER = Importer(
    name="notes",
    matches=lambda path: path.suffix == ".notes",
    convert=lambda path, out, overwrite=False: out.write_text(path.read_text()),
)
"""


def test_every_importer_is_found() -> None:
    names = [importer.name for importer in importers()]
    assert names == ["awq", "bitnet", "compressed-tensors", "gguf", "gptq", "mlx"]


def test_an_importer_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "one_more.py").write_text(ONE_MORE)
    package = tercet.checkpoints.imports
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    (tmp_path / "a.notes").write_text("weights")
    importer = find_importer(tmp_path / "a.notes")
    assert importer is not None
    importer.convert(tmp_path / "a.notes", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "weights"


def test_an_unknown_method_lists_every_importer(tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"quant_method": "bitnett"}, four_bits)
    assert find_importer(source) is None
    message = (
        "'bitnett': did you mean 'bitnet'.* known: awq, bitnet, compressed-tensors, gguf, gptq"
    )
    with pytest.raises(UnsupportedError, match=message):
        import_checkpoint(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (None, "nothing is quantized: compress it"),
        ({"quant_method": "tercet"}, "is a packed checkpoint of Tercet already"),
    ],
)
def test_what_needs_no_import_is_refused(section: Any, message: str, tmp_path: Path) -> None:
    source = model(tmp_path / "in", section, four_bits)
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(source, tmp_path / "out")


def test_nothing_there_lists_every_importer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such directory or GGUF file.* awq, .* mlx are"):
        import_checkpoint(tmp_path / "absent", tmp_path / "out")
