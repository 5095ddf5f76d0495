"""compressed-tensors: bit-equal in its library, right in transformers, back without a change."""

import filecmp
import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tercet
from tercet.checkpoints.imports.compressed_tensors import BITS, Form, restore, store
from tercet.checkpoints.imports.compressed_tensors.tensors import pack_words, unpack_words
from tercet.checkpoints.packed.origin import ORIGIN_NAME, ORIGIN_TENSORS
from tercet.checkpoints.sources.safetensors_directory import open_weights
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.compressed_tensors import TARGET
from tercet.formats import encode, fit, parse_scheme
from tercet.workflows.export.run import export
from tercet.workflows.import_checkpoint import import_checkpoint

pytest.importorskip("compressed_tensors")

EMBEDDING = {"match": "model.embed_tokens", "format": "int8-g32", "algorithm": "rtn"}
FORMATS = {
    "ternary-g32": "pack-quantized int2 g32",
    "ternary-channel": "pack-quantized int2 channel",
    "ternary-tensor": "pack-quantized int2 channel",
    "int2-g32": "pack-quantized int2 g32",
    "int3-g32": "pack-quantized int3 g32",
    "nonary-g32": "pack-quantized int4 g32",
    "int4-g32-asym": "pack-quantized int4 g32 asym",
    "int4-g32-bfloat16-bits4": "pack-quantized int4 g32",
    "int8-channel": "pack-quantized int8 channel",
    "fp8_e4m3-channel": "float-quantized fp8 channel",
    "fp8_e4m3-tensor-float32": "float-quantized fp8 tensor",
    "mxfp4": "mxfp4-pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
}
VALUES = {"match": "*.v_proj", "format": "int4-channel", "algorithm": "rtn"}
TOKENS = list(range(3, 19))


def layers(scheme: str, algorithm: str = "rtn") -> dict[str, Any]:
    return {"match": "*.layers.*", "format": scheme, "algorithm": algorithm}


@pytest.fixture(scope="module")
def nonary(make_case: Callable[..., Any]) -> Path:
    return make_case("llama", True, EMBEDDING, layers("nonary-g32")).packed


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [1, 9, 32, 45, 64])
def test_words_are_those_of_the_library(bits: int, columns: int) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import (
        pack_to_int32,
        unpack_from_int32,
    )

    generator = torch.Generator().manual_seed(bits)
    unsigned = torch.randint(2**bits, (5, columns), generator=generator).to(torch.uint8)
    values = (unsigned.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)
    words = pack_words(unsigned, bits)
    assert torch.equal(words, pack_to_int32(values, bits))
    assert torch.equal(unpack_from_int32(words, bits, torch.Size((5, columns))), values)
    assert torch.equal(unpack_words(words, bits, columns), unsigned)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("shape", [(1, 32), (7, 96), (40, 64)])
def test_store_and_restore_are_inverse(name: str, shape: tuple[int, int]) -> None:
    scheme = parse_scheme(f"{name}-g32-asym")
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    scale, zero = fit(weight, scheme)
    if zero is not None:
        half = 2 ** (BITS[name] - 1)
        zero = zero.clamp(-half, half - 1)
    packed = encode(weight, scheme, scale, zero)
    again = restore(store(packed, Form.PACKED, BITS[name]), scheme, BITS[name], "m")
    for part, tensor in packed.parts().items():
        assert torch.equal(again.parts()[part], tensor), part


@pytest.mark.parametrize("scheme", FORMATS)
def test_every_format_is_verified_and_comes_back(
    scheme: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("llama", True, EMBEDDING, layers(scheme)).packed
    report = export(packed, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert report.main_module.kind == FORMATS[scheme]
    assert all(module.bit_equal for module in report.modules)
    assert len(report.modules) == 1 + 2 * 7
    assert report.client is not None
    assert report.client.top1_agreement == 1
    assert report.client.error < 1e-5
    assert report.client.greedy == report.client.our_greedy
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def identical(first: Path, second: Path) -> None:
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    _, different, errors = filecmp.cmpfiles(first, second, names, shallow=False)
    assert (different, errors) == ([], [])


def test_qwen2_with_biases_and_an_own_head(make_case: Callable[..., Any], tmp_path: Path) -> None:
    head = {"match": "lm_head", "format": "int4-g32", "algorithm": "rtn"}
    packed = make_case("qwen2", False, EMBEDDING, head, layers("ternary-g32")).packed
    report = export(packed, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed
    kinds = {module.module: module.kind for module in report.modules}
    assert kinds["lm_head"] == "pack-quantized int4 g32"
    assert kinds["model.embed_tokens"] == "float32"


@pytest.mark.parametrize(
    ("scheme", "activation", "kind"),
    [
        ("int8-channel", "int8_token", "int-quantized int8 channel"),
        ("fp8_e4m3-channel", "fp8_token", "float-quantized fp8 channel, fp8 inputs"),
    ],
)
def test_eight_bit_inputs(
    scheme: str, activation: str, kind: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    """W8A8: the client rounds inputs as well, and the bound knows."""
    rule = {**layers(scheme), "options": {"activation": activation}}
    packed = make_case("llama", True, EMBEDDING, rule).packed
    report = export(packed, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.main_module.kind == kind
    assert report.client is not None
    assert report.client.activation_error > 1e-4
    if activation == "fp8_token":
        # both round alike (with int8 the library divides by 127.5 and we by 127)
        assert report.client.error < 1e-2 * report.client.activation_error
    assert report.passed
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def test_ternary_beside_nonary_widens_to_one_width(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    mixed = {"match": "*.q_proj", "format": "ternary-g32", "algorithm": "rtn"}
    packed = make_case("llama", True, mixed, layers("nonary-g32")).packed
    report = export(packed, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed
    assert {module.kind for module in report.modules} == {"pack-quantized int4 g32"}
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def test_nvfp4_beside_other_formats(make_case: Callable[..., Any], tmp_path: Path) -> None:
    """A group each, and one second level for what engines multiply as one weight."""
    down = {"match": "*.down_proj", "format": "mxfp4", "algorithm": "rtn"}
    head = {"match": "lm_head", "format": "int8-channel", "algorithm": "rtn"}
    rules = [EMBEDDING, head, down, layers("nvfp4")]
    source = make_case("llama", False, *rules).source
    tensors = load_file(source / "model.safetensors")
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.k_proj.weight"] *= 10
    tensors["model.layers.1.self_attn.v_proj.weight"] *= 0
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    packed = tmp_path / "packed"
    plan = tercet.Plan.model_validate({"name": "test", "rules": rules})
    tercet.compress(source, plan, packed)
    own = tercet.open_packed(packed)
    seconds = {
        n: float(own.tensor(f"model.layers.1.self_attn.{n}_proj.weight_second")) for n in "qkv"
    }
    assert 0 == seconds["v"] < seconds["q"] < seconds["k"]
    report = export(packed, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert report.client is not None
    assert report.client.error < 1e-5
    _, stored = open_weights(tmp_path / "out")
    for name in "qkv":
        divisor = stored[f"model.layers.1.self_attn.{name}_proj.weight_global_scale"].read()
        assert divisor.tolist() == [1 / seconds["k"]]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_fp4_of_the_library_itself(
    name: str, tmp_path: Path, make_case: Callable[..., Any]
) -> None:
    """As llm-compressor writes it: a global scale that is no power of two."""
    import compressed_tensors.quantization as quantization
    from compressed_tensors.compressors import BaseCompressor

    source = make_case("llama", False, EMBEDDING).source
    preset = quantization.preset_name_to_scheme(f"{name.upper()}A16", ["Linear"])
    form = f"{name}-pack-quantized"
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors, expected = {}, {}
    for key, weight in load_file(source / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if "_proj" not in key:
            tensors[key] = weight
            continue
        group = 32 if name == "mxfp4" else 16
        scale = weight.unflatten(1, (-1, group)).abs().amax(2) / 6
        state = {"weight": weight, "weight_scale": scale}
        if name == "nvfp4":
            divisor = (448 / scale.max()).reshape(1)
            scale = (scale * divisor).to(torch.float8_e4m3fn).float()
            state |= {"weight_scale": scale, "weight_global_scale": divisor}
        else:
            state["weight_scale"] = torch.exp2(scale.log2().ceil())
        stored = compressor.compress(state, preset)
        expected[module] = compressor.decompress(stored, preset)["weight"]
        tensors.update({f"{module}.{part}": tensor for part, tensor in stored.items()})
    target = tmp_path / "foreign"
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {**preset.model_dump(mode="json"), "format": form}},
        "ignore": ["lm_head"],
    }
    (target / "config.json").write_text(json.dumps(config))
    import_checkpoint(target, tmp_path / "back")
    back = tercet.open_packed(tmp_path / "back")
    back.verify()
    assert {back.modules[module].format for module in expected} == {name}
    for module, weight in expected.items():
        # the library's values are bfloat16, and a reciprocal is rounded
        found = back.read_packed(module).dequantize(torch.bfloat16)
        torch.testing.assert_close(found, weight, rtol=2**-8, atol=0)


@pytest.mark.parametrize(
    ("rules", "fragments"),
    [
        ([layers("int4-g32", "awq")], ["input scale", "gptq", "huggingface"]),
        ([layers("nonary-g32", "hadamard")], ["Hadamard", "huggingface"]),
        ([layers("int4-g32-hqq")], ["zero points in float16", "-asym"]),
        ([layers("fp4_e2m1-g32")], ["fp4_e2m1-g32", "mxfp4, nvfp4"]),
        ([layers("int4-g40")], ["no multiple of the group 40", "channel"]),
        ([layers("fp8_e4m3-g32")], ["fp8_e4m3-channel"]),
        ([layers("int8-b32x32")], ["per tensor, channel or group"]),
        (
            [
                {"match": "*.v_proj", "format": "int4-channel", "algorithm": "rtn"},
                layers("int4-g32"),
            ],
            ["v_proj", "one format in the plan"],
        ),
    ],
)
def test_refusals_name_the_alternative(
    rules: list[dict[str, Any]], fragments: list[str], refusal: Callable[..., str]
) -> None:
    found = refusal(TARGET, *rules)
    for fragment in fragments:
        assert fragment in found


def test_zero_points_out_of_range_are_refused(nonary: Path, tmp_path: Path) -> None:
    packed = make_asym(nonary, tmp_path / "packed")
    with pytest.raises(UnsupportedError, match="zero points from -9 to"):
        TARGET.write(tercet.open_packed(packed), tmp_path / "out")


def make_asym(packed: Path, target: Path) -> Path:
    """A copy with zero points in every linear layer, one of them below what four bits hold."""
    copytree(packed, target)
    (target / "tercet_manifest.json").unlink()
    config = json.loads((target / "config.json").read_text())
    index = json.loads((target / "model.safetensors.index.json").read_text())
    for module, entry in config["quantization_config"]["modules"].items():
        entry["format"] += "-asym"
        file = target / index["weight_map"][f"{module}.weight_scale"]
        tensors = load_file(file)
        zero = torch.zeros(tensors[f"{module}.weight_scale"].shape, dtype=torch.int8)
        zero[0, 0] = -9
        save_file({**tensors, f"{module}.weight_zero": zero}, file)
        index["weight_map"][f"{module}.weight_zero"] = file.name
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return target


@pytest.fixture
def exported(nonary: Path, tmp_path: Path) -> Path:
    TARGET.write(tercet.open_packed(nonary), tmp_path / "out")
    return tmp_path / "out"


def test_an_existing_directory_is_not_touched(nonary: Path, exported: Path) -> None:
    before = sorted(exported.iterdir())
    with pytest.raises(CheckpointError, match="exists"):
        TARGET.write(tercet.open_packed(nonary), exported)
    assert sorted(exported.iterdir()) == before


def test_without_its_origin_it_is_a_foreign_checkpoint(
    exported: Path, nonary: Path, tmp_path: Path
) -> None:
    (exported / ORIGIN_NAME).unlink()
    (exported / ORIGIN_TENSORS).unlink()
    import_checkpoint(exported, tmp_path / "back")
    found, packed = tercet.open_packed(tmp_path / "back"), tercet.open_packed(nonary)
    found.verify()
    assert set(packed.modules) - set(found.modules) == {"model.embed_tokens"}
    for module in found.modules:
        assert found.modules[module].format == "nonary-g32", module
        assert torch.equal(found.read_packed(module).codes, packed.read_packed(module).codes)
        assert torch.equal(found.read_packed(module).scale, packed.read_packed(module).scale)
    ids = torch.tensor([TOKENS])
    own, back = (
        tercet.load(path, torch.float32).logits(ids) for path in (nonary, tmp_path / "back")
    )
    torch.testing.assert_close(back, own, atol=1e-5, rtol=1e-5)


def test_a_checkpoint_of_the_library_itself(tmp_path: Path, make_case: Callable[..., Any]) -> None:
    """Compressed by compressed-tensors, asymmetric, with an int3 among the values."""
    import compressed_tensors.quantization as quantization
    from compressed_tensors.compressors import BaseCompressor

    source = make_case("llama", False, EMBEDDING).source
    args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    tensors, expected = {}, {}
    for name, weight in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if "_proj" not in name:
            tensors[name] = weight
            continue
        low, high = weight.unflatten(1, (-1, 32)).aminmax(dim=2)
        scale = ((high - low) / 15).clamp_min(1e-6)
        zero = (-8 - low / scale).round().clamp(-8, 7).to(torch.int8)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        stored = compressor.compress(state, scheme)
        expected[module] = compressor.decompress(stored, scheme)["weight"]
        tensors.update({f"{module}.{part}": tensor for part, tensor in stored.items()})
    target = tmp_path / "foreign"
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": args}},
        "ignore": ["lm_head"],
    }
    (target / "config.json").write_text(json.dumps(config))
    import_checkpoint(target, tmp_path / "back")
    back = tercet.open_packed(tmp_path / "back")
    back.verify()
    assert set(back.modules) == set(expected)
    for module, weight in expected.items():
        assert torch.equal(back.read_packed(module).dequantize(), weight), module
    assert tercet.load(tmp_path / "back").logits(torch.tensor([TOKENS])).isfinite().all()


def damage(path: Path, edit: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def test_a_file_cut_short_is_refused(exported: Path, tmp_path: Path) -> None:
    path = sorted(exported.glob("*.safetensors"))[-1]
    damage(path, lambda data: data.__delitem__(slice(-10, None)))
    with pytest.raises(CheckpointError, match=f"{path.name}.*truncated"):
        import_checkpoint(exported, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_flipped_byte_is_refused(exported: Path, tmp_path: Path) -> None:
    path = sorted(exported.glob("*.safetensors"))[-1]
    damage(path, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    with pytest.raises(CheckpointError):
        import_checkpoint(exported, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_damaged_origin_is_refused(exported: Path, tmp_path: Path) -> None:
    (exported / ORIGIN_TENSORS).unlink()
    with pytest.raises(CheckpointError, match=rf"{ORIGIN_TENSORS}: missing: copy"):
        import_checkpoint(exported, tmp_path / "back")
    (exported / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=rf"no scales of model\.embed_tokens.*{ORIGIN_NAME}"):
        import_checkpoint(exported, tmp_path / "back")
    (exported / ORIGIN_NAME).write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        import_checkpoint(exported, tmp_path / "back")


def test_a_wrong_value_is_seen_by_verification(
    nonary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = store

    def shifted(weight: Any, form: Form, *more: Any) -> dict[str, torch.Tensor]:
        parts = real(weight, form, *more)
        parts["weight_packed"][0, 0] ^= 1
        return parts

    monkeypatch.setattr("tercet.export.compressed_tensors.target.store", shifted)
    report = export(nonary, "compressed-tensors", tmp_path / "out", verify=True, tokens=TOKENS)
    assert not report.passed
    assert [m.module for m in report.modules if m.bit_equal] == ["model.embed_tokens"]


@pytest.mark.parametrize(
    ("section", "fragment"),
    [
        ({"quant_method": "hqq"}, "unknown quantization method 'hqq'"),
        (None, "nothing is quantized"),
    ],
)
def test_other_checkpoints_are_refused(section: Any, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    with pytest.raises((CheckpointError, UnsupportedError), match=fragment):
        import_checkpoint(tmp_path, tmp_path / "back")
