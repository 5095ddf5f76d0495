"""Settings of a run that Python callers pass: the frozen model itself, not its fields in a dict."""

from pydantic import BaseModel

from tercet.errors import PlanError


def check_settings(name: str, value: object, kind: type[BaseModel]) -> None:
    """PlanError unless the argument of this name is None or settings of this kind."""
    if value is not None and not isinstance(value, kind):
        raise PlanError(
            f"{name} is of type {type(value).__name__}: give None for the defaults or a "
            f"{kind.__name__}, such as {kind.__name__}(**your_dict)"
        )
