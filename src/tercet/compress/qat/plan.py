"""Which modules train in which format: any plan, its rules turned to the algorithm "qat"."""

from tercet.compress.plan import Plan, Rule, load_plan
from tercet.errors import PlanError, UnsupportedError
from tercet.formats import parse_scheme
from tercet.ops.fake_quantize.rule import rule_of

ALGORITHM = "qat"


def training_plan(plan: str | Plan) -> Plan:
    """The plan with every format trained: rules of other algorithms become "qat" with its defaults.

    Args:
        plan: a shipped plan, a format, a plan file or a Plan.

    Raises:
        PlanError: a rule's format cannot be trained.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    rules = tuple(_to_trainable(rule) for rule in loaded.rules)
    return loaded.model_copy(update={"rules": rules})


def _to_trainable(rule: Rule) -> Rule:
    if rule.format is None:
        return rule
    if rule.algorithm != ALGORITHM:
        rule = rule.model_copy(update={"algorithm": ALGORITHM, "options": {}})
    options, scheme = rule.parsed_options().model_dump(), parse_scheme(str(rule.format))
    try:
        rule_of(scheme.name, options["method"])
    except UnsupportedError as error:
        raise PlanError(f"rule {rule.match!r} cannot be trained: {error}") from error
    return rule
