"""Has Tercet's C++ for CPUs run as an Arm processor runs it: cross-compiled, by an emulator.

A plugin: `pytest -p arm.emulated tests/ops/test_linear_packed.py` (with tests/ on PYTHONPATH) gives
these tests an Arm machine's instruction sets, and their calls go to a process of `qemu-aarch64`.
Products, gates and attention to one new position go there; what binds a product's address for
other C++ to call (a decoder's whole layer) cannot.
"""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import pytest

from tercet import environment
from tercet.kernel.jit import cpp
from tercet.models.decoder import one_token
from tercet.packed_weight import int4_rows
from tercet.packed_weight.cpu import product
from tercet.packed_weight.cpu.native import NativeLayout

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
NEWEST, OLDEST = "max", "cortex-a72"
"""Processors of the emulator: one with every extension, and one with NEON alone."""

_HERE = Path(__file__).parent
_SOURCES = ("packed_weight/cpu/packed_product.cpp", "models/decoder/one_token.cpp")
_SIZES = {0: 4, 1: 2, 2: 2, 3: 1}  # of numbers, by the code that C++ has for their type
Arguments = Sequence[Any]


def missing() -> str | None:
    """What this machine lacks for it, and how it is brought; None for nothing."""
    lacking = [name for name in (COMPILER, EMULATOR) if shutil.which(name) is None]
    if not lacking:
        return None
    return f"no {' and no '.join(lacking)}: run `apt install g++-aarch64-linux-gnu qemu-user`"


def build() -> Path:
    """The program of server.cpp with the functions that it calls, from the cache or compiled."""
    server, compiler = _HERE / "server.cpp", shutil.which(COMPILER)
    assert compiler is not None, missing()
    flags = [flag for flag in cpp.FLAGS if flag != "-shared"] + ["-static", f"-I{cpp.INCLUDE}"]
    sources = [cpp.INCLUDE / name for name in _SOURCES]
    texts = [file.read_text() for source in sources for file in (source, *cpp.headers_of(source))]
    words = (*flags, cpp.version_of(compiler), *texts)
    program = cpp.cached_path(server, words, name="arm-server", suffix="")
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(".tmp")
        command = [compiler, *flags, *map(str, (server, *sources)), "-o", str(unfinished)]
        subprocess.run(command, check=True)
        unfinished.replace(program)
    return program


class Processor:
    """A process of server.cpp on an emulated processor."""

    def __init__(self, name: str) -> None:
        command = [EMULATOR, "-cpu", name, str(build())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._one_call = Lock()

    def call(self, function: int, types: Arguments, given: Arguments, sizes: Sequence[int]) -> None:
        """Calls a function; its memory is that of this process before and afterwards.

        Args:
            function: its number in server.cpp.
            types: of its arguments, as ctypes has them.
            given: the arguments, memory as addresses.
            sizes: of the memory of each pointer, in bytes, in their order.
        """
        left = iter(sizes)
        places = [
            (value, next(left)) if kind is ctypes.c_void_p else None
            for kind, value in zip(types, given, strict=True)
        ]
        memory = joined(place for place in places if place is not None and place[0] is not None)
        words = [struct.pack("<qq", function, len(memory))]
        for start, size in memory:
            words += struct.pack("<q", size), ctypes.string_at(start, size)
        for kind, value, place in zip(types, given, places, strict=True):
            if kind is ctypes.c_float:
                words.append(struct.pack("<d", value))
            elif place is None:
                words.append(struct.pack("<q", int(value)))
            elif value is None:
                words.append(struct.pack("<q", -1))
            else:
                piece = max(i for i, (start, _) in enumerate(memory) if start <= value)
                words.append(struct.pack("<II", value - memory[piece][0], piece))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_call:
            self._process.stdin.write(b"".join(words))
            self._process.stdin.flush()
            for start, size in memory:
                found = self._process.stdout.read(size)
                assert len(found) == size, f"the emulated process ended: {self._process.wait()}"
                ctypes.memmove(start, found, size)

    def best_isa(self) -> int:
        """The number of its best instruction set."""
        found = ctypes.c_int32(-1)
        self.call(0, (ctypes.c_void_p,), (ctypes.addressof(found),), (4,))
        return found.value

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Memory (address, size) in the order of addresses, what overlaps as one."""
    found = list[tuple[int, int]]()
    for start, size in sorted(places):
        before, held = found[-1] if found else (start, 0)
        if found and start < before + held:
            found[-1] = before, max(held, start + size - before)
        else:
            found.append((start, size))
    return found


class _Function(Protocol):
    argtypes: Arguments
    restype: Any

    def __call__(self, *given: Any) -> None: ...


class _Emulated:
    """One function, as ctypes has it."""

    def __init__(
        self, processor: Processor, number: int, sizes: Callable[..., Sequence[int]]
    ) -> None:
        self._processor, self._number, self._sizes = processor, number, sizes
        self.argtypes: Arguments = ()
        self.restype: Any = None

    def __call__(self, *given: Any) -> None:
        self._processor.call(self._number, self.argtypes, given, self._sizes(*given))


class Library:
    """The functions that an emulated processor runs; others are this machine's own.

    Args:
        processor: that runs them.
        own: the library of this machine.
    """

    def __init__(self, processor: Processor, own: ctypes.CDLL) -> None:
        self._own = own
        self.tercet_packed_product: _Function = _Emulated(processor, 1, _of_product)
        self.tercet_gate: _Function = _Emulated(processor, 2, _of_gate)
        self.tercet_attend: _Function = _Emulated(processor, 3, _of_attention)
        self.tercet_best_isa = processor.best_isa

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _of_product(
    layout: int, codes: int, scale: int, scale_number: int, zero: int | None, zero_number: int,
    bias: int | None, bias_number: int, x: int, y: int, y_number: int, rows: int, threads: int,
    isa: int, x_scale: int | None,
) -> Sequence[int]:  # fmt: skip
    del codes, scale, zero, bias, x, y, threads, isa
    held = NativeLayout.from_address(layout)
    blocks = -(-held.rows // 16)
    return (
        ctypes.sizeof(held),
        blocks * held.groups * held.runs_per_group * 16 * 4,
        blocks * held.groups * 16 * _SIZES[scale_number],
        blocks * held.groups * 16 * _SIZES[zero_number],
        held.rows * _SIZES[bias_number],
        rows * held.columns * (_SIZES[y_number] if x_scale is None else 1),
        rows * held.rows * _SIZES[y_number],
        rows * 4,
    )


def _of_gate(gate_up: int, kind: int, rows: int, count: int, *_: Any) -> Sequence[int]:
    del gate_up, kind
    return 2 * rows * count * 4, rows * count * 4


def _of_attention(
    qkv: int, batch: int, heads: int, groups: int, dim: int, cos: int, sin: int,
    query_norm: int | None, key_norm: int | None, across: int, epsilon: float, scale: float,
    cap: float, keys: int, values: int, key_scales: int | None, value_scales: int | None,
    key_offset: int | None, bits: int, batch_stride: int, head_stride: int, first: int,
    length: int, *_: Any,
) -> Sequence[int]:  # fmt: skip
    del qkv, cos, sin, query_norm, key_norm, epsilon, scale, cap, keys, values, first
    del key_scales, value_scales, key_offset
    row = dim // 2 if bits == 4 else dim
    positions = (batch - 1) * batch_stride + (groups - 1) * head_stride + length * row
    cached = positions * (4 if bits == 32 else 1)
    of_row = int4_rows.groups(dim) * 4 if bits == 4 else 4
    of_heads, of_groups = (count * dim if across else dim for count in (heads, groups))
    return (
        batch * (heads + 2 * groups) * dim * 4,
        *(dim * 4, dim * 4, of_heads * 4, of_groups * 4),
        *(cached, cached, positions // row * of_row, positions // row * of_row),
        *(groups * dim * 4, batch * heads * dim * 4),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Puts the emulated processor in the place of this one."""
    processor = Processor(NEWEST)
    config.add_cleanup(processor.close)
    library = Library(processor, product.library())
    library.tercet_packed_product.argtypes = product.library().tercet_packed_product.argtypes
    own_build = one_token.build
    environment.CPU_ISAS = environment.isas_of("aarch64")
    product.library = lambda: library
    one_token.build = lambda source: Library(processor, own_build(source))
