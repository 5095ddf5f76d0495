"""Storages: how a row of codes becomes bytes. One file per bit order, found by name here."""

from tercet.errors import FormatError, unknown_name
from tercet.formats.storage.base3 import BASE3
from tercet.formats.storage.base9 import BASE9
from tercet.formats.storage.bitstream import BITS2, BITS3, BITS4, BITS5, BITS6, BITS8
from tercet.formats.storage.sparse import SPARSE_2_4, SPARSE_3_4
from tercet.formats.storage.unit import Storage

STORAGES: dict[str, Storage] = {
    storage.name: storage
    for storage in (BASE3, BITS2, SPARSE_2_4, SPARSE_3_4, BASE9, BITS3, BITS4, BITS5, BITS6, BITS8)
}


def storage(name: str) -> Storage:
    """The storage of that name; an unknown name raises FormatError with the nearest ones."""
    if name not in STORAGES:
        raise FormatError(unknown_name("storage", name, STORAGES))
    return STORAGES[name]


__all__ = ["STORAGES", "Storage", "storage"]
