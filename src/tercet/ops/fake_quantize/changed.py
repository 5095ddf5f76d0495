"""How many codes a step of training changed."""

from torch import Tensor


def count_changed(before: Tensor, after: Tensor) -> Tensor:
    """How many codes of `after` are not those of `before`, of an earlier step: int64 [].

    Args:
        before, after: [N, K] int8, contiguous, as `fake_quantize` returns them. On a GPU each is
            read once, where torch's comparison would write and read as many bytes again.
    """
    if after.device.type != "cuda":
        return (before != after).sum()
    from tercet.ops.fake_quantize import changed_codes

    return changed_codes.count_changed(before, after)
