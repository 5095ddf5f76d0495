"""Compares greedy tokens in vLLM's CPU build with those of transformers on the packed checkpoint.

python benchmarks/exports/vllm_cpu.py RECORDS PYTHON DIR...
    [--as packed] [--dtype float32] [--compiled] [--tensor-parallel N] [--serve] [--mixtures KIND]

PYTHON belongs to an environment with Tercet and vllm-cpu, without torchvision, torchaudio and
torchcodec: 3.5 GB, which is why it is not a part of every test run. `--as packed` loads the
checkpoint itself with Tercet's plugin, `--as compressed-tensors` its export, in which a linear
layer is multiplied by the first kernel that can: vLLM's own takes 4 bits in float16 or bfloat16.
`--serve` asks `vllm serve` over HTTP in place of the library. `--mixtures` adds random mixtures of
experts of that kind (qwen3_moe), ternary and nonary, with SmolLM2's tokenizer.
"""

import argparse
import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import tercet
from tercet.checkpoints.sources.open import open_source
from tercet.export import transformers_client
from tercet.records import Environment, Outcome, Record, append
from tercet.runtime.tokenizer import load_tokenizer
from tercet.workflows.export.report import dominant_format, model_name
from tercet.workflows.export.run import PROMPT, export

COUNT = 16
SCRIPT = str(Path(__file__).with_name("vllm_greedy.py"))
PORT = 8317
_START_LIMIT_S = 420.0


def measure(directory: Path, given: argparse.Namespace, folder: Path) -> Record:
    """The record of one checkpoint: FAILED where vLLM does, WRONG where the first token differs."""
    checkpoint, tokenizer = tercet.open_packed(directory), load_tokenizer(directory)
    prompt = tokenizer.encode(PROMPT)
    reference = transformers_client.greedy(directory, prompt, COUNT)
    held = directory
    if given.held != "packed":
        held = Path(export(directory, given.held, folder / directory.name).out)
    theirs, log = (_served if given.serve else _generated)(held, prompt, given)
    same = _same_tokens(reference, theirs)
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    version = subprocess.run(
        [given.python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    return Record(
        kind="export-vllm",
        subject="vllm",
        settings={
            "model": model_name(checkpoint),
            "format": dominant_format(checkpoint),
            "held": given.held,
            "plugin": True,
            "mode": _mode(given),
            "client": f"vllm-cpu {version}",
            "dtype": given.dtype,
            "our_text": tokenizer.decode(reference),
            "text": tokenizer.decode(theirs),
        },
        metrics={"greedy_equal_tokens": same, "greedy_tokens": COUNT} if same else {},
        outcome=_outcome(theirs, same),
        reason=None if same else _reason(log),
        environment=Environment.here(),
    )


def mixtures(kind: str, folder: Path) -> list[Path]:
    """A random mixture of 16 experts, of which a token meets 4, in 1.6 and in 3.2 bits."""
    torch.manual_seed(7)
    # vLLM builds shared experts for any mixture whose configuration names their size
    shared = {"shared_expert_intermediate_size": 256} if kind == "qwen2_moe" else {}
    config = AutoConfig.for_model(
        kind,
        **shared,
        vocab_size=49152,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_experts=16,
        num_experts_per_tok=4,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    source = folder / f"random-{kind.replace('_', '-')}"
    AutoModelForCausalLM.from_config(config).save_pretrained(source)
    open_source("smollm2-135m").save_companions(source)
    found: list[Path] = []
    for scheme in ("ternary-g64", "nonary-g64"):
        rules = [
            {"match": "*embed_tokens", "format": "int8-g64", "algorithm": "rtn"},
            {"match": "*.layers.*", "format": scheme, "algorithm": "rtn"},
        ]
        plan = tercet.Plan.model_validate({"name": scheme, "rules": rules})
        found.append(tercet.compress(source, plan, folder / f"{kind}-{scheme}").directory)
    return found


def _mode(given: argparse.Namespace) -> str:
    parts = ["compiled" if given.compiled else "eager"]
    parts += ["served over HTTP"] if given.serve else []
    parts += [f"{given.tensor_parallel} ranks"] if given.tensor_parallel > 1 else []
    return ", ".join(parts)


def _environment(given: argparse.Namespace) -> dict[str, str]:
    found = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    if given.tensor_parallel > 1:
        # left to itself, vLLM wants a memory node for each rank
        cores = [str(rank % (os.cpu_count() or 1)) for rank in range(given.tensor_parallel)]
        found["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(cores)
    return found


def _generated(held: Path, prompt: list[int], given: argparse.Namespace) -> tuple[list[int], str]:
    """Tokens by the library, and what it printed."""
    options = ["--compiled"] if given.compiled else []
    options += ["--tensor-parallel", str(given.tensor_parallel)]
    tokens = [str(token) for token in prompt]
    command = [given.python, SCRIPT, str(held), given.dtype, str(COUNT), *tokens, *options]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_environment(given)
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("[") and "," in line]
    found = json.loads(rows[-1]) if done.returncode == 0 else []
    return found, done.stdout + done.stderr


def _served(held: Path, prompt: list[int], given: argparse.Namespace) -> tuple[list[int], str]:
    """Tokens by `vllm serve`, asked as any client of OpenAI's completions asks."""
    options = ["--dtype", given.dtype, "--port", str(PORT), "--max-model-len", "256"]
    options += ["--tensor-parallel-size", str(given.tensor_parallel), "--max-num-seqs", "1"]
    options += [] if given.compiled else ["--enforce-eager"]
    wanted = {"model": str(held), "prompt": prompt, "max_tokens": COUNT, "temperature": 0}
    wanted |= {"ignore_eos": True, "return_token_ids": True}
    with tempfile.TemporaryFile("w+") as log:
        command = [given.python, SCRIPT, "--serve", str(held), *options]
        server = subprocess.Popen(command, stdout=log, stderr=log, env=_environment(given))
        try:
            ready = _wait_for(server)
            found = _ask("v1/completions", wanted)["choices"][0]["token_ids"] if ready else []
        finally:
            server.terminate()
            server.wait(60)
        log.seek(0)
        return found, log.read()


def _wait_for(server: "subprocess.Popen[bytes]") -> bool:
    """Whether the server answers before it ends, within seven minutes."""
    start = monotonic()
    while server.poll() is None and monotonic() - start < _START_LIMIT_S:
        try:
            _ask("v1/models")
        except (urllib.error.URLError, ConnectionError):
            sleep(2)
        else:
            return True
    return False


def _ask(path: str, content: dict[str, Any] | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _outcome(theirs: list[int], same: int) -> Outcome:
    if not theirs:
        return Outcome.FAILED
    return Outcome.OK if same else Outcome.WRONG


def _reason(output: str) -> str:
    """vLLM's first error, which is its cause, and what it says of its CPU kernel."""
    lines = [line.partition("] ")[2] or line for line in output.splitlines()]
    errors = [line.strip() for line in lines if "Error: " in line or "CPUWNA16" in line]
    return "; ".join(dict.fromkeys(errors[:2])) or "the first token differs"


def _same_tokens(ours: list[int], theirs: list[int]) -> int:
    """How many tokens from the start are the same."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), len(theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path)
    parser.add_argument("python")
    parser.add_argument("directories", type=Path, nargs="*")
    parser.add_argument("--as", dest="held", default="packed")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--mixtures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        made = mixtures(given.mixtures, Path(name)) if given.mixtures else []
        for directory in [*given.directories, *made]:
            found = measure(directory, given, Path(name))
            print(directory.name, found.outcome, found.metrics, found.reason)
            append(given.records, [found])


if __name__ == "__main__":
    main()
