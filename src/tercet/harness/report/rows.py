"""Rows: bench records picked and put into words."""

from collections.abc import Iterable, Sequence

from tercet.records import Outcome, Record

_NOT_A_KEY = ("revision", "binds")


def device_of(record: Record) -> str:
    """Where it was measured."""
    return record.environment.accelerator or record.environment.processor


def key_of(record: Record) -> tuple[str, ...]:
    """What makes two records measurements of the same row."""
    settings = (
        f"{name}={value}"
        for name, value in sorted(record.settings.items())
        if name not in _NOT_A_KEY
    )
    return (record.kind, device_of(record), record.subject, *settings)


def latest(records: Iterable[Record]) -> list[Record]:
    """Of equal rows the last one, in the order of their first."""
    return list({key_of(record): record for record in records}.values())


def select_succeeded(records: Iterable[Record]) -> list[Record]:
    """Those with a time."""
    return [
        record for record in records if record.outcome is Outcome.OK and "time_us" in record.metrics
    ]


def setting(record: Record, name: str) -> str:
    """A setting as text; empty where there is none."""
    value = record.settings.get(name)
    return "" if value is None else str(value)


def describe(record: Record) -> str:
    """One row in words."""
    metrics = record.metrics
    names = ("variant", "direction", "workload", "sizes", "dtype", "options", "cache", "launch")
    parts = [record.subject, *(setting(record, name) for name in names)]
    speed = f"{metrics['bytes_per_second'] / 1e12:.2f} TB/s" if _has_speed(metrics) else ""
    fraction = metrics.get("roofline_fraction")
    share = f"{fraction:.0%} of the roofline" if fraction is not None else ""
    values = (f"{metrics['time_us']:.4g} us", speed, share)
    text = " ".join(part for part in parts if part)
    return f"{text}: {', '.join(value for value in values if value)}"


def revisions_of(records: Sequence[Record]) -> list[str]:
    """The revisions, in the order in which they were first measured."""
    first: dict[str, str] = {}
    for record in records:
        name = setting(record, "revision")
        if name and (name not in first or record.time < first[name]):
            first[name] = record.time
    return sorted(first, key=lambda name: (first[name], name))


def _has_speed(metrics: dict[str, float]) -> bool:
    return "bytes_per_second" in metrics
