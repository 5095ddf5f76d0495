"""evaluate, inspect and materialize on a tiny model, against transformers."""

import shutil
from math import exp
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import tercet
from tercet.errors import CheckpointError, PlanError
from tercet.evaluate.text import windows
from tercet.workflows.evaluation import evaluate
from tercet.workflows.materialize import materialize

PLAN = tercet.Plan.model_validate(
    {
        "name": "test",
        "rules": [{"match": "*.layers.*", "format": "int4-g32", "algorithm": "rtn"}],
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("evaluation")
    config = LlamaConfig(
        vocab_size=27,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "source")
    letters = {"?": 0, **{chr(97 + i): i + 1 for i in range(26)}}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "source" / "tokenizer.json"))
    (folder / "text.txt").write_text(" ".join("the quick brown fox jumps over".replace(" ", "")))
    tercet.compress(folder / "source", PLAN, folder / "packed")
    return folder


def test_records_are_those_of_transformers(folder: Path) -> None:
    teacher, student = tercet.evaluate(folder / "packed", text=folder / "text.txt", length=8)
    ids = windows(folder / "text.txt", folder / "source" / "tokenizer.json", 8, None)
    assert teacher.settings["role"] == "teacher"
    assert student.settings["windows"] == len(ids) == 3
    for record, directory in ((teacher, "source"), (student, "packed")):
        model = AutoModelForCausalLM.from_pretrained(folder / directory)
        with torch.no_grad():
            loss = float(model(input_ids=ids, labels=ids).loss)
        assert record.metrics["perplexity"] == pytest.approx(exp(loss), rel=1e-4)
        assert record.metrics["scored_tokens"] == 21
    assert 0 < student.metrics["kl_nats"] < 1
    assert teacher.metrics["kl_nats"] == 0
    assert student.metrics["ratio_to_fp32"] == 2 * student.metrics["ratio_to_bf16"]


def test_a_cache_of_codes_changes_the_student_alone(folder: Path) -> None:
    given = {"text": folder / "text.txt", "length": 8}
    plain = tercet.evaluate(folder / "packed", **given)
    coded = tercet.evaluate(folder / "packed", kv_cache_dtype="int8", **given)
    assert [one.settings.get("kv_cache_dtype") for one in coded] == [None, "int8"]
    assert coded[0].metrics["perplexity"] == plain[0].metrics["perplexity"]
    one, other = coded[1].metrics["perplexity"], plain[1].metrics["perplexity"]
    assert one != other
    assert one == pytest.approx(other, rel=0.01)


def test_another_cache_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(tercet.UnsupportedError, match=r"cache 'int5'.*known: fp8_e4m3, int4, int8"):
        tercet.evaluate(tmp_path / "nowhere", kv_cache_dtype="int5")


@pytest.mark.parametrize(
    ("words", "message"),
    [({"count": 0}, "0 windows of 24 tokens"), ({"count": 2, "length": 1}, "2 windows of 1 tok")],
)
def test_no_window_is_refused(folder: Path, words: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        evaluate(folder, **{"length": 24, **words})
    with pytest.raises(PlanError, match="no checkpoint to evaluate"):
        evaluate([])


def test_a_source_that_changed_since_is_no_teacher(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "source", tmp_path / "source")
    tercet.compress(tmp_path / "source", PLAN, tmp_path / "packed")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "source")
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "source")
    given = {"text": folder / "text.txt", "length": 8}
    with pytest.raises(tercet.CheckpointError, match=r"its weights are not those that .*packed"):
        tercet.evaluate(tmp_path / "packed", **given)
    assert tercet.evaluate(tmp_path / "packed", teacher=str(tmp_path / "source"), **given)


def test_checkpoints_of_several_models_have_no_one_teacher(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "source")
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "other")
    shutil.copy(folder / "source" / "tokenizer.json", tmp_path / "other")
    tercet.compress(tmp_path / "other", PLAN, tmp_path / "packed")
    with pytest.raises(tercet.CheckpointError, match="whose weights are others: name the model"):
        tercet.evaluate(
            [folder / "packed", tmp_path / "packed"], text=folder / "text.txt", length=8
        )


def test_other_tokenizers_are_told_apart_by_what_they_give(folder: Path, tmp_path: Path) -> None:
    """Each model would be asked for the probability of another text."""
    for name in ("same", "other"):
        shutil.copytree(folder / "packed", tmp_path / name)
        (tmp_path / name / "SHA256SUMS").unlink()
        tokenizer = Tokenizer.from_file(str(tmp_path / name / "tokenizer.json"))
        letters = tokenizer.get_vocab()
        if name == "other":
            letters["a"], letters["e"] = letters["e"], letters["a"]
        changed = Tokenizer(models.WordLevel(letters, unk_token="?"))
        changed.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        changed.save(str(tmp_path / name / "tokenizer.json"))
    given = {"teacher": "none", "text": folder / "text.txt", "length": 8}
    one, same = evaluate([folder / "packed", tmp_path / "same"], **given)
    assert one.metrics["perplexity"] == same.metrics["perplexity"]
    with pytest.raises(CheckpointError, match="other: its tokenizer makes other tokens of text"):
        evaluate([folder / "packed", tmp_path / "other"], **given)


def test_a_teacher_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "teacher")
    with pytest.raises(CheckpointError, match="packed: 27 tokens, and the teacher has 31"):
        evaluate(
            folder / "packed",
            teacher=str(tmp_path / "teacher"),
            text=folder / "text.txt",
            length=8,
        )


def test_a_teacher_that_reads_other_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    """Of the same size, its distributions would be compared token by other token."""
    given = {"teacher": str(tmp_path / "teacher"), "text": folder / "text.txt", "length": 8}
    shutil.copytree(folder / "source", tmp_path / "teacher")
    (tmp_path / "teacher" / "tokenizer.json").unlink()
    silent = evaluate(folder / "packed", **given)
    shutil.copy(folder / "source" / "tokenizer.json", tmp_path / "teacher")
    assert [one.metrics for one in evaluate(folder / "packed", **given)] == [
        one.metrics for one in silent
    ]
    tokenizer = Tokenizer.from_file(str(tmp_path / "teacher" / "tokenizer.json"))
    letters = tokenizer.get_vocab()
    letters["a"], letters["e"] = letters["e"], letters["a"]
    changed = Tokenizer(models.WordLevel(letters, unk_token="?"))
    changed.pre_tokenizer = pre_tokenizers.Whitespace()
    changed.save(str(tmp_path / "teacher" / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="teacher: token id 5 is 'a' there and 'e' in"):
        evaluate(folder / "packed", **given)


def test_a_teacher_may_be_a_path(folder: Path) -> None:
    given = {"text": folder / "text.txt", "length": 8}
    by_path, by_name = (
        evaluate(folder / "packed", teacher=kind(folder / "source"), **given)
        for kind in (Path, str)
    )
    assert [(one.subject, one.settings, one.metrics) for one in by_path] == [
        (one.subject, one.settings, one.metrics) for one in by_name
    ]


def test_a_teacher_of_fewer_tokens_is_refused(folder: Path, tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "teacher")
    given = {"teacher": str(tmp_path / "teacher"), "text": folder / "text.txt", "length": 8}
    with pytest.raises(CheckpointError, match=r"below 20, and .* makes 2\d of the text"):
        evaluate(folder / "packed", **given)


def test_windows_beyond_a_models_positions_are_refused(folder: Path) -> None:
    """It gives numbers there, which say nothing of it."""
    with pytest.raises(PlanError, match="2049 tokens, but the model has 2048 positions"):
        evaluate(folder / "packed", teacher="none", text=folder / "text.txt", length=2049)


def test_without_a_teacher(folder: Path) -> None:
    (record,) = tercet.evaluate(
        folder / "packed", teacher="none", text=folder / "text.txt", length=8, count=1
    )
    assert "kl_nats" not in record.metrics
    assert record.metrics["scored_tokens"] == 7


def test_a_device_that_is_not_there_is_refused_before_anything_is_opened(folder: Path) -> None:
    with pytest.raises(tercet.UnsupportedError, match="allowed are cpu, cuda and cuda:N"):
        tercet.evaluate(folder / "missing", device="tpu")
    with pytest.raises(tercet.UnsupportedError, match="CUDA devices here"):
        tercet.evaluate(folder / "missing", device="cuda:99")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_what_a_cpu_finds(folder: Path) -> None:
    found = {
        device: tercet.evaluate(
            folder / "packed", text=folder / "text.txt", length=8, device=device
        )
        for device in ("cpu", "cuda")
    }
    for one, other in zip(found["cpu"], found["cuda"], strict=True):
        assert (one.settings["device"], other.settings["device"]) == ("cpu", "cuda")
        for name, value in one.metrics.items():
            assert other.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_inspection(folder: Path) -> None:
    found = tercet.inspect(folder / "packed", verify=True)
    assert found["architecture"] == "LlamaForCausalLM"
    assert found["formats"] == {"int4-g32": 14}
    module = found["modules"]["model.layers.1.mlp.up_proj"]
    assert module["bits_per_weight"] == 4.5
    assert module["algorithm"] == "rtn"
    assert 0 < module["relative_error"] < 0.12
    assert found["kept"] == {"tensors": 7, "parameters": 2 * 27 * 32 + 5 * 32}


def test_materialize_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    target = materialize(tercet.open_source(folder / "source"), tmp_path / "plain")
    original = AutoModelForCausalLM.from_pretrained(folder / "source").state_dict()
    found = AutoModelForCausalLM.from_pretrained(target).state_dict()
    assert original.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in original.items())
    assert materialize(tercet.open_source(folder / "source"), target) == target
