"""Builds in CUDA C++: macros decide the command, the library's name and its place in the cache."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tercet.errors import BuildError
from tercet.kernel.jit import cuda
from tercet.kernel.jit.cuda import Build, build_cuda


def test_a_build_is_named_by_its_source_and_macros_in_one_order() -> None:
    source = Path("/ops/hopper_decode/kernel.cu")
    build = Build(source, {"TERCET_X": "int8_t", "TERCET_BITS": 2})
    assert build.name == "hopper_decode/kernel.cu TERCET_BITS=2 TERCET_X=int8_t"
    assert build.flags == ("-DTERCET_BITS=2", "-DTERCET_X=int8_t")
    assert Build(source).name == "hopper_decode/kernel.cu"
    assert Build(source).flags == ()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Path]]:
    """What would be compiled, to which library."""
    found = list[tuple[list[str], Path]]()

    def load(source: Path, command: list[str], library: Path, minutes: int) -> ctypes.CDLL:
        found.append((command, library))
        return SimpleNamespace()  # pyright: ignore[reportReturnType]

    monkeypatch.setattr(cuda, "find_nvcc", lambda: "nvcc")
    monkeypatch.setattr(cuda, "version_of", lambda nvcc: "13.0")
    monkeypatch.setattr(cuda, "load_or_build", load)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return found


def test_other_macros_are_another_library(
    tmp_path: Path, built: list[tuple[list[str], Path]]
) -> None:
    source = tmp_path / "hopper" / "kernel.cu"
    source.parent.mkdir()
    source.write_text("")
    build_cuda(source, {"TERCET_X": "int8_t", "TERCET_BITS": 2})
    build_cuda(source, {"TERCET_BITS": 2, "TERCET_X": "int8_t"})
    build_cuda(source, {"TERCET_BITS": 4, "TERCET_X": "int8_t"})
    build_cuda(source)
    (command, first), (_, same), (_, four), (plain, bare) = built
    assert command.index("-DTERCET_BITS=2") + 1 == command.index("-DTERCET_X=int8_t")
    assert not any(word.startswith("-D") for word in plain)
    assert first == same
    assert len({first, four, bare}) == 3
    assert first.name.startswith("hopper-kernel-2-int8_t-")
    assert bare.name.startswith("hopper-kernel-")


def test_without_a_gpu_nothing_is_built(
    tmp_path: Path, built: list[tuple[list[str], Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BuildError, match=r"no GPU to compile kernel\.cu for"):
        build_cuda(tmp_path / "kernel.cu")
    assert not built
