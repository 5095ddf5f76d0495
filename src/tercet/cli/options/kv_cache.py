"""The option that says how keys and values are kept; without torch."""

from typing import Annotated

import typer

from tercet.errors import UnsupportedError, unknown_name

# those of `packed_weight.cached_rows`, which needs torch
KV_CACHE_DTYPES = ("int8", "fp8_e4m3", "int4")


def _check(name: str | None) -> str | None:
    if name is not None and name not in KV_CACHE_DTYPES:
        raise UnsupportedError(unknown_name("dtype of a key-value cache", name, KV_CACHE_DTYPES))
    return name


KvCacheDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-dtype",
        callback=_check,
        help="Keep keys and values in 8 bits, as int8 or fp8_e4m3 with a scale for each token and "
        "head, or in 4, int4 with scales of groups of 32. Default: the dtype of activations.",
    ),
]
