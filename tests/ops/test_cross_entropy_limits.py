"""What linear_cross_entropy's gradient may be off by, where every row of the weight is the same."""

import torch

from tercet.ops.discover import find

VOCABULARY, HIDDEN = 9000, 64


def test_roundings_that_all_go_one_way_are_within_the_limit() -> None:
    op = find("linear_cross_entropy")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, HIDDEN, generator=generator) * 1e-3
    row = torch.randn(1, HIDDEN, generator=generator)
    arguments = {"x": x, "weight": row.expand(VOCABULARY, HIDDEN), "target": torch.tensor([0])}
    *_, size, _ = op.magnitude(**arguments)
    limit = op.tolerance(torch.float32).relative * size[0]
    # the probabilities of equal logits, exact but for their own rounding, added one by one
    found = torch.full((VOCABULARY,), 1 / VOCABULARY)
    found[0] -= 1
    total = torch.zeros(HIDDEN)
    for share in found:
        total = total + share * row[0]
    assert (total.abs() <= limit).all()
