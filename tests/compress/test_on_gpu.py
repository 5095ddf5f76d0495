"""compress on a GPU gives what it gives on a CPU; where there is no GPU, on a pretended one."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_gpu import any_gpu
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig

import tercet  # noqa: F401  (transformers then reads packed checkpoints)
from tercet.checkpoints.packed.read import open_packed
from tercet.compress.calibration.rescale_triton import rescale
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import Plan
from tercet.compress.ptq import algorithms

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
MODELS = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2_moe": Qwen2MoeConfig(
        **SHAPE,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
}
RULES = [
    ("int4-g32", "gptq", {}),
    ("ternary-g32", "gptq", {"refine": 1}),
    ("int3-g32-asym", "awq", {"steps": 4}),
    ("int4-g32", "hqq", {}),
    ("int8-channel", "smoothquant", {}),
    ("nonary-g32", "trit_planes", {"rounds": 2}),
    ("int4-g32", "hadamard", {}),
    ("mxfp4", "gptq", {}),
    ("nvfp4", "rtn", {}),
    ("ternary-channel", "qat", {"activation": "int8_token"}),
]


def save(kind: str, folder: Path) -> Path:
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(deepcopy(MODELS[kind])).eval().save_pretrained(folder)
    return folder


def plan(form: str, algorithm: str, options: dict[str, Any]) -> Plan:
    rules = [
        {"match": "*embed_tokens", "format": "int8-g32", "algorithm": "rtn"},
        {"match": "lm_head", "format": "int8-g32", "algorithm": "gptq"},
        {"match": "*", "format": form, "algorithm": algorithm, "options": options},
    ]
    return Plan.model_validate({"name": "tried", "rules": rules})


def tokens(sequences: int = 20) -> Tensor:
    return torch.randint(3, 95, (sequences, 16), generator=torch.Generator().manual_seed(0))


def assert_as_good(found: Path, expected: Path, source: Path) -> None:
    """Sums in another order and narrower inputs round weights another way, and no worse."""
    here, there = open_packed(found), open_packed(expected)
    assert here.modules == there.modules
    for name in here.modules:
        error, other = (one.manifest.modules[name].relative_error for one in (here, there))
        assert error == pytest.approx(other, rel=0.1), name
    assert distance(found, source) == pytest.approx(distance(expected, source), rel=0.1)


@torch.no_grad()
def distance(directory: Path, source: Path) -> float:
    """Between the logits of both models, as a share of those."""
    ids = tokens(8) + 1
    found, wanted = (
        AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32)(input_ids=ids).logits
        for one in (directory, source)
    )
    return float((found - wanted).norm() / wanted.norm())


def test_every_algorithm_is_tried() -> None:
    assert {algorithm for _, algorithm, _ in RULES} == set(algorithms())


@pytest.mark.parametrize(("form", "algorithm", "options"), RULES, ids=lambda v: str(v))
def test_every_algorithm(
    form: str,
    algorithm: str,
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    source, chosen = save("llama", tmp_path / "source"), plan(form, algorithm, options)
    compress(source, chosen, tmp_path / "cpu", calibration=tokens(), device="cpu")
    with any_gpu() as device:
        result = compress(source, chosen, tmp_path / "gpu", calibration=tokens(), device=device)
    assert result.device_peak_bytes > 0
    assert_as_good(tmp_path / "gpu", tmp_path / "cpu", source)


def test_experts(tmp_path: Path) -> None:
    source, chosen = save("qwen2_moe", tmp_path / "source"), plan("int4-g32", "gptq", {})
    compress(source, chosen, tmp_path / "cpu", calibration=tokens(), device="cpu")
    with any_gpu() as device:
        compress(source, chosen, tmp_path / "cuda", calibration=tokens(), device=device)
    assert_as_good(tmp_path / "cuda", tmp_path / "cpu", source)


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    source, chosen = save("llama", tmp_path / "source"), plan("nonary-g32", "gptq", {})

    def run(out: str, progress: Progress | None = None, resume: bool = False) -> None:
        with any_gpu() as device:
            compress(
                source,
                chosen,
                tmp_path / out,
                calibration=tokens(),
                device=device,
                progress=progress,
                resume=resume,
            )

    def kill(done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", Progress(unit=kill))
    run("cut", resume=True)
    for file in (tmp_path / "whole").glob("*.safetensors"):
        assert (tmp_path / "cut" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 3), (5, 7), (3, 4096), (2, 4097)])
def test_a_tensor_times_a_number_is_rounded_once(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    factor = torch.tensor(0.3)
    with any_gpu() as device:
        there = x.to(device)
        out = torch.empty(shape, dtype=dtype, device=device)
        found = rescale(there, factor.to(device), out).cpu()
    assert torch.equal(found, (x * factor).to(dtype))
