"""Promises: what an op's fake and schema say of its results, and how results differ from it.

A fake reads no values: what it returns follows from shapes, strides, dtypes and plain values of the
arguments alone. A check calls an op hundreds of times with the same ones, so a fake is run once for
them; running it at each call took a quarter of the check of a torch implementation.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

_KEPT = 512


class _Like(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


class _Plain(NamedTuple):
    """Another value, with its type: 1, 1.0 and True are equal, and may promise different dtypes."""

    kind: type
    value: Any


def broken_promises(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any
) -> list[str]:
    """Where dtypes, shapes or strides of a registered op's results differ from its fake's.

    And which of them lie in memory of an argument, or of a result before, though its schema names
    no alias: torch.compile takes memory for free after the last use of what it belongs to.
    """
    names, found = tuple(kwargs), tree_leaves(results)
    promised = _promised(func, _described(args), names, _described(list(kwargs.values())))
    broken = [
        f"{func} returned {unlike} as result {at}"
        for at, (a, b) in enumerate(zip(found, promised, strict=True))
        if isinstance(a, Tensor) and b is not None and (unlike := unlike_promised(a, b))
    ]
    given = [_reach(each) for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    says = [each.alias_info is not None for each in func._schema.returns]
    others = list[tuple[int, int]]()
    # what only writes in place has a leaf that is None, and no result
    for at, (each, aliased) in enumerate(zip(found, says, strict=False)):
        if not isinstance(each, Tensor) or aliased:
            continue
        reach = _reach(each)
        for owner, taken in (("an argument", given), ("another result", others)):
            if _lies_in(reach, taken):
                broken.append(f"{func} returned memory of {owner} as result {at}")
        others.append(reach)
    return broken


def _reach(tensor: Tensor) -> tuple[int, int]:
    """The addresses that a tensor begins and ends at; none between them where it is empty."""
    if not tensor.numel():
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * step for size, step in steps)
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.element_size()


def _lies_in(reach: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    begin, end = reach
    return any(max(begin, first) < min(end, last) for first, last in others)


def unlike_promised(found: Tensor, promised: Tensor) -> str:
    """How a result differs from what its fake promises, in dtype, shape or strides; or empty.

    Strides count where an axis has more than one element, as for torch.compile.
    """
    if found.dtype != promised.dtype or found.shape != promised.shape:
        return (
            f"{found.dtype} {list(found.shape)}, its fake promises {promised.dtype} "
            f"{list(promised.shape)}"
        )
    strides = [
        (a, b)
        for a, b, size in zip(found.stride(), promised.stride(), found.shape, strict=True)
        if size > 1
    ]
    if found.numel() and any(a != b for a, b in strides):
        return (
            f"strides {list(found.stride())} of {list(found.shape)}, its fake promises "
            f"{list(promised.stride())}"
        )
    return ""


@lru_cache(maxsize=_KEPT)
def _promised(
    func: Any, args: tuple[Any, ...], names: tuple[str, ...], values: tuple[Any, ...]
) -> list[Tensor | None]:
    """The results of the fake, as tensors without elements; None for what is no tensor."""
    with FakeTensorMode():
        keywords = dict(zip(names, map(_fake, values), strict=True))
        results = tree_leaves(func(*map(_fake, args), **keywords))
    return [
        torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="meta")
        if isinstance(each, Tensor)
        else None
        for each in results
    ]


def _described(value: Any) -> Any:
    """What a fake sees of a value, so that it can be looked up."""
    if isinstance(value, Tensor):
        return _Like(
            tuple(value.shape),
            value.stride(),
            int(value.storage_offset()),
            value.dtype,
            value.device,
        )
    if isinstance(value, list | tuple):
        return tuple(map(_described, cast(Sequence[Any], value)))
    return _Plain(type(value), value)


def _fake(described: Any) -> Any:
    """The value of a description; a tensor, in the FakeTensorMode that is on."""
    if isinstance(described, _Like):
        shape, stride, offset, dtype, device = described
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        whole = torch.empty(offset + max(reach, 0), dtype=dtype, device=device)
        return whole.as_strided(shape, stride, offset)
    if isinstance(described, _Plain):
        return described.value
    return [_fake(each) for each in described]
