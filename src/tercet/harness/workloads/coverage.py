"""Coverage: whether an op's cases include the sizes and dtypes that often break kernels."""

import torch
from torch import Tensor

from tercet.harness.finding import Finding
from tercet.kernel.contract import Op


def coverage(op: Op, seed: int) -> Finding:
    """Whether some case has an axis of size 0, of size 1, an odd one, and each declared dtype."""
    sizes, dtypes = set[int](), set[torch.dtype]()
    names = {spec.name for spec in op.of_role("input")}
    for case in op.cases:
        prepared = op.prepare(case.make(seed))
        for name in names:
            value = prepared.get(name)
            if isinstance(value, Tensor):
                sizes |= set(value.shape)
                dtypes.add(value.dtype)
    missing = [word for word, size in (("0", 0), ("1", 1)) if size not in sizes]
    if not any(size % 2 and size > 1 for size in sizes):
        missing.append("an odd number")
    gaps = [f"no case has an axis of size {size}" for size in missing]
    declared = {dtype for spec in op.of_role("input") for dtype in spec.dtypes}
    gaps += [f"no case has {dtype}" for dtype in sorted(declared - dtypes, key=str)]
    return Finding(
        implementation="*",
        case="*",
        check="coverage",
        passed=not gaps,
        message="; ".join(gaps) + ("; add such cases to cases.py" if gaps else ""),
    )
