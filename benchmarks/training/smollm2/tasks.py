"""Four tasks of multiple choice, as lm-evaluation-harness asks and scores them without examples.

A question is a context and the ways it may go on; the model's choice is the one of highest
probability (ARC-Easy, PIQA), or of highest log-probability per byte (HellaSwag). LAMBADA has one
way to go on, and counts where each of its tokens is the model's likeliest.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Requests = list[tuple[str, list[str], int]]
"""(context, continuations, which is right) of each question."""

TASKS = {
    "arc_easy": "arc/ARC-Easy-test.jsonl.gz",
    "hellaswag": "hellaswag/validation.jsonl.gz",
    "piqa": "piqa/validation.jsonl.gz",
    "lambada": "lambada/test.jsonl.gz",
}


def requests_of(task: str, data: Path) -> Requests:
    """All questions of a task, from the files below `data`."""
    with gzip.open(data / TASKS[task], "rt", encoding="utf-8") as file:
        return [_FORMS[task](json.loads(line)) for line in file]


def _arc_easy(row: dict[str, Any]) -> tuple[str, list[str], int]:
    question, *rest = re.split(r"\n [A-H]\. ", row["query"].removesuffix("\nAnswer:"))
    return f"{question}\nAnswer:", [f" {choice}" for choice in rest], int(row["gold"])


def _hellaswag(row: dict[str, Any]) -> tuple[str, list[str], int]:
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return (
        _clean(context),
        [f" {_clean(ending)}" for ending in row["endings"]],
        int(row["label"]),
    )


def _clean(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ").strip()


def _piqa(row: dict[str, Any]) -> tuple[str, list[str], int]:
    choices = [f" {row['sol1']}", f" {row['sol2']}"]
    return f"Question: {row['goal']}\nAnswer:", choices, int(row["label"])


def _lambada(row: dict[str, Any]) -> tuple[str, list[str], int]:
    return row["query"], [f" {row['answers_text'][0]}"], 0


_FORMS = {"arc_easy": _arc_easy, "hellaswag": _hellaswag, "piqa": _piqa, "lambada": _lambada}


def batches(lengths: Tensor, budget: int) -> list[list[int]]:
    """Requests [n] by length, cut so that none has more than `budget` tokens with padding."""
    order = lengths.argsort(descending=True, stable=True).tolist()
    found: list[list[int]] = [[]]
    for index in order:
        if found[-1] and (len(found[-1]) + 1) * int(lengths[found[-1][0]]) > budget:
            found.append([])
        found[-1].append(index)
    return found


@torch.no_grad()
def scores(
    hidden: Any,
    head: Tensor,
    tensors: dict[str, Tensor],
    task: str,
    *,
    questions: int | None = None,
    budget: int = 65536,
) -> dict[str, float]:
    """Share of right answers of a task, by name.

    Args:
        hidden: from ids [B, T] to the last hidden states [B, T, H].
        head: [V, H].
        tensors: of `data.py`.
        questions: how many, from the first; None for all.
        budget: tokens of a batch.
    """
    device = head.device
    rows = tensors[f"{task}.rows"].long()
    ids = tensors[f"{task}.ids"].to(torch.int32).long()
    answers = tensors[f"{task}.answers"].long()[:questions]
    rows = rows[rows[:, 0] < len(answers)]
    question, length, before, size = rows.T
    starts = length.cumsum(0) - length
    total = torch.zeros(len(rows), dtype=torch.float64)
    exact = torch.zeros(len(rows), dtype=torch.bool)
    for batch in batches(length, budget):
        pad = int(length[batch[0]])
        padded = torch.zeros(len(batch), pad, dtype=torch.int64)
        mask = torch.zeros(len(batch), pad, dtype=torch.bool)
        for place, index in enumerate(batch):
            first, count = int(starts[index]), int(length[index])
            padded[place, :count] = ids[first : first + count]
            mask[place, int(before[index]) : count] = True
        padded, mask = padded.to(device), mask.to(device)
        states = hidden(padded)[:, :-1][mask[:, 1:]]
        targets = padded[:, 1:][mask[:, 1:]]
        owner = torch.arange(len(batch), device=device)[:, None].expand(-1, pad - 1)[mask[:, 1:]]
        sums = torch.zeros(len(batch), dtype=torch.float64, device=device)
        right = torch.ones(len(batch), dtype=torch.float64, device=device)
        for first in range(0, len(targets), 8192):
            part = slice(first, first + 8192)
            logits = (states[part].to(head.dtype) @ head.T).float()
            picked = logits.log_softmax(-1).gather(1, targets[part, None])[:, 0].double()
            sums.index_add_(0, owner[part], picked)
            wrong = (logits.argmax(-1) != targets[part]).double()
            right.index_add_(0, owner[part], -wrong)
        total[batch], exact[batch] = sums.cpu(), (right > 0.5).cpu()
    if task == "lambada":
        return {"accuracy": float(exact.double().mean())}
    by_sum, by_byte = _chosen(total, question), _chosen(total / size, question)
    return {
        "accuracy": float((by_sum == answers).double().mean()),
        "accuracy_per_byte": float((by_byte == answers).double().mean()),
    }


def _chosen(values: Tensor, question: Tensor) -> Tensor:
    """For each question the place of its highest value."""
    count = int(question[-1]) + 1
    places = torch.arange(len(question)) - torch.searchsorted(
        question.contiguous(), question.contiguous()
    )
    table = torch.full((count, int(places.max()) + 1), -torch.inf, dtype=torch.float64)
    table[question, places] = values
    return table.argmax(1)
