"""`generate` with a static cache: the decoder's step on transformers' own cache, or the reason."""

import copy
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    CompileConfig,
    DynamicCache,
    GenerationMixin,
    PreTrainedModel,
    StaticCache,
)

import tercet
from tercet.errors import UnsupportedError
from tercet.export.huggingface import token_call
from tercet.export.huggingface.packed_buffers import PackedBuffers
from tercet.export.huggingface.static_step import StaticStep

LAYERS = {"match": "*layers*", "format": "int4-g32", "algorithm": "rtn"}
EIGHT_BITS = {"match": "*embed_tokens", "format": "int8", "algorithm": "rtn"}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers compiles the step of a static cache, which it does not do on a CPU."""

    def criteria(_: Any, model_kwargs: dict[str, Any], config: Any) -> bool:
        return isinstance(model_kwargs.get("past_key_values"), StaticCache)

    monkeypatch.setattr(GenerationMixin, "_valid_auto_compile_criteria", criteria)


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How often the step was left to torch's compiler, which here compiles nothing."""
    asked: list[Any] = []

    def get_compiled_call(model: PreTrainedModel, config: Any) -> Callable[..., Any]:
        asked.append(config)
        return model.__call__

    monkeypatch.setattr(PreTrainedModel, "get_compiled_call", get_compiled_call)
    return asked


@pytest.fixture(scope="module")
def packed(make_case: Callable[..., Any]) -> Path:
    return make_case("llama", True, EIGHT_BITS, LAYERS).packed


def load(directory: Path, **options: Any) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, **options)


def generate(model: PreTrainedModel, ids: Tensor, count: int = 9, **more: Any) -> Tensor:
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, **more}
    return model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)


def step_of(model: PreTrainedModel) -> Any:
    return token_call._KEPT[model].step


KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "olmo2": {},
    # as long as no window is full
    "gemma2": {"sliding_window": 64, "attn_implementation": "eager"},
    "gemma3_text": {"sliding_window": 64},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False])
def test_tokens_and_scores_are_those_of_the_dynamic_cache(
    kind: str, tied: bool, make_case: Callable[..., Any], ids: Tensor, by_torch: list[Any]
) -> None:
    model = load(make_case(kind, tied, EIGHT_BITS, LAYERS).packed, **KINDS[kind])
    more = {"return_dict_in_generate": True, "output_logits": True}
    expected = generate(model, ids, **more)
    found = generate(model, ids, cache_implementation="static", **more)
    assert not by_torch
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)
    # the cache is as transformers would have left it
    caches, length = (found.past_key_values, expected.past_key_values), ids.shape[1] + 8
    assert [int(cache.get_seq_length()) for cache in caches] == [length, length]
    for one, other in zip(*(cache.layers for cache in caches), strict=True):
        assert int(one.get_seq_length()) == int(one.cumulative_length) == length
        for mine, theirs in ((one.keys, other.keys), (one.values, other.values)):
            torch.testing.assert_close(mine[:, :, :length], theirs, atol=1e-4, rtol=1e-4)


SLIDING = ["sliding_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("options", "taken", "reason"),
    [
        ({"sliding_window": 8, "layer_types": SLIDING}, 0, "beyond a sliding window"),
        # the sixth of nine tokens is the first that a window of 18 positions has no room for
        ({"sliding_window": 18, "layer_types": SLIDING}, 5, "beyond a sliding window"),
        ({"sliding_window": 18}, 0, "longer than a sliding window"),
    ],
)
def test_full_windows_are_left_to_torch(
    options: dict[str, Any],
    taken: int,
    reason: str,
    make_case: Callable[..., Any],
    ids: Tensor,
    by_torch: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(make_case("gemma3_text", True, LAYERS).packed, **options)
    steps: list[Any] = []
    run = StaticStep.run
    monkeypatch.setattr(StaticStep, "run", lambda *of: (steps.append(of), run(*of))[1])
    with pytest.warns(UserWarning, match=reason):
        found = generate(model, ids, cache_implementation="static")
    assert (len(steps), len(by_torch)) == (taken, 1)
    assert torch.equal(found, generate(model, ids))


def test_mixed_plan(mixed: Any, ids: Tensor, by_torch: list[Any]) -> None:
    model = load(mixed.packed)
    found = generate(model, ids, cache_implementation="static")
    assert torch.equal(found, generate(model, ids))
    assert not by_torch


def test_rows_that_are_no_whole_blocks(
    make_case: Callable[..., Any], ids: Tensor, by_torch: list[Any]
) -> None:
    """A head of 90 rows, which is fused with nothing; a block of the layout has 16."""
    source = make_case("llama", False, LAYERS).source
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(90)
    folder = source.parent
    model.save_pretrained(folder / "narrow")
    head = {"match": "lm_head", "format": "int4-g32", "algorithm": "rtn"}
    rules = {"name": "narrow", "rules": [EIGHT_BITS, head, LAYERS]}
    tercet.compress(folder / "narrow", tercet.Plan.model_validate(rules), folder / "narrow-packed")
    packed, ids = load(folder / "narrow-packed"), ids % 87 + 3
    found = generate(packed, ids, cache_implementation="static")
    assert torch.equal(found, generate(packed, ids))
    assert not by_torch


def test_a_later_cache_takes_the_place_of_one_that_is_gone(packed: Path, ids: Tensor) -> None:
    model = load(packed)
    first = generate(model, ids, cache_implementation="static")
    step = step_of(model)
    assert torch.equal(generate(model, ids.flip(0), cache_implementation="static"), first.flip(0))
    assert step_of(model) is step
    assert torch.equal(generate(model, ids[:1], cache_implementation="static"), first[:1])
    assert step_of(model) is not step


def test_a_cache_that_is_kept_is_not_written_over(packed: Path, ids: Tensor) -> None:
    model = load(packed)
    more = {"return_dict_in_generate": True, "cache_implementation": "static"}
    first = generate(model, ids, **more)
    before = [layer.keys.clone() for layer in first.past_key_values.layers]
    generate(model, ids.flip(0), **more)
    for layer, keys in zip(first.past_key_values.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)


def test_a_text_goes_on_with_the_cache_of_its_beginning(packed: Path, ids: Tensor) -> None:
    model = load(packed)
    expected = generate(model, ids, 12)
    cache = StaticCache(model.config, max_cache_len=ids.shape[1] + 16)
    part = generate(model, ids, 5, past_key_values=cache)
    assert torch.equal(generate(model, part, 7, past_key_values=cache), expected)


def test_weights_are_in_memory_once(packed: Path, ids: Tensor) -> None:
    model = load(packed)
    generate(model, ids, cache_implementation="static")
    modules = [one for one in model.modules() if isinstance(one, PackedBuffers)]
    storages = {one.prepared.codes.untyped_storage().data_ptr() for one in modules if one.prepared}
    # q|k|v, o, gate|up, down of each layer, and the embedding
    assert len(storages) == 4 * model.config.num_hidden_layers + 1
    decoder = token_call._KEPT[model].decoder
    assert decoder._layers[0].qkv.__self__.weight.codes.data_ptr() in {
        one.prepared.codes.data_ptr() for one in modules if one.prepared
    }


def test_what_was_made_of_a_model_goes_with_it(packed: Path, ids: Tensor) -> None:
    model = load(packed)
    generate(model, ids, cache_implementation="static")
    count = len(token_call._KEPT)
    del model
    gc.collect()
    assert len(token_call._KEPT) < count


def test_a_copy_and_a_saved_model_have_steps_of_their_own(
    packed: Path, ids: Tensor, tmp_path: Path
) -> None:
    model = load(packed)
    expected = generate(model, ids, cache_implementation="static")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.model.norm.weight.neg_()
    assert not torch.equal(generate(twin, ids, cache_implementation="static"), expected)
    assert step_of(twin) is not step_of(model)
    assert torch.equal(generate(model, ids, cache_implementation="static"), expected)
    model.save_pretrained(tmp_path / "again")
    assert tercet.open_packed(tmp_path / "again").config["architectures"] == ["LlamaForCausalLM"]


def _write_to_a_norm(model: Any) -> None:
    model.model.layers[1].input_layernorm.weight.mul_(-1.0)


def _replace_a_norm(model: Any) -> None:
    old = model.model.layers[0].post_attention_layernorm
    old.weight = nn.Parameter(old.weight * -1)


def _write_to_scales(model: Any) -> None:
    module = model.model.layers[0].mlp.up_proj
    module.get_buffer("weight_scale").mul_(4.0)
    module.prepared = None


@pytest.mark.parametrize("change", [_write_to_a_norm, _replace_a_norm, _write_to_scales])
def test_a_changed_model_has_another_step(
    change: Callable[[Any], None], packed: Path, ids: Tensor, by_torch: list[Any]
) -> None:
    model = load(packed)
    before = generate(model, ids, cache_implementation="static")
    with torch.no_grad():
        change(model)
    found = generate(model, ids, cache_implementation="static")
    assert not torch.equal(found, before)
    assert torch.equal(found, generate(model, ids))
    assert not by_torch


def _hook(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda _, __, output: output)


def _wrap(model: Any) -> None:
    model.model.layers[0].mlp = Wrapped(model.model.layers[0].mlp)


def _cast_a_norm(model: Any) -> None:
    model.model.norm.to(torch.bfloat16)


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * -1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_hook, r"model\.layers\.0 has hooks"),
        (_wrap, r"model\.layers\.0\.mlp is a .*Wrapped"),
        (_cast_a_norm, r"norm\.weight is torch\.bfloat16"),
    ],
)
@pytest.mark.parametrize("earlier", [True, False])
def test_a_model_that_is_another_is_left_to_torch(
    change: Callable[[Any], None],
    reason: str,
    earlier: bool,
    packed: Path,
    ids: Tensor,
    by_torch: list[Any],
) -> None:
    model = load(packed)
    if earlier:
        generate(model, ids, cache_implementation="static")
    change(model)
    with pytest.warns(UserWarning, match=reason):
        found = generate(model, ids, cache_implementation="static")
    assert len(by_torch) == 1
    assert torch.equal(found, generate(model, ids))


def test_padding_is_left_to_torch(packed: Path, ids: Tensor, by_torch: list[Any]) -> None:
    model = load(packed)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with pytest.warns(UserWarning, match="of one length, without padding"):
        found = generate(model, ids, attention_mask=mask, cache_implementation="static")
    assert len(by_torch) == 1
    assert torch.equal(found, generate(model, ids, attention_mask=mask))


def test_a_way_to_compile_that_was_asked_for_is_torchs(
    packed: Path, ids: Tensor, by_torch: list[Any]
) -> None:
    config = CompileConfig(backend="eager", mode="default")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        generate(load(packed), ids, cache_implementation="static", compile_config=config)
    assert by_torch == [config]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_steps_give_the_tokens_of_the_dynamic_cache(packed: Path, ids: Tensor) -> None:
    """Two sequences and one, in turns, so that graphs are captured, kept and replaced."""
    model, ids = load(packed).to("cuda"), ids.to("cuda")
    expected = generate(model, ids, 40)
    for rows in (2, 2, 1, 1, 2):
        found = generate(model, ids[:rows], 40, cache_implementation="static")
        assert torch.equal(found, expected[:rows])
        assert step_of(model)._captured is not None


def test_caps_that_transformers_leaves_out_are_not_put_in(
    make_case: Callable[..., Any], ids: Tensor
) -> None:
    """As sdpa did in transformers 5.17: the prompt's scores would have no caps either."""
    directory = make_case("gemma2", True, LAYERS).packed
    model = load(directory, sliding_window=64, attn_implementation="eager")
    cache = StaticCache(model.config, max_cache_len=20)
    with torch.no_grad():
        model(ids, past_key_values=cache)
    model.config._attn_implementation_internal = "sdpa"
    with pytest.raises(UnsupportedError, match="sdpa leaves out the caps"):
        model.get_compiled_call(None)._step_for({"input_ids": ids[:, :1], "past_key_values": cache})


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"input_ids": torch.ones(2, 3, dtype=torch.int64)}, r"ids \[B, 1\] of one new token"),
        ({"token_type_ids": torch.ones(2, 1, dtype=torch.int64)}, "no 'token_type_ids'"),
        ({"output_attentions": True}, "no 'output_attentions'"),
        ({"position_ids": torch.full((2, 1), 4)}, "no positions other than those of the cache"),
        ({"attention_mask": torch.ones(2, 14)}, r"no attention_mask of shape \[2, 14\]"),
        ({"past_key_values": DynamicCache()}, "a StaticCache of plain layers"),
    ],
)
def test_what_the_step_does_not_take_goes_to_torch(
    inputs: dict[str, Any],
    reason: str,
    packed: Path,
    ids: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        PreTrainedModel, "get_compiled_call", lambda *_: lambda **of: seen.append(of)
    )
    model = load(packed)
    cache = StaticCache(model.config, max_cache_len=20)
    with torch.no_grad():
        model(ids, past_key_values=cache)
        call = model.get_compiled_call(None)
        whole = {"input_ids": ids[:, :1], "past_key_values": cache, "use_cache": True, **inputs}
        with pytest.warns(UserWarning, match=reason):
            call(**whole)
    assert [one.keys() for one in seen] == [whole.keys()]
    assert int(cache.get_seq_length()) == ids.shape[1]
