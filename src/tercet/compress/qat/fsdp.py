"""Parallel: a student's layers sharded over devices by FSDP2, their weights gathered as codes."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tercet.compress.qat.sharding.weights import local, shard_parameter
from tercet.compress.qat.student import Student
from tercet.compress.qat.weight import QuantizedWeight
from tercet.errors import PlanError


def shard(student: Student, mesh: DeviceMesh, *, keep_codes: bool = False) -> None:
    """Shards every layer of a student over a one-dimensional mesh, in place.

    In a layer, weights of products of codes are gathered as packed codes, all else (norms, what a
    plan keeps) as it is. What lies outside the layers (embeddings, head, last norm) stays whole on
    each device: `reduce_outside` averages its gradients, once a step.

    Args:
        student: whose layers.
        mesh: of the devices.
        keep_codes: whether what was gathered for a forward pass stays until the backward pass, a
            byte a weight, instead of being gathered once more. Each forward pass needs its
            backward pass then.

    Raises:
        PlanError: a layer's module is quantized without products of codes, or cannot be cut.
    """
    layers = student.layers()
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for name, module in student.quantized.items():
        if id(module.weight) not in inside:
            continue
        if module.options.activation is None:
            raise PlanError(
                f"{name} over several devices: layers are gathered as the codes that products "
                f"read: give its rule activation: int8_token, as the plan ternary-a8 does"
            )
        module.weight = shard_parameter(module.weight, module.scheme, mesh.size())
        _forget_codes(module)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not keep_codes)
    rest = {p for p in student.model.parameters() if not isinstance(p, DTensor)}
    base = cast(nn.Module, cast(Any, student.model).base_model)
    fully_shard(base, mesh=mesh, ignored_params=rest)


@torch.no_grad()
def gather(student: Student) -> None:
    """Undoes `shard`: every parameter whole on each device, to be packed; it trains no more."""
    for name, parameter in list(student.model.named_parameters()):
        if not isinstance(parameter, DTensor):
            continue
        mesh = parameter.device_mesh
        whole = DTensor.from_local(
            local(parameter),
            mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        ).full_tensor()
        module, _, part = name.rpartition(".")
        setattr(student.model.get_submodule(module), part, nn.Parameter(whole))
    for module in student.quantized.values():
        _forget_codes(module)


def _forget_codes(module: QuantizedWeight) -> None:
    """A refresh compares its codes with the last, which are of other rows."""
    module.register_buffer("codes", None, persistent=False)


@torch.no_grad()
def reduce_outside(student: Student, mesh: DeviceMesh) -> None:
    """The mean over devices of the gradients that FSDP does not reduce."""
    for parameter in student.parameters():
        if parameter.grad is not None and not isinstance(parameter, DTensor):
            dist.all_reduce(parameter.grad, group=mesh.get_group())
            parameter.grad /= mesh.size()


@torch.no_grad()
def clip_gradients(student: Student, mesh: DeviceMesh, limit: float) -> Tensor:
    """Scales gradients down to a norm of `limit` over all devices; the norm before."""
    cut: list[Tensor] = []
    whole: list[Tensor] = []
    for parameter in student.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor):
            cut.append(local(grad))
        elif grad is not None:
            whole.append(grad)
    square = _square(cut, student.device)
    dist.all_reduce(square, group=mesh.get_group())
    norm = (square + _square(whole, student.device)).sqrt()
    # one launch for all, as in torch's own clip_grad_norm_
    cast(Any, torch)._foreach_mul_(cut + whole, (limit / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _square(grads: list[Tensor], device: torch.device) -> Tensor:
    """The sum of all squares, float32 []."""
    return nn.utils.get_total_norm(grads).to(device).square()
