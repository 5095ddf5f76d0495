"""The real client: llama.cpp in a process of its own, and the gguf package's own decoding."""

import ctypes
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from tercet.checkpoints.gguf.blocks import read_code_blocks
from tercet.checkpoints.gguf.codes import CODE_BLOCKS, CODE_BLOCKS_BY_NUMBER
from tercet.checkpoints.gguf.header import GgufTensor
from tercet.checkpoints.sources.gguf_file import GgufFile, halves_from_pairs
from tercet.checkpoints.tokenizer_file import read_tokenizer
from tercet.errors import UnsupportedError
from tercet.export.gguf import llama_cpp
from tercet.export.target import Target, Timing, client_module

# words, numbers, contractions, runs of spaces, line ends, letters of more than one byte
_SAMPLE = (
    "Hello world, it's 12345 o'clock!\n\n  Café naïve, 日本語 ½ ٣٤٥ 👍🏽 I'LL don't\r\n\r\n"
    "\tx = {'a': [1, 2]}     # über-größe ... 3.14159 end\n"
)


def own_values(target: Target, out: Path) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every matrix in blocks of codes, rows as the model has them."""
    source = GgufFile(out)
    for name in source.names():
        tensor = source.find_tensor(name)
        if tensor.kind.number not in CODE_BLOCKS_BY_NUMBER:
            continue
        values = _values(target, out, tensor)
        heads = source.paired_heads(name)
        module = name.removesuffix(".weight")
        yield module, values if heads is None else halves_from_pairs(values, heads)


def _values(target: Target, out: Path, tensor: GgufTensor) -> Tensor:
    raw = read_code_blocks(out, tensor).numpy()
    if tensor.kind.number != CODE_BLOCKS["Q2_0"].number:
        values = dequantize(raw, GGMLQuantizationType(tensor.kind.number))
        return torch.from_numpy(values).reshape(tensor.shape)
    module = client_module(target, "xllamacpp")
    library = ctypes.CDLL(str(llama_cpp.library_path(str(module.__file__))))
    values = torch.empty(tensor.shape, dtype=torch.float32)
    library.dequantize_row_q2_0.restype = None
    library.dequantize_row_q2_0(
        ctypes.c_void_p(raw.ctypes.data),
        ctypes.c_void_p(values.data_ptr()),
        ctypes.c_int64(values.numel()),
    )
    return values


def next_logits(target: Target, out: Path, tokens: list[int]) -> Tensor:
    """Scores float32 [T, V]."""
    with TemporaryDirectory() as folder:
        scores = Path(folder) / "scores.npy"
        _run(target, out, {"tokens": tokens, "scores": str(scores)})
        return torch.from_numpy(np.load(scores))


def greedy_tokens(target: Target, out: Path, tokens: list[int], count: int) -> list[int]:
    """The likeliest continuation."""
    return json.loads(_run(target, out, {"tokens": tokens, "count": count}))["tokens"]


def text_tokens(target: Target, out: Path, text: str) -> list[int]:
    """What llama.cpp's own tokenizer makes of a text; special tokens in it are read as such."""
    return json.loads(_run(target, out, {"text": text}))


def other_tokens(target: Target, out: Path, tokenizer: Path) -> Iterator[str]:
    """A line where llama.cpp makes other tokens of a text than that tokenizer.json."""
    expected = read_tokenizer(tokenizer).encode(_SAMPLE, add_special_tokens=False).ids
    found = text_tokens(target, out, _SAMPLE)
    if found != expected:
        pairs = enumerate(zip(found, expected, strict=False))
        same = next(
            (at for at, (one, other) in pairs if one != other), min(len(found), len(expected))
        )
        yield (
            f"llama.cpp makes {len(found)} tokens of a text, tokenizer.json {len(expected)}: they "
            f"differ from token {same} on"
        )


def time_continuation(target: Target, out: Path, tokens: list[int], count: int) -> Timing:
    """How long llama.cpp takes for it, in a process of its own."""
    found = json.loads(_run(target, out, {"tokens": tokens, "count": count, "warm_up": True}))
    del found["tokens"]
    return Timing(**found)


def _reason(said: str) -> str:
    """What llama.cpp says is wrong, before the traceback of whoever called it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [line for line in lines if re.search(r"\b(error|failed|invalid)\b", line, re.IGNORECASE)]
    own = [line for line in own if not line.startswith(("File ", "raise ", "Traceback"))]
    return " | ".join(dict.fromkeys(own[-4:] or lines[-1:])) or "crashed"


def _run(target: Target, out: Path, request: dict[str, Any]) -> str:
    client_module(target, "xllamacpp")
    threads = torch.get_num_threads()
    # -P: modules of this folder must not stand in for others of the same name
    command = [sys.executable, "-P", llama_cpp.__file__]
    content = json.dumps({"model": str(out), "threads": threads, **request})
    done = subprocess.run(command, input=content, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnsupportedError(f"llama.cpp failed on {out}: {_reason(done.stderr)}")
    return done.stdout
