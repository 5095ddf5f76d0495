import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tercet.errors import TercetError
from tercet.runtime import GenerationSettings, Sampler
from tercet.runtime.sampler import Choices, draw, penalize, seen_among, weigh

SCORES = torch.randn(64, generator=torch.Generator().manual_seed(5)) * 3
OPTIONS = [
    {"temperature": 0.8},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
]


def probabilities(settings: GenerationSettings) -> Tensor:
    """Of each token [V] that may be drawn from SCORES."""
    weights = weigh(SCORES[None], settings)[0]
    return weights / weights.sum()


@given(
    temperature=st.floats(0.2, 3.0),
    top_k=st.none() | st.integers(1, 80),
    top_p=st.none() | st.floats(0.05, 0.99),
    min_p=st.none() | st.floats(0.0, 0.9),
)
def test_candidates_match_transformers(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    steps = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        steps.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        steps.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        steps.append(MinPLogitsWarper(min_p))
    expected = steps(torch.zeros(1, 1).long(), SCORES.unsqueeze(0).clone())[0].softmax(-1)
    settings = GenerationSettings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    found = probabilities(settings)
    torch.testing.assert_close(found.float(), expected, atol=1e-5, rtol=1e-4)


def test_repetition_penalty_matches_transformers() -> None:
    seen = [3, 9, 3, 60]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([seen]), SCORES.unsqueeze(0))[0]
    torch.testing.assert_close(penalize(SCORES, seen_among(64, seen), 1.7), expected)


def test_greedy_takes_the_likeliest_and_the_penalty_moves_it() -> None:
    best, second = SCORES.topk(2).indices.tolist()
    assert Sampler(GenerationSettings()).pick(SCORES, [best]) == best
    assert Sampler(GenerationSettings(repetition_penalty=50.0)).pick(SCORES, [best]) == second


def test_draws_follow_the_distribution() -> None:
    settings = GenerationSettings(temperature=1.0, top_k=3, seed=0)
    sampler = Sampler(settings)
    draws = [sampler.pick(SCORES, []) for _ in range(4000)]
    for token, probability in enumerate(probabilities(settings).tolist()):
        # four standard deviations of a binomial share
        bound = 4 * (probability * (1 - probability) / 4000) ** 0.5
        assert abs(draws.count(token) / 4000 - probability) <= bound


@pytest.mark.parametrize("options", OPTIONS)
def test_a_share_falls_on_the_token_whose_weight_is_there(options: dict[str, float]) -> None:
    """The whole of [0, 1): each token as often as it weighs, none that is filtered out."""
    settings = GenerationSettings(**options)  # pyright: ignore[reportArgumentType]
    shares = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = draw(SCORES.expand(20_000, -1), settings, shares)
    found = torch.bincount(drawn, minlength=64) / 20_000
    expected = probabilities(settings)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)
    assert not found[expected == 0].any()
    ends = draw(SCORES.expand(2, -1), settings, torch.tensor([0.0, 1 - 2.0**-53]).double())
    assert (expected[ends] > 0).all()


@pytest.mark.parametrize("options", [*OPTIONS, {"repetition_penalty": 1.3}])
def test_choices_of_a_batch_are_those_of_each_sequence_alone(options: dict[str, float]) -> None:
    """As a graph makes them, each step's scores its own, and as the host picks them."""
    scores = torch.randn(9, 3, 64, generator=torch.Generator().manual_seed(7)) * 3
    picked, shares, marks = [], [], []
    for row in range(3):
        settings = GenerationSettings(**options, seed=row)  # pyright: ignore[reportArgumentType]
        sampler, seen = Sampler(settings), [5, 6]
        for step in range(9):
            seen.append(sampler.pick(scores[step, row], seen))
        picked.append(seen[2:])
        again = Sampler(settings)
        first = again.pick(scores[0, row], [5, 6])
        choices = again.follow(8, [5, 6, first], scores[0, row], 4)
        assert isinstance(choices, Choices)
        shares.append(choices.shares)
        marks.append(choices.seen)
    seen_before = None if marks[0] is None else torch.cat(marks)
    together = Choices(settings, torch.cat(shares, 1), 4, seen_before)
    ids, found = torch.tensor([tokens[0] for tokens in picked]), []
    for step in range(1, 9):
        lengths = torch.full((3,), 3 + step, dtype=torch.int32)
        # a step is run once more before it is captured
        assert torch.equal(
            together(scores[step], ids, lengths), together(scores[step], ids, lengths)
        )
        ids = together(scores[step], ids, lengths)
        found.append(ids.tolist())
    assert [list(each) for each in zip(*found, strict=True)] == [tokens[1:] for tokens in picked]


@given(top_p=st.floats(0.01, 1.0), scale=st.floats(0.01, 8.0), seed=st.integers(0, 99))
def test_one_row_is_weighed_as_one_of_many(top_p: float, scale: float, seed: int) -> None:
    """A CPU sorts only what can be kept, of one row."""
    scores = torch.randn(2, 500, generator=torch.Generator().manual_seed(seed)) * scale
    settings = GenerationSettings(temperature=0.9, top_p=top_p)
    together = weigh(scores, settings)
    assert torch.equal(weigh(scores[:1], settings), together[:1])
    assert torch.equal(weigh(scores[1:], settings), together[1:])


def test_tokens_of_equal_scores_are_all_kept_or_none() -> None:
    """Whatever order a device sorts them in."""
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0]])
    for options, kept in (
        ({"top_k": 1}, [1, 3]),
        ({"top_k": 3}, [1, 2, 3, 4, 5]),
        ({"top_p": 0.4}, [1, 3]),
        ({"top_p": 0.8}, [1, 2, 3, 4, 5]),
    ):
        settings = GenerationSettings(temperature=1.0, **options)  # pyright: ignore[reportArgumentType]
        assert weigh(scores, settings)[0].nonzero().flatten().tolist() == kept


def test_scores_that_are_no_numbers_give_a_token() -> None:
    scores = torch.full((1, 64), float("nan"))
    for options in OPTIONS:
        settings = GenerationSettings(**options)  # pyright: ignore[reportArgumentType]
        assert 0 <= int(draw(scores, settings, torch.tensor([0.5]).double())) < 64


def test_equal_seeds_give_equal_draws() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(GenerationSettings(temperature=1.5, seed=seed))
        return [sampler.pick(SCORES, []) for _ in range(30)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(np.int64(1)) == draw(1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens 0: must be at least 1"),
        ({"temperature": -0.1}, "temperature -0.1: must be from 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": 0}, "top_k 0: must be at least 1"),
        ({"top_p": 0.0}, r"top_p 0.0: must be in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"min_p": -1.0}, r"min_p -1.0: must be in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0: must be above 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(TercetError, match=message):
        GenerationSettings(**options)  # pyright: ignore[reportArgumentType]
