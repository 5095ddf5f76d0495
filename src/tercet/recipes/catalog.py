"""Recipes by name."""

from typing import Any

from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.plan import Calibration, Plan, Rule
from tercet.errors import PlanError, unknown_name
from tercet.recipes.recipe import Pass, Recipe

_TEXT = (
    "20.8 million tokens of novels, textbooks, WikiText-2's train split and speeches, made by "
    "benchmarks/training/smollm2/text.py"
)


def _plan(name: str, embedding: Rule, body: str) -> Plan:
    return Plan(
        name=name,
        calibration=Calibration(sequences=128, length=512),
        blockwise=Blockwise(epochs=4),
        rules=(embedding, Rule(match="*.layer*.*", format=body, algorithm="gptq")),
    )


def _embedding(scheme: str, algorithm: str) -> Rule:
    return Rule(match="*embed_tokens", format=scheme, algorithm=algorithm)


def _pass(length: int, teacher_tokens: int, **settings: Any) -> Pass:
    """What all have in common, and these settings."""
    tuning = FineTuning(held_out=0.01, compile=True, **settings)
    return Pass(settings=tuning, length=length, teacher_tokens=teacher_tokens)


def _second_pass(teacher_tokens: int) -> Pass:
    """With other text of the teacher's, from what the first one wrote."""
    return _pass(
        length=1024,
        teacher_tokens=teacher_tokens,
        epochs=3,
        batch=16,
        learning_rate=0.01,
        embedding_learning_rate=0.004,
        measurements=2,
        seed=1,
    )


RECIPES: dict[str, Recipe] = {
    "smollm2-ternary": Recipe(
        about="SmolLM2-135M in ternary everywhere, embedding and head too: 28.7 MB",
        data=_TEXT,
        plan=_plan("smollm2-ternary", _embedding("ternary-g192", "gptq"), "ternary-g192"),
        passes=(
            _pass(
                length=512,
                teacher_tokens=50_000_000,
                epochs=2,
                batch=32,
                learning_rate=0.015,
                embedding_learning_rate=0.005,
                measurements=3,
            ),
            _second_pass(teacher_tokens=20_000_000),
        ),
    ),
    "smollm2-ternary-g64": Recipe(
        about="SmolLM2-135M with layers in ternary, a scale for 64 weights, embedding and head in "
        "int4: 39.9 MB",
        data=_TEXT,
        plan=_plan("smollm2-ternary-g64", _embedding("int4-g64", "gptq"), "ternary-g64"),
        passes=(
            _pass(
                length=1024,
                teacher_tokens=14_000_000,
                epochs=5,
                batch=16,
                learning_rate=0.015,
                embedding_learning_rate=0.005,
                measurements=2,
            ),
            _second_pass(teacher_tokens=22_000_000),
        ),
    ),
    "smollm2-nonary": Recipe(
        about="SmolLM2-135M with layers in nonary, embedding and head in int8: 75.4 MB",
        data=_TEXT,
        plan=_plan("smollm2-nonary", _embedding("int8-g64", "rtn"), "nonary-g64"),
        passes=(
            _pass(
                length=1024,
                teacher_tokens=4_000_000,
                epochs=2,
                batch=16,
                learning_rate=0.007,
                measurements=2,
            ),
        ),
    ),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; PlanError where there is none."""
    if name not in RECIPES:
        raise PlanError(unknown_name("recipe", name, RECIPES))
    return RECIPES[name]
