"""tercet export and tercet import, and what every target owes to the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tercet
from tercet.checkpoints.output_lock import lock_output
from tercet.cli.main import app
from tercet.errors import AccuracyError, CheckpointError, PlanError, TercetError, UnsupportedError
from tercet.export import target as targets
from tercet.export.target import Holding, Target, find_target, target_names
from tercet.records import Outcome, load
from tercet.workflows.export.contents import acceptances
from tercet.workflows.export.report import record
from tercet.workflows.export.run import export, relative_error

NONARY = {"match": "*.layers.*", "format": "nonary-g32", "algorithm": "rtn"}
OWN = ("awq", "bitnet", "compressed-tensors", "gptq", "huggingface")


@pytest.fixture(scope="module")
def packed(make_case: Callable[..., Any]) -> Path:
    return make_case("llama", True, NONARY).packed


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_every_target_is_found_by_its_name() -> None:
    names = target_names()
    assert set(OWN) <= set(names)
    for name in names:
        found = find_target(name)
        assert isinstance(found, Target)
        assert found.name == name


@pytest.mark.parametrize("name", ["compressed_tensors", "compresed-tensors", "target", ""])
def test_an_unknown_target_names_those_there_are(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"compressed-tensors.*huggingface"):
        find_target(name)


@pytest.mark.parametrize("name", OWN)
def test_a_missing_client_names_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module.split(".")[0])

    monkeypatch.setattr(targets, "import_module", missing)
    found = find_target_without_import(name)
    with pytest.raises(UnsupportedError, match=rf"pip install 'tercet\[{found.extra}\]'"):
        targets.client_module(found, "no_such_client.part")


def find_target_without_import(name: str) -> Target:
    import tercet.export.awq
    import tercet.export.bitnet
    import tercet.export.compressed_tensors
    import tercet.export.gptq
    import tercet.export.huggingface

    modules = (
        tercet.export.awq,
        tercet.export.bitnet,
        tercet.export.compressed_tensors,
        tercet.export.gptq,
        tercet.export.huggingface,
    )
    return next(module.TARGET for module in modules if name == module.TARGET.name)


def test_an_error_inside_of_a_client_is_not_a_missing_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(module: str) -> Any:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    found = find_target("huggingface")
    monkeypatch.setattr(targets, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="other"):
        targets.client_module(found, "client")


def test_all_refusals_come_in_one_message() -> None:
    refused = [Holding(module=f"m{i}", reason="too wide") for i in range(3)]
    other = Holding(module="n", reason="too long")
    with pytest.raises(UnsupportedError) as caught:
        targets.refuse(find_target("huggingface"), [*refused, other])
    assert str(caught.value).endswith("m0 and 2 more: too wide; n: too long")


def test_listing(packed: Path) -> None:
    code, text = run("export", packed, "--list", "--json")
    found = {entry["target"]: entry for entry in json.loads(text)}
    assert code == 0
    assert set(found) == set(target_names())
    assert found["compressed-tensors"]["kinds"] == {"pack-quantized int4 g32": 14}
    assert found["compressed-tensors"]["bits_per_weight"] == pytest.approx(4.5, abs=0.1)
    assert found["huggingface"]["kinds"] == {"nonary-g32": 14}
    assert found["bitnet"]["bits_per_weight"] is None
    assert sum(found["bitnet"]["refusals"].values()) == 14
    code, text = run("export", packed, "--list")
    assert "14 x pack-quantized int4 g32" in text
    assert "14 refused: nonary-g32: bitnet holds" in text


@pytest.mark.parametrize("name", ["compressed-tensors", "gptq", "awq"])
def test_bits_in_the_list_are_those_on_disk(name: str, packed: Path, tmp_path: Path) -> None:
    target = find_target(name)
    checkpoint = tercet.open_packed(packed)
    target.write(checkpoint, tmp_path / "out")
    held = {h.module: h.bits_per_weight for h in target.holdings(checkpoint)}
    from tercet.checkpoints.sources.safetensors_directory import open_weights

    _, stored = open_weights(tmp_path / "out")
    for module, entry in checkpoint.modules.items():
        size = sum(t.size_bytes for name, t in stored.items() if name.startswith(f"{module}."))
        assert held[module] == pytest.approx(8 * size / (entry.shape[0] * entry.shape[1]))


def test_a_verified_export_is_a_record(packed: Path, tmp_path: Path) -> None:
    code, text = run(
        "export", packed, "--to", "huggingface", "--out", tmp_path / "out", "--verify", "--json",
        "--tokens", "5", "--records", tmp_path / "records.jsonl",
    )  # fmt: skip
    found = json.loads(text)
    assert code == 0
    assert found["passed"]
    assert found["client"]["greedy"] == found["client"]["our_greedy"]
    assert len(found["client"]["greedy"]) == 5
    (kept,) = load(tmp_path / "records.jsonl")
    assert (kept.kind, kept.subject, kept.outcome) == ("export", "huggingface", Outcome.OK)
    assert kept.metrics["bit_equal_modules"] == kept.metrics["modules"] == 14
    assert kept.metrics["greedy_equal_tokens"] == 5
    assert kept.settings["format"] == "nonary-g32"


def test_a_wrong_client_is_a_red_result(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = find_target("huggingface")
    real = type(target).logits

    def off(self: Any, out: Path, tokens: list[int]) -> torch.Tensor:
        logits = real(self, out, tokens)
        return logits * (1 if "twin" in out.name else 1.001)

    monkeypatch.setattr(type(target), "logits", off)
    report = export(packed, "huggingface", tmp_path / "out", verify=True)
    assert not report.passed
    kept = record(report)
    assert kept.outcome is Outcome.WRONG
    assert "logits are off" in str(kept.reason)
    code, text = run("export", packed, "--to", "huggingface", "--out", tmp_path / "b", "--verify")
    assert code == 1
    assert "OUTSIDE" in text


def test_another_vocabulary_is_told(packed: Path) -> None:
    with pytest.raises(AccuracyError, match="another vocabulary"):
        relative_error(torch.zeros(3, 5), torch.zeros(3, 6))
    assert relative_error(torch.tensor([[torch.nan]]), torch.ones(1, 1)) != 0


@pytest.mark.parametrize(
    ("words", "error", "fragment"),
    [
        (["--to", "gguff", "--out", "x"], UnsupportedError, "did you mean"),
        (["--to", "huggingface"], PlanError, "--out PATH"),
        (["--to", "huggingface", "--out", "x", "--records", "r"], PlanError, "--verify"),
    ],
)
def test_bad_input(words: list[str], error: type[TercetError], fragment: str, packed: Path) -> None:
    with pytest.raises(error, match=fragment):
        run("export", packed, *words)


def test_import_command(packed: Path, tmp_path: Path) -> None:
    run("export", packed, "--to", "compressed-tensors", "--out", tmp_path / "out")
    code, text = run("import", tmp_path / "out", "--out", tmp_path / "back", "--json")
    assert code == 0
    assert json.loads(text)["formats"] == {"nonary-g32": 14}
    with pytest.raises(TercetError, match="exists"):
        run("import", tmp_path / "out", "--out", tmp_path / "back")
    run("import", tmp_path / "out", "--out", tmp_path / "back", "--overwrite")


def test_an_unverified_export_is_no_record(packed: Path, tmp_path: Path) -> None:
    report = export(packed, "huggingface", tmp_path / "out")
    assert report.passed
    with pytest.raises(UnsupportedError, match="--verify"):
        record(report)
    assert {entry.target for entry in acceptances(packed)} == set(target_names())


def test_two_exports_to_one_place_and_one_through_a_link(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_output(out), pytest.raises(CheckpointError, match="another run is writing there"):
        export(packed, "compressed-tensors", out)
    assert not out.exists()
    link = tmp_path / "link"
    link.symlink_to(out)
    export(packed, "compressed-tensors", link)
    assert link.is_symlink()
    assert (out / "config.json").is_file()
    with pytest.raises(CheckpointError, match="exists already"):
        export(packed, "compressed-tensors", link)


def test_files_of_one_name_are_refused(packed: Path, tmp_path: Path) -> None:
    """The one that is written last would be all that is left."""
    out = tmp_path / "a.gguf"
    words = ("export", packed, "--to", "gguf", "--out", out)
    for option, more in (("--modelfile", ()), ("--records", ("--verify",))):
        with pytest.raises(PlanError, match=f"is both --out and {option}"):
            run(*words, option, tmp_path / "x" / ".." / "a.gguf", *more)
    assert not out.exists()


def test_what_cannot_be_verified_is_not_written(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("export", packed, "--to", "compressed-tensors", "--out", tmp_path / "out")
    with pytest.raises(PlanError, match="--tokens is about --verify"):
        run(*words, "--tokens", "4")
    with pytest.raises(UnsupportedError, match="max_new_tokens"):
        export(packed, "compressed-tensors", tmp_path / "out", verify=True, count=0)
    monkeypatch.setattr("tercet.workflows.export.run.installed_version", lambda _: None)
    with pytest.raises(UnsupportedError, match="is not installed"):
        run(*words, "--verify")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_export_left_is_removed(packed: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.abcd1234.partial").mkdir()
    (tmp_path / ".out.abcd1234.partial" / "weights").touch()
    (tmp_path / ".out.efgh5678.partial").touch()
    others = [tmp_path / ".other.abcd1234.partial", tmp_path / ".out.mine"]
    for path in others:
        path.touch()
    export(packed, "compressed-tensors", tmp_path / "out")
    assert sorted(tmp_path.glob(".o*")) == sorted(others)


def test_what_is_verified_is_longer_than_the_windows(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("gemma2", True, NONARY).packed
    report = export(packed, "huggingface", tmp_path / "out", verify=True, count=4)
    assert report.passed
    assert report.client is not None
    # 16 tokens, and a window of five
    assert len(report.client.tokens) == 21
