"""Log-likelihoods of continuations, as lm-evaluation-harness defines them.

    log p(continuation | context) = sum over its tokens of log softmax(logits before it)[token]

A context and continuation longer than the model's positions + 1 lose tokens on the left. What is
computed for one continuation serves every other that needs the same logits: single tokens after
one context (the letters of MMLU) are one row. Rows of similar length make a batch; where that costs
more tokens than it saves calls (long examples before each question), contexts follow one another
instead, and each is computed from where it differs from the one before.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from tercet.evaluate.tasks.token_model import Progress, TokenModel, shared_length

Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a model makes of a continuation.

    Attributes:
        loglikelihood: the natural logarithm of its probability.
        greedy: whether each of its tokens is the most probable one.
    """

    loglikelihood: float
    greedy: bool


def score(
    model: TokenModel,
    requests: Sequence[tuple[Sequence[int], Sequence[int]]],
    progress: Progress | None = None,
    batch_tokens: int | None = None,
) -> list[Scored]:
    """The continuations' log-likelihoods, in the order of the requests.

    Args:
        model: gives the logits.
        requests: token ids of (context, continuation), no context empty. An empty continuation
            (its text merged into the context's last token) is certain.
        progress: called as requests are done.
        batch_tokens: of a batch, padding included, where no prefix is shared; None for the model's
            own number.
    """
    rows: dict[tuple[Ids, Ids], list[int]] = defaultdict(list)
    found = [Scored(loglikelihood=0.0, greedy=True)] * len(requests)
    for index, (context, continuation) in enumerate(requests):
        if not continuation:
            continue
        kept = (*context, *continuation)[-(model.positions + 1) :]
        split = max(len(kept) - len(continuation), 1)
        rows[kept[:split], kept[split:-1]].append(index)
    done = sum(not continuation for _, continuation in requests)
    for row, logits in _rows_with_logits(model, rows, batch_tokens or model.batch_tokens):
        # a continuation as long as all positions lost its first token to the context
        tokens = torch.tensor([list(requests[index][1])[-len(logits) :] for index in rows[row]])
        for index, scored in zip(rows[row], _score_tokens(logits, tokens), strict=True):
            found[index] = scored
        done += len(rows[row])
        if progress is not None:
            progress(done, len(requests))
    return found


def _score_tokens(logits: Tensor, tokens: Tensor) -> list[Scored]:
    """Args: logits [T, V] before each of tokens [continuations, T]."""
    tokens = tokens.to(logits.device)
    logarithms = logits.float().log_softmax(-1)
    of_tokens = logarithms[torch.arange(len(logits), device=logits.device), tokens].sum(1)
    greedy = (logits.argmax(-1) == tokens).all(1)
    # in one piece: what comes from a GPU is waited for
    found = cast("list[list[float]]", torch.stack([of_tokens, greedy.float()], 1).tolist())
    return [Scored(loglikelihood=one, greedy=bool(best)) for one, best in found]


def _rows_with_logits(
    model: TokenModel, rows: Collection[tuple[Ids, Ids]], batch_tokens: int
) -> Iterable[tuple[tuple[Ids, Ids], Tensor]]:
    """Each row (context, all but the last token of a continuation) with its logits [T, V]."""
    by_context: dict[Ids, list[Ids]] = defaultdict(list)
    for context, rest in rows:
        by_context[context].append(rest)
    if model.call_tokens is not None:
        batched = sum(len(context) + len(rest) for context, rest in rows)
        if _tokens_of_contexts(by_context, model.call_tokens) <= batched:
            return _after_shared_contexts(model, by_context)
    return _in_batches(model, rows, batch_tokens)


def _tokens_of_contexts(by_context: Mapping[Ids, Sequence[Ids]], call_tokens: int) -> int:
    """Tokens that contexts one after the other cost, with two calls each."""
    total, before = 0, Ids()
    for context in sorted(by_context):
        total += len(context) - shared_length(before, context) + 2 * call_tokens
        total += sum(map(len, by_context[context]))
        before = context
    return total


def _after_shared_contexts(
    model: TokenModel, by_context: Mapping[Ids, Sequence[Ids]]
) -> Iterable[tuple[tuple[Ids, Ids], Tensor]]:
    # nothing of an earlier call is used: a run that goes on gives the bits of one that was whole
    model.set_prefix(())
    # in lexical order, contexts that begin alike follow each other
    for context in sorted(by_context):
        model.set_prefix(context[:-1])
        rests = by_context[context]
        logits = model.logits_after_prefix(_pad([(context[-1], *rest) for rest in rests]))
        for rest, own in zip(rests, logits, strict=True):
            yield (context, rest), own[: len(rest) + 1]


def _in_batches(
    model: TokenModel, rows: Iterable[tuple[Ids, Ids]], batch_tokens: int
) -> Iterable[tuple[tuple[Ids, Ids], Tensor]]:
    ordered = sorted(rows, key=lambda row: -len(row[0]) - len(row[1]))
    while ordered:
        longest = len(ordered[0][0]) + len(ordered[0][1])
        count = max(batch_tokens // longest, 1)
        batch, ordered = ordered[:count], ordered[count:]
        ids = _pad([(*context, *rest) for context, rest in batch])
        where = torch.zeros_like(ids, dtype=torch.bool)
        for at, (context, rest) in enumerate(batch):
            where[at, len(context) - 1 : len(context) + len(rest)] = True
        counts = [len(rest) + 1 for _, rest in batch]
        chunks: tuple[Tensor, ...] = torch.split(model.logits_at(ids, where), counts)
        yield from zip(batch, chunks, strict=True)


def _pad(rows: Sequence[Ids]) -> Tensor:
    """Ids [rows, longest], zeros behind: nothing sees what follows it."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
