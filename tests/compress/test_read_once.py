"""compress reads each byte of the source's weights once, and its output does not depend on that."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tercet.checkpoints.sources.safetensors_header import read_header
from tercet.compress import memory
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan

PLAN = Plan.model_validate(
    {
        "name": "small",
        "calibration": {"match_teacher": 0.5},
        "rules": [
            {"match": "*embed_tokens", "format": "int4-g64", "algorithm": "rtn"},
            {"match": "*.v_proj", "keep": True},
            {"match": "*", "format": "nonary-g64", "algorithm": "gptq"},
        ],
    }
)


class CountedFile(io.FileIO):
    """Counts how often each byte of the file was read."""

    counts: ClassVar[dict[Path, Any]] = {}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._times = self.counts.setdefault(path, np.zeros(path.stat().st_size, dtype=np.int64))

    def readinto(self, data: Any, /) -> int:
        begin = self.tell()
        count = super().readinto(data) or 0
        self._times[begin : begin + count] += 1
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        begin = self.tell()
        data = super().read(size) or b""
        self._times[begin : begin + len(data)] += 1
        return data


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Path, Any]]:
    opened = Path.open

    def counted(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if path.name.endswith(".safetensors") and path.parent.name == "model" and mode == "rb":
            return CountedFile(path)
        return opened(path, mode, *more, **named)

    monkeypatch.setattr(Path, "open", counted)
    CountedFile.counts.clear()
    yield CountedFile.counts
    CountedFile.counts.clear()


def write_model(folder: Path, *, tied: bool, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder / "model")
    return folder / "model"


def tokens() -> Tensor:
    return torch.randint(3, 128, (8, 32), generator=torch.Generator().manual_seed(1))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*.*")}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_each_weight_is_read_once(
    tied: bool, dtype: torch.dtype, tmp_path: Path, counts: dict[Path, Any]
) -> None:
    model = write_model(tmp_path, tied=tied, dtype=dtype)
    compress(model, PLAN, tmp_path / "out", calibration=tokens())
    (path,) = counts
    for name, tensor in read_header(path).items():
        times = counts[path][tensor.begin : tensor.begin + tensor.size_bytes]
        assert times.tolist() == [1] * tensor.size_bytes, name


def test_shards_are_read_once_each(tmp_path: Path, counts: dict[Path, Any]) -> None:
    model = write_model(tmp_path, tied=False, dtype=torch.float32)
    LlamaForCausalLM.from_pretrained(model).save_pretrained(model, max_shard_size="100KB")
    (model / "model.safetensors").unlink()
    compress(model, PLAN, tmp_path / "out", calibration=tokens())
    assert len(counts) > 1
    for path, times in counts.items():
        begin = min(tensor.begin for tensor in read_header(path).values())
        assert (times[begin:] == 1).all(), path


def test_without_room_they_are_read_again_and_the_output_is_the_same(
    tmp_path: Path, counts: dict[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path, tied=False, dtype=torch.float32)
    compress(model, PLAN, tmp_path / "kept", calibration=tokens())
    counts.clear()
    monkeypatch.setattr(memory, "free_bytes", lambda: 0)
    found = compress(model, PLAN, tmp_path / "again", calibration=tokens())
    assert found.estimate.source_bytes == 0
    (path,) = counts
    begin = min(tensor.begin for tensor in read_header(path).values())
    assert (counts[path][begin:] >= 2).all()
    assert contents(tmp_path / "again") == contents(tmp_path / "kept")


def test_bytes_that_belong_to_no_weight_are_in_the_hash_alone(
    tmp_path: Path, counts: dict[Path, Any]
) -> None:
    model = write_model(tmp_path, tied=True, dtype=torch.float32)
    weights = load_file(model / "model.safetensors")
    save_file(
        {**weights, "model.extra": torch.full((64,), torch.nan)},
        model / "model.safetensors",
        metadata={"format": "pt"},
    )
    counts.clear()
    compress(model, PLAN, tmp_path / "out", calibration=tokens())
    (path,) = counts
    begin = min(tensor.begin for tensor in read_header(path).values())
    assert (counts[path][begin:] == 1).all()
