"""Rows: calibration text cut into what quantizes, what measures and what is kept for a last look.

What a linear was fitted to flatters it, so no row serves twice.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tercet.compress import text
from tercet.compress.plan import Calibration
from tercet.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How much text measures.

    Attributes:
        count: windows that measure, and again as many that are held out.
        length: tokens of a window.
    """

    count: int = 4
    length: int = 256

    def __post_init__(self) -> None:
        if self.count < 1 or self.length < 2:
            raise PlanError(
                f"{self.count} windows of {self.length} tokens: at least 1 window of 2 is needed"
            )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Token ids.

    Attributes:
        calibration: [sequences, length], what the algorithms see.
        windows: [count, length], what divergence is measured on.
        held_out: [count, length], what neither saw.
    """

    calibration: Tensor
    windows: Tensor
    held_out: Tensor


def read_rows(
    calibration: str | Path | Tensor | None,
    tokenizer: Path,
    wanted: Calibration,
    windows: Windows,
    model: str | None = None,
) -> Rows:
    """Rows of a text file, or of ids that are rows already.

    Args:
        calibration: as `compress` takes it.
        tokenizer: the folder of tokenizer.json.
        wanted: the plan's calibration.
        windows: how much more text to take.
        model: what the user called the model, where its tokenizer was copied for the run.
    """
    if isinstance(calibration, Tensor):
        return split_rows(calibration.long(), wanted.length, windows)
    path = text.calibration_file(calibration)
    more = wanted.model_copy(
        update={
            "sequences": wanted.sequences + 2 * windows.count,
            "length": max(wanted.length, windows.length),
        }
    )
    apart = _measuring(more.sequences, windows)
    rows = text.calibration_tokens(path, tokenizer, more, model, apart)
    whole = path.suffix == ".safetensors"
    return split_rows(rows, rows.shape[-1] if whole else wanted.length, windows)


def split_rows(rows: Tensor, length: int, windows: Windows) -> Rows:
    """Rows [rows, ..] apart: evenly spaced ones measure and are held out in turn.

    Raises:
        PlanError: no row is left to calibrate with.
    """
    if rows.ndim != 2 or len(rows) <= 2 * windows.count:
        raise PlanError(
            f"calibration ids have shape {list(rows.shape)}, but {windows.count} windows that "
            f"measure and {windows.count} that are held out leave none to calibrate with: give "
            f"more sequences or fewer --windows"
        )
    picked = _measuring(len(rows), windows)
    rest = [row for row in range(len(rows)) if row not in set(picked)]
    return Rows(
        calibration=rows[rest, :length],
        windows=rows[picked[::2], : windows.length],
        held_out=rows[picked[1::2], : windows.length],
    )


def _measuring(rows: int, windows: Windows) -> list[int]:
    """Which of the rows measure and are held out, in turn."""
    return [(2 * k + 1) * rows // (4 * windows.count) for k in range(2 * windows.count)]
