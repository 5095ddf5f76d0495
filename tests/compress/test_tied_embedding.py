"""An embedding that is the head, too, is rounded for what the head reads, after all layers."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny_decoders import SHAPE, contents, tokens
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from tercet.checkpoints.packed.read import open_packed
from tercet.compress.pipeline import Compressed, Progress, compress
from tercet.compress.plan import Plan
from tercet.errors import PlanError

TABLE = "model.embed_tokens"


def save(folder: Path, **config: Any) -> Path:
    torch.manual_seed(5)
    shape: dict[str, Any] = {**SHAPE, "tie_word_embeddings": True, **config}
    model = cast(Any, AutoModelForCausalLM).from_config(LlamaConfig(**shape)).eval()
    # as in models that have been trained, some columns of the head's input are far larger
    model.model.norm.weight.data = torch.logspace(-1, 0.7, 32)[torch.randperm(32)]
    model.save_pretrained(folder)
    return folder


def plan(algorithm: str, *, layers: bool = True, **more: Any) -> Plan:
    rules = [{"match": "*embed_tokens", "format": "int3-g16", "algorithm": algorithm}]
    rules += [{"match": "*layers*", "format": "int8-g16", "algorithm": "gptq"}] if layers else []
    return Plan.model_validate({"name": "tried", "rules": rules, **more})


def run(source: Path, out: Path, chosen: Plan, **more: Any) -> Compressed:
    return compress(source, chosen, out, calibration=tokens(32), device="cpu", **more)


def test_it_is_what_gptq_makes_of_the_heads_inputs(tmp_path: Path) -> None:
    source = save(tmp_path / "source")
    run(source, tmp_path / "out", plan("gptq", layers=False))
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        inputs = model.model(input_ids=tokens(32)).last_hidden_state.flatten(0, 1).double()
    w = model.lm_head.weight.detach().double()
    q = open_packed(tmp_path / "out").read_packed(TABLE).dequantize(torch.float64)
    run(source, tmp_path / "rtn", plan("rtn", layers=False))
    nearest = open_packed(tmp_path / "rtn").read_packed(TABLE).dequantize(torch.float64)
    # farther from the weights than the nearest levels are, and nearer in what the head gives
    assert (w - q).norm() > (w - nearest).norm()
    assert (inputs @ (w - q).T).norm() < 0.8 * (inputs @ (w - nearest).T).norm()


@pytest.mark.parametrize("blockwise", [None, {"epochs": 2, "batch": 8}])
def test_a_run_goes_on_where_it_was_stopped(
    blockwise: dict[str, Any] | None, tmp_path: Path
) -> None:
    source = save(tmp_path / "source")
    chosen = plan("gptq", blockwise=blockwise)
    told: list[tuple[int, int, str]] = []

    def tell(done: int, units: int, name: str) -> None:
        told.append((done, units, name))

    run(source, tmp_path / "whole", chosen, progress=Progress(unit=tell))
    names = ("model.layers.0", "model.layers.1", "embeddings", "")
    assert told == [(done, 3, name) for done, name in enumerate(names)]

    def interrupt(_: int, __: int, name: str) -> None:
        if name == stop:
            raise KeyboardInterrupt

    for stop in ("model.layers.1", "embeddings"):
        out = tmp_path / stop
        with pytest.raises(KeyboardInterrupt):
            run(source, out, chosen, progress=Progress(unit=interrupt))
        run(source, out, chosen, resume=True)
        assert contents(out) == contents(tmp_path / "whole")


def test_what_an_embedding_cannot_have_is_refused_with_what_it_can(tmp_path: Path) -> None:
    tied, untied = save(tmp_path / "tied"), save(tmp_path / "untied", tie_word_embeddings=False)
    with pytest.raises(PlanError, match="use rtn or hqq, or gptq for the inputs of the head"):
        run(tied, tmp_path / "out", plan("awq"))
    with pytest.raises(PlanError, match=r"no inputs for algorithm 'gptq': use rtn or hqq$"):
        run(untied, tmp_path / "out", plan("gptq"))
    assert not (tmp_path / "out").exists()
