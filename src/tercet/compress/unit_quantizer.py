"""UnitQuantizer: the algorithms of a plan, applied to the modules of one unit in memory."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from tercet.compress.algorithm import Quantized, Statistics
from tercet.compress.blockwise.layer import tune_layer
from tercet.compress.blockwise.output_loss import Hidden
from tercet.compress.calibration.module_hooks import transforming
from tercet.compress.calibration.stream import Stream
from tercet.compress.plan import Plan, Rule
from tercet.compress.ptq import algorithm
from tercet.compress.skeleton import Skeleton
from tercet.compress.target import target_weights
from tercet.formats import parse_scheme
from tercet.models.input_transform import InputTransform


class UnitQuantizer:
    """Quantizes modules of a skeleton, each by its rule.

    Args:
        skeleton: the model; the modules that are asked for have their weights in memory.
        plan: whose rules and calibration these are.
        rules: of each module that is packed, by name.

    Attributes:
        vectors: norms and biases of the latest layer that were trained, by parameter, in the
            dtypes that the source has.
    """

    def __init__(self, skeleton: Skeleton, plan: Plan, rules: Mapping[str, Rule]) -> None:
        self._skeleton, self._plan, self._rules = skeleton, plan, rules
        self._originals: dict[str, Tensor] = {}
        self.vectors: dict[str, Tensor] = {}

    def weight(self, name: str) -> Tensor:
        """The original weight of a module that is in memory now."""
        if name in self._originals:
            return self._originals[name]
        return self._skeleton.model.get_parameter(f"{name}.weight").detach()

    def put(self, quantized: Mapping[str, Quantized]) -> dict[str, InputTransform]:
        """Gives modules their stored values; the transforms that their inputs need, by name."""
        transforms: dict[str, InputTransform] = {}
        for name, result in quantized.items():
            self._originals[name] = self.weight(name)
            device, scale = self._skeleton.device, result.input_scale
            self._skeleton.put(f"{name}.weight", result.packed.dequantize().to(device))
            transform = InputTransform(
                scale=None if scale is None else scale.to(device),
                hadamard=result.hadamard,
                activation=result.activation,
            )
            if not transform.identity:
                transforms[name] = transform
        return transforms

    def drop_originals(self) -> None:
        """Of modules that have their stored values: from now on those are their weights."""
        self._originals.clear()
        self.vectors.clear()

    def data_free(self, names: list[str]) -> dict[str, Quantized]:
        """Modules that no inputs are known of."""
        results: dict[str, Quantized] = {}
        for name in names:
            results.update(self._apply(self._rules[name], {name: self.weight(name)}, None))
        return results

    def overwrite(self, quantized: Mapping[str, Quantized]) -> None:
        """Gives modules their stored values in the memory of their weights, which is lost."""
        for name, result in quantized.items():
            result.packed.dequantize(out=self.weight(name))

    def layer(self, stream: Stream | None, index: int, names: list[str]) -> dict[str, Quantized]:
        """Modules of one layer, by what the stream's inputs to them are; the stream goes on.

        They have their stored values afterwards.
        """
        results: dict[str, Quantized] = {}
        before = stream.hidden.clone() if stream is not None and self._plan.blockwise else None
        if stream is not None:

            def quantize(
                members: tuple[str, ...], statistics: Statistics
            ) -> Mapping[str, InputTransform]:
                found = self.group(members, statistics)
                results.update(found)
                return self.put(found)

            targets = {name: self._skeleton.module(name) for name in names}
            stream.advance_quantizing(self._skeleton.layers[index], index, targets, quantize)
        missed = [name for name in names if name not in results]
        found = self.data_free(missed) if stream is None else self.unseen(missed)
        self.put(found)
        results.update(found)
        if stream is not None and before is not None and results:
            return self._tune(stream, index, results, before)
        return results

    def _tune(
        self, stream: Stream, index: int, quantized: dict[str, Quantized], before: Tensor
    ) -> dict[str, Quantized]:
        """The layer's modules trained together; the stream goes on with what they became.

        Args:
            stream: behind the layer.
            index: of the layer.
            quantized: what training begins with.
            before: the compressed model's hidden states before the layer.
        """
        settings, teacher = self._plan.blockwise, stream.teacher
        assert settings is not None
        assert teacher is not None
        linears = {name: self._skeleton.module(name) for name in quantized}
        with transforming(linears, self.put(quantized)):
            tuned = tune_layer(
                self._skeleton,
                index,
                stream.calls[index],
                quantized,
                self._originals,
                Hidden(inputs=before, targets=teacher),
                settings,
            )
            self.put(tuned.quantized)
            self.put_vectors(tuned.vectors)
            stream.hidden = before
            stream.advance(self._skeleton.layers[index], index)
        self.vectors.update(tuned.vectors)
        return tuned.quantized

    def put_vectors(self, vectors: Mapping[str, Tensor]) -> None:
        """Gives parameters that are not packed these values."""
        for name, value in vectors.items():
            self._skeleton.put(name, value.to(self._skeleton.device).float())

    def behind(
        self, stream: Stream | None, tokens: Tensor | None, names: list[str]
    ) -> dict[str, Quantized]:
        """Modules behind the layers, by the hidden states that leave the last one."""
        if stream is None or tokens is None or not names:
            return self.data_free(names)
        targets = {name: self._skeleton.module(name) for name in names}
        collected = stream.collect_after(self._skeleton, tokens, targets)
        results: dict[str, Quantized] = {}
        for members, sums in collected.groups.items():
            results.update(self.group(members, sums.statistics()))
        results.update(self.unseen([name for name in names if name not in results]))
        return results

    def tied(
        self, stream: Stream, tokens: Tensor, names: list[str], table: str
    ) -> dict[str, Quantized]:
        """Modules of unit 0, of which one embedding is the head, too, by what the head reads.

        Its weights stay what it aims at, for rows are looked up in it as well.
        """
        head = cast(Any, self._skeleton.model).get_output_embeddings()
        collected = stream.collect_after(self._skeleton, tokens, {table: head})
        (sums,) = collected.groups.values()
        rule, weights = self._rules[table], {table: self.weight(table)}
        found = self._apply(rule, weights, sums.statistics())
        return {**self.data_free([name for name in names if name != table]), **found}

    def group(self, members: tuple[str, ...], statistics: Statistics) -> dict[str, Quantized]:
        """Linears that share an input, each by its rule."""
        results: dict[str, Quantized] = {}
        by_rule: dict[int, list[str]] = {}
        for name in members:
            by_rule.setdefault(self._plan.rules.index(self._rules[name]), []).append(name)
        for rule, sharing in by_rule.items():
            weights = target_weights(
                {name: self.weight(name) for name in sharing},
                statistics,
                self._plan.calibration.match_teacher,
            )
            results.update(self._apply(self._plan.rules[rule], weights, statistics))
        return results

    def unseen(self, names: list[str]) -> dict[str, Quantized]:
        """Linears that calibration never reached (an expert without tokens, a side branch)."""
        results: dict[str, Quantized] = {}
        for name in names:
            weight = self.weight(name)
            ones = torch.ones(weight.shape[1], dtype=torch.float32, device=weight.device)
            blind = Statistics(gram=ones.diag(), absmax=ones, absmean=ones)
            results.update(self._apply(self._rules[name], {name: weight}, blind))
        return results

    def _apply(
        self, rule: Rule, weights: dict[str, Tensor], statistics: Statistics | None
    ) -> dict[str, Quantized]:
        assert rule.format is not None
        chosen = algorithm(rule.algorithm)
        return chosen.quantize(
            weights, statistics, parse_scheme(rule.format), rule.parsed_options()
        )
