"""PackedLM: lm-evaluation-harness's interface to a TokenModel.

It tokenizes, truncates and stops as the harness's own `hf` model does, so that both give the same
answers on the same weights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import lm_eval.models.utils as harness
from lm_eval.api.model import TemplateLM

from tercet.errors import UnsupportedError
from tercet.evaluate.tasks.loglikelihood import score
from tercet.evaluate.tasks.token_model import Progress, TokenModel

# the harness's default of new tokens
_NEW_TOKENS = 256

# the first token's space may be lost in decoding, and the first letter begin before it
_TOKENS_BEFORE = 8
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A prompt that is continued.

    Attributes:
        prompt: its ids.
        count: of tokens that may follow.
        stops: texts that end the answer.
    """

    prompt: list[int]
    count: int
    stops: tuple[str, ...]


class PackedLM(TemplateLM):
    """A language model for the harness.

    Attributes:
        progress: called with (requests done, requests in all) of the call under way.
        truncated: requests so far whose context lost tokens, since it was too long.
    """

    def __init__(self, model: TokenModel, tokenizer: Any) -> None:
        super().__init__()
        self._model = model
        self.tokenizer = tokenizer
        self._encoded: dict[str, list[int]] = {}
        self._letters: dict[int, str] = {}
        self.progress: Progress | None = None
        self.truncated = 0

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The id that an empty context is replaced by."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests, which is not used."""
        return str(self.tokenizer.name_or_path)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids of a text; a text that begins with the first special token gets none."""
        if add_special_tokens is not None:
            return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        if string in self._encoded:
            return self._encoded[string]
        return self.tokenizer.encode(string, add_special_tokens=not self._begins(string))

    @cached_property
    def _prefix(self) -> str:
        return self.tokenizer.decode(self.prefix_token_id)

    def _begins(self, string: str) -> bool:
        return string.startswith(self._prefix)

    def _encode_all(self, strings: Iterable[str]) -> None:
        """Encodes all at once, on all cores; `tok_encode` then finds them.

        One after the other, a text of 369 tokens took 0.6 ms on a busy core, and MMLU's 14,042
        questions of four answers have 70,000 of them.
        """
        by_start: dict[bool, list[str]] = {}
        for string in dict.fromkeys(strings):
            by_start.setdefault(self._begins(string), []).append(string)
        self._encoded = {}
        for begins, group in by_start.items():
            ids = self.tokenizer(group, add_special_tokens=not begins)["input_ids"]
            self._encoded.update(zip(group, ids, strict=True))

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, is greedy) of each request's (context, continuation)."""
        del disable_tqdm
        pairs = [_move_spaces(*request.args) for request in requests]
        self._encode_all(
            text
            for context, continuation in pairs
            if context
            for text in (context, context + continuation)
        )
        try:
            return super().loglikelihood(requests, disable_tqdm=True)
        finally:
            self._encoded = {}

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        limit = self._model.positions + 1
        self.truncated += sum(len(context) + len(rest) > limit for context, rest in pairs)
        found = score(self._model, pairs, self.progress)
        return [(one.loglikelihood, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Not offered: perplexity of a text is what `tercet eval --text` measures."""
        del requests, disable_tqdm
        raise UnsupportedError("tasks that score whole texts: use `tercet eval DIR --text FILE`")

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations of each request's prompt, up to a stop sequence."""
        del disable_tqdm
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        # neighbors in lexical order share their examples, which are computed once
        order = sorted(range(len(requests)), key=prompts.__getitem__)
        asked = [self._ask(prompts[index], requests[index].args[1]) for index in order]
        found = [""] * len(requests)
        # as in `score`: the same answers, whatever was asked before
        self._model.set_prefix(())
        answers = self._model.greedy(
            [one.prompt for one in asked],
            [one.count for one in asked],
            lambda index, tokens: self._is_whole(tokens, asked[index].stops),
        )
        for done, (number, tokens) in enumerate(answers, start=1):
            found[order[number]] = self._text(tokens, asked[number].stops)
            if self.progress is not None:
                self.progress(done, len(order))
        return found

    def _ask(self, prompt: list[int], settings: dict[str, Any]) -> "_Asked":
        known: dict[str, Any] = cast(Any, harness).normalize_gen_kwargs(settings, _NEW_TOKENS)
        if known["do_sample"]:
            raise UnsupportedError(
                "tasks that sample their answers: only greedy ones are evaluated"
            )
        stops = harness.handle_stop_sequences(
            known["until"], eos=self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False)
        )
        count: int = known["max_gen_toks"]
        room = self._model.positions - count
        if room <= 0:
            raise UnsupportedError(
                f"an answer may have {count} tokens, and the model has {self._model.positions} "
                f"positions in all: no prompt fits; give --max-tokens N, well below that"
            )
        self.truncated += len(prompt) > room
        return _Asked(
            prompt=prompt[-room:], count=count, stops=tuple(stop for stop in stops if stop)
        )

    def _is_whole(self, tokens: Sequence[int], stops: Sequence[str]) -> bool:
        if tokens[-1] == self.eot_token_id:
            return True
        if not self._may_complete(tokens[-1], stops):
            return False
        # a stop sequence ends with the last token, and a token is a byte or more
        longest = max((len(stop.encode()) for stop in stops), default=0)
        last = tokens[-(longest + _TOKENS_BEFORE) :]
        text = self.tokenizer.decode(last, skip_special_tokens=True)
        return any(stop in text for stop in stops)

    def _may_complete(self, token: int, stops: Sequence[str]) -> bool:
        """Whether a stop sequence may end in this token: few do, and to decode takes long."""
        if token not in self._letters:
            self._letters[token] = self.tokenizer.decode([token])
        letters = self._letters[token]
        # alone, a part of a letter is none yet, and a space may be lost
        open_ended = _REPLACEMENT in letters or any(stop[-1] == " " for stop in stops)
        return open_ended or any(stop[-1] in letters for stop in stops)

    def _text(self, tokens: Sequence[int], stops: Sequence[str]) -> str:
        kept = tokens[:-1] if tokens and tokens[-1] == self.eot_token_id else tokens
        text = self.tokenizer.decode(kept, skip_special_tokens=True)
        return harness.postprocess_generated_text(text, stop=list(stops), think_end_token=None)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as the model's chat template writes it."""
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """As the harness has it: spaces at the end of a context belong to the continuation."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation
