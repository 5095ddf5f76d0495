"""Candidates: each module in each format, from one pass of calibration through the model.

The algorithms, the statistics and the order of work are those of `compress`. In the context of a
plan each layer is fitted to what the plan's layers before it give, as in `compress`; otherwise the
layers before it are uncompressed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tercet.compress.algorithm import Quantized, Statistics
from tercet.compress.allocate.fisher import proxy_nats
from tercet.compress.calibration.stream import Stream
from tercet.compress.plan import Plan, Rule
from tercet.compress.skeleton import Skeleton
from tercet.compress.unit_quantizer import UnitQuantizer
from tercet.compress.units import Units, quantized_last
from tercet.formats import parse_scheme
from tercet.models.input_transform import InputTransform

Pair = tuple[str, str]
"""The name of a module, and of a format."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One module in one format.

    Attributes:
        quantized: its weight, packed, in the host's memory.
        proxy_nats: the second-order proxy; None of an embedding, and where no token came.
    """

    quantized: Quantized
    proxy_nats: float | None


class Candidates:
    """Makes the candidates; the whole model is filled.

    Args:
        skeleton: the model.
        plan: algorithms, options and calibration.
        rules: of each module, by name; its format is that of the context.
        wanted: the pairs to make.
        in_context: leave each module as its rule has it; else as it was.
        fisher: of the linears' outputs, by name.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        plan: Plan,
        rules: Mapping[str, Rule],
        wanted: Iterable[Pair],
        *,
        in_context: bool,
        fisher: Mapping[str, Tensor],
    ) -> None:
        self.skeleton, self.plan, self.rules, self.fisher = skeleton, plan, rules, fisher
        self.in_context = in_context
        self.found: dict[Pair, Candidate] = {}
        self.transforms: dict[str, InputTransform] = {}
        self._wanted = set(wanted)
        self._context = {
            (name, parse_scheme(str(rule.format)).name) for name, rule in rules.items()
        }
        made = self._wanted | self._context if in_context else self._wanted
        self._by_format = {
            form: self._quantizer(form, [name for name, its in sorted(made) if its == form])
            for form in sorted({form for _, form in made})
        }
        self._putter = UnitQuantizer(skeleton, plan, rules)

    def _quantizer(self, form: str, names: list[str]) -> tuple[set[str], UnitQuantizer]:
        rules = {name: self.rules[name].model_copy(update={"format": form}) for name in names}
        plan = self.plan.model_copy(update={"rules": tuple(_distinct(rules))})
        return set(names), UnitQuantizer(self.skeleton, plan, rules)

    def make(self, tokens: Tensor, progress: Callable[[str], None]) -> None:
        """Fills `found`, and `transforms` of the context.

        Args:
            tokens: [sequences, length] of the calibration.
            progress: is told the name of each unit before its work.
        """
        units = Units.of(self.skeleton)
        progress("embeddings")
        teacher = None
        if self.in_context and self.plan.calibration.match_teacher:
            teacher = Stream.start(self.skeleton, tokens).hidden
        table = quantized_last(self.skeleton.model, self.rules)
        before = [name for name in self._modules(units.before) if name != table]
        self._put(self._each(before, lambda q, names: q.data_free(names)))
        stream = Stream.start(self.skeleton, tokens)
        stream.teacher = teacher
        for index, name in enumerate(self.skeleton.layer_names()):
            progress(name)
            self._layer(stream, index, self._modules(units.layers[index]))
        behind = self._modules(units.behind_parameters)
        if behind:
            progress("head")
            targets = {name: self.skeleton.module(name) for name in behind}
            for members, sums in stream.collect_after(
                self.skeleton, tokens, targets
            ).groups.items():
                self._put(self._group(members, sums.statistics()))
            self._put_unseen(behind)
        if table:
            progress("embeddings")
            self._put(self._each([table], lambda q, names: q.tied(stream, tokens, names, table)))

    def _modules(self, parameters: Iterable[str]) -> list[str]:
        own = set(parameters)
        return [name for name in self.rules if f"{name}.weight" in own]

    def _layer(self, stream: Stream, index: int, names: list[str]) -> None:
        layer = self.skeleton.layers[index]
        targets: dict[str, nn.Module] = {name: self.skeleton.module(name) for name in names}

        def quantize(
            members: tuple[str, ...], statistics: Statistics
        ) -> Mapping[str, InputTransform]:
            return self._put(self._group(members, statistics))

        stream.advance_quantizing(layer, index, targets, quantize)
        self._put_unseen(names)
        self._putter.drop_originals()

    def _put_unseen(self, names: list[str]) -> None:
        seen = {name for name, _ in self.found}
        missed = [name for name in names if name not in seen]
        self._put(self._each(missed, lambda q, some: q.unseen(some)))

    def _group(self, members: tuple[str, ...], statistics: Statistics) -> dict[str, Quantized]:
        return self._each(
            list(members), lambda q, names: q.group(tuple(names), statistics), statistics
        )

    def _each(
        self,
        names: list[str],
        quantize: Callable[[UnitQuantizer, list[str]], dict[str, Quantized]],
        statistics: Statistics | None = None,
    ) -> dict[str, Quantized]:
        """Every format of those modules; what the context makes of them."""
        context: dict[str, Quantized] = {}
        for form, (members, quantizer) in self._by_format.items():
            own = [name for name in names if name in members]
            results = quantize(quantizer, own) if own else {}
            for name, result in results.items():
                self._keep(name, form, result, statistics)
                if (name, form) in self._context:
                    context[name] = result
        return context

    def _keep(self, name: str, form: str, result: Quantized, statistics: Statistics | None) -> None:
        proxy = None
        if statistics is not None and name in self.fisher:
            weight = self._putter.weight(name)
            proxy = proxy_nats(weight, result, statistics.gram, self.fisher[name])
        self.found[name, form] = Candidate(
            quantized=moved(result, torch.device("cpu")), proxy_nats=proxy
        )

    def _put(self, context: Mapping[str, Quantized]) -> Mapping[str, InputTransform]:
        if not self.in_context:
            return {}
        transforms = self._putter.put(context)
        self.transforms.update(transforms)
        return transforms


def _distinct(rules: Mapping[str, Rule]) -> list[Rule]:
    """Equal rules once, as `Plan.rules.index` finds them."""
    found: list[Rule] = []
    for rule in rules.values():
        if rule not in found:
            found.append(rule)
    return found


def moved(result: Quantized, device: torch.device) -> Quantized:
    """The same in that device's memory."""
    packed, scale = result.packed, result.input_scale
    return replace(
        result,
        packed=replace(
            packed,
            codes=packed.codes.to(device),
            scale=packed.scale.to(device),
            zero=None if packed.zero is None else packed.zero.to(device),
            second=None if packed.second is None else packed.second.to(device),
        ),
        input_scale=None if scale is None else scale.to(device),
    )


def as_put(result: Quantized, device: torch.device) -> tuple[Tensor, InputTransform]:
    """The weight [N, K] that a module gets, float32 on the device, and its input's transform."""
    there = moved(result, device)
    transform = InputTransform(
        scale=there.input_scale, hadamard=there.hadamard, activation=there.activation
    )
    return there.packed.dequantize(), transform
