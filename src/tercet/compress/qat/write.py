"""What was trained, as a packed checkpoint: the same files that `compress` writes."""

from typing import Any

from tercet.checkpoints.packed.layout import Manifest
from tercet.checkpoints.packed.write import PackedWriter
from tercet.compress.algorithm import Quantized
from tercet.compress.plan import Plan, Rule
from tercet.compress.qat.student import Student
from tercet.compress.skeleton import Skeleton
from tercet.compress.unit_file import stored_parts


def units_of(skeleton: Skeleton) -> int:
    """What lies outside the layers, and each layer."""
    return 1 + len(skeleton.layers)


def write_student(
    skeleton: Skeleton, student: Student, plan: Plan, writer: PackedWriter
) -> Manifest:
    """Writes every unit and the manifest, and moves the directory into place.

    Args:
        skeleton: of the model that was trained.
        student: after a `refresh` at share 1.
        plan: the training plan.
        writer: for as many units as `units_of`.
    """
    parameters = dict(student.model.named_parameters())
    steps = {f"{name}.step" for name in student.quantized}
    layers = skeleton.layer_names()
    for unit in range(units_of(skeleton)):
        prefix = f"{layers[unit - 1]}." if unit else None
        names = [
            name
            for name in parameters
            if name not in steps
            and (
                name.startswith(prefix)
                if prefix
                else not name.startswith(f"{skeleton.layers_name}.")
            )
        ]
        buffers = skeleton.buffers(layers[unit - 1] if unit else None)
        _write_unit(unit, names, buffers, skeleton, student, plan, writer)
    config: dict[str, Any] = {
        **skeleton.source.config,
        "architectures": [type(skeleton.model).__name__],
    }
    return writer.finish(config)


def _write_unit(
    unit: int,
    names: list[str],
    buffers: list[str],
    skeleton: Skeleton,
    student: Student,
    plan: Plan,
    writer: PackedWriter,
) -> None:
    quantized: dict[str, Quantized] = {}
    rules: dict[str, Rule] = {}
    for name in names:
        module = name.rpartition(".")[0]
        if module in student.quantized and name.endswith(".weight"):
            rule = plan.rule(module)
            assert rule is not None
            one = student.quantized[module]
            rules[module] = rule
            quantized[module] = Quantized(packed=one.pack(), activation=one.options.activation)
    tensors, entries, modules = stored_parts(
        quantized, rules, lambda module: skeleton.read(f"{module}.weight")
    )
    for name in names:
        module, _, part = name.rpartition(".")
        if part != "weight" or module not in quantized:
            stored = skeleton.stored_name(name)
            assert stored is not None
            trained = student.model.get_parameter(name).detach().cpu()
            trained = trained.to(skeleton.source.dtype(stored))
            tensors[name] = skeleton.as_stored(name, trained)
    for name in buffers:
        value, stored = student.model.get_buffer(name).cpu(), skeleton.read_stored(name)
        tensors[name] = value.to(stored.dtype)
    writer.write(unit, tensors, entries, modules)
