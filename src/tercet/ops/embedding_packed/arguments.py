"""What embedding_packed takes: its arguments prepared and described."""

from collections.abc import Mapping
from typing import Any

from tercet.kernel.contract import Workload
from tercet.packed_weight.weight import name_parts, prepare


def prepared(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A case's arguments, with the weight in the layout of the ids' device, in the op's order."""
    weight = prepare(arguments["weight"], arguments["ids"].device)
    return {
        "ids": arguments["ids"],
        **name_parts(weight.parts),
        "dtype": arguments["dtype"],
    }


def describe(arguments: Mapping[str, Any]) -> Workload:
    """The workload that prepared arguments are."""
    return Workload(
        name="call",
        sizes={
            "T": arguments["ids"].numel(),
            "N": arguments["rows"],
            "K": arguments["columns"],
        },
        dtype=arguments["dtype"],
        options={
            "scheme": arguments["scheme"],
            "layout": arguments["layout"],
        },
    )
