"""transformers loads what compress wrote: right numbers, whole round trips, or a refusal."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import tiny_decoders
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaModel,
    OlmoConfig,
    OlmoForCausalLM,
    PreTrainedModel,
)

import tercet
from tercet.checkpoints.seal import verified
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export.huggingface import register

ALGORITHMS = {
    "rtn": "int4-g32-asym",
    "gptq": "int3-g32",
    "awq": "int4-g32",
    "hadamard": "nonary-g32",
    "smoothquant": "int8-channel",
    "trit_planes": "ternary-g32",
    "hqq": "int4-g32-hqq",
}
EMBEDDING = {"match": "model.embed_tokens", "format": "int8", "algorithm": "rtn"}
HEAD = {"match": "lm_head", "format": "int4-g32", "algorithm": "gptq"}


@torch.no_grad()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    return model(input_ids=ids, use_cache=False).logits


def load(directory: Path, **options: Any) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, **options)


def agree(case: Any, ids: Tensor, limit: float = 1e-4) -> None:
    expected = logits_of(case.effective(), ids)
    assert (expected - logits_of(case.model, ids)).abs().max() > 1e-2
    torch.testing.assert_close(logits_of(load(case.packed), ids), expected, atol=limit, rtol=1e-4)
    own = tercet.load(case.packed, torch.float32).logits(ids).cpu()
    torch.testing.assert_close(own, expected, atol=limit, rtol=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_means_its_dequantized_weights(
    algorithm: str, make_case: Callable[..., Any], ids: Tensor
) -> None:
    rule = {"match": "*.layers.*", "format": ALGORITHMS[algorithm], "algorithm": algorithm}
    agree(make_case("llama", True, rule), ids)


NORMS_IN_OTHER_PLACES = pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "olmo2"])


@NORMS_IN_OTHER_PLACES
@pytest.mark.parametrize("algorithm", ["gptq", "awq", "hadamard"])
def test_norms_in_other_places(
    kind: str, algorithm: str, make_case: Callable[..., Any], ids: Tensor
) -> None:
    """Scales and rotations are the layer's own, so no norm has to stand before it to take them."""
    rule = {"match": "*.layers.*", "format": ALGORITHMS[algorithm], "algorithm": algorithm}
    case = make_case(kind, kind != "olmo2", EMBEDDING, rule)
    agree(case, ids, 3e-4)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": -1}
    prompt = ids[:1]
    options["attention_mask"] = torch.ones_like(prompt)
    expected = case.effective().generate(prompt, **options)
    assert torch.equal(load(case.packed).generate(prompt, **options), expected)
    session, given = tercet.load(case.packed, torch.float32), prompt
    while given.shape[1] < expected.shape[1]:
        chosen = session.logits(given)[:, -1].argmax(-1, keepdim=True).cpu()
        given = torch.cat((given, chosen), 1)
    assert torch.equal(given, expected)


@NORMS_IN_OTHER_PLACES
def test_norms_in_other_places_with_quantized_inputs(
    kind: str, make_case: Callable[..., Any], ids: Tensor
) -> None:
    rule = {"match": "*.layers.*", "format": "int8-channel", "algorithm": "smoothquant"}
    case = make_case(kind, True, EMBEDDING, rule)
    expected = logits_of(case.effective(), ids)
    own = tercet.load(case.packed, torch.float32).logits(ids).cpu()
    for found in (logits_of(load(case.packed), ids), own):
        # a value at a tie may be rounded to either side, which the tokens behind it all see
        assert float((found - expected).norm() / expected.norm()) < 0.03


def test_mixed_plan(mixed: Any, ids: Tensor) -> None:
    agree(mixed, ids)
    packed = tercet.open_packed(mixed.packed)
    assert "model.layers.0.self_attn.o_proj.weight" in packed.names()
    assert len(packed.modules) == 1 + 2 * 6


@pytest.mark.parametrize("tied", [True, False])
def test_qwen2_with_biases(tied: bool, make_case: Callable[..., Any], ids: Tensor) -> None:
    layers = {"match": "*.layers.*", "format": "nonary-g32", "algorithm": "gptq"}
    case = make_case("qwen2", tied, {**EMBEDDING, "format": "int4-g32"}, HEAD, layers)
    assert ("lm_head" in tercet.open_packed(case.packed).modules) is not tied
    agree(case, ids)
    assert load(case.packed).model.layers[0].self_attn.q_proj.bias.abs().min() >= 0.5


@pytest.mark.parametrize("pack", ["embedding", "head"])
def test_an_untied_model_packs_either_end_alone(
    pack: str, make_case: Callable[..., Any], ids: Tensor
) -> None:
    case = make_case("qwen2", False, EMBEDDING if pack == "embedding" else HEAD)
    agree(case, ids)


def test_generation_is_that_of_the_effective_model(mixed: Any, ids: Tensor) -> None:
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    found = load(mixed.packed).generate(ids, **options)
    assert torch.equal(found, mixed.effective().generate(ids, **options))


def test_is_compiled_before_its_first_use(mixed: Any, ids: Tensor) -> None:
    """In one graph, as `generate` does with a static cache on a GPU, and after a cast."""
    model = load(mixed.packed)
    expected = logits_of(load(mixed.packed), ids)
    assert model.hf_quantizer.is_compileable
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(logits_of(compiled, ids), expected)
    half = load(mixed.packed).to(torch.bfloat16)
    torch.compiler.reset()
    compiled = torch.compile(half, backend="aot_eager", fullgraph=True)
    assert torch.equal(logits_of(compiled, ids), logits_of(half, ids))
    torch.compiler.reset()


def test_continuous_batching_is_that_of_the_effective_model(mixed: Any, ids: Tensor) -> None:
    """Prompts of several lengths, a few at a time: no prompt's tokens depend on those beside it."""
    prompts = [ids[0].tolist(), ids[1, :5].tolist(), ids[0, 3:].tolist()]
    found = load(mixed.packed, attn_implementation="sdpa").generate_batch(
        inputs=prompts,
        generation_config=GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1),
        # left to itself it takes most of the memory for its cache
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64),
    )
    tokens = sorted(found[name].generated_tokens for name in found)
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": -1}
    model, expected = mixed.effective(), []
    for prompt in map(torch.tensor, prompts):
        row = model.generate(prompt[None], attention_mask=torch.ones_like(prompt[None]), **options)
        expected.append(row[0, len(prompt) :].tolist())
    assert tokens == sorted(expected)
    assert len(set(map(tuple, tokens))) == len(prompts)


def test_save_pretrained_round_trip(mixed: Any, ids: Tensor, tmp_path: Path) -> None:
    first = load(mixed.packed)
    first.save_pretrained(tmp_path / "again")
    again = tercet.open_packed(tmp_path / "again")
    again.verify()
    before = tercet.open_packed(mixed.packed)
    assert again.modules == before.modules
    assert again.layout == before.layout
    for name in before.layout:
        assert torch.equal(again.tensor(name), before.tensor(name)), name
    assert torch.equal(logits_of(load(tmp_path / "again"), ids), logits_of(first, ids))
    assert torch.equal(
        tercet.load(tmp_path / "again").logits(ids), tercet.load(mixed.packed).logits(ids)
    )


def test_what_is_saved_is_vouched_for_also_over_what_was_read(
    mixed: Any, ids: Tensor, tmp_path: Path
) -> None:
    """The seal and the index of shards that were there are of other files."""
    copytree(mixed.packed, tmp_path / "own")
    model = load(tmp_path / "own")
    expected = logits_of(model, ids)
    for folder in ("own", "other"):
        model.save_pretrained(tmp_path / folder)
        found = tercet.open_packed(tmp_path / folder)
        assert found.manifest is not None
        assert found.manifest.source == tercet.open_packed(mixed.packed).manifest.source
        assert torch.equal(logits_of(load(tmp_path / folder), ids), expected)
        with verified(tmp_path / folder):
            found.verify()
    weights = tmp_path / "other" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: sha256"):
        load(tmp_path / "other")
    with pytest.raises(UnsupportedError, match="variant='fp16': packed weights have one form"):
        model.save_pretrained(tmp_path / "variant", variant="fp16")
    assert not (tmp_path / "variant").exists()


def test_a_model_without_parameters_has_a_dtype_and_a_device(tmp_path: Path, ids: Tensor) -> None:
    """OLMo's norms have no weights: packed whole, it has no parameter of its own."""
    torch.manual_seed(0)
    config = OlmoConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        eos_token_id=2,
    )
    OlmoForCausalLM(config).save_pretrained(tmp_path / "source")
    tercet.compress(
        tmp_path / "source", "int8-g64", tmp_path / "packed", calibration=ids.repeat(2, 4)
    )
    model = load(tmp_path / "packed")
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")
    assert model.generate(ids[:1], max_new_tokens=3, do_sample=False).shape[1] > ids.shape[1]
    before = set(tercet.open_packed(tmp_path / "packed").layout)
    assert set(model.state_dict()) == before
    model.load_state_dict(model.state_dict())
    model.save_pretrained(tmp_path / "again")
    assert set(tercet.open_packed(tmp_path / "again").layout) == before
    assert model.to(torch.bfloat16).dtype == torch.bfloat16


def test_a_model_with_code_of_its_own_loads_without_it(tmp_path: Path, ids: Tensor) -> None:
    """transformers knows the class, and the code is not copied; many always trust it."""
    source = tiny_decoders.save("llama", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (source / "config.json").write_text(json.dumps(config))
    tercet.compress(source, tiny_decoders.plan("int4-g16", None, algorithm="rtn"), tmp_path / "out")
    few = ids % 64
    expected = tercet.load(tmp_path / "out", torch.float32).logits(few).cpu()
    found = logits_of(load(tmp_path / "out", trust_remote_code=True), few)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_bfloat16_keeps_the_scales_exact(mixed: Any, ids: Tensor) -> None:
    model = load(mixed.packed, dtype=torch.bfloat16)
    assert model.model.norm.weight.dtype == torch.bfloat16
    checkpoint = tercet.open_packed(mixed.packed)
    held = dict(model.named_buffers())
    stored = checkpoint.quantization.layout()
    assert stored
    for name in stored:
        assert held[name].dtype == checkpoint.tensor(name).dtype, name
        assert torch.equal(held[name], checkpoint.tensor(name)), name
    expected = logits_of(mixed.effective(), ids)
    found = logits_of(model, ids)
    assert found.dtype == torch.bfloat16
    error = (found.float() - expected).norm() / expected.norm()
    assert 0 < error < 0.05
    torch.nn.Module.float(model)
    assert model.model.norm.weight.dtype == torch.float32
    for name in stored:
        assert dict(model.named_buffers())[name].dtype == checkpoint.tensor(name).dtype, name


@pytest.fixture
def damaged(mixed: Any, tmp_path: Path) -> Callable[[Callable[[dict[str, Tensor]], None]], Path]:
    """The checkpoint as one file without manifest, after its tensors were changed."""

    def change(edit: Callable[[dict[str, Tensor]], None]) -> Path:
        target = copytree(mixed.packed, tmp_path / "damaged")
        tensors: dict[str, Tensor] = {}
        for path in target.glob("*.safetensors"):
            tensors.update(load_file(path))
            path.unlink()
        (target / "model.safetensors.index.json").unlink(missing_ok=True)
        (target / "tercet_manifest.json").unlink()
        (target / "SHA256SUMS").unlink()
        edit(tensors)
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
        return target

    return change


def test_an_untouched_copy_loads(damaged: Any, mixed: Any, ids: Tensor) -> None:
    target = damaged(lambda tensors: None)
    assert torch.equal(logits_of(load(target), ids), logits_of(load(mixed.packed), ids))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("model.layers.1.mlp.up_proj.weight_packed", "weight_packed' is missing"),
        ("model.layers.0.self_attn.q_proj.input_scale", "input_scale' is missing"),
        ("model.layers.0.self_attn.o_proj.weight", "fill it at random"),
        ("model.norm.weight", "fill it at random"),
    ],
)
def test_a_removed_tensor_is_refused(name: str, fragment: str, damaged: Any) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        load(damaged(lambda tensors: tensors.pop(name)))


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("model.layers.1.mlp.up_proj.weight_packed", "the file has torch.uint8"),
        ("model.layers.1.mlp.up_proj.weight_scale", "the file has torch.float16"),
        ("model.layers.0.self_attn.o_proj.weight", r"has shape \[63, 64\]"),
    ],
)
def test_a_wrong_shape_is_refused(name: str, fragment: str, damaged: Any) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        load(damaged(lambda tensors: tensors.update({name: tensors[name][:-1].clone()})))


def test_a_scale_that_is_no_number_is_refused(damaged: Any) -> None:
    name = "model.layers.1.mlp.up_proj.weight_scale"
    with pytest.raises(CheckpointError, match=r"up_proj\.scale: 1 values not finite or negative"):
        load(damaged(lambda tensors: tensors[name][0, 0].fill_(torch.nan)))


def test_the_wrong_class_is_refused(mixed: Any) -> None:
    with pytest.raises(CheckpointError, match=r"LlamaModel.*class that config.json names"):
        LlamaModel.from_pretrained(mixed.packed)


def test_activations_of_another_dtype_are_refused_before_loading(mixed: Any) -> None:
    with pytest.raises(UnsupportedError, match="float64: activations may be float32, bfloat16"):
        AutoModelForCausalLM.from_pretrained(mixed.packed, dtype=torch.float64)


def test_a_config_of_another_size_is_refused(mixed: Any, tmp_path: Path) -> None:
    target = copytree(mixed.packed, tmp_path / "changed")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    with pytest.raises(CheckpointError, match=r"config\.json: sha256 .* sealed as"):
        load(target)
    (target / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"packed with shape \[\d+, \d+\], config.json makes"):
        load(target)


LOADING = """
import sys, warnings
{imports}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(type(model.model.layers[0].mlp.up_proj).__name__)
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import tercet; import transformers",
        "import transformers; import tercet",
        "from transformers import AutoModelForCausalLM; import tercet",
    ],
)
def test_either_order_of_imports_registers(imports: str, mixed: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING.format(imports=imports), str(mixed.packed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "PackedLinearForTransformers", done.stderr


def test_import_alone_does_not_load_transformers() -> None:
    code = "import sys, tercet; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_registering_twice_is_harmless() -> None:
    register()
    register()
