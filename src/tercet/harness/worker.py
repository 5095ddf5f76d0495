"""Worker: the child process in which a candidate runs. `python -m tercet.harness.worker`.

Requests come on standard input and replies go out on the descriptor that standard output was, each
as eight bytes of length and a torch.save of plain data. What the candidate prints goes to standard
error.
"""

import io
import os
import struct
import sys
import traceback
from importlib import import_module
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor


def main() -> None:
    """Answers requests until standard input ends."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := receive(requests)) is not None:
        try:
            module, function = request["function"].split(":")
            reply = {"result": getattr(import_module(module), function)(**request["arguments"])}
        except Exception as error:  # noqa: BLE001 everything that goes wrong is the answer
            last = traceback.format_exception_only(error)[-1].strip()
            reply = {"error": last, "trace": traceback.format_exc()[-4000:]}
        send(replies, reply)


def ready() -> bool:
    """Answers the first call, once Python and torch have started."""
    return True


def send(stream: BinaryIO, content: Any) -> None:
    """Writes one message of plain data and CPU tensors."""
    memory = io.BytesIO()
    torch.save(_on_cpu(content), memory)
    data = memory.getbuffer()
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Reads one message; None at the end. Loading runs no code of the sender."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(struct.unpack("<q", head)[0])
    return torch.load(io.BytesIO(data), weights_only=True)


def _on_cpu(content: Any) -> Any:
    if isinstance(content, Tensor):
        return content.detach().cpu()
    if isinstance(content, dict):
        items = cast(dict[Any, Any], content)
        return {key: _on_cpu(value) for key, value in items.items()}
    if isinstance(content, list | tuple):
        return [_on_cpu(value) for value in cast(list[Any], content)]
    return content


if __name__ == "__main__":
    main()
