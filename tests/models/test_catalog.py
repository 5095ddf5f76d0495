"""The catalog: parameters counted from each shape are those that the authors publish."""

import pytest

from tercet.errors import UnsupportedError
from tercet.models import catalog

# the safetensors totals of the Hugging Face repositories; DeepSeek-V3 and Kimi-K2 by their reports
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "qwen3-0.6b": 596_049_920,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "llama-3-70b": 70_553_706_496,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-235b-a22b": 235_093_634_560,
    "llama-3-405b": 405_853_388_800,
    "deepseek-v3": 671_000_000_000,
    "kimi-k2": 1_030_000_000_000,
}


def test_the_catalog_is_whole_and_sorted() -> None:
    names = catalog.names()
    assert [name for name in names if name in PUBLISHED] == list(PUBLISHED)
    sizes = [catalog.read(name).parameters for name in names]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert catalog.read(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", catalog.names())
def test_parameters_counted_from_the_shape_are_those_of_the_entry(name: str) -> None:
    counted, stated = catalog.parameters(catalog.load(name)), catalog.read(name).parameters
    exact = name not in ("deepseek-v3", "kimi-k2")
    assert abs(counted / stated - 1) <= (0 if exact else 0.01)


def test_activated_parameters_of_a_mixture() -> None:
    """235B-A22B activates 22B: the same count with eight experts a layer."""
    model = catalog.load("qwen3-235b-a22b")
    each = 3 * model.hidden * model.expert_intermediate * model.layers
    idle = (model.experts - model.experts_per_token) * each
    assert abs((catalog.parameters(model) - idle) / 22e9 - 1) < 0.02


def test_load_splits_and_sets_tokens() -> None:
    model = catalog.load("llama-3-70b", tensor_parallel=8, tokens=77)
    assert (model.tokens, model.share(model.heads), model.share(model.vocabulary)) == (77, 8, 16032)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"did you mean 'llama-3-70b'"):
        catalog.load("llama3-70b")


def test_numbers_below_one_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="at least 1"):
        catalog.load("llama-3-8b", tensor_parallel=0)
