"""The kernel harness over the Model Context Protocol (modelcontextprotocol.io), for agents.

Each tool is a verb of `tercet kernel`. It runs in a fresh process, so it sees an op as its files
are at that moment, and what it returns has a schema. An error of ours is a tool error with its
message.
"""

from typing import Annotated, Any, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, TypeAdapter

from tercet.harness.cross_compile import CompileReport
from tercet.harness.new_op import NewOp
from tercet.harness.profile import ProfileReport
from tercet.harness.report import ReportSummary
from tercet.harness.shapes import Shape
from tercet.harness.tune import TuneReport
from tercet.kernel.tuned import Direction
from tercet.recipes.fresh_process import CallError, call
from tercet.recipes.kernel_results import (
    BenchSummary,
    Calls,
    CheckSummary,
    Choice,
    OpSummary,
    RegressSummary,
)
from tercet.version import VERSION

_Result = TypeVar("_Result")

_INSTRUCTIONS = """\
Write, prove, measure and guard GPU kernels. Order: new_op, edit its reference.py, cases.py,
torch_path.py and triton.py, with check after each; then compile, bench, profile, tune, regress.
Never bench what check calls red. No GPU is needed for new_op, check (Triton is interpreted),
compile, explain and shapes. The guide is docs/guides/write-a-kernel.md."""

OpName = Annotated[str, Field(description="An op's name, or the path of its folder.")]
Implementation = Annotated[str | None, Field(description="Only this one; null: every one.")]
Candidate = Annotated[
    str | None, Field(description="A Python file with forward (and gradient) to judge instead.")
]
Device = Annotated[str | None, Field(description="cpu or cuda; null: cuda where there is a GPU.")]
Seed = Annotated[int | None, Field(description="Of the inputs; null draws one and returns it.")]
Models = Annotated[list[str], Field(description="Models of the catalog; none: all of them.")]
Model = Annotated[str | None, Field(description="Use the op's calls in this model of the catalog.")]
Seconds = Annotated[float, Field(gt=0, description="The whole call's time limit.")]

server = MCPServer("tercet", instructions=_INSTRUCTIONS, version=VERSION, log_level="WARNING")


@server.tool()
async def list_ops(seconds: Seconds = 120) -> tuple[OpSummary, ...]:
    """List every op: its axes, tensors, implementations and how many cases it is checked on."""
    return await _call(tuple[OpSummary, ...], "kernel_calls:list_ops", seconds)


@server.tool()
async def explain(
    op: OpName,
    sizes: Annotated[dict[str, int] | None, Field(description="Axis -> size.")] = None,
    dtype: Annotated[str, Field(description="bfloat16, float16 or float32.")] = "bfloat16",
    options: Annotated[
        dict[str, Any] | None, Field(description="The op's options, as scheme: ternary-channel.")
    ] = None,
    device: Device = None,
    seconds: Seconds = 120,
) -> tuple[Choice, ...]:
    """Say which implementation runs for a shape, and why the others do not."""
    return await _call(
        tuple[Choice, ...],
        "kernel_calls:explain",
        seconds,
        op=op,
        sizes=sizes or {},
        dtype=dtype,
        options=options,
        device=device,
    )


@server.tool()
async def new_op(
    name: Annotated[str, Field(description="Lower-case letters, digits, underscores.")],
    to: Annotated[
        str | None, Field(description="The directory to make its folder in; null: the package's.")
    ] = None,
    seconds: Seconds = 120,
) -> NewOp:
    """Write the folder of a new op, which passes its check as it stands. Then edit its files."""
    return await _call(NewOp, "kernel_calls:new", seconds, name=name, to=to)


@server.tool()
async def check(
    op: OpName,
    implementation: Implementation = None,
    candidate: Candidate = None,
    device: Device = None,
    seed: Seed = None,
    cases: Annotated[
        list[str] | None, Field(description="Only these, without torch.compile; null: all.")
    ] = None,
    model: Model = None,
    seconds: Seconds = 1800,
) -> CheckSummary:
    """Check forward and backward against float64, and all that a kernel must not do.

    The code that is judged runs in a process of its own, with limits on time and memory.
    """
    return await _call(
        CheckSummary,
        "kernel_calls:check",
        seconds,
        op=op,
        implementation=implementation,
        candidate=candidate,
        device=device,
        seed=seed,
        cases=cases,
        model=model,
    )


@server.tool(name="compile")
async def compile_kernels(
    op: OpName,
    implementation: Implementation = None,
    targets: Annotated[
        list[str] | None, Field(description="Of sm_80, sm_90, sm_100, gfx942; null: all.")
    ] = None,
    seconds: Seconds = 1800,
) -> CompileReport:
    """Cross-compile for GPUs that need not be here: registers, spills, matrix instructions."""
    return await _call(
        CompileReport,
        "kernel_calls:compile_kernels",
        seconds,
        op=op,
        implementation=implementation,
        targets=targets,
    )


@server.tool()
async def bench(
    op: OpName,
    calls: Calls,
    implementation: Implementation = None,
    candidate: Candidate = None,
    baselines: Annotated[bool, Field(description="Time torch and other libraries too.")] = True,
    device: Device = None,
    seed: Seed = None,
    write: Annotated[
        str | None, Field(description="Append the records to this file, for regress and report.")
    ] = None,
    seconds: Seconds = 1800,
) -> BenchSummary:
    """Time an op beside its baselines, as a part of what this machine can reach.

    What check calls red is not timed. Read the rows that are cold and in a graph first.
    """
    return await _call(
        BenchSummary,
        "kernel_calls:bench",
        seconds,
        op=op,
        calls=calls.model_dump(),
        implementation=implementation,
        candidate=candidate,
        baselines=baselines,
        device=device,
        seed=seed,
        write=write,
    )


@server.tool()
async def profile(
    op: OpName,
    calls: Calls,
    implementation: Annotated[
        str | None, Field(description="Null: the one that selection takes.")
    ] = None,
    direction: Direction = "forward",
    device: Device = None,
    seconds: Seconds = 1800,
) -> tuple[ProfileReport, ...]:
    """Say in words what holds a call back and what to try next, with the counters behind it."""
    return await _call(
        tuple[ProfileReport, ...],
        "kernel_calls:profile",
        seconds,
        op=op,
        calls=calls.model_dump(),
        implementation=implementation,
        direction=direction,
        device=device,
    )


@server.tool()
async def tune(
    op: OpName,
    calls: Calls,
    implementation: Annotated[str, Field(description="Which one's space to search.")] = "triton",
    device: Device = None,
    seed: Seed = None,
    write: Annotated[bool, Field(description="Write the op's tuned/DEVICE.json.")] = True,
    seconds: Seconds = 3600,
) -> TuneReport:
    """Search the declared configurations for the fastest one that is right."""
    return await _call(
        TuneReport,
        "kernel_calls:tune",
        seconds,
        op=op,
        calls=calls.model_dump(),
        implementation=implementation,
        device=device,
        seed=seed,
        write=write,
    )


@server.tool()
async def regress(
    current: Annotated[str, Field(description="Records of the version to judge: a file.")],
    baseline: Annotated[
        str | None, Field(description="Records to compare with; null: the committed ones.")
    ] = None,
    again: Annotated[
        str | None, Field(description="A second run of the baseline, which shows the noise.")
    ] = None,
    seconds: Seconds = 120,
) -> RegressSummary:
    """Compare records of two versions: what became slower or larger, beyond the noise."""
    return await _call(
        RegressSummary,
        "kernel_calls:regress",
        seconds,
        current=current,
        baseline=baseline,
        again=again,
    )


@server.tool()
async def report(
    output: Annotated[str, Field(description="The page to write.")] = "kernels.html",
    files: Annotated[
        list[str] | None, Field(description="Files of records; null: the committed ones.")
    ] = None,
    seconds: Seconds = 120,
) -> ReportSummary:
    """Write one HTML page of records: rooflines, history, tables; for people, works offline."""
    return await _call(ReportSummary, "kernel_calls:report", seconds, output=output, files=files)


@server.tool()
async def shapes(
    op: OpName,
    models: Models = [],  # noqa: B006 only read, and shown in the schema
    tensor_parallel: Annotated[int, Field(ge=1, description="GPUs that share a model.")] = 1,
    tokens: Annotated[int | None, Field(description="Tokens in one call.")] = None,
    seconds: Seconds = 120,
) -> tuple[Shape, ...]:
    """List an op's calls in published models: what it has to be fast at."""
    return await _call(
        tuple[Shape, ...],
        "kernel_calls:production_shapes",
        seconds,
        op=op,
        models=models,
        tensor_parallel=tensor_parallel,
        tokens=tokens,
    )


async def _call(kind: type[_Result], function: str, seconds: float, **arguments: Any) -> _Result:
    try:
        found = await call(f"tercet.recipes.{function}", arguments, seconds=seconds)
    except CallError as error:
        raise ToolError(str(error)) from error
    return TypeAdapter(kind).validate_python(found)
