"""An allocation as a plan: a rule for each kind of module, and one for each exception before it."""

from collections import Counter
from collections.abc import Mapping

import yaml

from tercet.compress.allocate.sensitivity_file import Identity
from tercet.compress.plan import Plan, Rule


def allocation_plan(identity: Identity, formats: Mapping[str, str], name: str) -> Plan:
    """The plan that gives each module its format, and all others none.

    Args:
        identity: whose plan has algorithms, options and calibration.
        formats: by module.
        name: of the plan.
    """
    base = Plan.model_validate(identity.plan)
    rules = {
        module: _rule(base, module).model_copy(update={"format": form, "match": module})
        for module, form in formats.items()
    }
    compact = base.model_copy(update={"name": name, "rules": (*_by_kind(identity, rules),)})
    stays = {name.removesuffix(".weight") for unit in identity.kept for name in unit}
    exact = all(_same(compact.rule(module), rule) for module, rule in rules.items())
    if exact and all(compact.rule(module) is None for module in stays):
        return compact
    return base.model_copy(update={"name": name, "rules": tuple(rules.values())})


def plan_yaml(plan: Plan, comment: str) -> str:
    """The file that `tercet compress --plan` takes.

    Args:
        plan: the plan.
        comment: one line at its beginning.
    """
    content = plan.model_dump(mode="json", exclude={"rules"}, exclude_none=True)
    lines = [f"# {comment}", yaml.safe_dump(content, sort_keys=False).rstrip(), "rules:"]
    for rule in plan.rules:
        kept = rule.model_dump(exclude_defaults=True)
        flow = yaml.safe_dump(kept, sort_keys=False, default_flow_style=True, width=10**6)
        lines.append(f"  - {flow.strip()}")
    return "\n".join(lines) + "\n"


def _rule(base: Plan, module: str) -> Rule:
    found = base.rule(module)
    assert found is not None
    return found


def _same(found: Rule | None, wanted: Rule) -> bool:
    return found is not None and found.model_copy(update={"match": wanted.match}) == wanted


def _by_kind(identity: Identity, rules: Mapping[str, Rule]) -> list[Rule]:
    """Exceptions by name, then a pattern a kind, such as `model.layers.*.mlp.up_proj`."""
    kinds: dict[str, list[Rule]] = {}
    for module, rule in rules.items():
        kinds.setdefault(_kind(identity, module), []).append(rule)
    exceptions: list[Rule] = []
    patterns: list[Rule] = []
    for kind, its in kinds.items():
        most = Counter(str(rule.format) for rule in its).most_common(1)[0][0]
        usual = next(rule for rule in its if rule.format == most)
        exceptions += [rule for rule in its if not _same(usual, rule)]
        patterns.append(usual.model_copy(update={"match": kind}))
    return [*exceptions, *patterns]


def _kind(identity: Identity, module: str) -> str:
    prefix = identity.layers_name + "."
    if not module.startswith(prefix):
        return module
    return f"{prefix}*.{module.removeprefix(prefix).partition('.')[2]}"
