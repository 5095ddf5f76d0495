"""Modelfile: what `ollama create` reads beside a GGUF file.

Ollama writes conversations by a template in a language of its own (Go's), not by the one in the
file. Most chat templates put each turn between two fixed texts; those texts are read off what the
template makes of a few conversations, and kept only where they make the same of others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tercet.checkpoints.atomic import in_the_way
from tercet.checkpoints.packed.output_directory import check_writable
from tercet.checkpoints.tokenizer_file import read_json
from tercet.errors import CheckpointError, UnsupportedError
from tercet.runtime import Message, Tokenizer, load_tokenizer
from tercet.runtime.session import read_stop_ids

# GenerationConfig's names and Ollama's
_PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repeat_penalty",
}
# what Ollama gives a model that asks for nothing
_CONTEXT = 4096


@dataclass(frozen=True)
class Turns:
    """The fixed texts of a chat template.

    Attributes:
        begin: before everything.
        system, user, assistant: before and behind what each of them says.
        answer: where the assistant's next message starts.
        default: what a system message says where none is given; None for no such message.
    """

    begin: str
    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str
    default: str | None

    def format(self, messages: Sequence[Message]) -> str:
        """A conversation as text."""
        given = list(messages)
        if self.default is not None and given[0]["role"] != "system":
            given.insert(0, Message(role="system", content=self.default))
        around = {"system": self.system, "user": self.user, "assistant": self.assistant}
        turns = (around[each["role"]] for each in given)
        said = (f"{a}{each['content']}{b}" for (a, b), each in zip(turns, given, strict=True))
        return self.begin + "".join(said) + self.answer

    def template(self) -> str | None:
        """In Go's template language; None where a text means something in it."""
        texts = (self.begin, *self.system, *self.user, *self.assistant, self.answer)
        if any(mark in text for text in texts for mark in ("{{", "}}", '"""')):
            return None
        system, user, assistant = (
            f"{before}{{{{ {name} }}}}{behind}"
            for (before, behind), name in (
                (self.system, ".System"), (self.user, ".Content"), (self.assistant, ".Content"),
            )
        )  # fmt: skip
        return (
            f"{self.begin}{{{{ if .System }}}}{system}{{{{ end }}}}{{{{ range .Messages }}}}"
            f'{{{{ if eq .Role "user" }}}}{user}'
            f'{{{{ else if eq .Role "assistant" }}}}{assistant}{{{{ end }}}}{{{{ end }}}}'
            f"{self.answer}"
        )


def read_modelfile(directory: Path, target: str, gguf: Path, out: Path) -> str:
    """The Modelfile of a GGUF file, which need not be there yet.

    Args:
        directory: of the checkpoint that is exported.
        target: that it is exported to.
        gguf: the file.
        out: where the Modelfile will be.

    Raises:
        UnsupportedError: for another target than gguf.
        CheckpointError: `out` exists, or the checkpoint has no tokenizer, so that Ollama could not
            read text.
    """
    if target != "gguf":
        raise UnsupportedError(
            f"--modelfile with --to {target}: Ollama reads GGUF files; give --to gguf"
        )
    if out.exists():
        raise in_the_way(out)
    check_writable(out)
    tokenizer = load_tokenizer(directory)
    config = read_json(directory / "config.json")
    lines = [f"FROM {_path(gguf, out)}"]
    turns = find_turns(tokenizer) if tokenizer.template is not None else None
    template = turns.template() if turns is not None else None
    if turns is not None and template is not None:
        lines.append(f'TEMPLATE """{template}"""')
        if turns.default and '"""' not in turns.default:
            lines.append(f'SYSTEM """{turns.default}"""')
    elif tokenizer.template is not None:
        lines.append("# the chat template has no equal in Ollama's language: Ollama chooses one")
    for token in sorted(read_stop_ids(directory, tokenizer)):
        lines.append(f'PARAMETER stop "{tokenizer.token(token)}"')
    generation = read_json(directory / "generation_config.json")
    lines += [
        f"PARAMETER {theirs} {generation[ours]}"
        for ours, theirs in _PARAMETERS.items()
        if isinstance(generation.get(ours), int | float)
    ]
    positions = config.get("max_position_embeddings")
    if isinstance(positions, int) and positions < _CONTEXT:
        lines.append(f"PARAMETER num_ctx {positions}")
    return "\n".join(lines) + "\n"


def find_turns(tokenizer: Tokenizer) -> Turns | None:
    """The fixed texts of a tokenizer's chat template; None where it is more than these."""
    try:
        found = _read_turns(tokenizer)
        whole = found is not None and all(
            found.format(each) == _text(tokenizer, each) for each in _CONVERSATIONS
        )
    except CheckpointError:  # it refuses one of them
        return None
    return found if whole else None


def _path(gguf: Path, out: Path) -> str:
    same = gguf.absolute().parent == out.absolute().parent
    return f"./{gguf.name}" if same else str(gguf.absolute())


def _conversation(*said: str) -> list[Message]:
    """Of "role: content" each."""
    pairs = (each.split(": ", 1) for each in said)
    return [Message(role=role, content=content) for role, content in pairs]


# unlike each other, and unlike what stands in templates
_S, _U, _A, _V = "Sq71", "Uq72", "Aq73", "Vq74"
_CONVERSATIONS = (
    _conversation("user: Why?"),
    _conversation("system: Be brief.", "user: Why?"),
    _conversation("user: One", "assistant: Two", "user: Three"),
    _conversation(
        "system: Count.", "user: 1", "assistant: 2", "user: 3", "assistant: 4", "user: 5"
    ),
)


def _text(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """As the template writes it, without the first token that whoever reads it adds."""
    text, first = tokenizer.format_chat(messages), tokenizer.special.get("bos_token")
    added = [tokenizer.token(token) for token in tokenizer.encode("")[:1]]
    return text.removeprefix(first) if first is not None and added == [first] else text


def _read_turns(tokenizer: Tokenizer) -> Turns | None:
    alone = _text(tokenizer, _conversation(f"user: {_U}"))
    whole = _text(
        tokenizer,
        _conversation(f"system: {_S}", f"user: {_U}", f"assistant: {_A}", f"user: {_V}"),
    )
    before, marked, rest = whole.partition(_S)
    between, also, rest = rest.partition(_U)
    answered, too, rest = rest.partition(_A)
    again, last, answer = rest.partition(_V)
    first, once, end = alone.partition(_U)
    if not (marked and also and too and last and once) or end != answer:
        return None
    default = None
    if first.startswith(before) and first.endswith(between) and len(first) > len(before + between):
        # a system message of the template's own
        default = first[len(before) : len(first) - len(between)]
        user, begin = _common_end(between, again), ""
    else:
        user = _common_end(between, again, first)
        begin = first.removesuffix(user)
    if not before.startswith(begin):
        return None
    # what closes a user's message begins the assistant's, which always follows
    return Turns(
        begin=begin,
        system=(before.removeprefix(begin), between.removesuffix(user)),
        user=(user, ""),
        assistant=(answered, again.removesuffix(user)),
        answer=answer,
        default=default,
    )


def _common_end(*texts: str) -> str:
    return _common_start(*(text[::-1] for text in texts))[::-1]


def _common_start(*texts: str) -> str:
    shortest = min(texts, key=len)
    for at, letter in enumerate(shortest):
        if any(text[at] != letter for text in texts):
            return shortest[:at]
    return shortest
