"""export: converts a packed checkpoint for another program and verifies the result there."""

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tercet.checkpoints.atomic import in_the_way, remove_partial
from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.output_directory import check_writable, resolve_output
from tercet.checkpoints.packed.read import PackedCheckpoint, open_packed
from tercet.checkpoints.seal import verified
from tercet.errors import AccuracyError, CheckpointError, UnsupportedError
from tercet.export.target import Holding, Target, find_target, in_kind, not_installed
from tercet.export.unpacked import Comparable
from tercet.models import find_architecture, read_config, supported_architecture
from tercet.runtime import GenerationSettings, load, load_tokenizer, stream
from tercet.workflows.export.contents import installed_version
from tercet.workflows.export.report import (
    ClientReport,
    ExportReport,
    ModuleReport,
    dominant_format,
    model_name,
)

PROMPT = "The capital of France is Paris, and the river that runs through it is called"
MARGIN = 2.0
"""How many times the client's own arithmetic the logits may be off: the parts of an error add up in
other ways in another order of summation."""
_FLOOR = 2e-5
# a window up to which what is verified is longer than it
_LONGEST_WINDOW = 1024
# the most that a client's floating-point arithmetic may be off (float16: up to 0.3 %); a twin that
# is further off is another model over there
_ARITHMETIC = 0.01


def export(
    directory: str | Path,
    target: str,
    out: str | Path,
    verify: bool = False,
    *,
    kind: str | None = None,
    tokens: list[int] | None = None,
    count: int = 16,
    progress: Callable[[str], None] | None = None,
) -> ExportReport:
    """Convert a packed checkpoint for another program.

    Args:
        directory: the packed checkpoint.
        target: a name of `target_names`.
        out: the file or directory to write; it must not exist; a link is followed.
        verify: read the export back with the target's library, run the export in the target's
            client, and compare weights, settings, logits and tokens with Tercet's.
        kind: the target's tensor type for all layers (such as "TQ2_0" for gguf); None for the
            densest exact type of each layer.
        tokens: prompt token ids for the comparison; None for a default sentence.
        count: number of tokens to generate in the comparison.
        progress: a function called with one-line messages.

    Raises:
        UnsupportedError: the target cannot hold a layer exactly, or its client is not installed.
        CheckpointError: the checkpoint is damaged, `out` already exists, or another run writes
            there.
    """
    out = resolve_output(out)
    to = in_kind(find_target(target), kind)
    _demand_free(out)
    check_writable(out)
    settings = GenerationSettings(max_new_tokens=count, temperature=0.0)
    if verify and installed_version(to) is None:
        raise not_installed(to)
    checkpoint = open_packed(directory)
    if not checkpoint.modules:
        raise CheckpointError(f"{directory}: no module is packed, so there is nothing to export")
    say = progress or _silent
    with lock_output(out):
        _demand_free(out)
        remove_partial(out)
        # codes that were changed would get fresh checksums over there
        with verified(directory):
            holdings = to.holdings(checkpoint)
        say(f"writing {out}")
        to.write(checkpoint, out)
    equal: dict[str, bool] = {}
    client = differences = None
    if verify:
        say(f"reading it back with {to.client}")
        equal = _bit_equal(checkpoint, to, out)
        if isinstance(to, Comparable):
            differences = tuple(to.differences(checkpoint, out))
        client = _run_client(checkpoint, to, out, holdings, tokens, settings, say)
    return ExportReport(
        directory=str(directory),
        model=model_name(checkpoint),
        format=dominant_format(checkpoint),
        target=target,
        out=str(out),
        size_bytes=written_bytes(out),
        packed_size_bytes=checkpoint.size_bytes,
        modules=tuple(_module(checkpoint, h, equal) for h in holdings),
        differences=differences,
        client=client,
    )


def _demand_free(out: Path) -> None:
    if out.exists():
        raise in_the_way(out)


def _silent(_: str) -> None:
    return None


def written_bytes(out: Path) -> int:
    """Of an export: a file, or all files of a directory."""
    files = [out] if out.is_file() else list(out.rglob("*"))
    return sum(path.stat().st_size for path in files if path.is_file())


def _module(checkpoint: PackedCheckpoint, held: Holding, equal: dict[str, bool]) -> ModuleReport:
    return ModuleReport(
        module=held.module,
        format=checkpoint.modules[held.module].format,
        kind=str(held.kind),
        bits_per_weight=held.bits_per_weight or 0.0,
        bit_equal=equal.get(held.module),
    )


def _bit_equal(checkpoint: PackedCheckpoint, target: Target, out: Path) -> dict[str, bool]:
    found = dict.fromkeys(checkpoint.modules, False)
    for module, values in target.dequantize(out):
        if module in found:
            ours = checkpoint.read_packed(module).dequantize()
            # == takes -0 for 0, which no product tells apart
            found[module] = values.dtype == torch.float32 and torch.equal(values, ours)
    return found


def _run_client(
    checkpoint: PackedCheckpoint,
    target: Target,
    out: Path,
    holdings: tuple[Holding, ...],
    tokens: list[int] | None,
    settings: GenerationSettings,
    say: Callable[[str], None],
) -> ClientReport:
    count = settings.max_new_tokens
    prompt = tokens if tokens is not None else _prompt(checkpoint, count)
    ours, our_greedy = _ours(checkpoint, prompt, settings)
    say(f"running it in {target.client}")
    theirs = target.logits(out, prompt)
    greedy = target.greedy(out, prompt, count)
    say(f"running its float32 twin in {target.client}")
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".twin-") as folder:
        twin = Path(folder) / f"twin{out.suffix}"
        target.write_twin(checkpoint, twin)
        twin_error = relative_error(target.logits(twin, prompt), ours)
    activation_error, rounded = _activation_error(checkpoint, holdings, prompt)
    # ours rounds its inputs where the checkpoint says so, the twin does not
    arithmetic = min(twin_error, _ARITHMETIC + activation_error)
    return ClientReport(
        client=f"{target.client} {version(target.client)}",
        tokens=tuple(prompt),
        error=relative_error(theirs, ours),
        twin_error=twin_error,
        activation_error=activation_error,
        rounded_error=None if rounded is None else relative_error(theirs, rounded),
        bound=MARGIN * (arithmetic + activation_error) + _FLOOR,
        top1_agreement=float((theirs.argmax(-1) == ours.argmax(-1)).float().mean()),
        greedy=tuple(greedy),
        our_greedy=tuple(our_greedy),
        text=_text(checkpoint, greedy),
        our_text=_text(checkpoint, our_greedy),
    )


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return rms(found - expected) / rms(expected) of logits [T, V]; NaN unless all are finite."""
    if found.shape != expected.shape:
        raise AccuracyError(
            f"the client gave logits {list(found.shape)}, Tercet {list(expected.shape)}: the "
            f"export has another vocabulary or drops positions"
        )
    exact = expected.double()
    difference = (found.double() - exact).square().mean().sqrt()
    return float(difference) / max(float(exact.square().mean().sqrt()), 1e-30)


def _prompt(checkpoint: PackedCheckpoint, count: int) -> list[int]:
    """A sentence; as often as it takes to be longer than windows that see little of it."""
    if (checkpoint.directory / "tokenizer.json").exists():
        prompt = load_tokenizer(checkpoint.directory).encode(PROMPT)
    else:
        generator = torch.Generator().manual_seed(0)
        size = int(checkpoint.config["vocab_size"])
        prompt = [int(token) for token in torch.randint(size, (16,), generator=generator)]
    windows, positions = _windows(checkpoint.config)
    short = [window for window in windows if window and window <= _LONGEST_WINDOW]
    length = max((window + len(prompt) for window in short), default=len(prompt))
    length = max(len(prompt), min(length, positions - count))
    return (prompt * -(-length // len(prompt)))[:length]


def _windows(config: dict[str, Any]) -> tuple[tuple[int | None, ...], int]:
    """How far back each layer sees, and how many positions there are; none for a model unknown."""
    if not supported_architecture(config):
        return (), 0
    sizes = read_config(find_architecture(config), config)
    return tuple(sizes.windows), sizes.positions


def _text(checkpoint: PackedCheckpoint, tokens: list[int]) -> str | None:
    if not (checkpoint.directory / "tokenizer.json").exists():
        return None
    return load_tokenizer(checkpoint.directory).decode(tokens)


def _ours(
    checkpoint: PackedCheckpoint, prompt: list[int], settings: GenerationSettings
) -> tuple[Tensor, list[int]]:
    """Our logits [T, V] and greedy tokens: the lean decoder's, else our linears in transformers.

    On the CPU in float32, as the client.
    """
    try:
        session = load(checkpoint.directory, device="cpu")
    except UnsupportedError:
        own = find_target("huggingface")
        logits = own.logits(checkpoint.directory, prompt)
        return logits, own.greedy(checkpoint.directory, prompt, settings.max_new_tokens)
    tokens = list(stream(session.model, prompt, settings))
    return session.logits(prompt)[0].float(), tokens


@torch.inference_mode()
def _activation_error(
    checkpoint: PackedCheckpoint, holdings: tuple[Holding, ...], prompt: list[int]
) -> tuple[float, Tensor | None]:
    """How far rounding inputs to int8 as the client does moves our own logits, and where to."""
    blocks = {h.module: h.activation_block for h in holdings if h.activation_block is not None}
    if not blocks:
        return 0.0, None
    from tercet.export import transformers_client

    model = transformers_client.load(checkpoint.directory)
    ids = torch.tensor([prompt])
    for name in blocks:
        # a checkpoint that rounds its inputs itself is measured against one that does not
        module = model.get_submodule(name)
        module.entry = module.entry.model_copy(update={"activation": None})
    exact = model(input_ids=ids, use_cache=False).logits[0]
    head = model.get_output_embeddings()
    for name, block in blocks.items():
        module = model.get_submodule(name)
        if module is model.get_input_embeddings():
            module = head
        module.register_forward_pre_hook(_round_inputs(block))
    rounded = model(input_ids=ids, use_cache=False).logits[0]
    return relative_error(rounded, exact), rounded


def _round_inputs(block: int) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *rest = arguments
        columns = x.shape[-1]
        blocks = pad(x, (0, -columns % block)).reshape(*x.shape[:-1], -1, block)
        step = torch.clamp(torch.amax(torch.abs(blocks), -1, keepdim=True) / 127, min=1e-30)
        rounded = torch.mul(torch.round(torch.div(blocks, step)), step)
        return (rounded.flatten(-2)[..., :columns], *rest)

    return hook
