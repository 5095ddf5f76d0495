"""The program of a child process: it receives requests and sends replies, one at a time.

Requests come on standard input and replies go out on the descriptor that standard output was, each
as eight bytes of length and JSON, or where it holds tensors or dtypes a torch.save, which takes a
millisecond more. What the child prints goes to standard
error. The first message is sent when Python and torch have started, and the function that the
command line names ("module:function"), if it names one, has been called.

The parent runs this file by its path, and it imports nothing of Tercet: a child may run under
another revision's PYTHONPATH, which has another version of this file, or none.
"""

import io
import json
import os
import struct
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

_ZIP = b"PK"  # what torch.save writes begins so


def main() -> None:
    """Answers requests until standard input ends."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for ready in sys.argv[1:]:
        find_function(ready)()
    send(replies, {"result": None})
    while (request := receive(requests)) is not None:
        send(replies, answer(request))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the requested function returns, or what it raises.

    Args:
        request: `function`, "package.module:name" or "/path/of/file.py:name", and `arguments`.
    """
    try:
        return {"result": find_function(request["function"])(**request["arguments"])}
    except Exception as error:  # noqa: BLE001 everything that goes wrong is the answer
        return {
            "error": traceback.format_exception_only(error)[-1].strip(),
            "message": str(error),
            "classes": [each.__name__ for each in type(error).__mro__],
            "trace": traceback.format_exc()[-4000:],
        }


def find_function(name: str) -> Callable[..., Any]:
    """The function of a module or of a file; either is imported once."""
    module, _, function = name.rpartition(":")
    find = _import_file if module.endswith(".py") else import_module
    return getattr(find(module), function)


@cache
def _import_file(path: str) -> Any:
    name = f"tercet_child_{Path(path).stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def send(stream: BinaryIO, content: Any) -> None:
    """Writes one message of plain data and CPU tensors."""
    if _is_plain(content):
        data = memoryview(json.dumps(content).encode())
    else:
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
    if data[:2] != _ZIP:
        return json.loads(data)
    return torch.load(io.BytesIO(data), weights_only=True)


def _is_plain(content: Any) -> bool:
    """Whether JSON gives it back as it is, but for tuples."""
    if isinstance(content, dict):
        items = cast(dict[Any, Any], content)
        return all(isinstance(key, str) and _is_plain(value) for key, value in items.items())
    if isinstance(content, list | tuple):
        return all(_is_plain(value) for value in cast(list[Any], content))
    return content is None or type(content) in (str, int, float, bool)


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
