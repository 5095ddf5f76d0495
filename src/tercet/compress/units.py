"""Units: what of a model is quantized and written together, and which rule of a plan each part has.

Unit 0 holds the parameters outside of the repeated layers, units 1..L the layers, and the last unit
the linears behind the layers, if there are any.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from tercet.compress.plan import Plan, Rule
from tercet.compress.ptq import algorithm
from tercet.compress.skeleton import Skeleton, name_of
from tercet.errors import PlanError
from tercet.formats import parse_scheme
from tercet.models.embedding_factor import knows_factor
from tercet.models.split_experts import SHARED_GATE


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of a model.

    Attributes:
        before: parameters of unit 0, and buffers that are saved.
        layers: parameters of each layer, and its buffers.
        behind: linears behind the layers.
        behind_parameters: their parameters.
    """

    before: list[str]
    layers: list[list[str]]
    behind: list[str]
    behind_parameters: list[str]

    @classmethod
    def of(cls, skeleton: Skeleton) -> "Units":
        """The units of that model."""
        outside = skeleton.outside()
        own = {name.rpartition(".")[0] for name in outside}
        behind = [
            name
            for name in packable(skeleton.model)
            if name in own and isinstance(skeleton.module(name), nn.Linear)
        ]
        parameters = {f"{name}.{part}" for name in behind for part in ("weight", "bias")}
        return cls(
            before=[name for name in outside if name not in parameters] + skeleton.buffers(None),
            layers=[
                [
                    *(f"{name}.{part}" for part, _ in skeleton.module(name).named_parameters()),
                    *skeleton.buffers(name),
                ]
                for name in skeleton.layer_names()
            ],
            behind=behind,
            behind_parameters=[name for name in outside if name in parameters],
        )

    @property
    def parameters(self) -> list[list[str]]:
        """The parameters of each unit, in the order in which units are written."""
        last = [self.behind_parameters] if self.behind else []
        return [self.before, *self.layers, *last]


@dataclass(frozen=True, kw_only=True)
class Matched:
    """What a plan says of a model's modules.

    Attributes:
        rules: of each module that is packed, by name.
        unmatched: what no rule matches and stays uncompressed: linears, embeddings, and weights of
            several linears in one.
        idle: the patterns of rules that match no module, or none before another rule does.
    """

    rules: dict[str, Rule]
    unmatched: list[str]
    idle: list[str]


def match_rules(skeleton: Skeleton, plan: Plan) -> Matched:
    """Finds the rule of each module.

    Raises:
        PlanError: no module is left to pack, or a rule's algorithm does not take its module.
    """
    rules: dict[str, Rule] = {}
    unmatched: list[str] = []
    used: set[int] = set()
    for name in packable(skeleton.model):
        rule = plan.rule(name)
        used.add(id(rule))
        if rule is None or _has_no_inputs(skeleton, name, rule):
            unmatched.append(name)
        elif not rule.keep:
            _check_rule(skeleton, plan, name, rule)
            rules[name] = rule
    if not rules:
        raise PlanError(
            f"plan {plan.name!r} matches no linear or embedding of {skeleton.source.reference}; "
            f"the modules are named like {unmatched[0]!r}"
            if unmatched
            else f"plan {plan.name!r} keeps every module of {skeleton.source.reference}"
        )
    unmatched += _stacked(skeleton)
    idle = [rule.match for rule in plan.rules if id(rule) not in used]
    return Matched(rules=rules, unmatched=unmatched, idle=idle)


def _has_no_inputs(skeleton: Skeleton, name: str, rule: Rule) -> bool:
    """Whether it is a small table in a layer, of positions, that a rule for the linears matches."""
    table = isinstance(skeleton.module(name), nn.Embedding)
    inside = any(part.isdigit() for part in name.split("."))
    return table and inside and not rule.keep and algorithm(rule.algorithm).needs_inputs


def _stacked(skeleton: Skeleton) -> list[str]:
    """Weights of several linears in one, as of experts that are not taken apart."""
    named = cast("Iterable[tuple[str, nn.Module]]", skeleton.model.named_modules())
    return [
        f"{name}.{part}"
        for name, module in named
        if not isinstance(module, _ConvNd)
        for part, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 2
    ]


def _check_rule(skeleton: Skeleton, plan: Plan, name: str, rule: Rule) -> None:
    module, chosen = skeleton.module(name), algorithm(rule.algorithm)
    if isinstance(module, nn.Embedding) and chosen.needs_inputs:
        tied = name == tied_embedding(skeleton.model)
        if not tied or chosen.transforms_inputs:
            raise PlanError(
                f"{name} is an embedding, which has no inputs for algorithm {rule.algorithm!r}: "
                f"use rtn or hqq" + (", or gptq for the inputs of the head" if tied else "")
            )
    in_layer = name.startswith(skeleton.layers_name + ".")
    if plan.blockwise and in_layer and not parse_scheme(str(rule.format)).element.integer:
        raise PlanError(
            f"{name}: blockwise trains integer levels, which format {rule.format!r} has not: "
            f"use ternary, nonary or an int format, or leave blockwise out of the plan"
        )


def plan_of(model: nn.Module, plan: Plan) -> Plan:
    """The plan without the rules that are for other models; PlanError where none is left."""
    return plan.of_model(tied_embedding(model) is not None)


def quantized_last(model: nn.Module, rules: Mapping[str, Rule]) -> str | None:
    """The tied embedding, if it is quantized for what it reads as the head, after all layers."""
    tied = tied_embedding(model)
    rule = rules.get(tied) if tied else None
    return tied if rule and algorithm(rule.algorithm).needs_inputs else None


def tied_embedding(model: nn.Module) -> str | None:
    """The embedding whose weight the head multiplies by, too; None where there is none."""
    anything = cast(Any, model)
    if not hasattr(anything, "get_output_embeddings"):
        return None
    try:
        table, head = anything.get_input_embeddings(), anything.get_output_embeddings()
    except NotImplementedError:  # what reads pictures and sounds
        return None
    if head is None or table is None or head.weight is not table.weight:
        return None
    return name_of(table, model)


def _is_plain(module: nn.Module) -> bool:
    """Whether it is a linear or an embedding, and computes what those do."""
    if isinstance(module, nn.Embedding):
        return knows_factor(module)
    if not isinstance(module, nn.Linear):
        return False
    return type(module).forward is nn.Linear.forward or _computes_product(module)


def _computes_product(module: nn.Linear) -> bool:
    """Whether a subclass with a forward of its own computes x W^T + b, tried on a few numbers."""
    weight = torch.tensor([[1.5, -2.0, 0.25], [0.5, 3.0, -1.0]])
    x = torch.tensor([[2.0, 1.0, -4.0]])
    has_bias = cast("nn.Parameter | None", module.bias) is not None
    bias = torch.tensor([0.75, -8.0]) if has_bias else None
    probe = copy.copy(module)
    given = {"weight": weight, "bias": bias}
    probe._parameters = {  # pyright: ignore[reportPrivateUsage]
        name: None if value is None else nn.Parameter(value, requires_grad=False)
        for name, value in given.items()
    }
    try:
        found: Any = probe.forward(x)
    # whatever it is for, it is for something else
    except Exception:  # noqa: BLE001
        return False
    return isinstance(found, Tensor) and torch.equal(found, nn.functional.linear(x, weight, bias))


def packable(model: nn.Module) -> list[str]:
    """List every linear and embedding that has its own weight and does what is known of it.

    A tied head and routers are left out.
    """
    own: dict[int, str] = {id(p): name for name, p in model.named_parameters()}
    return [
        name
        for name, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
        if _is_plain(module)
        and own.get(id(cast(Any, module).weight)) == f"{name}.weight"
        and not name.endswith(SHARED_GATE)
    ]
