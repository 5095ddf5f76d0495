"""Recipes by name."""

from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.plan import Calibration, Plan, Rule
from tercet.errors import PlanError, unknown_name
from tercet.recipes.recipe import Pass, Recipe

RECIPES: dict[str, Recipe] = {
    "smollm2-ternary": Recipe(
        about="SmolLM2-135M in ternary everywhere, embedding and head too: 28.7 MB",
        data="20.8 million tokens of novels, textbooks, WikiText-2's train split and speeches, "
        "made by benchmarks/training/smollm2/text.py",
        plan=Plan(
            name="smollm2-ternary",
            calibration=Calibration(sequences=128, length=512),
            blockwise=Blockwise(epochs=4),
            rules=(
                Rule(match="*embed_tokens", format="ternary-g192", algorithm="gptq"),
                Rule(match="*.layer*.*", format="ternary-g192", algorithm="gptq"),
            ),
        ),
        length=512,
        passes=(
            Pass(
                settings=FineTuning(
                    epochs=2,
                    batch=32,
                    learning_rate=0.015,
                    embedding_learning_rate=0.005,
                    measurements=3,
                    held_out=0.01,
                    compile=True,
                ),
                teacher_tokens=50_000_000,
            ),
        ),
    ),
}


def find_recipe(name: str) -> Recipe:
    """The recipe of this name; PlanError where there is none."""
    if name not in RECIPES:
        raise PlanError(unknown_name("recipe", name, RECIPES))
    return RECIPES[name]
