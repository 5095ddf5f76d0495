"""Many greedy answers at once are those of one prompt after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from tercet.evaluate.tasks.side_by_side import continue_side_by_side
from tercet.evaluate.tasks.token_model import DecoderModel
from tercet.models import Decoder
from tercet.models.decoder.gpu import token_graph

VOCABULARY = 61
PROMPTS = [
    [3, 4, 5, 6, 7, 8, 9],
    [3, 4, 5, 6],
    [11],
    [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22],
    [3, 4, 5, 40, 41],
    [50, 51],
    [52],
]
COUNTS = [6, 1, 9, 4, 12, 3, 7]


class _Weights:
    """The plain weights of a model of transformers."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()
        self.config: dict[str, Any] = model.config.to_dict()
        self.modules: dict[str, Any] = {}

    def names(self) -> list[str]:
        return list(self._state)

    def tensor(self, name: str) -> torch.Tensor:
        return self._state[name]


@pytest.fixture
def decoder() -> Decoder:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    weights: Any = _Weights(AutoModelForCausalLM.from_config(config))
    return Decoder.from_checkpoint(weights)


class _Runs:
    """In place of a graph: what would be replayed runs anew."""

    def __init__(self, run: Callable[[], Any], device: torch.device) -> None:
        del device
        self._run, self.result = run, None

    def replay(self) -> None:
        self.result = self._run()


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_graph, "Captured", _Runs)
    stubs: dict[str, Any] = {
        "device": lambda _: nullcontext(),
        "stream": lambda _: nullcontext(),
        "Stream": _Stream,
        "current_stream": _Stream,
    }
    for name, stub in stubs.items():
        monkeypatch.setattr(torch.cuda, name, stub)


def answers(
    decoder: Decoder, sequences: int, ended: Callable[[int, Sequence[int]], bool]
) -> Iterator[tuple[int, list[int]]]:
    def read_prompt(ids: Sequence[int]) -> Any:
        cache = decoder.cache()
        if ids:
            decoder.fill(torch.tensor([list(ids)]), cache)
        return cache

    return continue_side_by_side(
        decoder, PROMPTS, COUNTS, ended, sequences=sequences, read_prompt=read_prompt
    )


@pytest.mark.parametrize("sequences", [1, 2, 3, len(PROMPTS)])
def test_as_one_after_the_other(decoder: Decoder, sequences: int) -> None:
    def ended(index: int, tokens: Sequence[int]) -> bool:
        # every other answer ends early, by what is in it
        return index % 2 == 0 and tokens[-1] % 5 == 0

    expected = dict(DecoderModel(decoder).greedy(PROMPTS, COUNTS, ended))
    found = list(answers(decoder, sequences, ended))
    assert dict(found) == expected
    assert len(found) == len(PROMPTS)
    assert any(len(expected[index]) < COUNTS[index] for index in expected)
    assert len({tuple(tokens) for tokens in expected.values()}) > 4
    if sequences > 1:
        # a short answer does not wait for a long one
        assert found[0][0] == 1


def test_no_answer_is_asked_about_after_its_end(decoder: Decoder) -> None:
    asked: dict[int, int] = {}

    def ended(index: int, tokens: Sequence[int]) -> bool:
        asked[index] = asked.get(index, 0) + 1
        assert len(tokens) == asked[index]
        return len(tokens) == 2

    found = dict(answers(decoder, 2, ended))
    assert {index: len(tokens) for index, tokens in found.items()} == {
        index: min(count, 2) for index, count in enumerate(COUNTS)
    }
