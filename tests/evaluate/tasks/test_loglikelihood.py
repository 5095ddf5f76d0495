"""Log-likelihoods against log-softmax of transformers' logits, one sequence at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tercet.evaluate.tasks.loglikelihood import score
from tercet.evaluate.tasks.token_model import DecoderModel, TokenModel, TransformersModel
from tercet.runtime import load

KINDS = ("shared", "batched", "transformers")


def model_of(kind: str, twins: Any) -> TokenModel:
    if kind == "transformers":
        return TransformersModel(twins.dequantized)
    model = DecoderModel(load(twins.packed, device="cpu").model)
    model.call_tokens = 0 if kind == "shared" else 10**6
    return model


def expected(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    ids = torch.tensor([[*context, *continuation]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(context) - 1 : -1].double()
    logarithms = logits.log_softmax(-1)[torch.arange(len(continuation)), continuation]
    return float(logarithms.sum()), logits.argmax(-1).tolist() == continuation


def requests(twins: Any) -> list[tuple[list[int], list[int]]]:
    random = torch.Generator().manual_seed(5)

    def ids(count: int) -> list[int]:
        return torch.randint(257, (count,), generator=random).tolist()

    shared, other = ids(20), ids(9)
    found = [(shared, ids(count)) for count in (1, 1, 5, 2)]
    found += [([*shared, *ids(3)], ids(4)), (other, ids(7)), (ids(1), ids(3)), (shared, [])]
    # what the model itself would say, so that one continuation is greedy
    with torch.no_grad():
        likeliest = int(twins.dequantized(torch.tensor([other])).logits[0, -1].argmax())
    return [*found, (other, [likeliest])]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_numbers_of_transformers(kind: str, twins: Any) -> None:
    wanted = requests(twins)
    told: list[tuple[int, int]] = []
    found = score(model_of(kind, twins), wanted, lambda *at: told.append(at), batch_tokens=60)
    for (context, continuation), one in zip(wanted, found, strict=True):
        if not continuation:
            assert (one.loglikelihood, one.greedy) == (0.0, True)
            continue
        loglikelihood, greedy = expected(twins.dequantized, context, continuation)
        assert one.loglikelihood == pytest.approx(loglikelihood, abs=2e-4)
        assert one.greedy == greedy
    assert found[-1].greedy
    assert told[-1] == (len(wanted), len(wanted))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_too_long_loses_its_beginning(kind: str, twins: Any) -> None:
    model: Any = model_of(kind, twins)
    model.positions = 12
    ids = list(range(40, 70))
    (found,) = score(model, [(ids[:25], ids[25:])])
    loglikelihood, _ = expected(twins.dequantized, ids[-13:-5], ids[-5:])
    assert found.loglikelihood == pytest.approx(loglikelihood, abs=2e-4)


def test_a_context_is_computed_once(twins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = model_of("shared", twins)
    filled: list[int] = []
    fill = model._decoder.fill
    monkeypatch.setattr(
        model._decoder, "fill", lambda ids, cache: (filled.append(ids.shape[1]), fill(ids, cache))
    )
    context = list(range(50))
    score(model, [(context, [1, 2]), (context, [3]), ([*context, 7, 8], [4, 5]), (context, [9])])
    # the last token of a context stands before its continuations
    assert filled == [49, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_most_probable_token_each_time(kind: str, twins: Any) -> None:
    prompt = list(range(60, 90))
    model = model_of(kind, twins)
    ids = list(prompt)
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(twins.dequantized(torch.tensor([ids])).logits[0, -1].argmax()))
    asked: list[tuple[int, int]] = []

    def ended(index: int, tokens: Sequence[int]) -> bool:
        asked.append((index, len(tokens)))
        return len(tokens) == 2

    assert list(model.greedy([prompt], [8], lambda *_: False)) == [(0, ids[30:])]
    (first, second) = model.greedy([prompt, prompt[:1]], [8, 1], ended)
    assert first == (0, ids[30:32])
    assert (second[0], len(second[1])) == (1, 1)
    assert asked == [(0, 1), (0, 2), (1, 1)]
    # what was begun and left does not stay in the way
    assert list(model.greedy([ids[:33]], [5], lambda *_: False)) == [(0, ids[33:])]


def test_what_was_asked_before_changes_nothing(twins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on after a kill asks fewer tasks than one that was whole: the bits of an
    answer depend on how its context was cut, so a call uses nothing of the one before."""
    model: Any = model_of("shared", twins)
    filled: list[int] = []
    fill = model._decoder.fill
    monkeypatch.setattr(
        model._decoder, "fill", lambda ids, cache: (filled.append(ids.shape[1]), fill(ids, cache))
    )
    asked = [(list(range(50)), [1, 2])]
    assert score(model, asked) == score(model, asked)
    assert filled == [49, 49]


def test_long_examples_are_computed_once_and_short_questions_in_batches(
    twins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = DecoderModel(load(twins.packed, device="cpu").model)
    filled: list[int] = []
    fill = model._decoder.fill
    monkeypatch.setattr(
        model._decoder, "fill", lambda ids, cache: (filled.append(ids.shape[1]), fill(ids, cache))
    )
    examples = [token % 256 for token in range(500)]
    score(model, [([question, *examples[:20]], [1, 2]) for question in range(4)])
    assert filled == []
    score(model, [([*examples, question, 9], [1]) for question in range(4)])
    assert filled == [501, 1, 1, 1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("call_tokens", [0, 10**6])
def test_a_gpu_gives_the_numbers_of_transformers(call_tokens: int, twins: Any) -> None:
    model = DecoderModel(load(twins.packed, torch.float32, "cuda").model)
    model.call_tokens = call_tokens
    wanted = requests(twins)[:7]
    for (context, continuation), one in zip(wanted, score(model, wanted), strict=True):
        loglikelihood, _ = expected(twins.dequantized, context, continuation)
        assert one.loglikelihood == pytest.approx(loglikelihood, abs=2e-3)
    prompt = list(range(60, 90))
    on_cpu = model_of("shared", twins)
    chosen, on_it = (list(one.greedy([prompt], [6], lambda *_: False)) for one in (on_cpu, model))
    assert on_it == chosen
