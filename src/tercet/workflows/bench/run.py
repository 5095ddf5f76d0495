"""The bench: every engine has its turn in every round, in a process of its own."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tercet import environment
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import verified
from tercet.child_process import Child, ChildError
from tercet.errors import BuildError, UnsupportedError
from tercet.export.target import Target, Timed, find_target, not_installed, target_names
from tercet.models.device import resolve_device
from tercet.packed_weight.cpu.product import isas
from tercet.version import VERSION
from tercet.workflows.bench.own_process import OWN
from tercet.workflows.bench.report import BenchReport, EngineReport, Range
from tercet.workflows.export.contents import installed_version
from tercet.workflows.export.report import dominant_format, model_name
from tercet.workflows.export.run import written_bytes

_MEASURE = "tercet.workflows.bench.own_process:measure"
# only a process that hangs takes so long
_SECONDS = 3600.0


def timed_targets() -> list[str]:
    """The targets whose clients can be timed, by name."""
    return [name for name in target_names() if isinstance(find_target(name), Timed)]


def bench(
    directory: Path,
    against: Sequence[str] = (),
    *,
    prompt: int = 512,
    tokens: int = 64,
    rounds: int = 3,
    threads: int | None = None,
    device: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Times a packed checkpoint here and, exported, in other engines.

    Args:
        directory: the checkpoint.
        against: names of targets whose clients are timed beside it.
        prompt: tokens of the prompt, drawn from the vocabulary.
        tokens: to generate, at least 2.
        rounds: turns of each engine; every other one goes backwards.
        threads: of each engine; None for as many as torch takes.
        device: of Tercet's decoder; None for a CPU where others are timed beside it, and for the
            GPU, where there is one, where none are.
        say: told what is being done.

    Raises:
        UnsupportedError: an unknown target, or one that cannot be timed; a GPU beside others; a
            prompt and tokens that the model has no positions for.
        CheckpointError: the checkpoint is missing or damaged.
    """
    targets = {name: _timed(name) for name in dict.fromkeys(against)}
    if targets and device is None:
        device = "cpu"
    found = resolve_device(device)
    if targets and found.type != "cpu":
        raise UnsupportedError(
            f"--device {found} beside {', '.join(targets)}: other engines are timed on a CPU; "
            f"leave out --against, or give --device cpu"
        )
    with verified(directory):
        checkpoint = open_packed(directory)
    ids = _drawn_prompt(checkpoint, prompt, tokens)
    threads = threads or torch.get_num_threads()
    engines = [_Engine(OWN, f"tercet {VERSION}", directory, None, checkpoint.size_bytes)]
    with tempfile.TemporaryDirectory() as folder:
        for name, target in targets.items():
            say(f"exporting to {name}")
            engines.append(_export(checkpoint, name, target, Path(folder)))
        load_before = os.getloadavg()[0]
        for turn in range(rounds):
            # backwards every other time: what runs second finds a warmer machine
            for engine in engines if turn % 2 == 0 else engines[::-1]:
                if engine.reason is None:
                    say(f"round {turn + 1} of {rounds}: {engine.title}")
                    engine.measure(ids, tokens, threads, str(found))
    return BenchReport(
        directory=str(directory),
        model=model_name(checkpoint),
        format=dominant_format(checkpoint),
        device=str(found),
        instructions=_instructions() if str(found) == "cpu" else None,
        prompt=prompt,
        tokens=tokens,
        rounds=rounds,
        threads=threads,
        load_before=load_before,
        engines=tuple(engine.report(prompt, tokens) for engine in engines),
    )


def _instructions() -> str | None:
    """None where there are no kernels for a CPU."""
    try:
        return environment.cpu_isa() or isas()[-1]
    except BuildError:
        return None


class _Engine:
    """One engine, what it loads, and what its turns gave."""

    def __init__(
        self,
        name: str,
        title: str,
        path: Path,
        kind: str | None,
        size_bytes: int | None,
        reason: str | None = None,
    ) -> None:
        self.name, self.title, self.path, self.kind = name, title, path, kind
        self.size_bytes, self.reason = size_bytes, reason
        self._found = list[dict[str, Any]]()

    def measure(self, ids: list[int], tokens: int, threads: int, device: str) -> None:
        """One turn; what fails once is not tried again."""
        arguments = {
            "engine": self.name, "path": str(self.path), "tokens": ids, "count": tokens,
            "threads": threads, "device": device,
        }  # fmt: skip
        try:
            with Child(seconds=_SECONDS) as child:
                self._found.append(child.request(_MEASURE, arguments))
        except ChildError as error:
            self.reason = " ".join(str(error).split())

    def report(self, prompt: int, tokens: int) -> EngineReport:
        """What its turns gave."""
        if self.reason is not None:
            return EngineReport(engine=self.title, kind=self.kind, reason=self.reason)
        peaks = [each["peak_resident_bytes"] for each in self._found]
        return EngineReport(
            engine=self.title,
            kind=self.kind,
            size_bytes=self.size_bytes,
            load_s=Range.of([each["load_s"] for each in self._found]),
            prompt_tokens_per_s=Range.of([prompt / each["first_s"] for each in self._found]),
            decode_tokens_per_s=Range.of([(tokens - 1) / each["rest_s"] for each in self._found]),
            peak_resident_bytes=None if None in peaks else sorted(peaks)[len(peaks) // 2],
        )


def _timed(name: str) -> Target:
    target = find_target(name)
    if not isinstance(target, Timed):
        raise UnsupportedError(
            f"the client of {name!r} cannot be timed: choose from {', '.join(timed_targets())}"
        )
    if installed_version(target) is None:
        raise not_installed(target)
    return target


def _export(checkpoint: PackedCheckpoint, name: str, target: Target, folder: Path) -> _Engine:
    """What the target's client loads; or why it cannot hold the checkpoint."""
    title, out = f"{target.client} {installed_version(target)}", folder / name
    kinds = Counter[str]()
    try:
        for held in target.holdings(checkpoint):
            if held.kind is not None and ".layers." in held.module:
                kinds[held.kind] += 1
        target.write(checkpoint, out)
    except UnsupportedError as error:
        return _Engine(name, title, out, None, None, " ".join(str(error).split()))
    kind = kinds.most_common(1)[0][0] if kinds else None
    return _Engine(name, title, out, kind, written_bytes(out))


def _drawn_prompt(checkpoint: PackedCheckpoint, count: int, tokens: int) -> list[int]:
    """Ids of the vocabulary, the same each time."""
    positions = checkpoint.config.get("max_position_embeddings")
    if isinstance(positions, int) and count + tokens > positions:
        raise UnsupportedError(
            f"a prompt of {count} and {tokens} tokens: the model has {positions} positions; give "
            f"fewer"
        )
    drawn = torch.Generator().manual_seed(0)
    size = int(checkpoint.config["vocab_size"])
    return [int(token) for token in torch.randint(size, (count,), generator=drawn)]
