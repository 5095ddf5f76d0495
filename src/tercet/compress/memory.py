"""Memory of a compression run: the estimate beforehand and the measured peak afterwards.

Units come one after the other, so the peak is that of the unit that takes most:

    embeddings    their float32 weights, what is packed of them, blocks of rows in work
    a layer       its float32 weights twice (as they were, as they are stored), what its linears
                  read in all batches at once (`lockstep`), and the work on one group of them
    a layer that is trained (`blockwise`)
                  its weights as above, the optimizer's of them, hidden states once more, and what
                  one batch leaves for its gradients
    a head        its float32 weights three times (also what they aim at), the embeddings again

with the process, and source weights that are kept, beside each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import cast

import psutil
import torch
from torch import nn

from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.calibration.stream import batch_size
from tercet.compress.plan import Rule
from tercet.compress.ptq import algorithm
from tercet.compress.ptq.row_blocks import WEIGHTS_AT_ONCE
from tercet.compress.skeleton import Skeleton
from tercet.formats import parse_scheme

_FLOAT_BYTES = 4
# bytes a weight of a block of rows that is rounded, packed and compared
_BLOCK_BYTES = 128 << 20
# a larger source is read a second time, layer by layer: it must not crowd out the work
_SHARE_FOR_SOURCE = 4
# a source of less is kept whatever the model's layers take
_SMALL_SOURCE = 256 << 20
# a weight in training, in float32: its latent, gradient, two moments, the best so far, its levels,
# its value and that one's gradient, and a mask
_TRAINED_BYTES = 8 * _FLOAT_BYTES + 1
# floats that a layer holds of each input and output of its linears until it has its gradients
_SAVED_PER_OUTPUT = 2
_GROUP = Path("/sys/fs/cgroup")
_CONTROL_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current"),
    (_GROUP / "memory/memory.limit_in_bytes", _GROUP / "memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes that a run is expected to hold at its peak.

    Attributes:
        process_bytes: resident already (interpreter, libraries).
        unit_bytes: weights of the unit that takes most, in float32 and packed.
        activation_bytes: hidden states of all calibration sequences, and what linears read there.
        statistics_bytes: Gram matrices of a group of linears and the work on the group.
        source_bytes: of the weights that are kept, those that are there at the peak.
        kept_bytes: weights that are kept in memory after the check, so that they are read once.
        on_gpu: the unit, activations and statistics are in a GPU's memory, and not in the sum.
    """

    process_bytes: int
    unit_bytes: int
    activation_bytes: int
    statistics_bytes: int
    source_bytes: int
    kept_bytes: int
    on_gpu: bool = False

    @property
    def total_bytes(self) -> int:
        """The sum of all parts that are there at the peak."""
        if self.on_gpu:
            return self.process_bytes + self.source_bytes
        work = self.unit_bytes + self.activation_bytes + self.statistics_bytes
        return self.process_bytes + work + self.source_bytes


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What one unit takes beside the process and the source."""

    weights: int = 0
    activations: int = 0
    statistics: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.statistics


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Calibration.

    Attributes:
        sequences, length: of the calibration tokens.
        streams: 2 where the uncompressed model's hidden states are followed too, else 1.
        width: of a hidden state.
    """

    sequences: int
    length: int
    streams: int
    width: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.sequences * self.length

    @property
    def in_batch(self) -> int:
        """Those that go through a layer at a time."""
        return min(batch_size(self.length), self.sequences) * self.length


def estimate(
    skeleton: Skeleton,
    rules: Mapping[str, Rule],
    *,
    before: Sequence[str],
    behind: Sequence[str],
    calibration: tuple[int, int] | None,
    streams: int,
    blockwise: Blockwise | None = None,
    table: str | None = None,
) -> Estimate:
    """The expected peak of compressing this model.

    Args:
        skeleton: the model.
        rules: of each module that is packed, by name.
        before: parameters that are none of a layer's and come first.
        behind: those behind the layers.
        calibration: [sequences, length] of the calibration, or None without one.
        streams: as Tokens has it.
        blockwise: how layers are trained, or None where they are not.
        table: the embedding that is quantized last, as the head that it is, too.
    """
    tokens = None
    if calibration is not None:
        width = int(getattr(skeleton.model.config, "hidden_size", 0))
        sequences, length = calibration
        tokens = Tokens(sequences=sequences, length=length, streams=streams, width=width)
    first = _embedding_work(skeleton, rules, before, tokens)
    names = skeleton.layer_names()
    works = [first, *(_layer_work(skeleton, rules, name, tokens) for name in names)]
    if blockwise is not None and tokens is not None:
        tuning = [_tuning_work(skeleton, rules, name, tokens, blockwise) for name in names]
        larger = [
            max(pair, key=lambda work: work.total) for pair in zip(works[1:], tuning, strict=True)
        ]
        works = [first, *larger]
    if behind:
        aims = 1 if tokens is not None and tokens.streams > 1 else 0
        works.append(_head_work(skeleton, rules, before, behind, tokens, aims=aims))
    if table is not None:
        others = [name for name in before if name != f"{table}.weight"]
        works.append(_head_work(skeleton, rules, others, [f"{table}.weight"], tokens, aims=0))
    kept = _keepable(skeleton, max(work.weights for work in works))
    needed_last = bool(behind) or table is not None
    held = [kept, *_kept_at_layers(skeleton, () if needed_last else before, kept)]
    held += [min(kept, _stored_bytes(skeleton, [*before, *behind]))] * (len(works) - len(held))
    peak, source = max(zip(works, held, strict=True), key=lambda found: found[0].total + found[1])
    return Estimate(
        process_bytes=psutil.Process().memory_info().rss,
        unit_bytes=peak.weights,
        activation_bytes=peak.activations,
        statistics_bytes=peak.statistics,
        source_bytes=source,
        kept_bytes=kept,
        on_gpu=skeleton.device.type == "cuda",
    )


def _embedding_work(
    skeleton: Skeleton, rules: Mapping[str, Rule], before: Sequence[str], tokens: Tokens | None
) -> _Work:
    weights = _float_bytes(skeleton, before)
    packed = sum(_packed_bytes(skeleton, rules, name) for name in _modules(before))
    hidden = 0 if tokens is None else tokens.streams * tokens.count * tokens.width
    block = min(_BLOCK_BYTES, 2 * weights) if packed else 0
    return _Work(weights=weights + packed, activations=_FLOAT_BYTES * hidden, statistics=block)


def _layer_work(
    skeleton: Skeleton, rules: Mapping[str, Rule], layer: str, tokens: Tokens | None
) -> _Work:
    """The most that a group of the layer's linears takes."""
    linears = _linears(skeleton, layer)
    names = [f"{layer}.{name}" for name, _ in skeleton.module(layer).named_parameters()]
    weights = 2 * _float_bytes(skeleton, names)
    packed = sum(_packed_bytes(skeleton, rules, name) for name in linears)
    worst = _Work(weights=weights + packed)
    for name, module in linears.items():
        if name not in rules:
            continue
        rows, columns = module.weight.shape
        found = _Work(
            weights=weights + packed,
            activations=_FLOAT_BYTES * _activations(linears.values(), columns, tokens),
            statistics=_group_bytes(rules[name], rows, columns, tokens),
        )
        worst = max(worst, found, key=lambda work: work.total)
    return worst


def _tuning_work(
    skeleton: Skeleton, rules: Mapping[str, Rule], layer: str, tokens: Tokens, blockwise: Blockwise
) -> _Work:
    """The training of a layer's linears together."""
    linears = _linears(skeleton, layer)
    shapes = [linears[name].weight.shape for name in linears if name in rules]
    weights = sum(rows * columns for rows, columns in shapes)
    names = [f"{layer}.{name}" for name, _ in skeleton.module(layer).named_parameters()]
    packed = sum(_packed_bytes(skeleton, rules, name) for name in linears)
    in_step = min(blockwise.batch, tokens.sequences) * tokens.length
    inside = sum(rows + columns for rows, columns in (m.weight.shape for m in linears.values()))
    # the states before the layer are kept until it is trained
    hidden = (tokens.streams + 1) * tokens.count * tokens.width
    return _Work(
        weights=2 * _float_bytes(skeleton, names) + packed,
        activations=_FLOAT_BYTES * (hidden + _SAVED_PER_OUTPUT * in_step * inside),
        statistics=_TRAINED_BYTES * weights,
    )


def _head_work(
    skeleton: Skeleton,
    rules: Mapping[str, Rule],
    before: Sequence[str],
    behind: Sequence[str],
    tokens: Tokens | None,
    *,
    aims: int,
) -> _Work:
    """Of linears behind the layers; `aims` is how many matrices say what each shall become."""
    weights = _float_bytes(skeleton, before) + _float_bytes(skeleton, behind)
    hidden = 0 if tokens is None else tokens.streams * tokens.count * tokens.width
    worst = _Work(weights=weights, activations=_FLOAT_BYTES * hidden)
    for name in _modules(behind):
        if name not in rules:
            continue
        rows, columns = skeleton.model.get_parameter(f"{name}.weight").shape
        own = _FLOAT_BYTES * aims * rows * columns + _packed_bytes(skeleton, rules, name)
        found = _Work(
            weights=weights + own,
            activations=_FLOAT_BYTES * hidden,
            statistics=_group_bytes(rules[name], rows, columns, tokens),
        )
        worst = max(worst, found, key=lambda work: work.total)
    return worst


def _linears(skeleton: Skeleton, layer: str) -> dict[str, nn.Linear]:
    named = cast("Iterable[tuple[str, nn.Module]]", skeleton.module(layer).named_modules())
    return {f"{layer}.{name}": one for name, one in named if isinstance(one, nn.Linear)}


def _activations(linears: Iterable[nn.Linear], columns: int, tokens: Tokens | None) -> int:
    """Floats that all batches hold when they wait at a linear of so many columns."""
    if tokens is None:
        return 0
    shapes = [cast("tuple[int, int]", tuple(linear.weight.shape)) for linear in linears]
    # the residual, and what the linear reads
    each = tokens.streams * tokens.width + tokens.width + columns
    if tokens.streams > 1:
        # what the uncompressed model's linears read, or make where that is less
        groups: dict[int, int] = {}
        for rows, read in shapes:
            groups[read] = groups.get(read, 0) + rows
        each += sum(min(rows, read) for read, rows in groups.items())
    inside = sum(rows for rows, _ in shapes)
    return tokens.count * each + tokens.in_batch * inside


def _group_bytes(rule: Rule, rows: int, columns: int, tokens: Tokens | None) -> int:
    """Of the statistics and the work on one linear [rows, columns]."""
    chosen = algorithm(rule.algorithm)
    at_once = min(rows * columns, max(WEIGHTS_AT_ONCE["cpu"], columns))
    work = _FLOAT_BYTES * chosen.weight_copies * at_once
    if tokens is None or not chosen.needs_inputs:
        return min(work, _BLOCK_BYTES)
    matrix = _FLOAT_BYTES * columns * columns
    statistics = matrix * (2 if tokens.streams > 1 and rows >= columns else 1)
    factors = matrix * chosen.gram_copies
    return statistics + max(factors, matrix * 2 + work)


def _keepable(skeleton: Skeleton, most: int) -> int:
    """Bytes of source weights to keep: no more than half of a unit's weights, if they are many.

    Beside work that is done on a GPU they crowd out nothing.
    """
    whole = _stored_bytes(skeleton, [name for name, _ in skeleton.model.named_parameters()])
    if skeleton.device.type == "cuda":
        return min(whole, free_bytes() // _SHARE_FOR_SOURCE)
    return min(whole, free_bytes() // _SHARE_FOR_SOURCE, max(most // 2, _SMALL_SOURCE))


def _kept_at_layers(skeleton: Skeleton, released: Sequence[str], kept: int) -> list[int]:
    """What of `kept` bytes is there at each layer, if all before it is released."""
    left = max(kept - _stored_bytes(skeleton, released), 0)
    found: list[int] = []
    for name in skeleton.layer_names():
        found.append(left)
        left = max(left - _stored_bytes(skeleton, _below(skeleton, name)), 0)
    return found


def _below(skeleton: Skeleton, module: str) -> list[str]:
    return [f"{module}.{name}" for name, _ in skeleton.module(module).named_parameters()]


def _modules(parameters: Iterable[str]) -> list[str]:
    return [name.removesuffix(".weight") for name in parameters if name.endswith(".weight")]


def _float_bytes(skeleton: Skeleton, parameters: Iterable[str]) -> int:
    return sum(_FLOAT_BYTES * skeleton.numbers(name) for name in parameters)


def _packed_bytes(skeleton: Skeleton, rules: Mapping[str, Rule], module: str) -> int:
    rule = rules.get(module)
    if rule is None or rule.format is None:
        return 0
    shape = skeleton.model.get_parameter(f"{module}.weight").shape
    bits = parse_scheme(rule.format).bits_per_weight((shape[0], shape[1]))
    return round(bits * shape[0] * shape[1] / 8)


def _stored_bytes(skeleton: Skeleton, parameters: Iterable[str]) -> int:
    """What the source's tensors of these parameters take in memory, each once."""
    source = skeleton.source
    names = {skeleton.stored_name(name) for name in parameters}
    return sum(prod(source.shape(name)) * source.dtype(name).itemsize for name in names if name)


def free_bytes(device: torch.device | None = None) -> int:
    """Memory that this process may still take.

    Of a GPU what is free and what torch holds unused; else of the host, and of its control group.
    """
    if device is not None and device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    free = psutil.virtual_memory().available
    for limit, used in _CONTROL_GROUPS:
        if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
            free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)
