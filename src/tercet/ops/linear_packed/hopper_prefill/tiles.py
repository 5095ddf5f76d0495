"""The tiles of launch.cuh, and what they took on an H200: `tuned/hopper_prefill/DEVICE.json`.

The file lists tiles by name for what x is multiplied as. Of plans that are expected to take equally
long, that of the first tile wins.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from tercet.errors import UnsupportedError
from tercet.packed_weight.hopper.tile_shape import parse_tile

Kind = Literal["int8", "float", "scaled", "fp8"]
_TABLE = Path(__file__).parents[1] / "tuned" / "hopper_prefill" / "nvidia-h200.json"


def _check_name(name: str) -> str:
    return parse_tile(name).name


class _Measured(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TileCost(_Measured):
    """What one tile takes.

    Attributes:
        stage_us: of 128 columns of ternary codes (fp8 x: of 8-bit codes).
        result_us: from sums to y, as far as nothing hides it.
        more_us: bits of a code -> what a stage takes longer: two lanes read each word of 8-bit
            codes and convert it, and four times the bytes take more power.
        groups: whether it exists for scales of groups too.
    """

    stage_us: float
    result_us: float
    more_us: dict[int, float]
    groups: bool


class KindCost(_Measured):
    """The tiles for x that is multiplied as int8, as a 16-bit float, as one by codes that were
    multiplied by the scales of their groups, or as fp8_e4m3.

    Attributes:
        stream_k_stage_us: bits of a code -> what a stage of a tile that several clusters share
            takes longer, for no other block reads its columns then.
        tiles: by name.
    """

    stream_k_stage_us: dict[int, float]
    tiles: dict[Annotated[str, AfterValidator(_check_name)], TileCost]


class Costs(_Measured):
    """Fitted to times on one device: they name the fastest plan but for a percent or two.

    Attributes:
        start_us: of a launch.
        overlap_us: won where two such kernels have room at once.
        bytes_per_us: of packed weights from memory.
        stream_k_us: counters set to zero, partial sums written, others' waited for.
        partial_sum_us: of one partial sum of another cluster.
        scaling_us: of a sum and group of scales.
        clusters_of_four: share of the multiprocessors that they reach: 32 clusters of four blocks
            ran in two rounds on 132 multiprocessors, 24 in one.
        x: by what x is multiplied as.
    """

    start_us: float
    overlap_us: float
    bytes_per_us: float
    stream_k_us: float
    partial_sum_us: float
    scaling_us: float
    clusters_of_four: float
    x: dict[Kind, KindCost]


@cache
def read_costs(path: Path = _TABLE) -> Costs:
    """The costs in a file. UnsupportedError where it does not fit, or names an unknown tile."""
    try:
        return Costs.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UnsupportedError(f"{path} has no costs of tiles: {error}") from error
