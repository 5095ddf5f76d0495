"""Quality of a student on WikiText-2: perplexity, and divergence from its teacher."""

import math

import torch
from torch import Tensor

from tercet.compress.qat.student import Student

WINDOW = 1024


@torch.no_grad()
def perplexity(student: Student, windows: Tensor) -> float:
    """On windows [n, WINDOW] of WikiText-2 test."""
    loss = 0.0
    for window in windows.split(8):
        states, head = student.hidden(window), student.head()
        for one, ids in zip(states, window, strict=True):
            logits = (one[:-1] @ head.T).float()
            loss += float(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"))
    return math.exp(loss / (len(windows) * (WINDOW - 1)))


@torch.no_grad()
def divergence(student: Student, teacher: Student, windows: Tensor) -> dict[str, float]:
    """KL(teacher || student) in nats a token, and the share of equal first choices."""
    kl = agree = 0.0
    for window in windows[:, None]:
        p, q = (
            (m.hidden(window)[0, :-1] @ m.head().T).float().log_softmax(-1)
            for m in (teacher, student)
        )
        kl += float((p.exp() * (p - q)).sum(-1).double().mean())
        agree += float((p.argmax(-1) == q.argmax(-1)).double().mean())
    return {"kl_nats": kl / len(windows), "top1_agreement": agree / len(windows)}
