"""Which part of each weight a rank of tensor parallelism holds.

Queries, keys, values, gate and up are cut by rows: whole heads, and a share of the network's width.
What they feed, attention's output product and the network's down product, is cut by the same
columns, so that a rank's products need nothing of the others until their sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tercet.errors import UnsupportedError
from tercet.models.architecture import Architecture
from tercet.models.decoder.config import DecoderConfig

MOST_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The part of W [N, K] that one rank holds.

    Attributes:
        rows: one after the other; none for all of them.
        columns: None for all.
    """

    rows: tuple[range, ...] = ()
    columns: range | None = None

    def shape_of(self, shape: tuple[int, int]) -> tuple[int, int]:
        """The part's, of a weight of that shape."""
        rows = sum(map(len, self.rows)) if self.rows else shape[0]
        return rows, shape[1] if self.columns is None else len(self.columns)


def cut_config(config: DecoderConfig, world_size: int) -> DecoderConfig:
    """The sizes that one rank's layers have."""
    mixture = config.mixture
    if mixture is not None:
        shared = None if mixture.shared is None else mixture.shared // world_size
        mixture = replace(mixture, inner=mixture.inner // world_size, shared=shared)
    return replace(
        config,
        heads=config.heads // world_size,
        key_value_heads=max(config.key_value_heads // world_size, 1),
        intermediate=config.intermediate // world_size,
        mixture=mixture,
    )


def check_cut(architecture: Architecture, config: DecoderConfig, world_size: int) -> None:
    """UnsupportedError where a decoder cannot be cut over so many ranks, or over any."""
    if config.state_space is not None:
        raise UnsupportedError(
            f"tensor parallelism of a {architecture.name}: its state spaces cannot be cut; run it "
            f"on one device"
        )
    if not _divides(config, world_size):
        fitting = [n for n in range(1, MOST_RANKS + 1) if _divides(config, n)]
        raise UnsupportedError(
            f"tensor parallelism over {world_size} devices: {_sizes(config)} cannot be cut in so "
            f"many equal parts; this model {describe_fitting(fitting)}"
        )


def describe_fitting(numbers: Sequence[int]) -> str:
    """What a model can do that can be cut over those numbers of devices, 1 among them."""
    *others, last = map(str, numbers)
    return f"can be cut over {', '.join(others)} or {last}" if others else "runs on one device only"


def _divides(config: DecoderConfig, world_size: int) -> bool:
    heads, shared = config.heads, config.key_value_heads
    # a key-value head may be on several ranks
    whole = shared % world_size == 0 or world_size % shared == 0
    return heads % world_size == 0 and whole and not any(w % world_size for w in _widths(config))


def _widths(config: DecoderConfig) -> list[int]:
    """Of the feed-forward networks that layers have."""
    mixture = config.mixture
    if mixture is None:
        return [config.intermediate]
    dense = [] if all(mixture.layers) else [config.intermediate]
    return [*dense, mixture.inner, *([] if mixture.shared is None else [mixture.shared])]


def _sizes(config: DecoderConfig) -> str:
    widths = " and ".join(map(str, _widths(config)))
    return (
        f"{config.heads} attention heads, {config.key_value_heads} key-value heads and a "
        f"feed-forward width of {widths}"
    )


def cut_modules(
    architecture: Architecture, config: DecoderConfig, rank: int, world_size: int
) -> dict[str, Cut]:
    """What a rank holds of each module that is cut, by name; `check_cut` has passed.

    Args:
        architecture: of the decoder.
        config: of the whole decoder.
        rank: whose part.
        world_size: how many ranks there are.
    """
    found = dict[str, Cut]()
    queries = _share(config.heads, rank, world_size, config.head_dim)
    keys = _share_keys(config, rank, world_size)
    for index in range(config.layers):
        layer, mixture = architecture.layer.format(index), config.mixture
        heads = [config.heads, *2 * [config.key_value_heads]]
        sizes = [count * config.head_dim for count in heads]
        attention = [f"{layer}.{name}" for name in architecture.queries_keys_values]
        found |= _cut_rows(attention, sizes, [queries, keys, keys])
        found[f"{layer}.self_attn.o_proj"] = Cut(columns=queries)
        if architecture.qk_norm == "projection":
            found[f"{layer}.self_attn.q_norm"] = Cut(rows=(queries,))
            found[f"{layer}.self_attn.k_norm"] = Cut(rows=(keys,))
        if mixture is None or not mixture.layers[index]:
            gate_up = [f"{layer}.{name}" for name in architecture.gate_up]
            down, width = f"{layer}.{architecture.down}", config.intermediate
            found |= _cut_network(gate_up, down, width, rank, world_size)
            continue
        experts = [f"{layer}.mlp.experts.{expert}" for expert in range(mixture.experts)]
        widths = dict.fromkeys(experts, mixture.inner)
        if mixture.shared is not None:
            widths[f"{layer}.mlp.shared_expert"] = mixture.shared
        for name, width in widths.items():
            gate_up = [f"{name}.gate_proj", f"{name}.up_proj"]
            found |= _cut_network(gate_up, f"{name}.down_proj", width, rank, world_size)
    return found


def _cut_network(
    gate_up: Sequence[str], down: str, width: int, rank: int, world_size: int
) -> dict[str, Cut]:
    share = _share(width, rank, world_size)
    return _cut_rows(gate_up, [width, width], [share, share]) | {down: Cut(columns=share)}


def _cut_rows(
    modules: Sequence[str], sizes: Sequence[int], shares: Sequence[range]
) -> dict[str, Cut]:
    """Shares of outputs of those sizes; one module may give all of them, one after the other."""
    if len(modules) == len(sizes):
        pairs = zip(modules, shares, strict=True)
        return {module: Cut(rows=(share,)) for module, share in pairs}
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    rows = [range(at + s.start, at + s.stop) for at, s in zip(starts, shares, strict=True)]
    return {modules[0]: Cut(rows=tuple(rows))}


def _share(count: int, rank: int, world_size: int, each: int = 1) -> range:
    """A rank's equal share of `count` things of `each` rows."""
    own = count // world_size * each
    return range(rank * own, (rank + 1) * own)


def _share_keys(config: DecoderConfig, rank: int, world_size: int) -> range:
    """Rows of the key-value heads that a rank's queries meet."""
    heads, width = config.key_value_heads, config.head_dim
    if heads % world_size == 0:
        return _share(heads, rank, world_size, width)
    return _share(heads, rank * heads // world_size, heads, width)
