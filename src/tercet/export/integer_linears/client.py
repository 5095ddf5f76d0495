"""gptqmodel as the client of both formats: transformers loads them with its layers.

Its layers multiply in float16 or bfloat16 only, so verification runs the export and its float32
twin in the dtype of the scales: how far the twin is off is what that dtype does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoints.imports.gptq import ZERO_OFFSETS
from tercet.checkpoints.sources.safetensors_directory import open_weights, read_json
from tercet.errors import CheckpointError, UnsupportedError
from tercet.export import transformers_client
from tercet.export.integer_linears.fit import SCALE_DTYPES, in_block
from tercet.export.target import Target, client_module

_PARTS = ("qweight", "qzeros", "scales", "g_idx")


def dequantize_gptq(target: Target, out: Path) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every module of a GPTQ export, by gptqmodel's layer."""
    layer = client_module(target, "gptqmodel.nn_modules.qlinear.torch").TorchLinear
    to_v2 = client_module(target, "gptqmodel.utils.model").convert_gptq_v1_to_v2_format_module
    section = _section(out, target)
    layout = section["checkpoint_format"]
    for name, parts in _modules(out):
        rows, columns = parts["scales"].shape[1], parts["g_idx"].shape[0]
        bits = parts["qweight"].shape[0] * 32 // columns
        module = layer(
            bits=bits,
            group_size=section["group_size"],
            sym=section["sym"],
            desc_act=section["desc_act"],
            in_features=columns,
            out_features=rows,
            bias=False,
            register_buffers=True,
        ).eval()
        for part, tensor in parts.items():
            expected = getattr(module, part).shape
            if expected != tensor.shape:
                raise CheckpointError(
                    f"{out}: {name}.{part} has shape {list(tensor.shape)}, {target.client} takes "
                    f"{list(expected)}"
                )
            setattr(module, part, tensor)
        # in the dtype of the scales the product of code and scale would be rounded
        module.scales = parts["scales"].float()
        if ZERO_OFFSETS[layout]:
            to_v2(module, bits=bits, pack_dtype=torch.int32)
        yield name, module.dequantize_weight().T.contiguous()
    yield from _unpacked(out)


def dequantize_awq(target: Target, out: Path) -> Iterator[tuple[str, Tensor]]:
    """(module, float32 [N, K]) of every module of an AWQ export, by gptqmodel's function."""
    packing = client_module(target, "gptqmodel.quantization.awq.utils.packing_utils")
    section = _section(out, target)
    for name, parts in _modules(out):
        columns = parts["qweight"].shape[0]
        group = section["group_size"] if section["group_size"] > 0 else columns
        scales = parts["scales"].float()
        values = packing.dequantize_gemm(
            parts["qweight"], parts["qzeros"], scales, section["bits"], group
        )
        yield name, values.T.contiguous()
    yield from _unpacked(out)


def logits(target: Target, directory: Path, tokens: list[int]) -> Tensor:
    """Scores float32 [T, V] after each token, in the dtype that config.json names."""
    _demand_client(target, directory)
    # the layers compile themselves, which takes minutes and changes nothing
    with torch.compiler.set_stance("force_eager"):
        return transformers_client.logits(directory, tokens, _load)


def greedy(target: Target, directory: Path, tokens: list[int], count: int) -> list[int]:
    """The next `count` tokens, always the most likely one."""
    _demand_client(target, directory)
    with torch.compiler.set_stance("force_eager"):
        return transformers_client.greedy(directory, tokens, count, _load)


def _load(directory: Path) -> Any:
    """The model of an export, or of its twin, with its head."""
    from transformers import AutoModelForCausalLM, AwqConfig, GPTQConfig

    config = read_json(directory / "config.json")
    section, method = config.get("quantization_config"), None
    # by itself gptqmodel takes a layer that rounds to bfloat16 on a CPU, whatever it was loaded in
    if section is not None and section["quant_method"] == "gptq":
        method = GPTQConfig(**section, backend="torch")
    elif section is not None:
        method = AwqConfig(**section, backend="torch_awq")  # pyright: ignore[reportArgumentType]
    dtype = SCALE_DTYPES[config["dtype"]]
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, quantization_config=method
    ).eval()


def _demand_client(target: Target, directory: Path) -> None:
    """UnsupportedError where transformers cannot load a directory."""
    client_module(target, "gptqmodel")
    section: dict[str, Any] = read_json(directory / "config.json").get("quantization_config") or {}
    if section.get("quant_method") == "gptq":
        client_module(target, "optimum")
    rules: dict[str, Any] = section.get("dynamic") or {}
    if any(rule.startswith("+:") for rule in rules):
        raise UnsupportedError(
            f"{directory}: its layers have different widths, which vLLM and SGLang read (dynamic) "
            f"and transformers, which verifies, does not: export with --type int8 or int4, or "
            f"without --verify"
        )


def _section(out: Path, target: Target) -> dict[str, Any]:
    section: dict[str, Any] = read_json(out / "config.json").get("quantization_config") or {}
    if section.get("quant_method") != target.name:
        raise CheckpointError(f"{out}: config.json is not of a {target.name} checkpoint")
    return section


def _modules(out: Path) -> Iterator[tuple[str, dict[str, Tensor]]]:
    _, stored = open_weights(out)
    for name in [n.removesuffix(".qweight") for n in stored if n.endswith(".qweight")]:
        names = {part: f"{name}.{part}" for part in _PARTS}
        yield name, {part: stored[n].read() for part, n in names.items() if n in stored}


def _unpacked(out: Path) -> Iterator[tuple[str, Tensor]]:
    """What lies outside of the blocks, as it is stored."""
    _, stored = open_weights(out)
    for name in stored:
        module, _, part = name.rpartition(".")
        if part == "weight" and not in_block(module):
            yield module, stored[name].read().float()
