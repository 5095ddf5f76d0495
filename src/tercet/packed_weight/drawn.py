"""Drawn: packed weights of random codes and what goes with them, at any size, of no model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tercet.errors import UnsupportedError
from tercet.formats import PackedTensor, parse_scheme
from tercet.formats.chunks import chunk_rows

_ROWS_AT_ONCE = 1024


def drawn_weight(scheme: str, n: int, k: int, seed: int, device: str) -> PackedTensor:
    """W [N, K] with codes, scales and zero points drawn on the device, not fitted to a weight.

    Scales lie between 2^-6 and 2^-2, where they are 8-bit floats on powers of two, which all of
    these hold. Packing goes in pieces of rows: it widens each code to eight bytes, 8 GB for a head
    of 70B.

    Raises:
        UnsupportedError: for a sparse scheme, which random codes do not fit.
    """
    parsed = parse_scheme(scheme)
    storage, scaling, levels = parsed.storage, parsed.scaling, parsed.element.levels
    if storage.name.startswith("sparse"):
        raise UnsupportedError(
            f"scheme {scheme!r} is sparse, random codes do not fit it: name a dense one in the "
            "workload, say 'ternary'"
        )
    generator = torch.Generator(device).manual_seed(seed)
    known = [code for code, level in enumerate(levels) if level == level]
    choices = torch.tensor(known, dtype=torch.uint8, device=device)
    codes = torch.empty((n, storage.row_bytes(k)), dtype=torch.uint8, device=device)
    for part in chunk_rows(n, _ROWS_AT_ONCE):
        some = (part.stop - part.start, k)
        drawn = torch.randint(len(known), some, generator=generator, device=device)
        codes[part] = storage.pack(choices[drawn])
    shape = scaling.scale_shape((n, k))
    scale = 2.0 ** torch.randint(-6, -2, shape, generator=generator, device=device)
    if scaling.torch_dtype.itemsize > 1:
        scale *= 1 + torch.rand(shape, generator=generator, device=device)
    zero = None
    if scaling.zero_torch_dtype is not None:
        zero = torch.randint(-1, 2, shape, generator=generator, device=device)
        zero = zero.to(scaling.zero_torch_dtype)
    return PackedTensor(
        codes=codes,
        scale=scale.to(scaling.torch_dtype),
        zero=zero,
        second=torch.tensor(0.5, device=device) if scaling.second_level else None,
        scheme=parsed,
        shape=(n, k),
    )


def drawn_bias(shape: tuple[int, ...], dtype: str | None, seed: int, device: str) -> Tensor | None:
    """Standard normal numbers in a dtype by its name; None where there is no name."""
    if dtype is None:
        return None
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(getattr(torch, dtype))


def options_of(scheme: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a case was made with, as options of a workload, of which drawn cases are made."""
    named: dict[str, Any] = {"scheme": scheme}
    for name, value in options.items():
        match name, value:
            case "bias" | "out", torch.dtype():
                named[name] = str(value)[6:]
            case "coded", True:
                named["codes"] = True
            case "activation" | "residual" | "row_weight", _ if value:
                named[name] = value
            case _:
                pass
    return named
