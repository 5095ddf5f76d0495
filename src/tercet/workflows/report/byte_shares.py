"""Where the bytes of a packed checkpoint are: by part of the model, by what they hold."""

from dataclasses import dataclass
from math import prod

from tercet.checkpoints.packed.read import PackedCheckpoint


@dataclass(kw_only=True)
class Bytes:
    """Bytes of one part of a model, in its weight files.

    Attributes:
        codes: of packed weights.
        scales: of scales, zero points and scales of inputs.
        uncompressed: of everything else: norms, biases, weights that are kept.
    """

    codes: int = 0
    scales: int = 0
    uncompressed: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.codes + self.scales + self.uncompressed


def find_bytes(checkpoint: PackedCheckpoint) -> dict[str, Bytes]:
    """Bytes by part, which add up to all weight files; what is no tensor is "file headers"."""
    packed = checkpoint.quantization.layout()
    found: dict[str, Bytes] = {}
    for name, (dtype, shape) in checkpoint.layout.items():
        size = prod(shape) * dtype.itemsize
        part = found.setdefault(part_of(name), Bytes())
        if name not in packed:
            part.uncompressed += size
        elif name.endswith(".weight_packed"):
            part.codes += size
        else:
            part.scales += size
    rest = checkpoint.size_bytes - sum(one.total for one in found.values())
    found["file headers"] = Bytes(uncompressed=rest)
    return found


_PARTS = (
    ("embedding", ("embed", "wte", "wpe")),
    ("head", ("lm_head",)),
    ("experts", ("expert",)),
    ("norms", ("norm", "ln_")),
    ("attention", ("attn", "attention")),
    ("MLP", ("mlp", "feed_forward", "ffn", "intermediate", "output.dense")),
)


def part_of(name: str) -> str:
    """The part that a tensor belongs to, by its name."""
    for part, words in _PARTS:
        if any(word in name.lower() for word in words):
            return part
    return "other"
