"""GPTQ and AWQ: right by a decoder written here from the layouts, back without a change."""

import errno
import filecmp
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tercet
from tercet.checkpoints.imports.awq import store_awq
from tercet.checkpoints.imports.gptq import store_gptq
from tercet.checkpoints.imports.grouped_integers import from_integers, to_integers
from tercet.checkpoints.packed.origin import ORIGIN_NAME, ORIGIN_TENSORS
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export import engine_directory
from tercet.export.target import find_target, in_kind
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.workflows.export.run import export
from tercet.workflows.import_checkpoint import import_checkpoint

EMBEDDING = {"match": "model.embed_tokens", "format": "int8-g32", "algorithm": "rtn"}
KEPT = {"match": "*.o_proj", "keep": True}
TOKENS = list(range(3, 19))
Tensors = dict[str, Tensor]

# format -> what gptq and awq hold it as; None where awq refuses it
FORMATS = {
    "ternary-g32": ("gptq int2 g32", "awq int4 g32"),
    "ternary-tensor": ("gptq int2 channel", "awq int4 channel"),
    "int2-g32-asym": ("gptq int2 g32 asym", "awq int4 g32 asym"),
    "int3-g32": ("gptq int3 g32", "awq int4 g32"),
    "nonary-g32": ("gptq int4 g32", "awq int4 g32"),
    "int4-g16": ("gptq int4 g16", "awq int4 g16"),
    "int4-g32-asym": ("gptq int4 g32 asym", "awq int4 g32 asym"),
    "int4-channel-bfloat16": ("gptq int4 channel", "awq int4 channel"),
    "int5-g32": ("gptq int8 g32", None),
    "int8-channel": ("gptq int8 channel", None),
}


def layers(scheme: str, algorithm: str = "rtn") -> dict[str, Any]:
    return {"match": "*.layers.*", "format": scheme, "algorithm": algorithm}


def bit_string(words: Tensor) -> Tensor:
    """int32 [W, C] to bits [32 W, C], the lowest bit of the first word first."""
    unsigned = words.long() & 0xFFFFFFFF
    return (unsigned[:, None] >> torch.arange(32)[None, :, None] & 1).flatten(0, 1)


def numbers(bits: Tensor, width: int) -> Tensor:
    """Bits [width X, C] to numbers [X, C]."""
    weights = 1 << torch.arange(width)
    return (bits.unflatten(0, (-1, width)) * weights[None, :, None]).sum(1)


def gptq_values(parts: Tensors, bits: int, layout: str) -> Tensor:
    """float64 [N, K]: scale (q - (zero + 1)) in the first layout, scale (q - zero) in the second.

    A stored zero point of all ones means 0 in the first, where it is used.
    """
    codes = numbers(bit_string(parts["qweight"]), bits)
    zeros = numbers(bit_string(parts["qzeros"].T), bits).T
    if layout == "gptq":
        zeros = (zeros + 1) % (1 << bits)
    group = parts["g_idx"].long()
    return (parts["scales"].double()[group] * (codes - zeros[group])).T


def awq_values(parts: Tensors) -> Tensor:
    """float64 [N, K]: eight rows in a word, rows 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""

    def rows(words: Tensor) -> Tensor:
        found = torch.empty(words.shape[0], words.shape[1] * 8, dtype=torch.long)
        for nibble, row in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            found[:, row::8] = words.long() >> 4 * nibble & 15
        return found

    every = parts["qweight"].shape[0] // parts["scales"].shape[0]
    zeros, scales = (
        t.repeat_interleave(every, 0) for t in (rows(parts["qzeros"]), parts["scales"].double())
    )
    return (scales * (rows(parts["qweight"]) - zeros)).T


def read_export(out: Path) -> tuple[dict[str, Any], Tensors]:
    section = json.loads((out / "config.json").read_text())["quantization_config"]
    tensors: Tensors = {}
    for path in sorted(out.glob("*.safetensors")):
        tensors |= load_file(path)
    return section, tensors


def decode(out: Path) -> Tensors:
    """float64 values of every module, by the decoders here."""
    section, tensors = read_export(out)
    found: Tensors = {}
    for name in tensors:
        module, _, part = name.rpartition(".")
        if part != "qweight":
            continue
        parts = {end: tensors[f"{module}.{end}"] for end in ("qweight", "qzeros", "scales")}
        if section["quant_method"] == "awq":
            found[module] = awq_values(parts)
            continue
        bits = section["bits"]
        for rule, change in section.get("dynamic", {}).items():
            if re.match(rule.removeprefix("+:"), module):
                bits = change["bits"]
        parts["g_idx"] = tensors[f"{module}.g_idx"]
        found[module] = gptq_values(parts, bits, section["checkpoint_format"])
    return found


def draw(seed: int) -> tuple[PackedTensor, random.Random]:
    """A random weight in a random scheme, and the generator that chose it."""
    choose = random.Random(seed)
    element = choose.choice(["ternary", "int2", "int3", "nonary", "int4", "int5", "int6", "int8"])
    group = choose.choice([16, 32, 64, 128, None])
    scheme = parse_scheme(
        element
        + (f"-g{group}" if group else choose.choice(["-channel", "-tensor"]))
        + choose.choice(["", "-asym"])
        + choose.choice(["", "-bfloat16"])
    )
    shape = (32 * choose.randint(1, 4), choose.randint(1, 4) * 128)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    scale, zero = fit(weight, scheme)
    if zero is not None:
        zero = torch.randint(-4, 4, zero.shape, generator=torch.Generator().manual_seed(seed))
        zero = zero.float()
    return encode(weight, scheme, scale, zero), choose


@pytest.mark.parametrize("number", range(24))
def test_generated_weights_decode_to_the_same_numbers(number: int, seed: int) -> None:
    weight, choose = draw(seed + number)
    columns = weight.shape[1]
    own = weight.scale.shape[1]
    groups = choose.choice([own * n for n in (1, 2, 3, 4) if columns % (own * n) == 0])
    held = to_integers(weight, groups, weight.scale.dtype)
    low = min(float(held.values.min()), float(held.zero.min()))
    high = max(float(held.values.max()), float(held.zero.max()))
    fits = [b for b in (2, 3, 4, 8) if -(2 ** (b - 1)) <= low and high < 2 ** (b - 1)]
    expected = weight.dequantize().double()
    for bits in fits:
        for layout in ("gptq", "gptq_v2"):
            parts = store_gptq(held, bits, layout)
            assert {t.dtype for k, t in parts.items() if k != "scales"} == {torch.int32}
            assert torch.equal(gptq_values(parts, bits, layout), expected), (bits, layout)
    if 4 in fits:
        assert torch.equal(awq_values(store_awq(held)), expected)
    again = from_integers(held, weight.scheme, "m")
    for part, tensor in weight.parts().items():
        assert torch.equal(again.parts()[part], tensor), part


def test_known_words() -> None:
    """Every bit by hand: W = (q - 8) 0.5 with q = 0..7 along a row, and along a column."""
    row = torch.arange(-8, 0)
    scheme = parse_scheme("int4-channel")
    weight = encode(row.repeat(8, 1) * 0.5, scheme, torch.full((8, 1), 0.5))
    held = to_integers(weight, 1, torch.float16)
    v1, v2 = (store_gptq(held, 4, layout) for layout in ("gptq", "gptq_v2"))
    assert v1["qweight"].tolist() == [[0x76543210] * 8]
    assert v1["qzeros"].tolist() == [[0x77777777]]
    assert v2["qzeros"].tolist() == [[0x88888888 - (1 << 32)]]
    assert v1["g_idx"].tolist() == [0] * 8
    assert v1["scales"].tolist() == [[0.5] * 8]
    column = encode(row[:, None].repeat(1, 8) * 0.5, scheme, torch.full((8, 1), 0.5))
    stored = store_awq(to_integers(column, 1, torch.float16))
    assert stored["qweight"].tolist() == [[0x75316420]] * 8
    assert stored["qzeros"].tolist() == [[0x88888888 - (1 << 32)]]


@pytest.fixture(scope="module")
def pack(make_case: Callable[..., Any]) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def of(scheme: str) -> Path:
        if scheme not in made:
            made[scheme] = make_case("llama", True, EMBEDDING, layers(scheme)).packed
        return made[scheme]

    return of


@pytest.mark.parametrize("name", ["gptq", "awq"])
@pytest.mark.parametrize("scheme", FORMATS)
def test_every_format_decodes_and_comes_back(
    name: str, scheme: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    kind = FORMATS[scheme][name == "awq"]
    packed = pack(scheme)
    if kind is None:
        with pytest.raises(UnsupportedError, match=r"AWQ holds integers of 4 bits.*int4"):
            export(packed, name, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        return
    report = export(packed, name, tmp_path / "out")
    assert report.main_module.kind == kind
    checkpoint, found = tercet.open_packed(packed), decode(tmp_path / "out")
    assert set(checkpoint.modules) - set(found) == {"model.embed_tokens"}
    for module, values in found.items():
        expected = checkpoint.read_packed(module).dequantize().double()
        assert torch.equal(values, expected), module
    _, tensors = read_export(tmp_path / "out")
    embedding = checkpoint.read_packed("model.embed_tokens").dequantize()
    assert torch.equal(tensors["model.embed_tokens.weight"], embedding)
    assert list(find_target(name).differences(checkpoint, tmp_path / "out")) == []  # type: ignore[attr-defined]
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def identical(first: Path, second: Path) -> None:
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    _, different, errors = filecmp.cmpfiles(first, second, names, shallow=False)
    assert (different, errors) == ([], [])


@pytest.mark.parametrize("name", ["gptq", "awq"])
@pytest.mark.parametrize("scheme", ["int4-g32", "int4-g32-asym"])
def test_without_its_origin_it_is_a_foreign_checkpoint(
    name: str, scheme: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    """The importer of other programs' files finds the same codes, scales and logits."""
    packed, out = pack(scheme), tmp_path / "out"
    export(packed, name, out)
    for note in (ORIGIN_NAME, ORIGIN_TENSORS):
        (out / note).unlink()
    import_checkpoint(out, tmp_path / "back")
    before, found = tercet.open_packed(packed), tercet.open_packed(tmp_path / "back")
    assert set(before.modules) - set(found.modules) == {"model.embed_tokens"}
    for module in found.modules:
        for part, tensor in before.read_packed(module).parts().items():
            assert torch.equal(found.read_packed(module).parts()[part], tensor), (module, part)
    ids = torch.tensor([TOKENS])
    own, back = (
        tercet.load(path, torch.float32).logits(ids) for path in (packed, tmp_path / "back")
    )
    torch.testing.assert_close(back, own, atol=1e-5, rtol=1e-5)


def test_sections(pack: Callable[[str], Path], tmp_path: Path) -> None:
    for scheme in ("nonary-g32", "int4-g32-asym", "ternary-tensor"):
        for name in ("gptq", "awq"):
            find_target(name).write(tercet.open_packed(pack(scheme)), tmp_path / scheme / name)
    section, _ = read_export(tmp_path / "nonary-g32" / "gptq")
    assert section == {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
    }
    section, _ = read_export(tmp_path / "int4-g32-asym" / "gptq")
    assert (section["checkpoint_format"], section["sym"]) == ("gptq_v2", False)
    section, _ = read_export(tmp_path / "ternary-tensor" / "gptq")
    assert (section["bits"], section["group_size"]) == (2, -1)
    section, _ = read_export(tmp_path / "nonary-g32" / "awq")
    assert section == {
        "quant_method": "awq",
        "version": "gemm",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "modules_to_not_convert": ["lm_head"],
    }
    config = json.loads((tmp_path / "nonary-g32" / "awq" / "config.json").read_text())
    assert config["dtype"] == "float16"
    assert config["tie_word_embeddings"] is True


def rule_of(section: dict[str, Any], module: str) -> Any:
    """What an engine takes of `dynamic`: the first rule that matches; None where none does."""
    for rule, change in section["dynamic"].items():
        if re.match(rule[2:], module):
            return False if rule.startswith("-:") else change
    return None


def test_mixed_widths_and_kept_layers_are_said(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    """Engines look for the fused names, transformers for the modules that are packed."""
    packed = make_case(
        "qwen2",
        False,
        {"match": "lm_head", "format": "int8-g32", "algorithm": "rtn"},
        KEPT,
        {"match": "*.0.mlp.up_proj", "format": "int8-g32", "algorithm": "rtn"},
        {"match": "*.1.mlp.down_proj", "format": "int8-g16", "algorithm": "rtn"},
        layers("int4-g32"),
    ).packed
    export(packed, "gptq", tmp_path / "out")
    section, tensors = read_export(tmp_path / "out")
    assert (section["bits"], section["group_size"]) == (4, 16)
    wide = ["0.mlp.up_proj", "0.mlp.gate_proj", "0.mlp.gate_up_proj", "1.mlp.down_proj"]
    assert all(rule_of(section, f"model.layers.{name}") == {"bits": 8} for name in wide)
    for name in (
        "0.self_attn.qkv_proj",
        "1.mlp.gate_up_proj",
        "0.mlp.down_proj",
        "11.mlp.down_proj",
    ):
        assert rule_of(section, f"model.layers.{name}") is None
    plain = ["lm_head", "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"]
    assert all(rule_of(section, name) is False for name in plain)
    checkpoint, found = tercet.open_packed(packed), decode(tmp_path / "out")
    assert section["modules_in_block_to_quantize"] == [sorted(found)]
    assert tensors["lm_head.weight"].dtype == torch.float32
    assert len(found) == 2 * 6
    for module, values in found.items():
        assert torch.equal(values, checkpoint.read_packed(module).dequantize().double()), module
    biases = [name for name in checkpoint.names() if name.endswith(".bias")]
    assert len(biases) == 2 * 3
    assert all(torch.equal(tensors[name], checkpoint.tensor(name)) for name in biases)
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def test_kept_layers_in_awq(make_case: Callable[..., Any], tmp_path: Path) -> None:
    packed = make_case("llama", False, EMBEDDING, KEPT, layers("ternary-g32")).packed
    export(packed, "awq", tmp_path / "out")
    section, _ = read_export(tmp_path / "out")
    kept = [f"model.layers.{i}.self_attn.o_proj" for i in range(2)]
    assert section["modules_to_not_convert"] == ["lm_head", *kept]


def test_one_width_for_all_where_it_is_asked_for(
    pack: Callable[[str], Path], tmp_path: Path
) -> None:
    packed = pack("ternary-g32")
    report = export(packed, "gptq", tmp_path / "out", kind="int4")
    assert report.main_module.kind == "gptq int4 g32"
    checkpoint = tercet.open_packed(packed)
    for module, values in decode(tmp_path / "out").items():
        assert torch.equal(values, checkpoint.read_packed(module).dequantize().double()), module
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")
    with pytest.raises(UnsupportedError, match=r"holds integers of 4 bits: compress to int4"):
        export(pack("int8-channel"), "gptq", tmp_path / "other", kind="int4")
    with pytest.raises(UnsupportedError, match=r"'int5'.*int4"):
        in_kind(find_target("gptq"), "int5")


@pytest.mark.parametrize(
    ("name", "rules", "fragments"),
    [
        ("gptq", [layers("int4-g32", "awq")], ["input scale", "huggingface"]),
        ("awq", [layers("nonary-g32", "hadamard")], ["Hadamard", "huggingface"]),
        (
            "gptq",
            [{**layers("int8-channel"), "options": {"activation": "int8_token"}}],
            ["activations quantized as int8_token"],
        ),
        ("awq", [layers("int4-g32-hqq")], ["zero points in float16", "-asym"]),
        ("gptq", [layers("mxfp4")], ["mxfp4", "int4 or nonary"]),
        ("gptq", [layers("fp8_e4m3-channel")], ["fp8_e4m3-channel", "int4 or nonary"]),
        ("gptq", [layers("int4-g24")], ["groups of 24 in", "g32"]),
        ("gptq", [layers("int8-b32x32")], ["one scale a row", "channel or g64"]),
        ("awq", [layers("int4-g32-float32")], ["scales in float32", "no -float32"]),
        (
            "gptq",
            [{"match": "*.q_proj", "keep": True}, layers("int4-g32")],
            ["packed beside q_proj, which is not", "keep: true"],
        ),
        ("gptq", [EMBEDDING], ["no linear layer of the model's blocks is packed"]),
    ],
)
def test_refusals_name_the_alternative(
    name: str, rules: list[dict[str, Any]], fragments: list[str], refusal: Callable[..., str]
) -> None:
    found = refusal(find_target(name), *rules)
    for fragment in fragments:
        assert fragment in found


def edit(packed: Path, out: Path, part: str, change: Callable[[Tensor], Tensor]) -> Path:
    """A copy of a checkpoint after `change` of that part of every module of its blocks."""
    copytree(packed, out)
    (out / "tercet_manifest.json").unlink()
    (out / "SHA256SUMS").unlink()
    for path in sorted(out.glob("*.safetensors")):
        tensors = load_file(path)
        for name in tensors:
            if "layers" in name and name.endswith(part):
                tensors[name] = change(tensors[name])
        save_file(tensors, path, {"format": "pt"})
    return out


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_scales_are_held_exactly_or_not_at_all(
    name: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    """bfloat16 where float16 has no such number; refused where neither has them all."""
    packed, target = pack("int4-channel-bfloat16"), find_target(name)

    def write(out: str, change: Callable[[Tensor], Tensor]) -> str:
        edited = edit(packed, tmp_path / f"packed-{out}", "weight_scale", change)
        checkpoint = tercet.open_packed(edited)
        target.write(checkpoint, tmp_path / out)
        for module, values in decode(tmp_path / out).items():
            expected = checkpoint.read_packed(module).dequantize().double()
            assert torch.equal(values, expected), module
        return str(json.loads((tmp_path / out / "config.json").read_text())["dtype"])

    assert write("as-it-is", lambda scale: scale) == "float16"
    assert write("beyond-the-largest", lambda scale: scale * 2**24) == "bfloat16"
    assert write("below-the-smallest", lambda scale: scale * 2.0**-24) == "bfloat16"


def test_zero_points_beyond_the_width_are_widened_or_refused(
    pack: Callable[[str], Path], tmp_path: Path
) -> None:
    edited = edit(
        pack("int4-g32-asym"), tmp_path / "packed", "weight_zero", lambda zero: zero.fill_(-9)
    )
    checkpoint = tercet.open_packed(edited)
    with pytest.raises(UnsupportedError, match="zero points beyond the 4 bits"):
        find_target("awq").write(checkpoint, tmp_path / "out")
    find_target("gptq").write(checkpoint, tmp_path / "out")
    assert read_export(tmp_path / "out")[0]["bits"] == 8
    for module, values in decode(tmp_path / "out").items():
        assert torch.equal(values, checkpoint.read_packed(module).dequantize().double()), module


def test_a_channel_that_the_groups_do_not_divide_is_refused(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    """One group size for all: channel scales are repeated for 16 columns or more."""
    channel = {"match": "*.down_proj", "format": "int4-channel", "algorithm": "rtn"}
    packed = make_case("llama", True, channel, layers("int4-g64")).packed
    export(packed, "awq", tmp_path / "out")
    section, _ = read_export(tmp_path / "out")
    # 96 columns in one group, 64 in the others
    assert section["group_size"] == 32
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


@pytest.mark.parametrize("name", ["gptq", "awq", "mlx", "compressed-tensors"])
def test_a_full_disk_leaves_nothing(
    name: str,
    pack: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, written = engine_directory.save, 0

    def full(*arguments: Any) -> bytes:
        nonlocal written
        written += 1
        if written == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(engine_directory, "save", full)
    with pytest.raises(CheckpointError, match="the disk is full"):
        export(pack("int4-g32"), name, tmp_path / "out")
    assert written == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_a_changed_export_is_not_imported(
    name: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export(pack("nonary-g32"), name, out)
    (out / "SHA256SUMS").unlink()
    path = sorted(out.glob("*.safetensors"))[-1]
    before = load_file(path)
    module = next(k for k in before if k.endswith(".qweight")).removesuffix(".qweight")
    for part, message in (
        ("qweight", r"values from|not those that were exported"),
        ("scales", "not those that were exported"),
        (None, f"{path.name} has no tensor"),
    ):
        tensors = {name: tensor.clone() for name, tensor in before.items()}
        if part is None:
            del tensors[f"{module}.qzeros"]
        else:
            tensors[f"{module}.{part}"].view(torch.int16)[0, 0] ^= 3
        save_file(tensors, path, {"format": "pt"})
        with pytest.raises(CheckpointError, match=message):
            import_checkpoint(out, tmp_path / "back")
        assert not (tmp_path / "back").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gptq", "awq"])
@pytest.mark.parametrize("scheme", ["nonary-g32", "int4-g32-asym", "ternary-tensor"])
def test_verified_in_the_real_client(
    name: str, scheme: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("gptqmodel")
    report = export(pack(scheme), name, tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert all(module.bit_equal for module in report.modules)
    assert report.client is not None
    assert report.client.error < 1e-2
    assert report.client.top1_agreement == 1


@pytest.mark.filterwarnings("ignore")
def test_the_real_client_is_not_asked_for_mixed_widths(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("gptqmodel")
    wide = {"match": "*.down_proj", "format": "int8-g32", "algorithm": "rtn"}
    packed = make_case("llama", True, wide, layers("int4-g32")).packed
    with pytest.raises(UnsupportedError, match="different widths"):
        export(packed, "gptq", tmp_path / "out", verify=True, tokens=TOKENS)
    report = export(packed, "gptq", tmp_path / "all", True, kind="int8", tokens=TOKENS)
    assert report.passed, report.client
