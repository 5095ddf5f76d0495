"""How calibration multiplies in float32."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch


@contextmanager
def fast_products() -> Generator[None, None, None]:
    """Within the block, float32 products on a CPU with AVX-512 are oneDNN's, not MKL's.

    MKL does not use AVX-512 on AMD's processors: on two cores of a Zen 5 a product of 1024 tokens
    takes 2.2 times as long as oneDNN's, at the same error of 4e-7. torch takes oneDNN where
    bfloat16 is allowed; a processor with AMX then rounds inputs to it (sums are float32), which
    moves the output of a layer of SmolLM2's shape by 6e-4: good for statistics, not for weights.
    """
    with _precision("bf16"):
        yield


@contextmanager
def exact_products() -> Generator[None, None, None]:
    """Within the block, which may lie in one of `fast_products`, no input is rounded."""
    with _precision("ieee"):
        yield


@contextmanager
def _precision(name: str) -> Generator[None, None, None]:
    settings = cast(Any, torch.backends.mkldnn).matmul
    before = settings.fp32_precision
    settings.fp32_precision = name
    try:
        yield
    finally:
        settings.fp32_precision = before
