"""The tasks: one file each (or each family), which exports TASKS."""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from tercet.errors import PlanError, unknown_name
from tercet.evaluate.tasks.task import Task


@cache
def tasks() -> dict[str, Task]:
    """Every task of this folder by name."""
    modules = (
        importlib.import_module(m.name) for m in pkgutil.iter_modules(__path__, f"{__name__}.")
    )
    found: list[Task] = [task for module in modules for task in module.TASKS]
    return {task.name: task for task in sorted(found, key=lambda task: task.name)}


def find_tasks(names: Iterable[str]) -> list[Task]:
    """The tasks of these names, each once, in this order; PlanError offers the nearest ones."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in tasks():
            raise PlanError(unknown_name("task", name, tasks()))
    if not wanted:
        raise PlanError(f"no task is named: known are {', '.join(tasks())}")
    return [tasks()[name] for name in wanted]
