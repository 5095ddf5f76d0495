"""Budgets are kept to the byte, and the plan that is written says what was solved."""

from itertools import product
from math import log, prod
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.checkpoints.packed.read import open_packed
from tercet.compress.allocate.budget import measure_size
from tercet.compress.allocate.costs import find_costs
from tercet.compress.allocate.measure import Scope, measure_sensitivity
from tercet.compress.allocate.rows import Windows
from tercet.compress.allocate.sensitivity_file import (
    Identity,
    Measured,
    Observed,
    Sensitivity,
    add_observed,
    load,
)
from tercet.compress.allocate.solve import Budget, solve
from tercet.compress.allocate.write_plan import allocation_plan, plan_yaml
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan, load_plan, train_blockwise
from tercet.errors import PlanError

FORMATS = ("ternary-g64", "int3-g64", "int4-g64-asym")


def with_costs(sensitivity: Sensitivity, some: list[float]) -> Sensitivity:
    """Few modules with other numbers: all choices of them can be tried."""
    names = [name for name in sensitivity.identity.modules if ".layers." in name][: len(some) // 3]
    modules = {name: sensitivity.identity.modules[name] for name in names}
    identity = sensitivity.identity.model_copy(update={"modules": modules})
    values = iter(some)
    lines = {
        (name, form): Measured(module=name, format=form, kl_nats=next(values), proxy_nats=None)
        for name in names
        for form in FORMATS
    }
    return Sensitivity(identity=identity, context_kl_nats=0.0, lines=lines)


@given(some=st.lists(st.floats(0, 2), min_size=12, max_size=12), share=st.floats(0, 1))
def test_best_within_bytes(
    measured: tuple[Path, Sensitivity], some: list[float], share: float
) -> None:
    sensitivity = with_costs(measured[1], some)
    names = list(sensitivity.identity.modules)
    every = [dict(zip(names, forms, strict=True)) for forms in product(FORMATS, repeat=len(names))]
    sizes = [measure_size(sensitivity, one).checkpoint_bytes for one in every]
    limit = int(min(sizes) + share * (max(sizes) - min(sizes)))
    found = solve(sensitivity, Budget(size_bytes=limit))
    assert found.size.checkpoint_bytes <= limit
    costs = find_costs(sensitivity)
    best = min(costs.predict(one) for one, size in zip(every, sizes, strict=True) if size <= limit)
    # headers vary by some bytes with the choice: at the very edge one module may be smaller
    tight = limit - 64
    nearly = min(
        (costs.predict(one) for one, size in zip(every, sizes, strict=True) if size <= tight),
        default=float("inf"),
    )
    assert best - 1e-7 <= found.predicted_kl_nats <= max(nearly, best) + 1e-7


@pytest.mark.parametrize("bits", [2.0, 2.6, 3.0, 3.9])
def test_bytes_are_those_of_the_checkpoint(
    measured: tuple[Path, Sensitivity], model: Path, tokens: Tensor, tmp_path: Path, bits: float
) -> None:
    found = solve(measured[1], Budget(bits=bits))
    plan = allocation_plan(measured[1].identity, found.formats, "p")
    compress(model, plan, tmp_path / "out", calibration=tokens)
    made = open_packed(tmp_path / "out")
    assert {name: one.format for name, one in made.modules.items()} == dict(found.formats)
    assert made.size_bytes == found.size.checkpoint_bytes
    layers = {name: one for name, one in made.modules.items() if ".layers." in name}
    weights = sum(prod(one.shape) for one in layers.values())
    packed = sum(one.scheme.size_bytes(one.shape) for one in layers.values())
    assert found.size.bits_per_weight == 8 * packed / weights <= bits
    # no module could get the next format as well
    assert found.size.bits_per_weight > bits - 0.3


def test_bytes_with_scales_of_inputs(
    model: Path, tokens: Tensor, plan: Plan, tmp_path: Path
) -> None:
    rules = (*plan.rules[:2], plan.rules[2].model_copy(update={"algorithm": "awq"}))
    awq = plan.model_copy(update={"rules": rules})
    scope = Scope(formats=("int3-g64", "int4-g64"), divergences=3)
    sensitivity = measure_sensitivity(
        model, scope, tmp_path / "s", plan=awq, calibration=tokens, windows=Windows(count=2)
    )
    found = solve(sensitivity, Budget(bits=3.9))
    made = tmp_path / "out"
    compress(
        model, allocation_plan(sensitivity.identity, found.formats, "p"), made, calibration=tokens
    )
    assert any(one.input_scale for one in open_packed(made).modules.values())
    assert open_packed(made).size_bytes == found.size.checkpoint_bytes
    assert found.estimated == len(sensitivity.lines) - 3 - 1  # and the embedding's


def test_more_bits_are_never_worse(measured: tuple[Path, Sensitivity]) -> None:
    found = [solve(measured[1], Budget(bits=2 + step / 10)) for step in range(25)]
    predicted = [one.predicted_kl_nats for one in found]
    assert predicted == sorted(predicted, reverse=True)
    assert predicted[0] > 5 * predicted[-1] > 0


@pytest.mark.parametrize(
    "budget", [Budget(size_bytes=1000), Budget(bits=1.5)], ids=["bytes", "bits"]
)
def test_an_impossible_budget_names_the_smallest(
    measured: tuple[Path, Sensitivity], budget: Budget
) -> None:
    with pytest.raises(PlanError, match="cannot be met") as caught:
        solve(measured[1], budget)
    words = str(caught.value).split()
    least = int(words[words.index("bytes,", 8) - 1].replace(",", ""))
    assert solve(measured[1], Budget(size_bytes=least)).size.checkpoint_bytes == least
    with pytest.raises(PlanError, match=f"{least:,} bytes"):
        solve(measured[1], Budget(size_bytes=least - 1))


def test_both_or_no_budget() -> None:
    for both in ({}, {"size_bytes": 5, "bits": 2.0}):
        with pytest.raises(PlanError, match="give either --bytes 60MB or --bits"):
            Budget(**both)
    with pytest.raises(PlanError, match="above 0"):
        Budget(bits=-1.0)


def test_an_unfinished_file(measured: tuple[Path, Sensitivity]) -> None:
    lines = dict(list(measured[1].lines.items())[:-5])
    part = Sensitivity(identity=measured[1].identity, context_kl_nats=0.0, lines=lines)
    with pytest.raises(PlanError, match=r"5 of 44 measurements are missing.*--resume"):
        solve(part, Budget(bits=3))


def test_plans_that_were_carried_out_correct_predictions(
    measured: tuple[Path, Sensitivity], tmp_path: Path
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(measured[0].read_bytes())
    plain = [solve(measured[1], Budget(bits=bits)) for bits in (2.2, 3.0, 3.8)]
    for one, factor in ((plain[0], 2.0), (plain[2], 0.5)):
        assert one.sum_nats == one.predicted_kl_nats
        seen = Observed(sum_nats=one.sum_nats, observed_kl_nats=factor * one.sum_nats)
        for _ in range(2):
            add_observed(path, seen)
    again = load(path)
    assert len(again.observed) == 2
    found = [solve(again, Budget(bits=bits)) for bits in (2.0, 2.2, 3.0, 3.8, 4.2)]
    assert [one.formats for one in found[1:4]] == [one.formats for one in plain]
    ratios = [one.predicted_kl_nats / one.sum_nats for one in found]
    # straight over the logarithm of the sum between them, the nearest one's beyond
    low, middle, high = (log(one.sum_nats) for one in (plain[2], plain[1], plain[0]))
    between = 0.5 * 4 ** ((middle - low) / (high - low))
    assert ratios == pytest.approx([2.0, 2.0, between, 0.5, 0.5])


@given(data=st.data())
def test_the_plan_says_each_modules_format(
    measured: tuple[Path, Sensitivity],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    identity = measured[1].identity
    formats = {
        name: data.draw(st.sampled_from(module.formats))
        for name, module in identity.modules.items()
    }
    plan = allocation_plan(identity, formats, "drawn")
    path = tmp_path_factory.mktemp("plan") / "p.yaml"
    path.write_text(plan_yaml(plan, "a comment"))
    again = load_plan(path)
    assert again == plan
    trained = train_blockwise(plan)
    path.write_text(plan_yaml(trained, "a comment"))
    assert load_plan(path) == trained, "whatever else a plan has stays in it"
    base = Plan.model_validate(identity.plan)
    for name, form in formats.items():
        rule, own = again.rule(name), base.rule(name)
        assert rule is not None
        assert own is not None
        assert (rule.format, rule.algorithm, rule.options) == (form, own.algorithm, own.options)
    assert len(plan.rules) <= len(formats)


def test_equal_formats_make_a_rule_a_kind(measured: tuple[Path, Sensitivity]) -> None:
    identity = measured[1].identity
    formats = {name: module.formats[-1] for name, module in identity.modules.items()}
    plan = allocation_plan(identity, formats, "p")
    assert len(plan.rules) == 9
    assert yaml.safe_load(plan_yaml(plan, "c"))["rules"][-2] == {
        "match": "model.layers.*.mlp.down_proj",
        "format": "int4-g64-asym",
    }


def test_a_layer_that_is_kept_stays_out_of_patterns(measured: tuple[Path, Sensitivity]) -> None:
    whole = measured[1].identity
    modules = {name: one for name, one in whole.modules.items() if ".layers.0." not in name}
    shapes = {f"{n}.weight": ("float32", one.shape) for n, one in whole.modules.items()}
    kept = ({}, {n: s for n, s in shapes.items() if ".layers.0." in n}, {}, {})
    identity = Identity.model_validate(
        {**whole.model_dump(), "modules": {n: m.model_dump() for n, m in modules.items()}}
        | {"kept": kept}
    )
    formats = {name: module.formats[0] for name, module in modules.items()}
    plan = allocation_plan(identity, formats, "p")
    assert plan.rule("model.layers.0.mlp.up_proj") is None
    assert all((rule := plan.rule(n)) and rule.format == form for n, form in formats.items())
