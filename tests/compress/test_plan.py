from pathlib import Path

import pytest

from tercet.compress.plan import Plan, load_plan, shipped_plans
from tercet.compress.ptq import algorithm
from tercet.errors import FormatError, PlanError, TercetError
from tercet.formats import parse_scheme

PLAN = """
name: mixed
rules:
  - {match: "*.layers.0.*", keep: true}
  - {match: "*.down_proj", format: int4-g64, algorithm: rtn}
  - {match: "*.layers.*", format: ternary-g64}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        ("model.layers.0.mlp.down_proj", 0),
        ("model.layers.1.mlp.down_proj", 1),
        ("model.layers.1.mlp.up_proj", 2),
        ("model.layers.10.mlp.up_proj", 2),
        ("lm_head", None),
        ("MODEL.LAYERS.1.up_proj", None),
    ],
)
def test_first_match_wins(tmp_path: Path, module: str, rule: int | None) -> None:
    plan = load_plan(written(tmp_path, PLAN))
    assert plan.rule(module) is (None if rule is None else plan.rules[rule])


def test_defaults(tmp_path: Path) -> None:
    plan = load_plan(written(tmp_path, PLAN))
    assert plan.rules[2].algorithm == "gptq"
    assert (plan.calibration.sequences, plan.calibration.length) == (24, 512)


@pytest.mark.parametrize("name", sorted(shipped_plans()))
def test_shipped_plan(name: str) -> None:
    plan = load_plan(name)
    assert plan.name == name
    layer = plan.rule("model.layers.3.mlp.up_proj")
    assert layer is not None
    assert (layer.format or "").startswith(name.partition("-")[0])
    for tied in (False, True):
        its = plan.of_model(tied)
        embedding = its.rule("model.embed_tokens")
        assert embedding is not None
        # only what is the head, too, has inputs
        assert tied or not algorithm(embedding.algorithm).needs_inputs
        assert its.rule("lm_head") is not None
    assert plan.rule("encoder.layer.0.attention.self.query") is layer
    for rule in plan.rules:
        parse_scheme(rule.format or "")


def test_rules_for_tied_models_only_and_for_others_only(tmp_path: Path) -> None:
    text = """
name: mixed
rules:
  - {match: "*embed*", tied: true, format: int4-g64}
  - {match: "*embed*", format: int8-g64, algorithm: rtn}
  - {match: "*", tied: false, format: int4-g32}
"""
    plan = load_plan(written(tmp_path, text))
    assert [rule.tied for rule in plan.rules] == [True, None, False]
    found = {
        tied: [(rule.match, rule.format) for rule in plan.of_model(tied).rules]
        for tied in (True, False)
    }
    assert found == {
        True: [("*embed*", "int4-g64"), ("*embed*", "int8-g64")],
        False: [("*embed*", "int8-g64"), ("*", "int4-g32")],
    }
    # what is written down says nothing of other models
    assert {rule.tied for tied in found for rule in plan.of_model(tied).rules} == {None}
    for tied, word in ((True, "not the head, too: this one's is"), (False, "is the head, too")):
        rules = [rule for rule in plan.rules if rule.tied == (not tied)]
        with pytest.raises(PlanError, match=word):
            plan.model_copy(update={"rules": tuple(rules)}).of_model(tied)


def test_the_three_names_of_the_command_line_are_shipped() -> None:
    assert {"ternary", "nonary", "int4"} <= set(shipped_plans())


@pytest.mark.parametrize("name", ["int3-g128", "nonary-g32", "ternary-g128", "int2-g64"])
def test_format_name_as_plan(name: str) -> None:
    plan = load_plan(name)
    assert plan.name == name
    layer = plan.rule("model.layers.0.mlp.up_proj")
    assert layer is not None
    assert layer.format == name
    embedding = plan.rule("model.embed_tokens")
    assert embedding is not None
    assert embedding.format != name


@pytest.mark.parametrize("name", ["int8-g128", "int6-channel", "fp8_e4m3"])
@pytest.mark.parametrize("tied", [True, False])
def test_with_a_wide_format_no_matrix_is_narrower_than_the_layers(name: str, tied: bool) -> None:
    plan = load_plan(name).of_model(tied)
    for module in ("model.embed_tokens", "lm_head", "transformer.wte", "model.layers.0.mlp.up"):
        rule = plan.rule(module)
        assert rule is not None
        assert rule.format == name, module


def test_a_format_between_the_plans_two_is_nowhere_undercut() -> None:
    plan = load_plan("int5-g128")
    embedding = {tied: plan.of_model(tied).rule("model.embed_tokens") for tied in (True, False)}
    assert {tied: rule and rule.format for tied, rule in embedding.items()} == {
        True: "int5-g64",
        False: "int5-g128",
    }


def test_unknown_format_as_plan() -> None:
    with pytest.raises(FormatError, match=r"did you mean 'nonary'.*shipped plans: int4, nonary"):
        load_plan("nonry")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nrules: []", "rules: "),
        ("name: a", "rules: Field required"),
        ("- 1", "a plan is a mapping with name and rules"),
        ("", "a plan is a mapping with name and rules"),
        ("name: [", "not YAML"),
        ("name: a\nsteps: 3\nrules: [{match: x, keep: true}]", "steps: unknown key 'steps'"),
        ("name: a\nrules: [{mach: x, keep: true}]", "rules.0.mach: unknown key 'mach': did you"),
        ("name: a\nrules: [{match: x, keep: true, bits: 4}]", "rules.0.bits: unknown key 'bits'"),
        (
            "name: a\nrules: [{match: x, keep: true, fromat: int4}]",
            "unknown key 'fromat': did you mean 'format'",
        ),
        ("name: a\nrules: [{match: x}]", "either a format or keep: true"),
        ("name: a\nrules: [{match: x, keep: true, format: int4-g64}]", "either a format or keep"),
        ("name: a\nrules: [{match: x, format: int44-g64}]", "int44"),
        ("name: a\nrules: [{match: x, format: int4-g64, algorithm: gtpq}]", "did you mean 'gptq'"),
        (
            "name: a\nrules: [{match: x, format: int4-g64, options: {dampng: 1}}]",
            "rule 'x', algorithm 'gptq': dampng: unknown key 'dampng'",
        ),
        (
            "name: a\ncalibration: {sequences: 0}\nrules: [{match: x, keep: true}]",
            "calibration.sequences: ",
        ),
        (
            "name: a\ncalibration: {seqs: 1}\nrules: [{match: x, keep: true}]",
            "calibration.seqs: unknown key 'seqs'",
        ),
    ],
)
def test_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TercetError) as caught:
        load_plan(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(PlanError, match="not YAML"):
        load_plan(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan\.yaml: No such file"):
        load_plan(tmp_path / "plan.yaml")


def test_plan_cannot_be_changed_or_extended() -> None:
    with pytest.raises(ValueError, match="extra"):
        Plan.model_validate({"name": "a", "rules": [{"match": "*", "keep": True}], "b": 1})


def test_fields_are_no_plan_yet() -> None:
    with pytest.raises(PlanError, match=r"a dict in the place of a plan: .* Plan\.model_validate"):
        load_plan({"name": "mine", "rules": []})  # pyright: ignore[reportArgumentType]
