"""The target `onnx`: a directory with model.onnx, model.onnx.data and the tokenizer's files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.export.decoder_weights import DecoderWeights, DequantizedSource, architecture_reason
from tercet.export.onnx.client import OnnxSession
from tercet.export.onnx.decoder import OnnxDecoder
from tercet.export.onnx.graph import DATA_NAME, GRAPH_NAME, Graph
from tercet.export.onnx.quantized_blocks import FAST_LEVELS, held
from tercet.export.onnx.read_back import read_back
from tercet.export.sealed_directory import check_seal, sealed_directory
from tercet.export.target import Holding, Timing, client_module, refuse, time_session
from tercet.models import find_architecture, read_config


@dataclass(frozen=True, kw_only=True)
class OnnxTarget:
    """ONNX Runtime; see tercet.export.target.Target.

    Attributes:
        accuracy_level: of every MatMulNBits: 4 rounds its input to int8 in the weight's blocks, 0
            multiplies in float32; None for the more exact one that ONNX Runtime has a fast kernel
            for: 0 with 4 bits, 4 with 2 and 8 bits.
    """

    name: str = "onnx"
    client: str = "onnxruntime"
    extra: str = "onnx"
    accuracy_level: int | None = None

    @property
    def levels(self) -> dict[int, int]:
        """accuracy_level by bits."""
        if self.accuracy_level is None:
            return FAST_LEVELS
        return dict.fromkeys(FAST_LEVELS, self.accuracy_level)

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each packed module is held, in the checkpoint's order."""
        reason = architecture_reason(checkpoint.config)
        if reason is not None:
            return tuple(Holding(module=module, reason=reason) for module in checkpoint.modules)
        architecture = find_architecture(checkpoint.config)
        tied = read_config(architecture, checkpoint.config).tied
        looked_up = () if tied else (architecture.embedding,)
        return tuple(
            held(module, entry, {} if module in looked_up else self.levels)
            for module, entry in checkpoint.modules.items()
        )

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the directory `out`, whole or not at all."""
        refuse(self, self.holdings(checkpoint))
        self._write(checkpoint, DecoderWeights(checkpoint), out)

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """The same graph with every weight dequantized, in float32."""
        weights = DecoderWeights(DequantizedSource(checkpoint), narrow=False)
        self._write(checkpoint, weights, out)

    def _write(self, checkpoint: PackedCheckpoint, weights: DecoderWeights, out: Path) -> None:
        onnx = client_module(self, "onnx")
        with sealed_directory(checkpoint, out, self.name) as directory:
            with (directory / DATA_NAME).open("wb") as data:
                graph = Graph(onnx, data)
                OnnxDecoder(weights, graph, self.levels).build()
            graph.save(directory / GRAPH_NAME)

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]): what ONNX Runtime's own kernels make of each packed weight."""
        check_seal(out, self.name)
        runtime, onnx = client_module(self, "onnxruntime"), client_module(self, "onnx")
        return read_back(out, onnx, runtime)

    def session(self, out: Path) -> OnnxSession:
        """The model, loaded by ONNX Runtime."""
        check_seal(out, self.name)
        return OnnxSession(client_module(self, "onnxruntime"), out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores float32 [T, V] after each token."""
        return self.session(out).logits(tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens, always the most likely."""
        return list(self.session(out).stream(tokens, count))

    def time(self, out: Path, tokens: list[int], count: int) -> Timing:
        """As the protocol says."""
        return time_session(lambda: self.session(out), tokens, count)


TARGET = OnnxTarget()
