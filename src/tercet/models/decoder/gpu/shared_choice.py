"""SharedChoice: of the ranks of tensor parallelism, the first chooses each token."""

from dataclasses import dataclass

from torch import Tensor

from tercet.models.decoder.gpu.token_graph import Choice
from tercet.models.decoder.tensor_parallel.group import RankGroup


@dataclass(frozen=True)
class SharedChoice:
    """A choice of tokens that rank 0 makes for all.

    Ranks that drew for themselves, or whose scores differed in one bit, would go on with other
    tokens than the rest, and their sums would be of different texts.

    Attributes:
        choose: whose result counts on rank 0.
        group: all ranks.
    """

    choose: Choice
    group: RankGroup

    def __call__(self, scores: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        """As a `Choice`."""
        return self.group.copy_first_(self.choose(scores, ids, lengths))
