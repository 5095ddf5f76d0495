"""Try run: runs code that is judged or compared with; its failure is a result, not an end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")
_LONGEST = 400


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a step did not finish, in one line."""

    reason: str


def try_run(
    step: Callable[[], Result], explain: Callable[[ImportError], str] | None = None
) -> Result | Failure:
    """What the step returns, or why it failed.

    Args:
        step: code of an implementation or a baseline: it may raise anything.
        explain: the reason for a missing import; default: the error's own words.
    """
    try:
        return step()
    except ImportError as error:
        return Failure(reason=explain(error) if explain is not None else _in_words(error))
    except Exception as error:  # noqa: BLE001 everything that goes wrong in it is the answer
        return Failure(reason=_in_words(error))


def _in_words(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:_LONGEST]
