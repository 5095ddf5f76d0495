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
from tercet.workflows import fresh_process
from tercet.workflows.kernel import calls
from tercet.workflows.mcp_server import server

TOOLS = {
    "list_ops", "explain", "new_op", "cases", "check", "compile", "bench", "profile", "tune",
    "shapes", "regress", "report",
}  # fmt: skip
# an op that is not in the package: the guide's
GELU_GATE = str(Path(__file__).parents[2] / "docs" / "guides" / "examples" / "gelu_gate")
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
    found = ops["swiglu"]
    assert found["differentiable"] == ["gate", "up"]
    assert found["implementations"] == ["triton (triton)", "torch (torch)"]
    assert found["tensors"]["y"] == "output [M, N] float32, float16, bfloat16"
    assert Path(found["folder"], "op.py").is_file()


def test_the_guide_is_a_resource() -> None:
    async def read(client: Client) -> Any:
        listed = await client.list_resources()
        return await client.read_resource(listed.resources[0].uri)

    assert talk(server, read).contents[0].text.startswith("# Write a kernel")


def test_names_the_cases_that_it_checks() -> None:
    found = {each["name"]: each["gradient"] for each in ask("cases", op=GELU_GATE)["result"]}
    assert found["3-17-float32"]
    assert False in found.values()


def test_compiles_for_given_calls_and_accepts_only_the_usual_ones(tmp_path: Path) -> None:
    made = ask("new_op", name="compiled_op", to=str(tmp_path), like="swiglu")
    question = {"op": made["address"], "implementation": "triton", "targets": ["sm_90"]}
    given = {"sizes": {"M": 16, "N": 4096}, "dtype": "float32"}
    found = ask("compile", calls=given, **question)
    assert {row["workload"] for row in found["rows"]} == {"M=16 N=4096"}
    assert not (tmp_path / "compiled_op" / "compiled.json").exists()
    assert "give update or calls" in refusal("compile", calls=given, update=True, **question)


def test_a_child_that_waits_is_used_once_and_only_with_the_sources_as_they_are() -> None:
    with fresh_process.keep_one_ready("tercet.workflows.kernel.calls"):
        (ready,) = fresh_process._ready
        child = ready.take()
        assert child is not None
        assert child.alive
        assert ready.take() is None
        names = child.request(
            "tercet.workflows.fresh_process:call_as_json",
            {"function": "tercet.workflows.kernel.calls:cases", "arguments": {"op": GELU_GATE}},
        )
        assert {"name": "3-17-float32", "gradient": True} in names
        child.close()
        ready.begin()
        imported = Path(calls.__file__)
        imported.chmod(imported.stat().st_mode)  # as any edit, it changes the file's ctime
        assert ready.take() is None


def test_checks_a_few_cases() -> None:
    report = ask("check", op=GELU_GATE, cases=["3-17-float32", "0-64-bfloat16"], seed=7)
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
    report = ask("check", op=GELU_GATE, cases=["3-17-float32"], candidate=str(tmp_path / "half.py"))
    assert report["passed"] is False
    assert {fault["check"] for fault in report["faults"]} >= {"forward", "backward"}
    assert any("3-17-float32" in fault["case"] for fault in report["faults"])
    assert any("the limit at" in fault["message"] for fault in report["faults"])


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
        ("check", {"op": "swigl"}, "unknown op 'swigl': did you mean 'swiglu'"),
        ("check", {"op": GELU_GATE, "cases": ["3-17"]}, "did you mean '3-17-float32'"),
        ("check", {"op": GELU_GATE, "device": "tpu"}, "device 'tpu': allowed are cpu and cuda"),
        ("explain", {"op": GELU_GATE, "sizes": {"K": 4}}, "has no axes ['K']"),
        ("new_op", {"name": "lambda"}, "a word of Python"),
        ("shapes", {"op": GELU_GATE, "models": ["llama"]}, "unknown model 'llama'"),
        ("bench", {"op": GELU_GATE, "calls": {}}, "give either sizes or a model"),
        ("bench", {"op": GELU_GATE, "calls": {"sizes": {"M": 4}}}, "needs a size for N"),
        ("tune", {"op": GELU_GATE, "calls": {"size": {"M": 4}}}, "size"),
        ("regress", {"current": "/nowhere.jsonl"}, "is no file of records"),
        ("check", {"op": GELU_GATE, "seconds": 0.2}, "not done after 0.2 s"),
    ],
)
def test_our_errors_are_tool_errors(tool: str, arguments: dict[str, Any], words: str) -> None:
    assert words in refusal(tool, **arguments)


def test_an_argument_that_a_tool_does_not_have_is_refused() -> None:
    """Left out, the candidate would not be checked, and the op's own kernels be green for it."""
    said = refusal("check", op="rms_norm", candidates="mine.py")
    assert "candidates" in said
    assert "did you mean 'candidate'" in said


def test_schemas_say_that_there_are_no_other_arguments() -> None:
    tools = talk(server, lambda client: client.list_tools()).tools
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools)


def test_a_call_that_takes_too_long_leaves_no_process(tmp_path: Path) -> None:
    made = new_op("endless_op", tmp_path)
    with (Path(made.folder) / "torch_path.py").open("a") as file:
        file.write("\n\nimport threading\n\ndef forward(*_):\n    threading.Event().wait()\n")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    assert "not done after" in refusal("check", op=made.address, seconds=6)
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


def test_benches_and_reports_on_a_cpu(tmp_path: Path) -> None:
    records, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    found = ask(
        "bench",
        op=GELU_GATE,
        calls={"sizes": {"M": 8, "N": 64}, "dtype": "float32"},
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
