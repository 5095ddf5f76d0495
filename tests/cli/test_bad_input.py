"""Bad input through the command line: one line on stderr, exit code 2, nothing half-written."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors_torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tercet.checkpoints import atomic
from tercet.checkpoints.seal import seal

Run = Callable[..., "object"]


def edit_weights(directory: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def listing(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b"/"
        for path in sorted(directory.rglob("*"))
    }


def truncate(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def test_truncated_source(model: Path, plan: Path, calibration: Path, tmp_path: Path) -> None:
    truncate(model / "model.safetensors", 100)
    before = listing(tmp_path)
    command = [sys.executable, "-c", "from tercet.cli.main import main; main()"]
    arguments = ["compress", model, "--plan", plan, "--out", tmp_path / "out"]
    done = subprocess.run(
        [*command, *map(str, arguments), "--calibration", str(calibration)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "model.safetensors is no sound safetensors file: it is truncated" in line
    assert done.stdout == ""
    assert listing(tmp_path) == before


def test_source_tensor_of_wrong_shape(model: Path, compress: Run, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_weights(model, lambda tensors: tensors.update({name: torch.zeros(128, 32)}))
    before = listing(tmp_path)
    error = compress().error
    assert f"{name} has shape [128, 32], config.json calls for [128, 64]" in error
    assert listing(tmp_path) == before


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_a_weight_that_is_quantized_already(
    model: Path, compress: Run, tmp_path: Path, dtype: torch.dtype
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_weights(model, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    before = listing(tmp_path)
    error = compress().error
    assert f"{name} is stored as {str(dtype).removeprefix('torch.')}, allowed are float32" in error
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rms_norm_eps", None, "Field 'rms_norm_eps' expected float, got NoneType"),
        ("hidden_act", 3, "Field 'hidden_act' expected str, got int"),
        ("hidden_size", "64", "hidden_size is '64': it must be a whole number above 0"),
        ("intermediate_size", -1, "intermediate_size is -1: it must be a whole number above 0"),
        ("num_attention_heads", 0, "num_attention_heads is 0: it must be a whole number"),
        ("model_type", None, "model_type is None: it must name the kind of model"),
        ("model_type", ["a"], "model_type is ['a']: it must name the kind of model"),
        ("model_type", "lama", "model_type 'lama' is not known to transformers"),
    ],
)
def test_bad_config(
    model: Path, compress: Run, tmp_path: Path, key: str, value: object, expected: str
) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    before = listing(tmp_path)
    assert expected in compress().error
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, ": tokenizer.json: missing, so text"), ("{}", ": tokenizer.json: not a token")],
)
def test_a_model_whose_tokenizer_cannot_be_read_is_named(
    tercet: Run, model: Path, tmp_path: Path, content: str | None, expected: str
) -> None:
    (model / "tokenizer.json").unlink()
    if content is not None:
        (model / "tokenizer.json").write_text(content)
    (tmp_path / "text.txt").write_text("w1 w2 " * 400)
    out = ["--out", tmp_path / "out", "--calibration", tmp_path / "text.txt"]
    assert f"error: {model}{expected}" in tercet("compress", model, "--to", "int4", *out).error


def test_a_model_that_needs_code_of_its_own(model: Path, compress: Run) -> None:
    path = model / "config.json"
    own = {"model_type": "lama", "auto_map": {"AutoModelForCausalLM": "modeling_lama.Lama"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **own}))
    assert "the model's own code (auto_map in config.json, trust_remote_code) is not run" in (
        compress().error
    )


def test_a_config_without_a_kind_of_model(model: Path, compress: Run) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text())
    del config["model_type"]
    path.write_text(json.dumps(config))
    assert "config.json: model_type is None: it must name the kind of model" in compress().error


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_weight(model: Path, compress: Run, tmp_path: Path, name: str, value: float) -> None:
    edit_weights(model, lambda tensors: tensors[name].view(-1)[5:6].fill_(value))
    before = listing(tmp_path)
    error = compress().error
    assert f"{name}: 1 of " in error
    assert "are NaN or inf, the first at [" in error
    assert listing(tmp_path) == before


def test_missing_source_weight(model: Path, compress: Run, tmp_path: Path) -> None:
    edit_weights(model, lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"))
    before = listing(tmp_path)
    assert "'model.layers.0.mlp.up_proj.weight'" in compress().error
    assert listing(tmp_path) == before


def test_unknown_format_offers_the_nearest(model: Path, tercet: Run, tmp_path: Path) -> None:
    before = listing(tmp_path)
    error = tercet("compress", model, "--to", "ternry", "--out", tmp_path / "out").error
    assert "'ternry': did you mean 'ternary'" in error
    assert "shipped plans: int4, nonary, nonary-a8, ternary, ternary-a8" in error
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: small", "name: small\nseed: 1", "seed: unknown key 'seed'"),
        ("keep: true", "keeep: true", "unknown key 'keeep': did you mean 'keep'"),
        ("sequences: 4", "sequence: 4", "unknown key 'sequence': did you mean 'sequences'"),
        ("algorithm: gptq", "algorithm: gptk", "unknown algorithm 'gptk': did you mean 'gptq'"),
        (
            "algorithm: gptq",
            "algorithm: gptq, options: {dampin: 1}",
            "rule '*.mlp.*', algorithm 'gptq': dampin: unknown key 'dampin'",
        ),
        ("nonary-g64", "nonari-g64", "'nonari"),
        ("keep: true", "keep: [", "not YAML: "),
    ],
)
def test_bad_plan(
    plan: Path, compress: Run, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    plan.write_text(plan.read_text().replace(old, new))
    before = listing(tmp_path)
    assert expected in compress().error
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("device", "message"),
    [("tpu", "allowed are cpu, cuda and cuda:N"), ("cuda:9", "CUDA devices here; use cpu")],
)
def test_a_device_that_is_not_there(
    compress: Run, tmp_path: Path, device: str, message: str
) -> None:
    before = listing(tmp_path)
    assert message in compress("--device", device).error
    assert listing(tmp_path) == before


def test_neither_or_both_of_to_and_plan(model: Path, plan: Path, tercet: Run) -> None:
    assert "either --to FORMAT or --plan FILE" in tercet("compress", model).error
    both = tercet("compress", model, "--to", "int4", "--plan", plan)
    assert "either --to FORMAT or --plan FILE" in both.error


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (torch.tensor([1, 2, 3]), "shape [3]"),
        (torch.zeros(0, 16, dtype=torch.long), "shape [0, 16]"),
        (torch.tensor([[1, 128]]), "ids run from 1 to 128, the model's vocabulary from 0 to 127"),
    ],
)
def test_bad_calibration(
    calibration: Path, compress: Run, tmp_path: Path, ids: Tensor, expected: str
) -> None:
    save_file({"input_ids": ids}, calibration)
    before = listing(tmp_path)
    assert expected in compress().error
    assert listing(tmp_path) == before


def test_existing_checkpoint_is_kept(compress: Run, model: Path, tmp_path: Path) -> None:
    assert compress().code == 0
    before = listing(tmp_path)
    for more in [(), ("--resume",)]:
        assert "out: already exists; choose another --out, or replace it" in compress(*more).error
        assert listing(tmp_path) == before
    edit_weights(model, lambda tensors: tensors["model.norm.weight"].mul_(2))
    assert compress("--overwrite").code == 0
    after = listing(tmp_path)
    assert set(after) == set(before)
    shards = [name for name in before if name.startswith("out/model-00001")]
    assert [before[name] == after[name] for name in shards] == [False]


def test_directory_with_foreign_files_is_kept(compress: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    before = listing(tmp_path)
    assert "already exists" in compress().error
    assert listing(tmp_path) == before


def fill_disk_after(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """From the given write on, the disk takes half of what is written and no more."""
    count = iter(range(1_000_000))
    write_bytes, save_file = Path.write_bytes, safetensors_torch.save_file

    def write(self: Path, data: bytes) -> int:
        if next(count) < writes:
            return write_bytes(self, data)
        write_bytes(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    def save(tensors: dict[str, Tensor], path: Path) -> None:
        save_file(tensors, path)
        if next(count) >= writes:
            write_bytes(path, path.read_bytes()[: path.stat().st_size // 2])
            # as it says so where the disk is full
            said = "Error while serializing: I/O error: No space left on device (os error 28)"
            raise SafetensorError(said)

    monkeypatch.setattr(atomic.Path, "write_bytes", write)
    monkeypatch.setattr(safetensors_torch, "save_file", save)


def test_disk_full_at_the_start(
    compress: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(tmp_path)
    fill_disk_after(monkeypatch, 0)
    assert "the disk is full: needs " in compress().error
    monkeypatch.undo()
    assert listing(tmp_path) == before


@pytest.mark.parametrize("writes", [1, 2, 3, 4, 7, 8, 9])
def test_disk_full_keeps_whole_units_only(
    compress: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    assert compress().code == 0
    whole = listing(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "unbroken")
    with monkeypatch.context() as patched:
        fill_disk_after(patched, writes)
        said = compress().error
        assert "the disk is full" in said
        assert f"is kept in {tmp_path / 'out'}.partial: go on with the same command and" in said
    assert not (tmp_path / "out").exists()
    left = {n: c for n, c in listing(tmp_path / "out.partial").items() if "unfinished" not in n}
    assert left.items() <= whole.items()
    assert "an unfinished run lies here; go on with --resume" in compress().error
    assert compress("--resume").code == 0
    assert listing(tmp_path / "out") == whole


def test_packed_tensor_of_wrong_shape(compress: Run, tercet: Run, tmp_path: Path) -> None:
    compress()
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    entry = config["quantization_config"]["modules"]["model.layers.0.mlp.up_proj"]
    entry["shape"] = [128, 128]
    path.write_text(json.dumps(config))
    seal(tmp_path / "out")
    for command in (["inspect"], ["run", "--prompt", "w5"], ["eval"]):
        error = tercet(command[0], tmp_path / "out", *command[1:]).error
        assert "model.layers.0.mlp.up_proj.weight_packed: config.json calls for" in error


def test_flipped_bit_in_a_packed_header(compress: Run, tmp_path: Path) -> None:
    compress()
    path = tmp_path / "out" / "model-00002-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[data.index(b"up_proj") + 2] ^= 1
    path.write_bytes(data)
    command = [sys.executable, "-c", "from tercet.cli.main import main; main()", "run"]
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--prompt", "w5"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{path}: the header does not match its hash: the checkpoint is damaged" in line


def test_flipped_bit_in_packed_data(compress: Run, tercet: Run, tmp_path: Path) -> None:
    compress()
    path = tmp_path / "out" / "model-00002-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for more in ([], ["--verify"]):
        error = tercet("inspect", tmp_path / "out", *more).error
        assert "model-00002-of-00003.safetensors: sha256" in error


def test_error_as_json(tercet: Run, tmp_path: Path) -> None:
    done = tercet("inspect", tmp_path / "nowhere", "--json")
    assert "nowhere: no such directory" in done.error
    assert json.loads(done.out)["error"] == "CheckpointError"
