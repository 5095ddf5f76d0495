"""The parts of a distillation's loss, against plain definitions, and what a teacher leaves."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from tercet.checkpoints.sources.open import open_source
from tercet.compress.distill.attention_relation import PARTS, attention_relation_loss
from tercet.compress.distill.generate import generate
from tercet.compress.distill.hidden_states import hidden_state_loss
from tercet.compress.distill.next_token import DecoderNextToken, ModelNextToken, next_token
from tercet.compress.distill.objective import Distillation
from tercet.compress.distill.settings import DistillSettings
from tercet.compress.distill.targets import Targets, TargetsIdentity, write_targets
from tercet.compress.distill.top_k import top_k_divergence
from tercet.compress.qat.student import Student
from tercet.compress.training.phases import Phases
from tercet.compress.training.sequences import Sequences
from tercet.compress.training.token_file import write_tokens
from tercet.errors import CheckpointError, PlanError
from tercet.ops.linear_kl import linear_kl

pytestmark = pytest.mark.filterwarnings("ignore:.*slow path")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def opened(model: Path) -> Student:
    return Student(LlamaForCausalLM.from_pretrained(model).eval(), {}, torch.float32)


def test_hidden_states() -> None:
    own, wanted = [normal(2, 3, 8)], [normal(2, 3, 8, seed=1)]
    # the first token is a thousand times longer: it counts as much as any other
    own[0][:, 0] *= 1000
    wanted[0][:, 0] *= 1000
    errors = [
        float((own[0][b, t] - wanted[0][b, t]).norm() ** 2 / wanted[0][b, t].norm() ** 2)
        for b in range(2)
        for t in range(3)
    ]
    assert float(hidden_state_loss(own, wanted)) == pytest.approx(sum(errors) / 6)
    assert float(hidden_state_loss(own * 2, (own[0], wanted[0]))) == pytest.approx(sum(errors) / 12)
    with pytest.raises(PlanError, match="teacher of the student's shape"):
        hidden_state_loss(own, [normal(2, 3, 4)])


def test_attention_relations() -> None:
    """Against a loop over heads and positions; widths differ."""
    own = {part: normal(2, 5, 12, seed=i) for i, part in enumerate(PARTS)}
    wanted = {part: normal(2, 5, 8, seed=9 + i) for i, part in enumerate(PARTS)}
    total = 0.0
    for part in PARTS:
        for b in range(2):
            for h in range(2):
                for t in range(5):
                    q, p = (
                        (x[b, : t + 1, h * d : h * d + d] @ x[b, t, h * d : h * d + d] / d**0.5)
                        .double()
                        .log_softmax(-1)
                        for x, d in ((own[part], 6), (wanted[part], 4))
                    )
                    total += float((p.exp() * (p - q)).sum())
    own = {part: x.requires_grad_() for part, x in own.items()}
    loss = attention_relation_loss(own, wanted, 2)
    assert float(loss.detach()) == pytest.approx(total / (3 * 2 * 2 * 5), rel=1e-5)
    loss.backward()
    for x in own.values():
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad.abs().sum() > 0
    with pytest.raises(PlanError, match="must divide"):
        attention_relation_loss(own, wanted, 3)


def test_parts_add_up_and_see_both_models(model: Path, ids: Path) -> None:
    student, teacher = opened(model), opened(model)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(1.05)
    settings = DistillSettings(
        divergence="jsd", beta=0.3, temperature=2.0, divergence_weight=0.5, cross_entropy=0.25,
        hidden=2.0, attention=3.0,
    )  # fmt: skip
    tokens = load_file(ids)["input_ids"].reshape(-1, 32)[:2]
    losses = Distillation(student, teacher, settings)(tokens, [0, 1], Phases(student.device))
    log_q, log_p = (
        (m.logits(tokens).detach() / 2).double().log_softmax(-1) for m in (student, teacher)
    )
    mixed = (0.3 * log_p.exp() + 0.7 * log_q.exp()).log()
    wanted = 0.3 * (log_p.exp() * (log_p - mixed)) + 0.7 * (log_q.exp() * (log_q - mixed))
    losses = {name: value.detach() for name, value in losses.items()}
    assert float(losses["divergence"]) == pytest.approx(float(4 * wanted.sum(-1).mean()), rel=1e-3)
    truth = torch.nn.functional.cross_entropy(
        student.logits(tokens).detach()[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    assert float(losses["cross_entropy"]) == pytest.approx(float(truth), rel=1e-4)
    parts = {name: float(value) for name, value in losses.items()}
    assert parts["hidden"] > 1e-4
    assert parts["attention"] > 1e-6
    assert parts["loss"] == pytest.approx(
        0.5 * parts["divergence"] + 0.25 * parts["cross_entropy"]
        + 2 * parts["hidden"] + 3 * parts["attention"]
    )  # fmt: skip


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_top_k_of_all_classes_is_the_whole_divergence(beta: float) -> None:
    hidden, head = normal(1, 300, 16), normal(40, 16, seed=1)
    wanted, teacher = normal(1, 300, 16, seed=2), normal(40, 16, seed=3)
    inputs = (hidden.requires_grad_(), head.requires_grad_())
    log_p, order = ((wanted @ teacher.T) / 2).log_softmax(-1).topk(40)
    found = top_k_divergence(
        hidden, head, (order, log_p, torch.zeros(1, 300)), temperature=2.0, beta=beta
    )
    whole = linear_kl(hidden, head, wanted, teacher, temperature=2.0, beta=beta)
    assert float(found.detach()) == pytest.approx(float(whole.detach()), rel=1e-4)
    for one, other in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(whole, inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_top_k_counts_the_rest_as_one_class() -> None:
    hidden, head = 3 * normal(1, 5, 16), normal(40, 16, seed=1)
    wanted = (3 * normal(1, 5, 16, seed=2) @ normal(40, 16, seed=3).T).log_softmax(-1)
    log_p, order = wanted.topk(4)
    tail = 1 - log_p.exp().sum(-1)
    log_q = (hidden @ head.T).double().log_softmax(-1)
    q = torch.cat((log_q.exp().gather(-1, order), torch.zeros(1, 5, 1)), -1)
    q[..., -1] = 1 - q.sum(-1)
    p = torch.cat((log_p.exp(), tail[..., None]), -1)
    truth = (p * (p / q).log()).sum(-1).mean()
    assert float(top_k_divergence(hidden, head, (order, log_p, tail))) == pytest.approx(
        float(truth), rel=1e-4
    )


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_teacher_that_is_sure_leaves_others_something(beta: float) -> None:
    """As targets are kept: in float16 the sum of the likeliest is often 1 and more."""
    hidden, head = 3 * normal(1, 64, 16), normal(40, 16, seed=1)
    logits = 12 * normal(1, 64, 16, seed=2) @ normal(40, 16, seed=3).T
    truth = logits.double().log_softmax(-1)
    _, order = truth.topk(4)
    kept = truth.gather(-1, order).half().float()
    tail = truth.exp().scatter(-1, order, 0.0).sum(-1)
    assert (1 - kept.double().exp().sum(-1) <= 0).any()
    log_q = (hidden @ head.T).double().log_softmax(-1)
    p, q = (
        torch.cat(
            (one.gather(-1, order), one.scatter(-1, order, -torch.inf).logsumexp(-1)[..., None]), -1
        ).exp()
        for one in (truth, log_q)
    )
    mixed = beta * p + (1 - beta) * q
    divergences = {
        0.0: (p * (p / q).log()).sum(-1),
        1.0: (q * (q / p).log()).sum(-1),
        0.5: (beta * p * (p / mixed).log() + (1 - beta) * q * (q / mixed).log()).sum(-1),
    }
    found = top_k_divergence(hidden, head, (order, kept, tail.float()), beta=beta)
    assert float(found) == pytest.approx(float(divergences[beta].mean()), rel=2e-3)


@pytest.fixture
def sequences(ids: Path, tmp_path: Path) -> Sequences:
    tokens = write_tokens(tmp_path / "tokens", [load_file(ids)["input_ids"][0, :320]], "test")
    return Sequences(tokens, 32, seed=0)


def identity(sequences: Sequences, **changes: Any) -> TargetsIdentity:
    values: dict[str, Any] = {
        "teacher_sha256": "0", "tokens_sha256": sequences.tokens.note.sha256, "length": 32,
        "k": 6, "temperature": 1.5, "precision": "float32", "shard": 4,
    }  # fmt: skip
    return TargetsIdentity(**{**values, **changes})


def test_targets_on_disk(model: Path, sequences: Sequences, tmp_path: Path) -> None:
    teacher, place = opened(model), tmp_path / "targets"
    write_targets(place, identity(sequences), teacher, sequences)
    found, log_p, tail = Targets(place, identity(sequences)).read([9, 2])
    with torch.no_grad():
        logits = teacher.logits(sequences.read([9, 2])) / 1.5
    truth, order = logits.log_softmax(-1).topk(6)
    assert torch.equal(found, order)
    torch.testing.assert_close(log_p, truth, rtol=1e-3, atol=0)
    others = logits.double().softmax(-1).scatter(-1, order, 0.0).sum(-1)
    torch.testing.assert_close(tail.double(), others, rtol=1e-5, atol=0)


def test_targets_refuse_what_they_are_not(
    model: Path, sequences: Sequences, tmp_path: Path
) -> None:
    teacher, place = opened(model), tmp_path / "targets"
    with pytest.raises(CheckpointError, match="no targets that can be read"):
        Targets(place, identity(sequences))
    write_targets(place, identity(sequences), teacher, sequences)
    with pytest.raises(CheckpointError, match="targets of another temperature"):
        Targets(place, identity(sequences, temperature=1.0))
    with pytest.raises(CheckpointError, match="targets of another tokens_sha256"):
        write_targets(place, identity(sequences, tokens_sha256="1"), teacher, sequences)
    shard = place / "shard-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    damaged = Targets(place, identity(sequences))
    damaged.read([3])
    with pytest.raises(CheckpointError, match=r"shard-00001.safetensors: missing or damaged"):
        damaged.read([4])


def test_interrupted_targets_go_on(model: Path, sequences: Sequences, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(done: int, _all: int) -> None:
        if done == 8:
            raise Killed

    teacher, place = opened(model), tmp_path / "targets"
    with pytest.raises(Killed):
        write_targets(place, identity(sequences), teacher, sequences, kill)
    first = (place / "shard-00000.safetensors").stat().st_mtime_ns
    write_targets(place, identity(sequences), teacher, sequences)
    assert (place / "shard-00000.safetensors").stat().st_mtime_ns == first
    Targets(place, identity(sequences)).read(list(range(10)))


def writers(model: Path) -> list[DecoderNextToken | ModelNextToken]:
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    source = open_source(str(model))
    lean = [DecoderNextToken(source, torch.float32, torch.device(device)) for device in devices]
    return [lean[0], ModelNextToken(opened(model)), *lean[1:]]


def test_texts_by_the_teacher(model: Path) -> None:
    teacher, written = opened(model), list[Tensor]()
    for writer in writers(model):
        texts = torch.stack(list(generate(writer, 200, length=16, batch=8, seed=3)))
        assert texts.shape == (16, 16)
        again = torch.stack(list(generate(writer, 200, length=16, batch=8, seed=3)))
        assert torch.equal(texts, again)
        other = torch.stack(list(generate(writer, 200, length=16, batch=8, seed=4)))
        assert not torch.equal(texts, other)
        # the second to fifth tokens are the teacher's likeliest, the others are drawn
        likeliest = teacher.logits(texts).argmax(-1)[:, :-1] == texts[:, 1:]
        assert likeliest[:, :4].all()
        assert not likeliest[:, 4:].all()
        written.append(texts)
    # both writers on a CPU differ by rounding alone, and draw the same numbers
    assert (written[0] == written[1]).float().mean() > 0.9


def test_drawn_tokens_have_the_teachers_probabilities_cooled() -> None:
    class Biased:
        device, vocabulary = torch.device("cpu"), 3

        def begin(self, batch: int, length: int) -> None:
            pass

        def scores(self, ids: Tensor) -> Tensor:
            return torch.tensor([0.2, 0.3, 0.5]).log().expand(len(ids), 3)

    texts = torch.stack(list(generate(Biased(), 400_000, length=4000, batch=100)))[:, 5:]
    found = torch.stack([(texts == token).double().mean(1) for token in range(3)], 1)

    def at(heat: float) -> Tensor:
        return (torch.tensor([0.2, 0.3, 0.5]).double().log() / heat).softmax(-1)

    # five standard errors of one text around what its temperature, between 0.7 and 1, gives
    error = 5 * (0.25 / texts.shape[1]) ** 0.5
    low, high = at(1.0)[2], at(0.7)[2]
    assert (found[:, 2] > low - error).all()
    assert (found[:, 2] < high + error).all()
    # temperatures are spread evenly
    wanted = torch.stack([at(0.7 + 0.3 * (step + 0.5) / 50) for step in range(50)]).mean(0)
    assert (found.mean(0) - wanted).abs().max() < 0.01
    assert found[:, 2].std() > 0.2 * (high - low)


def test_half_of_the_texts_are_conversations(model: Path) -> None:
    opening = [7, 3, 9]
    for writer in writers(model):
        texts = torch.stack(
            list(generate(writer, 16 * 64, length=16, batch=64, seed=3, opening=opening))
        )
        begins = (texts[:, :3] == torch.tensor(opening)).all(1)
        assert begins[:32].all()
        assert not begins[32:].any()
        # what follows an opening is drawn: the conversations differ at once
        assert len(set(texts[:32, 3].tolist())) > 4
        # longer than a text: there is no room for it
        short = torch.stack(list(generate(writer, 8, length=2, batch=4, opening=opening)))
        assert not (short[:, 0] == 7).all()


@pytest.mark.parametrize("which", [0, 1], ids=["decoder", "transformers"])
def test_most_of_the_others_go_on_from_text_at_hand(which: int, model: Path) -> None:
    beginnings, writer = torch.arange(40).view(8, 5), writers(model)[which]

    def write(length: int = 16, opening: Sequence[int] = (), text: Tensor = beginnings) -> Tensor:
        count = 64 * length
        texts = generate(writer, count, length=length, batch=64, opening=opening, beginnings=text)
        return torch.stack(list(texts))

    def continued(texts: Tensor) -> list[bool]:
        return [any(torch.equal(text[:5], row) for row in beginnings) for text in texts]

    texts = write()
    assert continued(texts) == [True] * 48 + [False] * 16
    # every one is chosen at some time, and what follows is drawn
    assert len({tuple(row) for row in texts[:48, :5].tolist()}) == 8
    assert len(set(texts[:48, 5].tolist())) > 4
    # beside conversations, longer and shorter than a beginning
    for opening in ((1, 2, 3), (1, 2, 3, 4, 5, 6, 7)):
        texts = write(opening=opening)
        assert (texts[:32, : len(opening)] == torch.tensor(opening)).all()
        assert continued(texts) == [False] * 32 + [True] * 24 + [False] * 8
        # a token at random, then the likeliest, whatever the others begin with
        free = opened(model).logits(texts[56:]).argmax(-1)[:, :-1] == texts[56:, 1:]
        assert free[:, :4].all()
    # no room, or nothing to go on from
    assert not any(continued(write(length=5)))
    assert not any(continued(write(text=beginnings[:0])))


def test_an_architecture_that_the_decoder_does_not_know_still_writes(model: Path) -> None:
    source = open_source(str(model))
    known = next_token(source, opened(model))
    assert isinstance(known, DecoderNextToken)
    source.config["model_type"] = "unheard-of"
    assert isinstance(next_token(source, opened(model)), ModelNextToken)


def test_settings_that_teach_nothing() -> None:
    with pytest.raises(ValueError, match="nothing to learn"):
        DistillSettings(divergence_weight=0)
    with pytest.raises(ValueError, match="Extra inputs"):
        DistillSettings(divergance="jsd")  # pyright: ignore[reportCallIssue]


def test_corpus_of_texts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tercet.compress.training.corpus import Corpus

    words = {"<end>": 0, "a": 1, "b": 2, "c": 3}
    encoder = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    encoder.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "1.txt").write_text("a b")
    (tmp_path / "2.jsonl").write_text('{"text": "c"}\n{"text": "a a"}\n')
    save_file({"input_ids": torch.tensor([[2, 2]])}, tmp_path / "3.safetensors")
    written = tmp_path / "tokenizer.json"
    names = [str(tmp_path / name) for name in ("1.txt", "2.jsonl", "3.safetensors")]
    for data in (names, [str(tmp_path)]):
        found = torch.cat(list(Corpus(data, written, 0).chunks(100)))
        assert found.tolist() == [1, 2, 0, 3, 0, 1, 1, 0, 2, 2]
    assert torch.cat(list(Corpus(names, written, None).chunks(4))).tolist() == [1, 2, 3, 1]
    # JSON may hold what Unicode calls an end of line
    (tmp_path / "2.jsonl").write_text('\n{"text": "c\u2028a"}\n\n')
    assert torch.cat(list(Corpus([names[1]], written, None).chunks())).tolist() == [3, 1]
    (tmp_path / "2.jsonl").write_text('{"text": "a"}\n{"text": 7}')
    with pytest.raises(PlanError, match="line 2: no JSON object whose key text holds a string"):
        list(Corpus([names[1]], written, 0).chunks(9))
    (tmp_path / "2.jsonl").write_text("{}")
    with pytest.raises(PlanError, match="line 1: no JSON object whose key text"):
        list(Corpus(names, written, 0).chunks(100))
    with pytest.raises(PlanError, match="need one"):
        Corpus(["teacher:100"], written, 0)


def test_the_teacher_gets_beginnings_of_what_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tercet.compress.training import corpus

    seen: list[Tensor] = []

    def write(tokens: int, beginnings: Tensor) -> Iterator[Tensor]:
        seen.append(beginnings)
        yield torch.arange(tokens)

    def read(*names: str) -> list[Tensor]:
        seen.clear()
        whole = corpus.Corpus(
            [str(tmp_path / n) if ":" not in n else n for n in names], tmp_path, None, write
        )
        for _ in range(2):  # what the first pass read is not kept for a second
            list(whole.chunks())
        return seen

    for name, count in (("a", 400), ("b", 15), ("c", 1000)):
        save_file(
            {"input_ids": torch.arange(count) + 1000 * ord(name)}, tmp_path / f"{name}.safetensors"
        )
    a, b, c = (f"{name}.safetensors" for name in "abc")
    for beginnings in read("teacher:50", a):
        assert beginnings.shape == (0, 16)
    for beginnings in read(a, "teacher:50", b):
        places = torch.tensor([0, 128, 256, 384]) + 97000
        assert torch.equal(beginnings, places[:, None] + torch.arange(16))
    # what is shorter has none, and what the teacher wrote is not gone on from
    for first, second in zip(*[iter(read(a, b, "teacher:50", "teacher:70"))] * 2, strict=True):
        assert torch.equal(first, second)
        assert len(first) == 4
    # further apart where there are many, still of all that was read
    monkeypatch.setattr(corpus, "_MOST_BEGINNINGS", 5)
    for beginnings in read(a, c, "teacher:50"):
        assert 2 <= len(beginnings) <= 5
        assert {int(row[0]) // 1000 for row in beginnings} == {97, 99}
