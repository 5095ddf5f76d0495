"""Hugging Face's bitnet layout: ternary weights in 2 bits, one scale a tensor.

Row i, i + N/4, i + N/2 and i + 3N/4 share a byte, the first in the lowest bits, each as value + 1.
transformers' `autobitlinear` computes (round(x) W^T) scale, with x rounded to int8 by one scale a
token; the scale is multiplied, not divided as in `bitlinear`, so a weight is exactly value * scale.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from tercet.checkpoints.atomic import atomic_directory
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.origin import copy_companions, remember
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.seal import seal
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.errors import CheckpointError
from tercet.export import transformers_client
from tercet.export.target import Holding, client_module, is_embedding, refuse, transform_reason
from tercet.export.unpacked import compare_directory
from tercet.formats import PackedTensor

_ROWS_A_BYTE = 4
_KIND = "bitnet ternary tensor"


class BitNet:
    """Ternary with one scale a tensor in every linear layer; embeddings in floating point."""

    name = "bitnet"
    client = "transformers"
    extra = "bitnet"

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        found: list[Holding] = []
        for name, entry in checkpoint.modules.items():
            reason = _reason(checkpoint, name, entry)
            if is_embedding(name):
                found.append(Holding(module=name, kind="float32", bits_per_weight=32.0))
            elif reason is not None:
                found.append(Holding(module=name, reason=reason))
            else:
                bits = 2.0 + 32 / max(entry.shape[0] * entry.shape[1], 1)
                found.append(
                    Holding(
                        module=name,
                        kind=_KIND,
                        bits_per_weight=bits,
                        activation_block=entry.shape[1],
                    )
                )
        return tuple(found)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        refuse(self, self.holdings(checkpoint))
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
        for module in checkpoint.modules:
            weight = checkpoint.read_packed(module)
            if is_embedding(module):
                tensors[f"{module}.weight"] = weight.dequantize()
                continue
            tensors[f"{module}.weight"] = pack_rows(weight)
            tensors[f"{module}.weight_scale"] = weight.scale.reshape(1).float()
        with atomic_directory(out) as target:
            (target / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))
            text = json.dumps(_config(checkpoint), indent=1, sort_keys=True)
            (target / "config.json").write_text(text)
            copy_companions(checkpoint.directory, target)
            remember(checkpoint, target, [n for n in checkpoint.modules if is_embedding(n)])
            seal(target)

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        transformers_client.write_twin(checkpoint, out)

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        unpack = client_module(self, "transformers.integrations.bitnet").unpack_weights
        # the compiled version means the same, and needs a C++ compiler
        plain = getattr(unpack, "_torchdynamo_orig_callable", unpack)
        config = read_json(out / "config.json")
        section: dict[str, Any] = config.get("quantization_config") or {}
        if section.get("linear_class") != "autobitlinear":
            raise CheckpointError(f"{out}: config.json is not of an autobitlinear checkpoint")
        _, stored = open_weights(out)
        for name in stored:
            module, _, part = name.rpartition(".")
            if part == "weight" and is_embedding(module):
                yield module, stored[name].read().float()
            elif part == "weight_scale":
                values = plain(stored[f"{module}.weight"].read(), torch.float32)
                yield module, values * stored[name].read()

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        return compare_directory(checkpoint, out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        return transformers_client.logits(out, tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        return transformers_client.greedy(out, tokens, count)


def pack_rows(weight: PackedTensor) -> Tensor:
    """A ternary weight [N, K], N a multiple of 4, to bytes [N / 4, K]."""
    quarters = weight.unpack().reshape(_ROWS_A_BYTE, -1, weight.shape[1])
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8).reshape(_ROWS_A_BYTE, 1, 1)
    return (quarters << shifts).sum(0, dtype=torch.uint8)


def _reason(checkpoint: PackedCheckpoint, module: str, entry: PackedModule) -> str | None:
    scheme, rows = entry.scheme, entry.shape[0]
    if (found := transform_reason(entry, "bitnet")) is not None:
        return found
    if scheme.element.name != "ternary" or scheme.scaling.zero is not None:
        return (
            f"{entry.format}: bitnet holds symmetric ternary weights only: compress to "
            f"ternary-tensor, or export to compressed-tensors"
        )
    if scheme.scaling.scale_shape(entry.shape) != (1, 1):
        return (
            f"{entry.format}: bitnet holds one scale a tensor, this has "
            f"{scheme.scaling.granularity.value} scales: compress to ternary-tensor, or export to "
            f"compressed-tensors, which holds them"
        )
    if rows % _ROWS_A_BYTE:
        return (
            f"{rows} rows: bitnet packs four rows into a byte, so they must be a multiple of "
            f"{_ROWS_A_BYTE}: keep this module in the plan (keep: true)"
        )
    if f"{module}.bias" in checkpoint.layout:
        return (
            "it has a bias, which transformers' AutoBitLinear multiplies by the weight's scale: "
            "keep this module in the plan (keep: true), or export to compressed-tensors"
        )
    return None


def _config(checkpoint: PackedCheckpoint) -> dict[str, Any]:
    # transformers makes every linear layer a BitLinear that is not named here
    plain = [
        name.removesuffix(".weight")
        for name in checkpoint.names()
        if name.endswith(".weight") and len(checkpoint.layout[name][1]) == 2
    ]
    head = [] if "lm_head" in checkpoint.modules else ["lm_head"]
    section = {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "offline",
        "use_rms_norm": False,
        "modules_to_not_convert": sorted({*plain, *head}),
    }
    # the scales are float32, and transformers would cast them to a smaller dtype
    return {**checkpoint.config, "quantization_config": section, "dtype": "float32"}


TARGET = BitNet()
