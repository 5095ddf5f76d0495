"""What is measured is what a model with that one change gives, computed another way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tercet.checkpoints.output_lock import lock_output
from tercet.checkpoints.packed.read import open_packed
from tercet.compress.allocate.costs import rank_correlation
from tercet.compress.allocate.measure import Scope, choose_sample, measure_sensitivity
from tercet.compress.allocate.rows import Rows, Windows, split_rows
from tercet.compress.allocate.sensitivity_file import Sensitivity
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan, Rule
from tercet.errors import CheckpointError, PlanError, UnsupportedError
from tercet.models.input_transform import InputTransform

FORMATS = ("ternary-g64", "int3-g64", "int4-g64-asym")
WINDOWS = Windows(count=2, length=24)
UP, HEAD, EMBEDDING = "model.layers.1.mlp.up_proj", "lm_head", "model.embed_tokens"


def rows_of(tokens: Tensor) -> Rows:
    return split_rows(tokens, 32, WINDOWS)


def direct_kl(model: Path, checkpoint: Path, windows: Tensor) -> float:
    """Of transformers' own model with the checkpoint's weights, float64 in the end."""
    teacher: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    student: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    packed = open_packed(checkpoint)
    for name, entry in packed.modules.items():
        module = student.get_submodule(name)
        module.weight.data = packed.read_packed(name).dequantize()
        scale = packed.input_scale(name) if entry.input_scale else None
        transform = InputTransform(scale=scale, hadamard=entry.hadamard)
        if not transform.identity:
            module.register_forward_pre_hook(lambda _, x, t=transform: (t(x[0]), *x[1:]))
    with torch.no_grad():
        log_p, log_q = (m(windows).logits.double().log_softmax(-1) for m in (teacher, student))
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def only(plan: Plan, module: str, form: str) -> Plan:
    rule = plan.rule(module)
    assert rule is not None
    one = rule.model_copy(update={"match": module, "format": form})
    return plan.model_copy(update={"rules": (one,)})


@pytest.mark.parametrize(
    ("module", "form"),
    [
        ("model.layers.0.self_attn.v_proj", "ternary-g64"),
        ("model.layers.0.mlp.down_proj", "int3-g64"),
        (UP, "ternary-g64"),
        (HEAD, "int8-g64"),
        (EMBEDDING, "int8-g64"),
    ],
)
def test_divergence_of_one_module(
    measured: tuple[Path, Sensitivity],
    model: Path,
    tokens: Tensor,
    plan: Plan,
    tmp_path: Path,
    module: str,
    form: str,
) -> None:
    rows = rows_of(tokens)
    compress(
        model,
        only(plan, module, form),
        tmp_path / "out",
        calibration=rows.calibration,
        device="cpu",
    )
    wanted = direct_kl(model, tmp_path / "out", rows.windows)
    found = measured[1].lines[module, form].kl_nats
    assert wanted > 1e-6
    assert found == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("algorithm", ["gptq", "hadamard", "awq"])
def test_in_the_context_of_a_plan(
    model: Path, tokens: Tensor, plan: Plan, tmp_path: Path, algorithm: str
) -> None:
    rules = (
        *plan.rules[:2],
        plan.rules[2].model_copy(update={"algorithm": algorithm, "format": "int4-g64"}),
    )
    context = plan.model_copy(update={"rules": rules})
    scope = Scope(formats=("ternary-g64", "int4-g64"), head=True, in_context=True)
    found = measure_sensitivity(
        model,
        scope,
        tmp_path / "s",
        plan=context,
        calibration=tokens,
        windows=WINDOWS,
        device="cpu",
    )
    rows = rows_of(tokens)
    compress(model, context, tmp_path / "out", calibration=rows.calibration, device="cpu")
    wanted = direct_kl(model, tmp_path / "out", rows.windows)
    assert found.context_kl_nats == pytest.approx(wanted, rel=1e-3)
    # as the context has it: no change
    assert found.lines[UP, "int4-g64"].kl_nats == found.context_kl_nats
    # nothing behind the head is fitted to what it gives
    head = context.rules[1].model_copy(update={"format": "ternary-g64"})
    changed = context.model_copy(update={"rules": (context.rules[0], head, context.rules[2])})
    compress(model, changed, tmp_path / "changed", calibration=rows.calibration, device="cpu")
    wanted = direct_kl(model, tmp_path / "changed", rows.windows)
    assert found.lines[HEAD, "ternary-g64"].kl_nats == pytest.approx(wanted, rel=1e-3)


def test_all_formats_for_embedding_and_head(
    model: Path, tokens: Tensor, plan: Plan, tmp_path: Path
) -> None:
    scope = Scope(formats=("int3-g64", "int4-g64"), embedding=True, head=True)
    found = measure_sensitivity(
        model, scope, tmp_path / "s", plan=plan, calibration=tokens, windows=WINDOWS, device="cpu"
    )
    for module in (EMBEDDING, HEAD):
        three, four = (found.lines[module, form].kl_nats or 0 for form in scope.formats)
        assert three > 2 * four > 0


@pytest.mark.parametrize("in_context", [False, True])
def test_an_embedding_that_is_rounded_as_the_head(
    tied_model: Path, tokens: Tensor, plan: Plan, tmp_path: Path, in_context: bool
) -> None:
    table = Rule(match="*embed_tokens", tied=True, format="int3-g64")
    context = plan.model_copy(update={"rules": (table, *plan.rules)})
    scope = Scope(formats=("int3-g64", "int4-g64"), embedding=True, in_context=in_context)
    found = measure_sensitivity(
        tied_model,
        scope,
        tmp_path / "s",
        plan=context,
        calibration=tokens,
        windows=WINDOWS,
        device="cpu",
    )
    rows = rows_of(tokens)
    finer = table.model_copy(update={"format": "int4-g64"})
    rules = (finer, *plan.rules) if in_context else (finer,)
    changed = context.model_copy(update={"rules": rules})
    compress(tied_model, changed, tmp_path / "changed", calibration=rows.calibration, device="cpu")
    wanted = direct_kl(tied_model, tmp_path / "changed", rows.windows)
    assert found.lines[EMBEDDING, "int4-g64"].kl_nats == pytest.approx(wanted, rel=0.01)


def test_finer_formats_hurt_less(measured: tuple[Path, Sensitivity]) -> None:
    lines = measured[1].lines
    for module in measured[1].identity.modules:
        if module.startswith("model.layers"):
            ternary, three, four = (lines[module, form].kl_nats or 0 for form in FORMATS)
            assert ternary > three > four > 0


def test_the_proxy_ranks_as_divergence_does(measured: tuple[Path, Sensitivity]) -> None:
    correlation = rank_correlation(measured[1])
    assert correlation is not None
    assert correlation[1] == 43
    assert correlation[0] > 0.9


def test_a_proxy_for_all_and_divergence_for_some(
    measured: tuple[Path, Sensitivity], model: Path, tokens: Tensor, plan: Plan, tmp_path: Path
) -> None:
    scope = Scope(formats=FORMATS, divergences=5)
    found = measure_sensitivity(
        model, scope, tmp_path / "s", plan=plan, calibration=tokens, windows=WINDOWS, device="cpu"
    )
    known = {pair for pair, line in found.lines.items() if line.kl_nats is not None}
    assert len(known) == 5 + 1
    assert (EMBEDDING, "int8-g64") in known
    for pair, line in found.lines.items():
        assert line.proxy_nats == measured[1].lines[pair].proxy_nats
        assert line.kl_nats == (measured[1].lines[pair].kl_nats if pair in known else None)


def test_rows_serve_once() -> None:
    for count in range(3, 40):
        rows = torch.arange(count)[:, None].repeat(1, 8)
        for windows in range(1, (count - 1) // 2 + 1):
            found = split_rows(rows, 8, Windows(count=windows, length=8))
            parts = (found.calibration, found.windows, found.held_out)
            assert [len(part) for part in parts] == [count - 2 * windows, windows, windows]
            assert sorted(torch.cat(parts)[:, 0].tolist()) == list(range(count))


def test_too_few_rows(model: Path, tokens: Tensor, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"shape \[4, 32\].*leave none to calibrate with"):
        measure_sensitivity(
            model,
            Scope(formats=FORMATS),
            tmp_path / "s",
            plan=plan,
            calibration=tokens[:4],
            windows=WINDOWS,
        )
    assert not (tmp_path / "s").exists()


def test_a_model_without_logits(tmp_path: Path, tokens: Tensor, plan: Plan) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(UnsupportedError, match="sensitivity is measured of language models only"):
        measure_sensitivity(
            tmp_path / "bert", Scope(formats=FORMATS), tmp_path / "s", plan=plan, calibration=tokens
        )


def test_a_file_that_another_run_writes_is_refused_before_the_model_is_read(
    tmp_path: Path, plan: Plan
) -> None:
    out = tmp_path / "s.jsonl"
    with lock_output(out), pytest.raises(CheckpointError, match="another run is writing there"):
        measure_sensitivity(tmp_path / "no model", Scope(formats=("int4",)), out, plan=plan)


@pytest.mark.parametrize("layers", [2, 16, 30, 32])
@pytest.mark.parametrize("formats", [1, 2, 3, 5, 6])
def test_a_sample_has_all_formats_and_kinds_alike(layers: int, formats: int) -> None:
    kinds = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    forms = [f"format-{form}" for form in range(formats)]
    every = [
        (f"model.layers.{layer}.mlp.{kind}", form)
        for layer in range(layers)
        for kind in kinds
        for form in forms
    ]
    for count in (5, 10, 14, 24, 30, 35, 42, 70):
        found = choose_sample(every, count)
        assert len(found) == min(count, len(every))
        of_form = [sum(form == each for _, each in found) for form in forms]
        assert max(of_form) - min(of_form) <= 1
        for form in forms:
            of_kind = [sum(kind in name and form == each for name, each in found) for kind in kinds]
            assert max(of_kind) - min(of_kind) <= 1
        # and they lie in more layers than one
        if count >= 10 and layers > 2:
            assert len({name.split(".")[2] for name, _ in found}) > 2
    assert choose_sample(every, None) == set(every) == choose_sample(every, 10_000)
    assert choose_sample(every, 24) == choose_sample(every, 24)
