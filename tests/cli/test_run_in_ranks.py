"""`tercet run --tensor-parallel`: one text by several processes, which end together."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, Qwen2Config

from tercet.child_process.child import ChildError
from tercet.compress.pipeline import compress
from tercet.compress.plan import Plan
from tercet.runtime import GenerationSettings
from tercet.runtime.tensor_parallel.messages import Job
from tercet.runtime.tensor_parallel.processes import open_ranks

WORDS = 128
PROMPT = "w3 w7 w9 w77"
# more than are made before a signal arrives
ENDLESS = 20000


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 (biases, more ranks than key-value heads) that repeats no token for long."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2 * ENDLESS,
        initializer_range=0.2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    rules = [
        {"match": "*layers.1.*", "keep": True},
        {"match": "*layers*", "format": "ternary-g64", "algorithm": "rtn"},
    ]
    plan = Plan.model_validate({"name": "tried", "rules": rules})
    ids = torch.randint(3, WORDS, (4, 16), generator=torch.Generator().manual_seed(1))
    compress(folder / "model", plan, folder / "packed", calibration=ids, device="cpu")
    return folder / "packed"


def test_the_text_of_one_process(tercet: Callable[..., Any], packed: Path) -> None:
    run = ["run", packed, "--prompt", PROMPT, "--device", "cpu", "--max-tokens", 24]
    run += ["--ignore-stop", "--json"]
    one = json.loads(tercet(*run).out)
    two = json.loads(tercet(*run, "--tensor-parallel", 2).out)
    assert len(set(one["ids"])) > 6
    same = ("text", "ids", "prompt_tokens", "reason")
    assert [two[key] for key in same] == [one[key] for key in same]
    assert two.keys() == one.keys()
    left = [child.cmdline() for child in psutil.Process().children()]
    assert not [words for words in left if any("spawn_main" in word for word in words)]


def test_what_cannot_be_cut_is_refused_in_one_line(
    tercet: Callable[..., Any], packed: Path
) -> None:
    run = ("run", packed, "--prompt", PROMPT, "--device", "cpu", "--tensor-parallel")
    assert "--tensor-parallel 9: must be 1 to 8" in tercet(*run, 9).error
    assert "2 attention heads" in tercet(*run, 3).error


def test_a_rank_that_is_killed_ends_all(packed: Path) -> None:
    settings = GenerationSettings(max_new_tokens=ENDLESS, ignore_stop=True)
    job = Job(
        directory=packed, prompt=PROMPT, chat=None, settings=settings, world_size=2, device="cpu",
        kv_cache_dtype=None,
    )  # fmt: skip
    ranks = list[int]()

    def kill_one() -> None:
        with open_ranks(job) as stream:
            for _ in stream:
                if not ranks:
                    ranks.extend(process.pid or 0 for process in stream._processes)
                    os.kill(ranks[1], signal.SIGKILL)

    with pytest.raises(ChildError, match="rank 1 of 2 was ended by SIGKILL"):
        kill_one()
    assert not any(map(psutil.pid_exists, ranks))


@pytest.fixture
def endless(packed: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, which has printed its first text and goes on."""
    command = [sys.executable, "-m", "tercet", "run", str(packed), "--prompt", PROMPT]
    command += ["--device", "cpu", "--max-tokens", str(ENDLESS), "--ignore-stop"]
    with subprocess.Popen(
        [*command, "--tensor-parallel", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1) == b"w"
        yield process
        process.kill()


def test_an_interrupt_ends_all(endless: subprocess.Popen[bytes]) -> None:
    ranks = psutil.Process(endless.pid).children()
    assert len(ranks) >= 2
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    assert endless.stdout is not None
    assert endless.stdout.read(1)
    # as a terminal does: to all of them
    os.killpg(endless.pid, signal.SIGINT)
    _, said = endless.communicate()
    assert endless.returncode == 130
    assert said.decode().strip() == "interrupted"
    assert not psutil.wait_procs(ranks, timeout=100)[1]


def test_ranks_do_not_outlive_a_command_that_is_killed(endless: subprocess.Popen[bytes]) -> None:
    ranks = psutil.Process(endless.pid).children()
    endless.kill()
    assert not psutil.wait_procs(ranks, timeout=100)[1]
