"""The tiles of tile_shape.cuh by name: C++ and measured costs agree on "m128n64_cluster2"."""

import re
from dataclasses import dataclass
from functools import cache

from tercet.errors import UnsupportedError

_NAME = re.compile(
    r"m(?P<rows>\d+)n(?P<tokens>\d+)(_cluster(?P<cluster_size>\d+))?(_split(?P<split>\d+))?"
    r"(_warpgroups(?P<warpgroups>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class TileShape:
    """What one block computes: the template parameters of `Shape` that a launch chooses.

    Attributes:
        rows, tokens: of W and of x.
        cluster_size: blocks of different rows that receive the same tokens by TMA multicast.
        split: blocks of a cluster that split the tile's K among them.
        warpgroups: consumers, of four warps each.
    """

    rows: int
    tokens: int
    cluster_size: int = 1
    split: int = 1
    warpgroups: int = 2

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_size * self.split

    @property
    def name(self) -> str:
        """As in tables of measured costs; parameters that are not named have their defaults."""
        named = (("cluster", self.cluster_size, 1), ("split", self.split, 1))
        named += (("warpgroups", self.warpgroups, 2),)
        rest = "".join(f"_{word}{value}" for word, value, default in named if value != default)
        return f"m{self.rows}n{self.tokens}{rest}"

    @property
    def parameters(self) -> tuple[int, int, int, int, int]:
        """As a launcher in C++ takes them."""
        return self.rows, self.tokens, self.cluster_size, self.split, self.warpgroups


@cache
def parse_tile(name: str) -> TileShape:
    """The tile of that name. UnsupportedError where it is no tile's."""
    found = _NAME.fullmatch(name)
    shape = (
        TileShape(**{key: int(value) for key, value in found.groupdict().items() if value})
        if found
        else None
    )
    if shape is None or shape.name != name:
        raise UnsupportedError(
            f"no tile is named {name!r}: names are like m128n64, m128n64_cluster2, m128n64_split4 "
            "or m256n128_warpgroups4"
        )
    return shape
