"""Fine-tuning brings a packed model nearer to its teacher, and stores what it has trained."""

import json
import signal
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import runner
from safetensors.torch import save_file
from tiny_decoders import MODELS, SCHEMES, SHAPE, contents, plan, save, tokens
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import Module, functional
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig

from tercet.checkpoints.packed.output_directory import STATE
from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.sources.open import open_source
from tercet.compress.finetune import memory
from tercet.compress.finetune.memory import least_bytes
from tercet.compress.finetune.settings import FineTuning
from tercet.compress.finetune.state_file import StateFile
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan
from tercet.compress.skeleton import Skeleton
from tercet.compress.training.token_file import TokenFile
from tercet.errors import CheckpointError, PlanError, TercetError, UnsupportedError
from tercet.workflows.training import teacher_text
from tercet.workflows.training.finetune import FineTuned, finetune

QUICK = FineTuning(epochs=4, batch=8, learning_rate=0.02, scale_learning_rate=0.003, held_out=0.25)


def divergence(directory: Path, source: Path, ids: Tensor) -> float:
    """KL(teacher || student), nats a token, as transformers computes both."""
    with torch.no_grad():
        found, wanted = (
            AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32)(input_ids=ids).logits
            for one in (directory, source)
        )
    return float(
        functional.kl_div(
            found.log_softmax(-1).flatten(0, 1),
            wanted.log_softmax(-1).flatten(0, 1),
            reduction="batchmean",
            log_target=True,
        )
    )


def pack(kind: str, folder: Path, form: str = "int3-g16", **rule: Any) -> tuple[Path, Path]:
    source, packed = save(kind, folder / "source"), folder / "packed"
    compress(source, plan(form, None, **rule), packed, calibration=tokens(16), device="cpu")
    return source, packed


def tune(packed: Path, out: Path, settings: FineTuning = QUICK, **more: Any) -> FineTuned:
    more = {"calibration": tokens(), "device": "cpu", **more}
    return finetune(packed, out, settings=settings, **more)


def test_what_cannot_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, packed = pack("llama", tmp_path)
    teacher = Skeleton(open_source(str(source)))
    whole, scales = (
        least_bytes(teacher, open_packed(packed), FineTuning(levels=levels))
        for levels in (True, False)
    )
    modules = open_packed(packed).modules.items()
    trained = sum(prod(one.shape) for name, one in modules if ".layers." in name)
    weights = sum(one.numel() for one in teacher.model.parameters())
    assert (whole, scales) == (8 * weights + 20 * trained, 8 * weights + 4 * trained)

    def leave(free: int) -> None:
        monkeypatch.setattr(memory, "free_bytes", lambda _: free)

    monkeypatch.setattr(Skeleton, "read", lambda *_: pytest.fail("weights were read"))
    leave(whole - 1)
    with pytest.raises(UnsupportedError, match="GB are free: levels=false takes at"):
        tune(packed, tmp_path / "out")
    leave(scales - 1)
    for levels in (True, False):
        with pytest.raises(UnsupportedError, match="compress --blockwise` trains one layer"):
            tune(packed, tmp_path / "out", QUICK.model_copy(update={"levels": levels}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", SCHEMES)
def test_every_scheme_gets_nearer_to_the_teacher(form: str, tmp_path: Path) -> None:
    source, packed = pack("llama", tmp_path, form)
    result = tune(packed, tmp_path / "out")
    ids = tokens(32, seed=1)
    assert divergence(tmp_path / "out", source, ids) < divergence(packed, source, ids)
    assert result.after < result.before


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_what_is_written_is_what_was_measured(kind: str, tmp_path: Path) -> None:
    source, packed = pack(kind, tmp_path)
    result = tune(packed, tmp_path / "out")
    held = tokens()[::4]
    assert divergence(packed, source, held) == pytest.approx(result.before, rel=1e-3)
    assert divergence(tmp_path / "out", source, held) == pytest.approx(result.after, rel=1e-3)


@pytest.mark.parametrize(
    "rule",
    [
        {"algorithm": "awq"},
        {"algorithm": "hadamard"},
        {"form": "int8-channel", "algorithm": "smoothquant"},
    ],
    ids=lambda rule: rule["algorithm"],
)
def test_inputs_are_transformed_in_training_as_in_the_checkpoint(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    source, packed = pack("llama", tmp_path, **rule)
    result = tune(packed, tmp_path / "out", QUICK.model_copy(update={"scale_learning_rate": 1e-4}))
    held = tokens()[::4]
    assert result.after < result.before
    assert divergence(tmp_path / "out", source, held) == pytest.approx(result.after, rel=2e-2)


def test_without_levels_every_code_stays(tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path)
    result = tune(packed, tmp_path / "out", QUICK.model_copy(update={"levels": False}))
    assert result.after < result.before
    old, new = open_packed(packed), open_packed(tmp_path / "out")
    moved = 0
    for name in old.modules:
        assert torch.equal(old.tensor(f"{name}.weight_packed"), new.tensor(f"{name}.weight_packed"))
        moved += not torch.equal(
            old.tensor(f"{name}.weight_scale"), new.tensor(f"{name}.weight_scale")
        )
    assert moved == len(old.modules) - 1, "the embedding is not trained"


def test_formats_files_and_origin_stay_and_a_second_run_gives_the_same_bytes(
    tmp_path: Path,
) -> None:
    _, packed = pack("llama", tmp_path)
    before = contents(packed)
    for name in ("a", "b"):
        tune(packed, tmp_path / name)
    assert contents(packed) == before
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert set(contents(tmp_path / "a")) == set(before)
    old, new = open_packed(packed), open_packed(tmp_path / "a")
    new.verify()
    assert new.layout == old.layout
    assert new.quantization == old.quantization
    assert old.manifest is not None
    assert new.manifest is not None
    assert new.manifest.source == old.manifest.source
    assert new.manifest.plan["rules"] == old.manifest.plan["rules"]
    assert new.manifest.plan["finetuning"]
    layers = [name for name in old.modules if "layers" in name]
    assert all(
        old.manifest.modules[name].relative_error != new.manifest.modules[name].relative_error
        for name in layers
    )


def test_compiled_layers_train_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = pack("llama", tmp_path)
    _, transformed = pack("llama", tmp_path / "transformed", algorithm="hadamard")
    # batches that are not whole, in training and in measuring
    settings = FineTuning(epochs=3, batch=7, held_out=0.25, learning_rate=0.02)
    eager = tune(packed, tmp_path / "eager", settings)
    counter = CompileCounterWithBackend("aot_eager")
    inner = Module.compile
    monkeypatch.setattr(Module, "compile", lambda self, **how: inner(self, backend=counter, **how))
    torch.compiler.reset()
    compiled = tune(packed, tmp_path / "out", settings.model_copy(update={"compile": True}))
    # the teacher's, the student's without gradients, its first layer's (no embedding is trained,
    # so that its input has none) and the others'
    assert counter.frame_count == 4
    assert compiled.before == pytest.approx(eager.before, rel=1e-4)
    gained = eager.before - eager.after
    assert compiled.before - compiled.after == pytest.approx(gained, rel=0.1)
    assert gained > 0.02 * eager.before
    with pytest.raises(UnsupportedError, match=r"transforms its input.*leave compile at false"):
        tune(transformed, tmp_path / "out2", FineTuning(compile=True))


def test_what_no_epoch_makes_better_stays_as_it_is(tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path, "int8-g16")
    wild = FineTuning(epochs=1, batch=8, learning_rate=100.0, scale_learning_rate=1.0)
    result = tune(packed, tmp_path / "out", wild)
    assert result.after == result.before
    old, new = open_packed(packed), open_packed(tmp_path / "out")
    assert all(torch.equal(old.tensor(name), new.tensor(name)) for name in old.layout)


def test_the_command_says_what_was_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, packed = pack("llama", tmp_path)
    ids = tmp_path / "ids.safetensors"
    save_file({"input_ids": tokens()}, ids)
    run = runner(monkeypatch, capsys)
    chosen = ["--set", "epochs=4", "--set", "held_out=0.25", "--set", "learning_rate=0.02"]
    found = run(
        "finetune", packed, "--out", tmp_path / "out", "--calibration", ids, *chosen,
        "--set", "scale_learning_rate=0.003", "--device", "cpu", "--json",
    )  # fmt: skip
    said = json.loads(found.out)
    direct = tune(packed, tmp_path / "direct")
    assert (said["kl_nats_before"], said["kl_nats_after"]) == (direct.before, direct.after)
    assert contents(tmp_path / "out") == contents(tmp_path / "direct")
    assert "already exists" in run("finetune", packed, "--out", tmp_path / "out").error
    assert (
        "did you mean" in run("finetune", packed, "--out", tmp_path / "b", "--set", "epoch=1").error
    )


KILLED_IN_THE_SECOND_SAVE = """
import os, signal
from tercet.compress.finetune import state_file
write, saves = state_file.write_atomic, []
def die(path, content):
    saves.append(path)
    if len(saves) == 2:
        path.with_name(path.name + ".tmp").write_bytes(b"torn")
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)
state_file.write_atomic = die
from tercet.cli.main import main
main()
"""


@pytest.mark.parametrize(
    "update", [{"levels": True}, {"levels": False}, {"epochs": 2, "measurements": 2}]
)
def test_killed_and_resumed_gives_the_same_bytes(update: dict[str, Any], tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path)
    settings = QUICK.model_copy(update=update)
    tune(packed, tmp_path / "whole", settings)
    ids, out = tmp_path / "ids.safetensors", tmp_path / "out"
    save_file({"input_ids": tokens()}, ids)
    chosen = [f"--set={key}={value}" for key, value in settings.model_dump().items()]
    words = ["finetune", packed, "--out", out, "--calibration", ids, "--device=cpu", *chosen]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IN_THE_SECOND_SAVE, *map(str, words)],
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not out.exists()
    with pytest.raises(CheckpointError, match="--resume"):
        tune(packed, out, settings)
    with pytest.raises(CheckpointError, match="another plan"):
        tune(packed, out, settings.model_copy(update={"epochs": 5}), resume=True)
    other = save("llama", tmp_path / "other", layers=1)
    with pytest.raises(CheckpointError, match=r"another plan .*finetuning.teacher None, now "):
        tune(packed, out, settings, resume=True, teacher=other)
    told: list[int] = []
    tune(packed, out, settings, resume=True, progress=lambda done, *_: told.append(done))
    assert told == [0, 2, 3, 4, 4], "what was measured is not run again"
    assert contents(out) == contents(tmp_path / "whole")
    assert not (tmp_path / "out.partial").exists()


def test_text_by_the_teacher_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packed = pack("llama", tmp_path)
    save_file({"input_ids": tokens(8)}, tmp_path / "ids.safetensors")
    out = tmp_path / "out"
    options: dict[str, Any] = {
        "calibration": None,
        "data": [tmp_path / "ids.safetensors", "teacher:640"],
        "length": 16,
    }
    tune(packed, tmp_path / "whole", **options)

    def stop(done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(packed, out, progress=stop, **options)
    kept = TokenFile(tmp_path / "out.partial" / STATE / "tokens")
    assert torch.equal(kept.read(0, 8 * 16).view(8, 16), tokens(8))
    # texts come in batches: no fewer than were asked for
    assert len(kept) >= 8 * 16 + 640
    monkeypatch.setattr(teacher_text, "generate", lambda *_, **__: pytest.fail("written again"))
    tune(packed, out, resume=True, **options)
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(PlanError, match="both given"):
        tune(packed, tmp_path / "other", data=["teacher:640"])


def test_fewer_sequences_of_the_data(tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path)
    save_file({"input_ids": tokens(64)}, tmp_path / "ids.safetensors")
    options: dict[str, Any] = {
        "calibration": None,
        "data": [tmp_path / "ids.safetensors"],
        "length": 16,
    }
    tune(packed, tmp_path / "some", sequences=16, **options)
    save_file({"input_ids": tokens(64)[:16]}, tmp_path / "ids.safetensors")
    tune(packed, tmp_path / "all", **options)
    some, every = (contents(tmp_path / name) for name in ("some", "all"))
    differ = {name for name in some if some[name] != every[name]}
    assert differ == {"tercet_manifest.json", "SHA256SUMS"}


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_are_trained_where_they_have_a_rate(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(5)
    config = LlamaConfig(**{**SHAPE, "tie_word_embeddings": tied})
    source, packed = tmp_path / "source", tmp_path / "packed"
    AutoModelForCausalLM.from_config(config).eval().save_pretrained(source)
    tables = ["model.embed_tokens", *([] if tied else ["lm_head"])]
    matches = {**dict.fromkeys(tables, "rtn"), "*layers*": "gptq"}
    rules = [
        {"match": match, "format": "ternary-g16", "algorithm": algorithm}
        for match, algorithm in matches.items()
    ]
    scheme = Plan.model_validate({"name": "all", "rules": rules})
    compress(source, scheme, packed, calibration=tokens(16), device="cpu")
    results: list[FineTuned] = []
    for rate in (0.0, 0.05):
        update = {"embedding_learning_rate": rate, "epochs": 3}
        settings = QUICK.model_copy(update=update)
        results.append(tune(packed, tmp_path / f"out {rate}", settings, calibration=tokens(256)))
        new = open_packed(results[-1].directory)
        for name in tables:
            old = open_packed(packed).tensor(f"{name}.weight_packed")
            assert torch.equal(old, new.tensor(f"{name}.weight_packed")) == (rate == 0)
    assert results[1].after < results[0].after
    held = tokens(256)[::4]
    assert divergence(results[1].directory, source, held) == pytest.approx(
        results[1].after, rel=1e-3
    )


def test_a_changed_byte_is_seen_before_training(tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path)
    file = next(packed.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="sealed as"):
        tune(packed, tmp_path / "out", progress=lambda *_: pytest.fail("was trained"))
    assert not (tmp_path / "out.partial").exists()


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    path = tmp_path / "training.pt"
    file = StateFile(path, torch.device("cpu"))
    assert file.load() is None
    file.save({"measured": 1})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"training.pt: cannot be read .*--overwrite"):
        file.load()


def other_vocabulary(folder: Path) -> Path:
    config = LlamaConfig(**{**MODELS["llama"].to_dict(), "vocab_size": 80})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_bad_input_is_refused_before_training(tmp_path: Path) -> None:
    _, packed = pack("llama", tmp_path)
    _, floating = pack("llama", tmp_path / "floating", "fp4_e2m1-g16")
    one, beyond = tmp_path / "one.safetensors", tmp_path / "beyond.safetensors"
    save_file({"input_ids": tokens(1)}, one)
    plain = tmp_path / "plain.txt"
    plain.write_text("text")
    save_file({"input_ids": tokens() + 64}, beyond)
    read: dict[str, Any] = {"calibration": None, "length": 16}
    cases: list[tuple[type[TercetError], str, dict[str, Any]]] = [
        (PlanError, "1 sequence:", {**read, "data": [one]}),
        (PlanError, "vocabulary", {**read, "data": [beyond]}),
        (PlanError, "has no tokenizer.json", {**read, "data": [plain]}),
        (PlanError, "1 sequence", {"calibration": tokens(1)}),
        (PlanError, "vocabulary", {"calibration": tokens() + 64}),
        (PlanError, "no such file", {"calibration": tmp_path / "none.txt"}),
        (CheckpointError, "--teacher", {"teacher": other_vocabulary(tmp_path / "other")}),
        (CheckpointError, "already exists", {"out": floating}),
        (CheckpointError, "is the model that is read", {"out": packed}),
        (TercetError, "integer levels", {"packed": floating}),
    ]
    for kind, words, case in cases:
        with pytest.raises(kind, match=words):
            tune(**{"packed": packed, "out": tmp_path / "out", **case})
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.partial").exists()
