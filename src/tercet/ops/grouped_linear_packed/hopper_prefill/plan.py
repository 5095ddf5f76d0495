"""Which tiles experts of many rows take on Hopper: those of launch.cuh."""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from tercet.errors import UnsupportedError
from tercet.packed_weight.hopper.tile_shape import parse_tile

MOST_EXPERTS = 512
FEW = 4  # rows of an expert, on average: above them
_TABLE = Path(__file__).parents[1] / "tuned" / "hopper_prefill" / "nvidia-h200.json"


class TileCost(BaseModel):
    """What a tile takes, as measured on an H200, of what the largest takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    relative_us: float


def _check_name(name: str) -> str:
    return parse_tile(name).name


_COSTS = TypeAdapter(dict[Annotated[str, AfterValidator(_check_name)], TileCost])


@cache
def read_costs(path: Path = _TABLE) -> Mapping[int, float]:
    """Rows of x of each tile in a file, and what it takes. UnsupportedError for an unknown tile."""
    try:
        found = _COSTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UnsupportedError(f"{path} has no costs of tiles: {error}") from error
    return {parse_tile(name).tokens: cost.relative_us for name, cost in found.items()}


def tile_rows(sizes: Mapping[str, int]) -> int:
    """Rows of a tile, if T rows come to E experts by chance: one tile holds the rows of nearly any
    expert, or half of an expert's last one is empty."""
    costs, each = read_costs(), sizes["T"] / sizes["E"]
    most = each + 2 * math.sqrt(each)

    def cost(rows: int) -> float:
        return costs[rows] * (1.0 if most <= rows else each / rows + 0.5)

    return min(costs, key=cost)
