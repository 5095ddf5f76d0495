"""Together: a step's codes of many weights at once, where they were."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.compress.qat.weight import QuantizedWeight
from tercet.kernel.select import choose
from tercet.ops.fake_quantize.op import OP


@torch.no_grad()
def refresh_together(modules: Sequence[QuantizedWeight], seed: int) -> set[QuantizedWeight]:
    """As `refresh` with a share of 1, without counting, of those of the modules that can be.

    Args:
        modules: that have codes.
        seed: of the first; that of each is one more than that of the one before.

    Returns:
        Which it refreshed.
    """
    groups: dict[object, list[QuantizedWeight]] = {}
    for module in modules:
        if _plain(module):
            weight = module.weight
            key = (
                module.scheme,
                module.options.method,
                weight.shape[1],
                weight.dtype,
                weight.device,
            )
            groups.setdefault(key, []).append(module)
    done = {module for group in groups.values() if len(group) > 1 for module in group}
    for group in groups.values():
        if len(group) > 1:
            # triton may be missing elsewhere
            from tercet.ops.fake_quantize.many import fake_quantize_many

            fake_quantize_many(
                [module.weight.data for module in group],
                [module.codes for module in group],
                [module.scale for module in group],
                group[0].scheme.name,
                group[0].options.method,
            )
    seeds, numbers = list[Tensor](), list[int]()
    for index, module in enumerate(modules):
        if module in done:
            module.renewed()
            if module.seed is not None:
                seeds.append(module.seed)
                numbers.append(seed + index)
    if seeds:
        first, last = numbers[0], numbers[-1] + 1
        counted = torch.arange(first, last, device=seeds[0].device).unbind()
        values = [counted[number - first] for number in numbers]
        torch._foreach_copy_(seeds, values)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return done


def _plain(module: QuantizedWeight) -> bool:
    """Whether the kernel may write the codes where they are."""
    weight, codes, scale = module.weight.data, *module.made()
    if codes is None or scale is None or not (module.products_of_codes and weight.is_cuda):
        return False
    if type(weight) is not Tensor or not _in_triton(weight.dtype):
        return False
    from tercet.ops.fake_quantize.many import fit

    return fit(weight, codes, scale, module.scheme.name, module.options.method)


def _in_triton(dtype: torch.dtype) -> bool:
    return choose(OP, "cuda", dtype).forward.__module__ == OP.implementation("triton").module
