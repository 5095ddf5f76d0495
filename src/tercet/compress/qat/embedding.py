"""QatEmbedding: an embedding in training, and the head that is tied to one."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from tercet.compress.ptq.qat import Options
from tercet.compress.qat.weight import QuantizedWeight
from tercet.formats import Scheme
from tercet.models.embedding_factor import embedding_factor
from tercet.ops.embedding_packed import embedding_packed
from tercet.ops.linear_packed import linear_packed


class QatEmbedding(QuantizedWeight):
    """Rows of the quantized W [V, K] by token id, scaled as the old embedding's.

    Args:
        name, scheme, options, dtype: as QuantizedWeight.
        old: the embedding whose parameter this is.
    """

    def __init__(
        self, name: str, old: nn.Embedding, scheme: Scheme, options: Options, dtype: torch.dtype
    ) -> None:
        super().__init__(name, cast(nn.Parameter, old.weight), scheme, options, dtype)
        self.num_embeddings, self.embedding_dim = old.num_embeddings, old.embedding_dim
        self.factor = embedding_factor(old, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [..] to rows [.., K]."""
        if self.serves:
            rows = embedding_packed(ids, self.prepare_product(), self.dtype)
        else:
            rows = embedding(ids, self.trainable_values())
        return rows if self.factor == 1 else rows * self.factor


class TiedHead(nn.Module):
    """The embedding as an output projection.

    Args:
        embedding: whose weight it is.
        bias: [V], a parameter of its own; None without.
    """

    def __init__(self, embedding: QatEmbedding, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.bias = bias
        # a tuple keeps the embedding from being registered, and so trained, a second time
        self._embedding = (embedding,)

    def trainable_values(self) -> Tensor:
        """The values [V, K] of the embedding."""
        return self._embedding[0].trainable_values()

    def forward(self, x: Tensor) -> Tensor:
        """x [.., K] to logits [.., V]."""
        table = self._embedding[0]
        x = x.to(table.dtype)
        if not self.training and table.serves:
            return linear_packed(x, table.prepare_product(), self.bias)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return linear(x, table.trainable_values(), bias)
