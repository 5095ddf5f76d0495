"""Blockwise training lowers what a compressed layer gets wrong, and stores what it has trained."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended_gpu import any_gpu
from tiny_decoders import SCHEMES, contents, plan, save, tokens
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import tercet  # noqa: F401  (transformers then reads packed checkpoints)
from tercet.checkpoints.packed.read import open_packed
from tercet.compress.blockwise import step_graph
from tercet.compress.blockwise.latent_vector import LatentVector
from tercet.compress.blockwise.latent_weight import LatentWeight
from tercet.compress.blockwise.output_loss import Hidden, output_loss, relative_error
from tercet.compress.blockwise.settings import Blockwise
from tercet.compress.blockwise.tune import split_sequences, tune
from tercet.compress.pipeline import Progress, compress
from tercet.compress.plan import load_plan, train_blockwise
from tercet.compress.ptq import rtn
from tercet.errors import PlanError
from tercet.formats import parse_scheme

QUICK: dict[str, Any] = {
    "epochs": 6,
    "batch": 8,
    "learning_rate": 0.005,
    "scale_learning_rate": 0.001,
    "held_out": 0.25,
}


def train(forward: Any, latents: Any, hidden: Hidden, settings: Blockwise) -> Any:
    device = hidden.inputs.device
    loss = output_loss(forward, hidden)
    return tune(loss, latents, len(hidden.inputs), settings, seed=0, device=device)


@torch.no_grad()
def output_error(directory: Path, source: Path) -> float:
    """Of what leaves the last layer, for tokens that calibration has not seen."""
    ids = tokens(32, seed=1)
    found, wanted = (
        AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32).model(input_ids=ids)[0]
        for one in (directory, source)
    )
    return float(relative_error(found, wanted))


@pytest.mark.parametrize("form", SCHEMES)
def test_every_scheme_gets_less_wrong_on_tokens_it_has_not_seen(form: str, tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source", layers=1)
    errors: list[float] = []
    for blockwise in (None, QUICK):
        out = tmp_path / str(blockwise is None)
        compress(source, plan(form, blockwise), out, calibration=tokens(), device="cpu")
        errors.append(output_error(out, source))
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("kind", "form", "rule"),
    [
        ("qwen3", "int3-g16", {"algorithm": "hadamard"}),
        ("gemma3", "nonary-g16", {"algorithm": "rtn"}),
        ("qwen2_moe", "int2-g16-asym", {"algorithm": "gptq"}),
        ("llama", "int4-channel", {"algorithm": "smoothquant"}),
    ],
)
def test_architectures_experts_and_transformed_inputs(
    kind: str, form: str, rule: dict[str, Any], tmp_path: Path
) -> None:
    source = save(kind, tmp_path / "source")
    errors: list[float] = []
    for blockwise in (None, QUICK):
        out = tmp_path / str(blockwise is None)
        compress(source, plan(form, blockwise, **rule), out, calibration=tokens(), device="cpu")
        errors.append(output_error(out, source))
    assert errors[1] < errors[0]


def test_on_a_gpu_as_on_a_cpu(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source", layers=1)
    # batches that are whole, and one that is not, each epoch
    wanted = plan("ternary-g16", {**QUICK, "epochs": 3, "batch": 8})
    compress(source, plan("ternary-g16", None), tmp_path / "gptq", calibration=tokens())
    compress(source, wanted, tmp_path / "cpu", calibration=tokens(), device="cpu")
    with any_gpu() as device:
        for out in ("gpu", "again"):
            compress(source, wanted, tmp_path / out, calibration=tokens(), device=device)
    assert contents(tmp_path / "gpu") == contents(tmp_path / "again")
    before, here, there = (output_error(tmp_path / one, source) for one in ("gptq", "cpu", "gpu"))
    assert there == pytest.approx(here, rel=0.05)
    assert there < before


def test_a_captured_step_is_freed_with_its_layer(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source", layers=3)
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []
    with any_gpu() as device, pytest.MonkeyPatch.context() as patch:
        kind: Any = step_graph.Captured

        def capture(*arguments: Any) -> Any:
            alive.append(sum(one() is not None for one in made))
            captured = kind(*arguments)
            made.append(weakref.ref(captured))
            return captured

        patch.setattr(step_graph, "Captured", capture)
        # what is in a cycle stays until the collector comes, perhaps within the next capture
        gc.disable()
        try:
            wanted = plan("int3-g16", {**QUICK, "batch": 8})
            compress(source, wanted, tmp_path / "out", calibration=tokens(), device=device)
        finally:
            gc.enable()
    assert alive == [0, 0, 0]


@pytest.mark.parametrize("unit", [2, 3])
def test_a_run_goes_on_where_it_was_killed(unit: int, tmp_path: Path) -> None:
    source, wanted = save("llama", tmp_path / "source", torch.bfloat16), plan("int3-g16", QUICK)

    def kill(done: int, *_: Any) -> None:
        if done == unit:
            raise KeyboardInterrupt

    compress(source, wanted, tmp_path / "whole", calibration=tokens())
    with pytest.raises(KeyboardInterrupt):
        compress(
            source, wanted, tmp_path / "cut", calibration=tokens(), progress=Progress(unit=kill)
        )
    compress(source, wanted, tmp_path / "cut", calibration=tokens(), resume=True)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert (
        open_packed(tmp_path / "cut").manifest.plan["blockwise"] == Blockwise(**QUICK).model_dump()
    )


def test_norms_are_trained_and_stored_as_the_source_has_them(tmp_path: Path) -> None:
    source = save("llama", tmp_path / "source", torch.bfloat16, layers=1)
    name = "model.layers.0.input_layernorm.weight"
    found: list[Tensor] = []
    for norms in (False, True):
        wanted, out = plan("ternary-g16", {**QUICK, "norms": norms}), tmp_path / str(norms)
        compress(source, wanted, out, calibration=tokens())
        found.append(open_packed(out).tensor(name))
    assert found[0].dtype == found[1].dtype == torch.bfloat16
    assert torch.equal(found[0], torch.ones(32, dtype=torch.bfloat16))
    assert not torch.equal(found[0], found[1])
    assert float((found[1].float() - 1).abs().max()) < 0.2


@pytest.mark.parametrize("form", [*SCHEMES, "int4-g24-asym", "nonary-b5x9"])
def test_what_is_stored_decodes_to_what_was_trained(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(12, 40, generator=generator)
    packed = rtn.quantize(weight, parse_scheme(form))
    latent = LatentWeight(packed, weight, "w")
    # where training begins is what the algorithm made
    assert torch.equal(latent.values(), packed.dequantize())
    with torch.no_grad():
        for leaf in (latent.latent, *latent.relative()):
            leaf += torch.randn(leaf.shape, generator=generator) * 0.4
    stored = latent.pack()
    stored.validate()
    assert torch.equal(latent.values(), stored.dequantize())
    assert not torch.equal(stored.dequantize(), packed.dequantize())


def test_gradients_are_those_of_the_decoded_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 20, generator=generator)
    packed = rtn.quantize(weight, parse_scheme("int2-g8-hqq32-float32"))
    latent = LatentWeight(packed, weight, "w")
    gradient = torch.randn(4, 20, generator=generator)
    with torch.no_grad():
        latent.latent[0, 0, 0], latent.latent[0, 0, 1] = 9.0, -9.0
    latent.values().backward(gradient)
    log_scale, zero = latent.relative()
    step = 1e-3
    for leaf in (log_scale, zero):
        assert leaf.grad is not None
        for place in ((0, 0), (2, 1), (3, 2)):
            sums: list[float] = []
            for sign in (1, -1):
                with torch.no_grad():
                    leaf[place] += sign * step
                    sums.append(float((latent.values() * gradient).sum(dtype=torch.float64)))
                    leaf[place] -= sign * step
            assert float(leaf.grad[place]) == pytest.approx(
                (sums[0] - sums[1]) / (2 * step), rel=2e-3, abs=1e-4
            )
    # straight through the rounding, and not beyond the last level
    found = latent.latent.grad
    assert found is not None
    assert found[0, 0, :2].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found[1, 1], gradient[1, 8:16] * packed.scale[1, 1])


def test_training_finds_a_linear_map_that_one_scale_would_not() -> None:
    """A layer that is one product: the levels that were moved are found again."""
    generator = torch.Generator().manual_seed(0)
    scheme = parse_scheme("ternary-channel-float32")
    wanted = rtn.quantize(torch.randn(8, 8, generator=generator), scheme)
    weight = wanted.dequantize()
    moved = weight.clone()
    moved[:, 0] = 0.0
    latent = LatentWeight(rtn.quantize(moved, scheme), moved, "w")
    x = torch.randn(32, 4, 8, generator=generator)
    settings = Blockwise(epochs=40, batch=8, learning_rate=0.02, scale_learning_rate=0.01)

    def forward(parameters: Any, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, parameters["w"])

    hidden = Hidden(inputs=x, targets=x @ weight.T)
    errors = train(forward, {"w": latent}, hidden, settings)
    assert errors.before > 0.02
    assert errors.after < 1e-3 * errors.before
    assert torch.equal(latent.pack().unpack(), wanted.unpack())


def test_the_result_of_the_algorithm_stays_where_no_epoch_is_better() -> None:
    x = torch.randn(8, 4, 8, generator=torch.Generator().manual_seed(0))
    packed = rtn.quantize(torch.randn(8, 8), parse_scheme("int4-g8"))
    latent = LatentWeight(packed, packed.dequantize(), "w")
    vector = LatentVector(torch.ones(8), torch.float32)
    settings = Blockwise(epochs=2, batch=2, learning_rate=1.0, scale_learning_rate=0.5)

    def forward(parameters: Any, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden * parameters["n"], parameters["w"])

    hidden = Hidden(inputs=x, targets=x @ packed.dequantize().T)
    errors = train(forward, {"w": latent, "n": vector}, hidden, settings)
    assert errors.after == errors.before < 1e-6
    assert torch.equal(latent.values(), packed.dequantize())
    assert torch.equal(vector.stored(), torch.ones(8))


def test_loss_and_split() -> None:
    target = torch.tensor([[3.0, 4.0], [0.0, 1000.0]])
    made = torch.tensor([[3.0, 5.0], [0.0, 900.0]])
    assert float(relative_error(made, target)) == pytest.approx((1 / 25 + 0.01) / 2)
    held, rest = split_sequences(16, 0.25)
    assert held.tolist() == [0, 4, 8, 12]
    assert sorted([*held.tolist(), *rest.tolist()]) == list(range(16))
    held, rest = split_sequences(2, 0.99)
    assert len(held) == len(rest) == 1


@pytest.mark.parametrize(
    ("form", "blockwise", "sequences", "message"),
    [
        ("mxfp4", {}, 8, "blockwise trains integer levels, which format 'mxfp4' has not"),
        ("int4-g16", {}, 1, "1 calibration sequence: blockwise trains on some"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(
    form: str, blockwise: dict[str, Any], sequences: int, message: str, tmp_path: Path
) -> None:
    source = save("llama", tmp_path / "source", layers=1)
    with pytest.raises(PlanError, match=message):
        compress(source, plan(form, blockwise), tmp_path / "out", calibration=tokens(sequences))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{epoch: 3}", "blockwise.epoch: unknown key 'epoch': did you mean 'epochs'"),
        ("{epochs: 0}", "blockwise.epochs: Input should be greater than or equal to 1"),
        ("{learning_rate: 0}", "blockwise.learning_rate: Input should be greater than 0"),
        ("{held_out: 1}", "blockwise.held_out: Input should be less than 1"),
    ],
)
def test_settings_that_are_wrong_are_refused(line: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(f"name: x\nblockwise: {line}\nrules:\n  - {{match: '*', format: int4-g16}}\n")
    with pytest.raises(PlanError, match=message):
        load_plan(file)


def test_asked_for_by_a_word() -> None:
    plain = load_plan("ternary")
    asked = train_blockwise(plain)
    assert asked.blockwise == Blockwise()
    assert (plain.calibration.sequences, asked.calibration.sequences) == (24, 128)
    own = plain.model_copy(update={"blockwise": Blockwise(epochs=2)})
    assert train_blockwise(own) is own
