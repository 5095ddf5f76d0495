"""Allocation by latency: formats are timed in the decoder; here a clock that is simulated says how
long a token takes, from the packed weights of the decoder that it is given."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tercet.compress.allocate.costs import find_costs
from tercet.compress.allocate.latency import (
    LatencyLimit,
    formats_of,
    group_modules,
    load_latencies,
    parse_latency,
)
from tercet.compress.allocate.sensitivity_file import Measured, Sensitivity
from tercet.errors import CheckpointError, PlanError
from tercet.models import Decoder
from tercet.models.architectures import find_architecture
from tercet.models.decoder.linear import packed_behind
from tercet.models.decoder.mlp import Routed
from tercet.workflows.allocation.latency import Timed, allocate_latency, kept_path

CPU = "cpu"


def config(model: Path) -> dict[str, Any]:
    from tercet.checkpoints.sources.open import open_source

    return open_source(model).config


def bytes_of(decoder: Decoder) -> list[int]:
    """Of the products that a token needs, each a module of the decoder's."""
    found = list[int]()
    for layer in decoder._layers:  # pyright: ignore[reportPrivateUsage]
        assert not isinstance(layer.mlp, Routed)
        for linear in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down):
            one = packed_behind(linear)
            assert one is not None, "products of one input run as one"
            found.append(one.weight.size_bytes)
    return found


class Clock:
    """A token takes 5 us a product and a nanosecond a byte; more where formats are mixed."""

    def __init__(self, mixed: float = 0.0) -> None:
        self.mixed, self.calls = mixed, 0

    def __call__(self, decoder: Decoder, context: int) -> float:
        assert context == 32  # half of what the model has positions for
        self.calls += 1
        sizes = bytes_of(decoder)
        us = sum(5 + size / 1e3 for size in sizes)
        return us * (1 + self.mixed * (len(set(sizes)) > 4))


@pytest.fixture
def drawn(measured: tuple[Path, Sensitivity]) -> Sensitivity:
    """The model's own modules, each format half as bad as the one before, and some much worse."""
    sensitivity = measured[1]
    lines = dict[tuple[str, str], Measured]()
    for at, (name, one) in enumerate(sensitivity.identity.modules.items()):
        for worth, form in enumerate(one.formats):
            nats = (1 + at * 7 % 5) * 0.5**worth
            lines[name, form] = Measured(module=name, format=form, kl_nats=nats, proxy_nats=None)
    return Sensitivity(identity=sensitivity.identity, context_kl_nats=0.0, lines=lines)


@pytest.fixture
def allocate(drawn: Sensitivity, model: Path, tmp_path: Path) -> Callable[..., Timed]:
    def run(us: float, clock: Clock, device: str | None = CPU) -> Timed:
        limit = LatencyLimit(us=us, device=device)
        kept = tmp_path / "kept.json"
        return allocate_latency(drawn, limit, kept, lambda: config(model), step_us=clock)

    return run


def every_choice(drawn: Sensitivity, model: Path) -> list[dict[str, str]]:
    modules = drawn.identity.modules
    groups = group_modules(modules, find_architecture(config(model)))
    forms = [formats_of(group, modules) for group in groups]
    return [
        {name: form for group, form in zip(groups, some, strict=True) for name in group}
        for some in product(*forms)
    ]


def test_products_of_one_input_are_one_group(drawn: Sensitivity, model: Path) -> None:
    groups = group_modules(drawn.identity.modules, find_architecture(config(model)))
    first = "model.layers.1.self_attn."
    assert (f"{first}q_proj", f"{first}k_proj", f"{first}v_proj") in groups
    assert ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj") in groups
    assert ("model.layers.0.mlp.down_proj",) in groups
    assert sorted(name for group in groups for name in group) == sorted(drawn.identity.modules)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_best_choice_that_is_fast_enough(
    allocate: Callable[..., Timed], drawn: Sensitivity, model: Path, tmp_path: Path, share: float
) -> None:
    clock = Clock()
    allocate(1e9, clock)
    known, costs = load_latencies(tmp_path / "kept.json", drawn), find_costs(drawn)
    every = every_choice(drawn, model)
    times = [known.predict_us(one) for one in every]
    limit = min(times) + share * (max(times) - min(times)) + 0.01
    found = allocate(limit, clock)
    assert found.measured_us is not None
    assert found.measured_us <= limit
    assert found.measured_us == pytest.approx(found.predicted_us)
    sums = [costs.sum_of(one) for one, us in zip(every, times, strict=True) if us <= limit]
    assert found.allocation.sum_nats == pytest.approx(min(sums))


def test_a_prediction_that_is_too_low_is_corrected(allocate: Callable[..., Timed]) -> None:
    """Mixed formats are a tenth slower than their parts: what is returned was timed itself."""
    clock = Clock(mixed=0.1)
    slowest = allocate(1e9, clock).measured_us
    assert slowest is not None
    for share in (0.8, 0.9, 0.97):
        found = allocate(share * slowest, clock)
        assert found.measured_us is not None
        assert found.measured_us <= share * slowest


def test_what_was_measured_is_kept(
    allocate: Callable[..., Timed], drawn: Sensitivity, tmp_path: Path
) -> None:
    clock = Clock()
    allocate(1e9, clock)
    first, clock.calls = clock.calls, 0
    # four kinds of groups in two other formats, the base, and the choice itself
    assert first == 4 * 2 + 2
    allocate(1e9, clock)
    assert clock.calls == 1
    kept = tmp_path / "kept.json"
    kept.write_text(kept.read_text().replace('"device": "cpu', '"device": "NVIDIA H200'))
    elsewhere = allocate(1e9, clock, "h200")
    assert clock.calls == 1
    assert elsewhere.measured_us is None
    assert elsewhere.device.startswith("NVIDIA H200")
    with pytest.raises(PlanError, match="was measured on NVIDIA H200"):
        allocate(1e9, clock, "mi300")
    other = drawn.identity.source.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(PlanError, match="of another model"):
        load_latencies(kept, with_identity(drawn, source=other))
    fewer = {name: one for name, one in drawn.identity.modules.items() if "down" not in name}
    with pytest.raises(PlanError, match="other modules or formats"):
        load_latencies(kept, with_identity(drawn, modules=fewer))
    kept.write_text("{}")
    with pytest.raises(CheckpointError, match="holds no latencies"):
        allocate(1e9, clock)


def with_identity(sensitivity: Sensitivity, **changed: object) -> Sensitivity:
    identity = sensitivity.identity.model_copy(update=changed)
    return Sensitivity(identity=identity, context_kl_nats=0.0, lines=sensitivity.lines)


def test_a_device_that_is_not_here(allocate: Callable[..., Timed]) -> None:
    clock = Clock()
    with pytest.raises(PlanError, match=r"there is no tpu here, and .*kept.json does not exist"):
        allocate(1e3, clock, "tpu")
    assert not clock.calls


def test_no_choice_is_fast_enough(allocate: Callable[..., Timed]) -> None:
    with pytest.raises(PlanError, match="the fastest choice of the measured formats takes"):
        allocate(1.0, Clock())


def test_where_latencies_are_kept(tmp_path: Path) -> None:
    file, far = tmp_path / "s.jsonl", tmp_path / "s.latency-nvidia-h200.json"
    assert kept_path(file, LatencyLimit(us=1.0, device=CPU)).name == "s.latency-cpu.json"
    assert kept_path(file, LatencyLimit(us=1.0, device="tpu")).name == "s.latency-tpu.json"
    far.touch()
    assert kept_path(file, LatencyLimit(us=1.0, device="h200")) == far


@pytest.mark.parametrize(
    ("text", "us", "device"),
    [("1.2ms", 1200.0, None), ("H200:1.2ms", 1200.0, "h200"), ("cpu: 900 us", 900.0, "cpu")],
)
def test_a_limit(text: str, us: float, device: str | None) -> None:
    assert parse_latency(text) == LatencyLimit(us=us, device=device)


@pytest.mark.parametrize("text", ["", "1.2", "h200", "ms", "0ms", "-1ms", "1.2 minutes"])
def test_no_limit(text: str) -> None:
    with pytest.raises(PlanError, match="give the time of a token"):
        parse_latency(text)
