"""Plan: which layer gets which number format, by which algorithm; first match wins.

A plan is a YAML file:

    name: ternary
    calibration: {sequences: 24, length: 512}
    rules:
      - {match: "*embed_tokens", format: int4-g64, algorithm: rtn}
      - {match: "*.layer*.*", format: ternary-g64, algorithm: gptq, options: {refine: 4}}
      - {match: "*", keep: true}

`match` is a shell pattern (fnmatch) on the module's name; a rule with `tied: true` is only for
models whose embedding is the head, too. Unknown keys are refused, wherever.
"""

from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tercet.checkpoints.named_path import is_path
from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.ptq import algorithm
from tercet.errors import FormatError, PlanError, unknown_name
from tercet.formats import parse_scheme


class Rule(BaseModel):
    """One rule of a plan: quantize matching modules to a format, or keep them uncompressed.

    Attributes:
        match: shell pattern (fnmatch) for module names.
        tied: whether the rule is only for models whose embedding is the head, too (true), or only
            for others (false); None for all.
        keep: leave matching modules uncompressed.
        format: number format, such as "ternary-g64"; None with keep.
        algorithm: quantization algorithm, a name in `algorithms()`. An embedding has no inputs, so
            it takes rtn or hqq; one that is the head, too (tied), also gptq, which then rounds it
            for what the head reads, after all layers.
        options: the algorithm's options.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str
    tied: bool | None = None
    keep: bool = False
    format: str | None = None
    algorithm: str = "gptq"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _either_keep_or_format(self) -> "Rule":
        if self.keep == (self.format is not None):
            raise ValueError("a rule has either a format or keep: true")
        return self

    def check(self) -> None:
        """Raise FormatError or PlanError if the format, the algorithm or an option is unknown."""
        if self.format is None:
            return
        parse_scheme(self.format)
        self.parsed_options()

    def parsed_options(self) -> BaseModel:
        """Parse the options into the algorithm's options model, with its defaults."""
        model = algorithm(self.algorithm).options
        try:
            return model.model_validate(self.options)
        except ValidationError as error:
            raise PlanError(
                f"rule {self.match!r}, algorithm {self.algorithm!r}: "
                f"{_first(error, list(model.model_fields))}"
            ) from error


class Calibration(BaseModel):
    """Calibration data of a plan: evenly spaced sequences of the calibration text.

    Attributes:
        sequences: number of sequences.
        length: tokens per sequence.
        match_teacher: from 0 to 1, how far each layer corrects the errors of the layers before it
            by aiming at the uncompressed model's outputs. Above 0, the uncompressed model's hidden
            states are computed too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sequences: int = Field(default=24, ge=1)
    length: int = Field(default=512, ge=8)
    match_teacher: float = Field(default=0.5, ge=0, le=1)


class Plan(BaseModel):
    """A compression plan: its rules say which module gets which format; the first match wins.

    Attributes:
        name: the plan's name.
        calibration: the calibration data.
        blockwise: how each layer's weights are trained together after their algorithms, for the
            layer's output; None where they are not.
        rules: the rules.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    calibration: Calibration = Calibration()
    blockwise: Blockwise | None = None
    rules: tuple[Rule, ...] = Field(min_length=1)

    def rule(self, module: str) -> Rule | None:
        """Return the first rule that matches the module's name, or None.

        A name counts with a dot before it, too: a model without a head has `layers.0` where one
        with a head has `model.layers.0`.
        """
        names = module, f".{module}"
        return next(
            (rule for rule in self.rules if any(fnmatchcase(name, rule.match) for name in names)),
            None,
        )

    def of_model(self, tied: bool) -> "Plan":
        """The plan without the rules that are for other models.

        Args:
            tied: whether the model's embedding is its head, too.

        Raises:
            PlanError: no rule is left.
        """
        rules = tuple(
            rule.model_copy(update={"tied": None})
            for rule in self.rules
            if rule.tied in (None, tied)
        )
        if not rules:
            raise PlanError(
                f"plan {self.name!r}: every rule is for models whose embedding is "
                f"{'not ' if tied else ''}the head, too: this one's is{'' if tied else ' not'}"
            )
        return self.model_copy(update={"rules": rules})


EFFORTS: dict[str, int | None] = {"fast": 16, "default": None, "best": 256}
"""Calibration sequences of each effort; None leaves the plan's."""


def set_calibration(
    plan: Plan,
    *,
    effort: str = "default",
    sequences: int | None = None,
    length: int | None = None,
) -> Plan:
    """The plan with more or less calibration data: time and quality both grow with it.

    Args:
        plan: a plan.
        effort: one of EFFORTS.
        sequences: number of sequences; None leaves it to the effort.
        length: tokens per sequence; None leaves it to the plan.

    Raises:
        PlanError: an unknown effort, or a number that the plan could not have.
    """
    if effort not in EFFORTS:
        raise PlanError(unknown_name("effort", effort, EFFORTS))
    count = EFFORTS[effort] if sequences is None else sequences
    changes = {"sequences": count, "length": length}
    wanted = {key: value for key, value in changes.items() if value is not None}
    try:
        calibration = Calibration.model_validate({**plan.calibration.model_dump(), **wanted})
    except ValidationError as error:
        raise PlanError(f"calibration: {_first(error, list(Calibration.model_fields))}") from error
    return plan.model_copy(update={"calibration": calibration})


def train_blockwise(plan: Plan) -> Plan:
    """The plan with the training of each layer's weights, by default settings unless it has some.

    What is trained wants more tokens than what is solved: a plan without such training gets 128
    sequences, if it has fewer.
    """
    if plan.blockwise is not None:
        return plan
    sequences = max(plan.calibration.sequences, _SEQUENCES_TO_TRAIN)
    calibration = plan.calibration.model_copy(update={"sequences": sequences})
    return plan.model_copy(update={"blockwise": Blockwise(), "calibration": calibration})


# of 512 tokens, what the shipped text has enough of
_SEQUENCES_TO_TRAIN = 128


def shipped_plans() -> dict[str, Path]:
    """Return the paths of the plans that ship with the package, by plan name."""
    folder = Path(str(files("tercet.compress"))) / "plans"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}


def load_plan(reference: str | Path) -> Plan:
    """Load a plan by a shipped plan's name, the path of a plan file, or a number format's name.

    A format name such as "int3-g128" stands for the shipped plan of its element with that format
    in every decoder layer, and wherever the plan has fewer bits: with "int8-g64", embedding and
    head, too.

    Raises:
        PlanError, FormatError: a name is unknown or the file is malformed; the message offers the
            nearest names.
    """
    if not is_path(reference):
        raise PlanError(
            f"a {type(reference).__name__} in the place of a plan: give the name of a plan or a "
            f"format, the path of a plan file, or Plan.model_validate(fields)"
        )
    path = Path(reference)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return _read(path)
    name = str(reference)
    if name in shipped_plans():
        return _read(shipped_plans()[name])
    _check_format(name)
    base = _read(shipped_plans()[_BASE_OF.get(name.split("-")[0], "int4")])
    rules = tuple(
        rule.model_copy(update={"format": name})
        if rule.match in _LAYERS or _levels(name) > _levels(str(rule.format))
        else rule
        for rule in base.rules
    )
    return base.model_copy(update={"name": name, "rules": rules})


def _levels(format: str) -> int:
    return len(parse_scheme(format).element.levels)


# of most models, of Bloom's and Falcon's line, and of RWKV and MPT
_LAYERS = ("*.layer*.*", "*.h.*", "*.block*.*")
_BASE_OF = {"ternary": "ternary", "nonary": "nonary", "int2": "ternary"}


def _check_format(name: str) -> None:
    try:
        parse_scheme(name)
    except FormatError as error:
        plans = sorted(shipped_plans())
        raise FormatError(f"{error}; shipped plans: {', '.join(plans)}") from error


def _read(path: Path) -> Plan:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise PlanError(f"{path}: a plan is a mapping with name and rules")
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        models = (Plan, Rule, Calibration, Blockwise)
        known = [field for model in models for field in model.model_fields]
        raise PlanError(f"{path}: {_first(error, known)}") from error
    for rule in plan.rules:
        rule.check()
    return plan


def _first(error: ValidationError, known: list[str]) -> str:
    # a misspelt key is also a missing one: the spelling is what the user can see
    errors = error.errors()
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where}: {unknown_name('key', str(first['loc'][-1]), known)}"
    return f"{where}: {first['msg']}"
