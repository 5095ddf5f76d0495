"""Triton and Gluon kernels, compiled for a target as Triton itself would on such a machine."""

import hashlib
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
import triton
from triton._C import libtriton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import jit

from tercet.errors import UnsupportedError
from tercet.harness.cross_compile.capture import Launch
from tercet.harness.cross_compile.report import Resources
from tercet.harness.cross_compile.resources import of_amdgcn, of_cubin
from tercet.harness.cross_compile.target import Target

# what Triton leaves untyped
_make_backend: Any = make_backend
_triton: Any = triton
_jit: Any = jit
_libtriton: Any = libtriton
# set by every launch in JITFunction.run
_ALWAYS = {"debug": False, "instrumentation_mode": ""}

_MOST_THREADS = 1024


def variant(launch: Launch) -> str:
    """What the launch specialises its kernel for: argument types, constants, options.

    A run of equal types is written once: "*bf16:16 x5". It is the same for all targets.
    """
    bound, specialization, options = _bind(launch, _gpu_target("cuda", 90, 32))
    types: list[str] = []
    constants: list[str] = []
    for parameter, (kind, extra) in zip(launch.kernel.params, specialization, strict=True):
        if parameter.is_constexpr:
            constants.append(f"{parameter.name}={_constant(bound[parameter.name])}")
        elif kind == "constexpr":
            types.append(_constant(extra))
        else:
            types.append(f"{kind}:16" if "D" in (extra or "") else str(kind))
    written = [f"{kind} x{count}" if count > 1 else kind for kind, count in _runs(types)]
    chosen = [f"{name}={value}" for name, value in options.items() if name not in _ALWAYS]
    return " ".join((*written, *constants, *chosen))


def digest(launch: Launch, target: Target) -> str | None:
    """Of all that the launched kernel is compiled from; None where it cannot be compiled.

    The kernel's source and that of all that it calls, where it stands, types, constants, options,
    target, versions of Triton and of the assembler: what Triton's own cache goes by.
    """
    try:
        gpu, source, parsed = _source(launch, target)
    except Exception:  # noqa: BLE001 compiling says why
        return None
    parts = (
        _triton.__version__,
        source.hash(),
        _make_backend(gpu).hash(),
        parsed.hash(),
        str(sorted(_libtriton.get_cache_invalidating_env_vars().items())),
    )
    return hashlib.sha256("-".join(parts).encode()).hexdigest()[:32]


def compile_launch(launch: Launch, target: Target, *, anew: bool = False) -> Resources:
    """The resources of the launched kernel on the target; `anew` takes none from Triton's cache.

    Raises whatever the compiler raises; UnsupportedError where the result could not be launched.
    """
    gpu, source, parsed = _source(launch, target)
    threads = parsed.__dict__["num_warps"] * target.warp
    if threads > _MOST_THREADS:
        raise UnsupportedError(
            f"launches {parsed.__dict__['num_warps']} warps of {target.warp} threads, a block on "
            f"{target.name} has at most {_MOST_THREADS} threads"
        )
    # not by its variable, which every later digest would hold
    with _triton.knobs.compilation.scope():
        _triton.knobs.compilation.always_compile = anew
        result = _triton.compile(source, target=gpu, options=parsed.__dict__)
    if result.metadata.shared > target.shared_bytes:
        raise UnsupportedError(
            f"needs {result.metadata.shared} bytes of shared memory, a block on {target.name} has "
            f"at most {target.shared_bytes}"
        )
    if target.backend == "hip":
        return of_amdgcn(result.asm["amdgcn"], result.metadata.shared)
    return of_cubin(result.asm["cubin"], result.asm["ptx"], result.metadata.shared)


def _source(launch: Launch, target: Target) -> tuple[Any, Any, Any]:
    """Triton's target, source and options."""
    gpu = _gpu_target(target.backend, target.arch, target.warp)
    kernel = launch.kernel
    bound, specialization, options = _bind(launch, gpu)
    parsed, signature, constants, attributes = kernel._pack_args(
        _make_backend(gpu), options, bound, specialization, options
    )
    source_type = GluonASTSource if kernel.is_gluon() else ASTSource
    return gpu, source_type(kernel, signature, constants, attributes), parsed


def _bind(launch: Launch, gpu: Any) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Triton's own: bound arguments, (type, specialisation) of each, options."""
    kernel = launch.kernel
    bind = _jit.create_function_from_signature(kernel.signature, kernel.params, _make_backend(gpu))
    return bind(*launch.arguments, **launch.options, **_ALWAYS)


def _gpu_target(backend: str, arch: int | str, warp: int) -> Any:
    return GPUTarget(backend, arch, warp)


def _runs(types: Iterable[str]) -> list[tuple[str, int]]:
    return [(kind, len(list(group))) for kind, group in groupby(types)]


def _constant(value: Any) -> str:
    value = getattr(value, "value", value)
    if isinstance(value, torch.dtype):
        return str(value)[6:]
    return getattr(value, "__name__", None) or str(value)
