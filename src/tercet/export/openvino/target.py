"""The target `openvino`: a directory with openvino_model.xml, .bin and the tokenizer's files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.atomic import grow_files
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.errors import CheckpointError
from tercet.export.decoder_weights import DecoderWeights, DequantizedSource, architecture_reason
from tercet.export.openvino.client import MODEL_NAME, OpenvinoSession, read_back
from tercet.export.openvino.constants import held
from tercet.export.openvino.decoder import OpenvinoDecoder
from tercet.export.sealed_directory import check_seal, sealed_directory
from tercet.export.target import Holding, Timing, client_module, refuse, time_session


@dataclass(frozen=True, kw_only=True)
class OpenvinoTarget:
    """OpenVINO; see tercet.export.target.Target."""

    name: str = "openvino"
    client: str = "openvino"
    extra: str = "openvino"

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each packed module is held, in the checkpoint's order."""
        reason = architecture_reason(checkpoint.config)
        return tuple(
            held(module, entry) if reason is None else Holding(module=module, reason=reason)
            for module, entry in checkpoint.modules.items()
        )

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the directory `out`, whole or not at all."""
        refuse(self, self.holdings(checkpoint))
        self._write(checkpoint, DecoderWeights(checkpoint), out)

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """The same model with every weight dequantized, in float32."""
        weights = DecoderWeights(DequantizedSource(checkpoint), narrow=False)
        self._write(checkpoint, weights, out)

    def _write(self, checkpoint: PackedCheckpoint, weights: DecoderWeights, out: Path) -> None:
        openvino = client_module(self, "openvino")
        ops = client_module(self, "openvino.opset13")
        with sealed_directory(checkpoint, out, self.name) as directory:
            model = OpenvinoDecoder(weights, openvino, ops).build()
            try:
                openvino.serialize(model, str(directory / MODEL_NAME))
            except RuntimeError as error:
                if "iostream" not in str(error):
                    raise
                grow_files(directory)
                # it removes files that it could not close, and the disk has room again
                raise CheckpointError(
                    f"{out}: OpenVINO could not write its files ({error}): see that the disk has "
                    f"room and allows files of that size, or choose another place"
                ) from error

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]): what OpenVINO's own kernels make of each packed weight."""
        check_seal(out, self.name)
        return read_back(client_module(self, "openvino"), out)

    def session(self, out: Path) -> OpenvinoSession:
        """The model, compiled by OpenVINO."""
        check_seal(out, self.name)
        return OpenvinoSession(client_module(self, "openvino"), out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores float32 [T, V] after each token."""
        return self.session(out).logits(tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens, always the most likely."""
        return list(self.session(out).stream(tokens, count))

    def time(self, out: Path, tokens: list[int], count: int) -> Timing:
        """As the protocol says."""
        return time_session(lambda: self.session(out), tokens, count)


TARGET = OpenvinoTarget()
