import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from safetensors.torch import save_file

from tercet.checkpoints.sources.open import open_source
from tercet.errors import CheckpointError


def hub_cache(root: Path) -> Path:
    """A cache with one snapshot, in huggingface_hub's own layout."""
    repository = root / "models--org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    save_file({"w": torch.arange(6.0)}, snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return root


def offline(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def test_the_hubs_cache_serves_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch, hub_cache(tmp_path))
    source = open_source("org/tiny")
    assert source.reference == "org/tiny"
    assert source.read("w").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_offline_says_so_and_what_to_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch, tmp_path)
    with pytest.raises(
        CheckpointError, match="HF_HUB_OFFLINE is set and the hub's cache"
    ) as caught:
        open_source("org/absent")
    assert "no directory 'org/absent' here" in str(caught.value)
    assert "pass the path of a directory that holds config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (RepositoryNotFoundError, "the hub has no model 'org/tiny'"),
        (GatedRepoError, "asks for a licence to be accepted"),
        (LocalEntryNotFoundError, r"could not be reached \(LocalEntryNotFoundError\)"),
        (OfflineModeIsEnabled, "could not be reached"),
        (HFValidationError, "'org/tiny' is no hub name"),
        (TimeoutError, r"could not be reached \(TimeoutError\)"),
    ],
)
def test_the_hubs_errors_become_ours(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception], message: str
) -> None:
    def snapshot_download(*names: str, **options: object) -> str:
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(CheckpointError, match=message):
        open_source("org/tiny")
