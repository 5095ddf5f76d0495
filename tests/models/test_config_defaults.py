"""What config.json leaves out is what transformers' own class assumes, or it is refused by name."""

from collections.abc import Mapping
from copy import deepcopy
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from tercet.errors import CheckpointError, UnsupportedError
from tercet.models import architectures
from tercet.models.architectures import find_architecture
from tercet.models.decoder.config import DecoderConfig, read_config
from tercet.models.decoder.rope import frequencies, read_rotations

SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}
NAMES = [
    import_module(f"{architectures.__name__}.{module.name}").ARCHITECTURE.name
    for module in iter_modules(architectures.__path__)
]


def read(config: Mapping[str, Any]) -> tuple[DecoderConfig, tuple[int, ...], list[list[float]]]:
    architecture = find_architecture(config)
    sizes = read_config(architecture, config)
    rotations = read_rotations(architecture, config, sizes.layers, sizes.head_dim)
    return sizes, rotations.of_layer, [kind.tolist() for kind in rotations.kinds]


@pytest.mark.parametrize("name", NAMES)
def test_each_key_that_is_missing(name: str) -> None:
    whole = CONFIG_MAPPING[name](**SMALL).to_dict()
    assert read(whole)
    compared = 0
    for key in whole:
        given = {other: value for other, value in whole.items() if other != key}
        if key == "model_type":
            continue
        try:
            expected = CONFIG_MAPPING[name](**given).to_dict()
            assumed = read(expected)
        except Exception:  # noqa: BLE001 what transformers, or the decoder, refuses has no meaning
            continue
        try:
            assert read(given) == assumed, key
        except CheckpointError as error:
            assert f"config.json: {key} None" in str(error)  # noqa: PT017 both are fine
        compared += 1
    assert compared > 20


LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
KNOWN = {
    "rope_parameters": (None, {}, {"rope_theta": 5e5}, {**LINEAR, "rope_theta": 5e5}, LLAMA3),
    "rope_scaling": (
        None,
        {},
        LINEAR,
        {"type": "linear", "factor": 2.0},
        {**LINEAR, "rope_theta": 70.0},
        {**LLAMA3, "original_max_position_embeddings": 64},
    ),
    "rope_theta": (None, 300.0),
    "original_max_position_embeddings": (None, 128),
    "max_position_embeddings": (512,),
    "sliding_window": (None, 5),
    "use_sliding_window": (None, False, True),
    "max_window_layers": (None, 2),
    "sliding_window_pattern": (None, 3),
    "layer_types": (None, ["sliding_attention", "full_attention"] * 3),
}
TWO_KINDS = {"sliding_attention": {"rope_theta": 80.0}, "full_attention": LINEAR}


@pytest.mark.parametrize("name", NAMES)
def test_keys_old_and_new_are_read_as_transformers_reads_them(name: str) -> None:
    """Rotations and windows of configs that say them twice, or in part, or the older way."""
    drawn, compared = Random(1), 0
    for _ in range(150):
        given: dict[str, Any] = dict(SMALL)
        for key, values in KNOWN.items():
            if name == "gemma3_text" and key == "rope_parameters":
                values = (None, TWO_KINDS)
            value = drawn.choice(values)
            if value is not None and (key, name) != ("layer_types", "falcon_h1"):
                given[key] = deepcopy(value)
        try:
            whole = CONFIG_MAPPING[name](**deepcopy(given)).to_dict()
        except Exception:  # noqa: BLE001 what transformers refuses has no meaning
            continue
        assert read({"model_type": name, **given}) == read(whole), given
        compared += 1
    assert compared > 20


@pytest.mark.parametrize("name", NAMES)
def test_part_of_a_head_turns_where_transformers_turns_a_part(name: str) -> None:
    config = CONFIG_MAPPING[name](**SMALL, partial_rotary_factor=0.5).to_dict()
    found = {len(kind) for kind in read(config)[2]}
    assert found == ({4} if name == "phi3" else {8})


def test_a_part_that_is_scaled_is_refused_where_whole_heads_turn() -> None:
    config = {
        "rope_parameters": {
            "rope_type": "linear",
            "factor": 2.0,
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        }
    }
    with pytest.raises(UnsupportedError, match=r"partial_rotary_factor 0\.5"):
        frequencies(config, 16, partial=False)
    assert torch.equal(
        frequencies(config, 16, partial=True), 1e4 ** -(torch.arange(0, 8, 2) / 8.0) / 2
    )


def test_a_part_that_makes_no_pairs_is_refused() -> None:
    config = {"rope_parameters": {"partial_rotary_factor": 0.33}}
    with pytest.raises(UnsupportedError, match="a rotation of 5 of a head's 16 elements"):
        frequencies(config, 16, partial=True)
