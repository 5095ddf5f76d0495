"""How the products of linear_qat are scheduled on Hopper: clusters and rasterization."""

from functools import cache

import torch

from tercet.kernel.launch import multiprocessors
from tercet.kernel.tuned import Configuration, Direction, configuration

# CLUSTER: 0 single blocks, 1 two above each other, 2 two by two, 3 two beside each other, 4 two and
# 5 four that split a tile's K. SWIZZLE: rows of tiles that are rasterized together
CONFIGURATION = {"CLUSTER": 1, "SWIZZLE": 8}
_TILE, _STAGE = (128, 256), 128
# of a sum, to each block that shares it: less, and adding up takes longer than it saves
_LEAST_STAGES = 8


def launch_configuration(
    m: int, n: int, k: int, device: torch.device, direction: Direction
) -> Configuration:
    """How the product [M, K] by [N, K] is launched: tuned, or the default for its size."""
    default = default_configuration(m, n, k, multiprocessors(device))
    return configuration("linear_qat", "hopper", {"M": m, "N": n, "K": k}, default, direction)


@cache
def default_configuration(m: int, n: int, k: int, processors: int) -> Configuration:
    """Without a tuned table."""
    return {**CONFIGURATION, "CLUSTER": _cluster(m, n, k, processors)}


def _cluster(m: int, n: int, k: int, processors: int) -> int:
    """Blocks share tiles where there are so few that most processors would be idle."""
    tiles = -(-m // _TILE[0]) * -(-n // _TILE[1])
    # clusters of four do not reach all processors
    for shape, parts, reached in ((5, 4, 0.75), (4, 2, 1.0)):
        if tiles * parts <= processors * reached and k >= parts * _LEAST_STAGES * _STAGE:
            return shape
    return CONFIGURATION["CLUSTER"]
