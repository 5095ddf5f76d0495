import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoders
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from tercet.compress.pipeline import compress
from tercet.errors import CheckpointError, UnsupportedError
from tercet.models import Decoder
from tercet.runtime import GenerationSettings, Generator, Message, load
from tercet.runtime.settings import read_settings

PROMPT = [256, 20, 40, 60]


def test_greedy_matches_transformers(session: Generator, teacher: LlamaForCausalLM) -> None:
    expected = teacher.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False)
    result = session.generate(PROMPT, max_new_tokens=40, ignore_stop=True)
    count = expected.shape[1] - len(PROMPT)
    assert list(result.ids[:count]) == expected[0, len(PROMPT) :].tolist()
    assert (result.prompt_tokens, len(result.ids), result.reason) == (4, 40, "length")
    assert result.decode_tokens_per_s > 0
    assert result.prefill_tokens_per_s > 0


def test_prefill_in_chunks_changes_nothing(
    session: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = session.generate(PROMPT * 5, max_new_tokens=20)
    monkeypatch.setattr(Decoder, "prompt_chunk", 3)
    assert session.generate(PROMPT * 5, max_new_tokens=20).ids == whole.ids


def test_stops_before_an_end_of_text_token(session: Generator) -> None:
    free = session.generate(PROMPT, max_new_tokens=10, ignore_stop=True)
    third = free.ids[2]
    session.stop = frozenset({third})
    stopped = session.generate(PROMPT, max_new_tokens=10)
    assert stopped.ids == free.ids[: free.ids.index(third)]
    assert stopped.reason == "stop"


def test_stop_ids_come_from_all_files(session: Generator) -> None:
    assert session.stop == {257}
    del session.stop
    (session.directory / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert session.stop == {5, 6, 257}


def test_a_packed_model_ends_texts_where_the_original_does(tmp_path: Path) -> None:
    """Chat models end an answer by an id that generation_config.json alone has."""
    folder = tiny_decoders.save("llama", tmp_path / "model")
    stops = {"eos_token_id": [2, 7], "temperature": 0.6, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(stops))
    compress(folder, tiny_decoders.plan("int4-g16", None, algorithm="rtn"), tmp_path / "packed")
    assert load(tmp_path / "packed").stop == {2, 7}
    found = GenerationConfig.from_pretrained(tmp_path / "packed")
    assert (found.eos_token_id, found.temperature, found.do_sample) == ([2, 7], 0.6, True)


def test_stops_when_the_positions_are_full(session: Generator) -> None:
    result = session.generate(PROMPT * 19, max_new_tokens=100, ignore_stop=True)
    assert (len(result.ids), result.reason) == (4, "length")
    with pytest.raises(UnsupportedError, match="80 tokens leaves no room: the model has 80"):
        session.generate(PROMPT * 20)


def test_stream_is_the_text(session: Generator) -> None:
    pieces = session.stream("ab", chat=False, max_new_tokens=30, temperature=1.0, seed=3)
    with pytest.raises(UnsupportedError, match="stream is not finished"):
        _ = pieces.result
    text = "".join(pieces)
    assert text == pieces.result.text
    again = session.generate("ab", chat=False, max_new_tokens=30, temperature=1.0, seed=3)
    assert again.ids == pieces.result.ids


def test_prompts_of_each_kind(session: Generator) -> None:
    chat = session.encode("hi")
    assert session.tokenizer.decode(chat) == "u:hi>"
    assert session.encode([Message(role="user", content="hi")]) == chat
    assert session.tokenizer.decode(session.encode("hi", chat=False)) == "hi"
    assert session.encode(PROMPT) == PROMPT
    with pytest.raises(UnsupportedError, match="ids and messages mixed"):
        session.encode([1, Message(role="user", content="hi")])  # pyright: ignore[reportArgumentType]


def test_ids_may_be_a_tensor_or_an_array(session: Generator) -> None:
    kinds: list[Any] = [torch.tensor(PROMPT), np.array(PROMPT), list(np.array(PROMPT)), range(3)]
    for ids in kinds:
        found = session.encode(ids)
        assert found == list(ids)
        assert {type(index) for index in found} == {int}


@pytest.mark.parametrize(
    ("prompt", "given"),
    [
        (torch.tensor([PROMPT]), r"a prompt of shape \[1, 4\]: one prompt at a time"),
        (np.zeros((2, 3), int), r"a prompt of shape \[2, 3\]"),
        (torch.tensor([1.0, 2.0]), "a prompt with an entry of type float"),
        (["a", "b"], "a prompt with an entry of type str"),
        ([[1, 2], [3]], "a prompt with an entry of type list"),
        ([True], "a prompt with an entry of type bool"),
        (b"ab", "a prompt of type bytes"),
        (None, "a prompt of type NoneType"),
        ({"role": "user", "content": "a"}, "a prompt of type dict"),
        ([{"text": "a"}], r"a message with the keys \['text'\]"),
    ],
)
def test_a_prompt_of_another_type_is_named(session: Generator, prompt: Any, given: str) -> None:
    (session.directory / "tokenizer_config.json").unlink()
    with pytest.raises(UnsupportedError, match=rf"{given}.*: give text \(str\), token ids"):
        session.generate(prompt)


@pytest.mark.parametrize("prompt", ["bad \udcff", [Message(role="user", content="bad \udcff")]])
def test_text_that_is_no_unicode_is_named(session: Generator, prompt: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"character 5 is '\\udcff', .* give it as UTF-8"):
        session.generate(prompt)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": "5"}, "max_new_tokens '5' of type str: must be a whole number"),
        ({"max_new_tokens": 5.0}, "max_new_tokens 5.0 of type float: must be a whole number"),
        ({"max_new_tokens": None}, "max_new_tokens None of type NoneType: must be a whole number"),
        ({"temperature": True}, "temperature True of type bool: must be a number"),
        ({"top_p": "x"}, "top_p 'x' of type str: must be a number or None"),
        ({"seed": 1.5}, "seed 1.5 of type float: must be a whole number or None"),
    ],
)
def test_settings_of_another_type_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^{message}$"):
        GenerationSettings(**settings)
    with pytest.raises(UnsupportedError, match="unknown setting 'max_tokens': did you mean 'max_n"):
        read_settings({"max_tokens": 3})
    assert read_settings({"top_k": 3}) == GenerationSettings(top_k=3)
    GenerationSettings(max_new_tokens=int(np.int64(3)), temperature=1, top_p=np.float32(0.5))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt is empty"),
        ([3, 258], "token id 258: the model has ids from 0 to 257"),
        ([-1], "-1"),
    ],
)
def test_prompts_that_cannot_be_run(session: Generator, prompt: list[int], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        session.generate(prompt)


def test_logits_match_transformers(session: Generator, teacher: LlamaForCausalLM) -> None:
    ids = torch.tensor([PROMPT, PROMPT[::-1]])
    with torch.no_grad():
        expected = teacher(ids).logits
    torch.testing.assert_close(session.logits(ids), expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(session.logits(PROMPT), expected[:1], atol=2e-5, rtol=2e-5)


def test_ids_beyond_the_positions_are_refused(session: Generator) -> None:
    most = session.model.config.positions
    with pytest.raises(UnsupportedError, match=f"but the model has {most} positions"):
        session.logits([1] * (most + 1))


def test_load_refuses_what_is_no_packed_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_with_what_to_do(
    session: Generator, copied: Callable[[Any], Any]
) -> None:
    with pytest.raises(UnsupportedError, match=r"cannot be copied or pickled: .* load it again"):
        copied(session)
    assert copy.copy(session).model is session.model


def test_ids_need_no_tokenizer(session: Generator, tmp_path: Path) -> None:
    """There is no text then; the model's own stop ids hold."""
    expected = session.generate(PROMPT, max_new_tokens=6, ignore_stop=True)
    folder = tmp_path / "bare"
    folder.mkdir()
    found = Generator(session.model, folder).generate(PROMPT, max_new_tokens=6)
    assert (found.ids, found.text, expected.text != "") == (expected.ids, "", True)
    stops = {"eos_token_id": expected.ids[2]}
    (folder / "generation_config.json").write_text(json.dumps(stops))
    bare = Generator(session.model, folder)
    assert bare.generate(PROMPT, max_new_tokens=6).ids == expected.ids[:2]
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        bare.generate("text", max_new_tokens=1)
