import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers.utils import chat_template_utils

from tercet.errors import CheckpointError
from tercet.runtime import Generator, Message, load_tokenizer
from tercet.runtime.chat_template import render
from tercet.runtime.detokenizer import Detokenizer

TEXT = "héllo 😀 你好, wörld!"


def test_text_survives(session: Generator) -> None:
    ids = session.tokenizer.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    assert session.tokenizer.decode(ids) == TEXT
    assert session.tokenizer.decode([256, *ids, 257]) == TEXT


def test_saved_truncation_and_padding_are_left_out(session: Generator) -> None:
    path = session.directory / "tokenizer.json"
    served = Backend.from_file(str(path))
    served.enable_truncation(4)
    served.enable_padding(length=64, direction="left")
    served.save(str(path))
    tokenizer = load_tokenizer(session.directory)
    assert len(Backend.from_file(str(path)).encode("a").ids) == 64
    assert len(tokenizer.encode(TEXT)) == len(TEXT.encode())
    assert len(tokenizer.encode("a")) == 1


def test_pieces_are_whole_characters(session: Generator) -> None:
    stream = session.tokenizer.detokenizer()
    pieces = [stream.push(token) for token in session.tokenizer.encode(TEXT)]
    assert [piece for piece in pieces if piece] == list(TEXT)
    assert stream.flush() == ""


def test_unfinished_character_is_dropped(session: Generator) -> None:
    stream = session.tokenizer.detokenizer()
    ids = session.tokenizer.encode("a😀")[:-1]
    assert [stream.push(token) for token in ids] == ["a", "", "", ""]
    assert stream.flush() == ""


LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")


@given(st.text(LETTERS), st.data())
def test_any_cut_of_the_bytes_gives_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    tokens = [raw[a:b] for a, b in pairwise(cuts)]
    stream = Detokenizer(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"))
    pieces = [stream.push(index) for index in range(len(tokens))]
    assert "".join([*pieces, stream.flush()]) == text


def test_broken_bytes_do_not_stop_the_stream() -> None:
    tokens = [b"\xf0", b"\xf0", b"\xf0", b"\xf0", b"a", b"b"]
    stream = Detokenizer(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"))
    pieces = [stream.push(index) for index in range(len(tokens))]
    assert pieces == ["", "\ufffd", "\ufffd", "\ufffd", "\ufffda", "b"]


def test_a_character_after_broken_bytes_is_whole() -> None:
    tokens = [b"\xf0", b"\xf0", b"\xf0", b"\xf0", b"\x9f", b"\x98", b"\x80", b"a"]
    stream = Detokenizer(lambda ids: b"".join(tokens[i] for i in ids).decode(errors="replace"))
    assert "".join(stream.push(index) for index in range(len(tokens))) == "\ufffd\ufffd\ufffd😀a"


def test_chat_template_renders_with_special_tokens(session: Generator) -> None:
    messages = [Message(role="system", content="be"), Message(role="user", content="hi")]
    ids = session.tokenizer.encode_chat(messages)
    assert ids[0] == 256
    assert session.tokenizer.decode(ids) == "s:be|u:hi>"


def test_template_file_wins_over_the_config(session: Generator) -> None:
    (session.directory / "chat_template.jinja").write_text("[{{ messages[0].content }}]")
    tokenizer = load_tokenizer(session.directory)
    assert tokenizer.decode(tokenizer.encode_chat([Message(role="user", content="x")])) == "[x]"


def test_template_that_refuses_or_reaches_out() -> None:
    hi = [Message(role="user", content="hi")]
    with pytest.raises(CheckpointError, match=r"failed: TemplateError: no users; .*--no-chat"):
        render("{{ raise_exception('no users') }}", hi, {})
    with pytest.raises(CheckpointError, match="SecurityError: access to attribute '__class__'"):
        render("{{ ''.__class__.__mro__ }}", hi, {})
    assert render("{{ messages | tojson }}", hi, {}) == '[{"role": "user", "content": "hi"}]'


TEMPLATES = {
    "generation": "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}"
    "{% endgeneration %}{% endfor %}|",
    "generation and lines": "{% for m in messages %}\n  {%- generation -%}\n x {{ m.content }} \n"
    "  {% endgeneration %}\n{% endfor %}",
    "generation sets a name": "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}"
    "{% endgeneration %}{{ a }}",
    "sorted keys": "{{ {'b': 1, 'a': 'é<'} | tojson(sort_keys=true) }}",
    "separators": "{{ {'b': [1, 2]} | tojson(separators=(',', ':')) }}",
    "ascii": "{{ 'é' | tojson(true) }}{{ [1] | tojson(indent=2) }}",
    "tools": "{% if tools is not none %}tools{% endif %}{{ documents is none }}",
    "loop controls": "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    "namespace": "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_read_as_in_transformers(name: str) -> None:
    messages = [Message(role="user", content="hi"), Message(role="assistant", content="<ö>")]
    reference: Any = chat_template_utils
    (expected,), _ = reference.render_jinja_template(
        [messages], chat_template=TEMPLATES[name], add_generation_prompt=True
    )
    assert render(TEMPLATES[name], messages, {}) == expected


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].content + 1 }}", "{{ 'x' | int(base=99) }}{{ '%d' % 'x' }}", "{{ 1 / 0 }}"],
)
def test_a_template_that_breaks_is_named(template: str) -> None:
    with pytest.raises(CheckpointError, match=r"chat template .* failed: \w+Error: .*--no-chat"):
        render(template, [Message(role="user", content="hi")], {})


def test_missing_or_broken_files_are_named(tmp_path: Path, session: Generator) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json, .* copy the tokenizer files"):
        load_tokenizer(empty)
    (empty / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(empty)
    (session.directory / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read as JSON"):
        load_tokenizer(session.directory)


def test_chat_without_a_template_is_refused(session: Generator) -> None:
    (session.directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(CheckpointError, match=r"has no chat template .*chat=False, .*--no-chat"):
        load_tokenizer(session.directory).encode_chat([Message(role="user", content="x")])
