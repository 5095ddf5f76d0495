"""`tercet mcp`: the tools through the SDK's own client, in memory and through a real process."""

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from mcp import Client, StdioServerParameters

from tercet.cli import mcp as command
from tercet.errors import UnsupportedError
from tercet.harness.new_op import new_op
from tercet.recipes.mcp_server import server

TOOLS = {
    "list_ops", "explain", "new_op", "check", "compile", "bench", "profile", "tune", "shapes",
    "regress", "report",
}  # fmt: skip
SERVE = "from tercet.cli.main import main; main()"


def talk(to: Any, what: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Client(to) as client:
            return await what(client)

    return anyio.run(run)


def ask(tool: str, /, **arguments: Any) -> Any:
    """The structured content; a tool error is an AssertionError with its message."""
    result = talk(server, lambda client: client.call_tool(tool, arguments))
    assert not result.is_error, result.content[0].text
    # an agent that reads only text gets the same
    text = [json.loads(part.text) for part in result.content]
    if "result" in result.structured_content:
        assert text == result.structured_content["result"]
    else:
        assert text == [result.structured_content]
    return result.structured_content


def refusal(tool: str, /, **arguments: Any) -> str:
    result = talk(server, lambda client: client.call_tool(tool, arguments))
    assert result.is_error
    assert result.structured_content is None
    return result.content[0].text


def test_every_tool_is_typed_and_described() -> None:
    tools = talk(server, lambda client: client.list_tools()).tools
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert len(tool.description) > 40
        assert tool.output_schema["properties"], tool.name
        undescribed = {
            name
            for name, schema in tool.input_schema["properties"].items()
            if "description" not in schema and "$ref" not in schema and "enum" not in schema
        }
        assert undescribed == set(), tool.name


def test_lists_ops() -> None:
    ops = {op["name"]: op for op in ask("list_ops")["result"]}
    found = ops["gelu_gate"]
    assert found["differentiable"] == ["gate", "up"]
    assert found["implementations"] == ["triton (triton)", "torch (torch)"]
    assert found["tensors"]["y"] == "output [M, N] float32, float16, bfloat16"
    assert Path(found["folder"], "op.py").is_file()


def test_checks_a_few_cases() -> None:
    report = ask("check", op="gelu_gate", cases=["3-17-float32", "0-64-bfloat16"], seed=7)
    assert report["passed"] is True
    assert report["seed"] == 7
    assert min(report["green"]["triton"], report["green"]["torch"]) > 8
    assert (report["red"], report["faults"]) == ({}, [])


def test_names_a_candidates_fault(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "print('words on standard output')\n"
        "def forward(gate, up):\n    return gate * up\n"
        "def gradient(grad, gate, up):\n    return grad, grad\n"
    )
    report = ask(
        "check", op="gelu_gate", cases=["3-17-float32"], candidate=str(tmp_path / "half.py")
    )
    assert report["passed"] is False
    assert {fault["check"] for fault in report["faults"]} >= {"forward", "backward"}
    assert any("3-17-float32" in fault["case"] for fault in report["faults"])
    assert "the limit at" in report["faults"][0]["message"]


def test_sees_an_op_as_its_files_are_now(tmp_path: Path) -> None:
    made = ask("new_op", name="edited_op", to=str(tmp_path))
    assert made["folder"] == str(tmp_path / "edited_op")
    question = {
        "op": made["address"], "cases": ["3-17-float32"], "implementation": "torch"
    }  # fmt: skip
    assert ask("check", **question)["passed"] is True
    source = tmp_path / "edited_op" / "torch_path.py"
    source.write_text(source.read_text().replace("grad_x = 2 * g", "grad_x = 3 * g"))
    red = ask("check", **question)
    assert "backward" in {fault["check"] for fault in red["faults"]}
    assert all("gradient of x" in fault["message"] for fault in red["faults"])


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("check", {"op": "gelu_gat"}, "unknown op 'gelu_gat': did you mean 'gelu_gate'"),
        ("check", {"op": "gelu_gate", "cases": ["3-17"]}, "did you mean '3-17-float32'"),
        ("check", {"op": "gelu_gate", "device": "tpu"}, "device 'tpu': allowed are cpu and cuda"),
        ("explain", {"op": "gelu_gate", "sizes": {"K": 4}}, "has no axes ['K']"),
        ("new_op", {"name": "lambda"}, "a word of Python"),
        ("shapes", {"op": "gelu_gate", "models": ["llama"]}, "unknown model 'llama'"),
        ("bench", {"op": "gelu_gate", "calls": {}}, "give either sizes or a model"),
        ("bench", {"op": "gelu_gate", "calls": {"sizes": {"M": 4}}}, "needs a size for N"),
        ("tune", {"op": "gelu_gate", "calls": {"size": {"M": 4}}}, "size"),
        ("regress", {"current": "/nowhere.jsonl"}, "is no file of records"),
        ("check", {"op": "gelu_gate", "seconds": 0.2}, "not done after 0.2 s"),
    ],
)
def test_our_errors_are_tool_errors(tool: str, arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(tool, **arguments)


def test_a_call_that_takes_too_long_leaves_no_process() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert "not done after" in refusal("check", op="gelu_gate", seconds=6)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


def test_benches_and_reports_on_a_cpu(tmp_path: Path) -> None:
    records, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    calls = {"sizes": {"M": 8, "N": 64}, "dtype": "float32"}
    found = ask(
        "bench",
        op="gelu_gate",
        calls=calls,
        implementation="torch",
        baselines=False,
        write=str(records),
    )
    assert found["passed"] is True
    timed = {
        timing["settings"]["direction"]
        for timing in found["timings"]
        if timing["outcome"] == "ok" and timing["metrics"]["time_us"] > 0
    }
    assert timed == {"forward", "backward"}
    assert {timing["settings"]["variant"] for timing in found["timings"]} == {"torch"}
    assert found["timings"][0]["settings"]["sizes"] == "M=8 N=64"
    assert ask("regress", current=str(records), baseline=str(records))["passed"] is True
    assert ask("report", files=[str(records)], output=str(page))["path"] == str(page)
    assert "gelu_gate" in page.read_text()


def test_over_standard_input_whatever_an_op_prints(tmp_path: Path) -> None:
    made = new_op("loud_op", tmp_path)
    source = Path(made.folder) / "op.py"
    source.write_text(source.read_text() + '\nprint("{not the protocol}", flush=True)\n')
    process = StdioServerParameters(
        command=sys.executable, args=["-c", SERVE, "mcp"], env=dict(os.environ), cwd=tmp_path
    )

    async def both(client: Client) -> tuple[Any, Any]:
        return await client.list_tools(), await client.call_tool(
            "explain", {"op": made.address, "device": "cpu"}
        )

    listed, result = talk(process, both)
    assert {tool.name for tool in listed.tools} == TOOLS
    verdicts = {each["implementation"]: each for each in result.structured_content["result"]}
    assert verdicts["torch"]["chosen"] is True
    assert verdicts["triton"]["reason"] == "runs on cuda, the tensors are on cpu"


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tercet\[mcp\]'"):
        command.mcp_command()
