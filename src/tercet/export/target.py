"""What every export target offers: what it can hold as data, a writer, and its real client.

A target is a module of `tercet.export`, `NAME.py` or a folder `NAME`, with a `TARGET`; its name is
the module's with `-` for `_`. It is imported when asked for, and it imports its client only where
the client is used: to list and to write, Tercet alone is enough.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import UnsupportedError, unknown_name

# tokens of the prompt, and after it, that a client is given before it is timed
_WARM_UP = 4
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|wpe|\w+_embeddings?)$")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """How a target holds one packed module, or why it cannot.

    Attributes:
        module: the module's name in the checkpoint.
        kind: the target's own name of the format ("TQ2_0", "pack-quantized int4 g64"); None where
            it is refused.
        bits_per_weight: codes, scales, zero points and padding there.
        reason: of a refusal: what the module has, what the target takes, the alternative.
        activation_block: columns of the input that the client rounds to int8 together (K for one
            scale a token); None where it multiplies in floating point. Verification allows as much
            error in the logits as this rounding makes.
    """

    module: str
    kind: str | None = None
    bits_per_weight: float | None = None
    reason: str | None = None
    activation_block: int | None = None

    def __post_init__(self) -> None:
        assert (self.kind is None) == (self.reason is not None), self


@runtime_checkable
class Target(Protocol):
    """One place where a packed checkpoint can go.

    Attributes:
        name: as `tercet export --to` takes it.
        client: PyPI distribution of the program that runs it.
        extra: the optional extra of tercet that installs the client.
    """

    @property
    def name(self) -> str: ...

    @property
    def client(self) -> str: ...

    @property
    def extra(self) -> str: ...

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each packed module is held, in the checkpoint's order; needs no client."""
        ...

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the file or directory `out`, whole or not at all; needs no client.

        Raises:
            UnsupportedError: what cannot be held, every refusal in one message.
            CheckpointError: `out` exists, or the disk is full.
        """
        ...

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the same model dequantized, every weight in float32, for the same client.

        How far the client is from Tercet on this twin is its own arithmetic, no fault of the
        export's.
        """
        ...

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]) of every packed module, read with the target's own library."""
        ...

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores float32 [T, V] after each token, from the real client."""
        ...

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens by the real client, always the most likely, never stopping."""
        ...


@runtime_checkable
class Selectable(Protocol):
    """A target that holds the same weights in several types."""

    def variant(self, kind: str) -> Target:
        """The target that holds all layers in that type; UnsupportedError for an unknown one."""
        ...


class Session(Protocol):
    """A model that is loaded in its client, in this process."""

    def stream(self, tokens: list[int], count: int) -> Iterator[int]:
        """The next `count` tokens, always the most likely, as they come."""
        ...


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One greedy continuation in a client, which had done a short one before.

    Attributes:
        load_s: seconds until the model could be asked.
        first_s: seconds from the prompt's tokens to the first new one.
        rest_s: seconds from the first new token to the last.
        peak_resident_bytes: of the client's process; None where it shares one with others.
    """

    load_s: float
    first_s: float
    rest_s: float
    peak_resident_bytes: int | None = None


@runtime_checkable
class Timed(Protocol):
    """A target whose client can be timed."""

    def time(self, out: Path, tokens: list[int], count: int) -> Timing:
        """The next `count` tokens, on as many threads as torch takes."""
        ...


def time_session(
    load: Callable[[], Session], tokens: list[int], count: int, whole_runs: int = 0
) -> Timing:
    """The next `count` tokens of a client in this process, which `load` loads.

    Args:
        load: makes it.
        tokens: the prompt.
        count: of tokens, at least one.
        whole_runs: how often all of it is run before, where a few tokens do not warm up.
    """
    begin = perf_counter()
    session = load()
    load_s = perf_counter() - begin
    for given, wanted in ((tokens[:_WARM_UP], _WARM_UP), *[(tokens, count)] * whole_runs):
        for _ in session.stream(given, wanted):
            pass
    begin = perf_counter()
    ends = [perf_counter() - begin for _ in session.stream(tokens, count)]
    return Timing(load_s=load_s, first_s=ends[0], rest_s=ends[-1] - ends[0])


def in_kind(target: Target, kind: str | None) -> Target:
    """The target, holding all layers in one of its types; as it is where none is asked for.

    Raises:
        UnsupportedError: it has no such type, or none to choose from.
    """
    if kind is None:
        return target
    if not isinstance(target, Selectable):
        others = [name for name in target_names() if isinstance(find_target(name), Selectable)]
        raise UnsupportedError(
            f"target {target.name!r} has one type for each format, so {kind!r} cannot be asked of "
            f"it: leave it out; there are several in {', '.join(others)}"
        )
    return target.variant(kind)


def target_names() -> list[str]:
    """Every target there is, by name; imports them."""
    names = [module.name for module in iter_modules(import_module(__package__ or "").__path__)]
    return sorted(_outer(name) for name in names if hasattr(_module(name), "TARGET"))


def find_target(name: str) -> Target:
    """The target of that name; UnsupportedError offers the nearest ones."""
    inner = name.replace("-", "_")
    modules = {module.name for module in iter_modules(import_module(__package__ or "").__path__)}
    if _outer(inner) != name or inner not in modules or not hasattr(_module(inner), "TARGET"):
        raise UnsupportedError(unknown_name("export target", name, target_names()))
    return _module(inner).TARGET


def _outer(module: str) -> str:
    return module.replace("_", "-")


def _module(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def install_command(target: Target) -> str:
    """What installs a target's client."""
    return f"pip install 'tercet[{target.extra}]'"


def not_installed(target: Target) -> UnsupportedError:
    """The error of a client that is not there."""
    return UnsupportedError(
        f"target {target.name!r} runs in {target.client}, which is not installed: "
        f"{install_command(target)}"
    )


def client_module(target: Target, module: str) -> Any:
    """Imports a module of the target's client.

    Raises:
        UnsupportedError: it is not installed, with the command that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise not_installed(target) from error


def transform_reason(entry: PackedModule, target: str) -> str | None:
    """Why a target that knows plain products only refuses this module's input transform.

    None where the module has no transform.
    """
    steps = {
        "an input scale (AWQ, SmoothQuant)": entry.input_scale,
        f"a Hadamard rotation of size {entry.hadamard}": entry.hadamard is not None,
        f"activations quantized as {entry.activation}": entry.activation is not None,
    }
    found = [step for step, there in steps.items() if there]
    if not found:
        return None
    return (
        f"its input passes through {' and '.join(found)}; {target} multiplies plain inputs only: "
        f"compress with rtn, gptq or trit_planes, or export to huggingface"
    )


def is_embedding(module: str) -> bool:
    """Whether a packed module is looked up by id, by its name: files do not say."""
    return _EMBEDDING.search(module) is not None


def refuse(target: Target, holdings: Iterable[Holding]) -> None:
    """UnsupportedError with every refusal, like ones together; nothing where all can be held."""
    modules: dict[str, list[str]] = {}
    for holding in holdings:
        if holding.reason is not None:
            modules.setdefault(holding.reason, []).append(holding.module)
    if not modules:
        return
    lines = [f"{_some(names)}: {reason}" for reason, names in modules.items()]
    raise UnsupportedError(f"target {target.name!r} cannot hold this: {'; '.join(lines)}")


def _some(names: list[str]) -> str:
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{rest}"
