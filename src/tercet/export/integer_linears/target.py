"""IntegerLinears: what the GPTQ and the AWQ target share, from the holdings to the client."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from tercet.checkpoints.imports.grouped_integers import GroupedIntegers, to_integers
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export import transformers_client
from tercet.export.engine_directory import write_directory
from tercet.export.integer_linears import client as runner
from tercet.export.integer_linears.fit import SCALE_DTYPES, Arrangement, Limits, fit, in_block
from tercet.export.target import Holding, refuse
from tercet.export.unpacked import compare_directory

_SCALE_BITS = 16


class IntegerLinears(ABC):
    """Linear layers as integers in int32 words; embeddings and the head in floating point.

    Embeddings and heads that are packed here are written dequantized in float32, which holds their
    values exactly, as no 16-bit number does.
    """

    name: str
    client = "gptqmodel"
    order_bits: int
    """For each column, of the group that it belongs to."""
    limits: Limits

    @property
    def extra(self) -> str:
        """The extra of tercet that installs the client."""
        return self.name

    @abstractmethod
    def section(self, arrangement: Arrangement) -> dict[str, Any]:
        """The `quantization_config` of config.json."""

    @abstractmethod
    def store(
        self, weight: GroupedIntegers, bits: int, arrangement: Arrangement
    ) -> dict[str, Tensor]:
        """The tensors of a module, by the end of their names."""

    @abstractmethod
    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]) of every packed module, read by the client's own code."""

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each packed module is held, in the checkpoint's order; needs no client."""
        arrangement, reasons = fit(checkpoint, self.limits)
        found: list[Holding] = []
        for name, entry in checkpoint.modules.items():
            if name in reasons:
                found.append(Holding(module=name, reason=reasons[name]))
            elif not in_block(name):
                found.append(Holding(module=name, kind="float32", bits_per_weight=32.0))
            else:
                bits = arrangement.bits[name]
                found.append(
                    Holding(
                        module=name,
                        kind=self._kind(bits, arrangement),
                        bits_per_weight=self._bits_per_weight(entry, bits, arrangement),
                    )
                )
        return tuple(found)

    def _kind(self, bits: int, arrangement: Arrangement) -> str:
        sharing = "channel" if arrangement.group is None else f"g{arrangement.group}"
        return f"{self.name} int{bits} {sharing}{'' if arrangement.symmetric else ' asym'}"

    def _bits_per_weight(self, entry: PackedModule, bits: int, arrangement: Arrangement) -> float:
        rows, columns = entry.shape
        scales = arrangement.groups(columns) / max(columns, 1) * (bits + _SCALE_BITS)
        return bits + scales + self.order_bits / max(rows, 1)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the directory `out`, whole or not at all; needs no client.

        Raises:
            UnsupportedError: what cannot be held, every refusal in one message.
            CheckpointError: `out` exists, or the disk is full.
        """
        refuse(self, self.holdings(checkpoint))
        arrangement, _ = fit(checkpoint, self.limits)
        # engines cast scales to the model's dtype, and another one would round them
        config = {k: v for k, v in checkpoint.config.items() if k != "torch_dtype"}
        config |= {"dtype": arrangement.dtype, "quantization_config": self.section(arrangement)}
        write_directory(
            checkpoint,
            out,
            config,
            lambda module: self._store(checkpoint, module, arrangement),
            dequantized=[n for n in checkpoint.modules if not in_block(n)],
        )

    def _store(
        self, checkpoint: PackedCheckpoint, module: str, arrangement: Arrangement
    ) -> dict[str, Tensor]:
        """The tensors of a module, dequantized outside of the blocks."""
        weight = checkpoint.read_packed(module)
        if not in_block(module):
            return {"weight": weight.dequantize()}
        groups, dtype = arrangement.groups(weight.shape[1]), SCALE_DTYPES[arrangement.dtype]
        integers = to_integers(weight, groups, dtype)
        return self.store(integers, arrangement.bits[module], arrangement)

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """The same model in float32, that says the dtype in which the client runs the export."""
        arrangement, _ = fit(checkpoint, self.limits)
        transformers_client.write_twin(checkpoint, out, arrangement.dtype)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores float32 [T, V] after each token, from transformers with gptqmodel."""
        return runner.logits(self, out, tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens by transformers with gptqmodel, always the most likely."""
        return runner.greedy(self, out, tokens, count)

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        """A line for each unpacked tensor or setting that is not as in the checkpoint."""
        return compare_directory(checkpoint, out)
