"""Batch: codes of many weights by one launch are those of each alone, to the bit."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tercet.compress.plan import Plan
from tercet.compress.qat import batch
from tercet.compress.qat.sharding.wire import wire_of
from tercet.compress.qat.swap import refresh, swap
from tercet.formats import parse_scheme
from tercet.ops.fake_quantize import fake_quantize, quantize_together, weights_codes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def some(rows: int, columns: int, dtype: torch.dtype, seed: int) -> Tensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight[0] = 0
    weight[-1, -1] = torch.nan
    return weight.to(dtype).to(DEVICE)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of NaN
@pytest.mark.parametrize(
    ("scheme", "method", "dtype"),
    [
        ("ternary-channel", "absmean", torch.float32),
        ("ternary-channel-float32", "absmax", torch.bfloat16),
        ("nonary-channel", "absmean", torch.float32),
        ("int8-channel-bfloat16", "absmax", torch.float16),
        ("nonary-channel", "learned", torch.float32),
        ("ternary-channel", "stretched", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("columns", [16, 272])
def test_together_is_each_alone(scheme: str, method: str, dtype: torch.dtype, columns: int) -> None:
    wire = wire_of(parse_scheme(scheme))
    weights = [some(rows, columns, dtype, rows) for rows in (3, 130, 1)]
    assert all(weights_codes.fits(weight) for weight in weights)
    steps = None
    if method in ("learned", "stretched"):
        steps = [0.3 + torch.rand(len(weight), 1).to(DEVICE) for weight in weights]
    alone = [
        fake_quantize(weight, step, scheme=scheme, method=method)
        for weight, step in zip(weights, steps or [None] * 3, strict=True)
    ]
    before = [made.codes.clone() for made in alone]
    before[1][7, 5] += 1
    before[2][0, 0] += 1
    made = quantize_together(
        weights, steps, scheme=scheme, method=method, bits=wire.bits, before=before
    )
    assert int(made.changed) == 2
    for at, one in enumerate(alone):
        assert torch.equal(made.codes[at], one.codes)
        assert torch.equal(made.scales[at].nan_to_num(-1), one.scale.nan_to_num(-1))
        assert torch.equal(made.packed[at], wire.pack(one.codes))
    made = quantize_together(weights, steps, scheme=scheme, method=method)
    assert (made.packed, int(made.changed)) == ([], 0)
    assert torch.equal(made.codes[1], alone[1].codes)


@pytest.mark.parametrize(
    ("most", "method"), [(1, "absmean"), (3000, "learned"), (1 << 20, "absmax")]
)
def test_a_refresh_in_batches_is_one_of_each(
    most: int, method: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"method": method, "activation": "int8_token"}
    rule = {"match": "*.layers.*", "format": "ternary-channel", "algorithm": "qat"}
    plan = Plan.model_validate({"name": "layers", "rules": [{**rule, "options": options}]})
    network = LlamaForCausalLM.from_pretrained(model).to(DEVICE)
    # copies: what lies in a file's memory is not aligned
    one, other = (swap(copy.deepcopy(network), plan) for _ in range(2))
    monkeypatch.setattr(batch, "_MOST_CODES", most)
    for step in range(3):
        monkeypatch.setattr(batch, "fits_together", lambda *_: False)
        found = refresh(one, step=step)
        monkeypatch.setattr(batch, "fits_together", lambda weight, *_: weights_codes.fits(weight))
        assert batch.group_batches(other.values())[0]
        assert tuple(map(int, refresh(other, step=step))) == tuple(map(int, found))
        assert (int(found[0]) > 0) == (step > 0)
        for a, b in zip(one.values(), other.values(), strict=True):
            assert torch.equal(a.codes, b.codes)
            assert torch.equal(a.scale, b.scale)
            for module in (a, b):
                noise = torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(1))
                module.weight.data += 0.02 * noise.to(DEVICE)
