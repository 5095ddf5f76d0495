"""Mlx: a directory of mlx-lm; codes and scales as they are, zero points as whole biases."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from tercet.checkpoints.imports.importer import CONFIG_NAME
from tercet.checkpoints.imports.mlx import (
    AFFINE,
    BITS,
    MXFP4,
    SECTION,
    store_affine,
    store_mxfp4,
    with_biases,
)
from tercet.checkpoints.packed.layout import PackedModule
from tercet.checkpoints.packed.read import PackedCheckpoint
from tercet.checkpoints.sources.safetensors_directory import read_json
from tercet.errors import UnsupportedError
from tercet.export import transformers_client
from tercet.export.engine_directory import write_directory, write_json
from tercet.export.mlx import client as runner
from tercet.export.target import Holding, refuse, transform_reason
from tercet.export.unpacked import compare_directory
from tercet.formats import Granularity
from tercet.models import find_architecture, read_config, supported_architecture
from tercet.models.split_experts import is_expert

GROUPS = (128, 64, 32)
"""Columns of one scale that MLX's kernels take."""
_SHARING = (Granularity.TENSOR, Granularity.CHANNEL, Granularity.GROUP)
_ELSEWHERE = "or export to huggingface, which holds every format"
# a code of 8 bits times a scale, and a bias of 9, are exact in float32 below this many bits
_SCALE_BITS = 15


class Mlx:
    """Integers of 2 to 8 bits with a scale and a bias a group, and mxfp4."""

    name = "mlx"
    client = "mlx-lm"
    extra = "mlx"

    def holdings(self, checkpoint: PackedCheckpoint) -> tuple[Holding, ...]:
        """How each packed module is held, in the checkpoint's order; needs no client."""
        found: list[Holding] = []
        for module, entry in checkpoint.modules.items():
            reason = _reason(checkpoint, module, entry)
            if reason is not None:
                found.append(Holding(module=module, reason=reason))
                continue
            settings = _settings(entry)
            found.append(
                Holding(
                    module=module,
                    kind=_kind(settings),
                    bits_per_weight=_bits_per_weight(checkpoint, module),
                )
            )
        return tuple(found)

    def write(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """Writes the directory `out`, whole or not at all; needs no client.

        Raises:
            UnsupportedError: what cannot be held, every refusal in one message.
            CheckpointError: `out` exists, or the disk is full.
        """
        refuse(self, self.holdings(checkpoint))
        _check_model(checkpoint.config)
        store = partial(_store, checkpoint)
        write_directory(checkpoint, out, _config(checkpoint), store, framework="mlx")

    def write_twin(self, checkpoint: PackedCheckpoint, out: Path) -> None:
        """The same model as a plain Hugging Face directory in float32, which mlx-lm loads too."""
        transformers_client.write_twin(checkpoint, out)
        config = read_json(out / CONFIG_NAME)
        write_json(out / CONFIG_NAME, {**config, **rotations(config)})

    def dequantize(self, out: Path) -> Iterator[tuple[str, Tensor]]:
        """(module, float32 [N, K]) of every packed module, by mlx's own function."""
        return runner.dequantize(self, out)

    def logits(self, out: Path, tokens: list[int]) -> Tensor:
        """Scores float32 [T, V] after each token, from mlx-lm."""
        return runner.logits(self, out, tokens)

    def greedy(self, out: Path, tokens: list[int], count: int) -> list[int]:
        """The next `count` tokens by mlx-lm, always the most likely."""
        return runner.greedy(self, out, tokens, count)

    def differences(self, checkpoint: PackedCheckpoint, out: Path) -> Iterator[str]:
        """A line for each unpacked tensor or setting that is not as in the checkpoint."""
        return compare_directory(checkpoint, out)


_GEMMA3_PATTERN = 6  # mlx-lm's default: every sixth layer sees all positions


def _check_model(config: Mapping[str, Any]) -> None:
    """UnsupportedError where mlx-lm would compute something else, and say nothing."""
    if not supported_architecture(config):
        return
    architecture = find_architecture(config)
    sizes = read_config(architecture, config)
    usual = "gelu_pytorch_tanh" if architecture.activation != "hidden_act" else "silu"
    what = None
    if sizes.activation != usual:
        what = f"{architecture.activation} {sizes.activation!r}: it computes {usual!r} always"
    local = [bool(window and window < sizes.positions) for window in sizes.windows]
    if any(local) and architecture.name != "gemma3_text":
        what = "sliding window: its layers see all positions"
    pattern = config.get("sliding_window_pattern") or _GEMMA3_PATTERN
    if any(local) and local != [bool((at + 1) % pattern) for at in range(len(local))]:
        what = what or f"order of layers: all but each {pattern}th see a window there"
    if what is not None:
        raise UnsupportedError(
            f"mlx-lm's {architecture.name} does not know this model's {what}: export to "
            f"huggingface, which holds every model"
        )


def _reason(checkpoint: PackedCheckpoint, module: str, entry: PackedModule) -> str | None:
    """Why the format cannot hold a module, or None."""
    scheme, scaling = entry.scheme, entry.scheme.scaling
    if is_expert(module):
        return "matrices of experts are not written: export to gguf or huggingface"
    transform = transform_reason(entry, "MLX")
    if transform is not None:
        return transform
    if entry.format != MXFP4 and scheme.element.name not in BITS:
        held = ", ".join((*BITS, MXFP4))
        return f"{entry.format}: MLX holds {held}: compress to int4 or int8, {_ELSEWHERE}"
    if scaling.granularity not in _SHARING:
        return f"{entry.format}: scales are held per group of a row: {_ELSEWHERE}"
    if scaling.zero not in (None, "int8"):
        return (
            f"{entry.format}: zero points in {scaling.zero}, whole ones are held: compress with "
            f"-asym, {_ELSEWHERE}"
        )
    if _group(entry) is None:
        groups = ", ".join(map(str, GROUPS))
        return (
            f"{entry.format} with {entry.shape[1]} columns: MLX has a scale for {groups} columns, "
            f"and none of them divides both: compress with a group of 32, 64 or 128"
        )
    return _scale_reason(checkpoint, module, entry)


def _scale_reason(checkpoint: PackedCheckpoint, module: str, entry: PackedModule) -> str | None:
    """Scales whose products MLX itself would round, and blocks that a bias cannot tell."""
    if entry.format == MXFP4:
        return None
    scale = checkpoint.tensor(f"{module}.weight_scale")
    lost = (1 << 24 - _SCALE_BITS) - 1
    if bool((scale.float().contiguous().view(torch.int32) & lost).any()):
        return (
            f"{entry.format}: scales in {entry.scheme.scaling.dtype}, products of codes and scales "
            f"would be rounded: compress with fp16 scales, {_ELSEWHERE}"
        )
    if entry.scheme.scaling.zero is None:
        return None
    zero = checkpoint.tensor(f"{module}.weight_zero")
    if bool(((scale == 0) & (zero != 0)).any()):
        return f"{entry.format}: a scale of 0 has a zero point: compress without -asym"
    return None


def _group(entry: PackedModule) -> int | None:
    """The widest group that divides the module's own and its columns."""
    own, columns = entry.scheme.scaling.group_size, entry.shape[1]
    if entry.format == MXFP4:
        return own if columns % 32 == 0 else None
    return next((g for g in GROUPS if columns % g == 0 and (own or g) % g == 0), None)


def _settings(entry: PackedModule) -> dict[str, Any]:
    if entry.format == MXFP4:
        return {"group_size": 32, "bits": 4, "mode": MXFP4}
    return {"group_size": _group(entry), "bits": BITS[entry.scheme.element.name], "mode": AFFINE}


def _kind(settings: dict[str, Any]) -> str:
    if settings["mode"] == MXFP4:
        return MXFP4
    return f"{AFFINE} int{settings['bits']} g{settings['group_size']}"


def _bits_per_weight(checkpoint: PackedCheckpoint, module: str) -> float:
    entry = checkpoint.modules[module]
    if entry.format == MXFP4:
        return entry.scheme.bits_per_weight(entry.shape)
    scale, zero = checkpoint.tensor(f"{module}.weight_scale"), None
    if entry.scheme.scaling.zero is not None:
        zero = checkpoint.tensor(f"{module}.weight_zero")
    settings, lowest = _settings(entry), int(entry.scheme.element.lowest)
    pair = sum(8 * part.itemsize for part in with_biases(scale, zero, lowest))
    return settings["bits"] + pair / settings["group_size"]


def _store(checkpoint: PackedCheckpoint, module: str) -> dict[str, Tensor]:
    entry, weight = checkpoint.modules[module], checkpoint.read_packed(module)
    if entry.format == MXFP4:
        return store_mxfp4(weight)
    group = _group(entry)
    assert group is not None
    return store_affine(weight, group)


def _config(checkpoint: PackedCheckpoint) -> dict[str, Any]:
    """With the settings of most modules for all, and the others' by name."""
    settings = {module: _settings(entry) for module, entry in checkpoint.modules.items()}
    (common, _), *_ = Counter(json.dumps(one) for one in settings.values()).most_common()
    others = {module: one for module, one in settings.items() if json.dumps(one) != common}
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    return {**config, **rotations(config), SECTION: {**json.loads(common), **others}}


def rotations(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings as transformers 4 had them: most of mlx-lm's models read no others.

    What they do not find they take from their own defaults, and say nothing.
    """
    given: dict[str, Any] = config.get("rope_parameters") or {}
    local: dict[str, Any] = given.get("sliding_attention") or {}
    whole: dict[str, Any] = given.get("full_attention") or given
    scaling: dict[str, Any] = config.get("rope_scaling") or {}
    if scaling and whole is not given:
        whole = {**whole, **scaling}
    elif scaling and given:  # replaced as transformers does it, with the base
        whole = {"rope_theta": _usual_base(config), **scaling}
    found = {k: whole[k] for k in ("rope_theta", "partial_rotary_factor") if k in whole}
    if whole.get("rope_type", "default") != "default":
        found["rope_scaling"] = {k: v for k, v in whole.items() if k != "rope_theta"}
    if "rope_theta" in local:
        found["rope_local_base_freq"] = local["rope_theta"]
    return {k: v for k, v in found.items() if config.get(k) is None}


def _usual_base(config: Mapping[str, Any]) -> float:
    """Of a model whose config.json has none."""
    theta: object = 10000.0
    if supported_architecture(config):
        theta = find_architecture(config).defaults.get("rope_theta", theta)
    return float(cast(float, theta))
