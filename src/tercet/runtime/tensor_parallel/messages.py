"""What the process of a command and the ranks that it started tell each other; without torch."""

from dataclasses import dataclass
from pathlib import Path

from tercet.runtime.generation import Generation
from tercet.runtime.settings import GenerationSettings


@dataclass(frozen=True, kw_only=True)
class Job:
    """What all ranks are to do.

    Attributes:
        directory: the packed checkpoint.
        prompt: text.
        chat: as `Generator.encode` takes it.
        settings: of the generation.
        world_size: how many ranks there are.
        device: "cpu", or "cuda" for the first `world_size` GPUs; None for these if there is one.
        kv_cache_dtype: as `load` takes it.
    """

    directory: Path
    prompt: str
    chat: bool | None
    settings: GenerationSettings
    world_size: int
    device: str | None
    kv_cache_dtype: str | None


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A rank has loaded its weights."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """The next text, from rank 0 alone."""

    chunk: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """A rank has come to the end, with all tokens, and has taken so much memory of the host."""

    result: Generation
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A rank raised an exception.

    Attributes:
        kind: name of its class; of its base in tercet.errors, where it has one.
        refused: whether it has.
        message: its own.
        trace: the traceback.
    """

    kind: str
    refused: bool
    message: str
    trace: str


Message = Loaded | Text | Done | Failed
