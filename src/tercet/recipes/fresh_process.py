"""Fresh process: calls a function in a Python of its own, which sees the sources as they are now.

A server lives long and the ops that it is asked about are edited meanwhile; what it has imported
once it would never see change. The child also keeps a crash, and whatever an op prints, out of the
server. `python -m tercet.recipes.fresh_process` is the child.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

import anyio
import anyio.abc
import psutil
from pydantic_core import to_jsonable_python

from tercet.errors import TercetError

_SAID_CHARACTERS = 2000


class CallError(TercetError):
    """A call that ended with one of our errors, took too long, or took its process with it."""


async def call(function: str, arguments: dict[str, Any], *, seconds: float) -> Any:
    """The function's result as plain JSON data.

    Args:
        function: "module:name"; takes and returns what JSON or pydantic can hold.
        arguments: by name.
        seconds: after which it, and every process that it started, is ended.

    Raises:
        CallError: with the message of the child's TercetError, or how the child ended.
    """
    request = json.dumps({"function": function, "arguments": arguments}).encode()
    process = await anyio.open_process(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        with anyio.fail_after(seconds):
            reply, said = await _talk(process, request)
    except TimeoutError as error:
        raise CallError(
            f"not done after {seconds:g} s: ask for less (one implementation, one model), or allow "
            "more seconds"
        ) from error
    finally:
        _end(process.pid)
        await process.aclose()
    return _result(reply, said, process.returncode)


async def _talk(process: anyio.abc.Process, request: bytes) -> tuple[bytes, bytes]:
    """Sends the request; what came on standard output and standard error, read side by side."""
    assert process.stdin is not None
    received: dict[str, bytes] = {}

    async def read(name: str, stream: anyio.abc.ByteReceiveStream | None) -> None:
        assert stream is not None
        received[name] = b"".join([part async for part in stream])

    async with anyio.create_task_group() as group:
        group.start_soon(read, "reply", process.stdout)
        group.start_soon(read, "said", process.stderr)
        # a child that died at once reads nothing; how it died is on its standard error
        with suppress(anyio.BrokenResourceError):
            await process.stdin.send(request)
        await process.stdin.aclose()
    await process.wait()
    return received["reply"], received["said"]


def _result(reply: bytes, said: bytes, code: int | None) -> Any:
    if not reply:
        last = said.decode(errors="replace")[-_SAID_CHARACTERS:].strip()
        raise CallError(f"the process ended with status {code}: {last or 'it said nothing'}")
    content = cast(dict[str, Any], json.loads(reply))
    if "error" in content:
        raise CallError(str(content["error"]))
    return content["result"]


def _end(pid: int) -> None:
    """Ends the child and its own children, which would go on without it."""
    try:
        family = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def main() -> None:
    """Answers the one request on standard input."""
    reply = os.fdopen(os.dup(1), "w")
    # what an op prints would otherwise land in the reply
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    module, name = request["function"].split(":")
    try:
        result = getattr(import_module(module), name)(**request["arguments"])
        content = {"result": to_jsonable_python(result)}
    except TercetError as error:
        content = {"error": " ".join(str(error).split())}
    with reply:
        json.dump(content, reply)


if __name__ == "__main__":
    main()
