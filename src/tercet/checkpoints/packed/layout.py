"""What lies in a packed checkpoint: one directory that transformers and Tercet both read.

    config.json                   the model's own configuration + quantization_config (below)
    model-0000i-of-0000n.safetensors, model.safetensors.index.json
    tercet_manifest.json          where it came from: source, calibration, plan, versions, hashes
    tokenizer.json, ...           as the source had them
    SHA256SUMS                    the seal: hashes of all of these files, for `sha256sum -c`

A packed module `M` (a linear or an embedding) is stored as `M.weight_packed`, `M.weight_scale`,
`M.weight_zero`, `M.weight_second` and `M.input_scale`, as far as its entry calls for them; every
other tensor keeps its own name and dtype.
"""

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, model_validator

from tercet.formats import Scheme, expected_parts, parse_scheme

QUANT_METHOD = "tercet"
FORMAT_VERSION = 1
MANIFEST_NAME = "tercet_manifest.json"
INDEX_NAME = "model.safetensors.index.json"

Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class PackedModule(BaseModel):
    """How one linear or embedding is stored, and what happens to its input.

    The input x [.., K] is multiplied by `input_scale` [K], then by the normalized Hadamard matrix
    of size `hadamard` along each run of that many columns, then quantized as `activation` says.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    shape: tuple[int, int]
    activation: Literal["int8_token", "fp8_token"] | None = None
    hadamard: int | None = None
    input_scale: bool = False

    @model_validator(mode="after")
    def _hadamard_fits(self) -> "PackedModule":
        size = self.hadamard
        if size is not None and (size < 1 or size & (size - 1) or self.shape[1] % size):
            raise ValueError(f"hadamard {size} is no power of two that divides {self.shape[1]}")
        return self

    @property
    def scheme(self) -> Scheme:
        """The number format; FormatError where its name is unknown."""
        return parse_scheme(self.format)

    def layout(self, module: str) -> Layout:
        """dtype and shape of every tensor that the module has in the files."""
        parts = expected_parts(self.scheme, self.shape)
        layout: Layout = {f"{module}.weight_{part}": spec for part, spec in parts.items()}
        if self.input_scale:
            layout[f"{module}.input_scale"] = (torch.float16, (self.shape[1],))
        return layout


class QuantizationConfig(BaseModel):
    """The `quantization_config` of config.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quant_method: Literal["tercet"] = QUANT_METHOD
    version: Literal[1] = FORMAT_VERSION
    modules: dict[str, PackedModule]

    def layout(self) -> Layout:
        """dtype and shape of every tensor of every packed module."""
        layout: Layout = {}
        for name, module in self.modules.items():
            layout.update(module.layout(name))
        return layout


class SourceInfo(BaseModel):
    """The model that was compressed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reference: str
    sha256: str
    size_bytes: int
    parameters: int


class CalibrationInfo(BaseModel):
    """The text that the algorithms saw."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    sequences: int
    length: int


class ModuleInfo(BaseModel):
    """How one module came about; relative_error = |W - Q|_F / |W|_F in the basis of W."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    algorithm: str
    options: dict[str, str | int | float | bool | None]
    relative_error: float


class FileInfo(BaseModel):
    """One safetensors file: its size, and hashes of its header and of the whole."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size_bytes: int
    header_sha256: str
    sha256: str


class Manifest(BaseModel):
    """tercet_manifest.json. Holds no times, so that equal inputs give equal bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = FORMAT_VERSION
    source: SourceInfo
    calibration: CalibrationInfo | None
    plan: dict[str, object]
    versions: dict[str, str]
    modules: dict[str, ModuleInfo]
    files: dict[str, FileInfo]
