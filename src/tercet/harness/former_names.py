"""Former names: committed records name implementations as they were called when measured."""

from collections.abc import Iterable

from tercet.ops.discover import discover
from tercet.records import Record

# a bench row's variant may be an implementation, or a baseline
_SETTINGS = ("variant", "implementation")


def use_current_names(records: Iterable[Record]) -> list[Record]:
    """The records, each with its implementation's name of today, so that equal rows are equal."""
    return [_rename(record) for record in records]


def _rename(record: Record) -> Record:
    op = discover().get(record.subject)
    if op is None:
        return record
    current = {former: each.name for each in op.implementations for former in each.former_names}
    renamed = {
        name: current[str(record.settings[name])]
        for name in _SETTINGS
        if record.settings.get(name) in current
    }
    if not renamed:
        return record
    return record.model_copy(update={"settings": {**record.settings, **renamed}})
