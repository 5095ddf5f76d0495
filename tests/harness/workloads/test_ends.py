"""Options beside the sizes of axes, products in range of what is not, faint gradients."""

import pytest
import torch

from tercet.harness.workloads.drawn import Drawn
from tercet.harness.workloads.ends import draw_ends
from tercet.ops.discover import find

ELEMENTS = 1 << 16


def _ends(name: str, seeds: int = 3) -> list[Drawn]:
    return [each for seed in range(seeds) for each in draw_ends(find(name), seed, 200, ELEMENTS)]


def test_a_window_is_beside_each_size() -> None:
    drawn = [each for each in _ends("attention") if "window" in each.workload.options]
    found = {
        (axis, int(each.workload.options["window"]) - size, each.workload.sizes["T"] == 1)
        for each in drawn
        for axis, size in each.workload.sizes.items()
        if axis in ("T", "N")
    }
    assert {("N", -1, True), ("N", 0, True), ("T", -1, False), ("T", 0, False)} <= found
    assert any(axis == "N" and by > 0 for axis, by, _ in found)


def test_an_option_that_cases_have_as_a_number_alone_is_beside_sizes() -> None:
    names = {name for each in _ends("rope") for name in each.workload.options}
    assert names <= {"interleaved", "per_sequence", "float32_angles"}


@pytest.mark.parametrize("name", ["rms_norm_quantized", "layer_norm"])
def test_large_rows_and_small_weights_have_results_in_range(name: str) -> None:
    op = find(name)
    opposed = [each for each in _ends(name) if each.powers.get("weight") == -90]
    assert opposed
    for each in opposed:
        arguments = each.arguments(op, 0)
        assert arguments["x"].abs().max() > 2.0**40
        assert 0 < arguments["weight"].abs().max() < 2.0**-80


def test_gradients_that_float16_has_few_digits_of() -> None:
    faint = [each for each in _ends("rms_norm") if each.incoming.power == -18]
    assert faint
    assert {each.workload.dtype for each in faint} == {torch.float16}
    assert all(each.powers["weight"] > 0 for each in faint)
