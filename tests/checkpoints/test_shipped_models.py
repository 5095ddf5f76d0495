"""The models of models/: whole, made by their recipes, and worth talking to."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.stream import stream_weights
from tercet.checkpoints.sources.fetch import FETCHABLE, fetch
from tercet.checkpoints.sources.repository_model import RepositoryModel
from tercet.compress.finetune.settings import FineTuning
from tercet.models import Decoder
from tercet.recipes.catalog import RECIPES
from tercet.runtime import load
from tercet.runtime.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
NAME = "smollm2-135m-ternary"
ANSWERED = "The capital of France is Paris."
# of the paragraph below, nats a token, by the packed checkpoint on a CPU
PARAGRAPH = (
    "The sea is a large body of salt water. Ships cross it with goods and people, and fishermen "
    "live from what they catch in it. In winter storms can be strong, and the waves are high."
)
NATS = 4.2983


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetched into an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", str(tmp_path_factory.mktemp("cache")))
        return fetch(NAME, verify=True)


def test_the_folder_holds_what_the_package_knows() -> None:
    known = {name for name, one in FETCHABLE.items() if isinstance(one, RepositoryModel)}
    assert known == {path.name for path in (ROOT / "models").iterdir() if path.is_dir()}


def test_it_was_made_by_its_recipe(model: Path) -> None:
    manifest = open_packed(model).manifest
    assert manifest is not None
    recipe, made = RECIPES["smollm2-ternary"], manifest.plan
    plan = recipe.plan.model_dump(mode="json")
    for key in ("rules", "blockwise"):
        assert made[key] == plan[key]
    for key in ("sequences", "length"):
        assert made["calibration"][key] == plan["calibration"][key]
    step: Any = made["finetuning"]
    for one in reversed(recipe.passes):
        settings = {key: step[key] for key in FineTuning.model_fields}
        assert settings == one.settings.model_dump(mode="json")
        assert step["length"] == one.length
        assert step["data"][-1] == f"teacher:{one.teacher_tokens}"
        step = step.get("before")
    assert step is None
    assert manifest.source.sha256 == FETCHABLE["smollm2-135m"].members[0].sha256


def test_it_answers(model: Path) -> None:
    found = load(model, device="cpu").generate(
        "What is the capital of France?", temperature=0.0, max_new_tokens=16
    )
    assert found.text.strip() == ANSWERED
    ids = torch.tensor([load_tokenizer(model).encode(PARAGRAPH)])
    with stream_weights(open_packed(model)) as weights:
        decoder = Decoder.from_checkpoint(weights, torch.float32, torch.device("cpu"))
    logits = decoder.logits(ids)
    nats = functional.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert float(nats) == pytest.approx(NATS, rel=1e-2)
