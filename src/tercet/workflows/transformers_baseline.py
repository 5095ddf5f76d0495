"""The baseline of every speed table: transformers, float32, greedy, batch 1, in its own process.

    python -m tercet.workflows.transformers_baseline MODEL PROMPT TOKENS

MODEL is a Hugging Face directory. Prints one JSON object, with keys as in `tercet run --json`.
"""

import json
import sys
from time import perf_counter
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tercet.records import peak_resident_bytes


@torch.inference_mode()
def measure(directory: str, prompt: str, tokens: int) -> dict[str, Any]:
    """Greedy decoding of `tokens` tokens; the first one, with the prompt, is not timed."""
    tokenizer: Any = cast(Any, AutoTokenizer).from_pretrained(directory)
    model: Any = cast(Any, AutoModelForCausalLM).from_pretrained(directory, dtype=torch.float32)
    ids: Any = tokenizer(prompt, return_tensors="pt").input_ids
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
    out = model(ids, use_cache=True, logits_to_keep=1)
    found = [int(out.logits[0, -1].argmax())]
    start = perf_counter()
    for _ in range(tokens - 1):
        step = torch.tensor([[found[-1]]])
        out = model(step, past_key_values=out.past_key_values, use_cache=True)
        found.append(int(out.logits[0, -1].argmax()))
    seconds = perf_counter() - start
    return {
        "ids": found,
        "text": tokenizer.decode(found, skip_special_tokens=True),
        "decode_tokens_per_s": (tokens - 1) / seconds,
        "peak_resident_bytes": peak_resident_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
