"""The page about compressed models says what records and checkpoints say."""

import json
import re
from html import unescape
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from command_line import runner
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import plan, save, tokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import tercet
from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.seal import weights_sha256
from tercet.compress.pipeline import compress
from tercet.errors import CheckpointError, TercetError, UnsupportedError
from tercet.records import Environment, Record, append
from tercet.workflows.report import runs, write_model_report
from tercet.workflows.report.byte_shares import find_bytes
from tercet.workflows.report.plots import Point, find_front, plot_layers
from tercet.workflows.report.runs import Value, read_runs

SETTINGS = {"text": "a.txt", "windows": 4, "window_tokens": 64, "role": "student"}


def record(subject: str, kind: str = "evaluation", **more: Any) -> Record:
    metrics = {"perplexity": 25.72, "kl_nats": 0.0781, "disk_bytes": 85.8e6, "bits_per_weight": 5.1}
    return Record(
        kind=kind,
        subject=subject,
        settings={**SETTINGS, **more.pop("settings", {})},
        metrics={**metrics, **more.pop("metrics", {})},
        environment=Environment.here(),
        **more,
    )


def cells(page: str, heading: str) -> list[dict[str, str]]:
    """Rows of the table under a heading, by column."""
    part = page[page.index(f"<h2>{heading}</h2>") :]
    part = part[: part.index("</table>")]
    titles = re.findall(r"<th[^>]*><button[^>]*>(.*?)</button>", part)
    rows = re.findall(r"<tr>(<td.*?)</tr>", part, re.DOTALL)
    found = [re.findall(r"<td[^>]*>(?:<span.*?</span>)?(.*?)</td>", row, re.DOTALL) for row in rows]
    return [dict(zip(map(unescape, titles), map(unescape, row), strict=True)) for row in found]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=8),
    st.booleans(),
    st.booleans(),
)
def test_the_front_has_who_is_beaten_by_nobody(
    places: list[tuple[int, int]], lower: bool, cheap: bool
) -> None:
    points = [
        Point(name=str(at), colour=0, cost=cost, quality=Value(value=quality))
        for at, (cost, quality) in enumerate(places)
    ]

    def key(point: Point) -> tuple[float, float]:
        quality = point.quality.value
        return point.cost if cheap else -point.cost, quality if lower else -quality

    found = [key(one) for one in find_front(points, lower_is_better=lower, cheap_is_low=cheap)]
    keys = {key(one) for one in points}
    unbeaten = {
        one for one in keys if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in keys)
    }
    assert found == sorted(unbeaten)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    source = save("llama", folder / "source")
    for form in ("int4-g16", "ternary-g16"):
        compress(source, plan(form, None), folder / form, calibration=tokens(8), device="cpu")
    return folder


def test_bytes_add_up_to_the_files(packed: Path) -> None:
    checkpoint = open_packed(packed / "int4-g16")
    parts = find_bytes(checkpoint)
    assert sum(one.total for one in parts.values()) == checkpoint.size_bytes
    assert set(parts) == {"embedding", "attention", "MLP", "norms", "head", "file headers"}
    # a layer: q and o 32 x 32, k and v 16 x 32, three of 48 x 32; half a byte a weight
    assert parts["attention"].codes == 2 * (2 * 32 * 32 + 2 * 16 * 32) // 2
    assert parts["MLP"].codes == 2 * 3 * 48 * 32 // 2
    assert parts["MLP"].scales == 2 * 2 * 3 * 48 * 32 // 16
    assert parts["embedding"].codes == 64 * 32
    assert parts["head"].uncompressed == 64 * 32 * 4
    assert parts["norms"].codes == parts["norms"].scales == 0
    assert parts["norms"].uncompressed == 5 * 32 * 4


def test_sizes_errors_and_bytes_of_checkpoints(packed: Path, tmp_path: Path) -> None:
    names = [packed / "int4-g16", packed / "ternary-g16"]
    report = write_model_report(names, tmp_path / "r.html")
    assert report.models == tuple(map(str, names))
    page = (tmp_path / "r.html").read_text()
    (first, second) = cells(page, "Models")
    assert float(first["MB"]) == pytest.approx(open_packed(names[0]).size_bytes / 1e6, abs=0.051)
    assert float(first["bits a weight"]) > float(second["bits a weight"])
    manifest = open_packed(names[1]).manifest
    assert manifest is not None
    rows = [row for row in cells(page, "Modules") if row["model"] == str(names[1])]
    assert {row["module"]: float(row["relative error"]) for row in rows} == {
        name: pytest.approx(info.relative_error, abs=1e-4)
        for name, info in manifest.modules.items()
    }
    sizes = {
        name: entry.shape[0] * entry.shape[1]
        for name, entry in open_packed(names[1]).modules.items()
        if "layers.1." in name
    }
    mean = sum(n * manifest.modules[name].relative_error ** 2 for name, n in sizes.items())
    wanted = (mean / sum(sizes.values())) ** 0.5
    assert f"{names[1]}, layer 1: {wanted:.1%}" in page


def speed(engine: str, checkpoint: str, tokens_per_s: float) -> Record:
    return record(
        engine,
        kind="export-speed",
        settings={"checkpoint": checkpoint},
        metrics={"decode_tokens_per_s": tokens_per_s},
    )


def test_values_intervals_and_the_uncompressed_model(tmp_path: Path) -> None:
    bounds = {"perplexity_low": 25.1, "perplexity_high": 26.3}
    small = {"perplexity": 45.13, "disk_bytes": 60e6, "decode_tokens_per_s": 100.0}
    other = {"text": "b.txt"}
    task = {"task": "piqa", "metric": "acc", "shots": 0}
    score = {"score": 0.5, "score_low": 0.4, "score_high": 0.6, "questions": 100.0}
    teacher = Record(
        kind="evaluation",
        subject="whole",
        settings={**SETTINGS, "role": "teacher"},
        metrics={"perplexity": 24.12, "kl_nats": 0.0},
        environment=Environment.here(),
    )
    append(
        tmp_path / "r.jsonl",
        [
            record("int4", metrics={"perplexity": 99.0}),
            record("int4", metrics={**bounds, "decode_tokens_per_s": 70.0}),
            record("ternary", metrics=small),
            record("ternary", settings=other, metrics={"perplexity": 31.0}),
            record("int4", kind="task", settings=task, metrics=score),
            teacher,
            speed("tercet 0.1.0", "ternary", 210.0),
            speed("llama.cpp 1", "ternary", 999.0),
        ],
    )
    report = write_model_report([tmp_path / "r.jsonl"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    perplexity, elsewhere = "perplexity, a.txt, 4 x 64 tokens", "perplexity, b.txt, 4 x 64 tokens"
    divergence = "KL from the teacher, nats, a.txt, 4 x 64 tokens"
    int4, ternary, whole = cells(page, "Models")
    assert (int4["model"], ternary["model"]) == ("int4", "ternary")
    assert int4[perplexity] == "25.72 (25.10 to 26.30)", "the last record counts"
    assert (ternary[perplexity], ternary[elsewhere]) == ("45.13", "31.00")
    assert ternary["tokens/s"] == "210", "by the last bench of our own engine"
    assert int4[elsewhere] == whole[divergence] == ""
    assert (int4["MB"], whole["MB"], int4["tokens/s"]) == ("85.8", "", "70")
    assert int4["piqa (acc), 100 questions, 0 shots"] == "50.0% (40.0% to 60.0%)"
    assert len(report.measures) == 5
    assert page.count("<figure>") == 4, "two measures that two models share, over size and speed"
    assert "Straight across: whole, 24.12." in page
    assert "int4: 85.8 MB of weight files, perplexity 25.72 (95 % interval 25.10 to 26.30)" in page
    assert not re.search(r"https?://|src=|@import", page), "it opens without a network"


def test_texts_stand_side_by_side(packed: Path, tmp_path: Path) -> None:
    write_tokenizers(packed)
    names = [packed / "int4-g16", packed / "ternary-g16"]
    prompts = ["<b>a</b>", "b c"]
    write_model_report(names, tmp_path / "r.html", prompts=prompts, tokens=5, device="cpu")
    rows = cells((tmp_path / "r.html").read_text(), "What they write")
    assert [(row["prompt"], row["model"]) for row in rows] == [
        (prompt, str(name)) for prompt in prompts for name in names
    ]
    for row in rows:
        model = tercet.load(row["model"], device="cpu")
        assert row["text"] == model.generate(row["prompt"], max_new_tokens=5).text


def write_tokenizers(packed: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:61]
    vocabulary = {"<end>": 0, **{letter: at + 1 for at, letter in enumerate(letters)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for name in ("int4-g16", "ternary-g16"):
        tokenizer.save(str(packed / name / "tokenizer.json"))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    other = record("m", kind="bench")
    append(tmp_path / "bench.jsonl", [other])
    (tmp_path / "text.jsonl").write_text("words\n")
    append(tmp_path / "good.jsonl", [record("m")])
    cases: list[tuple[str, str, type[TercetError]]] = [
        ("none", "no such file", CheckpointError),
        ("empty", "is no run", CheckpointError),
        ("bench.jsonl", "no record of an evaluation", CheckpointError),
        ("text.jsonl", "text.jsonl:1: not a record", CheckpointError),
    ]
    for name, words, kind in cases:
        with pytest.raises(kind, match=words):
            write_model_report([tmp_path / name], tmp_path / "r.html")
    with pytest.raises(UnsupportedError, match="packed checkpoints"):
        write_model_report([tmp_path / "good.jsonl"], tmp_path / "r.html", prompts=["a"])
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written_is_named_first(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("of the user's")
    for page, words in (
        (tmp_path, "is a directory: give an"),
        (notes, "is no HTML page"),
        (tmp_path / "a" / "b", "/a: no"),
    ):
        with pytest.raises(CheckpointError, match=words):
            write_model_report([tmp_path / "none"], page)
    assert notes.read_text() == "of the user's"


def test_a_checkpoint_that_continues_no_prompt_is_named(packed: Path, tmp_path: Path) -> None:
    write_tokenizers(packed)
    broken = tmp_path / "broken"
    copytree(packed / "int4-g16", broken)
    (broken / "tokenizer.json").write_text("{}")
    names = [packed / "ternary-g16", broken]
    with pytest.raises(CheckpointError, match=r"/broken continues no prompt: .*: leave this model"):
        write_model_report(names, tmp_path / "r.html", prompts=["a"], tokens=2, device="cpu")


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path / "r.jsonl", [record("m")])
    run = runner(monkeypatch, capsys)
    found = run("report", tmp_path / "r.jsonl", "--out", tmp_path / "r.html", "--json")
    assert json.loads(found.out)["models"] == ["m"]
    assert "25.72" in (tmp_path / "r.html").read_text()
    assert "no such file" in run("report", tmp_path / "none").error


def test_a_directory_is_one_model_however_it_is_written(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "r.jsonl", [record(str(packed / "int4-g16"))])
    monkeypatch.chdir(packed)
    (model,) = read_runs(["int4-g16/", tmp_path / "r.jsonl"])
    assert model.checkpoint is not None
    assert {measure.name for measure in model.values} == {"perplexity", "KL from the teacher, nats"}


def test_a_fetched_model_is_known_by_its_name(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "find_packed", {"small": packed / "int4-g16"}.__getitem__)
    (model,) = read_runs(["small"])
    assert model.checkpoint is not None


def test_errors_stand_at_their_layers_numbers() -> None:
    figure = plot_layers([("a", 0, {1: 0.25, 3: 0.5}), ("b", 1, {0: 0.125})])
    assert re.findall(r"[ab], layer \d+: [\d.]+%", figure) == [
        "a, layer 1: 25.0%", "a, layer 3: 50.0%", "b, layer 0: 12.5%",
    ]  # fmt: skip


def test_what_was_measured_otherwise_is_another_measure(tmp_path: Path) -> None:
    def evaluated(perplexity: float, **settings: str) -> Record:
        return record("m", settings=settings, metrics={"perplexity": perplexity})

    task = {"task": "ifeval", "metric": "acc", "max_tokens": 64, "chat": True}
    score = {"score": 0.5, "questions": 10.0}
    append(
        tmp_path / "r.jsonl",
        [
            evaluated(20.0, text_sha256="11112222", teacher="t"),
            evaluated(21.0, text_sha256="11112222", teacher="t", kv_cache_dtype="int8"),
            evaluated(22.0, text_sha256="33334444", teacher="t"),
            record("m", kind="task", settings=task, metrics=score),
        ],
    )
    (model,) = read_runs([tmp_path / "r.jsonl"])
    found = {measure.title: value.value for measure, value in model.values.items()}
    of = "perplexity, a.txt, 4 x 64 tokens"
    assert found[f"{of} (11112222)"] == 20.0
    assert found[f"{of} (11112222), int8 cache"] == 21.0
    assert found[f"{of} (33334444)"] == 22.0
    assert found["ifeval (acc), 10 questions, as chats, answers of 64 tokens"] == 0.5
    append(tmp_path / "other.jsonl", [evaluated(20.0, text_sha256="11112222", teacher="u")])
    (model,) = read_runs([tmp_path / "r.jsonl", tmp_path / "other.jsonl"])
    names = {measure.name for measure in model.values}
    assert {"KL from t, nats", "KL from u, nats", "perplexity"} < names


def test_records_of_other_weights_than_lie_there_are_refused(packed: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    copytree(packed / "int4-g16", place)
    measured = weights_sha256(place)
    assert measured is not None
    append(tmp_path / "r.jsonl", [record(str(place), settings={"weights_sha256": measured})])
    (model,) = read_runs([tmp_path / "r.jsonl", place])
    assert model.size_bytes == open_packed(place).size_bytes, "not what the record says"
    assert model.values
    rmtree(place)
    copytree(packed / "ternary-g16", place)
    with pytest.raises(CheckpointError, match=r"compressed again since .* evaluate it again"):
        read_runs([place, tmp_path / "r.jsonl"])
    settings, metrics = {"weights_sha256": weights_sha256(place)}, {"perplexity": 7.0}
    append(tmp_path / "r.jsonl", [record(str(place), settings=settings, metrics=metrics)])
    (model,) = read_runs([place, tmp_path / "r.jsonl"])
    values = {measure.name: value.value for measure, value in model.values.items()}
    assert values["perplexity"] == 7.0, "the file holds both"
