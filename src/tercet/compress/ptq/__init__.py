"""Post-training quantization: one file an algorithm, each a function of tensors.

A file that exports ALGORITHM is found by the algorithm's name.
"""

import importlib
import pkgutil
from functools import cache

from tercet.compress.algorithm import Algorithm
from tercet.errors import PlanError, unknown_name


@cache
def algorithms() -> dict[str, Algorithm]:
    """Every algorithm of this folder by name."""
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        algorithm = getattr(importlib.import_module(module.name), "ALGORITHM", None)
        if isinstance(algorithm, Algorithm):
            found[algorithm.name] = algorithm
    return found


def algorithm(name: str) -> Algorithm:
    """The algorithm of that name; PlanError offers the nearest ones."""
    if name not in algorithms():
        raise PlanError(unknown_name("algorithm", name, algorithms()))
    return algorithms()[name]
