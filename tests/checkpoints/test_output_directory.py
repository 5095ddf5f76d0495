"""A run replaces what Tercet wrote and nothing else, and finds before any work what is in the way.

Every refusal is checked to leave each file, and the folder around it, as they were.
"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tercet.checkpoints.packed.layout import MANIFEST_NAME
from tercet.checkpoints.packed.output_directory import STATE, claim_output, replace_directory
from tercet.checkpoints.seal import SEAL_NAME
from tercet.errors import CheckpointError


def fill(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)
    return directory


def listing(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text() if path.is_file() else "/"
        for path in directory.rglob("*")
    }


def claim(out: str | Path, **options: Any) -> Path:
    with claim_output(out, **{"overwrite": True, **options}) as claimed:
        return claimed


def refuse(folder: Path, out: Path, message: str, **options: Any) -> None:
    before = listing(folder)
    with pytest.raises(CheckpointError, match=message):
        claim(out, **options)
    assert listing(folder) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("models/m", "is the model that is read"),
        ("models", "contains the model that is read"),
        ("models/m/int4", "lies inside the model that is read"),
        ("models/m/deep/int4", "lies inside the model that is read"),
        ("link", "is the model that is read"),
    ],
)
def test_the_model_that_is_read_is_never_replaced(
    out: str, message: str, overwrite: bool, tmp_path: Path
) -> None:
    model = fill(tmp_path / "models" / "m", config__json=_config("tercet"))
    (tmp_path / "link").symlink_to(model)
    refuse(tmp_path, tmp_path / out, message, overwrite=overwrite, sources=[model])
    nameless = [None, "org/name", "smollm2-135m"]
    assert claim(tmp_path / "models" / "other", sources=[model, *nameless]).name == "other"


def test_a_file_that_is_read_is_not_replaced_with_its_folder(tmp_path: Path) -> None:
    models = fill(tmp_path / "models", m__gguf="weights", tercet_manifest__json="{}")
    message = "contains the model that is read"
    refuse(tmp_path, models, message, sources=[models / "m.gguf"])
    assert claim(models / "out", sources=[models / "m.gguf"]) == models / "out"


def _config(method: str | None) -> str:
    return json.dumps({} if method is None else {"quantization_config": {"quant_method": method}})


@pytest.mark.parametrize(
    "files",
    [
        {"a__jpg": "photo"},
        {"a__jpg": "photo", "SHA256SUMS": "sums of photos"},
        {"config__json": "no JSON"},
        {"config__json": _config(None), "model__safetensors": "an uncompressed model"},
        {"config__json": _config("gptq"), "model__safetensors": "somebody else's"},
    ],
)
def test_what_tercet_did_not_write_is_kept(files: dict[str, str], tmp_path: Path) -> None:
    out = fill(tmp_path / "out", **files)
    refuse(tmp_path, out, "no checkpoint that Tercet wrote.*remove the directory yourself")
    refuse(tmp_path, out, "already exists", overwrite=False)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {MANIFEST_NAME: "{}"},
        {"tercet_export.json": "{}"},
        {"tercet_origin.json": "{}"},
        {"config.json": _config("tercet")},
        {"config.json": _config("gptq"), SEAL_NAME: ""},
    ],
)
def test_what_tercet_wrote_may_be_replaced(files: dict[str, str], tmp_path: Path) -> None:
    out = fill(tmp_path / "out", **files)
    assert claim(out) == out
    if files:
        refuse(tmp_path, out, "already exists", overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_refused_at_once(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refuse(tmp_path, tmp_path / "file", "is a file; choose another --out", overwrite=overwrite)


@pytest.mark.parametrize("options", [{}, {"overwrite": False}, {"resume": True}])
def test_a_folder_of_the_users_that_is_called_partial_is_kept(
    options: dict[str, bool], tmp_path: Path
) -> None:
    fill(tmp_path / "out.partial", thesis__txt="mine")
    refuse(tmp_path, tmp_path / "out", r"out\.partial: .*is none", **options)


def test_an_unfinished_run_needs_leave(tmp_path: Path) -> None:
    (tmp_path / "out.partial" / STATE).mkdir(parents=True)
    message = "an unfinished run lies here"
    refuse(tmp_path, tmp_path / "out", message, overwrite=False, resume=False)
    claim(tmp_path / "out", overwrite=False, resume=True)
    claim(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed(there: bool, tmp_path: Path) -> None:
    if there:
        (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    assert claim(tmp_path / "link", overwrite=False) == tmp_path / "disk"


def test_only_names_that_say_nothing_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "deep")
    assert claim("out") == Path("out")
    assert claim(".") == tmp_path / "here" / "deep"
    (tmp_path / "here" / MANIFEST_NAME).write_text("{}")
    assert claim("..") == tmp_path / "here"
    with pytest.raises(CheckpointError, match="an empty path"):
        claim("")
    with pytest.raises(CheckpointError, match="an empty path"):
        claim("out", sources=[""])


def test_replacing_touches_nothing_beside_it(tmp_path: Path) -> None:
    old, new = fill(tmp_path / "out", a="old"), fill(tmp_path / "new", a="new")
    fill(tmp_path / "out.replaced", thesis__txt="mine")
    replace_directory(new, old)
    assert listing(tmp_path) == {
        "out": "/",
        "out/a": "new",
        "out.replaced": "/",
        "out.replaced/thesis.txt": "mine",
    }


def test_the_old_one_comes_back_where_the_new_one_cannot_be_moved(tmp_path: Path) -> None:
    old = fill(tmp_path / "out", a="old")
    before = listing(tmp_path)
    with pytest.raises(FileNotFoundError):
        replace_directory(tmp_path / "missing", old)
    assert listing(tmp_path) == before


def fill_disk(out: Path, begin: Callable[[Path], object]) -> None:
    with claim_output(out, overwrite=True):
        begin(out.with_name("out.partial"))
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise CheckpointError("the disk is full") from full


def test_a_full_disk_says_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^the disk is full$"):
        fill_disk(tmp_path / "out", lambda _: None)
    kept = r"the disk is full; what was finished is kept in .*/out\.partial: go on with .*--resume"
    with pytest.raises(CheckpointError, match=kept):
        fill_disk(tmp_path / "out", Path.mkdir)
