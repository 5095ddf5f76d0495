"""What cannot be held is refused with the reason and the way out."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tercet.checkpoints.gguf.header import read_gguf_header
from tercet.checkpoints.packed.read import open_packed
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.gguf import TARGET, GgufTarget

IDS = torch.randint(3, 96, (24,), generator=torch.Generator().manual_seed(3)).tolist()


REFUSALS = [
    (
        "TQ2_0",
        "ternary-g64",
        {},
        "TQ2_0 holds one scale per 256 weights; this .* group 64: use Q2_0",
    ),
    ("TQ1_0", "ternary-g32", {}, "one scale per 256 weights; this tensor has group 32: use Q4_0"),
    (
        "TQ2_0",
        "ternary-channel",
        {"hidden_size": 320, "num_attention_heads": 5, "num_key_value_heads": 1},
        "TQ2_0 has blocks of 256 weights; this tensor has 320 columns: use Q2_0",
    ),
    ("TQ2_0", "nonary-channel", {}, "TQ2_0 holds -1 to 1, nonary has -4 to 4: use Q4_0"),
    ("MXFP4", "int4-g32", {}, "MXFP4 holds fp4_e2m1 times a power of two, as mxfp4 .*: use Q4_0"),
    ("Q2_0", "nonary-g64", {}, "Q2_0 holds -1 to 2, nonary has -4 to 4: use Q4_0"),
    ("Q4_0", "int4-g64-asym", {}, "Q4_0 has no zero points and holds -8 to 7; .*: use Q5_0"),
    (
        None,
        "int4-g64-hqq",
        {},
        "zero points, and this tensor's are no whole.*: compress to int4-g32",
    ),
    (None, "nonary-g24", {}, "Q4_0 holds one scale per 32 weights; .* 24: compress to nonary-g32"),
    (
        None,
        "nvfp4",
        {},
        "whole numbers times one scale, fp4_e2m1 has others: compress to mxfp4",
    ),
    (None, "nonary-g64-float32", {}, "no fp16 numbers.*: compress with fp16 scales: nonary-g64$"),
]


@pytest.mark.parametrize(("kind", "layers", "sizes", "message"), REFUSALS)
def test_refusals_name_the_reason_and_the_way_out(
    kind: str | None, layers: str, sizes: dict[str, Any], message: str, make: Any, tmp_path: Path
) -> None:
    target = TARGET if kind is None else TARGET.variant(kind)
    algorithm = "hqq" if "hqq" in layers else "rtn"
    checkpoint = make(layers=layers, algorithm=algorithm, **sizes)
    with pytest.raises(UnsupportedError, match=message):
        target.write(checkpoint, tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("algorithm", "layers", "message"),
    [
        ("awq", "int4-g32", "input scale"),
        ("hadamard", "nonary-g32", "Hadamard rotation of size"),
        ("smoothquant", "int8-channel", "input scale"),
    ],
)
def test_transformed_inputs_are_refused(
    algorithm: str, layers: str, message: str, make: Any, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=f"{message}.*llama.cpp multiplies plain inputs"):
        TARGET.write(make(layers=layers, algorithm=algorithm), tmp_path / "a.gguf")


def test_what_llama_cpp_lacks_is_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"GGUF architecture 'stablelm'.*huggingface"):
        TARGET.write(make("stablelm"), tmp_path / "a.gguf")
    with pytest.raises(UnsupportedError, match="no biases on queries, keys and values: export"):
        TARGET.write(make("llama", attention_bias=True), tmp_path / "a.gguf")
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    with pytest.raises(UnsupportedError, match="'qwen2' has no sliding window"):
        TARGET.write(make("qwen2", **window), tmp_path / "a.gguf")
    for kind, options, message in (
        ("gemma2", {"attn_logit_softcapping": None}, "no scores without caps"),
        ("gemma2", {"query_pre_attn_scalar": 24}, "no scores scaled by 0.204124"),
        ("gemma2", {"tied": False}, "no output projection of its own"),
        (
            "smollm3",
            {"no_rope_layers": [1, 1, 0, 1]},
            "no rotary positions but in all",
        ),
        ("mistral", {"sliding_window": 8}, "'llama' has no sliding window"),
        ("mistral", {"num_attention_heads": 6}, "no hidden size other than a multiple of its"),
        ("olmoe", {"tied": False, "num_key_value_heads": 2}, "no fewer heads of keys than"),
        ("qwen3_moe", {"norm_topk_prob": False}, "one whose weights are made to add up to 1"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "no layer without experts"),
        ("olmo2", {"tied": True}, "no output projection tied to the embedding"),
        ("gemma3_text", {"layer_types": ["full_attention"] * 6}, "other than each 6th"),
        ("gemma3_text", {"hidden_activation": "silu"}, "no hidden_act 'silu' .gelu_pytorch_tanh"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            TARGET.write(make(kind, **options), tmp_path / "a.gguf")
    with pytest.raises(UnsupportedError, match="unknown GGUF type 'TQ3_0'"):
        GgufTarget().variant("TQ3_0")


def test_the_client_is_named_where_it_is_missing(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TARGET.write(make(), tmp_path / "a.gguf")

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("tercet.export.target.import_module", missing)
    with pytest.raises(UnsupportedError, match=r"xllamacpp, .*pip install 'tercet\[gguf\]'"):
        TARGET.logits(tmp_path / "a.gguf", IDS)


def test_a_file_in_the_way_stays(make: Any, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="exists already"):
        TARGET.write(make(), tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == b"mine"


def test_llama_cpp_says_why_it_refuses(make: Any, client: Any, tmp_path: Path) -> None:
    TARGET.write(make(), tmp_path / "a.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "a.gguf").read_bytes()[:-4096])
    with pytest.raises(UnsupportedError, match=r"llama.cpp failed on .*cut.gguf: .*error loading"):
        TARGET.logits(tmp_path / "cut.gguf", IDS)


@pytest.mark.parametrize(
    ("folder", "name"), [("my-Phi-3-llama", "my-phi_3-llama"), ("phi3", "phi_3"), ("phi", "phi")]
)
def test_a_name_is_not_taken_for_phi_3(make: Any, tmp_path: Path, folder: str, name: str) -> None:
    """llama.cpp looks up Phi-3's special tokens by the model's name."""
    copied = Path(shutil.copytree(make().directory, tmp_path / folder))
    TARGET.write(open_packed(copied), tmp_path / "a.gguf")
    assert read_gguf_header(tmp_path / "a.gguf").fields["general.name"] == name
