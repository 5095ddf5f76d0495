"""bitnet: bit-equal, and in transformers off by the rounding of inputs and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tercet
from tercet.errors import UnsupportedError
from tercet.export.bitnet import TARGET, pack_rows
from tercet.formats import encode, parse_scheme
from tercet.recipes.export_run import export

EMBEDDING = {"match": "model.embed_tokens", "format": "int8-g32", "algorithm": "rtn"}
TERNARY = {"match": "*.layers.*", "format": "ternary-tensor", "algorithm": "rtn"}
TOKENS = list(range(3, 19))

# transformers compiles its bitnet layers, and torch's compiler uses what torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


@pytest.mark.parametrize("shape", [(4, 1), (8, 5), (64, 33)])
def test_rows_are_packed_as_transformers_packs_them(shape: tuple[int, int]) -> None:
    from transformers.integrations.bitnet import pack_weights

    generator = torch.Generator().manual_seed(3)
    values = torch.randint(-1, 2, shape, generator=generator).float()
    scheme = parse_scheme("ternary-tensor")
    packed = encode(values, scheme, torch.ones(1, 1))
    assert torch.equal(pack_rows(packed), pack_weights(values.clone()))


@pytest.mark.parametrize("rules", [[EMBEDDING, TERNARY], [TERNARY]])
def test_verified_in_transformers(
    rules: list[dict[str, Any]], make_case: Callable[..., Any], tmp_path: Path
) -> None:
    packed = make_case("llama", True, *rules).packed
    report = export(packed, "bitnet", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client
    assert all(module.bit_equal for module in report.modules)
    assert report.main_module.kind == "bitnet ternary tensor"
    assert report.main_module.bits_per_weight == pytest.approx(2, abs=0.02)
    client = report.client
    assert client is not None
    assert client.twin_error < 1e-5
    assert client.error > 1e-4
    # once our own inputs are rounded in the same way, almost nothing is left
    assert client.rounded_error is not None
    assert client.rounded_error < client.error / 5


def test_a_kept_projection_and_an_own_head_stay_plain(
    make_case: Callable[..., Any], tmp_path: Path
) -> None:
    keep = {"match": "*.o_proj", "keep": True}
    packed = make_case("llama", False, EMBEDDING, keep, TERNARY).packed
    report = export(packed, "bitnet", tmp_path / "out", verify=True, tokens=TOKENS)
    assert report.passed, report.client


@pytest.mark.parametrize(
    ("kind", "rules", "fragments"),
    [
        ("llama", [{**TERNARY, "format": "ternary-g32"}], ["one scale a tensor", "ternary-tensor"]),
        ("llama", [{**TERNARY, "format": "nonary-tensor"}], ["ternary weights only"]),
        ("llama", [{**TERNARY, "algorithm": "hadamard"}], ["Hadamard", "huggingface"]),
        ("qwen2", [TERNARY], ["bias", "compressed-tensors"]),
    ],
)
def test_refusals_name_the_alternative(
    kind: str,
    rules: list[dict[str, Any]],
    fragments: list[str],
    make_case: Callable[..., Any],
    tmp_path: Path,
) -> None:
    packed = tercet.open_packed(make_case(kind, True, *rules).packed)
    with pytest.raises(UnsupportedError) as caught:
        TARGET.write(packed, tmp_path / "out")
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert list(tmp_path.iterdir()) == []
