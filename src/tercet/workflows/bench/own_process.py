"""What a child process measures: Tercet's decoder, or an exported model in its client."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tercet.export.target import Timed, find_target, time_session
from tercet.models import Decoder
from tercet.records import peak_resident_bytes
from tercet.runtime import GenerationSettings, load, stream

OWN = "tercet"
# on a GPU kernels are built in the first run of a prompt, and captured in the second
_GPU_RUNS = 2


class _Own:
    """Tercet's decoder as `tercet run` has it, greedy, past every end-of-text token."""

    def __init__(self, model: Decoder) -> None:
        self._model = model

    def stream(self, tokens: list[int], count: int) -> Iterator[int]:
        settings = GenerationSettings(max_new_tokens=count, ignore_stop=True)
        return stream(self._model, tokens, settings)


def measure(
    engine: str, path: str, tokens: list[int], count: int, threads: int, device: str
) -> dict[str, Any]:
    """The Timing of one engine, as a dictionary.

    Args:
        engine: "tercet", or the name of a target that can be timed.
        path: of the checkpoint, or of what was exported.
        tokens: the prompt.
        count: tokens to generate.
        threads: to compute on.
        device: of Tercet's decoder.
    """
    torch.set_num_threads(threads)
    if engine == OWN:
        runs = _GPU_RUNS if device.startswith("cuda") else 0
        found = time_session(lambda: _Own(load(path, device=device).model), tokens, count, runs)
        return {**asdict(found), "peak_resident_bytes": peak_resident_bytes()}
    target = find_target(engine)
    assert isinstance(target, Timed)
    return asdict(target.time(Path(path), tokens, count))
