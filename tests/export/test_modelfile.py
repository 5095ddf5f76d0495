"""What `ollama create` reads: fixed texts of chat templates, by Ollama's rules written out here."""

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from tercet.errors import CheckpointError, UnsupportedError
from tercet.runtime.tokenizer import load_tokenizer
from tercet.workflows.export.modelfile import find_turns, read_modelfile

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are SmolLM, an assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
# the assistant's role has another name, and turns are told apart by their numbers
GEMMA = (
    "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if "
    "message['role'] == 'assistant' else message['role']) + '\n' + message['content'] + "
    "'<end_of_turn>\n' }}{% endfor %}{{ '<start_of_turn>model\n' }}"
)
# what the system says stands within the first turn
MERGED = (
    "{% set first, rest = '', messages %}{% if messages[0]['role'] == 'system' %}"
    "{% set first, rest = messages[0]['content'] + '\n\n', messages[1:] %}{% endif %}"
    "{% for message in rest %}{{ '[' + message['role'] + ']' + (first if loop.first else '') + "
    "message['content'] }}{% endfor %}{{ '[assistant]' }}"
)
REFUSING = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
)
NUMBERED = (
    "{% for message in messages %}{{ loop.index ~ message['role'] + ':' + message['content'] }}"
    "{% endfor %}{{ 'assistant:' }}"
)


def directory(
    folder: Path, template: str | None, adds_first: bool = False, **generation: object
) -> Path:
    folder.mkdir(exist_ok=True)
    words = {"<s>": 0, "</s>": 1, "<|im_end|>": 2}
    backend = Backend(models.WordLevel(words, unk_token="</s>"))
    if adds_first:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))
    return folder


def by_ollama(text: str, messages: list[dict[str, str]]) -> str:
    """A conversation as Ollama would write it, by the Modelfile."""
    (template,) = re.findall(r'TEMPLATE """(.*?)"""', text, re.S)
    default = re.findall(r'SYSTEM """(.*?)"""', text, re.S)
    if default and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": default[0]}, *messages]
    head, system, user, assistant, tail = re.fullmatch(
        r"(.*?)\{\{ if \.System \}\}(.*?)\{\{ end \}\}\{\{ range \.Messages \}\}"
        r'\{\{ if eq \.Role "user" \}\}(.*?)\{\{ else if eq \.Role "assistant" \}\}(.*?)'
        r"\{\{ end \}\}\{\{ end \}\}(.*?)",
        template,
        re.S,
    ).groups()  # type: ignore[union-attr]
    found = head
    if messages[0]["role"] == "system":
        found += system.replace("{{ .System }}", messages[0]["content"])
        messages = messages[1:]
    for message in messages:
        turn = user if message["role"] == "user" else assistant
        found += turn.replace("{{ .Content }}", message["content"])
    return found + tail


def conversations() -> list[list[dict[str, str]]]:
    system = {"role": "system", "content": "Speak like a pirate."}
    user, again = ({"role": "user", "content": each} for each in ("Who are you?", "And I?"))
    answer = {"role": "assistant", "content": "Nobody."}
    return [[user], [system, user], [user, answer, again], [system, user, answer, again]]


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, LLAMA3, GEMMA, MERGED])
@pytest.mark.parametrize("adds_first", [False, True])
def test_conversations_as_the_chat_template_writes_them(
    tmp_path: Path, template: str, adds_first: bool
) -> None:
    folder = directory(tmp_path / "model", template, adds_first)
    text = read_modelfile(folder, "gguf", tmp_path / "m.gguf", tmp_path / "Modelfile")
    tokenizer = load_tokenizer(folder)
    for messages in conversations():
        wanted = tokenizer.format_chat(messages)  # type: ignore[arg-type]
        # where llama.cpp adds the first token, the template must not
        assert by_ollama(text, messages) == (wanted.removeprefix("<s>") if adds_first else wanted)


@pytest.mark.parametrize("template", [REFUSING, NUMBERED, "{{ messages[0]['content'] }}"])
def test_what_has_no_fixed_texts_is_left_to_ollama(tmp_path: Path, template: str) -> None:
    folder = directory(tmp_path / "model", template)
    assert find_turns(load_tokenizer(folder)) is None
    text = read_modelfile(folder, "gguf", tmp_path / "m.gguf", tmp_path / "Modelfile")
    assert "TEMPLATE" not in text
    assert "# the chat template has no equal" in text


def test_texts_that_go_would_read_are_left_out(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model", CHATML.replace("<|im_start|>", "{{ '{{' }}"))
    assert "TEMPLATE" not in read_modelfile(folder, "gguf", tmp_path / "m.gguf", tmp_path / "M")


def test_the_rest_of_it(tmp_path: Path) -> None:
    folder = directory(
        tmp_path / "model", None, temperature=0.6, repetition_penalty=1.1, eos_token_id=[1, 2]
    )
    text = read_modelfile(folder, "gguf", tmp_path / "m.gguf", tmp_path / "Modelfile")
    assert text.splitlines() == [
        "FROM ./m.gguf",
        'PARAMETER stop "</s>"',
        'PARAMETER stop "<|im_end|>"',
        "PARAMETER temperature 0.6",
        "PARAMETER repeat_penalty 1.1",
        "PARAMETER num_ctx 2048",
    ]
    elsewhere = read_modelfile(folder, "gguf", tmp_path / "a" / "m.gguf", tmp_path / "Modelfile")
    assert elsewhere.startswith(f"FROM {tmp_path}/a/m.gguf\n")


def test_refusals(tmp_path: Path) -> None:
    folder, out = directory(tmp_path / "model", CHATML), tmp_path / "Modelfile"
    with pytest.raises(UnsupportedError, match="give --to gguf"):
        read_modelfile(folder, "onnx", tmp_path / "m", out)
    out.write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        read_modelfile(folder, "gguf", tmp_path / "m.gguf", out)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        read_modelfile(folder, "gguf", tmp_path / "m.gguf", tmp_path / "M")
