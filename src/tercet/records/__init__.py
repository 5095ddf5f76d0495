"""What was measured: records with their environment, in an append-only store. No torch here."""

from tercet.records.environment import Environment
from tercet.records.process import peak_resident_bytes
from tercet.records.record import Outcome, Record
from tercet.records.store import append, check_appendable, load, load_latest

__all__ = [
    "Environment",
    "Outcome",
    "Record",
    "append",
    "check_appendable",
    "load",
    "load_latest",
    "peak_resident_bytes",
]
