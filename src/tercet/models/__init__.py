"""Architectures, and the lean decoder that the runtime uses."""

from tercet.models.architecture import Architecture
from tercet.models.architectures import (
    architecture_names,
    find_architecture,
    supported_architecture,
)
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.decoder import Decoder
from tercet.models.decoder.kv_cache import KeyValueCache
from tercet.models.input_transform import (
    InputTransform,
    fake_quantize_fp8,
    fake_quantize_int8,
    hadamard_transform,
)
from tercet.models.packed_modules import (
    PackedEmbedding,
    PackedLinear,
    load_packed_embedding,
    load_packed_linear,
    load_transform,
)
from tercet.models.weight_source import WeightSource

__all__ = [
    "Architecture",
    "Decoder",
    "DecoderConfig",
    "InputTransform",
    "KeyValueCache",
    "PackedEmbedding",
    "PackedLinear",
    "WeightSource",
    "architecture_names",
    "fake_quantize_fp8",
    "fake_quantize_int8",
    "find_architecture",
    "hadamard_transform",
    "load_packed_embedding",
    "load_packed_linear",
    "load_transform",
    "read_config",
    "supported_architecture",
]
