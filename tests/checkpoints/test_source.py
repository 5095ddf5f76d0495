import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor

from tercet.checkpoints.sources import open as opening
from tercet.checkpoints.sources.open import open_source
from tercet.checkpoints.sources.safetensors_header import DTYPES
from tercet.errors import CheckpointError

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "model.embed_tokens.weight": torch.randn(7, 4),
        "model.layers.0.mlp.up_proj.weight": torch.randn(3, 4).to(torch.bfloat16),
        "model.norm.weight": torch.randn(4).to(torch.float16),
        "model.steps": torch.tensor(5),
    }


def model_directory(path: Path, **config: object) -> Path:
    path.mkdir(exist_ok=True)
    save_file(weights(), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return path


def sharded_directory(path: Path) -> Path:
    model_directory(path)
    (path / "model.safetensors").unlink()
    weight_map = {}
    for number, (name, tensor) in enumerate(weights().items()):
        shard = f"model-{number % 2}.safetensors"
        previous = weight_map.values()
        held = {n: weights()[n] for n, s in weight_map.items() if s == shard}
        assert shard in previous or not held
        save_file({**held, name: tensor}, path / shard)
        weight_map[name] = shard
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize("make", [model_directory, sharded_directory])
@pytest.mark.parametrize("behind", [False, True])
def test_reads_all_in_the_order_of_the_files_and_hashes_them(
    tmp_path: Path, make: Callable[[Path], Path], behind: bool
) -> None:
    whole, part = (open_source(make(tmp_path / "model")) for _ in range(2))
    places: list[tuple[Path, int]] = []
    for name, tensor in whole.read_all(whole.names(), behind=behind):
        assert torch.equal(tensor, weights()[name])
        places.append(whole.place(name))
    assert sorted(set(places)) == places
    assert len(places) == len(weights())
    assert [name for name, _ in part.read_all(["model.norm.weight"])] == ["model.norm.weight"]
    expected = hashlib.sha256(b"".join(path.read_bytes() for path in whole.files)).hexdigest()
    assert whole.sha256() == part.sha256() == expected
    # the hash is of what was read then: nothing is read again
    whole.files[0].write_bytes(b"")
    assert whole.sha256() == expected


def test_a_hash_that_was_given_up_is_made_anew(tmp_path: Path) -> None:
    source = open_source(model_directory(tmp_path))
    (path,) = source.files
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    names = iter(source.read_all(source.names(), behind=True))
    next(names)
    del names  # left in the middle, as by an error
    assert source.sha256() == expected
    again = open_source(tmp_path)
    list(again.read_all(again.names(), behind=True))
    again.stop_hashing()
    path.write_bytes(path.read_bytes()[:-1] + b"1")
    assert again.sha256() == hashlib.sha256(path.read_bytes()).hexdigest() != expected


@pytest.mark.parametrize("make", [model_directory, sharded_directory])
def test_reads_every_tensor_to_the_bit(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source = open_source(make(tmp_path / "model"))
    assert set(source.names()) == set(weights())
    for name, tensor in weights().items():
        got = source.read(name)
        assert got.dtype == source.dtype(name) == tensor.dtype
        assert source.shape(name) == tuple(tensor.shape)
        assert torch.equal(got, tensor)
    assert source.parameter_count == 7 * 4 + 3 * 4 + 4
    assert source.reference == str(tmp_path / "model")
    assert source.config == CONFIG


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    model_directory(tmp_path)
    patterns = torch.arange(32, dtype=torch.uint8)
    raw = (patterns % 2).bool() if dtype == torch.bool else patterns.view(dtype)
    (tmp_path / "model.safetensors").write_bytes(save({"w": raw, "empty": raw[:0]}))
    source = open_source(tmp_path)
    assert torch.equal(source.read("w").view(torch.uint8), raw.view(torch.uint8))
    assert source.read("empty").shape == (0,)


def test_a_tensor_outlives_the_file(tmp_path: Path) -> None:
    source = open_source(model_directory(tmp_path))
    norm = source.read("model.norm.weight")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert torch.equal(norm, weights()["model.norm.weight"])
    norm.zero_()
    with pytest.raises(CheckpointError, match="became shorter while it was read"):
        source.read("model.norm.weight")


def test_hash_and_size_are_of_the_files_in_order(tmp_path: Path) -> None:
    whole = open_source(model_directory(tmp_path / "whole"))
    content = (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert whole.sha256() == hashlib.sha256(content).hexdigest()
    assert whole.size_bytes == len(content)
    shards = open_source(sharded_directory(tmp_path / "shards"))
    parts = [(tmp_path / "shards" / f"model-{i}.safetensors").read_bytes() for i in (0, 1)]
    assert shards.sha256() == hashlib.sha256(b"".join(parts)).hexdigest()
    assert shards.size_bytes == sum(map(len, parts))


def test_tied_head_is_an_alias_only_where_it_is_tied(tmp_path: Path) -> None:
    tied = open_source(model_directory(tmp_path))
    assert tied.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    with pytest.raises(CheckpointError, match=r"it is tied to 'model\.embed_tokens\.weight'"):
        tied.read("lm_head.weight")
    assert open_source(model_directory(tmp_path, tie_word_embeddings=False)).aliases == {}
    assert open_source(model_directory(tmp_path, architectures=["LlamaModel"])).aliases == {}
    head = {**weights(), "lm_head.weight": torch.zeros(7, 4)}
    model_directory(tmp_path)
    save_file(head, tmp_path / "model.safetensors")
    assert open_source(tmp_path).aliases == {}


def test_a_missing_name_offers_the_nearest(tmp_path: Path) -> None:
    source = open_source(model_directory(tmp_path))
    for ask in (source.read, source.shape, source.dtype):
        with pytest.raises(CheckpointError, match=r"did you mean 'model\.norm\.weight'"):
            ask("model.norm.wieght")
    with pytest.raises(CheckpointError, match="it holds 4 tensors, such as 'model"):
        source.read("zzz")


COMPANIONS = ("tokenizer.json", "chat_template.jinja", "generation_config.json")


def test_what_text_needs_is_copied_and_nothing_else(tmp_path: Path) -> None:
    source = open_source(model_directory(tmp_path / "model"))
    (tmp_path / "out").mkdir()
    source.save_companions(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    for name in (*COMPANIONS, "README.md"):
        (tmp_path / "model" / name).write_text(name)
    source.save_companions(tmp_path / "out")
    copied = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert copied == {name: name for name in COMPANIONS}


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], r"it is truncated: its header needs \d+ bytes, it has \d+"),
        (lambda b: b + b"\0", "it is too long"),
        (lambda b: b[:100], r"its header says \d+ bytes, the file has 100"),
        (lambda b: b[:3], "its header says"),
        (lambda b: b"", "its header says 0 bytes, the file has 0"),
        (lambda b: bytes([b[0] ^ 1, *b[1:]]), "not JSON|begins at|truncated|too long"),
        (lambda b: b[:7] + b"\x01" + b[8:], "its header says"),
        (lambda b: b.replace(b'{"model.', b"{!model.", 1), "its header is not JSON"),
        (lambda b: b.replace(b'"F32"', b'"F3r"'), "has the dtype 'F3r', known are"),
        (lambda b: b.replace(b"[7,4]", b"[7,5]"), r"shape \[7, 5\] in F32: 140 bytes, but 112"),
        (lambda b: b.replace(b"[7,4]", b"[7,3]"), r"shape \[7, 3\] in F32: 84 bytes, but 112"),
        (lambda b: b.replace(b'"shape"', b'"shapf"', 1), "has no shape"),
        (lambda b: b.replace(b'"data_offsets"', b'"data_offsetr"', 1), "has no data offsets"),
    ],
)
def test_damage_is_found_at_open_and_names_the_file(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    damage(model_directory(tmp_path) / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_source(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'model.safetensors'} is no sound")
    assert str(caught.value).endswith("download or copy the file again")


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_flipped_bit_in_the_header_gets_past_unseen(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int
) -> None:
    directory = model_directory(tmp_path_factory.getbasetemp() / "flipped")
    raw = bytearray((directory / "model.safetensors").read_bytes())
    raw[position % (8 + struct.unpack("<Q", raw[:8])[0])] ^= 1 << bit
    (directory / "model.safetensors").write_bytes(raw)
    try:
        source = open_source(directory)
    except CheckpointError:
        return
    read = {name: (source.dtype(name), source.shape(name)) for name in source.names()}
    assert len(read) == len(weights())
    # what is left: another spelling of a name, or another reading of the same number of bytes
    same = {name: (t.dtype, tuple(t.shape)) for name, t in weights().items()}
    sizes = sorted(d.itemsize * torch.Size(s).numel() for d, s in read.values())
    assert read == same or sizes == sorted(t.nbytes for t in weights().values())


@pytest.mark.parametrize("begin", [4, 12])
def test_tensors_that_overlap_or_leave_a_hole_are_refused(tmp_path: Path, begin: int) -> None:
    model_directory(tmp_path)
    entries = {"a": (0, 8), "b": (begin, begin + 8)}
    header = json.dumps(
        {n: {"dtype": "F32", "shape": [2], "data_offsets": o} for n, o in entries.items()}
    ).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(begin + 8)
    (tmp_path / "model.safetensors").write_bytes(content)
    start = 8 + len(header)
    message = f"tensor 'b' begins at {start + begin}, not at {start + 8}"
    with pytest.raises(CheckpointError, match=message):
        open_source(tmp_path)


def test_shards_that_do_not_fit_their_index(tmp_path: Path) -> None:
    sharded_directory(tmp_path)
    (tmp_path / "model-1.safetensors").rename(tmp_path / "kept")
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors is missing, though"):
        open_source(tmp_path)
    save_file({"other": torch.zeros(1)}, tmp_path / "model-1.safetensors")
    with pytest.raises(CheckpointError, match=r"has no tensor 'model\.layers\.0\.mlp"):
        open_source(tmp_path)
    damage(tmp_path / "kept", lambda raw: raw[:-2])
    (tmp_path / "kept").rename(tmp_path / "model-1.safetensors")
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors is no sound .* truncated"):
        open_source(tmp_path)
    for content in ("{}", '{"weight_map": {"a": 3}}', "[", "[]"):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"index\.json"):
            open_source(tmp_path)


def test_a_whole_file_beside_an_index_is_the_model(tmp_path: Path) -> None:
    """As of a model in shards that was changed and saved whole into its own directory."""
    sharded_directory(tmp_path)
    changed = {name: tensor + 1 for name, tensor in weights().items()}
    save_file(changed, tmp_path / "model.safetensors")
    for name, tensor in changed.items():
        assert torch.equal(open_source(tmp_path).read(name), tensor)
    (tmp_path / "model-1.safetensors").unlink()
    assert open_source(tmp_path).files == (tmp_path / "model.safetensors",)


def test_adapters_are_refused_unless_they_lie_beside_a_model(tmp_path: Path) -> None:
    adapter = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"})
    (tmp_path / "adapter_config.json").write_text(adapter)
    save_file({"base_model.model.lora_A": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    message = r"is an adapter of 'org/base', with no weights of its own: merge .* merge_and_unload"
    with pytest.raises(CheckpointError, match=message):
        open_source(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=message):
        open_source(tmp_path)
    assert set(open_source(model_directory(tmp_path)).names()) == set(weights())


def test_compressed_models_are_refused(tmp_path: Path) -> None:
    model_directory(tmp_path, quantization_config={"quant_method": "tercet"})
    with pytest.raises(CheckpointError, match="already compressed by Tercet"):
        open_source(tmp_path)
    model_directory(tmp_path, quantization_config={"quant_method": "gptq"})
    with pytest.raises(CheckpointError, match="already quantized by 'gptq'"):
        open_source(tmp_path)
    # as mlx-lm writes it, with its own section twice
    section = {"bits": 4, "group_size": 64}
    model_directory(tmp_path, quantization_config=section, quantization=section)
    with pytest.raises(CheckpointError, match="already quantized by 'mlx'"):
        open_source(tmp_path)


def test_directories_without_safetensors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        open_source(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        open_source(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors"):
        open_source(tmp_path)
    (tmp_path / "model.fp16.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds model\.fp16\.safetensors, but .* rename it"):
        open_source(tmp_path)
    (tmp_path / "model.fp16.safetensors").unlink()
    (tmp_path / "a.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pass one file, such as .*a\.gguf"):
        open_source(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickled PyTorch weights, which can run code"):
        open_source(tmp_path)


def test_references_that_name_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no directory, no GGUF file and no hub name"):
        open_source("smollm2-136m")
    with pytest.raises(CheckpointError, match="did you mean 'smollm2-135m'"):
        open_source("smollm2-136m")
    with pytest.raises(CheckpointError, match=r"x\.gguf: no such file"):
        open_source(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="no directory, no GGUF file"):
        open_source(tmp_path / "nothing")


def test_a_fetched_name_is_fetched_and_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(name: str, progress: object) -> Path:
        asked.append(name)
        return model_directory(tmp_path / "model")

    monkeypatch.setattr(opening, "fetch", fetch)
    source = open_source("minilm-l6")
    assert asked == ["minilm-l6"]
    assert source.reference == "minilm-l6"
    assert torch.equal(source.read("model.norm.weight"), weights()["model.norm.weight"])
