"""What the teacher of benchmarks/training/smollm2 writes begins as it is told, and is shared."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.compress.qat.student import Student

VOCABULARY = 64


@pytest.fixture
def writing(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/smollm2/writing.py")


@pytest.fixture
def decoder(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/smollm2/decoder.py")


@pytest.fixture
def kernels(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("benchmarks/training/smollm2/decoder_kernels.py")


@pytest.fixture
def teacher() -> Student:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            # so that what was read before decides what comes
            initializer_range=0.5,
        )
    )
    return Student(model.eval(), {}, torch.float32)


def test_one_token_at_a_time_gives_the_scores_of_whole_texts(decoder, teacher: Student) -> None:
    ids = torch.randint(VOCABULARY, (3, 7))
    writer = decoder.Decoder(teacher, 3, 7)
    with torch.no_grad():
        whole = teacher.logits(ids)
        for place in range(7):
            found = writer.scores(ids[:, place], place)
            torch.testing.assert_close(found, whole[:, place], atol=1e-4, rtol=1e-4)


def test_texts_keep_their_openings(writing, teacher: Student) -> None:
    openings = torch.full((4, 3), writing.FREE)
    openings[:, 0], openings[:2, 1] = 5, 9
    texts = writing.write(teacher, openings, 4, torch.Generator().manual_seed(0))
    assert texts.shape == (4, 4)
    assert (texts[:, 0] == 5).all()
    assert (texts[:2, 1] == 9).all()
    again = writing.write(teacher, texts[:, :2], 4, torch.Generator().manual_seed(1))
    assert (again[:, :2] == texts[:, :2]).all()


def test_what_is_drawn_has_the_teachers_probabilities(kernels) -> None:
    heat, count = 0.7, 400
    scores = torch.full((count, 70), -30.0)
    # in each quarter of the vocabulary
    likely = torch.tensor([3, 17, 18, 40, 69])
    scores[:, likely] = torch.tensor([1.0, 0.0, -1.0, 0.5, 1.5])
    drawn = kernels.draw(scores, torch.full((count,), heat), 7)
    found = drawn.bincount(minlength=70) / count
    assert 0.5 * (found - (scores[0] / heat).softmax(-1)).abs().sum() < 0.07
    assert not torch.equal(drawn, kernels.draw(scores, torch.full((count,), heat), 8))


def test_openings_are_of_three_kinds(writing) -> None:
    written = torch.full((4, 20), writing.FREE, dtype=torch.int32)
    written[:, :2] = 60
    first = torch.arange(50, dtype=torch.int32)
    starts = torch.tensor([3, 45])
    texts = [writing.Text(ids=first + more, starts=starts) for more in (0, 100)]
    openings = writing.Openings(written, texts, 7)
    drawn = openings.draw(100, torch.Generator().manual_seed(0))
    assert drawn.shape == (100, 20)
    assert (drawn[:45, :2] == 60).all()
    # places too near the end are moved, so that a pool is never left
    text = drawn[45:85, : openings.KEPT]
    assert set(text[:, 0].tolist()) == {3, 34, 103, 134}
    assert (text.diff(dim=1) == 1).all()
    assert (drawn[45:, openings.KEPT :] == writing.FREE).all()
    assert (drawn[85:, 0] < 7).all()
    assert (drawn[85:, 1:] == writing.FREE).all()


def test_texts_of_others_are_taken_and_not_waited_for_long(writing, tmp_path: Path) -> None:
    save_file({"text": torch.tensor([[7, 8]], dtype=torch.int32)}, tmp_path / "b.safetensors")
    own = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    found = writing.shared(own, tmp_path, "a", writers=3, patience_s=0.3)
    assert [text.tolist() for text in found] == [[[1, 2, 3]], [[7, 8]]]
