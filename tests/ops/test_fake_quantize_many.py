"""Codes of many weights in one launch: those of each alone, and where they were."""

import pytest
import torch

from tercet.compress.qat import together
from tercet.compress.qat.options import Options
from tercet.compress.qat.swap import refresh
from tercet.compress.qat.weight import QuantizedWeight
from tercet.formats import parse_scheme
from tercet.kernel.interpreter import interpreting
from tercet.ops.fake_quantize import fake_quantize
from tercet.ops.fake_quantize.many import fake_quantize_many, fit

SCHEME = "ternary-channel-float32"
DEVICE = "cpu" if interpreting() else "cuda"


def weights(dtype: torch.dtype, columns: int = 48) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    rows = (24, 7, 1, 340)  # interpreted, a program has 256: some have room, one takes two
    return [torch.randn(n, columns, generator=generator).to(DEVICE, dtype) for n in rows]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", ["absmean", "absmax"])
def test_codes_of_many_are_those_of_each(dtype: torch.dtype, method: str) -> None:
    given = weights(dtype)
    codes = [torch.full_like(one, 99, dtype=torch.int8) for one in given]
    scales = [torch.full((len(one), 1), 99.0, device=DEVICE) for one in given]
    assert all(fit(*one, SCHEME, method) for one in zip(given, codes, scales, strict=True))
    fake_quantize_many(given, codes, scales, SCHEME, method)
    for weight, code, scale in zip(given, codes, scales, strict=True):
        wanted = fake_quantize(weight, scheme=SCHEME, method=method)
        assert torch.equal(code, wanted.codes)
        assert torch.equal(scale, wanted.scale)


def test_what_does_not_fit_is_told() -> None:
    weight = torch.ones(8, 64)
    codes, scale = torch.ones(8, 64, dtype=torch.int8), torch.ones(8, 1)
    assert fit(weight, codes, scale, SCHEME, "absmean")
    assert not fit(weight, codes, torch.ones(1, 1), "ternary-tensor", "absmean")
    assert not fit(weight, codes, torch.ones(8, 2), "ternary-g32", "absmean")
    assert not fit(weight, codes, scale, SCHEME, "learned")
    assert not fit(weight[:, ::2], codes[:, ::2], scale, SCHEME, "absmean")
    long = torch.ones(8, 1 << 15)
    assert not fit(long, long.to(torch.int8), scale, SCHEME, "absmean")


def test_a_refresh_of_many_is_that_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_cpu(module: QuantizedWeight) -> bool:
        codes, scale = module.made()
        fits = codes is not None and scale is not None and module.step is None
        return fits and fit(module.weight.data, codes, scale, SCHEME, module.options.method)

    monkeypatch.setattr(together, "_plain", on_a_cpu)
    names = "abcdef"
    options = Options(method="absmean", activation="int8_token", weight_gradient="int8")
    values = [*weights(torch.float32), *weights(torch.float32, 32)[:2]]

    def modules() -> dict[str, QuantizedWeight]:
        scheme = parse_scheme(SCHEME)
        return {
            name: QuantizedWeight(
                name, torch.nn.Parameter(value.clone()), scheme, options, torch.float32
            )
            for name, value in zip(names, values, strict=True)
        }

    many, each = modules(), modules()
    for step in range(3):
        with torch.no_grad():
            for one, other in zip(many.values(), each.values(), strict=True):
                one.weight.mul_(1 + step * one.weight.abs())
                other.weight.copy_(one.weight)
        before = [one.made()[0] for one in many.values()]
        refresh(many, step=step, counting=False)
        refresh(each, step=step, counting=True)
        for index, (one, other) in enumerate(zip(many.values(), each.values(), strict=True)):
            assert torch.equal(one.codes, other.codes)
            assert torch.equal(one.scale, other.scale)
            assert one.seed is not None
            assert int(one.seed) == step * len(names) + index
            assert step == 0 or one.codes is before[index]
