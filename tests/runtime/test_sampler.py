import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
from tercet.runtime.sampler import penalize

SCORES = torch.randn(64, generator=torch.Generator().manual_seed(5)) * 3


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
    probabilities, tokens = Sampler(settings).candidates(SCORES)
    found = torch.zeros(64).index_put((tokens,), probabilities)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_repetition_penalty_matches_transformers() -> None:
    seen = [3, 9, 3, 60]
    expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([seen]), SCORES.unsqueeze(0))[0]
    torch.testing.assert_close(penalize(SCORES, seen, 1.7), expected)


def test_greedy_takes_the_likeliest_and_the_penalty_moves_it() -> None:
    best, second = SCORES.topk(2).indices.tolist()
    assert Sampler(GenerationSettings()).pick(SCORES, [best]) == best
    assert Sampler(GenerationSettings(repetition_penalty=50.0)).pick(SCORES, [best]) == second


def test_draws_follow_the_distribution() -> None:
    sampler = Sampler(GenerationSettings(temperature=1.0, top_k=3, seed=0))
    draws = [sampler.pick(SCORES, []) for _ in range(4000)]
    probabilities, tokens = sampler.candidates(SCORES)
    for probability, token in zip(probabilities.tolist(), tokens.tolist(), strict=True):
        # four standard deviations of a binomial share
        bound = 4 * (probability * (1 - probability) / 4000) ** 0.5
        assert abs(draws.count(token) / 4000 - probability) < bound


def test_equal_seeds_give_equal_draws() -> None:
    def draw(seed: int) -> list[int]:
        sampler = Sampler(GenerationSettings(temperature=1.5, seed=seed))
        return [sampler.pick(SCORES, []) for _ in range(30)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


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
