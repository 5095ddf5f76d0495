"""Number formats as frozen data, exact encode and decode on a CPU, no kernels."""

from tercet.formats.element import ELEMENTS, Element, element
from tercet.formats.encode import check_weight, encode, first_broken, from_codes
from tercet.formats.fit import FITS, fit
from tercet.formats.packed import PackedTensor, expected_parts
from tercet.formats.scaling import Granularity, Scaling
from tercet.formats.scheme import Scheme, parse_scheme
from tercet.formats.storage import STORAGES, Storage, storage

__all__ = [
    "ELEMENTS",
    "FITS",
    "STORAGES",
    "Element",
    "Granularity",
    "PackedTensor",
    "Scaling",
    "Scheme",
    "Storage",
    "check_weight",
    "element",
    "encode",
    "expected_parts",
    "first_broken",
    "fit",
    "from_codes",
    "parse_scheme",
    "storage",
]
