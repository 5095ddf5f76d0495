"""The kernel harness as tools of the Model Context Protocol (modelcontextprotocol.io), for agents.

Each tool is a subcommand of `tercet kernel`. A tool runs in a fresh process, so it sees the op's
files as they are at that moment; its result has a JSON schema. A TercetError becomes a tool error
with the same message.
"""

from typing import Annotated, Any, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, InputRequiredResult, Tool
from pydantic import Field, TypeAdapter

from tercet.errors import unknown_name
from tercet.harness.cross_compile import CompileReport
from tercet.harness.new_op import PATTERNS, NewOp, guide
from tercet.harness.profile import ProfileReport
from tercet.harness.report import ReportSummary
from tercet.harness.tune.run import TuneReport
from tercet.harness.workloads.shapes import Shape
from tercet.kernel.tuned import Direction
from tercet.version import VERSION
from tercet.workflows.fresh_process import CallError, call
from tercet.workflows.kernel.results import (
    BenchSummary,
    Calls,
    CaseSummary,
    CheckSummary,
    Choice,
    OpSummary,
    RegressSummary,
)

_Result = TypeVar("_Result")

_INSTRUCTIONS = """\
Write, check, benchmark, profile and tune GPU kernels. Order: new_op; edit the new op's
reference.py, cases.py, torch_path.py and triton.py, with a quick check after each edit; a whole
check; then compile, bench, profile, tune, regress. Never bench a kernel that fails check. new_op,
check (with Triton interpreted), compile, explain, cases and shapes need no GPU. The guide is the
resource tercet://guides/write-a-kernel: read it first.\
"""

OpName = Annotated[str, Field(description="Name of the op, or the path of its folder.")]
Implementation = Annotated[str | None, Field(description="Only this implementation; null: all.")]
Candidate = Annotated[
    str | None,
    Field(
        description="Path of a Python file, which defines forward() and optionally gradient(), to "
        "check or time."
    ),
]
Device = Annotated[str | None, Field(description="cpu or cuda; null: cuda if a GPU is available.")]
Seed = Annotated[
    int | None, Field(description="RNG seed for the inputs; null: a new one, returned.")
]
Models = Annotated[list[str], Field(description="Models of the catalog; empty: all.")]
Model = Annotated[str | None, Field(description="Use the op's shapes in this catalog model.")]
Seconds = Annotated[float, Field(gt=0, description="Time limit of this tool call, in seconds.")]


class _Server(MCPServer):
    """Refuses what a tool does not take: a misspelt argument would be left out without a word."""

    async def list_tools(self) -> list[Tool]:
        return [
            tool.model_copy(
                update={"input_schema": {**tool.input_schema, "additionalProperties": False}}
            )
            for tool in await super().list_tools()
        ]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
        known: dict[str, Any] = {} if tool is None else tool.input_schema["properties"]
        unknown = [argument for argument in arguments if argument not in known]
        if tool is not None and unknown:
            raise ToolError(unknown_name("argument", unknown[0], known))
        return await super().call_tool(name, arguments, context)


server = _Server("tercet", instructions=_INSTRUCTIONS, version=VERSION, log_level="WARNING")


@server.resource(
    "tercet://guides/write-a-kernel",
    title="Write a kernel",
    description="From an idea to a merged kernel, step by step, and what each red check means.",
    mime_type="text/markdown",
)
def write_a_kernel() -> str:
    """The guide."""
    return guide()


@server.tool()
async def list_ops(seconds: Seconds = 120) -> tuple[OpSummary, ...]:
    """List all ops with their axes, tensors, implementations and number of check cases."""
    return await _call(tuple[OpSummary, ...], "kernel.calls:list_ops", seconds)


@server.tool()
async def explain(
    op: OpName,
    sizes: Annotated[
        dict[str, int] | None, Field(description="Size of each axis, by axis name.")
    ] = None,
    dtype: Annotated[str, Field(description="bfloat16, float16 or float32.")] = "bfloat16",
    options: Annotated[
        dict[str, Any] | None,
        Field(description="Options of the op, such as scheme: ternary-channel."),
    ] = None,
    device: Device = None,
    seconds: Seconds = 120,
) -> tuple[Choice, ...]:
    """Show which implementation would run for a shape, and why each other one would not."""
    return await _call(
        tuple[Choice, ...],
        "kernel.calls:explain",
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
        str | None,
        Field(description="Directory in which to create the op's folder; null: tercet's own ops."),
    ] = None,
    like: Annotated[
        str | None,
        Field(
            description="Copy this op, the nearest to yours, instead of the template. By shape of "
            f"the work: {', '.join(f'{kind}: {op}' for kind, op in PATTERNS.items())}."
        ),
    ] = None,
    seconds: Seconds = 120,
) -> NewOp:
    """Create the folder of a new op from a template that already passes its check, to be edited."""
    return await _call(NewOp, "kernel.calls:new", seconds, name=name, to=to, like=like)


@server.tool()
async def cases(op: OpName, seconds: Seconds = 120) -> tuple[CaseSummary, ...]:
    """List an op's check cases; a name says sizes, kind of values, options and dtype."""
    return await _call(tuple[CaseSummary, ...], "kernel.calls:cases", seconds, op=op)


@server.tool()
async def check(
    op: OpName,
    implementation: Implementation = None,
    candidate: Candidate = None,
    device: Device = None,
    seed: Seed = None,
    cases: Annotated[
        list[str] | None,
        Field(
            description="Names of the cases to check, skipping the torch.compile checks; null: all."
        ),
    ] = None,
    model: Model = None,
    quick: Annotated[
        bool,
        Field(
            description="While editing: the likeliest faults first, until one is found, for some "
            "15 seconds. Green here is no reason to merge."
        ),
    ] = False,
    seconds: Seconds = 1800,
) -> CheckSummary:
    """Check an op's forward and backward pass against its float64 reference.

    The kernel runs in a process of its own, with limits on time and memory.
    """
    return await _call(
        CheckSummary,
        "kernel.calls:check",
        seconds,
        op=op,
        implementation=implementation,
        candidate=candidate,
        device=device,
        seed=seed,
        cases=cases,
        model=model,
        quick=quick,
    )


@server.tool(name="compile")
async def compile_kernels(
    op: OpName,
    implementation: Implementation = None,
    targets: Annotated[
        list[str] | None, Field(description="Among sm_80, sm_90, sm_100, gfx942; null: all.")
    ] = None,
    calls: Annotated[
        Calls | None,
        Field(description="Compile for these calls, judging spills alone; null: the usual ones."),
    ] = None,
    update: Annotated[
        bool, Field(description="Accept the result as the new baseline, the op's compiled.json.")
    ] = False,
    seconds: Seconds = 1800,
) -> CompileReport:
    """Cross-compile kernels, no GPU needed: registers, spills, tensor-core instructions."""
    return await _call(
        CompileReport,
        "kernel.calls:compile_kernels",
        seconds,
        op=op,
        implementation=implementation,
        targets=targets,
        calls=None if calls is None else calls.model_dump(),
        update=update,
    )


@server.tool()
async def bench(
    op: OpName,
    calls: Calls,
    implementation: Implementation = None,
    candidate: Candidate = None,
    baselines: Annotated[bool, Field(description="Also time torch and other libraries.")] = True,
    device: Device = None,
    seed: Seed = None,
    write: Annotated[
        str | None,
        Field(description="JSON-lines file to append the records to, for regress and report."),
    ] = None,
    seconds: Seconds = 1800,
) -> BenchSummary:
    """Time an op and its baselines, and compare them with this machine's measured roofline.

    An implementation that fails its check is not timed. Read the rows with a cold cache in a CUDA
    graph first.
    """
    return await _call(
        BenchSummary,
        "kernel.calls:bench",
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
        str | None,
        Field(description="Implementation to profile; null: the one that would be selected."),
    ] = None,
    direction: Direction = "forward",
    device: Device = None,
    seconds: Seconds = 1800,
) -> tuple[ProfileReport, ...]:
    """Profile calls: what limits each and what to try next, with the hardware counters."""
    return await _call(
        tuple[ProfileReport, ...],
        "kernel.calls:profile",
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
    implementation: Annotated[str, Field(description="Implementation to tune.")] = "triton",
    device: Device = None,
    seed: Seed = None,
    write: Annotated[
        bool, Field(description="Write the result to the op's tuned/DEVICE.json.")
    ] = True,
    seconds: Seconds = 3600,
) -> TuneReport:
    """Search an implementation's declared configurations for the fastest correct one."""
    return await _call(
        TuneReport,
        "kernel.calls:tune",
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
    current: Annotated[str, Field(description="JSON-lines file of the new version's records.")],
    baseline: Annotated[
        str | None,
        Field(description="Records of the old version; null: benchmarks/kernels/DEVICE.jsonl."),
    ] = None,
    again: Annotated[
        str | None,
        Field(description="Records of a second run of the old version, to estimate the noise."),
    ] = None,
    seconds: Seconds = 120,
) -> RegressSummary:
    """Compare the records of two versions: what became slower or larger beyond the noise."""
    return await _call(
        RegressSummary,
        "kernel.calls:regress",
        seconds,
        current=current,
        baseline=baseline,
        again=again,
    )


@server.tool()
async def report(
    output: Annotated[str, Field(description="HTML file to write.")] = "kernels.html",
    files: Annotated[
        list[str] | None, Field(description="JSON-lines files; null: benchmarks/kernels/*.jsonl.")
    ] = None,
    seconds: Seconds = 120,
) -> ReportSummary:
    """Write benchmark records as one HTML page for people: rooflines, history, tables."""
    return await _call(ReportSummary, "kernel.calls:report", seconds, output=output, files=files)


@server.tool()
async def shapes(
    op: OpName,
    models: Models = [],  # noqa: B006 only read, and shown in the schema
    tensor_parallel: Annotated[int, Field(ge=1, description="GPUs that share each layer.")] = 1,
    tokens: Annotated[int | None, Field(description="Tokens per call; null: 16384.")] = None,
    seconds: Seconds = 120,
) -> tuple[Shape, ...]:
    """List the shapes that an op has in published models."""
    return await _call(
        tuple[Shape, ...],
        "kernel.calls:production_shapes",
        seconds,
        op=op,
        models=models,
        tensor_parallel=tensor_parallel,
        tokens=tokens,
    )


async def _call(kind: type[_Result], function: str, seconds: float, **arguments: Any) -> _Result:
    try:
        found = await call(f"tercet.workflows.{function}", arguments, seconds=seconds)
    except CallError as error:
        raise ToolError(str(error)) from error
    return TypeAdapter(kind).validate_python(found)
