"""MLX: bit-equal in mlx's own functions, right in mlx-lm, back without a change."""

import filecmp
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tercet
from tercet.checkpoints.imports.mlx import BITS, store_affine, store_mxfp4
from tercet.checkpoints.packed.origin import ORIGIN_NAME
from tercet.checkpoints.sources.safetensors_directory import open_weights
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.mlx import TARGET, client
from tercet.export.mlx.target import rotations
from tercet.formats import PackedTensor, encode, fit, parse_scheme
from tercet.workflows.export.report import record
from tercet.workflows.export.run import export
from tercet.workflows.import_checkpoint import import_checkpoint

mx = pytest.importorskip("mlx.core")

EMBEDDING = {"match": "model.embed_tokens", "format": "int8-g64", "algorithm": "rtn"}
FORMATS = {
    "ternary-g32": "affine int2 g32",
    "ternary-channel": "affine int2 g32",
    "int2-tensor": "affine int2 g32",
    "int3-g32": "affine int3 g32",
    "nonary-g96": "affine int4 g32",
    "int4-g32-asym": "affine int4 g32",
    "int5-g32-bfloat16": "affine int5 g32",
    "int6-g32": "affine int6 g32",
    "int8-channel": "affine int8 g32",
    "mxfp4": "mxfp4",
}
TOKENS = list(range(3, 19))


def layers(scheme: str, algorithm: str = "rtn") -> dict[str, Any]:
    return {"match": "*.layers.*", "format": scheme, "algorithm": algorithm}


def identical(first: Path, second: Path) -> None:
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    _, different, errors = filecmp.cmpfiles(first, second, names, shallow=False)
    assert (different, errors) == ([], [])


def packed_weight(name: str, rows: int = 24, columns: int = 384) -> PackedTensor:
    scheme = parse_scheme(name)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    weight[3] = 0
    return encode(weight, scheme, *fit(weight, scheme))


def array(tensor: torch.Tensor) -> Any:
    return mx.array((tensor.float() if tensor.is_floating_point() else tensor).numpy())


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("zero", ["", "-asym"])
@pytest.mark.parametrize("element", BITS)
def test_a_weight_is_what_mlx_makes_of_it(element: str, zero: str, group: int) -> None:
    weight = packed_weight(f"{element}-g128{zero}")
    parts = {name: array(tensor) for name, tensor in store_affine(weight, group).items()}
    found = mx.dequantize(*parts.values(), group_size=group, bits=BITS[element])
    assert np.array_equal(np.array(found), weight.dequantize().numpy())


def test_mxfp4_is_what_mlx_makes_of_it() -> None:
    weight = packed_weight("mxfp4")
    parts = [array(tensor) for tensor in store_mxfp4(weight).values()]
    found = mx.dequantize(*parts, group_size=32, bits=4, mode="mxfp4").astype(mx.float32)
    assert np.array_equal(np.array(found), weight.dequantize().numpy())


def test_a_bias_that_its_dtype_does_not_hold_widens_both() -> None:
    weight = packed_weight("int8-g128-asym")
    assert weight.zero is not None
    weight.zero[0, 0] = 77
    parts = store_affine(weight, 64)
    assert parts["scales"].dtype == parts["biases"].dtype == torch.float32
    assert store_affine(packed_weight("int8-g128"), 64)["biases"].dtype == torch.float16


@pytest.mark.parametrize("scheme", FORMATS)
def test_every_format_is_verified_and_comes_back(
    scheme: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("llama", True, EMBEDDING, layers(scheme)).packed
    report = export(packed, "mlx", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    kinds = {module.kind for module in report.modules if "layers" in module.module}
    assert FORMATS[scheme] in kinds
    assert all(module.bit_equal for module in report.modules)
    assert report.client is not None
    assert report.client.error < 1e-5
    assert report.client.greedy == report.client.our_greedy
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


def test_modules_of_different_widths(make_case: Callable[..., Any], tmp_path: Path) -> None:
    """Each with settings of its own, biases of linear layers beside those of groups."""
    head = {"match": "lm_head", "format": "int6-g64", "algorithm": "rtn"}
    down = {"match": "*.down_proj", "format": "mxfp4", "algorithm": "rtn"}
    packed = make_case("qwen2", False, EMBEDDING, head, down, layers("ternary-g64")).packed
    report = export(packed, "mlx", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert {module.kind for module in report.modules} == {
        "affine int8 g64", "affine int6 g64", "mxfp4", "affine int2 g64",
    }  # fmt: skip
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    assert (section["bits"], section["group_size"], section["mode"]) == (2, 64, "affine")
    assert section["lm_head"] == {"bits": 6, "group_size": 64, "mode": "affine"}
    import_checkpoint(tmp_path / "out", tmp_path / "back")
    identical(packed, tmp_path / "back")


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
FAR = {"rope_type": "default", "rope_theta": 30000.0}
ROTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", FAR),
    ("llama", {**LLAMA3, "rope_theta": 500.0}),
    ("qwen2", FAR),
    ("olmo2", FAR),
]


def test_rotations_of_two_kinds_of_layers() -> None:
    """As transformers 4 had Gemma 3's."""
    near = {"rope_type": "default", "rope_theta": 50.0}
    far = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    found = rotations({"rope_parameters": {"full_attention": far, "sliding_attention": near}})
    scaling = {"rope_type": "linear", "factor": 8.0}
    assert found == {"rope_theta": 1e6, "rope_scaling": scaling, "rope_local_base_freq": 50.0}
    assert rotations({"rope_theta": 7.0, "rope_parameters": {"rope_theta": 7.0}}) == {}
    assert rotations({}) == {}


def test_rotations_that_replace_others() -> None:
    """`rope_scaling` goes before `rope_parameters`, and its base too."""
    config = {"model_type": "smollm3", "rope_parameters": {"rope_theta": 7.0}, "rope_scaling": FAR}
    assert rotations(config) == {"rope_theta": FAR["rope_theta"]}
    assert rotations({**config, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}) == {
        "rope_theta": 2e6
    }
    assert rotations({**config, "rope_theta": 9.0, "rope_scaling": {"factor": 2.0}}) == {}


def rotated(kind: str, parameters: dict[str, Any], make_case: Any, tmp_path: Path) -> Path:
    """A packed model with those rotations; they are settings alone, so weights stay."""
    source = make_case(kind, True, EMBEDDING).source
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = parameters
    (source / "config.json").write_text(json.dumps(config))
    plan = tercet.Plan.model_validate({"name": "test", "rules": [EMBEDDING, layers("int8-g32")]})
    tercet.compress(source, plan, tmp_path / "packed")
    return tmp_path / "packed"


@pytest.mark.parametrize(("kind", "parameters"), ROTATIONS)
def test_rotations_are_read(
    kind: str, parameters: dict[str, Any], make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = rotated(kind, parameters, make_case, tmp_path)
    report = export(packed, "mlx", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert report.client is not None
    assert report.client.twin_error < 1e-5
    assert report.client.error < 1e-5


def test_a_client_that_fails_says_so_and_is_asked_again(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=f"mlx-lm failed on {tmp_path}: .*config"):
        client.logits(TARGET, tmp_path, TOKENS)
    packed = rotated("qwen2", {**FAR, "rope_theta": 20.0}, make_case, tmp_path)
    report = export(packed, "mlx", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed


def test_a_client_that_reads_another_model_is_found_out(
    make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export and twin are off alike: their difference says nothing."""
    monkeypatch.setattr("tercet.export.mlx.target.rotations", lambda _: {})
    packed = rotated("qwen2", {**FAR, "rope_theta": 20.0}, make_case, tmp_path)
    report = export(packed, "mlx", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.client is not None
    assert report.client.twin_error > 0.02
    assert not report.passed
    reason = record(report).reason
    assert reason is not None
    assert "the same model in float32 is off by" in reason


@pytest.mark.parametrize(
    ("kind", "what"), [("gemma2", "sliding window"), ("gemma3_text", "order of layers")]
)
def test_windows_that_mlx_lm_does_not_know_are_refused(
    kind: str, what: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    """Beyond the window it would compute another model, which a short text does not show."""
    packed = make_case(kind, True, EMBEDDING, layers("int4-g64")).packed
    with pytest.raises(UnsupportedError, match=what):
        export(packed, "mlx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rules", "fragments"),
    [
        ([layers("int4-g32", "awq")], ["input scale", "MLX multiplies plain inputs"]),
        ([layers("int4-g32-hqq")], ["zero points in float16", "-asym"]),
        ([layers("nvfp4")], ["nvfp4: MLX holds ternary", "mxfp4", "int4 or int8"]),
        ([layers("fp8_e4m3-channel")], ["fp8_e4m3-channel: MLX holds"]),
        ([layers("int4-g48")], ["64 columns", "a group of 32, 64 or 128"]),
        ([layers("int8-b32x32")], ["per group of a row"]),
        ([layers("int4-g32-float32")], ["scales in float32", "fp16 scales"]),
    ],
)
def test_refusals_name_the_alternative(
    rules: list[dict[str, Any]], fragments: list[str], refusal: Callable[..., str]
) -> None:
    found = refusal(TARGET, *rules)
    for fragment in fragments:
        assert fragment in found


@pytest.fixture
def exported(make_case: Callable[..., Any], tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint, and its export."""
    packed = make_case("llama", False, EMBEDDING, layers("nonary-g32-asym")).packed
    TARGET.write(tercet.open_packed(packed), tmp_path / "out")
    return packed, tmp_path / "out"


def test_without_its_origin_it_is_a_foreign_checkpoint(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    packed, out = exported
    (out / ORIGIN_NAME).unlink()
    (out / "SHA256SUMS").unlink()
    # as a quantizer leaves it that takes the largest weight's sign for the scale's
    for path in out.glob("*.safetensors"):
        tensors = load_file(path)
        for name in [n.removesuffix(".scales") for n in tensors if n.endswith(".up_proj.scales")]:
            words = tensors[f"{name}.weight"].view(torch.int32)
            tensors[f"{name}.weight"] = (~words).view(torch.uint32)
            scales, biases = tensors[f"{name}.scales"], tensors[f"{name}.biases"]
            tensors[f"{name}.biases"] = (biases.float() + 15 * scales.float()).float()
            tensors[f"{name}.scales"] = -scales
        save_file(tensors, path, {"format": "mlx"})
    import_checkpoint(out, tmp_path / "back")
    found, own = tercet.open_packed(tmp_path / "back"), tercet.open_packed(packed)
    found.verify()
    assert set(found.modules) == set(own.modules)
    for module in own.modules:
        values = own.read_packed(module).dequantize()
        assert torch.equal(found.read_packed(module).dequantize(), values), module
    assert "quantization" not in json.loads((tmp_path / "back" / "config.json").read_text())


def test_what_mlx_quantized_itself_is_refused(exported: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = exported
    (out / ORIGIN_NAME).unlink()
    (out / "SHA256SUMS").unlink()
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    words, scales, biases = mx.quantize(mx.array(weight.numpy()), group_size=32, bits=4)
    parts = {"weight": words, "scales": scales, "biases": biases}
    path = open_weights(out)[1]["model.layers.1.mlp.up_proj.weight"].path
    tensors = load_file(path)
    for part, value in parts.items():
        tensors[f"model.layers.1.mlp.up_proj.{part}"] = torch.from_numpy(np.array(value))
    save_file(tensors, path, {"format": "mlx"})
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mlp\.up_proj: its biases are no whole"):
        import_checkpoint(out, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_size": 64}, "are not of one weight in 4 bits and groups of 64"),
        ({"bits": None}, "gives bits None and group_size 32 for all modules"),
        ({"mode": "mxfp8"}, "mode 'mxfp8' is not read; affine and mxfp4 are"),
    ],
)
def test_a_wrong_section_is_refused(
    change: dict[str, Any], message: str, exported: tuple[Path, Path], tmp_path: Path
) -> None:
    _, out = exported
    (out / ORIGIN_NAME).unlink()
    (out / "SHA256SUMS").unlink()
    config = json.loads((out / "config.json").read_text())
    config["quantization"] |= change
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises((CheckpointError, UnsupportedError), match=message):
        import_checkpoint(out, tmp_path / "back")
