"""swap: the linears and embeddings of a model become ones that train in their format."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from tercet.compress.plan import Plan
from tercet.compress.ptq.qat import Options
from tercet.compress.ptq.qat_codes import SMALLEST_STEP
from tercet.compress.qat.batch import group_batches, make
from tercet.compress.qat.embedding import QatEmbedding, TiedHead
from tercet.compress.qat.linear import QatLinear
from tercet.compress.qat.plan import training_plan
from tercet.compress.qat.sharding.weights import local
from tercet.compress.qat.weight import QuantizedWeight
from tercet.compress.units import packable, plan_of
from tercet.errors import PlanError
from tercet.formats import parse_scheme

Quantized = dict[str, QuantizedWeight]
_MADE = ("step", "codes", "scale", "values", "seed")


def swap(model: nn.Module, plan: str | Plan, dtype: torch.dtype = torch.float32) -> Quantized:
    """Puts a QatLinear or QatEmbedding in the place of each module that the plan gives a format.

    The parameters stay the same objects, under the same names, so an optimizer or a state dict of
    the model still fits; learned steps are added as `NAME.step`. What the plan keeps, or has no
    rule for, is left alone. A head that is tied to a swapped embedding multiplies by its values.

        quantized = swap(AutoModelForCausalLM.from_pretrained(...), "ternary")
        for each step:
            refresh(quantized)
            loss.backward()                  # as many microbatches as you like
            finish_gradients(quantized)
            optimizer.step()

    Args:
        model: of transformers, or any module with linears.
        plan: a shipped plan, a format, a plan file or a Plan; `training_plan` of it is used.
        dtype: of the values that products read.

    Returns:
        The new modules by name.

    Raises:
        PlanError: no module gets a format, or one cannot be trained.
    """
    plan = plan_of(model, training_plan(plan))
    quantized: Quantized = {}
    shared = _sharers(model)
    for name in packable(model):
        rule = plan.rule(name)
        if rule is None or rule.format is None:
            continue
        old = model.get_submodule(name)
        options = cast(Options, rule.parsed_options())
        scheme = parse_scheme(rule.format)
        if isinstance(old, nn.Embedding):
            if options.activation is not None:
                raise PlanError(f"{name} is an embedding, which has no input to quantize")
            new = QatEmbedding(name, old, scheme, options, dtype)
        else:
            new = QatLinear(name, cast(nn.Linear, old), scheme, options, dtype)
        new.train(old.training)
        model.set_submodule(name, new)
        quantized[name] = new
        for other in shared.get(id(old.weight), []):
            if other != name and isinstance(new, QatEmbedding):
                bias = cast(
                    "nn.Parameter | None", getattr(model.get_submodule(other), "bias", None)
                )
                model.set_submodule(other, TiedHead(new, bias))
    if not quantized:
        raise PlanError(
            f"plan {plan.name!r} gives no linear or embedding of {type(model).__name__} a format"
        )
    # DistributedDataParallel averages the gradients of weights; those of steps follow from them,
    # and codes are made of equal weights
    own = [f"{name}.{part}" for name in quantized for part in _MADE]
    cast(Any, model)._ddp_params_and_buffers_to_ignore = own
    return quantized


def find_quantized(model: nn.Module) -> Quantized:
    """The modules that `swap` put into a model, by name; also of a copy, or one that was unpickled.

    Args:
        model: what `swap` was given, or a copy of it.
    """
    modules = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    return {name: module for name, module in modules if isinstance(module, QuantizedWeight)}


@torch.no_grad()
def refresh(
    quantized: Quantized, share: float = 1.0, step: int = 0, counting: bool = True
) -> tuple[Tensor, int]:
    """Codes of all modules, anew; (codes that changed, int64 [], of how many).

    Args:
        quantized: of `swap`.
        share: of the ramp: 1 for quantized weights alone.
        step: what random rounding in the step to come is seeded with.
        counting: whether changed codes are counted, which reads old and new ones again; otherwise
            none changed.
    """
    for index, module in enumerate(quantized.values()):
        module.prepare(share, step * len(quantized) + index)
    steps = [local(module.step) for module in quantized.values() if module.step is not None]
    if steps:
        # one that is not positive learns nothing any more
        cast(Any, torch)._foreach_clamp_min_(steps, SMALLEST_STEP)
    batches, alone = group_batches(quantized.values())
    found = [make(batch, counting) for batch in batches]
    found += [module.make(counting) for module in alone]
    changed = [each for each in found if each is not None]
    # of a weight that is cut over devices, the rows that lie here
    count = sum(module.codes.numel() for module in quantized.values())
    if not changed:
        return torch.zeros((), dtype=torch.int64, device=_device(quantized)), count
    return torch.stack(changed).sum(), count


def finish_gradients(quantized: Quantized) -> None:
    """Gradients of values to those of weights and steps, once a step before they are clipped."""
    for module in quantized.values():
        module.finish_gradient()


def _device(quantized: Quantized) -> torch.device:
    return next(iter(quantized.values())).codes.device


def _sharers(model: nn.Module) -> dict[int, list[str]]:
    """Names of linears by the identity of their weight, for those that share one."""
    found: dict[int, list[str]] = {}
    for name, module in cast("Iterable[tuple[str, nn.Module]]", model.named_modules()):
        if isinstance(module, nn.Linear | nn.Embedding):
            found.setdefault(id(module.weight), []).append(name)
    return {key: names for key, names in found.items() if len(names) > 1}
