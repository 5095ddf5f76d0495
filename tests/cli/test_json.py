import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "object"]


def test_compress_and_inspect(compress: Run, tercet: Run, tmp_path: Path) -> None:
    done = compress("--json")
    assert done.code == 0
    made = json.loads(done.out)
    assert made["directory"] == str(tmp_path / "out")
    assert made["unmatched"] == []
    assert made["peak_bytes"] > 10_000_000
    assert "memory estimate" in done.err
    found = json.loads(tercet("inspect", tmp_path / "out", "--json", "--verify").out)
    assert found["size"] == made["size"]
    assert found["formats"] == {"int8-g64": 1, "nonary-g64": 6}
    parts = list((tmp_path / "out").glob("*.safetensors"))
    assert found["size"]["disk_bytes"] == sum(path.stat().st_size for path in parts)
    up = found["modules"]["model.layers.1.mlp.up_proj"]
    assert (up["shape"], up["algorithm"]) == ([128, 64], "gptq")
    assert 0 < up["relative_error"] < 0.3
    assert found["calibration"]["sequences"] == 4
    assert found["verified"] is True


def test_inspect_for_people(compress: Run, tercet: Run, tmp_path: Path) -> None:
    compress()
    done = tercet("inspect", tmp_path / "out", "--verify")
    assert "every byte checked: whole" in done.out
    assert "sha256" in done.out


def test_run(compress: Run, tercet: Run, tmp_path: Path) -> None:
    compress()
    run = ("run", tmp_path / "out", "--prompt", "w5 w6", "--max-tokens", 4, "--ignore-stop")
    found = json.loads(tercet(*run, "--json").out)
    assert found["prompt_tokens"] == 2
    assert len(found["ids"]) == 4
    assert tercet(*run).out.rstrip("\n") == found["text"]


def test_unmatched_modules_are_told(plan: Path, compress: Run) -> None:
    lines = plan.read_text().splitlines()
    plan.write_text("\n".join(lines[:-1]))
    done = compress()
    assert "no rule matches, kept as they are: model.layers.0.self_attn.q_proj, " in done.err


@pytest.mark.parametrize("name", ["ternary", "nonary", "int4", "int3-g128"])
def test_plan_show_can_be_used_again(name: str, tercet: Run, tmp_path: Path) -> None:
    text = tercet("plan", "show", name).out
    (tmp_path / "again.yaml").write_text(text)
    shown = json.loads(tercet("plan", "show", name, "--json").out)
    again = json.loads(tercet("plan", "show", tmp_path / "again.yaml", "--json").out)
    assert shown == again
    assert shown["name"] == name


def test_plan_list(tercet: Run) -> None:
    assert json.loads(tercet("plan", "list", "--json").out) == [
        "int4",
        "nonary",
        "nonary-a8",
        "ternary",
        "ternary-a8",
    ]
