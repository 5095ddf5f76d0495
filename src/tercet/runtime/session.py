"""Generator: a packed checkpoint, loaded and ready to generate text."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.stream import stream_weights
from tercet.checkpoints.seal import Verification, verified
from tercet.checkpoints.sources.fetch import find_packed
from tercet.checkpoints.tokenizer_file import read_json
from tercet.errors import UnsupportedError
from tercet.models import Decoder
from tercet.models.decoder.kv_cache import check_kv_cache_dtype
from tercet.models.decoder.tensor_parallel.group import open_rank_group
from tercet.models.device import resolve_device, resolve_dtype
from tercet.runtime.chat_template import Message
from tercet.runtime.generate import stream
from tercet.runtime.generation import Generation
from tercet.runtime.prompt import Prompt, read_prompt
from tercet.runtime.settings import GenerationSettings, read_settings
from tercet.runtime.tokenizer import Tokenizer, load_tokenizer


class TextStream:
    """Pieces of text as they come; once exhausted, `result` holds the whole Generation.

    Of a model without a tokenizer there is no text, and the ids alone are in the result.
    """

    def __init__(self, session: "Generator", ids: list[int], settings: GenerationSettings) -> None:
        self._session = session
        self._ids = ids
        self._settings = settings
        self._result: Generation | None = None

    def __iter__(self) -> Iterator[str]:
        session, found, chunks = self._session, list[int](), list[str]()
        detokenizer = session.tokenizer.detokenizer() if session.reads_text else None
        start = first = last = perf_counter()
        for token in stream(session.model, self._ids, self._settings, session.stop):
            last = perf_counter()
            first = first if found else last
            found.append(token)
            if detokenizer is not None and (chunk := detokenizer.push(token)):
                chunks.append(chunk)
                yield chunk
        if detokenizer is not None and (chunk := detokenizer.flush()):
            chunks.append(chunk)
            yield chunk
        full = len(self._ids) + len(found) >= session.model.config.positions
        self._result = Generation(
            text="".join(chunks),
            ids=tuple(found),
            prompt_tokens=len(self._ids),
            reason="length" if full or len(found) == self._settings.max_new_tokens else "stop",
            prefill_s=(first if found else perf_counter()) - start,
            decode_s=last - first,
        )

    @property
    def result(self) -> Generation:
        """The finished Generation; UnsupportedError before the stream has been read to its end."""
        if self._result is None:
            raise UnsupportedError("the stream is not finished: read it to its end first")
        return self._result


class Generator:
    """Generates text with a language model and its tokenizer.

    Attributes:
        model: the decoder.
        directory: directory of the tokenizer's files, which are read when first needed.
    """

    def __init__(self, model: Decoder, directory: Path) -> None:
        self.model = model
        self.directory = directory

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; CheckpointError if its files are missing."""
        return load_tokenizer(self.directory)

    @property
    def reads_text(self) -> bool:
        """Whether there is a tokenizer; without one, prompts are token ids."""
        return (self.directory / "tokenizer.json").is_file()

    @cached_property
    def stop(self) -> frozenset[int]:
        """End-of-text ids, as `read_stop_ids` finds them."""
        return read_stop_ids(self.directory, self.tokenizer if self.reads_text else None)

    def encode(self, prompt: Prompt, chat: bool | None = None) -> list[int]:
        """Convert a prompt to token ids.

        Args:
            prompt: text, token ids or chat messages; ids may be a tensor or an array [T].
            chat: whether to format text with the chat template, as a user's message; None: yes if
                the model has a chat template.

        Raises:
            CheckpointError: text or messages for a model without tokenizer or chat template.
            UnsupportedError: the prompt is of another type, or a batch.
        """
        found = read_prompt(prompt)
        if isinstance(found, str):
            if chat is False or (chat is None and self.tokenizer.template is None):
                return self.tokenizer.encode(found)
            return self.tokenizer.encode_chat([Message(role="user", content=found)])
        ids = [entry for entry in found if isinstance(entry, int)]
        messages = [entry for entry in found if not isinstance(entry, int)]
        return self.tokenizer.encode_chat(messages) if messages else ids

    def stream(self, prompt: Prompt, *, chat: bool | None = None, **settings: Any) -> TextStream:
        """Generate text chunk by chunk; `settings` are the fields of GenerationSettings.

        Raises:
            UnsupportedError: as `encode`, or for a setting that there is not or of a wrong value.
        """
        return TextStream(self, self.encode(prompt, chat), read_settings(settings))

    def generate(self, prompt: Prompt, *, chat: bool | None = None, **settings: Any) -> Generation:
        """Generate the whole text; `settings` are the fields of GenerationSettings."""
        chunks = self.stream(prompt, chat=chat, **settings)
        for _ in chunks:
            pass
        return chunks.result

    def logits(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Return logits [B, T, V] after each position of token ids [B, T] or [T].

        UnsupportedError for more tokens than the model has positions.
        """
        given = torch.as_tensor(ids)
        length, most = given.shape[-1] if given.ndim else 0, self.model.config.positions
        if length > most:
            raise UnsupportedError(
                f"{length} token ids, but the model has {most} positions: give {most} or fewer"
            )
        return self.model.logits(given.unsqueeze(0) if given.ndim == 1 else given)


def read_stop_ids(directory: Path, tokenizer: Tokenizer | None) -> frozenset[int]:
    """End-of-text ids: eos_token_id of generation_config.json, or else of config.json, and the
    tokenizer's eos_token, where there is one."""
    found: object = None
    for name in ("generation_config.json", "config.json"):
        if found is None:
            found = read_json(directory / name).get("eos_token_id")
    ids = cast(list[object], found) if isinstance(found, list) else [found]
    own = None if tokenizer is None else tokenizer.stop_id
    return frozenset(i for i in [*ids, own] if isinstance(i, int))


def load(
    directory: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    *,
    verify: bool | Verification = True,
    kv_cache_dtype: str | None = None,
    process_group: ProcessGroup | None = None,
) -> Generator:
    """Load the model of a packed checkpoint; its weights stay packed in memory.

    Args:
        directory: the packed checkpoint, or the name of one that `tercet fetch` knows.
        dtype: of activations and unpacked tensors: float32, bfloat16 or float16, also as a word;
            None for float32 on a CPU and bfloat16 on a GPU.
        device: "cpu", "cuda" or "cuda:N"; None for the GPU where there is one.
        verify: check every file against the checkpoint's hashes, in threads beside the reading;
            False skips that, and a Verification is one that was begun before.
        kv_cache_dtype: "int8", "fp8_e4m3" or "int4": the codes that keys and values are kept as,
            each of a head with a scale; None for numbers of `dtype`.
        process_group: of torch.distributed, for tensor parallelism: each of its processes loads a
            part of every layer on its own device, and then makes the same calls with the same
            arguments. Tokens are those of the first. None for the whole model in this process.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        UnsupportedError: Tercet's decoder does not support the model's architecture, there is no
            such device, no such dtype of a cache, or no way to cut it over so many processes.
    """
    target = resolve_device(device)
    check_kv_cache_dtype(kv_cache_dtype, target)
    group = None if process_group is None else open_rank_group(process_group, target)
    directory = find_packed(directory, demand=True)
    if dtype is None:
        dtype = torch.float32 if target.type == "cpu" else torch.bfloat16
    dtype = resolve_dtype(dtype)
    with verified(directory, verify):
        checkpoint = open_packed(directory)
        with stream_weights(checkpoint) as weights:
            model = Decoder.from_checkpoint(weights, dtype, target, kv_cache_dtype, group)
    return Generator(model, checkpoint.directory)
