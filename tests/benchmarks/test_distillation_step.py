"""A step of benchmarks/training/smollm2, shared by processes, is the step of one that reads all."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import swap

VOCABULARY = 64
FOLDER = "benchmarks/training/smollm2"


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> Callable[[str], ModuleType]:
    return lambda name: script(f"{FOLDER}/{name}.py")


def made(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
    )


def step_of(module: Callable[[str], ModuleType], ids: torch.Tensor, ranks: int):
    recipe = module("recipe").Recipe(
        name="a", body="ternary-g64", embedding="int4-g64", method="stretched", rate=0.01, share=1,
    )  # fmt: skip
    model = made(0)
    student = Student(model, swap(model, recipe.plan()), torch.float32)
    teacher = Student(made(1).eval(), {}, torch.float32)
    group = SimpleNamespace(world_size=ranks, mesh=None)
    return module("graph_step").Step(student, teacher, ids, recipe, group)


def test_mean_gradients_of_two_are_those_of_all_windows(module) -> None:
    ids = torch.randint(VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(0))
    whole = step_of(module, ids, 1)
    halves = [step_of(module, half, 2) for half in ids.split(2)]
    before = [p.detach().clone() for p in whole.student.parameters()]
    for step in (whole, *halves):
        step.set_rate(0.01)
        step._find()
    together = halves[0]._gradients + halves[1]._gradients
    # products are of bfloat16
    torch.testing.assert_close(together, whole._gradients, atol=2e-4, rtol=0.05)
    halves[0]._gradients.copy_(whole._gradients)
    whole._use()
    halves[0]._use()
    pairs = zip(before, whole.student.parameters(), halves[0].student.parameters(), strict=True)
    for old, one, other in pairs:
        assert not torch.equal(old, one)
        torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_windows_begin_where_a_text_does(module) -> None:
    reading, writing = module("reading"), module("writing")
    length = writing.LENGTH

    def text(kind: int, every: int = 100):
        ids = torch.where(torch.arange(5000) % every == 0, kind, -1).int()
        return writing.Text(ids=ids, starts=torch.arange(0, 5000, every))

    # a short text begins with 10 and a long one with 11
    short = torch.full((16, length // 2), -1, dtype=torch.int32)
    long = torch.full((8, length), -1, dtype=torch.int32)
    short[:, 0], long[:, 0] = 10, 11
    texts = reading.Texts(given=[text(0), text(1), text(2)], asked=text(3), written=[short, long])
    shares = reading.Shares(own=0.6, asked=0.2)
    for width, own in ((length // 2, {10, 11}), (2 * length, {11})):
        pools = reading.pools_of(texts, shares, width)
        # a text is as likely as another one, whoever wrote it
        last = [0.4, 0.2] if len(own) == 2 else [0.6]
        assert [pool.share for pool in pools] == pytest.approx([0.04, 0.06, 0.1, 0.2, *last])
        ids = torch.zeros(400, width, dtype=torch.int64)
        reading.Batches(pools).fill(ids)
        first = ids[:, 0]
        assert {0, 1, 2, 3} | own == set(first.tolist()) - {-1}
        assert 190 < (first >= 10).sum() < 290
    # without a teacher's text, or questions, the rest is all
    alone = reading.Texts(given=texts.given, asked=None, written=[])
    assert sum(p.share for p in reading.pools_of(alone, shares, 64)) == pytest.approx(1)
    assert texts.sizes() == [5000, 5000, 5000, 5000, 8 * length, 8 * length]
